"""Speak to attention functions in their own conventions.

An adapter takes a function and returns (ask, supports): ask(problem) -> Result, and what can be asked of it.
"""

import inspect
import math
from dataclasses import replace

import numpy as np

from fa_ref.testing.bridge import gradients, leaves, to_numpy, to_torch
from fa_ref.testing.problem import Result
from fa_ref.testing.supports import Supports

# --- our own signature ----------------------------------------------------------------------------------------

KEYWORDS = {                                                        # and the abilities that cannot be asked without
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
        answer = fn(problem.q, problem.k, problem.v, **options_of(problem))
        out, lse = (answer, None) if isinstance(answer, np.ndarray) else answer
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


def not_taken(fn, keywords):
    """Those of the keywords that fn does not take; none if it takes any, or has no signature that can be read."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return []
    taken = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return [name for name in keywords if name not in taken]


def gives_lse(fn):
    """False if fn answers a call with arrays of one number with a bare array. If it raises, the check will tell."""
    try:
        return not isinstance(fn(*np.ones((3, 1, 1, 1, 1), np.float32)), np.ndarray)
    except Exception:
        return True


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
    out, lse = forward(q, k, v, ends_q, ends_k, **options)
    if dout is None:
        return cut(problems, {"out": out, "lse": lse}, {})
    dq, dk, dv, _, dsink = backward(dout, q, k, v, out, lse, ends_q, ends_k, **dlse_of(dlse), **options)
    return cut(problems, {"out": out, "lse": lse, "dq": dq}, {"dk": dk, "dv": dv}, dsink)


def one_after_the_other(problems, name):
    """The arrays of this name of all problems: (heads, total, channels) or (heads, total)."""
    arrays = [getattr(problem, name) for problem in problems]
    return None if arrays[0] is None else np.concatenate([x[0] for x in arrays], axis=1)


def ends(problems, name):
    """Where the sequences of q or k end: int32 (sequences + 1), from 0."""
    return np.cumsum([0, *(getattr(problem, name).shape[2] for problem in problems)]).astype(np.int32)


def cut(problems, rows, keys, dsink=None):
    """One Result per problem from arrays (heads, total, ...) along the queries (`rows`) and along the keys."""
    fields = [(name, x, ends(problems, "q")) for name, x in rows.items()]
    fields += [(name, x, ends(problems, "k")) for name, x in keys.items()]
    return [Result(**{name: x[None, :, end[n]:end[n + 1]] for name, x, end in fields}, dsink=dsink)
            for n in range(len(problems))]


# --- torch ----------------------------------------------------------------------------------------------------

def sdpa(fn, *, causal="square", dtypes=("float32", "float64", "bfloat16"), backward=True, device="cpu"):
    """`torch.nn.functional.scaled_dot_product_attention`, or a function with its signature: layout b h n d, no lse.

    causal says what its is_causal means: "top-left" (torch's meaning), or "square": it is asked only for Nq = Nk,
    where all meanings agree. is_causal is set where there is neither mask nor bias; elsewhere the triangle is put
    into attn_mask, since torch refuses both. bias and float mask are added up in attn_mask. Only positive scales
    are asked for: torch 2.13's CPU kernel masks first and scales then, and −inf·0 or −inf·(−1) hides nothing.
    """
    def ask(problem):
        inputs = leaves(problem, device)
        q, k, v, bias = (inputs.get(name) for name in ("q", "k", "v", "bias"))
        Nq, Nk = q.shape[2], k.shape[2]
        mask, options = problem.mask, {}
        triangle = np.tri(Nq, Nk, Nk - Nq if causal == "bottom-right" else 0, dtype=bool) if problem.causal else None
        if causal == "top-left" and mask is not None and np.array_equal(mask, np.tri(Nq, Nk, dtype=bool)):
            mask, triangle = None, mask
        if triangle is not None and mask is None and bias is None:
            options["is_causal"] = True
        elif triangle is not None or mask is not None or bias is not None:
            options["attn_mask"] = attn_mask(triangle, mask, bias, device)
        if problem.scale is not None:
            options["scale"] = problem.scale
        if q.shape[1] != k.shape[1]:
            options["enable_gqa"] = True
        out = fn(q, k, v, **options)
        if problem.dout is None:
            return Result(to_numpy(out))
        return Result(to_numpy(out), **gradients(out, inputs, to_torch(problem.dout, device)))

    return ask, Supports(
        dtypes=tuple(dtypes), causal=causal, bool_mask=True, float_mask=True, bias=True, scale="positive",
        dv_differs=True, cross_lengths=True, zero_lengths=True, grouped=True, empty_rows=True, gradients=backward,
        strided=True, framework="torch", device=device)


def attn_mask(triangle, mask, bias, device):
    """Triangle, mask and bias, each of which may be None, in one boolean or additive tensor."""
    import torch

    visible = [x for x in (triangle, mask) if x is not None and x.dtype == bool]
    terms = [to_torch(mask, device)] if mask is not None and mask.dtype != bool else []
    terms += [] if bias is None else [bias]
    if not terms:
        return to_torch(np.logical_and.reduce(np.broadcast_arrays(*visible)), device)
    total = sum(terms)
    for x in visible:
        total = torch.where(to_torch(x, device), total, -math.inf)
    return total


def flash_attn(fn, *, packed=None, dtypes=("float16", "bfloat16"), backward=True, device="cuda",
               empty_lse=math.inf, alibi_shifts_lse=True):
    """`flash_attn.flash_attn_func` (FlashAttention-2), or a function with its signature: layout b n h d.

    packed: `flash_attn_varlen_func`, or the like: layout (tokens, heads, channels). Causal is bottom-right. lse is
    the second of the three results for return_attn_probs=True; the library's lse of an empty row is +inf, and of
    causal problems with ALiBi it is another one (see `without_shift`) unless alibi_shifts_lse is False. In 16 bits
    the two-errors rule holds, since dk and dv of grouped heads are rounded before they are summed.
    """
    def options_for(problem):
        slopes = problem.alibi_slopes
        return {"softmax_scale": problem.scale, "causal": problem.causal, "window_size": problem.window,
                "softcap": problem.softcap or 0.0, "return_attn_probs": True,
                "alibi_slopes": None if slopes is None else to_torch(slopes, device).float()}

    def true_lse(lse, problem, longest):
        return without_shift(lse, problem, longest) if alibi_shifts_lse else lse

    def ask(problem):
        inputs = leaves(problem, device)
        out, lse, _ = fn(*(x.transpose(1, 2) for x in inputs.values()), **options_for(problem))
        out, lse = out.transpose(1, 2), true_lse(to_numpy(lse), problem, problem.k.shape[2])
        if problem.dout is None:
            return Result(to_numpy(out), lse)
        return Result(to_numpy(out), lse, **gradients(out, inputs, to_torch(problem.dout, device)))

    def ask_packed(problems):
        whole = {name: one_after_the_other(problems, name) for name in ("q", "k", "v", "dout")}
        inputs = leaves(problems[0].replace(**whole), device)
        longest_q, longest_k = (max(getattr(p, name).shape[2] for p in problems) for name in ("q", "k"))
        out, lse, _ = packed(
            *(x.transpose(0, 1) for x in inputs.values()), to_torch(ends(problems, "q"), device),
            to_torch(ends(problems, "k"), device), longest_q, longest_k, **options_for(problems[0]))
        out = out.transpose(0, 1)
        rows, keys = {"out": to_numpy(out), "lse": to_numpy(lse)}, {}
        if whole["dout"] is not None:
            grads = gradients(out, inputs, to_torch(whole["dout"], device))
            rows, keys = rows | {"dq": grads["dq"]}, {"dk": grads["dk"], "dv": grads["dv"]}
        return [replace(answer, lse=true_lse(answer.lse, problem, longest_k))
                for problem, answer in zip(problems, cut(problems, rows, keys), strict=True)]

    return ask, Supports(
        dtypes=tuple(dtypes), causal="bottom-right", window=True, alibi=True, softcap=True, scale="positive",
        cross_lengths=True, grouped=True, empty_rows=True, lse="natural", empty_lse=empty_lse, gradients=backward,
        deterministic=False, strided=True, packed=ask_packed if packed else None, framework="torch", device=device,
        rule="two-errors")


def without_shift(lse, problem, longest):
    """The true lse of FlashAttention-2's: its causal kernel adds slope·j for ALiBi, not −slope·(i + Nk − Nq − j).

    It is the causal kernel that runs if nothing limits the left side (a window of the longest Nk does not).
    """
    (left, right), Nq, Nk = problem.window, problem.q.shape[2], problem.k.shape[2]
    causal_kernel = (left < 0 or left >= longest) and (problem.causal or right == 0)
    if problem.alibi_slopes is None or not causal_kernel:
        return lse
    return lse - problem.alibi_slopes[..., None] * (np.arange(Nq, dtype=lse.dtype) + lse.dtype.type(Nk - Nq))


def flex_attention(fn, *, dtypes=("float32", "float64", "bfloat16"), device="cpu"):
    """`torch.nn.attention.flex_attention.flex_attention`, forward: layout b h n d, natural lse, −inf for empty rows.

    Softcap, bias, float mask and ALiBi become its score_mod; causal, window and boolean mask its block mask.
    """
    import torch
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

    def ask(problem):
        (B, Hq, Nq, _), Nk = problem.q.shape, problem.k.shape[2]
        left, right = problem.window
        full = {name: to_torch(np.broadcast_to(x, (B, Hq, Nq, Nk)), device) for name in ("mask", "bias")
                if (x := getattr(problem, name)) is not None}
        slopes = problem.alibi_slopes
        slopes = None if slopes is None else to_torch(np.broadcast_to(slopes, (B, Hq)), device)
        visible = full.pop("mask") if "mask" in full and full["mask"].dtype == torch.bool else None

        def mask_mod(b, h, i, j):
            at = i + (Nk - Nq)
            seen = j >= 0
            if problem.causal:
                seen = seen & (j <= at)
            if left >= 0:
                seen = seen & (j >= at - left)
            if right >= 0:
                seen = seen & (j <= at + right)
            return seen if visible is None else seen & visible[b, h, i, j]

        def score_mod(score, b, h, i, j):
            if problem.softcap:
                score = problem.softcap * torch.tanh(score / problem.softcap)
            for term in full.values():
                score = score + term[b, h, i, j]
            return score if slopes is None else score - slopes[b, h] * (i + (Nk - Nq) - j).abs()

        q, k, v = (to_torch(x, device) for x in (problem.q, problem.k, problem.v))
        hides = problem.causal or problem.window != (-1, -1) or visible is not None
        block_mask = create_block_mask(mask_mod, B, Hq, Nq, Nk, device=device) if hides else None
        out, aux = fn(q, k, v, score_mod=score_mod, block_mask=block_mask, scale=problem.scale,
                      enable_gqa=q.shape[1] != k.shape[1], return_aux=AuxRequest(lse=True))
        return Result(to_numpy(out), to_numpy(aux.lse))

    return ask, Supports(
        dtypes=tuple(dtypes), causal="bottom-right", window=True, bool_mask=True, float_mask=True, bias=True,
        alibi=True, softcap=True, scale="positive", dv_differs=True, cross_lengths=True, grouped=True, empty_rows=True,
        lse="natural", strided=True, framework="torch", device=device)
