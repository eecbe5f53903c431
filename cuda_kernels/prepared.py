"""Calls that were made before: what depends on shapes, strides, dtypes and options alone is done once for them.

A first call checks its input, chooses tiles, compiles, and describes every array to Numba. Most of that takes its time
again in every call like it, more than a short attention lasts. So it is kept: a call of the same kind allocates as the
first one did, puts addresses into the lists of arguments, and hands these to the CUDA driver without a detour.

For CUDA tensors of torch on the current device, and for kernels on tensor cores; everything else goes the usual way.
"""

import ctypes
import struct
import sys
from functools import partial
from threading import Lock

import numpy as np

from cuda_kernels.launch import compiled_for
from cuda_kernels.switch import driver

MOST = 1000                                                         # kinds of calls that are kept
ADDRESS = 4                                                         # where in the description of an array it stands
NO_CONTEXT = 201                                                    # the driver's error where a thread has none yet
known = {}
constants = []                                                      # of calls ever kept, one number each: a CUDA graph
                                                                    # may read them when the call is forgotten


def key_of(core, tensors, *options):
    """What a call is known by, its arrays' contents and addresses apart (but for what these are multiples of).

    None if it cannot be prepared: other arrays than torch's dense ones on the current device, or an option that has no
    hash.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(core, "plan"):
        return None
    key = [core, *options, *map(type, options)]                     # 1, 1.0 and True are equal, but not all are a scale
    try:
        for x in tensors:
            if not isinstance(x, torch.Tensor) or not x.is_cuda or x.is_neg():
                return None
            key += x.shape, x.stride(), x.dtype, x.get_device(), x.data_ptr() % 16
        if tensors[0].get_device() != torch.cuda.current_device():
            return None
        return Key(tuple(key))
    except (TypeError, RuntimeError):                               # an option is an array; a sparse tensor: no strides
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


def remember(key, call, given, loaded, results):
    """Keep what this call, which has just been made, has found out.

    given: its tensors, in the order of the key; loaded: what kernels got of them; results: tensors it has made.
    """
    if any(x.data_ptr() != X.data_ptr() for x, X in zip(given, loaded, strict=True)):
        return                                                      # one was converted first
    if len(known) >= MOST:
        known.clear()
    known[key] = Prepared(call, loaded, results)


class Prepared:
    """The launches of a call, ready to be made again with other tensors."""

    def __init__(self, call, inputs, results):
        tensors = [*inputs, *call.made]
        self.torch, self.made = sys.modules["torch"], [(x.shape, x.stride(), x.dtype) for x in call.made]
        self.results = [index_of(x, tensors) for x in results]
        self.launches = [Launch(call, tensors, *launch) for launch in call.launches]
        self.lock = Lock()                                          # one list of arguments for all threads

    def __call__(self, *inputs):
        """The results for these tensors, on torch's current stream."""
        device, empty = inputs[0].device, self.torch.empty_strided
        tensors = [*inputs, *[empty(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in self.made]]
        addresses = [x.data_ptr() for x in tensors]
        stream = ctypes.c_void_p(self.torch.cuda.current_stream(device).cuda_stream)
        with self.lock:
            for launch in self.launches:
                launch(addresses, stream)
        return [tensors[index] for index in self.results]


class Launch:
    """One launch: a compiled kernel, its grid, and its arguments but for the addresses of these tensors."""

    def __init__(self, call, tensors, kernel, grid, arguments, shared):
        arrays = [call.place.argument(x) if hasattr(x, "data_ptr") else x for x in arguments]
        self.compiled = compiled_for(kernel, call.threads, arrays)
        function = int(self.compiled._codelibrary.get_cufunc().kernel.handle)
        self.context = ctypes.c_void_p()                            # of the device, the same in all threads
        driver().cuCtxGetCurrent(ctypes.byref(self.context))
        self.launch = partial(driver().cuLaunchKernel, ctypes.c_void_p(function),
                              *map(ctypes.c_uint, (*in_three(grid), *in_three([call.threads]), shared)))
        # As Numba hands an array to a kernel: two pointers of its own, elements, bytes of one, address, shape, strides.
        words, self.places = [], []
        for x, array in zip(arguments, arrays, strict=True):
            if hasattr(x, "data_ptr"):
                index = index_of(x, tensors)
                if index is None:                                   # a constant that the call has made: it stays
                    constants.append(x)
                else:
                    self.places.append((len(words) + ADDRESS, index))
                words += [0, 0, array.size, array.dtype.itemsize, x.data_ptr(), *array.shape, *array.strides]
            else:
                words.append(int(x) if isinstance(x, (int, np.integer)) else struct.unpack("i", struct.pack("f", x))[0])
        self.words = (ctypes.c_int64 * len(words))(*words)
        first = ctypes.addressof(self.words)
        self.pointers = (ctypes.c_void_p * len(words))(*range(first, first + 8 * len(words), 8))

    def __call__(self, addresses, stream):
        for place, index in self.places:
            self.words[place] = addresses[index]
        error = self.launch(stream, self.pointers, None)
        if error == NO_CONTEXT:                                     # nobody has used the GPU in this thread before
            driver().cuCtxSetCurrent(self.context)
            error = self.launch(stream, self.pointers, None)
        if error:
            raise RuntimeError(f"the launch failed with error {error} of the CUDA driver")


def in_three(grid):
    """Blocks along x, y and z, or threads: what is not said is 1."""
    return (*grid, 1, 1)[:3]


def index_of(x, tensors):
    """Which of the tensors x is; None if it is none of them."""
    return next((index for index, other in enumerate(tensors) if other is x), None)
