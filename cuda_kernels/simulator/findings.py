"""What an audit reports: counts, and findings that name two threads and two lines of the source."""

from dataclasses import dataclass, fields
from typing import NamedTuple

from cuda_kernels.simulator.races import READ, WRITE

SHUFFLES = ("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync")
VOTES = ("all_sync", "any_sync", "eq_sync", "ballot_sync", "match_any_sync", "match_all_sync")
FIELD = {"syncwarp": "syncwarps", "ldmatrix": "matrix_loads", "mma": "matrix_products",
         **dict.fromkeys(SHUFFLES, "shuffles"), **dict.fromkeys(VOTES, "votes")}


@dataclass
class Counts:
    """How often things happened. Barriers, warp operations: once for all who met; memory: once for each element."""

    blocks: int = 0
    barriers: int = 0               # syncthreads and its relatives
    syncwarps: int = 0
    shuffles: int = 0
    votes: int = 0                  # and matches
    matrix_loads: int = 0           # ldmatrix
    matrix_products: int = 0        # mma
    shared_reads: int = 0
    shared_writes: int = 0
    global_reads: int = 0
    global_writes: int = 0
    atomics: int = 0

    def __add__(self, other):
        return Counts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def add(self, action, space):
        """One access to memory."""
        name = {(READ, "shared"): "shared_reads", (WRITE, "shared"): "shared_writes",
                (READ, "global"): "global_reads", (WRITE, "global"): "global_writes"}.get((action, space), "atomics")
        setattr(self, name, getattr(self, name) + 1)

    def met(self, operation):
        """One meeting of threads; what is not of a warp is a barrier."""
        name = FIELD.get(operation, "barriers")
        setattr(self, name, getattr(self, name) + 1)


class Side(NamedTuple):
    """One thread's part in a finding. file and line are None for a thread that has returned."""

    thread: str
    action: str
    file: str | None
    line: int | None

    def __str__(self):
        return f"{self.thread} {self.action}" + (f" at {self.file}:{self.line}" if self.file else "")


@dataclass
class Finding:
    """One kind of fault between two lines: "race", "divergence", "uninitialised" or "absent lane".

    array: the array's name (of an operation that threads met at: the operation's). index: the first cell that it was
    seen at. first, second: the earlier and the later thread, second None where there is only one. count: cells (or
    meetings) that it was seen at.
    """

    kind: str
    array: str
    index: tuple | None
    first: Side
    second: Side | None = None
    count: int = 1

    @property
    def lines(self):
        """The source lines, in rising order."""
        return sorted(side.line for side in (self.first, self.second) if side and side.line)

    def __str__(self):
        where = self.array + ("" if self.index is None else "[" + ", ".join(map(str, self.index)) + "]")
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        sides = [str(side) for side in (self.first, self.second) if side]
        return "\n    ".join([f"{self.kind}: {where}{more}", *sides])
