"""How traffic falls with the memory on chip (Theorem 2), and how memory grows with the length (Theorem 1)."""

import tracemalloc

import numpy as np

from fa_ref import fa1, fa2, standard
from fa_ref.scores import Rule
from fa_ref.tables.counted import forward, moved
from fa_ref.tables.rows import Table, at_most, follows, row

N, D = 512, 32                                          # of the sweep
BUDGETS = (1024, 2048, 4096, 8192, 16384)               # elements on chip, from 32·d to N·d
LENGTHS = (512, 1024, 2048, 4096)
CORES = {"standard": standard, "fa1": fa1, "fa2": fa2}


def tiles_for(name, M):
    """(Br, Bc) that Algorithm 1 of FA1 chooses for M elements on chip.

    The outer loop gets the larger tiles, ⌈M/4d⌉ of keys in FA1, here as many of queries in FA2; the inner loop gets at
    most d. Four tiles fill M: what else lies on chip (S, P, the statistics) is not part of the formula.
    """
    outer = -(-M // (4 * D))
    inner = min(outer, D)
    return (outer, inner) if name == "fa2" else (inner, outer)


def counted(name, M):
    """The Ledger of one head with these tiles."""
    return forward(CORES[name], N, D, *tiles_for(name, M))


def sweep():
    """{name: [elements of matrices that one head moves, one for each budget]}."""
    return {name: [moved(counted(name, M)) for M in BUDGETS] for name in CORES}


def theorem_2(found=None):
    """Twice the memory on chip, half the traffic; standard attention does not profit."""
    found = found or sweep()
    rows = []
    for name in ("fa1", "fa2"):
        shares = [n * M / (N * N * D * D) for n, M in zip(found[name], BUDGETS, strict=True)]
        for n, M, share in zip(found[name], BUDGETS, shares, strict=True):
            Br, Bc = tiles_for(name, M)
            rows.append(row(f"{name}, M = {M}: elements moved", None, n, ",.0f",
                            why=f"{share:.2f}·N²·d²/M; tiles {Br} × {Bc}"))
        rows.append(follows(f"{name}, M = {BUDGETS[0]} to {BUDGETS[2]}: less by", BUDGETS[2] / BUDGETS[0],
                            found[name][0] / found[name][2], ".2f", within=0.05,
                            why="Θ(N²·d²/M), and a little of N·d"))
    rows.append(follows("standard, any M", 4 * N * N + 4 * N * D, found["standard"][-1], ",.0f", within=0,
                    why="4·N² + 4·N·d: it has no tiles"))
    return Table("Traffic and the memory on chip", "FA1 (2205.14135), Theorem 2", rows,
                 f"N = {N}, d = {D}, one head, forward. M is the number from which Algorithm 1 chooses its tiles. It "
                 f"leaves out S, P and the statistics: with them the ledger sees up to {most_on_chip():.1f}·M elements "
                 "on chip.")


def most_on_chip():
    """The largest share of M that lies on chip in the runs of the sweep, by the ledger (4 bytes an element)."""
    return max(counted(name, M).peak_onchip_bytes / (4 * M) for name in ("fa1", "fa2") for M in BUDGETS)


def memory_grows():
    """{name: [bytes that a forward pass allocates at its peak, one for each length]}, by tracemalloc."""
    found = {}
    for name, core in CORES.items():
        for n in LENGTHS:
            X = np.random.default_rng(0).standard_normal((n, 64)).astype(np.float32)
            tracemalloc.start()
            core.forward_head(X, X, X, Rule(n, n, scale=0.125), 64, 128)
            found.setdefault(name, []).append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    return found


def theorem_1(found=None):
    """Memory beyond the inputs: linear in the length for FA1 and FA2, quadratic for standard attention."""
    found = found or memory_grows()
    first, last = LENGTHS[0], LENGTHS[-1]
    rows = [row(f"{name}, N = {n}: MB", None, byte / 1e6, ",.1f") for name in CORES
            for n, byte in zip(LENGTHS, found[name], strict=True)]
    grown = {name: found[name][-1] / found[name][0] for name in CORES}
    rows.append(follows(f"standard, from N = {first} to {last}: more by", (last // first) ** 2, grown["standard"],
                        ".0f", within=0.1, why="O(N²)"))
    rows += [at_most(f"{name}, from N = {first} to {last}: more by", last / first, grown[name], ".1f",
                     why="O(N): O, l, m or L grow, tiles do not") for name in ("fa1", "fa2")]
    return Table("Memory and the length", "FA1 (2205.14135), Theorem 1", rows, "d = 64, float32, tiles 64 × 128, one "
                 "head, forward, all that Python's tracemalloc sees at the peak.")
