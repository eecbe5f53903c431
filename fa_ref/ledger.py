"""Count what a core moves through memory, computes, and keeps on chip, without a line for it in the core.

    with Ledger() as led:
        fa2.forward_head(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), rule, Br, Bc)
    print(led.table())

    reads, writes      elements of the subscripts of HBM arrays: those given to `hbm`, and those that the core makes
                       from them with `np.empty_like`, `zeros_like`, `ones_like`, `full_like` (making them is free)
    matmul_flops       2·m·n·k for each `@` of m × k with k × n
    exps               one for each element of an np.exp (exp2, expm1)
    other_flops        one for each element of any other floating-point result (+ − · /, maximum, log, tanh, minus …);
                       a sum, a maximum of many: one for each element that goes in (a mean is a sum and a division)
    free               comparisons (methods such as argmax and sort too), np.where, casts, copies, views, arithmetic on
                       whole numbers and booleans
    peak_onchip_bytes  the largest sum of the on-chip arrays under the local names of the function that loads or
                       stores, taken at its loads and stores; a loaded tile takes the place of what its name held;
                       arrays with two names, and views, count once

Whatever has no rule here is refused by name. While a ledger is open, np.zeros, np.full and np.empty make on-chip arrays
in every function that holds metered ones. Only cores of one head are metered (a batch costs B·Hq times as much). What a
rule makes of positions, mask and bias is not metered until it meets the scores.
"""

import sys
import textwrap
import weakref
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fa_ref import frames
from fa_ref.countable import EXPS, is_floating
from fa_ref.metered import HBM, OnChip
from fa_ref.options import check_choice, check_whole

MAKERS = ("zeros", "full", "empty")                     # how a core makes an on-chip array
COUNTS = ("reads", "writes", "fresh_reads", "read_bytes", "write_bytes")


class OnChipFullError(MemoryError):
    """The tiles on chip need more bytes than the budget."""


