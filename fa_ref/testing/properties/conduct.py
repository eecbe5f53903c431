"""What a function does besides its numbers: repeats, memory, inputs, dtypes, warnings."""

from contextlib import contextmanager
from unittest import mock

import ml_dtypes
import numpy as np

from fa_ref.testing.asking import asks
from fa_ref.testing.verdict import NAMES, added, agree, allowed, ask, at, call, fail, in_our_terms, promised

BY_CHANCE = "invalid value encountered in matmul"  # NumPy's BLAS reads what lies on the stack, and does not use it


@asks(conduct=True)
def repeats_are_bitwise_equal(fn, recipe, supports):
    """The same call gives the same bits."""
    problem = recipe.build()
    once, again = ask(fn, problem, recipe, supports), ask(fn, problem, recipe, supports)
    equal_bits(once, again, repeatable(supports), problem, recipe, "in a second call")


@asks(numpy_only=True, conduct=True)
def outputs_are_fully_written(fn, recipe, supports):
    """Fresh memory full of NaN (np.empty and np.empty_like are replaced during the call) changes no bit.

    Gradients that are not the same bits every time may change within their bounds.
    """
    problem = recipe.build()
    plain = ask(fn, problem, recipe, supports)
    with fresh_memory_is_nan():
        poisoned = ask(fn, problem, recipe, supports)
    equal_bits(plain, poisoned, repeatable(supports), problem, recipe, "when fresh memory holds NaN")
    if not supports.deterministic:
        bound = allowed(problem, supports)
        agree(poisoned, plain, added(bound, bound), problem, recipe, " when fresh memory holds NaN")


def repeatable(supports):
    """The fields that must be the same bits in every call."""
    return NAMES if supports.deterministic else ("out", "lse")


def equal_bits(once, again, names, problem, recipe, when):
    """PropertyError unless both answers hold the same bits in these fields."""
    for name in names:
        x, y = getattr(once, name), getattr(again, name)
        if x is not None and x.tobytes() != y.tobytes():
            where = np.argwhere(~((x == y) | (np.isnan(x) & np.isnan(y))))
            index = tuple(where[0]) if len(where) else (0,) * x.ndim
            fail(f"{name}{at(index)} is {x[index]}, and {y[index]} {when}", problem, recipe)


@contextmanager
def fresh_memory_is_nan():
    """np.empty and np.empty_like give floating arrays full of NaN. It reaches code that calls them by these names."""
    def poisoned(make):
        def make_nan(*args, **kwargs):
            x = make(*args, **kwargs)
            if x.dtype.kind in "fc" or x.dtype == ml_dtypes.bfloat16:
                x.fill(np.nan)
            return x
        return make_nan

    with mock.patch.object(np, "empty", poisoned(np.empty)):
        with mock.patch.object(np, "empty_like", poisoned(np.empty_like)):
            yield


@asks(conduct=True)
def inputs_are_unchanged(fn, recipe, supports):
    """No input changes by a bit, nor does the storage around it."""
    problem = recipe.build()
    arrays = {name: x for name, x in vars(problem).items() if isinstance(x, np.ndarray)}
    before = {name: storage(x).tobytes() for name, x in arrays.items()}
    ask(fn, problem, recipe, supports)
    for name, x in arrays.items():
        if storage(x).tobytes() != before[name]:
            fail(f"{name} was written to", problem, recipe)


def storage(x):
    """The array whose memory x is a view of."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


@asks(conduct=True)
def shapes_and_dtypes(fn, recipe, supports):
    """out, dq, dk and dv have the dtype of q; lse, dbias and dsink are float32 or float64; shapes are as promised."""
    problem = recipe.build()
    answer = ask(fn, problem, recipe, supports)                     # looks at shapes
    for name in promised(problem, supports):
        dtype = getattr(answer, name).dtype
        wanted = [problem.q.dtype] if name in ("out", "dq", "dk", "dv") else [np.dtype("float32"), np.dtype("float64")]
        if dtype not in wanted:
            fail(f"{name} has dtype {dtype}, expected {' or '.join(map(str, wanted))}", problem, recipe)


@asks("empty_rows", always=["empty_rows"], conduct=True)
def empty_rows_raise_no_warning(fn, recipe, supports):
    """Rows that see no key cause no floating-point warning."""
    problem = recipe.build()
    heard = []
    in_our_terms(call(fn, problem, problem, recipe, heard), problem, recipe, supports)
    for warning in heard:
        if issubclass(warning.category, RuntimeWarning) and BY_CHANCE not in str(warning.message):
            fail(f"warned: {warning.message} ({warning.filename}:{warning.lineno})", problem, recipe)
