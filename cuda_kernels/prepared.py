"""Calls that were made before: what depends on shapes, strides, dtypes and options alone is done once for them.

A first call checks its input, chooses tiles, compiles, and describes every array to Numba. Most of that takes its time
again in every call like it, more than a short attention lasts. So it is kept: a call of the same kind allocates O and
L, puts five addresses into the list of arguments, and hands it to the CUDA driver without a detour.

For CUDA tensors of torch on the current device, and for kernels with a `launch_of`; everything else goes the usual way.
"""

import ctypes
import struct
import sys
from functools import partial
from threading import Lock

from cuda_kernels.launch import compiled_for
from cuda_kernels.switch import driver

MOST = 1000                                                         # kinds of calls that are kept
ADDRESS = 4                                                         # where in the description of an array it stands
known = {}


def key_of(core, q, k, v, *options):
    """What a call is known by, its arrays' contents and addresses apart (but for what these are multiples of).

    None if it cannot be prepared: other arrays than torch's on the current device, or an option that has no hash.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(core, "launch_of"):
        return None
    for x in (q, k, v):
        if not isinstance(x, torch.Tensor) or not x.is_cuda or x.is_neg():
            return None
    if q.get_device() != torch.cuda.current_device():
        return None
    key = (core, *((type(x), x) for x in options),                  # 1, 1.0 and True are equal, but not all are a scale
           *((x.shape, x.stride(), x.dtype, x.get_device(), x.data_ptr() % 16) for x in (q, k, v)))
    try:
        return Key(key)
    except TypeError:                                               # an array, or a list
        return None


class Key:
    """A tuple that computes its hash once. TypeError if it has none."""

    __slots__ = ("hash", "parts")

    def __init__(self, parts):
        self.parts, self.hash = parts, hash(parts)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        return self.parts == other.parts


def remember(key, core, call, Q, K, V, O, L):
    """Keep what this call, which has just been made with these tensors, has found out."""
    if len(known) >= MOST:
        known.clear()
    known[key] = Prepared(core, call, Q, K, V, O, L)


class Prepared:
    """A kernel that is ready to be launched, and its arguments but for the arrays' addresses."""

    def __init__(self, core, call, *tensors):
        arrays = [call.place.argument(x) for x in tensors]
        kernel, grid, numbers, shared = core.launch_of(call, *arrays[:3])
        self.compiled = compiled_for(kernel, call.threads, [*arrays, *numbers])         # it must outlive the launches
        function = int(self.compiled._codelibrary.get_cufunc().kernel.handle)
        self.launch = partial(driver().cuLaunchKernel, ctypes.c_void_p(function),
                              *map(ctypes.c_uint, (*grid, call.threads, 1, 1, shared)))
        self.torch, self.outs = sys.modules["torch"], [(x.shape, x.dtype) for x in tensors[3:]]
        # As Numba hands an array to a kernel: two pointers of its own, elements, bytes of one, address, shape, strides.
        words, self.places = [], []
        for x in arrays:
            self.places.append(len(words) + ADDRESS)
            words += [0, 0, x.size, x.dtype.itemsize, 0, *x.shape, *x.strides]
        words += [x if isinstance(x, int) else struct.unpack("i", struct.pack("f", x))[0] for x in numbers]
        self.words = (ctypes.c_int64 * len(words))(*words)
        first = ctypes.addressof(self.words)
        self.pointers = (ctypes.c_void_p * len(words))(*range(first, first + 8 * len(words), 8))
        self.lock = Lock()                                          # one list of arguments for all threads

    def __call__(self, q, k, v):
        """O, L of these tensors, on torch's current stream."""
        O, L = (self.torch.empty(shape, dtype=dtype, device=q.device) for shape, dtype in self.outs)
        stream = self.torch.cuda.current_stream(q.device).cuda_stream
        with self.lock:
            for place, x in zip(self.places, (q, k, v, O, L), strict=True):
                self.words[place] = x.data_ptr()
            error = self.launch(ctypes.c_void_p(stream), self.pointers, None)
        if error:
            raise RuntimeError(f"the launch failed with error {error} of the CUDA driver")
        return O, L
