"""A launch: what happens at `kernel[grid, block](…)` in the simulator.

A block of one thread runs in the caller's own thread, straight below `call` in this file: debuggers see it like any
other function. The threads of a larger block are played by a `Crew`.
"""

import copy
import functools
import math
import threading
from contextlib import ExitStack

import numpy as np
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.simulator.args import ArgHint, InOut
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray

from cuda_kernels.simulator.audit import Audit
from cuda_kernels.simulator.blocks import Block, Dim3, Lane
from cuda_kernels.simulator.crew import Crew
from cuda_kernels.simulator.device import Device
from cuda_kernels.simulator.lending import Loan

MAX_THREADS = 1024
MAX_SHARED = 227 * 1024                                 # bytes per block: the most that any card so far has
one_at_a_time = threading.Lock()
running = None                                          # the launch that is on


class Launch:
    """One launch of one kernel; a context manager that puts everything back."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.grid, self.block = normalize_kernel_dimensions(kernel.grid_dim, kernel.block_dim)
        threads = math.prod(self.block)
        if min(self.grid + self.block) < 1:
            raise ValueError(f"grid {self.grid}, block {self.block}: every size must be at least 1")
        if threads > MAX_THREADS:
            raise ValueError(f"block {self.block} has {threads} threads; a GPU takes {MAX_THREADS} at most")
        if kernel.dynshared_size > MAX_SHARED:
            raise ValueError(f"{kernel.dynshared_size} bytes of dynamic shared memory; no GPU has over {MAX_SHARED}")
        self.lanes = [Lane(number, index) for number, index in enumerate(points(self.block))]
        self.watch = Audit.active.launch(kernel.fn, self.lanes) if Audit.active else None
        self.cuda = Device(self.grid, self.block, kernel.dynshared_size, self.watch)
        self.players, self.write_back = set(), []       # Python threads that play; what to do when all is done

    def __enter__(self):
        with ExitStack() as stack:                      # an error from here on undoes what was done
            stack.enter_context(one_at_a_time)
            stack.callback(set_running, None)
            self.loan = stack.enter_context(Loan(self.cuda))
            if self.kernel._debug:
                stack.enter_context(np.errstate(divide="raise"))
            set_running(self)
            self.loan.to(self.kernel.fn)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self.stack.__exit__(*error)

    def arguments(self, values):
        """What the kernel gets for the caller's arguments, under the names that it gives them."""
        names = self.kernel.fn.__code__.co_varnames
        return [self.argument(names[i] if i < len(names) else "?", value) for i, value in enumerate(values)]

    def argument(self, name, value):
        """The same for one of them: arrays are guarded, NumPy's are copied to the device and back."""
        for extension in self.kernel.extensions:
            _, value = extension.prepare_args(None, value, stream=0, retr=self.write_back)
        if isinstance(value, tuple):
            values = [self.argument(f"{name}[{i}]", item) for i, item in enumerate(value)]
            return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
        if isinstance(value, np.ndarray) and value.ndim > 0:
            value = InOut(value)
        if isinstance(value, ArgHint):
            value = value.to_device(self.write_back)
        if isinstance(value, np.void):
            return FakeWithinKernelCUDAArray(FakeCUDAArray(value))
        if isinstance(value, FakeCUDAArray):
            return self.cuda.guard(value._ary, name, "global")
        return value

    def blocks(self):
        """The blocks of the grid, one after another, each with fresh shared memory."""
        for blockIdx in points(self.grid):
            watch = self.watch.block(blockIdx) if self.watch else None
            block = Block(self.lanes, blockIdx, self.cuda, watch)
            self.cuda.begin(block)
            yield block


def points(shape):
    """All indices of a grid or a block, x fastest."""
    return [Dim3(x, y, z) for z in range(shape[2]) for y in range(shape[1]) for x in range(shape[0])]


def set_running(launch):
    """Note which launch is on."""
    global running
    running = launch


def inside():
    """Is this Python thread playing a CUDA thread just now?"""
    return running is not None and threading.get_ident() in running.players


# --- what takes the place of FakeCUDAKernel's methods ---

def call(kernel, *args):
    """`kernel(…)`: a launch from the host, a plain call from within a kernel."""
    if kernel._device or inside():
        if running is not None:
            running.loan.to(kernel.fn)
        return kernel.fn(*args)
    with Launch(kernel) as launch:
        args = launch.arguments(args)
        if len(launch.lanes) == 1:
            launch.players = {threading.get_ident()}
            for block in launch.blocks():
                with block.alone():
                    kernel.fn(*args)
        else:
            with Crew(launch.lanes, functools.partial(kernel.fn, *args)) as crew:
                launch.players = {thread.ident for thread in crew.threads}
                for block in launch.blocks():
                    crew.run(block)
    for write in launch.write_back:
        write()


def configure(kernel, configuration):
    """`kernel[grid, block, stream, shared bytes]`: a copy with this configuration, as on the device."""
    if inside():
        raise RuntimeError(f"{kernel.__name__} is launched from within a kernel: Numba kernels cannot launch kernels; "
                           "call it without [ ], as a device function")
    configured = copy.copy(kernel)
    configured.grid_dim, configured.block_dim = normalize_kernel_dimensions(*configuration[:2])
    configured.dynshared_size = configuration[3] if len(configuration) == 4 else 0
    return configured


def forall(kernel, ntasks, tpb=0, stream=0, sharedmem=0):
    """`kernel.forall(n)`: a block of one thread for each task; nothing at all for none."""
    if ntasks < 0:
        raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
    return configure(kernel, (ntasks, 1, stream, sharedmem)) if ntasks else lambda *args: None
