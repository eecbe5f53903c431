"""The papers' figures beside ours, where a figure can be had without their hardware.

    python -m fa_ref tables                     all of it (about 3 minutes; the FP8 errors take most of it)
    python -m fa_ref tables --quick             the FP8 errors at a small size: under a minute
    python -m fa_ref tables traffic fp8         some tables
    python -m fa_ref tables --pictures FOLDER   also draws theorem_1.svg and theorem_2.svg there

Runtimes and TFLOP/s of the papers are not ours to reproduce; what follows from them by arithmetic is checked. Returns 1
if a figure differs for which no reason is given, else 0.
"""

import argparse
from pathlib import Path

from rich.progress import Progress

from fa_ref.tables import arithmetic, flashmask, growth, precision, traffic, work
from fa_ref.tables.rows import DIFFERS, LEGEND, ONLY_OURS
from fa_ref.terminal import console, tabled

TABLES = {
    "traffic": traffic.figure_2_middle, "both-passes": traffic.figure_2_left,
    "theorem-2": growth.theorem_2, "theorem-1": growth.theorem_1,
    "work": work.not_products, "fa2": arithmetic.fa2_speeds,
    "fp8": precision.errors_table, "exp": arithmetic.fa3_exp,
    "flashmask": flashmask.sparsity, "paged": arithmetic.paged_memory,
    "fixed-maximum": arithmetic.fixed_maximum, "etap": arithmetic.transposed_decoding, "napkin": arithmetic.napkin,
}


def main(argv=None):
    """`python -m fa_ref tables [NAME …] [--quick] [--pictures FOLDER]`."""
    parser = argparse.ArgumentParser(prog="python -m fa_ref tables", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"out of {', '.join(TABLES)}; none is all")
    parser.add_argument("--quick", action="store_true", help="the FP8 errors at a small size")
    parser.add_argument("--pictures", metavar="FOLDER", type=Path, help="draw theorem_1.svg and theorem_2.svg there")
    options = parser.parse_args(argv)
    if unknown := set(options.names) - set(TABLES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    if options.pictures and options.pictures.exists() and not options.pictures.is_dir():
        parser.error(f"--pictures {options.pictures}: a folder is needed, this is a file")
    good = True
    for table in made(options.names or TABLES, options.quick):
        console.print(shown(table))
        good &= all(row.verdict != DIFFERS or row.known for row in table.rows)
    console.print(f"\n{LEGEND}", style="dim", highlight=False)
    if options.pictures:
        from fa_ref.tables import pictures
        options.pictures.mkdir(parents=True, exist_ok=True)
        pictures.theorem_1(growth.memory_grows(), options.pictures / "theorem_1.svg")
        pictures.theorem_2(growth.sweep(), options.pictures / "theorem_2.svg")
    return 0 if good else 1


def made(names, quick=False):
    """The tables of these names, one after another, with a progress bar."""
    with Progress(console=console, transient=True) as progress:
        for name in progress.track(names, description="counting"):
            yield TABLES[name](quick=quick, progress=progress) if name == "fp8" else TABLES[name]()


def shown(table):
    """A table for the terminal."""
    grid = tabled("", "paper", "ours", "verdict", "why", right=(1, 2), title=f"[bold]{table.title}[/]\n{table.source}",
                  title_justify="left", title_style="", caption=table.note or None, caption_justify="left",
                  caption_style="")
    for row in table.rows:
        color = {DIFFERS: "yellow", ONLY_OURS: "dim"}.get(row.verdict, "green")
        grid.add_row(row.what, row.paper, row.ours, f"[{color}]{row.verdict}[/]", row.why)
    return grid
