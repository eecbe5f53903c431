"""The kernels' part of the tour: do they compute the same numbers, and what happens on chip?

    python -m cuda_kernels tour

1. every kernel, forward and backward, on real queries, keys and values, each error beside its bound
2. in the simulator: what the barriers are for, and FlashAttention-1's way of sharing work between warps beside 2's
3. where to put the first breakpoint

Returns 1 if anything disagrees, else 0.
"""

import sys

import numpy as np
from rich.progress import Progress

import cuda_kernels
from cuda_kernels import WITH_BACKWARD, counts
from fa_ref import data
from fa_ref.testing import oracle, tolerance
from fa_ref.testing.problem import Problem, Result
from fa_ref.tour import BACKWARD, FORWARD, console, tabled

N = 24                      # tokens: a simulated kernel does a few hundred thousand multiply-adds a second
EVERY_FEW = {"standard": 8, "fa1": 8, "fa2": 8, "fa1_warps": 64, "fa2_warps": 64}      # threads of a block


def main(argv=()):
    """Run it all; see the module."""
    if argv:
        console.print("usage: python -m cuda_kernels tour   (no options)")
        return 2
    ok = agreement()
    if cuda_kernels.SIMULATED:
        on_chip()
        console.print("Look for yourself: [bold]python -m cuda_kernels debug[/] stops pdb inside the kernel "
                      "(docs/debugging_kernels.md).\n")
    console.print("[bold green]The kernels agree.[/]" if ok else "[bold red]Something disagrees, see FAIL above.[/]")
    return 0 if ok else 1


def agreement():
    """The table of errors; True if all are within their bounds."""
    q, k, v, _, names = data.load(np.float32)
    q, k, v = (x[:, :1, :N] for x in (q, k, v))
    dout = np.random.default_rng(0).standard_normal(v.shape).astype(np.float32)
    problem = Problem(q, k, v, dout, causal=True, block_q=8, block_k=8)
    truth, bound = oracle.solve(problem), tolerance.bounds(problem)
    where = "in Numba's simulator, without a GPU" if cuda_kernels.SIMULATED else "on the GPU"
    console.rule("[bold]The same loops as GPU kernels")
    console.print(f"The same numbered steps in Numba-CUDA, {where}:\n"
                  f"the first {N} tokens of {names[0]}, causal, float32, tiles 8 × 8.\n")
    table = tabled("kernel", "threads", "direction", "worst in", "error", "bound", "used", "", right=(1, 4, 5, 6))
    ok = True
    with Progress(console=console, transient=True) as progress:
        for kernel in progress.track(cuda_kernels.KERNELS, description="running kernels"):
            worst = tolerance.worst(solve(problem, kernel), truth, bound)
            for direction, fields in (("forward", FORWARD), ("backward", BACKWARD)):
                if direction == "forward" or kernel in WITH_BACKWARD:
                    name = max(fields, key=lambda field: worst[field].fraction)
                    good = worst[name].fraction <= 1
                    ok &= good
                    most = getattr(bound, name)[worst[name].index]
                    table.add_row(kernel, str(EVERY_FEW[kernel]), direction, name, f"{worst[name].fraction * most:.1e}",
                                  f"{most:.1e}", f"{worst[name].fraction:.0%}",
                                  "[green]ok[/]" if good else "[bold red]FAIL[/]")
    console.print(table)
    return ok


def solve(problem, kernel):
    """Forward, and backward where there is one, as a Result."""
    q, k, v = problem.q, problem.k, problem.v
    how = {"kernel": kernel, "threads": EVERY_FEW[kernel], "causal": True, "block_q": 8, "block_k": 8}
    out, lse = cuda_kernels.forward(q, k, v, **how)
    if kernel not in WITH_BACKWARD:
        return Result(out, lse)
    return Result(out, lse, *cuda_kernels.backward(problem.dout, q, k, v, out, lse, **how))


def on_chip():
    """Counts of an audit: what threads and warps of a block have to tell each other."""
    console.rule("[bold]What happens on chip?")
    console.print("One block, one tile of 16 queries and one of 32 keys, d = 16, counted while it ran.\n"
                  "FlashAttention-1 splits the keys of a tile among its warps: they must hand over maxima, sums and\n"
                  "outputs (writes + reads). FlashAttention-2 splits the queries: no warp needs to know of another.\n")
    table = tabled("kernel", "warps", "barriers", "shuffles", "shared writes", "shared reads", "handed over",
                   right=range(1, 7))
    for row in counts.table(warps=(1, 4)):
        table.add_row(*row, end_section=row[:2] == ("fa1_warps", "4"))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
