"""What the measurements are held against: pure functions of what `measure.everything` returns."""

from itertools import groupby
from typing import NamedTuple

from cuda_kernels.bench.grid import Case, flops

OURS, PEER = "fa2_mma", "flash"
RATIOS = {64: 1.0, 128: 1.0, 256: 0.9}                              # speed to torch's flash backend, for each d …
FROM = 512                                                          # … from this length on
BACKWARD_RATIOS, BACKWARD_FROM = {64: 1.0, 128: 1.0}, 1024          # the same for the backward pass …
ELSEWHERE = 0.85                                                    # … and this in all other cases
DETERMINISTIC, TO_ATOMICS = ", deterministic", 0.7                  # without atomics: the peer's name; speed to with
OVERHEAD = 2.0                                                      # at most, to torch's
TO_PLAIN, PLAIN_N = 10.0, 4096                                      # speed to standard attention, at this length
IN_GRAPH = ", by torch.autograd"                                    # the peer's name where torch's graph calls it
GROWTH = 1.05                                                       # memory may grow this much faster than N
NOT_MEASURED = "not measured"


class Target(NamedTuple):
    """One target: what, what was found, and whether that is enough (None: it was not measured)."""

    what: str
    found: str
    met: bool | None

    @property
    def verdict(self):
        return {True: "met", False: "missed", None: NOT_MEASURED}[self.met]


def by_case(cells):
    """{Case: {peer: cell}} in their order."""
    found = {}
    for cell in cells:
        found.setdefault(Case(**cell["case"]), {})[cell["peer"]] = cell
    return found


def speed(row, ours=OURS, peer=PEER):
    """How many times as fast as a peer we are, in a row of `by_case`; None where either has no time. If the peer had
    rounds of its own with ours, those count."""
    theirs = row.get(peer, {})
    a, b = theirs.get("ms"), theirs.get("beside", {}).get(ours, row.get(ours, {}).get("ms"))
    return a / b if a and b else None


def tera(case, ms, what="forward"):
    """TFLOP/s of a forward or backward pass."""
    return flops(case, what) / ms / 1e9


def pass_of(record):
    """"forward" or "backward"."""
    return record.get("pass", "forward")


def judged(record):
    """[Target] of everything that was measured."""
    cases = by_case(record["cells"])
    return {"forward": forward, "backward": backward}[pass_of(record)](record, cases)


def forward(record, cases):
    """The targets of the forward pass."""
    return [*(of_dim(cases, d, FROM, least) for d, least in RATIOS.items()), plain(cases),
            overhead(record["overhead"], OURS), memory(record["memory"]), right(record["cells"], record["kernels"])]


def backward(record, cases):
    """The targets of the backward pass."""
    return [*(of_dim(cases, d, BACKWARD_FROM, least) for d, least in BACKWARD_RATIOS.items()),
            ratio(f"everywhere else: at least {ELSEWHERE} × torch {PEER}", ELSEWHERE, measured(
                cases, PEER, lambda case: case.d not in BACKWARD_RATIOS or case.N < BACKWARD_FROM)),
            ratio(f"deterministic: at least {TO_ATOMICS} × with atomics", TO_ATOMICS, measured(
                cases, OURS, lambda case: True, ours=OURS + DETERMINISTIC)),
            overhead(record["overhead"], OURS + IN_GRAPH), memory(record["memory"]),
            right(record["cells"], [name + how for name in record["kernels"] for how in ("", DETERMINISTIC)])]


def of_dim(cases, d, length, least):
    """Are all cases of this d fast enough, from this length on?"""
    return ratio(f"d = {d}, N ≥ {length}: at least {least} × torch {PEER}", least,
                 measured(cases, PEER, lambda case: case.d == d and case.N >= length))


def ratio(what, least, speeds):
    """Is the slowest of all cases fast enough? speeds: what `measured` returns."""
    if not speeds:
        return Target(what, NOT_MEASURED, None)
    worst, enough = min(speeds, key=speeds.get), sum(x >= least for x in speeds.values())
    d = f"d = {worst.d}, " if len({case.d for case in speeds}) > 1 else ""
    return Target(what, f"{enough} of {len(speeds)}; least {speeds[worst]:.3f} × at {d}N = {worst.N}, {worst.kind}",
                  enough == len(speeds))


def measured(cases, peer, wanted, ours=OURS):
    """{case: how many times as fast as the peer} of the wanted cases that it can do; what we cannot do counts as 0."""
    return {case: speed(row, ours, peer) or 0.0 for case, row in cases.items()
            if wanted(case) and ours in row and row.get(peer, {}).get("ms")}


def plain(cases):
    """Is it faster by far than standard attention?"""
    speeds = measured(cases, "math", lambda case: case.N == PLAIN_N)
    what = f"N = {PLAIN_N}: at least {TO_PLAIN:g} × torch math"
    if not speeds:
        return Target(what, NOT_MEASURED, None)
    worst = min(speeds, key=speeds.get)
    row, told = cases[worst], f"least {speeds[worst]:.1f} × with d = {worst.d}, {worst.kind}"
    if "beside" in row["math"]:
        told += f" ({row['math']['ms'] / row[OURS]['ms']:.1f} × by what {OURS} takes among the fast ones)"
    return Target(what, told, speeds[worst] >= TO_PLAIN)


def overhead(found, name):
    """Is the host done with a call soon enough? name: of ours. torch's own backward pass is called by its graph."""
    what = f"overhead of a call: at most {OVERHEAD:g} × torch's"
    ours = found.get(name)
    if ours is None:
        return Target(what, NOT_MEASURED, None)
    times = ours / found["torch"]
    return Target(what, f"{times:.2f} × ({ours:.1f} µs, torch {found['torch']:.1f} µs)", times <= OVERHEAD)


def memory(rows):
    """Does memory grow no faster than N?"""
    what = "memory in proportion to N"
    rows = [row for row in rows if isinstance(row.get(OURS), float)]          # not a reason why there is none
    if len(rows) < 2:
        return Target(what, NOT_MEASURED, None)
    first, last = rows[0], rows[-1]
    longer, more = last["N"] / first["N"], last[OURS] / first[OURS]
    return Target(what, f"N × {longer:g}: memory × {more:.2f}", more <= longer * GROWTH)


def right(cells, names):
    """Is every answer of these as near to the truth as the rule of two errors asks?"""
    ours = [cell for cell in cells if cell["peer"] in names]
    fractions = [cell["error"] / cell["allowed"] for cell in ours if "error" in cell]
    what = "right answers, by the rule of two errors"
    if not fractions:
        return Target(what, NOT_MEASURED, None)
    good, worst = sum(x <= 1 for x in fractions), max(fractions)
    return Target(what, f"{good} of {len(ours)}; largest error {worst:.2f} of what is allowed", good == len(ours))


def ok(targets):
    """Nothing that was measured missed its target."""
    return all(target.met is not False for target in targets)


def factors(cases, ours=OURS, peer="fa1_mma"):
    """[(d, kind, {N: how many times as fast as the other kernel})] of the cases in which both were measured."""
    known = [(case, speed(row, ours, peer)) for case, row in cases.items()]
    known = sorted(((case, x) for case, x in known if x is not None), key=lambda pair: (pair[0].d, pair[0].kind))
    return [(d, kind, {case.N: x for case, x in pairs})
            for (d, kind), pairs in groupby(known, key=lambda pair: (pair[0].d, pair[0].kind))]
