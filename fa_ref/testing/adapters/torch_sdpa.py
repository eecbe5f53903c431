"""The signature of torch's `scaled_dot_product_attention`: one mask for everything, no lse."""

import math

import numpy as np

from fa_ref.testing.adapters.keywords import not_taken
from fa_ref.testing.bridge import gradients, leaves, to_numpy, to_torch
from fa_ref.testing.problem import Result
from fa_ref.testing.supports import Supports

KEYWORDS = {                                                        # of a call: the abilities that need it
    "attn_mask": ("bool_mask", "float_mask", "bias"), "is_causal": ("causal",), "scale": ("scale",),
    "enable_gqa": ("grouped",)}


def sdpa(fn, *, causal="square", dtypes=("float32", "float64", "bfloat16"), backward=True, device="cpu"):
    """`torch.nn.functional.scaled_dot_product_attention`, or a function with its signature: layout b h n d, no lse.

    causal says what its is_causal means: "top-left" (torch's meaning), "bottom-right", or "square": it is asked only
    for Nq = Nk, where all meanings agree; None: it is not asked. is_causal is set where there is neither mask nor
    bias; elsewhere the triangle is put into attn_mask, since torch refuses both. bias and float mask are added up in
    attn_mask, which is boolean or of the accumulator dtype. Only positive scales are asked for: torch 2.13's CPU kernel
    masks first and scales then, and −inf·0 or −inf·(−1) hides nothing. Abilities whose keyword fn does not take are
    left out, and listed in `ask.left_out`.
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

    untaken = [ability for keyword in not_taken(fn, KEYWORDS) for ability in KEYWORDS[keyword]]
    ask.left_out = (*untaken, *(["causal where Nq ≠ Nk"] if causal == "square" and "causal" not in untaken else []))
    return ask, Supports(
        dtypes=tuple(dtypes), causal=causal, bool_mask=True, float_mask=True, bias=True, scale="positive",
        dv_differs=True, cross_lengths=True, zero_lengths=True, grouped=True, empty_rows=True, gradients=backward,
        strided=True, framework="torch", device=device).without(*untaken)


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
