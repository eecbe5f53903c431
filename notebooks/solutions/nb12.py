"""Answers to notebook 12."""

import numpy as np


def round_e4m3(x):
    _, e = np.frexp(x)                                      # 2^(e − 1) ≤ |x| < 2^e
    step = np.ldexp(1.0, np.maximum(e - 1, -6) - 3)
    y = np.rint(x / step) * step
    return np.where(np.abs(y) <= 448, y, np.nan)


def quantise_tiles(X, rows):
    values, scales = np.empty_like(X), []
    for n in range(0, len(X), rows):
        tile = X[n:n + rows]
        scales.append(np.abs(tile).max() / 448 or 1.0)
        values[n:n + rows] = round_e4m3(tile / scales[-1])
    return values, np.array(scales)
