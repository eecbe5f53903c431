"""The answer to notebook 13."""

import numpy as np


def places(chunks):
    r, c = np.arange(8)[:, None], np.arange(chunks)[None, :]
    if chunks < 8:                                                  # several rows fill the banks once
        return c ^ r // (8 // chunks)
    return c ^ r
