"""Every fault of these kinds, planted wherever it can stand in our kernels, is caught without a GPU.

    python tests/test_planted_faults.py         the table: kind of fault, places, what caught them
"""

import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

import cuda_kernels
from planted import FILES, SMALL, faults, trial, trials

pytestmark = pytest.mark.slow

BARRIER = r"^( *)(cuda\.sync(?:threads|warp)\(.*\))"
OWN_LOOP = r"range\((.*)\bt, (.+), T\)"                             # of a thread: t, t + T, t + 2T, …
FROM_MEMORY = r"[^\n]*, T\):\n(?: +\w, \w = .*\n)? +\w+\[.*\] = (?:widen\()?\w+\[b, "       # a loop that loads a tile

# kind of fault: (pattern, what stands there instead, at least how many places there are)
LEFT_OUT = {"a barrier left out": (BARRIER, r"\1pass", 26)}
DIVERGENT = {
    "a barrier for some threads": (BARRIER, r"\1if cuda.threadIdx.x < 2: \2", 26),
    "two barriers instead of one": (BARRIER, r"\1if cuda.threadIdx.x == 0:\n\1    \2\n\1else:\n\1    \2", 26),
    "a return before a barrier": (BARRIER, r"\1if cuda.threadIdx.x == 1: return\n\1\2", 26),
}
UNGUARDED = {
    "a minimum forgotten": (r"\bmin\(([^,()]+), [^,()]+\)", r"\1", 15),
    "a whole tile loaded": (rf"\bb([rc])\b(?={FROM_MEMORY})", r"B\1", 18),
    "a whole tile used": (r"(?<=< )b([rc])\b|(?<=range\()b([rc])\b", r"B\1\2", 15),
}
UNWRITTEN = {
    "a fill left out": (r"^( *)\w+\[[^=]+\] = (?:zero|minus_inf) *$", r"\1pass", 12),
    "a write left out": (
        r"^( *)(?:\w+\[[^=]+\] .?= (?!(?:zero|minus_inf) *$).*|cuda\.atomic\..*)", r"\1pass", 70),
}
MISPLACED = {
    "row and column exchanged": (r"(\w+ // (\w+)), (\w+ % \2)", r"\3, \1", 50),
    "rows one element longer": (r"\be // (d|dv|Bc), (.*\b)e % \1\b", r"e // (\1 + 1), \2e % (\1 + 1)", 45),
    "as many rows as the tile of keys": (r"(array\(\(?(?:warps, )?)Br\b", r"\1Bc", 25),
    "as many rows as the tile of queries": (r"(array\(\(?(?:warps, )?)Bc\b", r"\1Br", 10),
    "as many columns as queries": (r"(array\(.*, )Bc_padded\)", r"\1Br)", 7),
    "columns of dv": (r"(array\(.*, )d(?:_padded)?\)", r"\1dv)", 12),
    "columns of d": (r"(array\(.*, )dv(?:_padded)?\)", r"\1d)", 10),
    "the tile's first row forgotten": (r"\b(?:row0|col0|first) \+ ", "", 50),
    "every thread starts at 0": (OWN_LOOP, r"range(\g<1>0, \2, T)", 60),
    "every thread misses some": (OWN_LOOP, r"range(\1t, \2, T + 1)", 60),
    "the causal offset forgotten": (r"\boffset = .*", "offset = 0", 7),
    "h % Hkv instead of h // group": (r"\bh // \(Q\.shape\[1\] // K\.shape\[1\]\)", "h % K.shape[1]", 6),
    "the group forgotten": (r"\bg \* group\b", "g", 4),
}
KINDS = LEFT_OUT | DIVERGENT | UNGUARDED | UNWRITTEN | MISPLACED
PLACES = {kind: faults(pattern, instead) for kind, (pattern, instead, _) in KINDS.items()}
HARMLESS = {
    ("fa1_backward", "li[r] = l[b, h, r]"): "through backward(), l is 1 in every row",
    ("fa2_warps", "for c in range(Bc):"): "P of a key that is not there is 0, in whatever lane",
}


def harmless(fault):
    return (fault.path.stem, fault.after) in HARMLESS


def places(kinds):
    """All faults of these kinds that do harm, named for pytest."""
    return pytest.mark.parametrize("fault", [
        pytest.param(fault, id=f"{kind}: {fault}") for kind in kinds for fault in PLACES[kind] if not harmless(fault)])


def seen(fault, folder, sees=bool):
    """The first Trial that sees the fault."""
    found = next(filter(sees, trials(fault, folder)), None)
    assert found is not None, f"nothing was noticed in {len(SMALL)} problems"
    return found


