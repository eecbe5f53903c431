"""All about the kernels that needs a GPU: the kit, streams, large offsets, limits, time, memory. One table last.

    python gpu_check.py                         all of it (about 8 minutes with 16 cores; compiling is most of it)
    python gpu_check.py --only costs,streams    some of it
    python gpu_check.py --save gpu.json         keep the tables for `python docs/generate.py gpu gpu.json`
    python gpu_check.py --small fa2             a dozen small problems of one kernel and no torch, for sanitize.py

Ends with 0 if everything held.
"""

import argparse
import json
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context

os.environ.setdefault("FA_REF_CUDA", "gpu")

import numpy as np
from ml_dtypes import bfloat16

import cuda_kernels
import gpu_costs
from cuda_kernels import WITH_BACKWARD, registered
from fa_ref.testing import Problem, Result, oracle, tolerance
from fa_ref.testing.properties import PROPERTIES
from fa_ref.testing.running import try_property

KERNELS = cuda_kernels.PLAIN
DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": bfloat16}
# every tile, head dim and dtype is one more kernel to compile, so each dtype gets its own few
SHAPES = {"float32": {"head_dims": (3, 64), "tiles": (7,)}, "float64": {"head_dims": (8, 17), "tiles": (16,)},
          "float16": {"head_dims": (16, 40), "tiles": (5,)}, "bfloat16": {"head_dims": (1, 32), "tiles": (4,)}}
THREADS, THREADS_BY_WARPS = (33, 128, 256), (32, 96, 256)

# --- arrays ---------------------------------------------------------------------------------------------------

def on_gpu(x):
    """A NumPy array as a CUDA tensor with the same strides over the same storage (or a contiguous copy)."""
    import torch

    if not isinstance(x, np.ndarray):
        return x
    storage = x
    while isinstance(storage.base, np.ndarray):
        storage = storage.base
    negative = any(stride < 0 for stride in x.strides)
    if negative or not storage.flags.c_contiguous or storage.dtype != x.dtype or not x.size:
        storage = x = np.ascontiguousarray(x)
    words = np.array(storage.view(np.int16) if x.dtype == bfloat16 else storage)
    flat = torch.from_numpy(words).cuda().reshape(-1)
    flat = flat.view(torch.bfloat16) if x.dtype == bfloat16 else flat
    first = (x.__array_interface__["data"][0] - storage.__array_interface__["data"][0]) // x.itemsize
    return torch.as_strided(flat, x.shape, [stride // x.itemsize for stride in x.strides], first)


def on_host(x):
    """A CUDA tensor as a NumPy array."""
    import torch

    if x is None:
        return None
    return x.cpu().view(torch.int16).numpy().view(bfloat16) if x.dtype == torch.bfloat16 else x.cpu().numpy()


def walk(p):
    return {"block_q": p.block_q, "block_k": p.block_k, "reverse": p.reverse}


def solve_numpy(p, kernel, threads=None, deterministic=False):
    """The answer of a kernel to a problem of NumPy arrays."""
    how = {**p.options, **walk(p), "kernel": kernel, "threads": threads}
    del how["bias"], how["alibi_slopes"]
    out, lse = cuda_kernels.forward(p.q, p.k, p.v, **how)
    if p.dout is None or kernel not in WITH_BACKWARD:
        return Result(out, lse)
    return Result(out, lse, *cuda_kernels.backward(p.dout, p.q, p.k, p.v, out, lse, dlse=p.dlse,
                                                   deterministic=deterministic, **how))


def solve_torch(p, kernel, threads=None, deterministic=False):
    """The same on CUDA tensors of the same strides; everything comes back as CUDA tensors."""
    arrays = {name: on_gpu(getattr(p, name)) for name in ("q", "k", "v", "dout", "dlse", "mask", "sink")}
    result = solve_numpy(p.replace(**arrays), kernel, threads, deterministic)
    fields = {name: getattr(result, name) for name in Result.__dataclass_fields__}
    assert all(x is None or x.is_cuda for x in fields.values())
    return Result(**{name: on_host(x) for name, x in fields.items()})


def threads_of(p, kernel):
    choices = THREADS if kernel in WITH_BACKWARD else THREADS_BY_WARPS
    return choices[(p.q.shape[2] + p.k.shape[2]) % len(choices)]


def judged(result, truth, bounds):
    """The worst error as a fraction of its bound; AssertionError where it is more."""
    worst = tolerance.worst(result, truth, bounds)
    for name, w in worst.items():
        assert w.fraction <= 1, f"{name}{w.index}: {w.fraction:.3g} times its bound"
    return max(w.fraction for w in worst.values())


def in_processes(report, jobs):
    """Run (function, *arguments) side by side, each in a process that has the GPU too; compiling is what takes time.

    A function returns (what was checked, failures, words).
    """
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count()), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(*job) for job in jobs]
        for (function, *arguments), future in zip(jobs, futures, strict=True):
            try:
                name, failed, told = future.result()
                report.add(name, not failed, "\n".join(failed) if failed else told)
            except Exception:
                report.add(f"{function.__name__} {arguments[:3]}", False, traceback.format_exc())


