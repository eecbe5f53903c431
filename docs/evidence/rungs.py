"""What one idea after the other was worth on a GPU, by docs/performance/ladder.json; see cuda_kernels/ladder."""

from itertools import groupby

from evidence.records import at_least, measured, numbers, span, where


def tables(ladder, what="ms"):
    """[{rung: ms, or what else}] of each head dim, full and causal, without the rung that is there to spill."""
    rows = sorted((row for row in ladder["rows"] if not row["spills"]), key=case_of)
    return [{row["rung"]: row[what] for row in group} for _, group in groupby(rows, key=case_of)]


def case_of(row):
    """What makes a table."""
    return row["d"], row["causal"]


def on(ladder):
    """The card and the day, and what was measured."""
    return f"{where(ladder)}, forward, N = 4,096, d = {numbers(row['d'] for row in ladder['rows'])}"


@measured("ladder")
def queries_split_among_warps(ladder, least=1.3):
    """Split-Q in the place of split-K, and what follows from it."""
    found = [times["r2"] / times["r3"] for times in tables(ladder)]
    shared = [size["r2"] / size["r3"] for size in tables(ladder, "shared")]
    at_least(min(found), least, "split-Q to split-K")
    return (f"{on(ladder)}: our kernel is {span(found)} times as fast once its warps cut the queries and no longer the "
            "keys (rung 3 of the ladder). They write no partial results for each other, and a block needs "
            f"{span(shared)} times less shared memory, so more of them run at once")


@measured("ladder")
def from_end_to_end(ladder, least_algorithm=2.0, least_machine=2.0):
    """FlashAttention-1 with nothing done for speed, to FlashAttention-2 with all of it: the steps of both kinds."""
    algorithm = [times["r0"] / times["r3"] for times in tables(ladder)]
    machine = [times["r3"] / times["r8"] for times in tables(ladder)]
    at_least(min(algorithm), least_algorithm, "the algorithm")
    at_least(min(machine), least_machine, "what is done for the machine")
    total = [a * b for a, b in zip(algorithm, machine, strict=True)]
    return (f"{on(ladder)}: from FlashAttention-1 with nothing done for speed, which is nobody's release, the three "
            f"steps of the algorithm bring a factor of {span(algorithm)}, copies, layout, skipped tiles and sizes one "
            f"of {span(machine)}, together {span(total, '.0f')}")
