"""Copies to shared memory that go on while the thread does something else: begun, grouped, waited for.

On a GPU the numbers may arrive at any time between. Here the cells hold NaN (integers: −1) from the moment that a copy
begins, and the numbers from the moment that its thread has waited for it. An audit sees a write at either end, and
reports whoever touches a cell in between, the thread itself included. A copy that nobody waits for never arrives.
"""

from collections import defaultdict, deque

import numpy as np


class Flights:
    """The copies of one block that are under way. What a thread does concerns its own copies only."""

    def __init__(self, block):
        self.block = block
        self.begun = defaultdict(list)                  # number of the lane → copies not yet in a group
        self.groups = defaultdict(deque)                # number of the lane → its groups, oldest first
        self.over = {}                                  # address of a cell → the Access that began a copy to it

    def begin(self, target, numbers):
        """A copy of these numbers to the cells of a guarded view of shared memory."""
        target[:] = np.full(numbers.nbytes, 0xFF, np.uint8).view(numbers.dtype)
        self.begun[self.block.running.number].append((target, numbers))
        if self.block.watch:
            self.block.watch.counts.shared_writes -= numbers.size                       # counted when they arrive
            began = self.block.watch.now(self.block, "is still copying into")
            self.over.update(dict.fromkeys(target.addresses(), began))

    def commit(self):
        """Make one group of what this thread has begun."""
        number = self.block.running.number
        self.groups[number].append(self.begun.pop(number, []))

    def wait(self, most):
        """Let this thread's oldest groups arrive, until at most so many are left."""
        groups = self.groups[self.block.running.number]
        while len(groups) > most:
            for target, numbers in groups.popleft():
                if self.over:
                    for address in target.addresses():
                        self.over.pop(address, None)
                target[:] = numbers
