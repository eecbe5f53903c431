"""The kernels' part of the tour: do they compute the same numbers, and what happens on chip?

    python -m cuda_kernels tour

1. every kernel, forward and backward, on real queries, keys and values, each error beside its bound
2. in the simulator: what it costs on chip to share a tile among warps, FlashAttention-1's way and FlashAttention-2's
3. how to stop inside a kernel, and a page that shows one at work (in build/)

Returns 1 if anything disagrees, else 0.
"""

import sys

import numpy as np
from rich.progress import Progress

import cuda_kernels
from cuda_kernels import WITH_BACKWARD, counts, player
from fa_ref import data
from fa_ref.terminal import console, tabled
from fa_ref.testing import oracle, tolerance
from fa_ref.testing.problem import Problem, Result
from fa_ref.tour import BACKWARD, FORWARD, folder, judged

N = 24                      # tokens: a simulated kernel does a few hundred thousand multiply-adds a second


def main():
    """Run it all; see the module."""
    ok = agreement()
    if cuda_kernels.SIMULATED:
        on_chip()
        page = player.tiny("fa2").save(folder() / "fa2_kernel.html")
        console.print("Look for yourself: [bold]make debug-kernel[/] stops pdb inside a kernel, and this page shows "
                      f"one at work, one thread, line by line:\n  {page}\n", soft_wrap=True)
    console.print("[bold green]The kernels agree.[/]" if ok else "[bold red]Something disagrees, see FAIL above.[/]")
    return 0 if ok else 1


def agreement():
    """The table of errors; True if all are within their bounds."""
    plain, halves = problem_in(np.float32, 8, 8), problem_in(np.float16, 32, 32)
    where = "in Numba's simulator, without a GPU" if cuda_kernels.SIMULATED else "on the GPU"
    console.rule("[bold]The same loops as GPU kernels")
    console.print(f"The same numbered steps in Numba-CUDA, {where}:\n"
                  f"the first {N} tokens of {data.load().names[0]}, causal, in float32 with tiles of 8 × 8, on tensor "
                  "cores in float16 with tiles of 32 × 32.\n")
    table = tabled("kernel", "threads", "direction", "worst in", "error", "bound", "used", "", right=(1, 4, 5, 6))
    ok = True
    with Progress(console=console, transient=True) as progress:
        for kernel in progress.track(cuda_kernels.KERNELS, description="running kernels"):
            problem, truth, bound = plain if kernel in cuda_kernels.PLAIN else halves
            worst = tolerance.worst(solve(problem, kernel), truth, bound)
            for direction, fields in (("forward", FORWARD), ("backward", BACKWARD)):
                if direction == "forward" or kernel in WITH_BACKWARD:
                    good, cells = judged(worst, bound, fields)
                    ok &= good
                    table.add_row(kernel, str(threads(kernel)), direction, *cells)
    console.print(table)
    return ok


def problem_in(dtype, Br, Bc):
    """(problem, its truth, its bounds): real queries, keys and values in this dtype."""
    q, k, v = (x[:, :1, :N] for x in data.load(dtype)[:3])
    dout = np.random.default_rng(0).standard_normal(v.shape).astype(dtype)
    problem = Problem(q, k, v, dout, causal=True, block_q=Br, block_k=Bc)
    return problem, oracle.solve(problem), tolerance.bounds(problem)


def threads(kernel):
    """Of a block: two warps where a kernel works by warps."""
    return 64 if hasattr(cuda_kernels.KERNELS[kernel], "WARPS") else 8


def solve(problem, kernel):
    """Forward, and backward where there is one, as a Result."""
    q, k, v = problem.q, problem.k, problem.v
    how = {"kernel": kernel, "threads": threads(kernel), "causal": True, "block_q": problem.block_q,
           "block_k": problem.block_k}
    out, lse = cuda_kernels.forward(q, k, v, **how)
    if kernel not in WITH_BACKWARD:
        return Result(out, lse)
    return Result(out, lse, *cuda_kernels.backward(problem.dout, q, k, v, out, lse, **how))


def on_chip():
    """What the warps of a block have to tell each other, counted by an audit."""
    console.rule("[bold]What happens on chip?")
    console.print("FlashAttention-1 splits the keys of a tile among its warps: they must tell each other maxima, sums "
                  "and outputs. FlashAttention-2 splits the queries: no warp needs to know of another.\n")
    counts.show(warps=(1, 4))


if __name__ == "__main__":
    sys.exit(main())
