"""The two kinds of arrays of `ledger.py`: HBM can only be loaded and stored, OnChip counts its arithmetic.

`HBM` is no ndarray: what it does not define cannot slip past the count. `OnChip` is one, so that it does all that a
tile must do. NumPy tells it of every operation (`__array_ufunc__`, `__array_function__`); whatever `countable.py`
has no rule for is refused by name.
"""

import math
import operator

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from fa_ref.countable import FUNCTIONS, check_counted, is_floating, not_counted


class HBM(NDArrayOperatorsMixin):
    """An array far away: a subscript is a load or a store, and there is nothing else to do with it.

    `ledger.place` makes it. Subscripts are whole numbers and slices of step 1; a load hands out a copy on chip.
    TypeError for any other use while the ledger is open, RuntimeError for loads and stores when it is closed.
    """

    def __init__(self, x, ledger, record, written):
        self._cells, self._ledger, self.record = np.array(x), ledger, record
        self._written = None if written else np.zeros_like(x, bool)         # None: all of it
        self.shape, self.dtype, self.ndim, self.size, self.nbytes = x.shape, x.dtype, x.ndim, x.size, x.nbytes

    def __len__(self):
        return len(self._cells)

    def __getitem__(self, where):
        box = self._box(where)
        tile = OnChip.put(np.array(self._cells[where]), self._ledger)
        self._ledger.access(self.record, "load", box, tile)
        self.record.reads += tile.size
        if self._written is not None:
            self.record.fresh_reads += tile.size - int(np.count_nonzero(self._written[where]))
        return tile

    def __setitem__(self, where, value):
        box = self._box(where)
        value = cells(value)
        if np.asarray(value).dtype.kind == "c":
            raise TypeError(f"a complex number cannot be stored in {self}: it holds {self.dtype}")
        self._cells[where] = value
        self._ledger.access(self.record, "store", box)
        self.record.writes += math.prod(stop - start for start, stop in box)
        if self._written is not None:
            self._written[where] = True

    def _box(self, where):
        """The subscript as one (start, stop) for each axis."""
        if not self._ledger.open:
            raise RuntimeError(f"the ledger of {self} is closed: np.asarray gives the numbers")
        parts = where if isinstance(where, tuple) else (where,)
        if any(part is Ellipsis for part in parts):
            at = [part is Ellipsis for part in parts].index(True)
            parts = parts[:at] + (slice(None),) * (self.ndim - len(parts) + 1) + parts[at + 1:]
        if len(parts) > self.ndim:
            raise IndexError(f"{self} has {self.ndim} axes, not {len(parts)}")
        parts += (slice(None),) * (self.ndim - len(parts))
        return tuple(span(part, n, self) for part, n in zip(parts, self.shape, strict=True))

    def look(self):
        """The cells, for someone who only watches the run: nothing is counted, nothing may be changed."""
        cells = self._cells.view()
        cells.flags.writeable = False
        return cells

    def __array__(self, dtype=None, copy=None):
        if self._ledger.open:
            raise self._not_loaded()
        return np.array(self._cells, dtype=dtype)

    def refuse(self, *_, **__):
        raise self._not_loaded()

    __array_ufunc__ = __bool__ = __iter__ = __contains__ = refuse
    __hash__ = None

    def __array_function__(self, function, types, args, kwargs):
        if function not in (np.empty_like, np.zeros_like, np.ones_like, np.full_like):
            raise self._not_loaded()
        kwargs = {name: y for name, y in kwargs.items() if y is not self}       # np.zeros_like(a=X)
        x = function(self._cells, *args[1:], **kwargs)
        if function is np.empty_like and is_floating(x.dtype):
            x[...] = np.nan                             # until somebody writes, not what was in that memory before
        return self._ledger.place(x, None, written=False)

    def __getattr__(self, name):
        raise AttributeError(name) if name.startswith("__") else self._not_loaded()

    def __repr__(self):
        return f"array {self.record} {self.shape}"

    def _not_loaded(self):
        return TypeError(f"{self} lives in HBM: load a part of it first, X[...]")


