"""A kernel under a debugger: the problem of `fa_ref/debug.py`, in the simulator, played by one thread, or one warp.

    python -m cuda_kernels debug                    pdb, stopped at step (4) of fa2.py
    python -m cuda_kernels debug fa1                the same in fa1.py (standard has no tiles: it stops when S is there)
    python -m cuda_kernels debug fa2_mma            on tensor cores: a warp plays, and pdb follows its first lane
    python -m cuda_kernels debug fa2 --backward     the backward pass, at step (6) of fa2_backward.py; also of fa2_mma
    python -m cuda_kernels debug --run              no debugger: for a breakpoint set in an editor

pdb stops at barriers. One thread has nobody to wait for there, but that is where a step is done for the whole tile:
each c goes on to the next barrier. With --threads 8 every thread stops there, one after another.

fa2_mma takes float16 and tiles of 16 × 16, backward of 32 × 32. So there d is 8, of which 6 channels are 0. Every key
comes three times, backward every query nine times: two tiles, copied 16 bytes at a time. The answers stay as they are,
but for L, dK and dV.
"""

import argparse
import inspect
import pdb
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import cuda_kernels
import fa_ref
from cuda_kernels import fa1, fa2, fa2_backward, fa2_mma, fa2_mma_backward, launch, standard
from fa_ref.debug import BC, BR, tiny


class Stop(NamedTuple):
    """Where pdb stops: what makes the kernel, the step before which it stops first, and what to look at there."""

    maker: Callable
    step: int
    look_at: str


FORWARD = {
    "fa2": Stop(fa2.make_forward, 4, "p Qi   p Kj   p m   then c (on to the next barrier) and p Sij"),
    "fa1": Stop(fa1.make_forward, 4, "p Qi   p Kj   p mi   then c (on to the next barrier) and p Sij"),
    "fa2_mma": Stop(fa2_mma.make_forward, 4,
                    "p tile[Kj:Kj + 16]   p m   then c (on to the next barrier) and p S   p P"),
    "standard": Stop(standard.make_forward, 4, "p row   p S   then c (on to the next barrier) and p P"),
}
BACKWARD = {
    "fa2": Stop(fa2_backward.make_backward, 6, "p Qi   p Kj   p Li, Di   then c (on to the next barrier) and p Pij"),
    "fa2_mma": Stop(fa2_mma_backward.make_backward, 6,
                    "p tile[0:16]   p dKj   then c (on to the next barrier) and p S   p dP"),
}


def barriers(kernel, step):
    """The numbers, in its file, of a kernel's barriers, of block or warp: the last before this step, all after it."""
    lines, start = inspect.getsourcelines(kernel)
    begins = next(n for n, line in enumerate(lines) if f"# ({step}) " in line)
    found = [n for n, line in enumerate(lines) if "cuda.sync" in line]
    return [start + n for n in found if n >= max(before for before in found if before < begins)]


def for_tensor_cores(x):
    """The same numbers in float16, and 0 in 6 channels more: rows of 16 bytes, which are copied at once."""
    return np.pad(x, [(0, 0), (0, 0), (0, 0), (0, 6)]).astype(np.float16)


def asked(argv):
    """(options, threads, on tensor cores?). What cannot be ends the program, with 2 and the reason."""
    parser = argparse.ArgumentParser(prog="python -m cuda_kernels debug", description=__doc__.splitlines()[0])
    parser.add_argument("kernel", nargs="?", default="fa2", choices=FORWARD)
    parser.add_argument("--backward", action="store_true", help=f"the backward pass, of {' or '.join(BACKWARD)}")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the block (1; of fa2_mma 32)")
    parser.add_argument("--run", action="store_true", help="run without pdb, for breakpoints set in an editor")
    options = parser.parse_args(argv)
    if not (cuda_kernels.SIMULATED or options.run):
        parser.error("kernels run on the GPU here, where pdb cannot stop: set FA_REF_CUDA=sim, or give --run")
    if options.backward and options.kernel not in BACKWARD:
        parser.error(f"--backward is offered for {' and '.join(BACKWARD)}, got {options.kernel}")
    core = cuda_kernels.KERNELS[options.kernel]
    on_tensor_cores = options.kernel not in cuda_kernels.PLAIN
    threads = options.threads if options.threads is not None else launch.WARP if on_tensor_cores else 1
    try:
        launch.check_threads(threads, launch.limits(), getattr(core, "WARPS", None))
    except (TypeError, ValueError) as problem:
        parser.error(f"--threads: {problem}")
    return options, threads, on_tensor_cores


def problem(backward, on_tensor_cores):
    """(Q, K, V, dO of a batch of one head, options of the call)."""
    Q, K, V, rule = tiny()
    q, k, v, dout = (x[None, None] for x in (Q, K, V, Q[::-1]))
    if not on_tensor_cores:
        return q, k, v, dout, {"scale": rule.scale, "block_q": BR, "block_k": BC}
    q, k, v, dout = map(for_tensor_cores, (q, k, v, dout))
    if backward:
        q, dout = np.tile(q, (9, 1)), np.tile(dout, (9, 1))
    else:
        k, v = np.tile(k, (3, 1)), np.tile(v, (3, 1))
    return q, k, v, dout, {"scale": rule.scale, "block_k": None if backward else 16}


def main(argv=None):
    """`python -m cuda_kernels debug [standard|fa1|fa2|fa2_mma] [--backward] [--threads N] [--run]`."""
    options, threads, on_tensor_cores = asked(argv)
    q, k, v, dout, how = problem(options.backward, on_tensor_cores)
    ours = {"kernel": options.kernel, "threads": threads} | how
    call, given = cuda_kernels.forward, (q, k, v)
    if options.backward:
        call, given = cuda_kernels.backward, (dout, q, k, v, *fa_ref.forward(q, k, v, scale=how["scale"]))
    if options.run:
        answer = call(*given, **ours)
    else:
        stop = (BACKWARD if options.backward else FORWARD)[options.kernel]
        print(f"Look at: {stop.look_at}   —   n: next line   q: leave")
        if on_tensor_cores:
            print(f"Only thread 0 of {threads} stops: p lane, p S, p {'dP' if options.backward else 'P'} are its own.")
        elif threads > 1:
            print("Each thread stops at a barrier in its turn: p t says which one.")
        debugger = pdb.Pdb(nosigint=True, readrc=False)
        file = inspect.getsourcefile(inspect.unwrap(stop.maker))
        for line in barriers(stop.maker, stop.step):
            debugger.set_break(file, line, cond="t == 0" if on_tensor_cores else None)
        debugger.rcLines.append("continue")                         # on from the first line to the first barrier
        answer = debugger.runcall(call, *given, **ours)
        if answer is None:                                          # left with q
            return 0
    Q, K, V, rule = tiny()
    O, L = fa_ref.standard.forward_head(Q, K, V, rule)
    if options.backward:
        dQ, *_ = fa_ref.standard.backward_head(Q[::-1], Q, K, V, O, L, rule)
        print("dQ =", answer.dq[0, 0, :4, :2], "and of plain softmax(Q Kᵀ) V =", dQ, sep="\n")
    else:
        print("O =", answer.out[0, 0, :, :2], "and plain softmax(Q Kᵀ) V =", O, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