def where(fault, folder, findings):
    """The lines that these findings name, which must all be lines of the kernel."""
    lines = [side for f in findings for side in (f.first, f.second) if side and side.line]
    assert {side.file for side in lines} == {str(folder / fault.path.name)}
    assert {side.line for side in lines} <= set(range(fault.lines[0], fault.lines[-1] + 4))     # some faults add lines
    return {side.line for side in lines}


# --- nothing planted ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("kernel", cuda_kernels.PLAIN)
def test_kernels_without_a_fault_are_clean(kernel, name):
    assert not trial(name, kernel)
    if kernel in cuda_kernels.WITH_BACKWARD:
        for deterministic in (False, True):
            assert not trial(name, kernel, True, deterministic)


def test_the_places_are_found():
    """Not one barrier is overlooked, and of every kind there are as many as one would expect, in many files."""
    in_files = sum(len(re.findall(r"cuda\.sync(?:threads|warp)\(", path.read_text(encoding="utf-8"))) for path in FILES)
    for kind, (*_, least) in KINDS.items():
        assert len(PLACES[kind]) >= least, (kind, len(PLACES[kind]))
        assert kind not in LEFT_OUT | DIVERGENT or len(PLACES[kind]) == in_files
    for path in FILES:
        kinds = {kind for kind in KINDS if any(fault.path == path for fault in PLACES[kind])}
        assert len(kinds) > len(KINDS) / 3, (path.name, kinds)


@pytest.mark.parametrize("place", HARMLESS, ids=str)
def test_what_is_called_harmless_is(place, tmp_path):
    """Where a change to the text is none to the numbers, nothing is reported."""
    chosen = [fault for kind in KINDS for fault in PLACES[kind] if (fault.path.stem, fault.after) == place]
    assert chosen and not any(found for fault in chosen for found in trials(fault, tmp_path))


# --- faults ---------------------------------------------------------------------------------------------------

@places(LEFT_OUT)
def test_a_missing_barrier_is_a_race(fault, tmp_path):
    found = seen(fault, tmp_path, lambda trial: trial.of_kind("race"))
    assert where(fault, tmp_path, found.findings)


@places(DIVERGENT)
def test_a_barrier_that_not_all_come_to(fault, tmp_path):
    """Reported as a divergence that names the barrier's line, or the run ends and says who waits there."""
    found = seen(fault, tmp_path, lambda trial: trial.of_kind("divergence") or trial.error)
    here = set(range(fault.number, fault.number + 4))
    if divergences := found.of_kind("divergence"):
        assert where(fault, tmp_path, divergences) & here
    else:
        assert any(f"{fault.path.name}:{line}" in str(found.error) for line in here), found


@places(UNGUARDED)
def test_an_unguarded_tail(fault, tmp_path):
    """An index past the end, a cell that nobody wrote, or wrong numbers."""
    found = seen(fault, tmp_path)
    if isinstance(found.error, IndexError):
        assert re.match(r"\w+( \(shared, \w+\.py:\d+\))?\[.*\]: .* its shape is", str(found.error))
    else:
        assert found.of_kind("uninitialised") or found.wrong, found


@places(UNWRITTEN)
def test_memory_that_is_not_written(fault, tmp_path):
    """Shared memory: reported as read before it is written. The others: NaN in the result."""
    array = fault.before.partition("[")[0]
    found = seen(fault, tmp_path)
    assert [f for f in found.of_kind("uninitialised") if f.array.startswith(f"{array} (shared")] or found.wrong, found


@places(MISPLACED)
def test_a_wrong_index(fault, tmp_path):
    assert seen(fault, tmp_path)


# --- the table ------------------------------------------------------------------------------------------------

def caught_by(fault):
    """What sees the fault first, in a word."""
    with tempfile.TemporaryDirectory() as folder:
        found = next(filter(None, trials(fault, Path(folder))), None)
    if found is None:
        return "harmless" if harmless(fault) else "ESCAPED"
    if found.error:
        return type(found.error).__name__
    return next((kind for kind in ("divergence", "race", "uninitialised") if found.of_kind(kind)), "wrong numbers")


def main():
    """Print the table; 1 if a fault escaped."""
    total = Counter()
    for kind in KINDS:
        counts = Counter(map(caught_by, PLACES[kind]))
        total += counts
        print(row(kind, counts), flush=True)
    print(row("together", total))
    return int(total["ESCAPED"] > 0)


def row(name, counts):
    return f"{name:36} {counts.total():4}  {', '.join(f'{n} {how}' for how, n in counts.most_common())}"


if __name__ == "__main__":
    sys.exit(main())
