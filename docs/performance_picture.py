"""The picture of docs/performance.md: speed to torch FLASH against the length, from what the benchmark saved.

It is drawn by `python docs/generate.py performance FILE`, with `fa_ref.drawing`.
"""

from itertools import pairwise

from cuda_kernels.bench import targets

FILE = "performance/speed.svg"                                      # in docs/
COLORS = "#1f5fa8", "#a14a00", "#5b2e91", "#2e6b2e"                 # of lines, on a light background


def speeds(record):
    """{case: times as fast as torch FLASH} of all that was measured, but for grouped heads."""
    cases = targets.by_case(record["cells"])
    found = {case: targets.speed(row) for case, row in cases.items() if not case.grouped}
    return {case: x for case, x in found.items() if x is not None}


def picture(record, draw):
    """Speed to torch FLASH against N, a line for each head dim: on the left full attention, on the right causal."""
    known = speeds(record)
    lengths, dims = sorted({case.N for case in known}), sorted({case.d for case in known})
    top = max(1.25, *known.values()) * 1.05
    sheet = draw.Sheet(340)
    for causal, left in ((False, 60), (True, 390)):
        sheet.text(left + 135, 24, "causal" if causal else "full", bold=True, size=13)
        axes(sheet, draw, left, lengths, top)
        for d, color in zip(dims, COLORS, strict=False):
            line(sheet, [(across(left, lengths, N), up(known[case], top)) for N in lengths
                         if (case := find(known, N, d, causal))], color)
    for n, (d, color) in enumerate(zip(dims, COLORS, strict=False)):
        sheet.arrow(70 + n * 90, 322, 95 + n * 90, 322, color=color, line=2.5, style="-")
        sheet.text(100 + n * 90, 322, f"d = {d}", align="left")
    sheet.text(690, 322, f"{targets.OURS}: speed as a multiple of torch FLASH", align="right", color=draw.FAINT)
    return sheet


def axes(sheet, draw, left, lengths, top):
    """Lines at 0, 0.5, 1 …, the one at 1 dark; a mark for each length."""
    for tick in (n / 2 for n in range(int(top * 2) + 1)):
        y = up(tick, top)
        sheet.arrow(left, y, left + 270, y, color=draw.INK if tick == 1 else "#dcdcd6", line=1, style="-")
        sheet.text(left - 8, y, f"{tick:g}", align="right", size=11.5)
    for N in lengths:
        sheet.text(across(left, lengths, N), 284, f"{N // 1024}K" if N >= 1024 else str(N), size=11)
    sheet.text(left + 135, 302, "N", size=11.5)


def line(sheet, points, color):
    """Points, joined."""
    for (x0, y0), (x1, y1) in pairwise(points):
        sheet.arrow(x0, y0, x1, y1, color=color, line=2.5, style="-")
    for x, y in points:
        sheet.box(x - 3, y - 3, 6, 6, color, edge=color)


def across(left, lengths, N):
    """Where a length stands from left to right: all of them at the same distance."""
    return left + 270 * (lengths.index(N) + 0.5) / len(lengths)


def up(x, top):
    """Where a ratio stands: 0 at the bottom."""
    return 270 - 230 * x / top


def find(cases, N, d, causal):
    """The case of this kind; None if there is none."""
    return next((case for case in cases if (case.N, case.d, case.causal) == (N, d, causal)), None)


def described(record):
    """The picture in words."""
    known = speeds(record).values()
    return (f"Speed of {targets.OURS} as a multiple of torch's FLASH backend, against the length N, full and causal, a "
            f"line for each head dim. The lowest point is {min(known):.2f}, the highest {max(known):.2f}.")
