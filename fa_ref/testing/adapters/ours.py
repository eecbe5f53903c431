"""Our own signature: `fa_ref.forward` and `fa_ref.backward`, and those of `fa_ref.varlen` for packed sequences."""

import numpy as np

from fa_ref.testing.adapters.keywords import not_taken
from fa_ref.testing.adapters.packed import cut, ends, one_after_the_other
from fa_ref.testing.problem import Result
from fa_ref.testing.supports import Supports

KEYWORDS = {                                                        # of a call: the abilities that need it
    "scale": ("scale",), "causal": ("causal",), "window": ("window",), "mask": ("bool_mask", "float_mask"),
    "bias": ("bias",), "alibi_slopes": ("alibi",), "softcap": ("softcap",), "sink": ("sink",), "block_q": ("tiles",),
    "block_k": ("tiles",), "reverse": ("reverse",)}


def fa_ref(fn, *, backward=None, packed=None, packed_backward=None, dtypes=None, lse=True):
    """`fa_ref.forward` and `fa_ref.backward`, or functions with their signatures, on NumPy arrays.

    Options are passed only where they are set. Without `backward` no gradients are asked for; without `packed`
    (and `packed_backward`, where there are gradients), which are like those of `fa_ref.varlen`, no packed sequences.
    Abilities whose keyword fn or backward does not take are left out, and listed in `ask.left_out`. lse: False for
    a function that returns out alone, as a bare array.
    """
    def ask(problem):
        out, lse = with_lse(fn(problem.q, problem.k, problem.v, **options_of(problem)))
        if problem.dout is None:
            return Result(out, lse)
        return Result(out, lse, *backward(problem.dout, problem.q, problem.k, problem.v, out, lse,
                                          **dlse_of(problem.dlse), **options_of(problem)))

    def ask_packed(problems):
        return from_one_call(problems, packed, packed_backward)

    can_pack = packed is not None and (backward is None or packed_backward is not None)
    everything = Supports.everything(packed=ask_packed if can_pack else None)
    everything = everything.but(dtypes=tuple(dtypes)) if dtypes else everything
    untaken = not_taken(fn, KEYWORDS) + (not_taken(backward, [*KEYWORDS, "dlse"]) if backward else [])
    left_out = [ability for keyword in untaken for ability in KEYWORDS.get(keyword, (keyword,))]
    left_out += [] if lse else ["lse"] + ["dlse"] * (backward is not None)
    ask.left_out = tuple(dict.fromkeys(left_out))
    return ask, everything.without(*ask.left_out, *([] if backward else ["gradients", "dlse"]))


def gives_lse(fn):
    """False if fn answers a call with arrays of one number with a bare array. If it raises, the check will tell."""
    try:
        return not isinstance(fn(*np.ones((3, 1, 1, 1, 1), np.float32)), np.ndarray)
    except Exception:
        return True


def with_lse(answer):
    """(out, lse) of an answer that may be out alone; then lse is None."""
    return (answer, None) if isinstance(answer, np.ndarray) else answer


def options_of(problem):
    """The options and the ways to walk that are set, as keyword arguments."""
    walk = {name: getattr(problem, name) for name in ("block_q", "block_k", "reverse")}
    return {name: x for name, x in (problem.options | walk).items()
            if not (x is None or x is False or (name == "window" and x == (-1, -1)))}


def dlse_of(dlse):
    """dlse as a keyword argument, where there is one."""
    return {} if dlse is None else {"dlse": dlse}


def from_one_call(problems, forward, backward):
    """Results for problems of one sequence each, from one call with (heads, tokens, channels) arrays."""
    options = options_of(problems[0])
    q, k, v, dout, dlse = (one_after_the_other(problems, name) for name in ("q", "k", "v", "dout", "dlse"))
    ends_q, ends_k = ends(problems, "q"), ends(problems, "k")
    out, lse = with_lse(forward(q, k, v, ends_q, ends_k, **options))
    if dout is None:
        return cut(problems, {"out": out, "lse": lse}, {})
    dq, dk, dv, _, dsink = backward(dout, q, k, v, out, lse, ends_q, ends_k, **dlse_of(dlse), **options)
    return cut(problems, {"out": out, "lse": lse, "dq": dq}, {"dk": dk, "dv": dv}, dsink)
