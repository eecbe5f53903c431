"""An answer to notebook 02."""

import numpy as np

from fa_ref.online_softmax import finite_or_zero


def merge_pairs(ma, la, mb, lb):
    m = np.maximum(ma, mb)
    shift = finite_or_zero(m)
    return m, np.exp(ma - shift) * la + np.exp(mb - shift) * lb
