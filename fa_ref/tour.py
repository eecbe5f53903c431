"""The main job, in under a minute: does every algorithm compute attention, how, and at what price in memory?

    python -m fa_ref tour

1. every algorithm, forward and backward, on real queries, keys and values, each error beside its bound
2. one tiny problem, step by step, beside plain softmax
3. elements that standard attention, FA1, FA2 and FA3 move through memory
4. where to put the first breakpoint, and pages of two runs to watch (in build/)

Returns 1 if anything disagrees, else 0.
"""

import inspect
import sys
from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16
from rich.progress import Progress

from fa_ref import ALGORITHMS, backward, data, debug, fa1, fa2, forward, player, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule
from fa_ref.terminal import console, tabled
from fa_ref.testing import oracle, tolerance
from fa_ref.testing.problem import Problem, Result

PAGES = Path("build")
FORWARD, BACKWARD = ("out", "lse"), ("dq", "dk", "dv")


def main(argv=()):
    """Run the whole tour; see the module."""
    if argv:
        console.print("usage: python -m fa_ref tour   (no options)")
        return 2
    ok = agreement()
    ok &= narration()
    traffic()
    first_breakpoint()
    console.print("[bold green]Everything agrees.[/]" if ok else "[bold red]Something disagrees, see FAIL above.[/]")
    return 0 if ok else 1


# --- 1. agreement ---------------------------------------------------------------------------------------------

def agreement():
    """The table of errors; True if all are within their bounds."""
    q, k, v, tokens, names = data.load(np.float64)
    heads = [0, 3, 5, 10]
    rng = np.random.default_rng(0)
    arrays = [x[:, heads] for x in (q, k, v)] + [rng.standard_normal(v[:, heads].shape)]
    console.rule("[bold]1. Does every algorithm compute attention?")
    console.print(
        f"Queries, keys and values (d = {q.shape[3]}) of a language model reading a text of {len(tokens)} tokens: "
        f"{', '.join(names[h] for h in heads)}.\n"
        "The truth is computed in float64, row by row. Every element has a bound: what rounding can explain there. "
        "Shown is the worst element of all results, the one whose error uses most of its bound. (In bfloat16 rounding "
        "P and the result nearly fills it.)")

    table = tabled("algorithm", "dtype", "mask", "direction", "worst in", "error", "bound", "used", "", right=(5, 6, 7))
    ok, row_of = True, {}
    settings = [(dtype, causal) for dtype in (np.float32, bfloat16) for causal in (False, True)]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("solving and judging", total=len(settings) * (1 + len(ALGORITHMS)))
        for dtype, causal in settings:
            problem = Problem(*(x.astype(dtype) for x in arrays), causal=causal)
            truth, bound = oracle.solve(problem), tolerance.bounds(problem)
            progress.advance(task)
            for algorithm in ALGORITHMS:
                worst = tolerance.worst(solve(problem, algorithm), truth, bound)
                for direction, fields in (("forward", FORWARD), ("backward", BACKWARD)):
                    good, cells = judged(worst, bound, fields)
                    ok &= good
                    row_of[algorithm, np.dtype(dtype).name, causal, direction] = cells
                progress.advance(task)
    for (algorithm, dtype, causal, direction), cells in sorted(row_of.items(), key=lambda row: order(row[0])):
        table.add_row(algorithm, dtype, "causal" if causal else "none", direction, *cells,
                      end_section=(dtype, causal, direction) == ("bfloat16", True, "backward"))
    console.print(table)
    return ok


def judged(worst, bound, fields):
    """(is it within its bound?, cells of the table) for the worst element of these fields; worst: of `tolerance`."""
    name = max(fields, key=lambda field: worst[field].fraction)
    fraction, most = worst[name].fraction, getattr(bound, name)[worst[name].index]
    good = fraction <= 1
    return good, (name, f"{fraction * most:.1e}", f"{most:.1e}", f"{fraction:.0%}",
                  "[green]ok[/]" if good else "[bold red]FAIL[/]")


def order(key):
    """Rows by algorithm in the order of reading, then dtype, mask, direction."""
    algorithm, dtype, causal, direction = key
    return list(ALGORITHMS).index(algorithm), dtype == "bfloat16", causal, direction == "backward"


def solve(problem, algorithm):
    """Forward and backward of one algorithm as a Result."""
    q, k, v, options = problem.q, problem.k, problem.v, problem.options
    out, lse = forward(q, k, v, algorithm=algorithm, **options)
    return Result(out, lse, *backward(problem.dout, q, k, v, out, lse, algorithm=algorithm, **options))


# --- 2. narration ---------------------------------------------------------------------------------------------

