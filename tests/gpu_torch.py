"""The kernels on CUDA tensors: streams, threads, kinds of arrays, what is refused, determinism, large offsets."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import cuda_kernels
from cuda_kernels import WITH_BACKWARD
from gpu_arrays import DEVICE, KERNELS, ON_TENSOR_CORES, PLAIN, large_problem, on_gpu, on_host, rows, solve_numpy


def streams(report):
    """On torch's current stream, asynchronously: kernels wait for what was queued there before, the caller does not.
    And in any thread of the host."""
    rows(report, "another stream", on_another_stream, KERNELS)
    rows(report, "another thread of the host", in_another_thread, KERNELS)


def on_another_stream(kernel):
    import torch

    def gradients(*x):
        return cuda_kernels.backward(*x, kernel=kernel, causal=True, deterministic=True) if (
            kernel in WITH_BACKWARD) else ()

    dtype = torch.float32 if kernel in PLAIN else torch.float16
    real = [torch.randn(2, 4, 300, 64, device="cuda", dtype=dtype) for _ in range(4)]
    answer = cuda_kernels.forward(*real[:3], kernel=kernel, causal=True)
    grads = gradients(real[3], *real[:3], *answer)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    late = [torch.zeros_like(x) for x in real]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)                              # the inputs arrive only after this
        for x, y in zip(late, real, strict=True):
            x.copy_(y)
        begun = time.perf_counter()
        other = cuda_kernels.forward(*late[:3], kernel=kernel, causal=True)
        returned = time.perf_counter() - begun
        other_grads = gradients(late[3], *late[:3], *other)
    side.synchronize()
    for x, y in zip([*answer, *grads], [*other, *other_grads], strict=True):
        assert (x is None and y is None) or torch.equal(x, y)
    assert returned < 0.05, f"forward came back after {returned:.3f} s: it has waited"
    return f"equal; forward came back after {1e3 * returned:.1f} ms"


def in_another_thread(kernel):
    """A call that was made before is the first thing that a new thread asks of the GPU."""
    import torch

    x = [torch.randn(1, 2, 100, 64, device="cuda", dtype=torch.float32 if kernel in PLAIN else torch.float16)
         for _ in range(4)]

    def results():
        out, lse = cuda_kernels.forward(*x[:3], kernel=kernel)
        grads = cuda_kernels.backward(x[3], *x[:3], out, lse, kernel=kernel, deterministic=True)[:3] if (
            kernel in WITH_BACKWARD) else ()
        return out, lse, *grads

    first = results()
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(results).result()
    assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    return f"the same bits, {len(first)} results"


def kinds(report):
    """Tensors that require grad, host arrays as mask and sink, Numba's device arrays."""
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


def refused(report):
    """Bad input in device memory, of the kernels in general and of those on tensor cores; lengths of zero."""
    rows(report, "bad input on the device", refuses, ("fa2", *ON_TENSOR_CORES))
    rows(report, "axes of length zero on the device", of_length_zero, KERNELS)