# --- the kit --------------------------------------------------------------------------------------------------

def kit_job(kernel, dtype, kind, examples, stop_at):
    """Every property of the kit for one kernel, dtype and kind of arrays."""
    solve = solve_torch if kind == "torch CUDA" else solve_numpy
    deterministic = kind == "torch CUDA"

    def ask(p):
        return solve(p, kernel, threads_of(p, kernel), deterministic)

    supports = registered.implementation(kernel, deterministic=deterministic)[1].but(
        dtypes=(dtype,), max_length=40, max_heads=4, **SHAPES[dtype])
    if kind == "torch CUDA":
        supports = supports.but(framework="torch", device="cuda")
    rows = [try_property(name, ask, supports, examples=examples, seed=1, stop_at=stop_at) for name in PROPERTIES]
    failed = [f"{row.name}: {row.detail}" for row in rows if row.status == "failed"]
    asked = [row for row in rows if row.status != "unsupported"]
    short = [row.name for row in asked if row.status == "out of time"]
    told = f"{len(asked)} properties, {sum(row.examples for row in asked)} problems"
    return f"kit {kernel} {dtype} {kind}", failed, told + (f", out of time: {short}" if short else "")


def kit(report, kernels, examples, minutes):
    """The kit: every kernel, four dtypes, NumPy arrays and CUDA tensors."""
    stop_at = time.monotonic() + 60 * minutes
    in_processes(report, [(kit_job, kernel, dtype, kind, examples, stop_at) for kernel in kernels for dtype in DTYPES
                          for kind in ("NumPy", "torch CUDA")])


# --- larger problems ------------------------------------------------------------------------------------------

def large_problem(dtype, seed, Nq, Nk, d, dv, **options):
    rng = np.random.default_rng(seed)
    wide = np.float64 if dtype == np.float64 else np.float32
    shapes = {"q": (1, 4, Nq, d), "k": (1, 2, Nk, d), "v": (1, 2, Nk, dv), "dout": (1, 4, Nq, dv)}
    return Problem(**{name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()},
                   dlse=rng.standard_normal((1, 4, Nq)).astype(wide), **options)


def larger_job(kernel, dtype):
    """A few hundred rows, every option, element by element against the oracle."""
    rng = np.random.default_rng(0)
    options = [{"causal": True}, {"window": (100, 20), "softcap": 2.0},
               {"mask": rng.random((333, 517)) < .5, "sink": rng.standard_normal(4).astype("f4"), "causal": True}]
    worst, failed = 0.0, []
    for n, option in enumerate(options):
        p = large_problem(DTYPES[dtype], n, 333, 517, 64, 48, **option)
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
    in_processes(report, [(larger_job, kernel, dtype) for kernel in kernels for dtype in DTYPES])


# --- threads --------------------------------------------------------------------------------------------------

