"""Who may see what: the visible set of every row, and the keys that nobody may read."""

import numpy as np


def visible(problem):
    """Which keys each query row may see: bool (B, Hq, Nq, Nk)."""
    B, Hq, Nq, _ = problem.q.shape
    Nk = problem.k.shape[2]
    at = np.arange(Nq)[:, None] + Nk - Nq               # the key that row i stands on
    j = np.arange(Nk)
    left, right = problem.window
    seen = np.ones((B, Hq, Nq, Nk), bool)
    if problem.causal:
        seen &= j <= at
    if left >= 0:
        seen &= j >= at - left
    if right >= 0:
        seen &= j <= at + right
    for added in (problem.mask, problem.bias):
        if added is not None:
            seen &= added if added.dtype == bool else ~np.isneginf(added)
    return seen


def unread_keys(problem):
    """Keys that no query row of any head of their group may see: bool (B, Hkv, Nk)."""
    B, Hkv, Nk, _ = problem.k.shape
    groups = visible(problem).reshape(B, Hkv, problem.q.shape[1] // Hkv, problem.q.shape[2], Nk)
    return ~groups.any(axis=(2, 3))


def poison_unread(problem):
    """The same problem with NaN, inf and −inf in the unread rows of k and v."""
    unread = unread_keys(problem)[..., None]

    def poisoned(x):
        return np.where(unread, np.resize(np.array([np.nan, np.inf, -np.inf], x.dtype), x.shape), x)

    return problem.replace(k=poisoned(problem.k), v=poisoned(problem.v))


def clean_unread(problem):
    """The same problem with zeros in the unread rows of k and v, in plain storage."""
    unread = unread_keys(problem)[..., None]
    return problem.replace(**{name: np.where(unread, x.dtype.type(0), x)
                              for name, x in (("k", problem.k), ("v", problem.v))})
