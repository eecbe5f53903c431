"""Who meets whom: the groups of barriers and warp operations, and one coming-together of a group.

Any hashable can be a group that has these two: `size(block)`, how many arrivals make a meeting complete, and
`absent(block)`, the lanes that should have come and have returned instead.
"""

from typing import NamedTuple


class Whole(NamedTuple):
    """The group of a block-wide barrier: every thread that has not returned."""

    def size(self, block):
        """How many must arrive before all go on."""
        return block.live

    def absent(self, block):
        """The lanes that have returned, so that nobody waits for them."""
        return [lane for lane in block.lanes if not block.alive[lane.warp] >> lane.lane & 1]


class Part(NamedTuple):
    """The group of a warp operation: the lanes of the mask that exist and have not returned."""

    warp: int
    mask: int

    def size(self, block):
        """How many must arrive before all go on."""
        return (self.mask & block.alive[self.warp]).bit_count()

    def absent(self, block):
        """The lanes of the mask that have returned; lanes that never existed are not missed."""
        gone = self.mask & ~block.alive[self.warp]
        return [lane for lane in block.lanes if lane.warp == self.warp and gone >> lane.lane & 1]


class Meeting:
    """One coming-together of a group: who has come and waits, what each has brought."""

    def __init__(self, operation, group):
        self.operation, self.group = operation, group
        self.waiting, self.knowledge = [], None
        self.values = {}                                # number of the lane → value
