"""The kernels on a GPU against the oracle: the kit, larger problems, any number of threads; small ones for sanitize."""

import time

import numpy as np

from cuda_kernels import WITH_BACKWARD, registered
from fa_ref.testing import oracle, tolerance
from fa_ref.testing.properties import PROPERTIES
from fa_ref.testing.running import try_property
from gpu_arrays import (
    DTYPES,
    ON_TENSOR_CORES,
    PLAIN,
    dtypes_of,
    in_processes,
    judged,
    large_problem,
    shapes_of,
    solve_numpy,
    solve_torch,
    threads_of,
)

# --- the kit --------------------------------------------------------------------------------------------------

def kit_job(kernel, dtype, kind, examples, stop_at):
    """Every property of the kit for one kernel, dtype and kind of arrays."""
    solve = solve_torch if kind == "torch CUDA" else solve_numpy
    deterministic = kind == "torch CUDA"

    def ask(p):
        return solve(p, kernel, threads_of(p, kernel), deterministic)

    supports = registered.implementation(kernel, deterministic=deterministic)[1].but(
        dtypes=(dtype,), max_length=40 if kernel in PLAIN else 150, max_heads=4, **shapes_of(kernel, dtype))
    if kind == "torch CUDA":
        supports = supports.but(framework="torch", device="cuda", strided=kernel in PLAIN)
    rows = [try_property(name, ask, supports, examples=examples, seed=1, stop_at=stop_at) for name in PROPERTIES]
    failed = [f"{row.name}: {row.detail}" for row in rows if row.status == "failed"]
    asked = [row for row in rows if row.status != "unsupported"]
    failed += [f"{row.name}: not one problem before the time was up" for row in asked if not row.examples]
    short = [row.name for row in asked if row.status == "out of time"]
    told = f"{len(asked)} properties, {sum(row.examples for row in asked)} problems"
    return f"kit {kernel} {dtype} {kind}", failed, told + (f"; out of time in {len(short)} of them" if short else "")


def kit(report, kernels, examples, minutes):
    """The kit: every kernel, the dtypes that it takes, NumPy arrays and CUDA tensors."""
    stop_at = time.monotonic() + 60 * minutes
    in_processes(report, [(kit_job, kernel, dtype, kind, examples, stop_at) for kernel in kernels
                          for dtype in dtypes_of(kernel) for kind in ("NumPy", "torch CUDA")])


# --- larger problems ------------------------------------------------------------------------------------------

def larger_job(kernel, dtype):
    """A few hundred rows, every option, element by element against the oracle."""
    rng = np.random.default_rng(0)
    mask, sink = rng.random((333, 517)) < .5, rng.standard_normal(4).astype("f4")
    options = [{"causal": True}, {"window": (100, 20), "softcap": 2.0}, {"mask": mask, "sink": sink, "causal": True}]
    if kernel in ON_TENSOR_CORES:
        options = [{"causal": True}, {"window": (100, 20)}, {"scale": -0.2}]
    dv = 64 if kernel in ON_TENSOR_CORES else 48
    worst, failed = 0.0, []
    for n, option in enumerate(options):
        p = large_problem(DTYPES[dtype], n, 333, 517, 64, dv, **option)
        if kernel not in WITH_BACKWARD:
            p = p.replace(dout=None, dlse=None)
        truth, bounds = oracle.solve(p), tolerance.bounds(p)
        for solve in (solve_numpy, solve_torch):
            try:
                worst = max(worst, judged(solve(p, kernel, deterministic=solve is solve_torch), truth, bounds))
            except AssertionError as error:
                failed.append(f"{solve.__name__}, {option}: {error}")
    return f"333 × 517, {kernel} {dtype}", failed, f"worst error {worst:.2f} of its bound"


def larger(report, kernels):
    """The same for every kernel and dtype."""
    in_processes(report, [(larger_job, kernel, dtype) for kernel in kernels for dtype in dtypes_of(kernel)])


# --- threads --------------------------------------------------------------------------------------------------

def any_threads(report):
    """1 to 1024 threads: the same bits (but for dsink, whose parts are summed per thread)."""
    p = large_problem(np.float32, 5, 70, 90, 64, 64, causal=True, softcap=3.0, sink=np.zeros(4, "f4"), block_q=16,
                      block_k=16)
    truth, bounds = oracle.solve(p), tolerance.bounds(p)
    for kernel in (kernel for kernel in PLAIN if kernel in WITH_BACKWARD):
        first = solve_numpy(p, kernel, 128, deterministic=True)
        judged(first, truth, bounds)
        for threads in (1, 3, 31, 32, 33, 500, 1024):
            other = solve_numpy(p, kernel, threads, deterministic=True)
            judged(other, truth, bounds)
            for name in ("out", "lse", "dq", "dk", "dv"):
                assert getattr(first, name).tobytes() == getattr(other, name).tobytes(), (kernel, threads, name)
        report.add(f"1 to 1024 threads, {kernel}", True, "the same bits")
    p = p.replace(dout=None, dlse=None)
    for kernel in PLAIN:
        if kernel not in WITH_BACKWARD:
            results = [solve_numpy(p, kernel, 32 * warps) for warps in range(1, 9)]
            worst = max(judged(result, truth, bounds) for result in results)
            bits = len({result.out.tobytes() for result in results})
            assert kernel != "fa2_warps" or bits == 1
            told = "the same bits" if bits == 1 else f"{bits} results that differ in the last bits"
            report.add(f"1 to 8 warps, {kernel}", True, f"{told}, worst {worst:.2f} of its bound")


# --- for compute-sanitizer ------------------------------------------------------------------------------------

def small(report, kernel):
    """A dozen small problems of one kernel on NumPy arrays: ragged tails, grouped heads, every option."""
    problems = small_on_tensor_cores() if kernel in ON_TENSOR_CORES else small_ones(kernel)
    for count, (p, threads) in enumerate(problems):
        p = p if kernel in WITH_BACKWARD else p.replace(dout=None, dlse=None)
        result = solve_numpy(p, kernel, threads, deterministic=count % 3 == 0)
        judged(result, oracle.solve(p), tolerance.bounds(p))
    report.add(f"small problems, {kernel}", True, f"{len(problems)} problems")


def small_ones(kernel):
    """[(problem, threads)] for kernels that take any tile."""
    rng = np.random.default_rng(0)
    options = [{"causal": True}, {"window": (2, 1), "softcap": 2.0},
               {"mask": rng.random((9, 13)) < .6, "sink": np.zeros(4, "f4"), "reverse": True}]
    threads = (33, 128) if kernel in WITH_BACKWARD else (64, 128)
    problems = [large_problem(dtype, 0, 9, 13, 5, 3, block_q=4, block_k=5, **option)
                for dtype in DTYPES.values() for option in options]
    return [(p, threads[n % 2]) for n, p in enumerate(problems)]


def small_on_tensor_cores():
    """The same for tiles of 32 × 32: rows that are copied 16 bytes at a time, or not; one warp and two; a wide head."""
    options = [{"causal": True}, {"window": (9, 5)}, {"scale": -0.3}]
    problems = [(large_problem(DTYPES[dtype], n, 33, 40, d, d, block_q=32, block_k=32, **option), 32 + n % 2 * 32)
                for dtype in ("float16", "bfloat16") for d in (24, 5) for n, option in enumerate(options)]
    wide = large_problem(DTYPES["float16"], 0, 33, 70, 144, 144, block_q=32, block_k=32, causal=True)
    return [*problems, (wide, 64)]
