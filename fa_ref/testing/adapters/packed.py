"""Problems of one sequence each, joined into the arrays of one call, and its answer cut into theirs."""

import numpy as np

from fa_ref.testing.problem import Result


def one_after_the_other(problems, name):
    """The arrays of this name of all problems: (heads, total, channels) or (heads, total)."""
    arrays = [getattr(problem, name) for problem in problems]
    return None if arrays[0] is None else np.concatenate([x[0] for x in arrays], axis=1)


def ends(problems, name):
    """Where the sequences of q or k end: int32 (sequences + 1), from 0."""
    return np.cumsum([0, *(getattr(problem, name).shape[2] for problem in problems)]).astype(np.int32)


def cut(problems, rows, keys, dsink=None):
    """One Result per problem from arrays (heads, total, ...) along the queries (`rows`, None for none) and the keys.

    dsink is that of all sequences; every Result gets it.
    """
    fields = [(name, x, ends(problems, "q")) for name, x in rows.items() if x is not None]
    fields += [(name, x, ends(problems, "k")) for name, x in keys.items()]
    return [Result(**{name: x[None, :, end[n]:end[n + 1]] for name, x, end in fields}, dsink=dsink)
            for n in range(len(problems))]
