"""What each rung is worth: measured on one GPU, beside what was predicted and beside torch's FLASH backend.

    python -m cuda_kernels ladder [--save FILE] [--dtype bf16|f16] [--rungs r0,r3]

16,384 tokens with a hidden size of 2048: N = 4096, a batch of 4, 32 heads of d = 64 or 16 of d = 128, random data.
Every rung is checked before it is timed, by the rule of two errors (`fa_ref.testing.standard_16bit`): its error may be
twice that of standard attention in 16 bits. Times are medians, of rounds in which torch's backend has its turn too.
"""

import math
import sys
from datetime import date
from functools import partial
from statistics import median

import numpy as np
from rich.progress import Progress

from cuda_kernels.bench import check_save, parser_of, save, unable
from cuda_kernels.ladder import NAMES, run, table
from cuda_kernels.launch import compiled_for
from cuda_kernels.switch import SIMULATED
from fa_ref.terminal import console

TOKENS, HIDDEN, N = 16384, 2048, 4096
MATRIX = 8192                                                       # sides of the matrices of the matrix rate
BUDGET_MS = 300                                                     # of all rounds of one rung
WAIT_CYCLES = 50_000_000                                            # launches are not prepared here: see bench.clock
DTYPES = {"bf16": "bfloat16", "f16": "float16"}
WITHOUT = """ladder times kernels on a GPU, and they run in the simulator here. What can be done without a GPU:
  diff -w cuda_kernels/ladder/r3.py cuda_kernels/ladder/r4.py    read what a rung changes
  python -m pytest -s tests/test_ladder.py -k "right and r3"     run a rung; it stops at a breakpoint() in its file"""


# --- what is measured -----------------------------------------------------------------------------------------

def measured(names, dtype, step=lambda what: None):
    """All numbers, as `table` takes them; step(what) is told in words what comes next. dtype: a name of torch's."""
    import torch

    from cuda_kernels.bench import clock, measure

    dtype = getattr(torch, dtype)
    timed = partial(measure.timed, clock.Gpu(WAIT_CYCLES), budget_ms=BUDGET_MS)
    step("the matrix rate")
    sides = [torch.randn(MATRIX, MATRIX, device="cuda", dtype=dtype) for _ in range(2)]
    (times,) = timed([lambda: torch.matmul(*sides)])
    found = {"on": f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {date.today()}",
             "dtype": str(dtype).removeprefix("torch."), "matrix_rate": 2 * MATRIX**3 / median(times) / 1e9, "rows": []}
    for d, causal in CASES:
        q, k, v = problem(d, dtype)
        truth = truth_of(q, k, v, causal)
        for name, spills in variants(names):
            step(f"{name}{' with tiles that spill' if spills else ''}, d = {d}, {'causal' if causal else 'full'}")
            found["rows"].append(row(name, spills, q, k, v, causal, truth, timed))
    return found


CASES = [(d, causal) for d in run.DIMS for causal in (False, True)]


def variants(names):
    """[(rung, with the tiles that spill?)]"""
    return [(name, spills) for name in names for spills in (False, True)
            if not spills or hasattr(run.rung(name), "SPILLS")]


def problem(d, dtype):
    """q, k, v (B, H, N, d), standard normal."""
    import torch

    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(TOKENS // N, HIDDEN // d, N, d, dtype=dtype, device="cuda", generator=generator)
            for _ in range(3)]


def row(name, spills, q, k, v, causal, truth, timed):
    """One line of the tables. ArithmeticError if the rung is wrong."""
    from cuda_kernels.bench import peers

    module, (B, H, N, d) = run.rung(name), q.shape
    tiles = module.SPILLS if spills else module.TILES
    launch = run.prepare(module, q, k, v, causal, tiles)
    launch()
    error, allowed = compare(*launch.result(), truth)
    if not error <= allowed:
        raise ArithmeticError(f"{name} with tiles {tiles}, d = {d}, causal = {causal}: the error is {error:.2e}, and "
                              f"{allowed:.2e} is allowed")
    flash = partial(peers.by_torch, peers.BACKENDS["flash"], q, k, v, causal, grouped=False)
    mine, flash = map(median, timed([launch, flash]))
    compiled = compiled_for(launch.kernel, launch.threads, launch.arguments)
    return {"rung": name, "spills": spills, "tiles": tiles, "d": d, "causal": causal, "ms": mine, "flash_ms": flash,
            "flop": 4 * B * H * N * N * d // (2 if causal else 1), "error": error, "allowed": allowed,
            "registers": compiled.regs_per_thread, "local": compiled.local_mem_per_thread,
            "shared": compiled.shared_mem_per_block + launch.shared}


# --- is it right? ---------------------------------------------------------------------------------------------

def truth_of(q, k, v, causal):
    """[(b, h, O, L in float64, allowed errors of O and of L)] of the first and the last head.

    Of O the rule of two errors; of L the bound of `fa_ref.testing.tolerance`, its largest of all rows.
    """
    import torch

    from cuda_kernels.bench.truth import of_head

    found, (N, d), eps = [], q.shape[2:], float(np.finfo(np.float32).eps)
    hidden = torch.ones(N, N, dtype=torch.bool, device=q.device).triu(1) if causal else None
    for b, h in ((0, 0), (q.shape[0] - 1, q.shape[1] - 1)):
        O, plain, noise = of_head(q[b, h], k[b, h], v[b, h], causal)
        S = q[b, h].double() @ k[b, h].double().T / math.sqrt(d)
        L = (S if hidden is None else S.masked_fill(hidden, -math.inf)).logsumexp(1)
        A = (q[b, h].abs().float() @ k[b, h].abs().float().T).max().item() / math.sqrt(d)
        of_L = eps * (4 + 2 * A + (2 * N + d) / 4 + L.abs().max().item())
        found.append((b, h, O, L, 2 * plain + 2 * noise, of_L))
    return found


def compare(out, lse, truth):
    """(error of O, what is allowed), of the head where they are closest; ArithmeticError if L is wrong."""
    pairs = []
    for b, h, O, L, of_O, of_L in truth:
        wrong = (lse[b, h].double() - L).abs().max().item()
        if not wrong <= of_L:
            raise ArithmeticError(f"head {b}, {h}: the error of L is {wrong:.2e}, and {of_L:.2e} is allowed")
        pairs.append(((out[b, h].double() - O).abs().max().item(), of_O))
    return max(pairs, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0] / pair[1])


# --- the command ----------------------------------------------------------------------------------------------

def main(argv=None):
    """`python -m cuda_kernels ladder`; returns 2 without a GPU, 1 if a rung is wrong."""
    parser = parser_of("ladder", __doc__)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--rungs", default=",".join(NAMES), help="some of them, with commas: r0,r3")
    options = parser.parse_args(argv)
    names = options.rungs.split(",")
    for name in names:
        if name not in NAMES:
            parser.error(f"a rung is one of {', '.join(NAMES)}, got {name!r}")
    check_save(parser, options.save)
    why = WITHOUT if SIMULATED else unable("ladder")
    if why:
        print(why, file=sys.stderr)
        return 2
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=1 + len(CASES) * len(variants(names)))

        def step(what):
            progress.update(task, description=what, advance=1)

        try:
            found = measured(names, DTYPES[options.dtype], step)
        except ArithmeticError as error:
            print(error, file=sys.stderr)
            return 1
    save(options.save, found)
    table.show(found)
    return 0
