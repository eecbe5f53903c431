"""What `python -m cuda_kernels train --save FILE` measured, as tables for docs/generate.py.

A table is (head, rows, which columns are numbers). All of them are functions of what the file holds.
"""

from cuda_kernels.train import targets
from cuda_kernels.train.sizes import Size

NAMES = {"ours": "ours", "flash": "torch, FLASH", "eager": "eager", "float32": "eager, float32"}


def where(record):
    """The card, the day and the versions in a line."""
    on = record["on"]
    return (f"{on['card']}, {on['date']}; driver {on['driver']}, torch {on['torch']}, numba-cuda {on['numba-cuda']}; "
            "weights in float32, products in bfloat16 (autocast), AdamW, causal.")


def judged(record):
    """The targets."""
    rows = [(target.what, target.found, target.verdict) for target in targets.judged(record)]
    return ["target", "found", ""], rows, ()


def speed(record):
    """A line for each size and attention, with the reason where there is no time."""
    rows = []
    for row in record["speed"]:
        size = Size(**row["size"])
        rows += [(size.hidden, size.d, f"{size.N:,}", size.B, NAMES.get(name, name), *numbers(row, name, cell))
                 for name, cell in row["attentions"].items()]
    head = ["hidden", "d", "N", "batch", "attention", "ms a step", "tokens/s", "× torch FLASH",
            "quartiles", "peak memory, MiB"]
    return head, rows, (0, 1, 2, 3, 5, 6, 7, 8, 9)


def numbers(row, name, cell):
    """The columns of one attention."""
    if "ms" not in cell:
        return cell["why"].replace("|", "/"), "–", "–", "–", "–"
    times, low_high = targets.ratio(row, name), targets.quartiles(row, name)
    return (f"{cell['ms']:.1f}", f"{cell['tokens_per_s']:,.0f}", "–" if times is None else f"{times:.3f} ×",
            "–" if low_high is None else "–".join(f"{x:.3f}" for x in low_high),
            "–" if cell["mb"] is None else f"{cell['mb']:,.0f}")


def curves(record):
    """The loss of each run at its start and its end, and its distance from float32."""
    found = record["curves"]
    rows = []
    for name, losses in found["losses"].items():
        rule = targets.verdict(found, name)
        last = sum(losses[-targets.tenth(losses):]) / targets.tenth(losses)
        far = ["–", "–"] if name == targets.TRUTH else [f"{rule.error:.1e}", f"{rule.allowed:.1e}"]
        if name == targets.PLAIN:
            far[1] = "–"                                            # it is the yardstick
        rows.append((NAMES.get(name, name), f"{losses[0]:.3f}", f"{last:.3f}", *far))
    return ["attention", "first loss", "last tenth", "largest distance from float32", "allowed"], rows, range(1, 5)


def text(record):
    """What was learned, in a line of words."""
    found, size = record["curves"], Size(**record["curves"]["size"])
    return (f"{len(found['losses'][targets.TRUTH])} steps on {found['characters']:,} characters ({found['different']} "
            f"different ones) of {found['text']}: {size.layers} layers, {size.told}, {size.B} pieces in each step.")
