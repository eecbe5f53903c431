"""Pictures of matrices and their tiles. Each has a text in words for a reader who cannot see it."""

import base64
import html
import io

import numpy as np
from IPython.display import HTML, display
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fa_ref import drawing

# blue is below zero, paper is zero, orange above; a sequence for numbers that are never below zero
SIGNED = LinearSegmentedColormap.from_list("signed", ["#2b6cb0", "#cfe1f5", drawing.PAPER, "#fbdcb0", "#c05621"])
POSITIVE = LinearSegmentedColormap.from_list("positive", [drawing.PAPER, "#fbdcb0", "#e08e45", "#8a3b12"])


def figure(width, height, columns=1, rows=1, **subplots):
    """A Figure of so many inches, and its axes (an array if there are several)."""
    made = Figure(figsize=(width, height), facecolor=drawing.PAPER, layout="constrained")
    return made, made.subplots(rows, columns, **subplots)


def matrix(axes, M, title="", tiles=None, values=None, mark=None, cmap=None, limit=None):
    """Draw a matrix (or a vector, as a column) on axes.

    tiles: (rows, columns) of a tile, drawn as thicker lines. values: write the numbers (default: up to 64 of them).
    mark: (row, column) of a tile, or of an element without tiles, framed in red. limit: the number of the darkest
    colour. −inf is drawn as a grey cell, NaN as a red one.
    """
    M = np.asarray(M, float)
    M = M[:, None] if M.ndim == 1 else M
    rows, columns = M.shape
    finite = np.where(np.isfinite(M), M, 0)
    limit = limit or max(np.abs(finite).max(initial=0), 1e-12)
    cmap = cmap or (SIGNED if (finite < 0).any() else POSITIVE)
    written = M.size <= 64 if values is None else values
    axes.imshow(finite, cmap=cmap, vmin=-limit if cmap is SIGNED else 0, vmax=limit, aspect="equal")
    for (r, c), x in np.ndenumerate(M):
        if not np.isfinite(x):
            axes.add_patch(Rectangle((c - 0.5, r - 0.5), 1, 1, color=drawing.RED if np.isnan(x) else drawing.GREY))
        if written:
            axes.text(c, r, short(x), ha="center", va="center", fontsize=8,
                      color="white" if abs(finite[r, c]) > 0.75 * limit else drawing.INK)
    h, w = tiles or (1, 1)
    if tiles:
        for r in range(h, rows, h):
            axes.axhline(r - 0.5, color=drawing.INK, linewidth=1.2)
        for c in range(w, columns, w):
            axes.axvline(c - 0.5, color=drawing.INK, linewidth=1.2)
    if mark is not None:
        r, c = mark[0] * h, mark[1] * w
        axes.add_patch(Rectangle((c - 0.5, r - 0.5), min(w, columns - c), min(h, rows - r), fill=False,
                                 edgecolor=drawing.RED, linewidth=2.5, zorder=5))
    axes.set(xticks=range(columns) if columns <= 16 else [], yticks=range(rows) if rows <= 16 else [])
    axes.tick_params(length=0, labelsize=8, colors=drawing.FAINT)
    axes.set_title(title, fontsize=10, color=drawing.INK)


def short(x):
    """A number in at most five characters."""
    if np.isnan(x):
        return "NaN"
    if np.isinf(x):
        return "∞" if x > 0 else "−∞"
    return f"{x:.2g}".replace("-", "−") if abs(x) < 1000 else f"{x:.0e}".replace("-", "−")


def first_wrong_tile(name, got, right, bad, tiles=None):
    """What came back beside what is right; the first wrong tile is framed. Returns (figure, text in words)."""
    got, right, bad = (np.atleast_2d(x).T if np.ndim(x) == 1 else x for x in (got, right, bad))
    h, w = tiles or (1, 1)
    h, w = min(h, max(1, bad.shape[0])), min(w, max(1, bad.shape[1]))
    first = tuple(int(n) for n in np.argwhere(bad)[0] // (h, w))
    columns = got.shape[1]
    made, (left, middle, last) = figure(max(5, min(11, 1.2 + 1.35 * columns)), max(2, min(5, 0.8 + 0.32 * len(got))), 3)
    limit = max(np.abs(np.where(np.isfinite(x), x, 0)).max(initial=1e-12) for x in (got, right))
    grid = (h, w) if tiles else None
    matrix(left, got, f"{name}, yours", grid, mark=first, limit=limit)
    matrix(middle, right, f"{name}, right", grid, mark=first, limit=limit)
    matrix(last, bad, "wrong where orange", grid, values=False, mark=first, limit=3)
    part = f"tile ({first[0]}, {first[1]}) of {h} × {w}" if tiles else f"element ({first[0]}, {first[1]})"
    return made, (f"Three matrices side by side: {name} as it came back, as it should be, and where they differ. "
                  f"The first wrong {part} is framed in red; {int(bad.sum())} of {bad.size} elements are wrong.")


def show(made, alt):
    """Display a figure in a notebook. alt: what it shows, in words."""
    display(HTML(html_image(made, alt), metadata={"alt": alt}))


def html_image(made, alt):
    """The figure as an <img> that carries its own data."""
    stream = io.BytesIO()
    made.savefig(stream, format="png", dpi=110, metadata={"Software": None})
    data = base64.b64encode(stream.getvalue()).decode()
    return (f'<img alt="{html.escape(alt)}" style="max-width: 100%; height: auto" '
            f'src="data:image/png;base64,{data}">')