def narration():
    """FA2 on the tiny problem, after every step beside plain softmax over the keys seen so far; True if equal."""
    Q, K, V, rule = debug.tiny()
    console.rule("[bold]2. One tiny problem, step by step")
    console.print(
        "FlashAttention-2 on 4 queries and 6 keys with d = 2, in tiles of 2 queries × 3 keys (scale 1).\n")
    show("Q", Q)
    show("Kᵀ", K.T)
    show("Vᵀ", V.T)
    show("Q Kᵀ", Q @ K.T)
    console.print(
        "\nm is the largest score so far, l the sum of exp(score − m), acc the sum of exp(score − m) V. "
        "When m grows, acc shrinks (query 0, second tile). After every step acc / l is the attention over the keys "
        "so far:")
    steps, (O, L) = watch_forward(Q, K, V, rule, debug.BR, debug.BC)

    table = tabled("tile", "query", "keys", "m", "l", "acc", "acc / l", "plain softmax")
    ok = True
    for step in steps:
        rows, stop = step["rows"], step["cols"].stop
        plain, _ = standard.forward_head(Q[rows], K[:stop], V[:stop], Rule(len(Q[rows]), stop, scale=1.0))
        so_far = step["acc"] / step["l"][:, None]
        ok &= bool(np.allclose(so_far, plain, rtol=1e-12, atol=1e-12))
        for n in range(len(plain)):
            table.add_row(
                f"{step['i']}, {step['j']}" if n == 0 else "", f"{rows.start + n}", f"0…{stop - 1}",
                f"{step['m'][n]:.0f}", f"{step['l'][n]:.4f}", vector(step["acc"][n]), vector(so_far[n]),
                vector(plain[n]), end_section=n == len(plain) - 1)
    console.print(table)
    plain, _ = standard.forward_head(Q, K, V, rule)
    ok &= bool(np.allclose(O, plain, rtol=1e-12, atol=1e-12))
    show("Oᵀ", O.T)
    show("plain", plain.T)
    show("L", L[None])
    console.print("[green]ok[/]: equal\n" if ok else "[bold red]FAIL[/]: they differ\n")
    return ok


def watch_forward(Q, K, V, rule, Br, Bc):
    """Run fa2.forward_head and note its local names at the end of every inner step, as a debugger would."""
    code = fa2.forward_head.__code__
    last_line = debug.line_of(fa2.forward_head, "m = m_new")
    steps, line = [], None

    def local(frame, event, _):
        nonlocal line
        if line == last_line:                           # the line that has just run
            steps.append({name: frame.f_locals[name] for name in ("i", "j", "rows", "cols", "m", "l", "acc")})
        line = frame.f_lineno
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, event, _: local if frame.f_code is code else None)
    try:
        answer = fa2.forward_head(Q, K, V, rule, Br, Bc)
    finally:
        sys.settrace(before)
    return steps, answer


def vector(x):
    """A few numbers in a fixed width."""
    return " ".join(f"{n:6.3f}" for n in x)


def show(name, X):
    """A small matrix with its name."""
    for n, row in enumerate(X):
        console.print(f"  {name if n == 0 else '':6}", "  ".join(f"{x:7.4g}" for x in row), sep="")


# --- 3. traffic -----------------------------------------------------------------------------------------------

def traffic(Br=64, Bc=64):
    """What one head moves through memory, counted by running it on metered arrays."""
    q, k, v, *_ = data.load(np.float32)
    Q, K, V = q[0, 0], k[0, 0], v[0, 0]
    N, d = Q.shape
    dO = np.ones_like(V)
    rule = Rule(N, N, scale=d**-0.5)
    console.rule("[bold]3. What moves through memory?")
    console.print(f"One head, N = {N}, d = {d}, tiles {Br} × {Bc}: elements read and written, counted while it ran. "
                  f"For comparison: N·d = {N * d:,}, N² = {N * N:,}.")
    table = tabled("algorithm", "direction", "read", "written", "together", "of standard", "matmul FLOPs",
                   right=range(2, 7))
    base = {}
    for direction in ("forward", "backward"):
        for name, core in ALGORITHMS.items():
            answer = core.forward_head(Q, K, V, rule, Br, Bc)
            with Ledger() as led:
                hbm = [led.hbm(x) for x in (Q, K, V)]
                if direction == "forward":
                    core.forward_head(*hbm, rule, Br, Bc)
                elif core is standard:                                  # starts from the P that its forward pass kept
                    P, _ = standard.probabilities(Q, K, rule)
                    standard.gradients(led.hbm(dO), *hbm, led.hbm(P), rule)
                else:
                    core.backward_head(led.hbm(dO), *hbm, *(led.hbm(x) for x in answer), rule, Br, Bc)
            read, written = led.total("reads"), led.total("writes")
            base.setdefault(direction, read + written)
            table.add_row(name, direction, f"{read:,}", f"{written:,}", f"{read + written:,}",
                          f"{(read + written) / base[direction]:.0%}", f"{led.matmul_flops:,}",
                          end_section=name == [*ALGORITHMS][-1])
    console.print(table)
    console.print("Standard attention moves a multiple of N². FA1 moves O, l and m once per tile of keys, FA2 keeps "
                  "them on chip and moves K and V once per tile of queries: larger tiles, less traffic. FA3 "
                  "changes when things happen, not what moves. Backward, standard reads the P that it kept; the "
                  "others keep none and form Q Kᵀ again: 5 products for 4.\n")


# --- 4. the first breakpoint ----------------------------------------------------------------------------------

def first_breakpoint():
    """Where to stop, and how."""
    here = Path(inspect.getsourcefile(fa2))
    shown = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here
    one, two = (debug.line_of(core.forward_head, "Sij = rule.scores(") for core in (fa1, fa2))
    console.rule("[bold]4. Look for yourself")
    console.print(f"Put the first breakpoint at [bold]{shown}:{two}[/], where a tile of scores is made "
                  f"(in FA1 it is fa1.py:{one}).\n"
                  "[bold]make debug[/] does it for you with pdb; in VS Code press F5.\n"
                  "Print Qi, Kj, m, l, acc, and one line further Sij.\n")
    pages = [player.tiny(algorithm).save(folder() / f"{algorithm}.html") for algorithm in ("fa1", "fa2")]
    console.print("Or watch the tiny problem in a browser, line by line, forwards and backwards with the arrow keys:")
    console.print(*(f"  {page}" for page in pages), "", sep="\n", soft_wrap=True)


def folder():
    """Where pages go: build/ in the current folder."""
    PAGES.mkdir(exist_ok=True)
    return PAGES


if __name__ == "__main__":
    sys.exit(main())
