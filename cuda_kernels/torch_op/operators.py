"""The operators `fa_ref::attention` and `fa_ref::attention_backward`: who computes them, their gradients and shapes."""

from types import SimpleNamespace

import torch
from torch.autograd.forward_ad import unpack_dual

import cuda_kernels
import fa_ref
from cuda_kernels import arrays
from cuda_kernels.places import numpy_dtype
from fa_ref import inputs, torch_bridge

HALVES = torch.float16, torch.bfloat16
FORWARDS = ("fa_ref::attention has no derivative that goes forwards (jvp, jacfwd, hessian, dual tensors); "
            "torch.autograd.grad, torch.func.grad and jacrev go backwards")


def package_for(q):
    """(the package that computes for tensors like q, options of its own)."""
    if q.is_cuda:
        return cuda_kernels, {"kernel": "fa2_mma" if q.dtype in HALVES else "fa2"}
    return fa_ref, {"algorithm": "fa2"}


@torch.library.custom_op("fa_ref::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None,
              window_left: int = -1, window_right: int = -1,
              deterministic: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of q (B, Hq, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv); options as in `fa_ref.forward`.

    out (B, Hq, Nq, dv) in the dtype of q, lse (B, Hq, Nq) in float32, for float64 in float64. ValueError, TypeError,
    NotImplementedError as from `fa_ref.forward` on a CPU and `cuda_kernels.forward` on a GPU. causal is bottom-right,
    as there. 16 bits on a GPU: d = dv up to 256. deterministic is about the gradient of q: see `cuda_kernels.backward`;
    torch.use_deterministic_algorithms(True) asks for it too.
    """
    refuse_tangents(q, k, v)
    package, how = package_for(q)
    q, k, v = map(in_rows, (q, k, v))
    out, lse = package.forward(q, k, v, causal=causal, scale=scale, window=(window_left, window_right), **how)
    return out, lse


@torch.library.custom_op("fa_ref::attention_backward", mutates_args=())
def attention_backward(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                       lse: torch.Tensor, dlse: torch.Tensor | None, causal: bool, scale: float | None,
                       window_left: int, window_right: int,
                       deterministic: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv), each with the shape and dtype of q, k, v.

    dout, out (B, Hq, Nq, dv), lse (B, Hq, Nq), dlse like lse or None. Options, and what is raised, as for `attention`.
    """
    refuse_tangents(dout, q, k, v, out, lse, lse if dlse is None else dlse)
    package, how = package_for(q)
    if package is cuda_kernels:
        how["deterministic"] = deterministic or torch.are_deterministic_algorithms_enabled()
    dout, q, k, v, out = map(in_rows, (dout, q, k, v, out))
    gradients = package.backward(dout, q, k, v, out, lse, dlse=dlse, causal=causal, scale=scale,
                                 window=(window_left, window_right), **how)
    return gradients.dq, gradients.dk, gradients.dv


def in_rows(x):
    """x, or a copy if its last axis is not contiguous, as `fa2_mma` wants it: dout of out.sum() has strides of 0."""
    if x.is_nested or x.layout != torch.strided:                    # refused by name later
        return x
    return x if x.ndim == 0 or x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def refuse_tangents(*tensors):
    """NotImplementedError for dual tensors: torch would silently return a tangent of 0, since nobody computes it."""
    if any(unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(FORWARDS)


def check_axes_and_devices(**tensors):
    """Where shapes are looked at before `fa_ref` checks everything.

    ValueError for other axes than four, TypeError for tensors on different devices and for those that are not dense.
    """
    for name, x in tensors.items():
        torch_bridge.check_dense(name, x)
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 axes (batch, heads, length, head dim), got shape {tuple(x.shape)}")
    if len({x.device for x in tensors.values()}) > 1:
        torch_bridge.check_one_kind({name: arrays.describe(name, x) for name, x in tensors.items()})


@attention.register_fake
def shapes(q, k, v, causal=False, scale=None, window_left=-1, window_right=-1, deterministic=False):
    """Shapes, dtypes and strides of out and lse, and the same errors for shapes and dtypes that do not fit."""
    check_axes_and_devices(q=q, k=k, v=v)
    inputs.check_qkv(*map(without_numbers, (q, k, v)))
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=wide)


@attention_backward.register_fake
def shapes_backward(dout, q, k, v, out, lse, dlse, causal, scale, window_left, window_right, deterministic):
    """Shapes, dtypes and strides of dq, dk, dv."""
    return tuple(like(x, x.shape[3]) for x in (q, k, v))


def without_numbers(x):
    """The shape and dtype of a tensor, as the checks of `fa_ref` look at them."""
    return SimpleNamespace(shape=tuple(x.shape), ndim=x.ndim, dtype=numpy_dtype(x.dtype))


def like(x, d):
    """A tensor of the shape of x, with d channels: token by token where `fa2_mma` answers so."""
    shape = *x.shape[:3], d
    return arrays.empty_as(in_rows(x), shape) if x.is_cuda and x.dtype in HALVES else x.new_empty(shape)


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
