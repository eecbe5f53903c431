"""NumPy arrays to torch tensors and back, and gradients by autograd.

torch is imported when it is needed. bfloat16 crosses as an int16 view, since NumPy knows it only by ml_dtypes.
"""

import ml_dtypes
import numpy as np


def to_torch(x, device="cpu"):
    """A NumPy array as a tensor. It shares memory, but for negative strides, locked memory and other devices."""
    import torch

    if not x.flags.writeable or any(stride < 0 for stride in x.strides):
        x = x.copy()
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(x).to(device)


def to_numpy(x):
    """A tensor as a NumPy array on the host."""
    import torch

    x = x.detach().cpu()
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def leaves(problem, device):
    """q, k, v (and bias) as tensors, which ask for gradients if the problem does."""
    found = {name: to_torch(x, device) for name in ("q", "k", "v", "bias") if (x := getattr(problem, name)) is not None}
    for x in found.values():
        x.requires_grad_(problem.dout is not None)
    return found


def gradients(out, inputs, dout):
    """The gradients of sum(out·dout) with respect to the named inputs, as fields of a Result."""
    import torch

    grads = torch.autograd.grad(out, list(inputs.values()), dout, materialize_grads=True, allow_unused=True)
    return {f"d{name}": to_numpy(grad) for name, grad in zip(inputs, grads, strict=True)}
