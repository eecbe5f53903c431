"""The three attentions that a model is trained with: it calls one of them, in one line, and all the rest stays.

Each takes q, k, v (B, H, N, d) of one dtype and returns causal attention (B, H, N, d), with gradients.
"""

import math

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as of_torch

from cuda_kernels.torch_op import scaled_dot_product_attention as of_ours


def ours(q, k, v):
    """Our operator: the kernels of `cuda_kernels` on a GPU, the loops of `fa_ref` on a CPU."""
    return of_ours(q, k, v, is_causal=True)


def flash(q, k, v):
    """FlashAttention-2 as torch has it."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return of_torch(q, k, v, is_causal=True)


def eager(q, k, v):
    """Standard attention, written out: S and P go through memory, and P is kept for the backward pass."""
    S = q @ k.mT / math.sqrt(q.shape[3])                            # (B, H, N, N)
    hidden = torch.ones(S.shape[2:], dtype=torch.bool, device=S.device).triu(1)
    return S.masked_fill(hidden, -math.inf).softmax(dim=3) @ v


ATTENTIONS = {"ours": ours, "flash": flash, "eager": eager}
