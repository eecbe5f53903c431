"""The signature of the library flash_attn: heads behind rows, packed sequences, and an lse of its own kind."""

import math
from dataclasses import replace

import numpy as np

from fa_ref.testing.adapters.packed import cut, ends, one_after_the_other
from fa_ref.testing.bridge import gradients, leaves, to_numpy, to_torch
from fa_ref.testing.problem import Result
from fa_ref.testing.supports import Supports


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
