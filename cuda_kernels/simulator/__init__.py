"""Numba's CUDA simulator, made into one that you can debug in and that finds what is wrong with a kernel.

Numba can run a kernel as plain Python, without a GPU (NUMBA_ENABLE_CUDASIM=1). What that lacks, `install()` adds, for
every kernel written with `from numba import cuda` and `@cuda.jit`:

    stop inside      a block of one thread runs in your own Python thread: pdb, VS Code and JupyterLab stop in it
    warps            shuffles, votes, matches, syncwarp
    copies           cp.async: what is under way is NaN until its thread has waited for it (the models of such
                     instructions are in `cuda_kernels.ptx`)
    memory           fresh shared and local memory is NaN; an index < 0 or past the end is an error with a name in it
    numbers          math.exp of a float32 is a float32, and inf where Python would raise; cuda.fma rounds once
    order            threads take turns in a fixed order, without polling: every run is the same run, and soon over
    ends             an exception or a deadlock ends the run with a message; nothing hangs (but a loop that waits for
                     memory to change without an atomic: end that with Ctrl-C)

`audit()` looks over a kernel's shoulder:

    with simulator.audit() as a:
        kernel[blocks, threads](…)
    print(a)         how many barriers, how much shared memory traffic; and races, uneven barriers, unwritten memory

Read in this order: meetings, blocks, crew (who runs when); memory, spaces, maths, warps, flights, device (what
kernels see); lending, launch; then races, findings, watched, audit.

What a green run does not prove. An audit sees the accesses that this run made, with these inputs: another branch or
another size may hold a race that it has not seen (but threads need not collide in time for a race to be found). The
rounding is NumPy's, not the GPU's. Speed, registers, bank conflicts, the limits of a card, alignment (but in the
instructions of `ptx`), and what the compiler makes of the code do not exist here. Threads run one after another, and
so do blocks: a kernel that waits for another block cannot run. Locks and fences built from atomics are not understood
as order: what they protect is reported as a race.
"""

from contextlib import contextmanager

from numba.cuda.core import config

from cuda_kernels.simulator.audit import Audit
from cuda_kernels.simulator.blocks import Deadlock

__all__ = ["Deadlock", "audit", "install", "running", "stock"]

IGNORED = {"max_registers", "launch_bounds", "lineinfo", "forceinline", "lto", "cache", "inline", "fastmath",
           "opt", "shared_memory_carveout"}       # keywords of cuda.jit that mean nothing here

numbas_own = {}                                         # (where, name) → what stood there before


def install():
    """Put these parts into Numba's simulator; once is enough. RuntimeError if Numba is not in simulator mode."""
    if not config.ENABLE_CUDASIM:
        raise RuntimeError("Numba is not in simulator mode: set NUMBA_ENABLE_CUDASIM=1 before numba is imported first")
    if not numbas_own:
        put(ours())


def ours():
    """{(where, name): what we put there}"""
    from numba import cuda
    from numba.cuda.simulator import api
    from numba.cuda.simulator.kernel import FakeCUDAKernel

    from cuda_kernels.simulator import launch

    def jit(*args, link=None, **options):
        """cuda.jit, for which keywords that only speak to a compiler mean nothing."""
        options = {name: value for name, value in options.items() if name not in IGNORED}
        return numba_jit(*args, link=link or None, **options)

    numba_jit = api.jit
    return {(FakeCUDAKernel, "__call__"): launch.call, (FakeCUDAKernel, "__getitem__"): launch.configure,
            (FakeCUDAKernel, "forall"): launch.forall, (api, "jit"): jit, (cuda, "jit"): jit,
            (cuda.simulator, "jit"): jit}


def put(parts):
    """Set these, and remember what stood there."""
    for (where, name), value in parts.items():
        numbas_own[where, name] = getattr(where, name)
        setattr(where, name, value)


@contextmanager
def stock():
    """Inside, launches run with Numba's own scheduler, for comparison."""
    parts = {key: getattr(*key) for key in numbas_own}
    for (where, name), value in numbas_own.items():
        setattr(where, name, value)
    try:
        yield
    finally:
        for (where, name), value in parts.items():
            setattr(where, name, value)


def audit():
    """A context manager that watches all launches inside: see `audit.Audit`."""
    if not numbas_own:
        raise RuntimeError("simulator.audit() needs simulator.install() first")
    return Audit()


def running():
    """The block that is running just now (`blocks.Block`), for models of instructions that Numba has no name for."""
    from cuda_kernels.simulator import launch
    if launch.running is None:
        raise RuntimeError("no kernel is running")
    return launch.running.cuda.block
