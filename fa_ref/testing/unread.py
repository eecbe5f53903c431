"""Who may see what: the visible set of every row, the keys that nobody may read, and the queries that see none."""

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


def blind_queries(problem):
    """Queries that see no key, nor a sink: bool (B, Hq, Nq)."""
    seen = visible(problem).any(axis=3)
    return ~seen if problem.sink is None else np.zeros_like(seen)


def poison_unread(problem):
    """The same problem with numbers that nobody may use in rows without influence.

    In k and v these are the unread keys: NaN, inf and −inf. In q, dout and dlse the queries that see nothing: only NaN,
    since inf · 0 in D = rowsum(dO ∘ O) would make NumPy warn.
    """
    def never(x):
        return np.resize(np.array([np.nan, np.inf, -np.inf], x.dtype), x.shape)

    return filled(problem, never, lambda x: np.full_like(x, np.nan))


def clean_unread(problem):
    """The same problem with zeros in these rows, in plain storage."""
    return filled(problem, np.zeros_like, np.zeros_like)


def filled(problem, of_keys, of_queries):
    """The problem with of_keys(x), of_queries(x) in the rows of k and v, of q, dout and dlse without influence."""
    unread, blind = unread_keys(problem)[..., None], blind_queries(problem)
    rows = {"k": (unread, of_keys), "v": (unread, of_keys), "q": (blind[..., None], of_queries),
            "dout": (blind[..., None], of_queries), "dlse": (blind, of_queries)}
    return problem.replace(**{name: np.where(where, filling(x), x) for name, (where, filling) in rows.items()
                              if (x := getattr(problem, name)) is not None})
