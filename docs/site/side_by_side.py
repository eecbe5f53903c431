"""Pages on which a NumPy loop and its kernel stand beside each other, step by step, cut from the files themselves."""

from html import escape
from typing import NamedTuple

from steps import cut


class Page(NamedTuple):
    """A page: its title, the functions on the left and on the right, [(file, function)]; a player; a last remark.

    The functions stand in the order of their steps; without a right side, the page shows one loop.
    """

    title: str
    left: list
    right: list = ()
    player: str = ""
    note: str = ""


def numpy(file, *functions):
    return [(f"fa_ref/{file}.py", function) for function in functions]


def cuda(file, *functions):
    return [(f"cuda_kernels/{file}.py", function) for function in functions]


PAGES = {
    "standard": Page("Standard attention", numpy("standard", "probabilities", "forward_head"),
                     cuda("standard", "make_forward"), "standard"),
    "fa1": Page("FlashAttention-1", numpy("fa1", "forward_head"), cuda("fa1", "make_forward"), "fa1"),
    "fa2": Page("FlashAttention-2", numpy("fa2", "forward_head"), cuda("fa2", "make_forward"), "fa2"),
    "fa3": Page("FlashAttention-3", numpy("fa3", "forward_head"), player="fa3",
                note="There is no kernel of it yet. The backward pass is that of FlashAttention-2."),
    "fa3_fp8": Page("FlashAttention-3 in 8 bits", numpy("fa3_fp8", "forward_head"), player="fa3_fp8",
                    note="There is no kernel of it yet, and no backward pass."),
    "fa1_warps": Page("FlashAttention-1 by warps: split-K", cuda("fa1", "make_forward"),
                      cuda("fa1_warps", "make_forward")),
    "fa2_warps": Page("FlashAttention-2 by warps: split-Q", cuda("fa2", "make_forward"),
                      cuda("fa2_warps", "make_forward")),
    "fa1_mma": Page("FlashAttention-1 on tensor cores", cuda("fa1", "make_forward"),
                    cuda("fa1_mma", "make_forward")),
    "fa2_mma": Page("FlashAttention-2 on tensor cores", cuda("fa2", "make_forward"),
                    cuda("fa2_mma", "make_forward")),
    "standard_backward": Page("Standard attention, backward", numpy("standard", "backward_head", "gradients"),
                              cuda("standard", "make_backward")),
    "fa1_backward": Page("FlashAttention-1, backward", numpy("fa1", "backward_head"),
                         cuda("fa1_backward", "make_backward")),
    "fa2_backward": Page("FlashAttention-2, backward", numpy("fa2", "backward_head"),
                         cuda("fa2_backward", "make_preprocess", "make_backward"),
                         note="Step (12) adds with atomics. For sums in one order, "
                              ":doc:`/cuda_kernels/fa2_dq.py` makes dQ in a kernel of its own."),
}


def rst(name):
    """The page of this name, as reStructuredText."""
    page = PAGES[name]
    files = list(dict.fromkeys(file for file, _ in [*page.left, *page.right]))
    sources = " and ".join(f":doc:`/{file}`" for file in files)
    told = (f"A number is the same step in both: {sources}. Between them stand the heads of loops, barriers, and what "
            "else only one of the two needs. Docstrings are left out." if page.right else
            f"The loop, step by step: {sources}. Docstrings are left out.")
    out = [":hide-toc:", "", page.title, "=" * len(page.title), "", told, page.note, ""]
    if page.player:
        out += ["`Step through it <#play>`__: the NumPy loop as it runs on a tiny problem, below.", ""]
    out += [".. raw:: html", "", *indented(table(page)), ""]
    return "\n".join(out + (player(page) if page.player else []))


def player(page):
    """The recording of a run, in a frame."""
    kernel = f', <a href="../players/{page.player}_kernel.html">the kernel, played by one thread</a>'
    return [".. raw:: html", "", *indented(
        f'<h2 id="play">Step through it</h2>\n'
        f'<p>{escape(page.title)} on 4 queries and 6 keys. Click into it, then use → and ← (Shift: the next load or '
        f'store). On a page of its own: <a href="../players/{page.player}.html">this loop</a>'
        f'{kernel if page.right else ""}.</p>\n'
        f'<iframe class="player" src="../players/{page.player}.html" loading="lazy" '
        f'title="Player: a run of {escape(page.title)}, line by line"></iframe>'), ""]


def table(page):
    """The steps of both sides as HTML: a row for each place in which at least one of them has lines."""
    sides = [cut(parts) for parts in (page.left, page.right) if parts]
    names = [parts[0][0] for parts in (page.left, page.right) if parts]
    words = sides[0][1]
    rows = [f'<div class="row heads" aria-hidden="true">{"".join(f"<div>{name}</div>" for name in names)}</div>']
    for n, between in sorted({place for places, _ in sides for place in places}):
        title = "" if between else f'<h2 id="step-{n}">({n}) {escape(words[n])}</h2>'
        what = f"step {n}" if not between else f"after step {n}" if n else "before the first step"
        cells = [cell(places.get((n, between)), f"{name}, {what}")
                 for (places, _), name in zip(sides, names, strict=True)]
        rows.append(f'<section class="step{" between" if between else ""}">{title}<div class="row">'
                    f'{"".join(cells)}</div></section>')
    return f'<div class="side-by-side sides-{len(sides)}">\n' + "\n".join(rows) + "\n</div>"


def cell(lines, label):
    """Lines of one side; the least indented stands at the left."""
    if not lines:
        return '<div class="nothing"></div>'
    least = min(line.indent for line in lines if line.code)
    shown = "\n".join(
        f'<span class="line" data-line="{line.number}">'
        f'<span class="code">{" " * (line.indent - least)}{line.code}</span>'
        + (f'<span class="note">{line.note}</span>' if line.note else "") + "</span>" for line in lines)
    return (f'<div class="highlight" tabindex="0" role="group" aria-label="{escape(label)}">'
            f'<span class="who" aria-hidden="true">{escape(label.split(",")[0])}</span><pre>{shown}</pre></div>')


def indented(text):
    return [f"    {line}" for line in text.split("\n")]
