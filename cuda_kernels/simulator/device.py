"""`cuda` as a kernel sees it: Numba's stand-in, with the parts replaced that this package does better."""

import numpy as np
from numba import cuda
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray
from numba.cuda.simulator.kernelapi import FakeCUDAAtomic, FakeCUDAModule

from cuda_kernels.simulator.meetings import Whole
from cuda_kernels.simulator.memory import Guarded, Origin
from cuda_kernels.simulator.spaces import Constant, Local, Shared
from cuda_kernels.simulator.warps import Warps
from cuda_kernels.simulator.watched import Watched

WHOLE = Whole()
POLLS = ("exch", "cas", "compare_and_swap")             # what a loop that waits for another thread is made of


class Device(Warps, FakeCUDAModule):
    """The module `cuda` during one launch."""

    threadIdx = blockIdx = laneid = block = None        # set whenever another thread or block gets its turn

    def __init__(self, grid, block, dynamic_bytes, watch):
        super().__init__(grid, block, 0)
        self.flat = block[1] == block[2] == 1
        self.dynamic_bytes, self.watch = dynamic_bytes, watch
        self._local, self._const, self._atomic = Local(self.guard), Constant(self.guard), Atomic(self)
        self._cg = CooperativeGroups(self)

    def begin(self, block):
        """A block starts, with fresh shared memory."""
        self.block, self.blockIdx = block, block.blockIdx
        self._shared = Shared(self.guard, self.dynamic_bytes)

    def guard(self, data, name, space, alignment=None):
        """The array that the kernel gets to see for this memory. alignment: as asked for, in bytes."""
        if data.dtype.names:                            # records are left as Numba's simulator has them
            return FakeWithinKernelCUDAArray(FakeCUDAArray(data)) if space == "global" else data.view(np.recarray)
        watched = self.watch and space in ("global", "shared")
        return (Watched if watched else Guarded)(data, Origin(name, space, data, self, alignment or data.itemsize))

    def __getattr__(self, name):
        return getattr(cuda, name)                      # anything else that the real module has

    # --- barriers ---

    def syncthreads(self):
        """Wait for all threads of the block; what they wrote before is seen after."""
        self.block.meet("syncthreads", WHOLE)

    def syncthreads_count(self, predicate):
        """The same; in how many threads it is true."""
        return sum(map(bool, self.block.meet("syncthreads_count", WHOLE, predicate).values()))

    def syncthreads_and(self, predicate):
        """The same; 1 if it is true in every thread."""
        return int(all(self.block.meet("syncthreads_and", WHOLE, predicate).values()))

    def syncthreads_or(self, predicate):
        """The same; 1 if it is true in some thread."""
        return int(any(self.block.meet("syncthreads_or", WHOLE, predicate).values()))

    def nanosleep(self, ns):
        """Let the others run."""
        self.block.look_again()

    # --- numbers ---

    def fma(self, a, b, c):
        """a · b + c, of float32 rounded once, as on a GPU (but for about one in 2²⁹ that lie between two floats).

        Of float64 twice, as Numba has it."""
        if not type(a) is type(b) is type(c) is np.float32:
            return a * b + c
        with np.errstate(over="ignore"):
            return np.float32(float(a) * float(b) + float(c))       # the product of two float32 is exact in float64

    # --- bits, also of negative numbers ---

    def popc(self, value):
        return unsigned(value)[0].bit_count()

    def brev(self, value):
        number, width = unsigned(value)
        return int(f"{number:0{width}b}"[::-1], 2)

    def clz(self, value):
        number, width = unsigned(value)
        return width - number.bit_length()

    def ffs(self, value):
        number, _ = unsigned(value)
        return (number & -number).bit_length()


def unsigned(value):
    """(the bits of a number as an integer ≥ 0, how many there are); Python's own integers count as 32 bits wide."""
    width = value.dtype.itemsize * 8 if isinstance(value, np.integer) else 32 if -2**31 <= value < 2**32 else 64
    return int(value) & (1 << width) - 1, width


class CooperativeGroups:
    """`cuda.cg`: the grid group, for a grid of one block."""

    def __init__(self, device):
        self.device = device

    def this_grid(self):
        return self

    def sync(self):
        """Wait for all threads of the grid."""
        if self.device.gridDim.x * self.device.gridDim.y * self.device.gridDim.z > 1:
            raise RuntimeError("the simulator runs blocks one after another: a grid of several cannot meet")
        self.device.block.meet("grid sync", WHOLE)


class Atomic:
    """`cuda.atomic`: nobody comes between the reading and the writing, since only one thread runs at a time."""

    def __init__(self, device):
        self.device = device

    def __getattr__(self, name):
        operation, device = getattr(FakeCUDAAtomic(), name), self.device

        def atomic(array, *args):
            if not isinstance(array, Guarded):          # a record's field
                return operation(array, *args)
            if name == "compare_and_swap":              # takes no index: its array has one cell
                cell = array.atomic_cell((0,) * array.ndim)
            else:
                cell, args = array.atomic_cell(args[0]), ((), *args[1:])
            old = operation(cell, *args)
            if cell[()] != old:
                device.block.idle = 0                   # something has happened
            elif name in POLLS:
                device.block.look_again()
            return old

        setattr(self, name, atomic)
        return atomic
