"""Count what a core moves through memory and multiplies, without a line for it in the core.

    with Ledger() as led:
        fa2.forward_head(led.hbm(Q, "Q"), led.hbm(K, "K"), led.hbm(V, "V"), rule, Br, Bc)
    print(led.table())

An array in HBM counts a read when it is sliced, which hands out a copy on chip, and a write when it is assigned to;
any other use of it is an error until the ledger is closed (then `np.asarray` gives the numbers). Arrays made from it
by `np.empty_like` and its kin live in HBM too; making them is free. On-chip arrays count the floating-point
operations of `@`, and refuse all other products. Only cores of one head are metered (a batch costs B·Hq times as much),
and not the arrays of the rule (mask, bias).
"""

from dataclasses import dataclass

import numpy as np

OTHER_PRODUCTS = (np.dot, np.einsum, np.inner, np.outer, np.tensordot, np.vdot)


@dataclass
class Record:
    """One array in HBM: name (None for one made inside the core), shape, dtype; reads and writes in elements.

    `fresh_reads` is the part of `reads` that met cells nobody had written yet: FlashAttention-1 as printed reads the
    zeros it started from, the count in the paper's figure leaves them out.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: np.dtype
    reads: int = 0
    writes: int = 0
    fresh_reads: int = 0

    @property
    def read_bytes(self):
        return self.reads * self.dtype.itemsize

    @property
    def write_bytes(self):
        return self.writes * self.dtype.itemsize


class Ledger:
    """`arrays` lists one Record per HBM array, `matmul_flops` counts 2·m·n·k for every product of m×k with k×n."""

    def __enter__(self):
        self.arrays, self.matmul_flops, self.open = [], 0, True
        return self

    def __exit__(self, *error):
        self.open = False

    def hbm(self, x, name=None):
        """x as an array in HBM, all of whose cells hold data."""
        return HBM(x, self, name, written=True)

    def total(self, count="reads"):
        """Sum of one count (reads, writes, fresh_reads, read_bytes, write_bytes) over all arrays."""
        return sum(getattr(record, count) for record in self.arrays)

    def table(self):
        """One line per array: name, shape, elements read and written, bytes of both together."""
        lines = [f"{'array':8}{'shape':>16}{'dtype':>10}{'reads':>12}{'writes':>12}{'bytes':>14}"]
        for r in self.arrays:
            lines.append(f"{r.name or '(inside)':8}{r.shape!s:>16}{r.dtype!s:>10}{r.reads:12,}{r.writes:12,}"
                         f"{r.read_bytes + r.write_bytes:14,}")
        lines.append(f"matmul FLOPs {self.matmul_flops:,}")
        return "\n".join(lines)


class HBM:
    """An array far away: subscripts are its loads and stores, and there is nothing else to do with it.

    (A plain class, not a kind of ndarray: what it does not define cannot slip past the count.)
    """

    def __init__(self, x, ledger, name, written):
        self._cells, self._written, self._ledger = np.array(x), np.full(x.shape, written), ledger
        self.shape, self.dtype, self.ndim = x.shape, x.dtype, x.ndim
        self.record = Record(name, x.shape, x.dtype)
        ledger.arrays.append(self.record)

    def __len__(self):
        return len(self._cells)

    def __getitem__(self, where):
        tile = OnChip.hold(self._cells[where], self._ledger)
        self.record.reads += tile.size
        self.record.fresh_reads += int((~self._written[where]).sum())
        return tile

    def __setitem__(self, where, value):
        self._cells[where] = value
        self._written[where] = True
        self.record.writes += self._written[where].size

    def __array__(self, dtype=None, copy=None):
        if self._ledger.open:
            raise self._not_loaded()
        return np.array(self._cells, dtype=dtype)

    def refuse(self, *_, **__):
        raise self._not_loaded()

    __array_ufunc__ = __eq__ = __bool__ = __iter__ = __contains__ = refuse
    __hash__ = None

    def __array_function__(self, function, types, args, kwargs):
        if function not in (np.empty_like, np.zeros_like, np.full_like):
            raise self._not_loaded()
        return HBM(function(self._cells, *args[1:], **kwargs), self._ledger, None, written=False)

    def __getattr__(self, name):
        raise AttributeError(name) if name.startswith("__") else self._not_loaded()

    def _not_loaded(self):
        return TypeError(f"array {self.record.name or '(inside)'} lives in HBM: load a part of it first, X[...]")


class OnChip(np.ndarray):
    """An array on chip: free to use, its matrix products are counted."""

    @classmethod
    def hold(cls, x, ledger):
        self = np.array(x).view(cls)
        self.ledger = ledger
        return self

    def __array_finalize__(self, parent):
        self.ledger = getattr(parent, "ledger", None)

    def __array_ufunc__(self, ufunc, method, *operands, **options):
        if any(isinstance(x, HBM) for x in operands):
            return NotImplemented                     # the HBM array raises
        plain = [on_chip_cells(x) for x in operands]
        if "out" in options:
            options["out"] = tuple(on_chip_cells(x) for x in options["out"])
        if ufunc is np.matmul:
            if plain[0].ndim != 2 or plain[1].ndim != 2:
                raise TypeError(f"@ of shapes {plain[0].shape} and {plain[1].shape}: only matrices are counted")
            (m, k), (_, n) = plain[0].shape, plain[1].shape
            self.ledger.matmul_flops += 2 * m * n * k
        return self._wrap(getattr(ufunc, method)(*plain, **options))

    def __array_function__(self, function, types, args, kwargs):
        if function in OTHER_PRODUCTS:
            raise TypeError(f"{function.__name__} is not counted: use @")
        return self._wrap(function(*(on_chip_cells(x) for x in args), **kwargs))

    def dot(self, *_, **__):
        raise TypeError("dot is not counted: use @")

    def _wrap(self, x):
        return OnChip.hold(x, self.ledger) if isinstance(x, np.ndarray) else x


def on_chip_cells(x):
    """The plain array behind an on-chip one; anything else as it is."""
    return x.view(np.ndarray) if isinstance(x, OnChip) else x
