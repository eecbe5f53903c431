"""A kernel under a debugger: the problem of `fa_ref/debug.py`, in the simulator, played by one thread.

    python -m cuda_kernels debug            pdb, stopped at step (4) of fa2.py
    python -m cuda_kernels debug fa1        the same in fa1.py (standard has no tiles: it stops when S is there)
    python -m cuda_kernels debug --run      no debugger: for a breakpoint set in an editor

pdb stops at barriers. One thread has nobody to wait for there, but that is where a step is done for the whole tile:
each c goes on to the next barrier. With --threads 8 every thread stops there, one after another.
"""

import argparse
import inspect
import pdb

import cuda_kernels
from fa_ref import standard
from fa_ref.debug import BC, BR, tiny

LOOK_AT = {
    "fa2": "p Qi   p Kj   p m   then c (on to the next barrier) and p Sij",
    "fa1": "p Qi   p Kj   p mi   then c (on to the next barrier) and p Sij",
    "standard": "p row   p S   then c (on to the next barrier) and p P",
}


def barriers(kernel, step):
    """The numbers, in its file, of a kernel's barriers: the last one before this step, and all after it."""
    lines, start = inspect.getsourcelines(kernel)
    begins = next(n for n, line in enumerate(lines) if f"# ({step}) " in line)
    found = [n for n, line in enumerate(lines) if "cuda.syncthreads()" in line]
    return [start + n for n in found if n >= max(before for before in found if before < begins)]


def main(argv=None):
    """`python -m cuda_kernels debug [standard|fa1|fa2] [--threads N] [--run]`, or with a dot before debug."""
    parser = argparse.ArgumentParser(prog="python -m cuda_kernels debug", description=__doc__.splitlines()[0])
    parser.add_argument("kernel", nargs="?", default="fa2", choices=("standard", "fa1", "fa2"))
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of the block (1)")
    parser.add_argument("--run", action="store_true", help="run without pdb, for breakpoints set in an editor")
    options = parser.parse_args(argv)
    if not (cuda_kernels.SIMULATED or options.run):
        parser.error("kernels run on the GPU here, where pdb cannot stop: set FA_REF_CUDA=sim, or give --run")
    core = cuda_kernels.KERNELS[options.kernel]

    Q, K, V, rule = tiny()
    q, k, v = (x[None, None] for x in (Q, K, V))                    # a batch of one head
    how = {"kernel": options.kernel, "threads": options.threads, "scale": rule.scale, "block_q": BR, "block_k": BC}
    if options.run:
        out, _ = cuda_kernels.forward(q, k, v, **how)
    else:
        print(f"Look at: {LOOK_AT[options.kernel]}   —   n: next line   q: leave")
        if options.threads > 1:
            print("Each thread stops at a barrier in its turn: p t says which one.")
        debugger = pdb.Pdb(nosigint=True, readrc=False)
        for line in barriers(core.make_forward, 4):
            debugger.set_break(core.__file__, line)
        debugger.rcLines.append("continue")                         # on from the first line to the first barrier
        answer = debugger.runcall(cuda_kernels.forward, q, k, v, **how)
        if answer is None:                                          # left with q
            return 0
        out, _ = answer
    print("O =", out[0, 0], "and plain softmax(Q Kᵀ) V =", standard.forward_head(Q, K, V, rule)[0], sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
