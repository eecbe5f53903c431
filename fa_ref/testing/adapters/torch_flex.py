"""The signature of torch's `flex_attention`: options are functions of a score and its place."""

import numpy as np

from fa_ref.testing.bridge import to_numpy, to_torch
from fa_ref.testing.problem import Result
from fa_ref.testing.supports import Supports


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
