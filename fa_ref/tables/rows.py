"""What a table of `python -m fa_ref tables` is made of: a paper's figure, ours beside it, and whether they agree."""

from typing import NamedTuple

OK, DIFFERS, ONLY_OURS = "ok", "differs", "–"
LEGEND = ("paper: as it is printed there; in brackets: not printed, but it follows from what is. ok: ours, rounded to "
          "the digits of the paper, is its number, or lies within the margin that the last column names. differs: the "
          "last column says why. –: the paper has no number to compare with.")


class Row(NamedTuple):
    """One comparison as text. verdict: "ok", "differs", "–" where the paper has no number.

    known: does `why` say why it differs? A difference that is not known is a failure.
    """

    what: str
    paper: str
    ours: str
    verdict: str
    why: str = ""
    known: bool = False


class Table(NamedTuple):
    """title; source: the paper and the place in it; rows; note: a sentence or two below the table."""

    title: str
    source: str
    rows: list[Row]
    note: str = ""


def row(what, paper, ours, form=",.3f", within=None, why="", differs=""):
    """A Row of what the paper prints, a string such as "40.3" or "3.2e-4", and our number in this format.

    They agree if ours, rounded to as many digits, is the same; or, with `within`, if it lies within this part of the
    paper's, which is then said. paper None: the paper has no number here. differs: the reason, if it is known that they
    do not agree.
    """
    if paper is None:
        return Row(what, "", format(ours, form), ONLY_OURS, why)
    number = float(paper)
    digits, _, exponent = paper.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))      # of the last digit that is printed
    return judged(what, paper, number, ours, form, unit * 0.5000001, within, why, differs)


def follows(what, number, ours, form=",.3f", within=None, why="", differs=""):
    """The same for a number that the paper does not print, but that follows from what it prints."""
    return judged(what, f"({number:{form}})", number, ours, form, 0, within, why, differs)


def judged(what, shown, number, ours, form, error, within, why, differs):
    """A Row that is ok if ours lies within this error, or within this part, of the number; the part is then said."""
    exact = abs(ours - number) <= error
    agree = exact or (within is not None and abs(ours - number) <= within * abs(number))
    if agree and not exact:
        why = "; ".join(filter(None, (why, f"within {100 * within:g} %")))
    if agree:
        return Row(what, shown, format(ours, form), OK, why)
    return Row(what, shown, format(ours, form), DIFFERS, differs or why, known=bool(differs))


def at_most(what, number, ours, form=",.3f", why=""):
    """The same for an upper bound that follows from the paper: ours agrees if it is no more."""
    return Row(what, f"(≤ {number:{form}})", format(ours, form), OK if ours <= number else DIFFERS, why)


def holds(what, condition, why=""):
    """A Row that says yes or no where the paper says yes."""
    return Row(what, "yes", "yes" if condition else "no", OK if condition else DIFFERS, why)
