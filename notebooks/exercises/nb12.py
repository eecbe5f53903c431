"""Exercises of notebook 12: round to e4m3, and give every tile of rows a scale of its own."""

import ml_dtypes
import numpy as np

from course.checking import Case, Wrong, check, number
from course.comparing import compare
from course.pictures import figure
from fa_ref import drawing

NUMBERS = np.sort([(8 * (E > 0) + M) * 2.0 ** (max(E, 1) - 10) for E in range(16) for M in range(8)][:-1])   # 0 … 448


def truth(x):
    """x rounded by ml_dtypes, in float64."""
    return x.astype(ml_dtypes.float8_e4m3fn).astype(float)


# --- round ----------------------------------------------------------------------------------------------------

def round_e4m3(answer):
    """Check round_e4m3(x) → the nearest numbers of e4m3, for a float64 array x of any shape."""
    return check(answer, list(roundings()), judge_rounding)


def roundings():
    half = (NUMBERS[1:] + NUMBERS[:-1]) / 2
    both = np.concatenate([-NUMBERS[:0:-1], NUMBERS])
    bits16 = np.arange(2**16, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(12)
    wide = np.float32(rng.choice([-1, 1], 40_000) * rng.uniform(1, 2, 40_000) * 2.0 ** rng.integers(-14, 12, 40_000))
    beside = np.concatenate([np.nextafter(np.float32(half), np.float32(way)) for way in (-1, 1000)])
    for what, x in (("numbers that e4m3 has", np.array([0, 1, -1.5, 2, 240, 448])),
                    ("all 253 finite numbers of e4m3", both), ("halfway between two of them", half),
                    ("small numbers", NUMBERS[:9] * 0.3),
                    ("around the end", np.array([440.0, 460, 464, 465, 500, 1e5])),
                    ("no numbers", np.array([np.inf, -np.inf, np.nan])), ("a matrix", np.ones((2, 3)) * np.pi),
                    ("every number of float16", bits16), ("float32, close to halfway", beside),
                    ("float32 of all sizes", wide)):
        with np.errstate(invalid="ignore"):
            yield Case(what, {"x": x.astype(float)}, truth(x))


def judge_rounding(case, returned):
    x, right = case.args["x"], case.truth
    if not isinstance(returned, np.ndarray) or returned.dtype.kind not in "biuf" or returned.shape != x.shape:
        return compare(returned, {"y": right}, {"y": 0.0}) or Wrong("y must be an array.")
    got = np.asarray(returned, float)
    bad = ~((got == right) | (np.isnan(got) & np.isnan(right)))
    if not bad.any():
        return None
    sizes = np.where(bad, np.nan_to_num(np.abs(x), nan=np.inf, posinf=1e300), np.nan)
    at = np.unravel_index(np.nanargmin(sizes), x.shape)
    line = (f"round_e4m3({x[at]:.10g}) is {got[at]:.10g}, expected {right[at]:.10g}: {why(abs(x[at]))}. "
            f"({bad.sum()} of {bad.size} are wrong; this is the smallest.)")
    return Wrong(line, *neighbours(x[at], got[at], right[at]))


def why(x):
    """What is to be known about rounding a number of this size, in words."""
    if not x <= 464:
        return "what rounds to more than 448 is NaN"
    if x > 448:
        return "up to 464 it rounds to 448, where a step is 32"
    n = min(np.searchsorted(NUMBERS, x), len(NUMBERS) - 1)
    above, below = NUMBERS[n], NUMBERS[max(n - 1, 0)]
    if x == above:
        return "it is a number of e4m3 itself"
    if x - below == above - x:
        return f"it lies halfway between {below:.10g} and {above:.10g}, and the one with an even M wins"
    near = " (below 2⁻⁶ all steps are 2⁻⁹)" if x < 2**-6 else ""
    return f"it lies between {below:.10g} and {above:.10g}{near}"


def neighbours(x, got, right):
    """A line of the numbers around |x|, with both answers, and its text; nothing where there is none to draw."""
    x, got, right = abs(x), abs(got), abs(right)
    if not (np.isfinite(x) and np.isfinite(got) and np.isfinite(right)) or x > 500:
        return None, ""
    n = int(np.searchsorted(NUMBERS, x))
    near = NUMBERS[max(n - 4, 0):n + 4]
    made, axes = figure(7, 1.6)
    axes.plot(near, 0 * near, "|", color=drawing.INK, markersize=18)
    for value, height, color, name in ((x, 1, drawing.FAINT, "x"), (right, 2, "#2b6cb0", "right"),
                                       (got, 3, drawing.RED, "yours")):
        axes.plot([value], [height], "v", color=color)
        axes.annotate(name, (value, height), (6, 0), textcoords="offset points", va="center", color=color, fontsize=9)
    axes.set(yticks=[], ylim=(-0.7, 3.8), title="numbers of e4m3 around |x|")
    return made, (f"Numbers of e4m3 near {x:.6g} as ticks on a line; the right one is {right:.6g}, yours is {got:.6g}.")


# --- scales ---------------------------------------------------------------------------------------------------

def quantise_tiles(answer):
    """Check quantise_tiles(X, rows) → values (N, d), numbers of e4m3, and scales (⌈N / rows⌉,)."""
    return check(answer, list(tilings()), judge_tiles)


def tilings():
    rng = np.random.default_rng(8)
    sizes = ((1, 1, 1), (2, 1, 1), (2, 2, 2), (4, 2, 2), (5, 3, 2), (3, 2, 8), (8, 4, 4), (9, 4, 4), (64, 16, 16))
    for N, d, rows in sizes:
        for what in ("", ", small", ", all below zero", ", the first row zero", ", an outlier in the last row"):
            X = rng.standard_normal((N, d)) * (1e-3 if "small" in what else 1)
            X = -np.abs(X) if "below" in what else X
            X[0] = 0 if "row zero" in what else X[0]
            X[-1, 0] *= 1000 if "outlier" in what else 1
            scales = np.array([np.abs(X[n:n + rows]).max() / 448 or 1 for n in range(0, N, rows)])
            yield Case(f"{N} × {d}, tiles of {number(rows, 'row', 'rows')}{what}", {"X": X, "rows": rows}, scales)


def judge_tiles(case, returned):
    (X, rows), scales = case.args.values(), case.truth
    loose = {"values": 1e300, "scales": 1e-6 * scales}              # of the values only the shape, for now
    wrong = compare(returned, {"values": 0 * X, "scales": scales}, loose, (rows, 1))
    if wrong:
        return wrong
    values, own = (np.asarray(x, float) for x in returned)
    strange = ~np.isin(np.abs(values), NUMBERS)
    if strange.any():
        at = tuple(int(n) for n in np.argwhere(strange)[0])
        return Wrong(f"values[{at[0]}, {at[1]}] is {float(values[at])!r}, which is no number of e4m3.")
    spread = np.repeat(own, rows)[:len(X), None]
    bound = spread * np.maximum(np.abs(X) / spread * 2.0**-4, 2.0**-10) * 1.0001
    return compare(values * spread, {"(values · scales)": X}, {"(values · scales)": bound}, (rows, X.shape[1]))
