"""What is asked of an array: is it on the device, how does it lie in memory, as what numbers does a kernel see it.

Kernels take any strides, but those on tensor cores copy whole rows, and do it 16 bytes at a time where they can.
bfloat16 reaches kernels as uint16 words.
"""

import sys

import numpy as np
from ml_dtypes import bfloat16
from numba import cuda

from cuda_kernels.switch import SIMULATED
from fa_ref import torch_bridge


def on_device(name, x):
    """Is x in the memory of a GPU? TypeError if x is there and kernels are simulated, or on a device not offered."""
    if torch_bridge.is_torch(x):
        if x.device.type not in ("cpu", "cuda"):
            raise TypeError(f"{name} must be on cpu or cuda, got {describe(name, x)}")
        found = x.device.type == "cuda"
    else:
        found = hasattr(x, "__cuda_array_interface__")
    if found and SIMULATED:
        raise TypeError(f"{name} is {describe(name, x)}, but kernels run in the simulator, which reads the host's "
                        f"memory: start with FA_REF_CUDA=gpu, or copy {name} to the host")
    return found


def describe(name, x):
    """The kind of x in words; TypeError if it is none that is offered, or a tensor that is not dense."""
    if torch_bridge.is_torch(x):
        torch_bridge.check_dense(name, x)
        return f"a torch tensor on {x.device}"
    if hasattr(x, "__cuda_array_interface__"):
        return "an array on the device"
    torch_bridge.to_numpy(name, x)
    return "a NumPy array"


def check_rows(kernel, **arrays):
    """ValueError for arrays on the device whose last axis does not lie side by side: a kernel that copies whole rows
    would have to pick numbers one by one. (Arrays of the host are copied anyway.) None stands for no array; one without
    elements may have any strides, and 0 is what NumPy gives it."""
    for name, x in arrays.items():
        if x is None or not on_device(name, x) or 0 in x.shape:
            continue
        if torch_bridge.is_torch(x):
            length, step = x.shape[-1], x.stride(-1)
        else:
            x = cuda.as_cuda_array(x)
            length, step = x.shape[-1], x.strides[-1] // x.dtype.itemsize
        if length > 1 and step != 1:
            raise ValueError(f"{kernel} takes a {name} whose last axis is contiguous, but from one of its {length} "
                             f"channels to the next it is {step} elements: {name}.contiguous() is a copy that will do")


def token_by_token(x):
    """Do heads of a tensor (B, H, N, d) lie inside tokens, as a linear layer leaves them, not tokens inside heads?"""
    return x.stride(1) < x.stride(2)


def empty_as(x, shape, **how):
    """An empty tensor (B, H, N, d) on the device of x, in memory token by token if x is; how: as for `new_empty`."""
    B, H, N, d = shape
    return x.new_empty((B, N, H, d), **how).transpose(1, 2) if token_by_token(x) else x.new_empty(shape, **how)


def in_chunks(x, nbytes):
    """Does every row (the last axis) of a kernel's argument lie side by side, from a multiple of nbytes on?"""
    start = x._ary.__array_interface__["data"][0] if SIMULATED else x.__cuda_array_interface__["data"][0]
    *others, last = x.strides
    return start % nbytes == 0 and last == x.dtype.itemsize and all(stride % nbytes == 0 for stride in others)


def words(x):
    """bfloat16 as uint16, everything else as it is."""
    return x.view(np.uint16) if x.dtype == bfloat16 else x


def word_dtype(dtype):
    """The dtype in which a kernel sees this one."""
    return np.dtype("uint16") if dtype == bfloat16 else np.dtype(dtype)


def may_be_read(x, waits):
    """May the numbers of x be looked at? On the host always, on the device if the call waits anyway, and never while a
    CUDA graph is recorded: nobody may wait then."""
    if not on_device("array", x):
        return True
    return waits and not sys.modules["torch"].cuda.is_current_stream_capturing()
