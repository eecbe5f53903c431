"""The kernels on tensor cores on a GPU: at the sizes of the official tests, again and again, with NaN where they shall
write, in CUDA graphs. A row for each kernel: one failure does not hide the others.
"""

import traceback
from contextlib import contextmanager, nullcontext

import numpy as np

import cuda_kernels
from cuda_kernels import WITH_BACKWARD, launch, prepared
from fa_ref.testing import Problem
from fa_ref.testing.standard_16bit import float64_truth, two_errors
from gpu_arrays import DEVICE, DTYPES, KERNELS, ON_TENSOR_CORES, PLAIN, in_processes, rows, solve_torch

SIZES = ((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (1024, 1024), (1023, 1024), (2048, 2048))
DIMS = (32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256)
KINDS = ("full", "causal", "window")
RUNS = 250

# --- the sizes of the official tests --------------------------------------------------------------------------

def official_problem(dtype, Nq, Nk, d, kind, backward):
    """Two query heads of one key/value head; random numbers that depend on the size."""
    rng = np.random.default_rng([Nq, Nk, d, KINDS.index(kind)])
    shapes = {"q": (1, 2, Nq, d), "k": (1, 1, Nk, d), "v": (1, 1, Nk, d)}
    shapes |= {"dout": (1, 2, Nq, d)} if backward else {}
    options = {"full": {}, "causal": {"causal": True},
               "window": {"window": tuple(map(int, rng.integers(0, Nk, 2)))}}[kind]
    return Problem(**{name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}, **options)


def official_job(kernel, dtype, d, sizes=SIZES, solve=solve_torch):
    """Every size in both orders, full, causal and with a window: the rule of two errors, and lse within its bound."""
    failed, worst, count = [], 0.0, 0
    for Nq, Nk in dict.fromkeys(pair for size in sizes for pair in (size, size[::-1])):
        for kind in KINDS:
            try:
                p = official_problem(DTYPES[dtype], Nq, Nk, d, kind, kernel in WITH_BACKWARD)
                truth, result = float64_truth(p), solve(p, kernel)
                fractions = {name: v.error / v.allowed for name, v in
                             two_errors(result, truth, p, round_scores=False).items() if name != "lse"}
                fractions["lse"] = error_of_lse(p, result.lse, truth.lse)
                bad = {name: x for name, x in fractions.items() if not x <= 1}
                failed += [f"{Nq} × {Nk} {kind}: {name} {x:.2f} of what is allowed" for name, x in bad.items()]
                worst = max(worst, *fractions.values())
            except Exception:
                failed.append(f"{Nq} × {Nk} {kind}: {traceback.format_exc()}")
            count += 1
    told = f"{count} problems, worst {worst:.2f} of what is allowed"
    return f"official sizes, {kernel} {dtype} d = {d}", failed, told


def error_of_lse(p, found, truth):
    """The largest error as a fraction of eps·(4 + 2A + (Nq + Nk + d)/4), A the largest |scale|·Σ|q||k| of the row."""
    q, k = abs(p.q.astype(np.float32)), abs(p.k.astype(np.float32))
    (_, Hq, Nq, d), (_, Hkv, Nk, _) = q.shape, k.shape
    A = (q @ np.repeat(k, Hq // Hkv, 1).mT).max(3) / np.float32(d) ** 0.5
    bound = np.finfo(np.float32).eps * (4 + 2 * A + (Nq + Nk + d) / 4)
    finite = np.isfinite(truth)
    if not np.array_equal(found[~finite], truth[~finite]) or not np.isfinite(found[finite]).all():
        return np.inf
    return float((abs(found[finite] - truth[finite]) / bound[finite]).max(initial=0))


def official(report, kernels=ON_TENSOR_CORES):
    """Every head dim of the official tests, in both dtypes. The large ones first: they take longest."""
    in_processes(report, [(official_job, kernel, dtype, d) for d in sorted(DIMS, reverse=True) for kernel in kernels
                          for dtype in ("bfloat16", "float16")])


# --- again and again ------------------------------------------------------------------------------------------

def repeats(report):
    """The same bits in 250 calls; dQ that is added up with atomics within the noise of its last bits."""
    rows(report, f"{RUNS} calls", repeated)


def repeated(kernel, shape=(2, 8, 2049, 64), runs=RUNS):
    import torch

    q, k, v, dout = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(4))
    how = {"kernel": kernel, "causal": True}
    out, lse = cuda_kernels.forward(q, k, v, **how)
    for n in range(runs):
        again = cuda_kernels.forward(q, k, v, **how)
        assert torch.equal(again.out, out) and torch.equal(again.lse, lse), f"forward differs in call {n}"
    if kernel not in WITH_BACKWARD:
        return "the same bits"
    different = 0
    for deterministic in (False, True):                             # a call that is kept must not stand for the other
        first = cuda_kernels.backward(dout, q, k, v, out, lse, deterministic=deterministic, **how)
        noise = 2 * ((first.dq + 0.3 - 0.3) - first.dq).abs().max()
        for n in range(runs):
            again = cuda_kernels.backward(dout, q, k, v, out, lse, deterministic=deterministic, **how)
            assert torch.equal(again.dk, first.dk) and torch.equal(again.dv, first.dv), f"dk or dv differ in call {n}"
            same = torch.equal(again.dq, first.dq)
            assert same or not deterministic, f"dq differs in call {n}"
            assert (again.dq - first.dq).abs().max() <= noise, f"dq differs in call {n} by more than {noise}"
            different += not same
    return f"the same bits; with atomics dq differs in {different}, within {float(noise):.2g}"


# --- outputs full of NaN --------------------------------------------------------------------------------------

@contextmanager
def poisoned_arrays():
    """Inside, arrays that kernels shall fill are full of NaN before; calls are not prepared."""
    own, remember = launch.Call.empty, prepared.remember

    def empty(self, *shape, dtype=None, like=None):
        x = own(self, *shape, dtype=dtype, like=like)
        (x.fill if isinstance(x, np.ndarray) else x.fill_)(float("nan"))
        return x

    launch.Call.empty, prepared.remember = empty, lambda *arguments: None
    try:
        yield
    finally:
        launch.Call.empty, prepared.remember = own, remember


def poisoned(report):
    """Every kernel writes all of what it gives back, where rows see nothing and at ragged ends too."""
    rows(report, "outputs full of NaN before", written, KERNELS)


POISONED = ((70, 33, 40, {"causal": True}), (200, 130, 64, {"causal": True}), (5, 300, 59, {}),
            (130, 65, 64, {"window": (7, 3)}), (300, 40, 16, {"window": (0, 0)}))


def written(kernel, problems=POISONED):
    import torch

    kind = torch.float32 if kernel in PLAIN else torch.float16
    for Nq, Nk, d, options in problems:
        q, k, v = (torch.randn(2, 2, n, d, device=DEVICE, dtype=kind) for n in (Nq, Nk, Nk))
        answers = []
        for poison in (False, True):
            prepared.known.clear()
            with poisoned_arrays() if poison else nullcontext():
                out, lse = cuda_kernels.forward(q, k, v, kernel=kernel, **options)
                answers.append([out, lse])
                if kernel in WITH_BACKWARD:
                    answers[-1] += cuda_kernels.backward(torch.ones_like(out), q, k, v, out, lse, kernel=kernel,
                                                         deterministic=True, **options)[:3]
        for name, clean, dirty in zip(("out", "lse", "dq", "dk", "dv"), *answers, strict=False):
            assert not torch.isnan(dirty).any(), f"{Nq} × {Nk}, d = {d}, {options}: {name} has NaN"
            assert torch.equal(clean, dirty), f"{Nq} × {Nk}, d = {d}, {options}: {name} differs"
    return f"{len(problems)} problems, the same bits"


# --- graphs ---------------------------------------------------------------------------------------------------

def graphs(report):
    """Captured in a CUDA graph on a stream of its own, and replayed with other numbers in the same places."""
    rows(report, "CUDA graph", captured)


def captured(kernel):
    import torch

    def run():
        out, lse = cuda_kernels.forward(q, k, v, kernel=kernel, causal=True)
        if kernel not in WITH_BACKWARD:
            return [out, lse]
        return [out, lse, *cuda_kernels.backward(dout, q, k, v, out, lse, kernel=kernel, causal=True,
                                                 deterministic=True)[:3]]

    q, k, v, dout = (torch.randn(2, 4, 333, 64, device="cuda", dtype=torch.float16) for _ in range(4))
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()                                                       # compiles; the second call is a prepared one
        aside = run()
    torch.cuda.synchronize()
    for x, y in zip(aside, run(), strict=True):
        assert torch.equal(x, y), "another stream, other numbers"
    with torch.cuda.graph(graph, stream=stream):
        kept = run()
    for replay in range(3):
        for x in (q, k, v, dout):
            x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        for x, y in zip(kept, run(), strict=True):
            assert torch.equal(x, y), f"replay {replay} gives other numbers than a call"
    return f"{len(kept)} results, 3 replays with other numbers"
