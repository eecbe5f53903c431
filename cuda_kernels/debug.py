"""A kernel under a debugger: the problem of `fa_ref/debug.py`, in the simulator, played by one thread, or one warp.

    python -m cuda_kernels debug            pdb, stopped at step (4) of fa2.py
    python -m cuda_kernels debug fa1        the same in fa1.py (standard has no tiles: it stops when S is there)
    python -m cuda_kernels debug fa2_mma    on tensor cores: a warp plays, and pdb follows its first lane
    python -m cuda_kernels debug --run      no debugger: for a breakpoint set in an editor

pdb stops at barriers. One thread has nobody to wait for there, but that is where a step is done for the whole tile:
each c goes on to the next barrier. With --threads 8 every thread stops there, one after another.

fa2_mma takes float16 and tiles of 16 × 16. So there d is 8, of which 6 channels are 0, and every key comes three times:
two tiles of keys, copied 16 bytes at a time. Neither changes the answer.
"""

import argparse
import inspect
import pdb

import numpy as np

import cuda_kernels
from cuda_kernels.launch import WARP
from fa_ref import standard
from fa_ref.debug import BC, BR, tiny

LOOK_AT = {
    "fa2": "p Qi   p Kj   p m   then c (on to the next barrier) and p Sij",
    "fa1": "p Qi   p Kj   p mi   then c (on to the next barrier) and p Sij",
    "fa2_mma": "p tile[Kj:Kj + 16]   p m   then c (on to the next barrier) and p S   p P",
    "standard": "p row   p S   then c (on to the next barrier) and p P",
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


def main(argv=None):
    """`python -m cuda_kernels debug [standard|fa1|fa2|fa2_mma] [--threads N] [--run]`, or with a dot before debug."""
    parser = argparse.ArgumentParser(prog="python -m cuda_kernels debug", description=__doc__.splitlines()[0])
    parser.add_argument("kernel", nargs="?", default="fa2", choices=LOOK_AT)
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the block (1; of fa2_mma 32)")
    parser.add_argument("--run", action="store_true", help="run without pdb, for breakpoints set in an editor")
    options = parser.parse_args(argv)
    if not (cuda_kernels.SIMULATED or options.run):
        parser.error("kernels run on the GPU here, where pdb cannot stop: set FA_REF_CUDA=sim, or give --run")
    core, on_tensor_cores = cuda_kernels.KERNELS[options.kernel], options.kernel == "fa2_mma"
    threads = options.threads if options.threads is not None else WARP if on_tensor_cores else 1

    Q, K, V, rule = tiny()
    q, k, v = (x[None, None] for x in (Q, K, V))                    # a batch of one head
    how = {"kernel": options.kernel, "threads": threads, "scale": rule.scale, "block_q": BR, "block_k": BC}
    if on_tensor_cores:
        q, k, v = for_tensor_cores(q), np.tile(for_tensor_cores(k), (3, 1)), np.tile(for_tensor_cores(v), (3, 1))
        how |= {"block_q": None, "block_k": 16}
    if options.run:
        out, _ = cuda_kernels.forward(q, k, v, **how)
    else:
        print(f"Look at: {LOOK_AT[options.kernel]}   —   n: next line   q: leave")
        if on_tensor_cores:
            print(f"Only thread 0 of {threads} stops: p lane, p S, p P are its own.")
        elif threads > 1:
            print("Each thread stops at a barrier in its turn: p t says which one.")
        debugger = pdb.Pdb(nosigint=True, readrc=False)
        for line in barriers(core.make_forward, 4):
            debugger.set_break(core.__file__, line, cond="t == 0" if on_tensor_cores else None)
        debugger.rcLines.append("continue")                         # on from the first line to the first barrier
        answer = debugger.runcall(cuda_kernels.forward, q, k, v, **how)
        if answer is None:                                          # left with q
            return 0
        out, _ = answer
    print("O =", out[0, 0, :, :2], "and plain softmax(Q Kᵀ) V =", standard.forward_head(Q, K, V, rule)[0], sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
