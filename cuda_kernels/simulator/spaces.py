"""Shared, local and constant memory: the arrays that a kernel makes for itself.

Fresh memory is NaN (integers: a striking number, −1 in dynamic shared memory), so that a cell that is read before it is
written spoils the result for all to see.
"""

import linecache
import os
import re
import sys

import numpy as np

from cuda_kernels.simulator.memory import as_dtype

STATIC_LIMIT = 48 * 1024    # bytes of cuda.shared.array with a shape, all of a block together


class Shared:
    """`cuda.shared` of one block: one array for each place in the source that asks for one."""

    def __init__(self, guard, dynamic_bytes):
        self.guard, self.arrays, self.bytes = guard, {}, 0
        self.dynamic = np.full(dynamic_bytes, 0xFF, np.uint8)           # NaN as any float, −1 as any integer

    def array(self, shape, dtype, alignment=None):
        """Two calls are two arrays, even on one line; one call in a loop, or in many threads, is one array.

        Device functions that one factory makes share the call, and so the array; on a GPU each has its own.
        """
        frame, dtype = sys._getframe(1), as_dtype(dtype)
        if shape in (0, (0,)):
            count = self.dynamic.size // dtype.itemsize
            cells = self.dynamic[:count * dtype.itemsize].view(dtype)
            return self.guard(cells, "dynamic shared memory", "shared", alignment)
        key = id(frame.f_code), frame.f_lasti, shape, dtype
        if key not in self.arrays:
            data = fresh(shape, dtype)
            self.bytes += data.nbytes
            if self.bytes > STATIC_LIMIT:
                raise ValueError(f"the shared arrays of this kernel need {self.bytes} bytes; without dynamic shared "
                                 f"memory {STATIC_LIMIT} is the most")
            self.arrays[key] = self.guard(data, assigned_name(frame, "shared"), "shared", alignment)
        return self.arrays[key]


class Local:
    """`cuda.local`: arrays that belong to one thread."""

    def __init__(self, guard):
        self.guard = guard

    def array(self, shape, dtype, alignment=None):
        return self.guard(fresh(shape, as_dtype(dtype)), assigned_name(sys._getframe(1), "local"), "local")


class Constant:
    """`cuda.const`: an array that kernels only read."""

    def __init__(self, guard):
        self.guard = guard

    def array_like(self, array):
        data = np.asarray(array).view()
        data.flags.writeable = False
        return self.guard(data, "constant array", "const")


def fresh(shape, dtype):
    """Memory that nobody has written yet: NaN, or bytes 0xAB for integers."""
    pattern = {"i": 0xAB, "u": 0xAB, "b": 1}.get(dtype.kind, 0xFF)
    count = int(np.prod(shape))
    return np.full(count * dtype.itemsize, pattern, np.uint8).view(dtype).reshape(shape)


def assigned_name(frame, space):
    """`Qi (shared, fa2.py:48)`: the variable on the line that makes an array, as far as it can be read off."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    target = re.match(r"\s*(\w+) *(?::[^=]*)?= *cuda\.\w+\.array\(", linecache.getline(file, line))
    return f"{target[1] if target else 'array'} ({space}, {os.path.basename(file)}:{line})"
