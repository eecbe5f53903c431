"""Where the arrays of a call live, and how they reach a kernel and come back: one small class per kind.

    Simulated   NumPy arrays and torch tensors on the CPU, in the simulator: kernels work on their memory
    Device      anything but torch's with __cuda_array_interface__: no copy, on the default stream; results are Numba's
                device arrays
    Copied      NumPy arrays and torch tensors on the CPU, with a GPU: copied to the device (contiguous) and back
    Torch       CUDA tensors: no copy, on torch's current stream; results are tensors that torch allocates

A place has its own arrays (NumPy's, Numba's or torch's). `known` is what the checks of `fa_ref` may look at: for device
memory a stand-in of the same shape and dtype that needs no memory, so that nothing is copied to the host.
"""

import sys
from contextlib import nullcontext

import ml_dtypes
import numpy as np
from ml_dtypes import bfloat16
from numba import cuda

from cuda_kernels.arrays import describe, empty_as, on_device, word_dtype, words
from cuda_kernels.switch import SIMULATED
from fa_ref import torch_bridge

if SIMULATED:
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
else:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray


def place_of(optional=None, **arrays):
    """The place of arrays that must all live together (the `optional` one may be None). TypeError if they do not."""
    arrays = {name: x for name, x in arrays.items() if not (name == optional and x is None)}
    torch_bridge.check_one_kind({name: describe(name, x) for name, x in arrays.items()})
    name, first = next(iter(arrays.items()))
    if not on_device(name, first):
        return Simulated(first) if SIMULATED else Copied(first)
    return Torch(first.device) if torch_bridge.is_torch(first) else Device()


class Simulated:
    """Host memory, in the simulator."""

    stream = 0

    def __init__(self, like):
        self.like = like

    def here(self):
        """The context in which device calls must be made."""
        return nullcontext()

    def known(self, name, x):
        """What the checks may look at."""
        if on_device(name, x):
            raise TypeError(f"{name} must be on the host like the other arrays, got {describe(name, x)}")
        return torch_bridge.to_numpy(name, x)

    def load(self, x, dtype=None):
        """x as an array of this place, in `dtype` if that is given."""
        x = torch_bridge.to_numpy("array", x)
        return x if dtype is None else x.astype(dtype)

    def empty(self, shape, dtype, like=None):
        """Memory for results: NaN until a kernel writes it, not what an earlier call may have left there. like: an
        array of this shape; on a torch device the result lies token by token if that does."""
        return np.full(shape, np.nan, dtype)

    def full(self, shape, value, dtype):
        return np.full(shape, value, dtype)

    def spread(self, x, shape):
        """x broadcast to the shape, without a copy."""
        return np.broadcast_to(x, shape)

    def argument(self, x):
        """What is handed to a kernel: FakeCUDAArray takes NumPy arrays of any strides without a copy."""
        return FakeCUDAArray(words(x))

    def result(self, x, dtype):
        """What the caller gets."""
        return torch_bridge.in_kind(x.astype(dtype, copy=False), self.like)


class Device:
    """Memory of the device, known by __cuda_array_interface__."""

    stream = 0

    def here(self):
        return nullcontext()

    def known(self, name, x):
        if not on_device(name, x):
            return torch_bridge.to_numpy(name, x)
        interface = x.__cuda_array_interface__
        return stand_in(interface["shape"], np.dtype(interface["typestr"]))

    def load(self, x, dtype=None):
        if not on_device("array", x):
            return upload(np.asarray(torch_bridge.to_numpy("array", x), dtype))
        x = cuda.as_cuda_array(x)
        if dtype is not None and x.dtype != dtype:
            raise TypeError(f"lse, dlse and sink must be {dtype} in device memory that is not torch's, got {x.dtype}")
        return x

    def empty(self, shape, dtype, like=None):
        return cuda.device_array(shape, word_dtype(dtype))

    def full(self, shape, value, dtype):
        return upload(np.full(shape, value, dtype))

    def spread(self, x, shape):
        return spread(x, shape)

    def argument(self, x):
        return x

    def result(self, x, dtype):
        return x


class Copied(Device):
    """Host memory, copied to the device and back."""

    def __init__(self, like):
        self.host = Simulated(like)

    def known(self, name, x):
        return self.host.known(name, x)

    def load(self, x, dtype=None):
        return upload(self.host.load(x, dtype))

    def result(self, x, dtype):
        x = x.copy_to_host()
        return self.host.result(x.view(bfloat16) if x.dtype == np.uint16 else x, dtype)


class Torch:
    """CUDA tensors of one device, and the stream that torch works on there."""

    def __init__(self, device):
        self.torch, self.device = sys.modules["torch"], device

    @property
    def stream(self):
        pointer = self.torch.cuda.current_stream(self.device).cuda_stream
        return cuda.external_stream(pointer) if pointer else 0

    def here(self):
        return cuda.gpus[self.device.index]

    def known(self, name, x):
        if not on_device(name, x):
            return torch_bridge.to_numpy(name, x)
        if not torch_bridge.is_torch(x) or x.device != self.device:
            raise TypeError(f"{name} must be on {self.device} like the other tensors, got {describe(name, x)}")
        return stand_in(tuple(x.shape), numpy_dtype(x.dtype))

    def load(self, x, dtype=None):
        if torch_bridge.is_torch(x):
            x = x.detach().resolve_neg()
        else:                                                       # NumPy converts and copies: torch knows no bfloat16
            x = self.torch.from_numpy(np.array(x, dtype, order="C"))        # of its, and warns of read-only arrays
        return x.to(self.device, None if dtype is None else self.torch_dtype(dtype))

    def empty(self, shape, dtype, like=None):
        if like is not None:
            return empty_as(like, shape, dtype=self.torch_dtype(dtype))
        return self.torch.empty(shape, dtype=self.torch_dtype(dtype), device=self.device)

    def full(self, shape, value, dtype):
        return self.torch.full(shape, value, dtype=self.torch_dtype(dtype), device=self.device)

    def spread(self, x, shape):
        return x.expand(shape)

    def argument(self, x):
        return cuda.as_cuda_array(x.view(self.torch.uint16) if x.dtype == self.torch.bfloat16 else x)

    def result(self, x, dtype):
        return x.to(self.torch_dtype(dtype))

    def torch_dtype(self, dtype):
        """torch's dtype of the same name."""
        return getattr(self.torch, np.dtype(dtype).name)


def stand_in(shape, dtype):
    """Something with this shape and dtype to look at: zeros that share one element."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def numpy_dtype(dtype):
    """NumPy's dtype for one of torch's: the same name, in NumPy or in ml_dtypes."""
    name = str(dtype).removeprefix("torch.")
    found = getattr(np, name, None) or getattr(ml_dtypes, name, None)
    if found is None:
        raise TypeError(f"tensors of {dtype} are not offered")
    return np.dtype(found)


def upload(x):
    """A NumPy array as a contiguous device array."""
    x = np.ascontiguousarray(words(x))
    return cuda.to_device(x) if x.size else cuda.device_array(x.shape, x.dtype)


def spread(x, shape):
    """A device array broadcast to the shape: the same memory with strides of 0."""
    strides = (0,) * (len(shape) - x.ndim) + tuple(
        0 if n == 1 else stride for n, stride in zip(x.shape, x.strides, strict=True))
    return DeviceNDArray(shape, strides, x.dtype, gpu_data=x.gpu_data)
