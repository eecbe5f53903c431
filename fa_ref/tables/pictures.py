"""The two pictures of the tables: traffic against the memory on chip, memory against the length. Needs matplotlib."""

from matplotlib.figure import Figure

from fa_ref import drawing
from fa_ref.tables.growth import BUDGETS, LENGTHS, D, N

STYLE = {"standard": ("#555555", "s"), "fa1": ("#c25a00", "o"), "fa2": ("#1f5fa8", "^")}
NAMES = {"standard": "standard attention", "fa1": "FlashAttention-1", "fa2": "FlashAttention-2"}


def theorem_2(moved, path):
    """Elements moved against M, both axes logarithmic, with the line N²d²/M."""
    figure, axes = sheet("M, the elements on chip that the tiles are chosen for", "elements moved through memory")
    axes.plot(BUDGETS, [N * N * D * D / M for M in BUDGETS], "--", color="#999999")
    axes.annotate("N²d²/M", (BUDGETS[1], N * N * D * D / BUDGETS[1]), (-34, -20), textcoords="offset points",
                  color="#777777")
    curves(axes, BUDGETS, moved)
    axes.set_title(f"Twice the memory on chip, half the traffic (N = {N}, d = {D})", loc="left")
    drawing.save(figure, path)


def theorem_1(found, path):
    """Bytes against N, both axes logarithmic."""
    figure, axes = sheet("length, N", "kB allocated at the peak")
    curves(axes, LENGTHS, {name: [byte / 1e3 for byte in y] for name, y in found.items()})
    axes.set_title("Memory of a forward pass (d = 64)", loc="left")
    drawing.save(figure, path)


def sheet(x, y):
    """An empty log-log plot, 7 × 4 inches, on the light ground of `drawing`."""
    figure = Figure(figsize=(7, 4), layout="constrained", facecolor=drawing.PAPER)
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel=x, ylabel=y, facecolor=drawing.PAPER)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def curves(axes, x, ys):
    """One marked line for each core, with its name at the end of it."""
    for name, y in ys.items():
        color, marker = STYLE[name]
        axes.plot(x, y, color=color, marker=marker)
        beside = (8, {"fa1": 6, "fa2": -6}.get(name, 0))                # the two may end at one point
        axes.annotate(NAMES[name], (x[-1], y[-1]), beside, textcoords="offset points", va="center", color=color)

