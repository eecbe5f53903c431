"""Time and memory of the loops as ratios, all measured in one run on this machine.

    python -m fa_ref bench [--lengths 4096 8192] [--head-dim 64]

One head, float32. Memory is what is allocated at the peak beyond inputs and outputs (tracemalloc). Time is the
fastest of five rounds; in a round everything runs once, so that a busy moment of the machine hits all alike. torch's
attention on the CPU, if torch is installed, is the peer that nobody here wrote. Takes about three minutes, most of them
for the errors in 8 bits.
"""

import argparse
import time
import tracemalloc

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.progress import Progress
from rich.table import Table

from fa_ref import fa1, fa2, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule
from fa_ref.tables import precision, traffic
from fa_ref.terminal import console

ROUNDS = 5
TILES = ((128, 512), (256, 512), (256, 1024), (512, 1024), (512, 2048))


def main(argv=None):
    """Measure, print one table and the ratios; always returns 0: a ratio is not a test."""
    parser = argparse.ArgumentParser(prog="python -m fa_ref bench", description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs=2, default=(4096, 8192), metavar=("N", "N"))
    parser.add_argument("--head-dim", type=int, default=64)
    options = parser.parse_args(argv)
    short, long = sorted(options.lengths)

    rng = np.random.default_rng(0)
    times, memory = {}, {}
    runs = {}
    for N in (short, long):
        Q, K, V = rng.standard_normal((3, N, options.head_dim)).astype(np.float32)
        for Br, Bc in TILES:
            runs[f"fa2 {Br}×{Bc}", N] = head_run(fa2, Q, K, V, Br, Bc)
        runs["fa1 256×1024", N] = head_run(fa1, Q, K, V, 256, 1024)
        runs["standard", N] = head_run(standard, Q, K, V, None, None)
        runs |= torch_run(Q, K, V, N)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=(ROUNDS + 1) * len(runs))
        for which, run in runs.items():
            memory[which] = extra_memory(run)
            progress.advance(task)
        for _ in range(ROUNDS):
            for which, run in runs.items():
                times[which] = min(times.get(which, np.inf), seconds(run))
                progress.advance(task)

    table = Table("", *(f"{what}\nN = {N}" for N in (short, long) for what in ("seconds", "extra MB")), box=SIMPLE_HEAD)
    for name in dict.fromkeys(name for name, _ in times):
        table.add_row(name, *(cell for N in (short, long)
                              for cell in (f"{times[name, N]:.3f}", megabytes(memory[name, N]))))
    console.print(table)

    best = min((name for name, N in times if name.startswith("fa2") and N == long), key=lambda n: times[n, long])
    console.print(f"best fa2 at N = {long}: {best}")
    ratio("time, to standard", times[best, long], times["standard", long], 1)
    ratio("extra memory, to standard", memory[best, long], memory["standard", long], 0.05)
    if ("torch", long) in times:
        ratio("time, to torch on the CPU", times[best, long], times["torch", long], 5)
    ratio(f"time, N = {long} to {short}", times[best, long], times[best, short], 4.4)
    ratio(f"extra memory, N = {long} to {short}", memory[best, long], memory[best, short], 1.2)
    for tile in (32, 64):
        ratio(f"time, fa1 metered to plain, {tile}×{tile}", *metering(tile), 10)
    console.print("the papers' tables")
    ratio("seconds, traffic of FA1, Figure 2", seconds(traffic.figure_2_middle), 1, 60)
    with Progress(console=console, transient=True) as progress:
        quick, full = (seconds(lambda q=q: precision.errors_table(q, progress)) for q in (True, False))
    ratio("seconds, errors in 8 bits, --quick", quick, 1, 30)
    ratio("seconds, errors in 8 bits, 4 draws", full, 1, 360)
    return 0


def head_run(core, Q, K, V, Br, Bc):
    """A call of one core on one head."""
    rule = Rule(len(Q), len(K), scale=Q.shape[1] ** -0.5)
    return lambda: core.forward_head(Q, K, V, rule, Br, Bc)


def torch_run(Q, K, V, N):
    """A call of torch's attention on the same head; nothing if torch is not installed."""
    try:
        import torch
    except ImportError:
        return {}
    q, k, v = (torch.from_numpy(x)[None, None] for x in (Q, K, V))
    return {("torch", N): lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)}


def metering(tile, core=fa1, N=1024, d=64):
    """(seconds with a ledger, seconds without) of one head; FlashAttention-1 loads and stores most often."""
    Q, K, V = np.random.default_rng(0).standard_normal((3, N, d)).astype(np.float32)
    plain = head_run(core, Q, K, V, tile, tile)

    def metered():
        with Ledger() as led:
            head_run(core, *(led.hbm(x) for x in (Q, K, V)), tile, tile)()

    times = [(seconds(metered), seconds(plain)) for _ in range(ROUNDS)]
    return tuple(min(column) for column in zip(*times, strict=True))


def seconds(run):
    """How long one run takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def extra_memory(run):
    """Bytes allocated at the peak beyond the answer; None where tracemalloc sees nothing (torch)."""
    tracemalloc.start()
    answer = run()
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak - kept if isinstance(answer, tuple) else None


def megabytes(n):
    """None is memory that tracemalloc cannot see."""
    return "not seen" if n is None else f"{n / 1e6:.2f}"


def ratio(what, a, b, most):
    """One ratio beside what it is meant to be at most."""
    verdict = "met" if a / b <= most else "not met in this run (times depend on what else the machine does)"
    console.print(f"  {what:34} {a / b:7.3f}   at most {most}: {verdict}")
