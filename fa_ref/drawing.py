"""A sheet to draw on, in pixels from the top left corner; saved as an SVG that is the same bytes every time.

Text stays text. Every sheet has a light background of its own, so that it can be read on a dark page too. Needs
matplotlib, which `make dev` installs; who imports this only to draw does so inside a function.
"""

try:
    import matplotlib
except ImportError as error:
    raise ImportError("pictures need matplotlib: make dev, or pip install matplotlib") from error
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "fa_ref",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.monospace": ["DejaVu Sans Mono", "Menlo", "Consolas", "monospace"],
}

PAPER, INK, FAINT, RED = "#fdfdfa", "#24292f", "#666b74", "#b3261e"
BLUE, GREEN, ORANGE, VIOLET, GREY = "#cfe1f5", "#d3ebd0", "#fbdcb0", "#e2d3f2", "#e9e9e4"
COLORS = (BLUE, ORANGE, GREEN, VIOLET, "#f6cfd0", "#cdeae8", GREY)      # for groups, in this order
PIXEL = 0.75                                                        # points


class Sheet:
    """A sheet of width × height pixels."""

    def __init__(self, height, width=700):
        self.figure = Figure(figsize=(width / 96, height / 96), facecolor=PAPER)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")

    def text(self, x, y, words, size=12, color=INK, align="center", code=False, bold=False):
        """Words, centred at height y; x is their middle, or with align "left" or "right" their end."""
        if code:
            words = words.replace(" ", "\N{NO-BREAK SPACE}")           # SVG would make one space of several
        self.axes.text(x, y, words, fontsize=size * PIXEL, color=color, ha=align, va="center", parse_math=False,
                       family="monospace" if code else "sans-serif", weight="bold" if bold else "normal")

    def box(self, x, y, w, h, fill="none", words="", edge=INK, line=1, **how):
        """A rectangle with words in its middle."""
        self.axes.add_patch(Rectangle((x, y), w, h, facecolor=fill, edgecolor=edge, linewidth=line * PIXEL))
        if words:
            self.text(x + w / 2, y + h / 2, words, **how)

    def arrow(self, x0, y0, x1, y1, color=INK, line=1.5, style="-|>"):
        """A line with a head at its end; style "-" has none, "<|-|>" two."""
        self.axes.add_patch(FancyArrowPatch((x0, y0), (x1, y1), arrowstyle=style, mutation_scale=9, color=color,
                                            linewidth=line * PIXEL, shrinkA=0, shrinkB=0, capstyle="butt"))

    def save(self, path):
        """Write it, as what the path ends with."""
        save(self.figure, path)


def save(figure, path):
    """Write a figure of matplotlib in this style, as what the path ends with; an SVG has no date in it."""
    with matplotlib.rc_context(STYLE):
        metadata = {"Date": None, "Creator": None} if str(path).endswith(".svg") else None
        figure.savefig(path, metadata=metadata, dpi=96 * 2)
