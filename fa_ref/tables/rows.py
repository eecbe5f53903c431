"""What a table of `python -m fa_ref tables` is made of: a paper's figure, ours beside it, and whether they agree."""

from typing import NamedTuple

OK, DIFFERS, ONLY_OURS = "ok", "differs", "–"


class Row(NamedTuple):
    """One comparison as text. verdict: "ok", "differs" (then `why` says why), "–" where the paper prints no number."""

    what: str
    paper: str
    ours: str
    verdict: str
    why: str = ""


class Table(NamedTuple):
    """title; source: the paper and the place in it; rows; note: a sentence or two below the table."""

    title: str
    source: str
    rows: list[Row]
    note: str = ""


def row(what, paper, ours, form=",.3f", within=0.005, why=""):
    """A Row of two numbers, shown in this format; they agree if ours is `within` this part of the paper's.

    paper None: the paper prints no number here.
    """
    if paper is None:
        return Row(what, "", format(ours, form), ONLY_OURS, why)
    verdict = OK if abs(ours - paper) <= within * abs(paper) else DIFFERS
    return Row(what, format(paper, form), format(ours, form), verdict, why)


def at_most(what, paper, ours, form=",.3f", why=""):
    """The same for an upper bound: ours agrees if it is no more."""
    return Row(what, f"≤ {paper:{form}}", format(ours, form), OK if ours <= paper else DIFFERS, why)
