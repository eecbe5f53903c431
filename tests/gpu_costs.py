"""What each rung of the kernels costs in time and device memory, beside torch's math backend in the same run."""

import numpy as np

import cuda_kernels
from cuda_kernels import WITH_BACKWARD, launch

RATIO = 10                  # teaching fa2 may take this many times what torch's math backend does
N, D = 4096, 64


def milliseconds(call, runs):
    """The median time of a call on the device, after a first one that compiles. The device is made to wait until the
    host has asked for all of it: otherwise a short call's time would be the host's."""
    import torch

    call()
    times = []
    for _ in range(runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)                                # about a millisecond
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times))


def megabytes(call):
    """Device memory that a call needs beyond its inputs, as torch counts it (results included)."""
    import torch

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def costs(report):
    """Every kernel at N = 4096, d = 64, 16 heads and 1 head, in float32, on tensor cores in float16; report.costs gets
    the table.

    With the largest tiles that fit; where those are 32 × 32 also with 16 × 16, to compare with kernels that have no
    room for more.
    """
    for heads in (16, 1):
        x, torchs, truth = torch_math(heads)
        for pass_, (ms, mb) in torchs.items():
            cost(report, heads, "torch math", "", pass_, ms, mb, 1.0)
        for kernel in cuda_kernels.PLAIN:
            for tile in sorted({largest_tile(kernel), 16}, reverse=True):
                def forward(kernel=kernel, tile=tile, x=x):
                    return cuda_kernels.forward(*x[:3], kernel=kernel, block_q=tile, block_k=tile)

                answer = forward()
                assert abs(answer.out - truth).max() <= 1e-5
                ms, mb = measured(forward)
                ratio = ms / torchs["forward"][0]
                cost(report, heads, kernel, tile, "forward", ms, mb, ratio)
                if (kernel, heads, tile) == ("fa2", 16, 32):
                    must = f"must be ≤ {RATIO} ×"
                    report.add("time of fa2 forward", ratio <= RATIO, f"{ratio:.1f} × torch math, {must}")
            if kernel not in WITH_BACKWARD:
                continue
            for deterministic in (False, True) if kernel == "fa2" else (False,):
                def backward(kernel=kernel, deterministic=deterministic, x=x, answer=answer):
                    return cuda_kernels.backward(x[3], *x[:3], *answer, kernel=kernel, deterministic=deterministic)

                ms, mb = measured(backward)
                name = "backward, deterministic" if deterministic else "backward"
                cost(report, heads, kernel, largest_tile(kernel, True), name, ms, mb, ms / torchs["backward"][0])
        for kernel in (name for name in cuda_kernels.KERNELS if name not in cuda_kernels.PLAIN):
            on_tensor_cores(report, heads, kernel, [y.half() for y in x], torchs, truth)
    report.add("costs", True, f"{len(report.costs)} rows")


def on_tensor_cores(report, heads, kernel, x, torchs, truth):
    """The rows of one kernel in float16, beside torch's math backend in float32."""
    answer = cuda_kernels.forward(*x[:3], kernel=kernel)
    assert abs(answer.out - truth).max() <= 2 * np.finfo(np.float16).eps * abs(x[2]).max()
    ms, mb = measured(lambda: cuda_kernels.forward(*x[:3], kernel=kernel))
    cost(report, heads, kernel, "", "forward, float16", ms, mb, ms / torchs["forward"][0])
    for deterministic in (False, True) if kernel in WITH_BACKWARD else ():
        ms, mb = measured(lambda deterministic=deterministic: cuda_kernels.backward(
            x[3], *x[:3], *answer, kernel=kernel, deterministic=deterministic))
        name = "backward, float16" + (", deterministic" if deterministic else "")
        cost(report, heads, kernel, "", name, ms, mb, ms / torchs["backward"][0])


def largest_tile(kernel, backward=False):
    """The size of the tiles that cuda_kernels.forward (or backward) takes of its own accord, with its 128 threads."""
    core = cuda_kernels.KERNELS[kernel]
    how = {"threads": launch.DEFAULT_THREADS} if hasattr(core, "WARPS") else {"backward": backward}

    def bytes_of(Br, Bc):
        return core.shared_bytes(Br, Bc, D, D, 4, **how)

    return launch.check_tiles(bytes_of, None, None, launch.limits(), "")[0]


def measured(call):
    return milliseconds(call, 3), megabytes(call)


def torch_math(heads):
    """q, k, v, dout; {pass: (ms, MB)} of torch's math backend; its output."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.backends.cuda.matmul.allow_tf32 = False
    x = [torch.randn(1, heads, N, D, device="cuda").half().float() for _ in range(4)]       # float16 has these numbers
    leaves = [y.clone().requires_grad_() for y in x[:3]]

    def forward(q, k, v):
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def both():
        return torch.autograd.grad(forward(*leaves), leaves, x[3])

    ms = milliseconds(lambda: forward(*x[:3]), 20)
    found = {"forward": (ms, megabytes(lambda: forward(*x[:3]))),
             "backward": (milliseconds(both, 20) - ms, megabytes(both))}
    return x, found, forward(*x[:3])


def cost(report, heads, kernel, tile, pass_, ms, mb, ratio):
    """One row of the table of costs."""
    report.costs.append((heads, kernel, tile, pass_, ms, ratio, mb))
    print(f"        {heads} heads, {kernel} {pass_} {tile}: {ms:.2f} ms, {ratio:.1f} × torch math, {mb:.0f} MB",
          flush=True)


def memory(report):
    """fa2 needs memory in proportion to N: four times the length, four times the bytes, forward and backward."""
    import torch

    used = {}
    for length in (4096, 16384):
        x = [torch.randn(1, 2, length, D, device="cuda") for _ in range(4)]
        answer = cuda_kernels.forward(*x[:3])
        used[length] = megabytes(lambda x=x: cuda_kernels.forward(*x[:3])), megabytes(
            lambda x=x, answer=answer: cuda_kernels.backward(x[3], *x[:3], *answer))
    for pass_, small, large in zip(("forward", "backward"), used[4096], used[16384], strict=True):
        report.add(f"memory of fa2 {pass_}, N = 4096 and 16384", large <= 4.2 * small,
                   f"{small:.1f} MB and {large:.1f} MB")
