"""Which operations of NumPy a ledger counts, which are free, and the error for all others. The rules: `ledger.py`."""

from functools import cache

import ml_dtypes
import numpy as np

EXPS = (np.exp, np.exp2, np.expm1)
HIDE_AN_EXP = (np.logaddexp, np.logaddexp2)
COUNTED = (np.sum, np.prod, np.mean, np.max, np.min, np.amax, np.amin, np.clip)     # made of ufuncs: counted there
FREE = (np.shape, np.ndim, np.size, np.where, np.any, np.all, np.copyto, np.zeros_like, np.ones_like, np.full_like,
        np.empty_like, np.concatenate, np.stack, np.reshape, np.transpose, np.swapaxes, np.squeeze, np.expand_dims,
        np.broadcast_to)
FUNCTIONS = frozenset(COUNTED + FREE)


@cache
def is_floating(dtype):
    """Is this a floating dtype, those of ml_dtypes (kind V, as their int4 is) included?"""
    if dtype.kind != "V":
        return dtype.kind == "f"
    try:
        return bool(ml_dtypes.finfo(dtype))
    except ValueError:
        return False


def check_counted(ufunc, method, operands, options):
    """TypeError for what a ledger has no rule for."""
    if not countable(ufunc, method):
        raise not_counted(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}")
    if ufunc is np.matmul and any(np.ndim(x) != 2 for x in operands):
        shapes = " and ".join(str(np.shape(x)) for x in operands)
        raise TypeError(f"@ of shapes {shapes} is not counted: only products of two matrices are")
    if "axes" in options or ("axis" in options and ufunc is np.matmul):
        raise TypeError(f"{ufunc.__name__}(…, axes=…) is not counted: use @")
    if options.get("where", True) is not True:
        raise TypeError(f"{ufunc.__name__}(…, where=…) is not counted: use np.where on its result")


@cache
def countable(ufunc, method):
    """Is there a rule for this? Products other than @, pairs of results and Python functions as ufuncs have none."""
    if ufunc is np.matmul:
        return method == "__call__"
    made_of_python = all(types.endswith("O") for types in ufunc.types)
    return (method in ("__call__", "reduce") and ufunc.signature is None and ufunc.nout == 1 and not made_of_python
            and ufunc not in HIDE_AN_EXP)


def not_counted(name):
    """The error for an operation without a rule."""
    functions = ", ".join(f.__name__ for f in COUNTED + FREE)
    return TypeError(f"{name} is not counted: use @ for products, ufuncs such as + and np.exp, or {functions}; "
                     "np.asarray and item take numbers off the chip, where nobody counts")
