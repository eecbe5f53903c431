"""Claims about FlashAttention that are in circulation, and what settles them: writes docs/claims.md.

    python docs/claims.py           run what is computed (about ten seconds) and write the page
    python docs/claims.py --run     only run it: what each function returns, and the time it took

The claims are in docs/claims/, one TOML file per topic, written and reviewed by hand; most_harmful.toml has those that
mislead most. What is computed for them is in docs/evidence/. A claim has these fields:

    id            its letter says which text it is from, see SOURCES
    says          the claim, translated and shortened
    verdict       one of VERDICTS
    because       what settles it: a section of a paper, or a release of the official code
    run           functions of docs/evidence/ that compute something about it, if there are any
    see           links, as seen from docs/, and `names` of files and tests
    unmeasured    what would have to be measured to settle it, or the rest of it, and is not here
"""

import re
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
PAGE = DOCS / "claims.md"
VERDICTS = {"correct": "Correct.", "imprecise": "Imprecise.", "wrong": "Wrong.", "unverifiable": "Cannot be verified."}
SOURCES = {
    "A": "a blog post in Russian, “Flash Attention-2”",
    "B": "an article in Hebrew of the wiki systems-analysis.info, “FlashAttention-2 (HE)”",
    "C": "a section of a book in Chinese, “4.3 FlashAttention-2 与 FlashAttention-3 演进” (the development of both)",
}
NOT_YET = "*Not yet measured here*"
HEAD = """\
# Claims in circulation

Three public texts that explain FlashAttention-2 and 3 were taken apart, claim by claim. This page says what holds.

{sources}

Claims are translated and shortened. Their numbers are ours: the letter is the text, the number the place in it. FA1,
FA2 and FA3 are the papers ([bibliography](bibliography.md)); v1.0.9 and v2.0.0 are releases of the official code.

- **Correct.** A source says so.
- **Imprecise.** The core is right; a detail is wrong, or nothing supports it.
- **Wrong.** A source says otherwise.
- **Cannot be verified.** No source says so or otherwise.

{table}

For {shown} claims something is computed, and what came out stands below, often of more than one kind:

- *Counted*, for {counted} claims: by this repository's own code. Our loops and kernels follow the papers, so a count
  shows what the described algorithm does, not what a release of the official code does.
- *Arithmetic*, for {arithmetic}: on numbers that the papers print.
- *Measured*, for {measured}: on a GPU, by the records of [performance](performance.md). FlashAttention-2 "by its
  authors" is torch's FLASH back end; "our" kernels are `fa2_mma` and `fa1_mma`, which follow the papers. Standard
  attention is torch's math back end. That one works in float32, so ratios to it are larger than those of the papers.

The functions are in `docs/evidence/`; each asserts what it says. What was measured may be measured again: then the
numbers change, and the verdict holds as long as they stay within the limits of the function.

"Not yet measured here" stands where only a GPU could show it, and this repository has no such measurement, with what is
missing: above all another card, and kernels of FlashAttention-1 and 3 by their authors.

`python docs/claims.py` writes this page.
"""


class Claim(NamedTuple):
    """One claim: see the docstring of the module."""

    id: str
    says: str
    verdict: str
    because: str
    run: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    unmeasured: str = ""


def topics():
    """{title: [Claim]} in the order of the files."""
    files = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("claims/[0-9]*.toml"))]
    return {file["title"]: [Claim(**entry) for entry in file["claim"]] for file in files}


def claims():
    """All Claims, in the order of the page."""
    return [claim for topic in topics().values() for claim in topic]


def harmful():
    """[(ids, the correction)], the worst first."""
    file = tomllib.loads((DOCS / "claims" / "most_harmful.toml").read_text(encoding="utf-8"))
    return [(error["ids"], error["right"]) for error in file["error"]]


def computed():
    """{name of a function: (the line that it returns, its kind)} of all that claims name.

    The line of a "measured" one is None while its record is missing.
    """
    from evidence import EVIDENCE  # here, since it starts the simulator

    names = dict.fromkeys(name for claim in claims() for name in claim.run)
    return {name: (EVIDENCE[name][0](), EVIDENCE[name][1]) for name in names}


def text(evidence=None):
    """The whole page. evidence: what `computed` returns, if it has run already."""
    evidence = evidence or computed()
    kinds = [kinds_of(claim, evidence) for claim in claims()]
    told = Counter(kind for found in kinds for kind in found)
    sources = "\n".join(f"- **{letter}**: {name}" for letter, name in SOURCES.items())
    head = HEAD.format(sources=sources, table=table(), shown=sum(map(bool, kinds)), counted=told["counted"],
                       arithmetic=told["arithmetic"], measured=told["measured"])
    parts = [head, "## The most harmful errors\n"]
    parts += [f"{n}. {', '.join(f'[{i}](#{i.lower()})' for i in ids)}: {right}" for n, (ids, right) in
              enumerate(harmful(), start=1)]
    for title, topic in topics().items():
        parts.append(f"\n## {title}\n")
        parts.append("\n\n".join(entry(claim, evidence) for claim in topic))
    return "\n".join(parts) + "\n"


def kinds_of(claim, evidence):
    """{"counted", "arithmetic", "measured"} as far as something of that kind is shown for it."""
    return {kind for line, kind in (evidence[name] for name in claim.run) if line}


def entry(claim, evidence):
    """One claim as text."""
    lines = [f"### {claim.id}", f"> {claim.says}", f"**{VERDICTS[claim.verdict]}** {claim.because}"]
    for name in claim.run:
        line, kind = evidence[name]
        told = f"*{kind.capitalize()}* (`{name}`): {line}."
        lines.append(told if line else f"{NOT_YET} (`{name}`): no record is kept.")
    if claim.unmeasured:
        lines.append(f"{NOT_YET}: {claim.unmeasured}.")
    if claim.see:
        lines.append("See " + ", ".join(map(linked, claim.see)) + ".")
    return "\n\n".join(lines)


def linked(name):
    """A link to a file or a test that stands between backticks; anything else as it is."""
    return re.sub(r"^`([\w/.]+)(::\w+)?`$", r"[`\1\2`](../\1)", name)


def table():
    """How many claims of each text got which verdict."""
    found = Counter((claim.id[0], claim.verdict) for claim in claims())
    rows = [["text", *(words.rstrip(".").lower() for words in VERDICTS.values()), "all"],
            ["---", *["---:"] * (len(VERDICTS) + 1)]]
    for letter in SOURCES:
        numbers = [found[letter, verdict] for verdict in VERDICTS]
        rows.append([letter, *numbers, sum(numbers)])
    rows.append(["all", *(sum(row[n] for row in rows[2:]) for n in range(1, len(VERDICTS) + 2))])
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def write():
    """Write the page."""
    PAGE.write_text(text(), encoding="utf-8")


def run():
    """Run what is computed, and print it."""
    from evidence import EVIDENCE  # here, since it starts the simulator

    for name, (function, kind) in EVIDENCE.items():
        began = time.perf_counter()
        line = function()
        print(f"{time.perf_counter() - began:5.2f} s  {kind:10}  {name}: {line}")


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--run"]):
        sys.exit(__doc__)
    run() if sys.argv[1:] else write()
