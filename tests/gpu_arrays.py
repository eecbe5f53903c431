"""What the checks on a GPU share: arrays on the device, answers of kernels to problems, many processes.

Every tile, head dim and dtype is one more kernel to compile, so each dtype gets its own few.
"""

import os
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

os.environ.setdefault("FA_REF_CUDA", "gpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")                  # of each of the processes

import numpy as np
from ml_dtypes import bfloat16

import cuda_kernels
from cuda_kernels import WITH_BACKWARD
from fa_ref.testing import Problem, Result, tolerance

KERNELS = tuple(cuda_kernels.KERNELS)
PLAIN = cuda_kernels.PLAIN
DEVICE = "cpu" if cuda_kernels.SIMULATED else "cuda"                # test_gpu_check.py tries some in the simulator
ON_TENSOR_CORES = tuple(name for name in KERNELS if name not in PLAIN)
DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": bfloat16}
SHAPES = {"float32": {"head_dims": (3, 64), "tiles": (7,)}, "float64": {"head_dims": (8, 17), "tiles": (16,)},
          "float16": {"head_dims": (16, 40), "tiles": (5,)}, "bfloat16": {"head_dims": (1, 32), "tiles": (4,)}}
SHAPES_ON_TENSOR_CORES = {"float16": {"head_dims": (24, 64), "tiles": (64,)},
                          "bfloat16": {"head_dims": (5, 128), "tiles": (64,)}}
THREADS, THREADS_BY_WARPS = (33, 128, 256), (32, 96, 256)


def dtypes_of(kernel):
    """The names of the dtypes that a kernel takes."""
    return tuple(DTYPES) if kernel in PLAIN else tuple(SHAPES_ON_TENSOR_CORES)


def shapes_of(kernel, dtype):
    return (SHAPES if kernel in PLAIN else SHAPES_ON_TENSOR_CORES)[dtype]


def threads_of(p, kernel):
    """The threads for a problem. On tensor cores 128, to which tiles of 64 × 64 belong."""
    if kernel in ON_TENSOR_CORES:
        return 128
    choices = THREADS if kernel in WITH_BACKWARD else THREADS_BY_WARPS
    return choices[(p.q.shape[2] + p.k.shape[2]) % len(choices)]


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


def judged(result, truth, bounds, what=""):
    """The worst error as a fraction of its bound; AssertionError where it is more, which begins with `what`."""
    worst = tolerance.worst(result, truth, bounds)
    for name, w in worst.items():
        assert w.fraction <= 1, f"{what}{name}{w.index}: {w.fraction:.3g} times its bound"
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


def large_problem(dtype, seed, Nq, Nk, d, dv, **options):
    rng = np.random.default_rng(seed)
    wide = np.float64 if dtype == np.float64 else np.float32
    shapes = {"q": (1, 4, Nq, d), "k": (1, 2, Nk, d), "v": (1, 2, Nk, dv), "dout": (1, 4, Nq, dv)}
    return Problem(**{name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()},
                   dlse=rng.standard_normal((1, 4, Nq)).astype(wide), **options)


def rows(report, what, check, names=ON_TENSOR_CORES):
    """A row for each name, of a kernel or a dtype: what check(name) says, or how it failed."""
    for name in names:
        try:
            report.add(f"{what}, {name}", True, check(name))
        except Exception:
            report.add(f"{what}, {name}", False, traceback.format_exc())
