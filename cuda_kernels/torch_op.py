"""Attention as an operator of torch, to train with: `torch.ops.fa_ref.attention`, and a stand-in for torch's own.

    import cuda_kernels.torch_op                                    # enters the operators
    out, lse = torch.ops.fa_ref.attention(q, k, v, causal=True)
    from cuda_kernels.torch_op import scaled_dot_product_attention  # torch's signature and alignment

CUDA tensors go to the kernels: float16 and bfloat16 to `fa2_mma`, others to `fa2`. CPU tensors go to the loops of
`fa_ref`. Both know the gradients, that of lse too. torch.compile sees one operator, and its shapes.

A gradient of a gradient is refused: the backward pass has none.
"""

import torch

import cuda_kernels
import fa_ref

HALVES = torch.float16, torch.bfloat16


def library(q):
    """(package, options of its own): who computes for tensors like q."""
    if q.is_cuda:
        return cuda_kernels, {"kernel": "fa2_mma" if q.dtype in HALVES else "fa2"}
    return fa_ref, {"algorithm": "fa2"}


@torch.library.custom_op("fa_ref::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None,
              window_left: int = -1, window_right: int = -1,
              deterministic: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of q (B, Hq, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv); options as in `fa_ref.forward`.

    causal is bottom-right, as there. deterministic is about the gradient of q: see `cuda_kernels.backward`.
    """
    package, how = library(q)
    out, lse = package.forward(q, k, v, causal=causal, scale=scale, window=(window_left, window_right), **how)
    return out, lse


@torch.library.custom_op("fa_ref::attention_backward", mutates_args=())
def attention_backward(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                       lse: torch.Tensor, dlse: torch.Tensor | None, causal: bool, scale: float | None,
                       window_left: int, window_right: int,
                       deterministic: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv)."""
    package, how = library(q)
    if package is cuda_kernels:
        how["deterministic"] = deterministic
    gradients = package.backward(dout, q, k, v, out, lse, dlse=dlse, causal=causal, scale=scale,
                                 window=(window_left, window_right), **how)
    return gradients.dq, gradients.dk, gradients.dv


@attention.register_fake
def shapes(q, k, v, causal=False, scale=None, window_left=-1, window_right=-1, deterministic=False):
    """Shapes and dtypes of out and lse."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=wide)


@attention_backward.register_fake
def shapes_backward(dout, q, k, v, out, lse, dlse, causal, scale, window_left, window_right, deterministic):
    """Shapes and dtypes of dq, dk, dv."""
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def save(ctx, inputs, output):
    """What the backward pass needs of the forward one."""
    q, k, v, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def differentiate(ctx, dout, dlse):
    """The gradients of all arguments of `attention`; None for options."""
    q, k, v, out, lse = ctx.saved_tensors
    if dout is None and dlse is None:
        return (None,) * (3 + len(ctx.options))
    dout = torch.zeros_like(out) if dout is None else dout
    gradients = attention_backward(dout, q, k, v, out, lse, dlse, *ctx.options)
    return *gradients, *(None for _ in ctx.options)


def refuse(ctx, *gradients):
    """There is no backward pass of the backward pass."""
    raise NotImplementedError("fa_ref::attention has no second derivative: its backward pass cannot be differentiated")


attention.register_autograd(differentiate, setup_context=save)
attention_backward.register_autograd(refuse, setup_context=lambda ctx, inputs, output: None)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False):
    """What torch.nn.functional.scaled_dot_product_attention does, for (B, H, N, d); is_causal is top-left, as there.

    Under torch.autocast the tensors are cast as torch casts its own. NotImplementedError for a mask, for dropout;
    ValueError for grouped heads without enable_gqa.
    """
    if attn_mask is not None:
        raise NotImplementedError("attn_mask is not offered by fa_ref::attention; is_causal is")
    if dropout_p:
        raise NotImplementedError(f"dropout_p is not offered by fa_ref::attention, got {dropout_p}")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"{query.shape[1]} query heads and {key.shape[1]} of keys need enable_gqa=True")
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (x.to(dtype) for x in (query, key, value))
    right = -1
    if is_causal:                                                   # query i sees the keys 0 … i
        Nq, Nk = query.shape[2], key.shape[2]
        if Nk > Nq:
            key, value = key[:, :, :Nq], value[:, :, :Nq]
        right = max(Nq - Nk, 0)
    return attention(query, key, value, scale=scale, window_right=right)[0]
