"""Every number of the benchmark, as plain dictionaries and lists: what is saved, judged and shown.

    on          the card, the day, the versions: see `machine`
    pass        "forward" or "backward"
    kernels     the names of ours
    cells       one for each problem (case) and peer: ms (median), spread (how far apart the middle half of the rounds
                is, as a part of the median), rounds, mb (MiB) beyond the inputs, error and allowed (see `truth`,
                `gradients`); or why there is none. beside: what ours took in the rounds of its own that a peer had
    overhead    {peer: microseconds of the host for each call}
    memory      [{N, peer: mb}] of one batch entry: what grows with N
    resources   what a block of each kernel that ran takes of a multiprocessor

`which` is one of the modules `forward` and `backward`.
"""

import platform
import statistics
import subprocess
from datetime import date
from importlib.metadata import version

import torch

from cuda_kernels.bench import backward, forward, peers, resources
from cuda_kernels.bench.clock import host_microseconds
from cuda_kernels.bench.grid import Case, plain_bytes
from cuda_kernels.bench.targets import OURS

BUDGET_MS, FEWEST, MOST = 500, 5, 100                               # of all rounds of one problem; how many rounds
PASSES = {which.NAME: which for which in (forward, backward)}
SLOW = "math"                                                       # standard attention
FA1, FA1_DIMS = "fa1_mma", (64, 128)                                # for comparison, with these head dims
OVERHEAD = Case(1, 8, 8, 128, 64, False)
MEMORY_LENGTHS = (1024, 2048, 4096, 8192, 16384)


def cells(case, device, kernels, budget_ms=BUDGET_MS, which=forward):
    """The cells of one problem."""
    given = which.tensors(case, device)
    known, found, runnable = which.yardstick(*given, case.causal), {}, {}
    everybody = which.ready(case, *given, [name for name in kernels if name != FA1 or case.d in FA1_DIMS])
    for name, prepare in everybody.items():
        cell = found[name] = {"case": case._asdict(), "peer": name}
        why = too_large(case, device, which.NAME) if name == SLOW else None
        if not why:
            out, mb, why = first_call(prepare, device)
        if why:
            cell["why"] = why
            continue
        error, allowed = which.errors(out, known)
        cell |= {"mb": mb, "error": error, "allowed": allowed}
        runnable[name] = prepare
        del out                                                     # the next one's memory is counted
    fast = [name for name in runnable if name != SLOW]
    for name, times in zip(fast, timed(device, [runnable[name]() for name in fast], budget_ms), strict=True):
        found[name] |= summary(times)
    if SLOW in runnable:                                            # has rounds of its own, in turns with ours
        ours = [name for name in runnable if name == OURS]
        *beside, times = timed(device, [runnable[name]() for name in [*ours, SLOW]], budget_ms)
        found[SLOW] |= summary(times) | {"beside": dict(zip(ours, map(statistics.median, beside), strict=True))}
    return list(found.values())


def summary(times):
    """The median, how far apart the middle half is, and how many there are."""
    low, middle, high = statistics.quantiles(times, n=4)
    return {"ms": middle, "spread": (high - low) / middle, "rounds": len(times)}


def first_call(prepare, device):
    """(its answer, MiB that it needed beyond the inputs or None if that is not seen, None) of a call that is prepared
    for it; or (None, None, why it cannot be made)."""
    answer, why = peers.tried(lambda: device.with_memory(lambda: prepare()()))
    if why:
        return None, None, why
    out, nbytes = answer
    return out, nbytes and nbytes / 2**20, None


def too_large(case, device, what):
    """Why standard attention cannot be tried on this problem, forward or backward; None if it can."""
    needed, free = plain_bytes(case, what), device.free()
    return f"needs about {needed / 2**30:.0f} GiB, {free / 2**30:.0f} are free" if needed > free else None


def timed(device, calls, budget_ms):
    """[milliseconds of each round] of each call, as many rounds as the budget allows; two before them do not count."""
    if not calls:
        return []
    once = sum(times[-1] for times in device.times(calls, 2))
    return device.times(calls, max(FEWEST, min(MOST, int(budget_ms / max(once, 1e-6)))))


def overhead(device, kernels, case=OVERHEAD, number=1000, which=forward):
    """{peer: microseconds of the host} where a call is hardly any work, everything warm: torch's choice beside ours."""
    given = which.tensors(case, device)
    calls = {"torch": which.by_choice(*given)}
    calls |= {name: prepare() for name, prepare in which.ready(case, *given, kernels).items()
              if name not in peers.BACKENDS} | which.in_graph(*given)
    return dict(zip(calls, host_microseconds(device, list(calls.values()), number), strict=True))


def memory(device, kernels, lengths=MEMORY_LENGTHS, heads=16, d=128, which=forward):
    """[{N, peer: mb beyond the inputs, or why it has none}] for one batch entry."""
    rows = []
    for N in lengths:
        case = Case(1, heads, heads, N, d, False)
        row = {"N": N}
        for name, prepare in which.ready(case, *which.tensors(case, device), kernels).items():
            out, mb, why = first_call(prepare, device)
            row[name] = why or mb
            del out                                                 # the next one's memory is counted
        rows.append(row)
    return rows


def everything(device, cases, kernels, budget_ms=BUDGET_MS, step=lambda what: None, which=forward, found=None):
    """All of it, in a dictionary, `found` if that is given; step(what) is told before each part, in words."""
    found = {} if found is None else found
    found |= {"pass": which.NAME, "kernels": list(kernels), "cells": []}
    for case in cases:
        step(f"N = {case.N}, d = {case.d}, {case.kind}")
        found["cells"] += cells(case, device, kernels, budget_ms, which)
    step("overhead of a call")
    found["overhead"] = overhead(device, kernels, which=which)
    step("memory")
    found["memory"] = memory(device, kernels, which=which)
    found["resources"] = resources.used(which.NAME)
    return found


def machine():
    """Where and with what it was measured."""
    driver = subprocess.run("nvidia-smi --query-gpu=driver_version --format=csv,noheader", shell=True, text=True,
                            capture_output=True, check=False).stdout.split()
    return {"card": torch.cuda.get_device_name(), "date": str(date.today()), "driver": driver[0] if driver else "–",
            "torch": torch.__version__, "cuda of torch": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
            "numba-cuda": version("numba-cuda"), "numba": version("numba"), "python": platform.python_version()}
