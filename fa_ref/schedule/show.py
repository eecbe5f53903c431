"""What `python -m fa_ref schedule` prints."""

import argparse

from rich.markup import escape

from fa_ref.schedule import blocks, overlap, warps
from fa_ref.schedule.model import busy, makespan, tail, utilisation, waits, waves
from fa_ref.terminal import console, tabled


def main(argv=None):
    """Print the stories that are named, or all; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m fa_ref schedule", description="See who runs when.")
    parser.add_argument("stories", nargs="*", metavar="STORY", help=f"out of {', '.join(STORIES)}; none is all")
    parser.add_argument("--card", choices=blocks.MULTIPROCESSORS, default="H100", help="for blocks; default H100")
    parser.add_argument("--rows", action="store_true", help="every row of small examples")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.stories if name not in STORIES]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(STORIES)}")
    for name in dict.fromkeys(options.stories or STORIES):
        summary, examples = STORIES[name]
        if options.rows:
            for title, table in examples().items():
                console.print(f"[bold]{title}[/]", rows(table))
        else:
            for title, shown in summary(blocks.MULTIPROCESSORS[options.card]):
                console.print(f"[bold]{title}[/]", shown)
    return 0


def filled(head, lines, left=1):
    """A table; all but the first `left` columns are numbers. A line that is None draws a rule."""
    shown = tabled(*head, right=range(left, len(head)))
    for line in lines:
        if line is None:
            shown.add_section()
        else:
            shown.add_row(*(escape(cell) if isinstance(cell, str) else number(cell) for cell in line))
    return shown


def number(x):
    """A number with commas; whole if it is, else with two digits after the point."""
    return f"{x:,.0f}" if x == int(x) else f"{x:,.2f}"


def rows(table):
    """The rows of a Table, unit by unit, with the waits between them."""
    lines = []
    for unit in table.units:
        own = [row for row in [*table.rows, *waits(table)] if row.unit == unit]
        lines += [*sorted(own, key=lambda row: (row.start, row.end)), None]
    return filled(("unit", "what", "start", "end"), lines, left=2)


# --- blocks ---------------------------------------------------------------------------------------------------

def about_blocks(multiprocessors):
    """The grids at the lengths of FlashAttention-2's benchmark, and the order of causal blocks."""
    lines = []
    for N in (512, 1024, 2048, 4096, 8192, 16384):
        for algorithm in ("fa1", "fa2"):
            table = blocks.schedule(algorithm, batch=16384 // N, heads=16, Nq=N, Nk=N, multiprocessors=multiprocessors)
            lines.append((f"{N:,}", f"{16384 // N}", algorithm, len(table.rows), f"{waves(table):.2f}", makespan(table),
                          tail(table), f"{utilisation(table):.0%}"))
        lines.append(None)
    yield (f"{multiprocessors} multiprocessors, 16,384 tokens, 16 heads, tiles 128 × 128; time in pairs of tiles",
           filled(("length", "batch", "grid", "blocks", "waves", "time", "tail", "busy"), lines, left=3))
    lines = []
    for N in (2048, 4096, 8192):
        for order in blocks.ORDERS:
            table = blocks.schedule("fa2", heads=16, Nq=N, Nk=N, causal=True, order=order,
                                    multiprocessors=multiprocessors)
            lines.append((f"{N:,}", order, makespan(table), f"{busy(table) / multiprocessors:.1f}", tail(table),
                          f"{utilisation(table):.0%}"))
        lines.append(None)
    yield (f"{multiprocessors} multiprocessors, fa2, one causal sequence, 16 heads: which blocks start first?",
           filled(("length", "order", "time", "if divided evenly", "tail", "busy"), lines, left=2))


def few_blocks():
    """The two grids on 4 multiprocessors."""
    return {f"{algorithm}, 4 multiprocessors": blocks.schedule(
        algorithm, heads=3, Nq=4, Nk=4, Br=1, Bc=1, causal=True, multiprocessors=4) for algorithm in ("fa1", "fa2")}


# --- warps ----------------------------------------------------------------------------------------------------

TOLD = ("write maxima", "read maxima", "hand over", "put together")     # what warps do only to tell each other


def about_warps(_):
    """What the two splits cost, for the tiles of docs/gpu.md and for larger ones."""
    lines = []
    for sizes in ({"br": 16, "bc": 32, "d": 16, "dv": 16}, {"br": 64, "bc": 128, "d": 64, "dv": 64}):
        for split in warps.SPLITS:
            for number in (1, 2, 4, 8):
                full, causal = (warps.schedule(split, **sizes, warps=number, causal=c) for c in (False, True))
                told = sum(row.end - row.start for row in full.rows if row.what.split(",")[0] in TOLD)
                lines.append((f"{sizes['br']} × {sizes['bc']}, d = {sizes['d']}", split, f"{number}", makespan(full),
                              busy(full), f"{told / busy(full):.0%}", makespan(causal)))
            lines.append(None)
    yield ("One pair of tiles in a block; time in elements of shared memory that a warp reads or writes",
           filled(("tiles", "split", "warps", "time", "all warps", "to tell others", "time, causal"), lines, left=3))


def four_warps():
    """A causal pair of tiles, cut both ways."""
    return {f"{split}, causal": warps.schedule(split, br=16, bc=32, d=16, dv=16, warps=4, causal=True)
            for split in warps.SPLITS}


# --- overlap --------------------------------------------------------------------------------------------------

def about_overlap(_, T=64):
    """How busy the tensor core is, in the four schedules."""
    lines = []
    for what, how in {"d = 64": {"d": 64}, "d = 128": {}, "d = 256": {"d": 256}, "d = 128, 8 bits": {"bits": 8},
                      "d = 128, exp alone": {"rest": 0}}.items():
        c = overlap.clocks(**how)
        found = [utilisation(overlap.schedule(name, T, c), "tensor core") for name in overlap.SCHEDULES]
        best = 4 * T * c.product / max(overlap.bounds("both", T, c).values())
        lines.append((what, 2 * c.product, c.exp, c.rest, *(f"{x:.0%}" for x in found), f"{best:.0%}"))
    yield (f"Two tiles of 64 queries, {T} tiles of 128 keys: clocks for a pair, and how busy the tensor core is",
           filled(("", "products", "exp", "rest", *overlap.SCHEDULES, "bound"), lines))


def two_tiles():
    """The four schedules for two tiles of keys."""
    return {name: overlap.schedule(name, 2, overlap.clocks()) for name in overlap.SCHEDULES}


STORIES = {"blocks": (about_blocks, few_blocks), "warps": (about_warps, four_warps),
           "overlap": (about_overlap, two_tiles)}
