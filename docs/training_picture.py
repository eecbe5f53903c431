"""The picture of the training in docs/performance.md: the curves of the loss, and bars of tokens/s beside torch's.

It is drawn by `python docs/generate.py training FILE`, with `fa_ref.drawing`.
"""

import training as tables

from cuda_kernels.train import targets
from cuda_kernels.train.sizes import Size

FILE = "performance/training.svg"                                   # in docs/
COLORS = {"float32": "#9a9a94", "eager": "#a14a00", "flash": "#2e6b2e", "ours": "#1f5fa8"}      # drawn in this order …
ADDED = "#7a3f98"                                                   # … and then whoever was added
WIDTHS = {"float32": 7, "eager": 5, "flash": 3, "ours": 1.5}        # the curves lie upon each other
LEFT, RIGHT = 70, 680
LOSS_TOP, LOSS_BOTTOM, APART_TOP, APART_BOTTOM = 44, 224, 286, 386
BARS_TOP, BARS_BOTTOM = 456, 626


def picture(record, draw):
    """Three parts: the losses, how far each is from float32's, and bars for each size."""
    sheet = draw.Sheet(702)
    losses = record["curves"]["losses"]
    loss(sheet, draw, losses)
    apart(sheet, draw, record["curves"])
    bars(sheet, draw, record["speed"])
    for n, name in enumerate(["ours", "flash", "eager", "float32", *added(losses)]):
        sheet.box(LEFT + n * 122, 684 - 5, 24, 10, color(name), edge=color(name))
        sheet.text(LEFT + 32 + n * 122, 684, tables.NAMES.get(name, name), align="left")
    return sheet


def added(losses):
    """The names of attentions that are not ours, torch's or standard attention."""
    return [name for name in losses if name not in COLORS]


def color(name):
    return COLORS.get(name, ADDED)


def loss(sheet, draw, losses):
    """The loss against the step, one curve upon the other: the later ones are narrower."""
    top = max(map(max, losses.values()))
    sheet.text((LEFT + RIGHT) / 2, 20, "loss of each step", bold=True, size=13)
    levels(sheet, draw, ticks(top), top, LOSS_TOP, LOSS_BOTTOM)
    for name in [*COLORS, *added(losses)]:
        curve(sheet, losses[name], top, LOSS_TOP, LOSS_BOTTOM, color(name), WIDTHS.get(name, 1.5))
    steps(sheet, losses, LOSS_BOTTOM)


def apart(sheet, draw, curves):
    """The distance from the loss in float32, with what the rule of two errors allows as a line."""
    losses = curves["losses"]
    truth, limit = losses[targets.TRUTH], targets.verdict(curves).allowed
    far = {name: [abs(x - y) for x, y in zip(losses[name], truth, strict=True)] for name in losses}
    top = 1.1 * max(limit, *map(max, far.values()))
    sheet.text((LEFT + RIGHT) / 2, APART_TOP - 20, "its distance from the loss in float32", bold=True, size=13)
    levels(sheet, draw, ticks(top), top, APART_TOP, APART_BOTTOM)
    for name in ["eager", "flash", "ours", *added(losses)]:
        curve(sheet, far[name], top, APART_TOP, APART_BOTTOM, color(name), 1.2)
    y = up(limit, top, APART_TOP, APART_BOTTOM)
    sheet.arrow(LEFT, y, RIGHT, y, color=draw.RED, style="-")
    sheet.text(RIGHT, y + 9, "allowed", align="right", size=11, color=draw.RED)
    steps(sheet, losses, APART_BOTTOM)


def bars(sheet, draw, rows):
    """Tokens/s to torch's, a group of bars for each size; words where there is none."""
    sheet.text((LEFT + RIGHT) / 2, BARS_TOP - 24, "tokens/s of a training step, to torch FLASH", bold=True, size=13)
    known = [x for row in rows for name in row["attentions"] if (x := targets.ratio(row, name)) is not None]
    top = 1.1 * max(1, *known, 0)
    levels(sheet, draw, ticks(top), top, BARS_TOP, BARS_BOTTOM, dark=1)
    wide = (RIGHT - LEFT) / len(rows)
    for n, row in enumerate(rows):
        size, left = Size(**row["size"]), LEFT + n * wide
        for m, name in enumerate(row["attentions"]):
            x, each = targets.ratio(row, name), wide * 0.8 / len(row["attentions"])
            at = left + wide * 0.1 + m * each
            if x is None:
                words = ["no", "memory"] if "out of memory" in row["attentions"][name].get("why", "") else ["", "none"]
                for up_by, word in zip((26, 11), words, strict=True):
                    sheet.text(at + each / 2, BARS_BOTTOM - up_by, word, size=9, color=draw.FAINT)
                continue
            y = up(x, top, BARS_TOP, BARS_BOTTOM)
            sheet.box(at + 2, y, each - 4, BARS_BOTTOM - y, color(name), edge=color(name))
            sheet.text(at + each / 2, y - 8, f"{x:.2f}", size=11)
        sheet.text(left + wide / 2, BARS_BOTTOM + 14, f"hidden {size.hidden}, d = {size.d}", size=11.5)
        sheet.text(left + wide / 2, BARS_BOTTOM + 30, f"N = {size.N:,}", size=11.5)


def curve(sheet, values, top, y0, y1, color, width):
    """Values, one for each step, joined."""
    last = max(1, len(values) - 1)
    xs = [LEFT + (RIGHT - LEFT) * n / last for n in range(len(values))]
    sheet.axes.plot(xs, [up(x, top, y0, y1) for x in values], color=color, linewidth=width * 0.75,
                    solid_joinstyle="round", solid_capstyle="butt")


def levels(sheet, draw, marks, top, y0, y1, dark=0):
    """Horizontal lines with their numbers; the one at `dark` is dark."""
    for mark in marks:
        y = up(mark, top, y0, y1)
        sheet.arrow(LEFT, y, RIGHT, y, color=draw.INK if mark == dark else "#dcdcd6", line=1, style="-")
        sheet.text(LEFT - 8, y, f"{mark:g}", align="right", size=11.5)


def steps(sheet, losses, bottom):
    """The first step and the last one."""
    sheet.text(LEFT, bottom + 14, "step 1", align="left", size=11.5)
    sheet.text(RIGHT, bottom + 14, f"step {len(losses[targets.TRUTH])}", align="right", size=11.5)


def ticks(top):
    """Some round numbers from 0 to the top: steps of 1, 2 or 5 times a power of ten."""
    each = next(m * 10.0**e for e in range(-12, 12) for m in (1, 2, 5) if top / (m * 10.0**e) <= 6)
    return [round(n * each, 12) for n in range(int(top / each) + 1)]


def up(x, top, y0, y1):
    """Where a value stands between y1, for 0, and y0, for the top."""
    return y1 - (y1 - y0) * x / top


def described(record):
    """The picture in words."""
    losses = record["curves"]["losses"]
    found = targets.verdict(record["curves"])
    speeds = [x for row in record["speed"] if (x := targets.ratio(row)) is not None]
    told = f"{min(speeds):.2f} to {max(speeds):.2f}" if speeds else "none"
    return (f"Above, the loss of {len(losses[targets.TRUTH])} steps: curves of our attention, torch's, standard "
            f"attention and float32. In the middle, how far they are from float32: ours is at most "
            f"{found.error:.1e}, and {found.allowed:.1e} is allowed. Below, bars: our tokens/s are {told} "
            f"times torch's.")
