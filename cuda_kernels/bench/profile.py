"""What the kernels on tensor cores wait for, ours and torch's FLASH, as the hardware counts it: Nsight Compute.

    python -m cuda_kernels profile                          a minute on a GPU
    python -m cuda_kernels profile --save profile.json      kept for `python docs/generate.py profile`

Two kinds of counts. How busy are the parts of a multiprocessor: one that is busy nearly all the time is what bounds a
kernel. And what a warp waits for from one of its instructions to the next, on average, in clocks: one of them is the
issue itself, and with several warps the waits of one are filled with the work of others.
"""

import sys

from cuda_kernels.bench import check_save, ncu, parser_of, save, unable
from cuda_kernels.bench.grid import DIMS, HIDDEN, TOKENS, Case
from cuda_kernels.bench.targets import OURS, PEER
from fa_ref.terminal import console, tabled

LENGTH = 4096
BUSY = {                                                            # in % of what it can do
    "products": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "shared memory": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "instructions": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "memory": "dram__cycles_active.avg.pct_of_peak_sustained_elapsed"}
PER_INSTRUCTION = "smsp__average_warp_latency_per_inst_issued.ratio"
WAITS = {name: f"smsp__average_warps_issue_stalled_{stall}_per_issue_active.ratio" for name, stall in (
    ("for shared memory or an ex2", "short_scoreboard"), ("for memory", "long_scoreboard"),
    ("for the product unit", "math_pipe_throttle"), ("at a barrier", "barrier"))}
METRICS = [*BUSY.values(), PER_INSTRUCTION, *WAITS.values()]
NAMES = {OURS: f"`{OURS}`", PEER: "torch, FLASH"}
KERNELS = "forward|backward|flash_fwd_kernel|flash_bwd_dq_dk_dv"    # but what only prepares or converts
HEAD = ["d", "pass", "", *(f"{part}, %" for part in BUSY), "clocks from one instruction to the next",
        *(f"of these {wait}" for wait in WAITS)]
NUMBERS = range(3, len(HEAD))


def cases():
    """[(d, pass, who)] in the order of the launches: full attention over `grid.TOKENS` tokens."""
    return [(d, what, who) for d in DIMS for what in ("forward", "backward") for who in (OURS, PEER)]


def launch():
    """What Nsight Compute watches."""
    import torch

    from cuda_kernels.bench import backward, clock

    for d in DIMS:
        case = Case(TOKENS // LENGTH, HIDDEN // d, HIDDEN // d, LENGTH, d, False)
        ready = backward.ready(case, *backward.tensors(case, clock.Gpu(at_once=1)), [OURS])
        for call in [ready[name]() for name in (OURS, PEER)]:       # both forward passes, …
            call()                                                  # … then both backward passes
    torch.cuda.synchronize()


def measured():
    """[{d, pass, who, metric: number}] of `cases`. Raises as `ncu.counted`, also if that has seen other launches."""
    found = ncu.counted([sys.executable, "-m", "cuda_kernels", "profile", "--launch"], METRICS, KERNELS)
    wanted = cases()
    seen = [PEER if PEER in row["kernel"] else OURS for row in found]
    if seen != [who for _, _, who in wanted]:
        raise RuntimeError(f"Nsight Compute has seen other launches: {[row['kernel'][:60] for row in found]}")
    return [{"d": d, "pass": what, "who": who} | row for (d, what, who), row in zip(wanted, found, strict=True)]


def table(rows):
    """The lines under HEAD."""
    for row in rows:
        yield (str(row["d"]), row["pass"], NAMES[row["who"]], *(f"{row[metric]:.0f}" for metric in BUSY.values()),
               f"{row[PER_INSTRUCTION]:.1f}", *(f"{row[metric]:.2f}" for metric in WAITS.values()))


def main(argv=None):
    """Measure, show, save; returns 0, or 2 where nothing can be measured."""
    parser = parser_of("profile", __doc__)
    parser.add_argument("--launch", action="store_true", help="only launch the kernels: what Nsight Compute watches")
    options = parser.parse_args(argv)
    check_save(parser, options.save)
    why = unable("profile")
    if why:
        print(why)
        return 2
    if options.launch:
        launch()
        return 0
    from cuda_kernels.bench import measure

    try:
        rows = measured()
    except FileNotFoundError:
        print("profile needs Nsight Compute: there is no program ncu")
        return 2
    except RuntimeError as problem:
        print(problem)
        return 2
    record = {"on": measure.machine(), "pass": "forward and backward", "N": LENGTH, "rows": rows}
    save(options.save, record)
    console.print(tabled(*HEAD, right=NUMBERS, rows=table(rows)))
    return 0