@dataclass
class Record:
    """One array in HBM: name (None if it was given none), shape, dtype; reads and writes in elements.

    `inside` says whether the core made it.

    `fresh_reads` is the part of `reads` that met cells nobody had written yet: FlashAttention-1 as printed reads the
    zeros it started from, the count in the paper's figure leaves them out.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: np.dtype
    reads: int = 0
    writes: int = 0
    fresh_reads: int = 0
    inside: bool = False

    def __str__(self):
        return self.name or ("(inside)" if self.inside else "(given)")

    @property
    def read_bytes(self):
        return self.reads * self.dtype.itemsize

    @property
    def write_bytes(self):
        return self.writes * self.dtype.itemsize


class Access(NamedTuple):
    """One load or store: the record of its array, "load" or "store", and (start, stop) for each axis."""

    record: Record
    action: str
    where: tuple[tuple[int, int], ...]


class Ledger:
    """The counts of one run: `arrays`, a Record for each HBM array, and the numbers explained above.

    onchip_bytes: a budget; the load or store at which the tiles need more raises OnChipFullError. log=True: `log` lists
    every Access in order. `peak_tiles` says what makes up the peak: {names: bytes}.

    RuntimeError for a use outside of its `with`, a second `with`, or a ledger inside another; ValueError or TypeError
    for a budget that is no number of bytes.
    """

    running = None                                      # the ledger that is open: there is one np.zeros for all

    def __init__(self, onchip_bytes=None, log=False):
        self.onchip_bytes = None if onchip_bytes is None else check_whole("onchip_bytes", onchip_bytes, 0)
        self.log = [] if log else None
        self.arrays, self.matmul_flops, self.other_flops, self.exps = [], 0, 0, 0
        self.peak_onchip_bytes, self.peak_tiles = 0, {}
        self.open, self._makers, self._outside, self._statement = False, None, None, None

    def __enter__(self):
        if self._makers:
            raise RuntimeError("a Ledger counts one run, this one has had its own: make a new one")
        if Ledger.running:
            raise RuntimeError("another ledger is open: one run is counted at a time")
        Ledger.running, self.open, self._outside = self, True, sys._getframe(1)
        self._makers = {name: getattr(np, name) for name in MAKERS}
        for name, make in self._makers.items():
            setattr(np, name, self._on_chip(make))
        return self

    def __exit__(self, *error):
        for name, make in self._makers.items():
            setattr(np, name, make)
        Ledger.running, self.open, self._outside = None, False, None

    def hbm(self, x, name=None):
        """The NumPy array x as an array in HBM, all of whose cells hold data. TypeError for what cannot be metered."""
        if not self.open:
            raise RuntimeError("led.hbm belongs inside of `with Ledger() as led:`")
        if not isinstance(name, str | None):
            raise TypeError(f"the name of an array must be a string, got {name!r}")
        if not isinstance(x, np.ndarray) or isinstance(x, np.ma.MaskedArray):
            raise TypeError(f"{name or 'an array in HBM'} must be a NumPy array, got {type(x).__name__}")
        return self.place(x, name, written=True)

    def total(self, count="reads"):
        """Sum of one of COUNTS over all arrays; ValueError for another."""
        check_choice("count", count, COUNTS)
        return sum(getattr(record, count) for record in self.arrays)

    def table(self):
        """One line per array: name, shape, elements read and written, bytes of both together; below, all the rest."""
        lines = [f"{'array':8}{'shape':>16}{'dtype':>15}{'reads':>12}{'writes':>12}{'bytes':>14}"]
        for r in self.arrays:
            lines.append(f"{r!s:8}{r.shape!s:>16}{r.dtype!s:>15}{r.reads:12,}{r.writes:12,}"
                         f"{r.read_bytes + r.write_bytes:14,}")
        for what in ("matmul_flops", "other_flops", "exps", "peak_onchip_bytes"):
            lines.append(f"{what:17} {getattr(self, what):14,}")
        lines += textwrap.wrap(sum_of(self.peak_tiles), 76, initial_indent="  = ", subsequent_indent="    ")
        return "\n".join(lines)

    # --- what the arrays tell ---

    def place(self, x, name, written):
        """A new HBM array with the cells of x, and its record."""
        if not (x.dtype.kind in "biu" or is_floating(x.dtype)):
            raise TypeError(f"{name or 'an array'} has dtype {x.dtype}: only floating-point numbers, whole numbers and "
                            "booleans are metered")
        self.arrays.append(Record(name, x.shape, x.dtype, inside=not written))
        return HBM(x, self, self.arrays[-1], written)

    def operation(self, ufunc, method, operands, result):
        """A ufunc has run on chip."""
        if ufunc is np.matmul:
            (m, k), (_, n) = map(np.shape, operands)
            self.matmul_flops += 2 * m * n * k
        elif is_floating(result.dtype) or (result.dtype.kind in "iu" and any(is_floating(np.asarray(x).dtype)
                                                                             for x in operands)):
            elements = operands[0].size if method == "reduce" else result.size
            if ufunc in EXPS:
                self.exps += elements
            else:
                self.other_flops += elements
        elif result.dtype.kind not in "biu":
            raise TypeError(f"{ufunc.__name__} gave dtype {result.dtype}, which is not counted")

    def access(self, record, action, where, tile=None):
        """A load (of this tile) or a store has happened, in the function that the subscript stands in."""
        if self.log is not None:
            self.log.append(Access(record, action, where))
        frame = sys._getframe(2)
        in_the_open = frame is self._outside or frame.f_locals is frame.f_globals   # who opened it, a script, a cell:
        held = frames.on_chip(frame, core=not in_the_open)                          # they have plain arrays too
        self._at_least(held)
        if tile is not None:
            statement = frames.statement_at(frame.f_code, frame.f_lasti)
            self._at_least(frames.with_loaded(held, statement, self._loaded_by(frame, statement, record, tile)))

    def _loaded_by(self, frame, statement, record, tile):
        """What this run of a statement has loaded and still holds: [(what to call it, tile)], this tile as the last."""
        where, before = (id(frame), statement.start), self._statement
        same_run = before is not None and before[0] == where and before[1] < frame.f_lasti
        loaded = [*(before[2] if same_run else ()), (f"a tile of {record}", weakref.ref(tile))]
        self._statement = where, frame.f_lasti, loaded
        return [(name, alive) for name, ref in loaded if (alive := ref()) is not None]

    def _at_least(self, held):
        """Raise the peak to this; OnChipFullError if that is beyond the budget."""
        size = sum(x[0] for x in held.values())
        if size > self.peak_onchip_bytes:
            self.peak_onchip_bytes, self.peak_tiles = size, {}
            for n, *names in held.values():
                name = " = ".join(names)
                self.peak_tiles[name] = self.peak_tiles.get(name, 0) + n
            if self.onchip_bytes is not None and size > self.onchip_bytes:
                raise OnChipFullError(f"up to here the tiles need {size:,} bytes on chip, the budget is "
                                      f"{self.onchip_bytes:,}: {sum_of(self.peak_tiles)} (a run without a budget "
                                      "tells the peak)")

    def _on_chip(self, make):
        """np.zeros, np.full or np.empty for as long as the ledger is open."""
        def maker(*args, **options):
            x, names = make(*args, **options), sys._getframe(1).f_locals
            return OnChip.put(x, self) if any(isinstance(y, HBM | OnChip) for y in names.values()) else x
        return maker


def sum_of(peak_tiles):
    """'Qi 64 + Kj 96', or 'nothing'."""
    return " + ".join(f"{name} {n:,}" for name, n in peak_tiles.items() if n) or "nothing"