def span(part, n, array):
    """(start, stop) of one part of a subscript, on an axis of n cells."""
    if isinstance(part, slice):
        start, stop, step = part.indices(n)
        if step == 1:
            return start, max(start, stop)
    elif np.ndim(part) == 0 and hasattr(part, "__index__") and not isinstance(part, bool | np.bool_):
        at = operator.index(part)
        if not -n <= at < n:
            raise IndexError(f"{at} is outside of an axis of {n} cells of {array}")
        return at % n, at % n + 1
    raise TypeError(f"a load or store of {array} takes whole numbers and slices of step 1, got {part!r}")


class OnChip(np.ndarray):
    """An array on chip. What is computed from it is on chip too, single numbers included (as arrays of no axes).

    TypeError for operations that are not counted. When the ledger is closed it is an array like any other.
    `np.asarray`, `item` and `tolist` give plain numbers, which nobody counts.
    """

    ledger = None

    @classmethod
    def put(cls, x, ledger):
        """The array or number x, not copied, as an array on chip."""
        self = np.asarray(x).view(cls)
        self.ledger = ledger
        return self

    def __array_finalize__(self, parent):
        self.ledger = getattr(parent, "ledger", None)

    def __array_ufunc__(self, ufunc, method, *operands, **options):
        out = options.get("out", ())
        ledger = ledger_of((*operands, *out))
        plain = [cells(x) for x in operands]
        if out:
            options["out"] = tuple(cells(x) for x in out)
        if ledger.open:
            check_counted(ufunc, method, plain, options)
        result = getattr(ufunc, method)(*plain, **options)
        if ledger.open:
            ledger.operation(ufunc, method, plain, result)
        return out[0] if out and isinstance(out[0], OnChip) else wrapped(result, ledger)

    def __array_function__(self, function, types, args, kwargs):
        if self.ledger.open and function not in FUNCTIONS:
            raise not_counted(function.__name__)
        return wrapped(super().__array_function__(function, types, args, kwargs), self.ledger)

    def __getitem__(self, where):
        return wrapped(super().__getitem__(where), self.ledger)

    def __setitem__(self, where, value):
        super().__setitem__(where, cells(value))                    # a single number too

    def __reduce__(self):
        return cells(self).__reduce__()                             # a pickle holds the numbers

    def __repr__(self):
        return repr(cells(self))                                    # a look counts nothing

    def __str__(self):
        return str(cells(self))

    def __format__(self, spec):
        return format(cells(self), spec)


def refused(name):
    """What NumPy does past __array_ufunc__ or gives out as plain numbers: an error while the ledger is open."""
    def look_up(self):
        if self.ledger.open and is_floating(self.dtype):
            raise not_counted(name)
        return getattr(super(OnChip, self), name)
    return property(look_up)


for name in ("dot", "trace", "take", "choose", "flat", "__float__", "__int__", "__complex__"):
    setattr(OnChip, name, refused(name))


def ledger_of(operands):
    """The ledger of on-chip operands. RuntimeError for a tile of a closed ledger while another one is open."""
    ledger = None
    for x in operands:
        if isinstance(x, OnChip) and x.ledger is not ledger:
            if ledger is None:
                ledger = x.ledger
            elif ledger.open or x.ledger.open:
                raise mixed()
    if not ledger.open and type(ledger).running:
        raise mixed()
    return ledger


def mixed():
    """The error for a tile that nobody counts beside one that counts."""
    return RuntimeError("a tile of a ledger that is closed would be computed with while another one counts: load it "
                        "anew, or take its numbers with np.asarray")


def cells(x):
    """The plain array behind an on-chip one; anything else as it is, but an array in HBM raises."""
    if isinstance(x, HBM):
        x.refuse()
    return x.view(np.ndarray) if isinstance(x, OnChip) else x


def wrapped(x, ledger):
    """An array or number as on-chip array; anything else (a list of views, say) as it is."""
    return OnChip.put(x, ledger) if isinstance(x, (np.ndarray, np.generic)) else x
