"""Put a question to an implementation, and say precisely what is wrong with the answer."""

import math
import traceback
import warnings
from dataclasses import fields, replace

import ml_dtypes
import numpy as np

from fa_ref.testing import oracle, tolerance
from fa_ref.testing.problem import OPTIONS, Problem, Result
from fa_ref.testing.standard_16bit import two_errors
from fa_ref.testing.unread import visible

NAMES = tuple(f.name for f in fields(Result))


class PropertyError(AssertionError):
    """An implementation broke a property; the message holds the problem, the first wrong element, the seed line."""

    def __init__(self, message, recipe=None):
        super().__init__(message)
        self.recipe = recipe


def call(fn, argument, problem, recipe, heard=None):
    """fn(argument); whatever it raises becomes a PropertyError. Its warnings go to the list `heard`, or nowhere."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(divide="warn", over="warn", invalid="warn"):
        warnings.simplefilter("always")
        try:
            return fn(argument)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            fail(f"raised {type(error).__name__}: {error} ({place.filename}:{place.lineno})", problem, recipe, error)
        finally:
            if heard is not None:
                heard.extend(caught)


def ask(fn, problem, recipe, supports):
    """The answer of fn to the problem, in our terms."""
    return in_our_terms(call(fn, problem, problem, recipe), problem, recipe, supports)


def in_our_terms(answer, problem, recipe, supports):
    """The promised fields of the answer, and no others, with lse in natural logarithms, −inf for empty rows.

    PropertyError if a promised field is missing, of another shape, or holds no floating-point numbers.
    """
    if not isinstance(answer, Result):
        fail(f"must return a Result, returned {type(answer).__name__}", problem, recipe)
    shapes = promised(problem, supports)
    for name, shape in shapes.items():
        x = getattr(answer, name)
        if not isinstance(x, np.ndarray) or not (x.dtype.kind == "f" or x.dtype == ml_dtypes.bfloat16):
            fail(f"{name} must be a floating NumPy array, got {getattr(x, 'dtype', type(x).__name__)}", problem, recipe)
        if x.shape != shape:
            fail(f"{name} has shape {x.shape}, expected {shape}", problem, recipe)
    answer = Result(**{name: getattr(answer, name) for name in shapes})
    if supports.lse is None:
        return answer
    lse = answer.lse * math.log(2) if supports.lse == "base2" else answer.lse
    empty = ~visible(problem).any(axis=-1) & (problem.sink is None)
    for index in map(tuple, np.argwhere(empty & (answer.lse != supports.empty_lse))):
        fail(f"lse{at(index)} of a row that sees no key is {answer.lse[index]}, expected {supports.empty_lse}",
             problem, recipe)
    return replace(answer, lse=np.where(empty, lse.dtype.type(-np.inf), lse))


def promised(problem, supports):
    """The shapes of the fields that an answer to this problem must have."""
    rows = problem.q.shape[:3]
    shapes = {"out": (*rows, problem.v.shape[3])} | ({} if supports.lse is None else {"lse": rows})
    if problem.dout is not None:
        given = [name for name in ("q", "k", "v", "bias", "sink") if getattr(problem, name) is not None]
        shapes |= {f"d{name}": getattr(problem, name).shape for name in given}
    return shapes


def allowed(problem, supports):
    """The error allowed in every element, a Result: the element-wise bounds, or more where the two-errors rule does.

    It may allow less: on a few elements, twice the error of another implementation is no sample.
    """
    bounds = tolerance.bounds(problem)
    if supports.rule != "two-errors" or problem.q.dtype.itemsize != 2:
        return bounds
    truth = oracle.solve(problem)
    verdicts = two_errors(truth, truth, problem)
    return replace(bounds, **{name: np.maximum(getattr(bounds, name), v.allowed) for name, v in verdicts.items()})


def added(*results):
    """Field by field sum, for bounds of differences."""
    return Result(**{name: total(name, results) for name in NAMES})


def total(name, results):
    """The sum of one field; None if it is missing anywhere."""
    arrays = [getattr(r, name) for r in results]
    return None if any(x is None for x in arrays) else sum(arrays)


def agree(got, want, bound, problem, recipe, what=""):
    """PropertyError unless got is within bound of want, in every field that all three have."""
    for name in NAMES:
        x, y, b = (getattr(r, name) for r in (got, want, bound))
        if x is None or y is None or b is None:
            continue
        error = tolerance.error(x, y)
        fraction = tolerance.fractions(error, b)
        wrong = np.argwhere(~(fraction <= 1))
        if not len(wrong):
            continue
        first, worst = tuple(wrong[0]), np.unravel_index(fraction.argmax(), fraction.shape)
        if np.isnan(y[first]) or np.isposinf(y[first]):                     # the oracle never says so
            fail(f"{name}{at(first)} is {x[first]:.9g}, and the function's own answer{what} is {y[first]:.9g} here "
                 "already", problem, recipe)
        fail(f"{name}{at(first)} is {x[first]:.9g}, expected {y[first]:.9g}{what}: error {error[first]:.3g} is "
             f"{fraction[first]:.3g} times the bound {b[first]:.3g}\n"
             f"{len(wrong)} of {fraction.size} elements of {name} are wrong, the worst is {name}{at(worst)} "
             f"with {fraction[worst]:.3g} times its bound", problem, recipe)


def fail(message, problem, recipe, cause=None):
    """Raise PropertyError with the message, the problem and the seed line."""
    raise PropertyError(f"{message}\n{describe(problem)}\nreplay with --replay \"{recipe}\"", recipe) from cause


def describe(problem):
    """Shapes, dtype and the options that are set, in a line."""
    words = [f"{name} {getattr(problem, name).shape}" for name in ("q", "k", "v")] + [str(problem.q.dtype)]
    for name in (*OPTIONS, "block_q", "block_k", "reverse"):
        value = getattr(problem, name)
        if isinstance(value, np.ndarray):
            words.append(f"{name} {value.dtype} {value.shape}")
        elif value != Problem.__dataclass_fields__[name].default:
            words.append(f"{name}={value}")
    words += [f"{name} given" for name in ("dout", "dlse") if getattr(problem, name) is not None]
    return ", ".join(words)


def at(index):
    return str([int(n) for n in index])
