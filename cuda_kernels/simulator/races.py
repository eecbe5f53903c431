"""Who may have come between: the order of accesses by vector clocks.

Each thread counts its own time, and remembers of every other thread the latest time that it is bound to have seen:
`lane.now` and `lane.past`. At a barrier all learn what any of them knew. Two accesses to one cell are ordered if the
later thread knows of the earlier one's time; if not, if one of them writes and not both are atomic, they race: on a GPU
either may come first, whatever order they had in this run. Threads of different blocks never learn of one another.
"""

from typing import NamedTuple

READ, WRITE, ATOMIC = "reads", "writes", "updates atomically"
RIVALS = {READ: (WRITE, ATOMIC), WRITE: (READ, WRITE, ATOMIC), ATOMIC: (READ, WRITE)}

# A shuffle or a vote makes lanes wait for one another, but CUDA promises nothing about memory there.
ORDER_MEMORY = {"syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or", "syncwarp", "grid sync"}


class Access(NamedTuple):
    """One reading or writing of one cell."""

    block: object
    number: int             # of the thread in its block
    time: int
    action: str
    file: str
    line: int


class Cell:
    """The accesses to one cell that a later one may still race with."""

    __slots__ = ("before", "block", "last", "written")

    def __init__(self, block):
        self.block, self.written = block, False
        self.last = {READ: {}, WRITE: {}, ATOMIC: {}}   # of this block's threads: number → its latest
        self.before = {}                                # of the blocks before: one witness of each action

    def copy(self):
        other = Cell(self.block)
        other.written, other.before = self.written, dict(self.before)
        other.last = {action: dict(accesses) for action, accesses in self.last.items()}
        return other

    def add(self, access, past):
        """Note an access by a thread that knows `past`; returns the earlier ones that it races with."""
        if access.block is not self.block:
            for action, accesses in self.last.items():
                if accesses:
                    self.before[action] = next(iter(accesses.values()))
                    accesses.clear()
            self.block = access.block
        rivals = []
        for action in RIVALS[access.action]:
            for number, other in self.last[action].items():
                if past[number] < other.time and number != access.number:
                    rivals.append(other)
            if action in self.before:
                rivals.append(self.before[action])
        if access.action is WRITE:                      # whoever is ordered after it is ordered after all these
            for accesses in self.last.values():
                accesses.clear()
        self.last[access.action][access.number] = access
        self.written = self.written or access.action is not READ
        return rivals


class Shadow:
    """What happened to every cell of a memory, found by the address of the cell.

    Cells are as large as the accesses to them. Where types of different size meet (bytes of dynamic shared memory used
    again for something else), the cells there are split into single bytes.
    """

    def __init__(self):
        self.cells, self.sizes = {}, {}                 # address → Cell; 16 bytes of memory → size of its cells

    def at(self, address, size, block):
        """The cells that `size` bytes from `address` on lie in."""
        known = self.sizes.setdefault(address >> 4, size)
        if known == size:
            cell = self.cells.get(address)
            if cell is None:
                cell = self.cells[address] = Cell(block)
            return (cell,)
        if known > 1:
            self.split(address & ~15, known)
        return [self.cells.setdefault(a, Cell(block)) for a in range(address, address + size)]

    def split(self, start, size):
        """Make cells of one byte out of those of the 16 bytes at `start`."""
        self.sizes[start >> 4] = 1
        for address in range(start, start + 16, size):
            if cell := self.cells.get(address):
                for a in range(address + 1, address + size):
                    self.cells[a] = cell.copy()


def start(lanes):
    """The clocks of a new block."""
    nothing = [0] * len(lanes)
    for lane in lanes:
        lane.now, lane.past = 1, nothing


def tell(meeting, lane):
    """The lane has arrived: the meeting learns what it knows (release)."""
    if meeting.knowledge is None:
        meeting.knowledge = {}, {}
    pasts, times = meeting.knowledge
    pasts[id(lane.past)] = lane.past
    times[lane.number] = lane.now
    lane.now += 1


def known(meeting):
    """All that those who arrived knew, and their own times."""
    pasts, times = meeting.knowledge
    joined = list(map(max, *pasts.values())) if len(pasts) > 1 else list(*pasts.values())
    for number, time in times.items():
        joined[number] = time
    return joined


def learn(lane, joined):
    """The lane goes on and knows all that (acquire), its own past included."""
    lane.past = joined