def any_threads(report):
    """1 to 1024 threads: the same bits (but for dsink, whose parts are summed per thread)."""
    p = large_problem(np.float32, 5, 70, 90, 64, 64, causal=True, softcap=3.0, sink=np.zeros(4, "f4"), block_q=16,
                      block_k=16)
    truth, bounds = oracle.solve(p), tolerance.bounds(p)
    for kernel in WITH_BACKWARD:
        first = solve_numpy(p, kernel, 128, deterministic=True)
        judged(first, truth, bounds)
        for threads in (1, 3, 31, 32, 33, 500, 1024):
            other = solve_numpy(p, kernel, threads, deterministic=True)
            judged(other, truth, bounds)
            for name in ("out", "lse", "dq", "dk", "dv"):
                assert getattr(first, name).tobytes() == getattr(other, name).tobytes(), (kernel, threads, name)
        report.add(f"1 to 1024 threads, {kernel}", True, "the same bits")
    p = p.replace(dout=None, dlse=None)
    for kernel in KERNELS:
        if kernel not in WITH_BACKWARD:
            results = [solve_numpy(p, kernel, 32 * warps) for warps in range(1, 9)]
            worst = max(judged(result, truth, bounds) for result in results)
            bits = len({result.out.tobytes() for result in results})
            assert kernel != "fa2_warps" or bits == 1
            told = "the same bits" if bits == 1 else f"{bits} results that differ in the last bits"
            report.add(f"1 to 8 warps, {kernel}", True, f"{told}, worst {worst:.2f} of its bound")


# --- torch ----------------------------------------------------------------------------------------------------

def streams(report):
    """On torch's current stream, asynchronously: kernels wait for what was queued there before, the caller does not."""
    import torch

    shape = (2, 4, 300, 64)
    real = [torch.randn(shape, device="cuda") for _ in range(4)]
    for kernel in KERNELS:
        def gradients(*x, kernel=kernel):
            return cuda_kernels.backward(*x, kernel=kernel, causal=True, deterministic=True) if (
                kernel in WITH_BACKWARD) else ()

        answer = cuda_kernels.forward(*real[:3], kernel=kernel, causal=True)
        grads = gradients(real[3], *real[:3], *answer)
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        late = [torch.zeros_like(x) for x in real]
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)                      # the inputs arrive only after this
            for x, y in zip(late, real, strict=True):
                x.copy_(y)
            begun = time.perf_counter()
            other = cuda_kernels.forward(*late[:3], kernel=kernel, causal=True)
            returned = time.perf_counter() - begun
            other_grads = gradients(late[3], *late[:3], *other)
        side.synchronize()
        for x, y in zip([*answer, *grads], [*other, *other_grads], strict=True):
            assert (x is None and y is None) or torch.equal(x, y), kernel
        assert returned < 0.05, f"forward came back after {returned:.3f} s: it has waited"
        report.add(f"another stream, {kernel}", True, f"equal; forward came back after {1e3 * returned:.1f} ms")


