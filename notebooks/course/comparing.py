"""A judge for arrays: shapes, NaN, and every element against its own error bound; the first wrong tile is drawn."""

import numpy as np

from course import pictures
from course.checking import Wrong


def compare(returned, truth, bound, tiles=None):
    """A Wrong, or None if every array is right.

    returned: one array, or a tuple of them. truth: {name: array} in the order of the tuple. bound: {name: array that
    broadcasts, the largest error allowed}; a number stands for all elements. tiles: (rows, columns) of a tile, for the
    picture; None for no tiles.
    """
    names = list(truth)
    if len(names) == 1 and not isinstance(returned, tuple):
        returned = (returned,)
    if not isinstance(returned, tuple) or len(returned) != len(names):
        got = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        return Wrong(f"It must return {len(names)} thing{'s' * (len(names) != 1)} ({', '.join(names)}), got {got}.")
    for name, got in zip(names, returned, strict=True):
        wrong = one(name, got, np.asarray(truth[name]), bound[name], tiles)
        if wrong:
            return wrong
    return None


def one(name, got, right, bound, tiles):
    """The same for one array."""
    if not isinstance(got, (np.ndarray, np.generic, int, float)):
        return Wrong(f"{name} must be an array, got a {type(got).__name__}.")
    got = np.asarray(got)
    if got.dtype.kind not in "biuf":
        return Wrong(f"{name} must hold real numbers, got dtype {got.dtype}.")
    if got.shape != right.shape:
        return Wrong(f"{name} must have shape {right.shape}, got {got.shape}.")
    bound = np.broadcast_to(bound, right.shape)
    with np.errstate(invalid="ignore"):
        error = np.where(got == right, 0.0, np.abs(got.astype(float) - right))
    bad = ~(error <= bound)                                          # NaN is bad
    if not bad.any():
        return None
    first = tuple(int(n) for n in np.argwhere(bad)[0])
    here = f"{name}[{', '.join(map(str, first))}]" if first else name
    digits = next((n for n in (6, 9) if f"{got[first]:.{n}g}" != f"{right[first]:.{n}g}"), 17)
    same = ""
    if digits == 17 and right.dtype.kind == "f":
        apart = abs(float(got[first]) - float(right[first]))
        same = f" (they differ by {apart:.1g}; are your numbers rounded to 32 bits?)"
    line = (f"{here} is {got[first]:.{digits}g}, expected {right[first]:.{digits}g}{same}" +
            (f" ({bad.sum()} of {bad.size} elements are wrong)." if bad.size > 1 else "."))
    if right.ndim not in (1, 2) or right.size > 4096:
        return Wrong(line)
    figure, alt = pictures.first_wrong_tile(name, got, right, bad, tiles)
    return Wrong(line, figure, alt)
