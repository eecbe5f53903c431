"""The measurements in a terminal: progress while they are made, then tables, and the targets last."""

from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cuda_kernels.bench import targets
from fa_ref.terminal import console, tabled

PEERS = ("math", "efficient", "flash", "cudnn")


@contextmanager
def progress(total):
    """Within it: a function step(what) that moves the bar on."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        started = False

        def step(what):
            nonlocal started
            bar.update(task, description=what, advance=int(started))
            started = True

        yield step


def everything(record):
    """Every table, and why cells are empty."""
    on = record["on"]
    console.print(f"{on['card']}, {on['date']}, driver {on['driver']}, torch {on['torch']}, numba-cuda "
                  f"{on['numba-cuda']}; bfloat16, {targets.pass_of(record)}. Times in ms, speeds as multiples of the "
                  "peer's.\n")
    cases = targets.by_case(record["cells"])
    for name in dict.fromkeys(name for row in cases.values() for name in row if name not in PEERS):
        console.print(times(cases, name, targets.pass_of(record)))
    refused(cases)
    console.print(resources(record["resources"]))
    for d, kind, speeds in targets.factors(cases):
        told = ", ".join(f"{N}: {x:.2f}" for N, x in speeds.items())
        console.print(f"fa2_mma to fa1_mma, d = {d}, {kind}, by N: {told}")
    found = tabled("target", "found", "")
    for target in targets.judged(record):
        found.add_row(target.what, target.found, target.verdict)
    console.print(found)


def times(cases, name, what):
    """One kernel beside torch's backends."""
    table = tabled("d", "N", "", f"{name}, ms", "TFLOP/s", "MiB", "error", *(f"× {peer}" for peer in PEERS),
                   right=(0, 1, *range(3, 7 + len(PEERS))))
    for case, row in cases.items():
        cell = row.get(name)
        if cell is None:
            continue
        speeds = [told(targets.speed(row, name, peer)) for peer in PEERS]
        if "ms" in cell:
            own = (f"{cell['ms']:.3f}", f"{targets.tera(case, cell['ms'], what):.0f}", told(cell["mb"], ".0f"),
                   f"{cell['error'] / cell['allowed']:.2f}")
        else:
            own = ("–",) * 4
        table.add_row(str(case.d), str(case.N), case.kind, *own, *speeds)
    return table


def told(x, form=".2f"):
    """A number, or a dash for none."""
    return "–" if x is None else format(x, form)


def refused(cases):
    """A line for each reason of a cell that has no time: who, and where."""
    reasons = {}
    for case, row in cases.items():
        for name, cell in row.items():
            if "why" in cell:
                reasons.setdefault((name, cell["why"]), []).append(case)
    for (name, why), where in reasons.items():
        console.print(f"no {name} in {len(where)} cases, the first with d = {where[0].d}, N = {where[0].N}, "
                      f"{where[0].kind}: {why}", soft_wrap=True)


def resources(rows):
    """What blocks take."""
    table = tabled("kernel", "d", "threads", "registers", "spilled bytes", "shared bytes", "blocks at once",
                   right=range(1, 7))
    for row in rows:
        table.add_row(row["kernel"], *(f"{row[name]:,}" for name in
                                       ("d", "threads", "registers", "local", "shared", "blocks")))
    return table