def refuses(kernel):
    """(what it is, arguments, options, error, word of its text) one after the other."""
    import torch
    from numba import cuda

    dtype = torch.float32 if kernel in PLAIN else torch.float16
    q, k, v = (torch.randn(1, 2, n, 16, device="cuda", dtype=dtype) for n in (40, 50, 50))
    host, mask = k.cpu().numpy(), np.ones((40, 50), bool)
    cases = [
        ("two devices", (q, k.cpu(), v), {}, TypeError, "different kinds or devices"),
        ("tensors and arrays", (q, host, host), {}, TypeError, "NumPy array"),
        ("threads", (q, k, v), {"threads": 1025}, ValueError, "1024"),
        ("threads of warps", (q, k, v), {"threads": 48, "kernel": "fa2_warps"}, ValueError, "multiple of 32"),
        ("a mask of another kind", (q, k, v), {"mask": cuda.to_device(mask)}, TypeError, "mask must be on"),
        ("int8", (q.to(torch.int8), k, v), {}, TypeError, "int8"),
        ("a mask on the device", (host, host, host), {"mask": on_gpu(mask)}, TypeError, "mask"),
        ("grid", [x.expand(70000, *x.shape[1:]) for x in (q, k, v)], {}, ValueError, "65535"),
    ]
    if kernel in ON_TENSOR_CORES:
        wide = [torch.zeros(1, 1, 8, 264, device="cuda", dtype=dtype)] * 3
        cases += [("float32", [x.float() for x in (q, k, v)], {}, NotImplementedError, "fa2 offers it"),
                  ("d = 264", wide, {}, NotImplementedError, "d = 264 is not offered"),
                  ("softcap", (q, k, v), {"softcap": 1.0}, NotImplementedError, "softcap is not offered"),
                  ("a mask", (q, k, v), {"mask": on_gpu(mask)}, NotImplementedError, "a mask is not offered"),
                  ("channels", (q, k.mT.contiguous().mT, v), {}, ValueError, "to the next it is 50 elements"),
                  ("tiles", (q, k, v), {"block_q": 24, "block_k": 24}, ValueError, "got 24")]
    for name, arguments, options, error, word in cases:
        try:
            cuda_kernels.forward(*arguments, **({"kernel": kernel} | options))
        except error as told:
            assert word in str(told), f"{name}: {told}"
        else:
            raise AssertionError(f"not refused: {name}")
    backward = kernel in ON_TENSOR_CORES and kernel in WITH_BACKWARD
    if backward:
        refuses_other_conventions(kernel, q, k, v)
    return f"{len(cases) + 2 * backward} kinds refused with the numbers"


def refuses_other_conventions(kernel, q, k, v):
    """+inf, as others write it for rows that see no key, and base 2. The natural lse comes last: once such a call has
    been made, others like it are not checked."""
    out, lse = cuda_kernels.forward(q, k, v, kernel=kernel)
    infinite = lse.clone()
    infinite[0, 1, 7] = np.inf
    for wrong, word in ((infinite, "lse is +inf at (0, 1, 7)"), (lse / np.log(2), "lse is in base 2: ")):
        try:
            cuda_kernels.backward(out, q, k, v, out, wrong, kernel=kernel)
        except ValueError as told:
            assert word in str(told), told
        else:
            raise AssertionError(f"not refused: {word}")
    cuda_kernels.backward(out, q, k, v, out, lse, kernel=kernel)


def of_length_zero(kernel):
    import torch

    dtype = torch.float32 if kernel in PLAIN else torch.float16
    for shape_q, shape_k in (((1, 2, 0, 8), (1, 2, 5, 8)), ((1, 2, 5, 8), (1, 2, 0, 8)), ((0, 2, 5, 8), (0, 2, 5, 8))):
        x, y = (torch.randn(shape, device=DEVICE, dtype=dtype) for shape in (shape_q, shape_k))
        out, lse = cuda_kernels.forward(x, y, y, kernel=kernel)
        assert not out.any() and torch.isneginf(lse).all()
        if kernel in WITH_BACKWARD:
            grads = cuda_kernels.backward(torch.ones_like(out), x, y, y, out, lse, kernel=kernel)
            assert not any(g.any() for g in grads[:3])
    return "zeros and −inf"


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
    for kernel in ("fa2", "fa2_warps", "fa2_mma", "standard"):
        out, lse = cuda_kernels.forward(q, k, v, kernel=kernel)
        last = cuda_kernels.forward(q[:, :, -96:].contiguous(), k, v, kernel=kernel)
        assert torch.equal(out[:, :, -96:], last.out) and torch.equal(lse[:, :, -96:], last.lse)
        assert out.numel() > 2**31 and bool(torch.isfinite(lse).all())
        report.add(f"Q and O of {q.numel():,} elements, {kernel}", True, "the last rows are those of a small call")
        del out, lse
