"""The measurements in a terminal: a table for the speed, the curves in a few steps, and the targets last."""

from cuda_kernels.train import targets
from cuda_kernels.train.sizes import Size
from fa_ref.terminal import console, tabled

EXPLAINED = (f"B sequences of N tokens in a step. × {targets.PEER}: tokens/s to its, the median of the ratios in each "
             f"round, and their quartiles; of {targets.PLAIN}, with rounds of its own, the ratio of the medians.\n")
ON_A_CPU = "On a CPU ours is the loops of fa_ref, in NumPy: the times mean nothing.\n"
STEPS = 8                                                           # of the curves, in the table


def everything(record):
    """All tables."""
    on = record["on"]
    console.print(f"{on['card']}, {on['date']}, driver {on['driver']}, torch {on['torch']}, numba-cuda "
                  f"{on['numba-cuda']}; weights in float32, products in bfloat16 (autocast), AdamW.\n")
    console.print(speed(record["speed"]))
    console.print(EXPLAINED + (ON_A_CPU if record["device"] == "cpu" else ""))
    console.print(curves(record["curves"]))
    found = tabled("target", "found", "")
    for target in targets.judged(record):
        found.add_row(target.what, target.found, target.verdict)
    console.print(found)


def speed(rows):
    """A line for each size and attention."""
    table = tabled("layers", "hidden", "d", "B", "N", "attention", "ms a step", "tokens/s",
                   f"× {targets.PEER}", "quartiles", "peak, MiB", right=(0, 1, 2, 3, 4, 6, 7, 8, 9, 10))
    for row in rows:
        size = Size(**row["size"])
        for name, cell in row["attentions"].items():
            sizes = map(str, (size.layers, size.hidden, size.d, size.B, size.N))
            table.add_row(*sizes, name, *numbers(row, name, cell))
    return table


def numbers(row, name, cell):
    """The last columns of one attention; the reason where it has none."""
    if "ms" not in cell:
        return cell["why"].replace("|", "/"), "–", "–", "–", "–"
    times, low_high = targets.ratio(row, name), targets.quartiles(row, name)
    return (f"{cell['ms']:.1f}", f"{cell['tokens_per_s']:,.0f}", "–" if times is None else f"{times:.3f}",
            "–" if low_high is None else "–".join(f"{x:.3f}" for x in low_high),
            "–" if cell["mb"] is None else f"{cell['mb']:,.0f}")


def curves(found):
    """The losses at some steps, and how far each curve is from that in float32."""
    losses, size = found["losses"], Size(**found["size"])
    steps = len(losses[targets.TRUTH])
    shown = sorted({round(n * (steps - 1) / (STEPS - 1)) for n in range(STEPS)})
    table = tabled("loss at step", *(str(n + 1) for n in shown), "largest distance", "allowed",
                   right=range(1, len(shown) + 3), title=f"{found['characters']:,} characters of {found['text']}; "
                   f"{size.layers} layers, {size.told}, {size.B} pieces a step", title_justify="left")
    for name, curve in losses.items():
        table.add_row(name, *(f"{curve[n]:.3f}" for n in shown), *distance(found, name))
    return table


def distance(found, name):
    """(how far a curve is from that in float32, how far it may be); standard attention is the yardstick."""
    rule = targets.verdict(found, name)
    return ("–" if name == targets.TRUTH else f"{rule.error:.1e}",
            "–" if name in (targets.TRUTH, targets.PLAIN) else f"{rule.allowed:.1e}")
