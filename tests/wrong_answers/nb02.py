"""Wrong answers to notebook 02; each must be rejected."""

import numpy as np


def merge_pairs__adds_the_sums_as_they_are(ma, la, mb, lb):
    return np.maximum(ma, mb), la + lb


def merge_pairs__nan_where_nothing_was_seen(ma, la, mb, lb):
    m = np.maximum(ma, mb)
    return m, np.exp(ma - m) * la + np.exp(mb - m) * lb


def merge_pairs__rescales_the_first_piece_only(ma, la, mb, lb):
    m = np.maximum(ma, mb)
    return m, np.exp(np.where(m == -np.inf, 0, ma - m)) * la + lb


def merge_pairs__factor_inverted(ma, la, mb, lb):
    m = np.maximum(ma, mb)
    shift = np.where(m == -np.inf, 0, m)
    return m, np.exp(shift - ma) * la + np.exp(shift - mb) * lb
