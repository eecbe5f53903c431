"""Every wrong implementation of wrong.py is rejected, by the properties that ought to see its fault.

    python tests/test_wrong.py      the table: fault, property, problems it took, smallest failing problem
"""

import sys
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from fa_ref.testing import PROPERTIES, replay
from fa_ref.testing.running import try_property
from wrong import RIGHT, WRONG

pytestmark = pytest.mark.slow

PAIRS = [(wrong, name) for wrong in WRONG.values() for name in wrong.caught_by]


def tried(name, implementation, examples=200):
    """The Row of one property."""
    return try_property(name, implementation.fn, implementation.supports, examples=examples)


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_right_one_passes(name):
    row = tried(name, RIGHT, examples=100)
    assert row.status == "ok", row.detail


@pytest.mark.parametrize("wrong, name", PAIRS, ids=[f"{wrong.name}-{name}" for wrong, name in PAIRS])
def test_a_wrong_one_is_rejected(wrong, name):
    row = tried(name, wrong)
    assert row.status == "failed", f"{wrong.how} The kit did not notice in {row.examples} problems."
    assert not row.detail.startswith("raised"), f"a crash is not the fault that was meant: {row.detail}"
    line = row.detail.rpartition('--replay "')[2].rstrip('"')
    assert replay(wrong.fn, wrong.supports, line, [name]).failures, f"{line} does not bring the failure back"


@pytest.mark.parametrize("name", ["rescaling_inverted", "dQ_of_the_last_tile_only", "bias_of_the_first_tile"])
def test_tiles_of_64_keys_that_cannot_be_changed_hide_nothing(name):
    """Where tile sizes cannot be asked for, some problems are long enough for a second tile."""
    wrong = WRONG[name]
    fixed = replace(wrong, fn=lambda problem: wrong.fn(problem.replace(block_k=64)),
                    supports=wrong.supports.but(tiles=(), long_lengths=(65, 130, 150)))
    assert "failed" in {tried(prop, fixed, examples=100).status
                        for prop in ("equals_the_oracle", "gradients_equal_the_oracles")}


def test_every_property_rejects_a_wrong_one():
    idle = set(PROPERTIES) - {name for _, name in PAIRS}
    assert not idle, f"no wrong implementation is there for {idle}"


def test_every_wrong_one_says_how_it_happens():
    assert len(WRONG) >= 20
    for wrong in WRONG.values():
        assert wrong.caught_by and wrong.how and wrong.how.endswith("."), wrong.name


def main():
    """Print the table; 1 if a fault escaped."""
    rows = [(wrong.name, name, tried(name, wrong)) for wrong, name in PAIRS]
    table = Table("fault", "caught by", "problems", "smallest failing problem", box=None, pad_edge=False)
    for fault, name, row in rows:
        caught = row.status == "failed"
        table.add_row(fault, name, str(row.examples + caught), str(row.recipe) if caught else "ESCAPED")
    Console(width=None if sys.stdout.isatty() else 170).print(table)
    return int(any(row.status != "failed" for *_, row in rows))


if __name__ == "__main__":
    sys.exit(main())