def kinds(report):
    """Tensors that require grad, host arrays as mask and sink, Numba's device arrays, and what is refused."""
    import torch
    from numba import cuda

    p = large_problem(np.float32, 7, 40, 50, 16, 16, mask=np.random.default_rng(0).random((40, 50)) < .6,
                      sink=np.ones(4, np.float32))
    want = solve_numpy(p, "fa2", deterministic=True)
    wanted = [want.out, want.lse, want.dq, want.dk, want.dv, None, want.dsink]
    q, k, v, dout, dlse = (on_gpu(x) for x in (p.q, p.k, p.v, p.dout, p.dlse))
    tensors = [x.clone().requires_grad_() for x in (q, k, v)]
    cpu = torch.from_numpy(p.mask), torch.from_numpy(p.sink)
    for mask, sink in ((p.mask, p.sink), (on_gpu(p.mask), on_gpu(p.sink)), cpu):
        out, lse = cuda_kernels.forward(*tensors, mask=mask, sink=sink)
        grads = cuda_kernels.backward(dout, *tensors, out, lse, dlse=dlse, mask=mask, sink=sink, deterministic=True)
        for x, y in zip([out, lse, *grads], wanted, strict=True):
            assert y is None or (x.is_cuda and not x.requires_grad and np.array_equal(on_host(x), y))
    report.add("tensors that require grad; mask and sink from host and device", True, "equal bits")

    device = {name: cuda.to_device(getattr(p, name)) for name in ("q", "k", "v", "dout", "dlse", "mask", "sink")}
    options = {"mask": device["mask"], "sink": device["sink"]}
    out, lse = cuda_kernels.forward(device["q"], device["k"], device["v"], **options)
    grads = cuda_kernels.backward(device["dout"], device["q"], device["k"], device["v"], out, lse, dlse=device["dlse"],
                                  deterministic=True, **options)
    for x, y in zip([out, lse, *grads], wanted, strict=True):
        assert y is None or np.array_equal(x.copy_to_host(), y)
    report.add("Numba's device arrays", True, "equal bits, device arrays returned")

    for name, arguments, options, error, word in [
        ("two devices", (q, k.cpu(), v), {}, TypeError, "different kinds or devices"),
        ("tensors and arrays", (q, p.k, p.v), {}, TypeError, "NumPy array"),
        ("threads", (q, k, v), {"threads": 1025}, ValueError, "1024"),
        ("threads of warps", (q, k, v), {"threads": 48, "kernel": "fa2_warps"}, ValueError, "multiple of 32"),
        ("a mask of another kind", (q, k, v), {"mask": device["mask"]}, TypeError, "mask must be on"),
        ("int8", (q.to(torch.int8), k, v), {}, TypeError, "int8"),
        ("a mask on the device", (p.q, p.k, p.v), {"mask": on_gpu(p.mask)}, TypeError, "mask"),
        ("grid", [x.expand(70000, *x.shape[1:]) for x in (q, k, v)], {}, ValueError, "65535"),
    ]:
        try:
            cuda_kernels.forward(*arguments, **options)
        except error as told:
            assert word in str(told), f"{name}: {told}"
        else:
            raise AssertionError(f"not refused: {name}")
    report.add("bad input on the device", True, "refused with the numbers")

    for shape_q, shape_k in (((1, 2, 0, 8), (1, 2, 5, 8)), ((1, 2, 5, 8), (1, 2, 0, 8)), ((0, 2, 5, 8), (0, 2, 5, 8))):
        x, y = torch.randn(shape_q, device="cuda"), torch.randn(shape_k, device="cuda")
        for kernel in WITH_BACKWARD:
            out, lse = cuda_kernels.forward(x, y, y, kernel=kernel)
            grads = cuda_kernels.backward(torch.ones_like(out), x, y, y, out, lse, kernel=kernel)
            assert not out.any() and torch.isneginf(lse).all() and not any(g.any() for g in grads[:3])
    report.add("axes of length zero on the device", True, "zeros and −inf")


def repeats(report):
    """deterministic=True: the same bits in ten runs."""
    import torch

    x = [torch.randn(2, 8, 700, 64, device="cuda") for _ in range(4)]
    answer = cuda_kernels.forward(*x[:3])
    different = 0
    for deterministic in (True, False):
        runs = [cuda_kernels.backward(x[3], *x[:3], *answer, deterministic=deterministic) for _ in range(10)]
        same = [all(torch.equal(a, b) for a, b in zip(runs[0][:3], run[:3], strict=True)) for run in runs]
        if deterministic:
            assert all(same)
            ours = runs[0].dq
        else:
            different = same.count(False)
            assert torch.allclose(ours, runs[0].dq, rtol=0, atol=1e-4)
    report.add("deterministic=True", True, f"the same bits in 10 runs; with atomics {different} of 10 differ")


def offsets(report):
    """More than 2³¹ elements: batch strides beyond it, and queries and outputs beyond it."""
    import torch

    far, N, d = 2**30, 40, 64
    storage = torch.empty(3 * far + N * d, dtype=torch.float16, device="cuda")
    small = [torch.randn(4, 1, N, d, device="cuda", dtype=torch.float16) for _ in range(4)]
    q, k, v, dout = small
    views = []
    for x in (k, v):
        view = torch.as_strided(storage if not views else torch.empty_like(storage), (4, 1, N, d), (far, N * d, d, 1))
        view.copy_(x)
        views.append(view)
    assert views[0].stride(0) * 3 > 2**31
    for kernel in WITH_BACKWARD:
        answer, other = (cuda_kernels.forward(q, *kv, kernel=kernel) for kv in ((k, v), views))
        grads, other_grads = (cuda_kernels.backward(dout, q, *kv, *answer, kernel=kernel, deterministic=True)
                              for kv in ((k, v), views))
        for x, y in zip([*answer, *grads[:3]], [*other, *other_grads[:3]], strict=True):
            assert torch.equal(x, y), kernel
    report.add("K and V with offsets up to 3.2e9 elements", True, "equal to small copies, forward and backward")
    del storage, views, view

    rows = 2**25 + 96
    q = torch.randn(1, 1, rows, d, device="cuda", dtype=torch.float16)
    k, v = (torch.randn(1, 1, 24, d, device="cuda", dtype=torch.float16) for _ in range(2))
    assert q.numel() > 2**31
    for kernel in ("fa2", "fa2_warps", "standard"):
        out, lse = cuda_kernels.forward(q, k, v, kernel=kernel)
        last = cuda_kernels.forward(q[:, :, -96:].contiguous(), k, v, kernel=kernel)
        assert torch.equal(out[:, :, -96:], last.out) and torch.equal(lse[:, :, -96:], last.lse)
        assert out.numel() > 2**31 and bool(torch.isfinite(lse).all())
        report.add(f"Q and O of {q.numel():,} elements, {kernel}", True, "the last rows are those of a small call")
        del out, lse


