"""The operators inside of torch.func, which cannot use what is registered for autograd.

It asks for a torch.autograd.Function with certain methods. So operators are sent to one where torch.func is at work.
"""

import torch

from cuda_kernels.torch_op.operators import (
    FORWARDS,
    attention,
    attention_backward,
    differentiate,
    refuse,
    save,
)


def refuse_forwards(ctx, *tangents):
    """There is no derivative that goes forwards."""
    raise NotImplementedError(FORWARDS)


class Attention(torch.autograd.Function):
    """`attention` for torch.func."""

    forward, setup_context, backward = staticmethod(attention), staticmethod(save), staticmethod(differentiate)
    jvp = staticmethod(refuse_forwards)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return folded(Attention.apply, info.batch_size, in_dims, inputs)


class AttentionBackward(torch.autograd.Function):
    """`attention_backward` for torch.func."""

    forward, backward = staticmethod(attention_backward), staticmethod(refuse)
    jvp = staticmethod(refuse_forwards)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

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
