"""Attention as an operator of torch, to train with: `torch.ops.fa_ref.attention`, and a stand-in for torch's own.

    import cuda_kernels.torch_op                                    # registers the operators
    out, lse = torch.ops.fa_ref.attention(q, k, v, causal=True)
    from cuda_kernels.torch_op import scaled_dot_product_attention  # torch's signature and alignment

CUDA tensors go to the kernels: float16 and bfloat16 to `fa2_mma`, others to `fa2`. CPU tensors go to the loops of
`fa_ref`. Both know the gradients, that of lse too. torch.compile sees one operator, and its shapes.

torch.func takes gradients too (grad, vjp, jacrev), and maps over one more axis (vmap). Refused are a gradient of a
gradient, since the backward pass has none, and derivatives that go forwards (jvp, jacfwd, hessian, dual tensors).
"""

import torch
from torch.autograd.forward_ad import unpack_dual

import cuda_kernels
import fa_ref
from cuda_kernels import arrays
from fa_ref import inputs

HALVES = torch.float16, torch.bfloat16
FORWARDS = ("fa_ref::attention has no derivative that goes forwards (jvp, jacfwd, hessian, dual tensors); "
            "torch.autograd.grad, torch.func.grad and jacrev go backwards")


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

    causal is bottom-right, as there. 16 bits on a GPU: d = dv up to 256. deterministic is about the gradient of q: see
    `cuda_kernels.backward`; torch.use_deterministic_algorithms(True) asks for it too.
    """
    refuse_tangents(q, k, v)
    package, how = library(q)
    q, k, v = map(in_rows, (q, k, v))
    out, lse = package.forward(q, k, v, causal=causal, scale=scale, window=(window_left, window_right), **how)
    return out, lse


@torch.library.custom_op("fa_ref::attention_backward", mutates_args=())
def attention_backward(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                       lse: torch.Tensor, dlse: torch.Tensor | None, causal: bool, scale: float | None,
                       window_left: int, window_right: int,
                       deterministic: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv)."""
    refuse_tangents(dout, q, k, v)
    package, how = library(q)
    if package is cuda_kernels:
        how["deterministic"] = deterministic or torch.are_deterministic_algorithms_enabled()
    dout, q, k, v, out = map(in_rows, (dout, q, k, v, out))
    gradients = package.backward(dout, q, k, v, out, lse, dlse=dlse, causal=causal, scale=scale,
                                 window=(window_left, window_right), **how)
    return gradients.dq, gradients.dk, gradients.dv


def in_rows(x):
    """x, or a copy if its last axis is not contiguous, as `fa2_mma` wants it: dout of out.sum() has strides of 0."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def refuse_tangents(*tensors):
    """NotImplementedError for dual tensors: torch would silently return a tangent of 0, since nobody computes it."""
    if any(unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(FORWARDS)


def check_axes(**tensors):
    """Axes and devices, where shapes are looked at before `fa_ref.inputs` checks everything.

    ValueError for other axes than four, TypeError for tensors on different devices.
    """
    for name, x in tensors.items():
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 axes (batch, heads, length, head dim), got shape {tuple(x.shape)}")
    if len({x.device for x in tensors.values()}) > 1:
        told = ", ".join(f"{name} is {arrays.describe(name, x)}" for name, x in tensors.items())
        raise TypeError(f"arrays of different kinds or devices: {told}")


@attention.register_fake
def shapes(q, k, v, causal=False, scale=None, window_left=-1, window_right=-1, deterministic=False):
    """Shapes, dtypes and strides of out and lse."""
    check_axes(q=q, k=k, v=v)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=wide)


@attention_backward.register_fake
def shapes_backward(dout, q, k, v, out, lse, dlse, causal, scale, window_left, window_right, deterministic):
    """Shapes, dtypes and strides of dq, dk, dv."""
    return tuple(like(x, x.shape[3]) for x in (q, k, v))


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


# --- torch.func cannot use what is registered above: it asks for a Function with these methods ---------------------

class Attention(torch.autograd.Function):
    """`attention` for torch.func."""

    forward, setup_context, backward = staticmethod(attention), staticmethod(save), staticmethod(differentiate)

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(FORWARDS)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return folded(Attention.apply, info.batch_size, in_dims, inputs)


class AttentionBackward(torch.autograd.Function):
    """`attention_backward` for torch.func."""

    forward, backward = staticmethod(attention_backward), staticmethod(refuse)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(FORWARDS)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return folded(AttentionBackward.apply, info.batch_size, in_dims, inputs)


def folded(function, n, in_dims, inputs):
    """(results, their axes) of a function over n batches in one call: the axis that is mapped joins the batch."""
    def fold(x, dim):
        if not isinstance(x, torch.Tensor):
            return x
        return (x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)

    results = function(*map(fold, inputs, in_dims))
    x, dim = next(both for both in zip(inputs, in_dims, strict=True) if both[1] is not None)
    B = x.movedim(dim, 0).shape[1]
    return tuple(x.unflatten(0, (n, B)) for x in results), (0,) * len(results)


def in_func(q, k, v, causal=False, scale=None, window_left=-1, window_right=-1, deterministic=False):
    """`attention` inside of torch.func: torch leaves out options that have their default."""
    return Attention.apply(q, k, v, causal, scale, window_left, window_right, deterministic)


IN_FUNC = "FuncTorchDynamicLayerFrontMode"                          # where torch sends operators inside of torch.func
library_of_func = torch.library.Library("fa_ref", "FRAGMENT")       # what it holds lasts as long as it does
if hasattr(torch._C.DispatchKey, IN_FUNC):                          # a torch without it refuses torch.func.grad itself
    library_of_func.impl("attention", in_func, IN_FUNC)
    library_of_func.impl("attention_backward", AttentionBackward.apply, IN_FUNC)


# --- torch's own signature -------------------------------------------------------------------------------------------

def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False):
    """What torch.nn.functional.scaled_dot_product_attention does, for (B, H, N, d); is_causal is top-left, as there.

    Under torch.autocast the tensors are cast as torch casts its own. NotImplementedError for a mask, for dropout;
    ValueError for grouped heads without enable_gqa, for other axes than four; TypeError for what is no tensor, for
    flags that are no bool, and for a scale that is a tensor: it would get no gradient.
    """
    if attn_mask is not None:
        raise NotImplementedError("attn_mask is not offered by fa_ref::attention; is_causal is")
    if dropout_p:
        raise NotImplementedError(f"dropout_p is not offered by fa_ref::attention, got {dropout_p}")
    for name, x in {"query": query, "key": key, "value": value}.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    inputs.check_flag("is_causal", is_causal)
    inputs.check_flag("enable_gqa", enable_gqa)
    if isinstance(scale, torch.Tensor):
        raise TypeError("scale must be a number, got a tensor, which would get no gradient")
    check_axes(query=query, key=key, value=value)
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"{query.shape[1]} query heads and {key.shape[1]} key/value heads need enable_gqa=True")
    device = query.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x
                             for x in (query, key, value))
    right = -1
    if is_causal:                                                   # query i sees the keys 0 … i
        Nq, Nk = query.shape[2], key.shape[2]
        if Nk != value.shape[2]:                                    # cut to Nq both, they might fit
            raise ValueError(f"numbers of keys differ: key has Nk = {Nk}, value has Nk = {value.shape[2]}")
        if Nk > Nq:
            key, value = key[:, :, :Nq], value[:, :, :Nq]
        right = max(Nq - Nk, 0)
    return attention(query, key, value, scale=scale, window_right=right)[0]
