"""What `python -m cuda_kernels train --save FILE` measured, as tables for docs/generate.py.

A table is (head, rows, which columns are numbers). All of them are functions of what the file holds.
"""

from cuda_kernels.train import show, targets
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
        rows += [(size.hidden, size.d, f"{size.N:,}", size.B, NAMES.get(name, name), *show.numbers(row, name, cell))
                 for name, cell in row["attentions"].items()]
    head = ["hidden", "d", "N", "batch", "attention", "ms a step", "tokens/s", "× torch FLASH", "quartiles",
            "peak memory, MiB"]
    return head, rows, (0, 1, 2, 3, 5, 6, 7, 8, 9)


def curves(record):
    """The loss of each run at its start and its end, and its distance from float32."""
    found = record["curves"]
    rows = [(NAMES.get(name, name), f"{losses[0]:.3f}", f"{targets.last_tenth(losses):.3f}",
             *show.distance(found, name)) for name, losses in found["losses"].items()]
    return ["attention", "first loss", "last tenth", "largest distance from float32", "allowed"], rows, range(1, 5)


def text(record):
    """What was learned, in a line of words."""
    found, size = record["curves"], Size(**record["curves"]["size"])
    return (f"{len(found['losses'][targets.TRUTH])} steps on {found['characters']:,} characters ({found['different']} "
            f"different ones) of {found['text']}: {size.layers} layers, {size.told}, {size.B} pieces in each step.")