# --- for compute-sanitizer ------------------------------------------------------------------------------------

def small(report, kernel):
    """A dozen small problems of one kernel on NumPy arrays: ragged tails, grouped heads, every option."""
    rng = np.random.default_rng(0)
    count = 0
    for dtype in DTYPES.values():
        for options in ({"causal": True}, {"window": (2, 1), "softcap": 2.0},
                        {"mask": rng.random((9, 13)) < .6, "sink": np.zeros(4, "f4"), "reverse": True}):
            p = large_problem(dtype, count, 9, 13, 5, 3, block_q=4, block_k=5, **options)
            if kernel not in WITH_BACKWARD:
                p = p.replace(dout=None, dlse=None)
            threads = ((33, 128) if kernel in WITH_BACKWARD else (64, 128))[count % 2]
            result = solve_numpy(p, kernel, threads, deterministic=count % 3 == 0)
            judged(result, oracle.solve(p), tolerance.bounds(p))
            count += 1
    report.add(f"small problems, {kernel}", True, f"{count} problems")


# --- the run --------------------------------------------------------------------------------------------------

class Report:
    """Rows (check, held?, words), told as they come and as a table at the end."""

    def __init__(self):
        self.rows, self.costs = [], []

    def add(self, name, ok, words):
        self.rows.append((name, ok, words))
        print(f"{'ok    ' if ok else 'FAILED'}  {name}: {words}", flush=True)

    def table(self):
        width = max(len(name) for name, *_ in self.rows)
        return "\n".join(f"{name:{width}}  {'ok    ' if ok else 'FAILED'}  {words.splitlines()[0] if words else ''}"
                         for name, ok, words in self.rows)


CHECKS = {"threads": any_threads, "streams": streams, "kinds": kinds, "repeats": repeats,
          "offsets": offsets, "costs": gpu_costs.costs, "memory": gpu_costs.memory}


def on_which():
    """The device, the day and the versions in one line."""
    import numba_cuda
    import torch
    return (f"{torch.cuda.get_device_name()}, {date.today()}, Python {sys.version.split()[0]}, NumPy {np.__version__}, "
            f"numba-cuda {numba_cuda.__version__}, torch {torch.__version__.split('+')[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default=",".join(KERNELS), help="for the kit and larger problems (all)")
    parser.add_argument("--only", help=f"comma-separated, out of kit, larger, {', '.join(CHECKS)}")
    parser.add_argument("--small", choices=KERNELS, help="only the small problems of this kernel")
    parser.add_argument("--save", metavar="FILE", help="write the tables as JSON")
    parser.add_argument("--examples", type=int, default=15, help="problems per property of the kit (15)")
    parser.add_argument("--minutes", type=float, default=5, help="for the kit (5)")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else ["kit", "larger", *CHECKS]
    report = Report()
    if options.small:
        small(report, options.small)
        return 0
    machine = on_which()
    print(machine, flush=True)
    for name in wanted:
        begun = time.monotonic()
        try:
            if name == "kit":
                kit(report, options.kernels.split(","), options.examples, options.minutes)
            elif name == "larger":
                larger(report, options.kernels.split(","))
            else:
                CHECKS[name](report)
        except Exception:
            report.add(name, False, traceback.format_exc())
        print(f"        {name}: {time.monotonic() - begun:.0f} s", flush=True)
    print(f"\n{report.table()}")
    if options.save:
        with open(options.save, "w", encoding="utf-8") as file:
            json.dump({"on": machine, "rows": report.rows, "costs": report.costs}, file, indent=1)
    return 0 if all(ok for _, ok, _ in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
