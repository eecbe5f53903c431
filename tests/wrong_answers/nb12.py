"""Wrong answers to notebook 12; each must be rejected."""

import ml_dtypes
import numpy as np


def rounded(x, smallest=-6, whole=np.rint, largest=448.0, beyond=np.nan):
    """Rounding to e4m3 that can be spoiled."""
    _, e = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(e - 1, smallest) - 3)
    y = whole(x / step) * step
    return np.where(np.abs(y) <= largest, y, beyond)


def round_e4m3__ties_away_from_zero(x):
    return rounded(x, whole=lambda n: np.sign(n) * np.floor(np.abs(n) + 0.5))


def round_e4m3__ties_upwards(x):
    return rounded(x, whole=lambda n: np.floor(n + 0.5))


def round_e4m3__cuts_off(x):
    return rounded(x, whole=np.trunc)


def round_e4m3__small_numbers_become_zero(x):
    return np.where(np.abs(x) < 2.0**-6, 0 * x, rounded(x))


def round_e4m3__steps_shrink_below_the_smallest(x):
    return rounded(x, smallest=-7)


def round_e4m3__no_smallest_step(x):
    return rounded(x, smallest=-1000)


def round_e4m3__never_ends(x):
    return rounded(x, largest=np.inf)


def round_e4m3__ends_at_480(x):
    return rounded(x, largest=480.0)


def round_e4m3__saturates(x):
    return rounded(x, beyond=np.where(np.isnan(x), np.nan, np.sign(x) * 448))


def round_e4m3__asks_for_448_before_rounding(x):
    return np.where(np.abs(x) <= 448, rounded(x), np.nan)


def round_e4m3__is_e5m2(x):
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(ml_dtypes.float8_e5m2).astype(float)


def quantised(X, rows, amax=lambda tile: np.abs(tile).max(), largest=448.0, whole=True):
    """Scales by tile that can be spoiled."""
    values, scales = np.empty_like(X), []
    for n in range(0, len(X), rows):
        tile = X[n:n + rows]
        scales.append(amax(tile) / largest or 1.0)
        values[n:n + rows] = rounded(tile / scales[-1]) if whole else tile / scales[-1]
    return values, np.array(scales)


def quantise_tiles__one_scale_for_all(X, rows):
    return quantised(X, rows, amax=lambda tile: np.abs(X).max())


def quantise_tiles__forgets_the_sign(X, rows):
    return quantised(X, rows, amax=np.max)


def quantise_tiles__a_tile_of_zeros_gives_nan(X, rows):
    with np.errstate(invalid="ignore"):
        scales = np.array([np.abs(X[n:n + rows]).max() / 448 for n in range(0, len(X), rows)])
        return rounded(X / np.repeat(scales, rows)[:len(X), None]), scales


def quantise_tiles__does_not_round(X, rows):
    return quantised(X, rows, whole=False)


def quantise_tiles__drops_the_last_short_tile(X, rows):
    whole = max(len(X) // rows, 1) * rows
    values, scales = quantised(X[:whole], rows)
    return np.concatenate([values, 0 * X[whole:]]), np.append(scales, np.ones(-(-len(X) // rows) - len(scales)))


def quantise_tiles__rounds_before_it_scales(X, rows):
    return rounded(X), quantised(X, rows)[1]
