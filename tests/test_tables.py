"""The papers' figures beside ours: exact where they are counts, and every difference has its reason."""

import numpy as np
import pytest

from fa_ref import tables
from fa_ref.tables import arithmetic, flashmask, growth, rows, traffic
from fa_ref.tables.rows import DIFFERS, OK, ONLY_OURS

DIFFERENT = {"both-passes": 5, "paged": 1}              # figures that differ, and why is said
CHEAP = [name for name in tables.TABLES if name not in ("fp8", "theorem-1")]


@pytest.mark.parametrize("name", CHEAP)
def test_a_table(name):
    table, = tables.made([name])
    verdicts = [row.verdict for row in table.rows]
    assert set(verdicts) <= {OK, DIFFERS, ONLY_OURS} and (OK in verdicts or name == "both-passes") and table.source
    assert verdicts.count(DIFFERS) == DIFFERENT.get(name, 0)
    assert all(row.why and row.known for row in table.rows if row.verdict == DIFFERS)
    assert all((row.paper == "") == (row.verdict == ONLY_OURS) for row in table.rows)


def test_a_row_says_when_it_differs():
    """To the digits that are printed, or within a margin, which is then said."""
    assert [rows.row("", "2.0", x).verdict for x in (1.94, 1.951, 2.0, 2.049, 2.06)] == [DIFFERS, OK, OK, OK, DIFFERS]
    assert [rows.row("", "3.2e-4", x).verdict for x in (3.14e-4, 3.16e-4, 3.24e-4, 3.26e-4)] == [
        DIFFERS, OK, OK, DIFFERS]
    assert [rows.row("", "16", x).verdict for x in (15.4, 15.6, 16.6)] == [DIFFERS, OK, DIFFERS]
    assert [(r.verdict, r.why) for r in (rows.row("", "2.00", x, within=0.01) for x in (1.97, 1.99, 2.001, 2.03))] == [
        (DIFFERS, ""), (OK, "within 1 %"), (OK, ""), (DIFFERS, "")]
    assert [rows.follows("", 4, x).verdict for x in (4, 4.001)] == [OK, DIFFERS]
    assert rows.follows("", 4, 4, ".1f").paper == "(4.0)"
    assert rows.row("", None, 3.14159, ".2f") == rows.Row("", "", "3.14", ONLY_OURS, "")
    assert [rows.at_most("", 2, x).verdict for x in (1.9, 2, 2.1)] == [OK, OK, DIFFERS]
    assert [rows.holds("", x)[1:4] for x in (True, False)] == [("yes", "yes", OK), ("yes", "no", DIFFERS)]


@pytest.mark.parametrize("Bc", [64, 128, 256, 512])
def test_the_curve_of_figure_2_is_a_formula(Bc):
    """FA1, Figure 2 middle: 3·Tc + 1 matrices as plotted, one more as printed."""
    Tc = traffic.N // Bc
    assert traffic.forward_elements(Bc) == ((3 * Tc + 1) * traffic.N * traffic.D, (3 * Tc + 2) * traffic.N * traffic.D)


def test_both_passes_of_standard_attention():
    N, d = traffic.N, traffic.D
    assert traffic.both_passes_of_standard() == (11 * N * N + 12 * N * d, 12 * N * N * d)
    assert traffic.both_passes_of_fa1(256)[1] == 14 * N * N * d


def test_traffic_falls_with_the_memory_on_chip():
    """Theorem 2, exactly: 3·Tc + 2 matrices of N·d for FA1, 2 + 2·Tr for FA2, no change for standard attention."""
    moved = growth.sweep()
    N, d = growth.N, growth.D
    outer = [-(-M // (4 * d)) for M in growth.BUDGETS]
    assert moved["fa1"] == [(3 * (N // n) + 2) * N * d for n in outer]
    assert moved["fa2"] == [(2 + 2 * (N // n)) * N * d for n in outer]
    assert set(moved["standard"]) == {4 * N * N + 4 * N * d}


@pytest.mark.slow
def test_memory_is_linear_and_quadratic():
    """tracemalloc, not the ledger."""
    table = growth.theorem_1()
    assert [row.verdict for row in table.rows if row.verdict != ONLY_OURS] == [OK, OK, OK]
    found = {"standard": [1, 2, 4, 8], "fa1": [1, 2, 4, 9], "fa2": [1, 1, 1, 1]}
    assert [row.verdict for row in growth.theorem_1(found).rows[-3:]] == [DIFFERS, DIFFERS, OK]


@pytest.mark.parametrize("mask", flashmask.PRINTED)
def test_empty_tiles(mask):
    """rule.kind agrees with looking at every element."""
    N = 16 * flashmask.TILE
    i, j = np.ogrid[:N, :N]
    seen = {"full": i >= 0 * j, "causal": j <= i, "sliding window": (j <= i) & (i - j <= N // 16)}[mask]
    tiles = seen.reshape(16, flashmask.TILE, 16, flashmask.TILE).any(axis=(1, 3))
    assert flashmask.empty_share(mask, N) == 1 - tiles.mean()


def test_flops():
    assert arithmetic.attention_flops(8, 4, 2, batch=3) == 4 * 64 * 4 * 6
    assert arithmetic.attention_flops(8, 4, 1, causal=True, backward=True) == 1.25 * 4 * 64 * 4


def test_the_command(capsys, monkeypatch, tmp_path):
    assert tables.main(["paged", "etap"]) == 0
    told = capsys.readouterr().out
    assert "PagedAttention (2309.06180)" in told and "5.24" in told and "Napkin" not in told
    with pytest.raises(SystemExit):
        tables.main(["paged", "nonsense"])
    assert "unknown: nonsense; there are traffic" in capsys.readouterr().err
    wrong = rows.Table("t", "s", [rows.row("x", "1.0", 2.0)])
    monkeypatch.setitem(tables.TABLES, "etap", lambda: wrong)
    assert tables.main(["etap"]) == 1
    assert tables.main(["etap", "paged"]) == 1                          # not the last table alone
    with pytest.raises(SystemExit):
        tables.main(["etap", "--pictures", __file__])
    assert "a folder is needed" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["theorem-1", "theorem-2", "fp8"])
def test_a_wrong_figure_fails_the_command(name, monkeypatch):
    """A note beside a row is no excuse for it."""
    quadratic = [N * N * 1e3 for N in growth.LENGTHS]
    monkeypatch.setattr(growth, "memory_grows", lambda: dict.fromkeys(growth.CORES, quadratic))
    monkeypatch.setattr(growth, "sweep", lambda: {n: [7] * len(growth.BUDGETS) for n in growth.CORES})
    monkeypatch.setattr(tables.precision, "measured", lambda *_: {n: [1e9] * 4 for n in tables.precision.PRINTED})
    assert tables.main([name]) == 1


@pytest.mark.slow
def test_the_pictures_show_every_core(tmp_path):
    assert tables.main(["etap", "--pictures", str(tmp_path)]) == 0
    for name in ("theorem_1", "theorem_2"):
        text = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert all(core in text for core in ("standard attention", "FlashAttention-1", "FlashAttention-2"))


@pytest.mark.slow
def test_errors_in_eight_bits(monkeypatch):
    """FA3, Table 3 at a small size: the orderings hold for every seed; and a method that is no better is noticed."""
    from fa_ref.tables import precision

    table = precision.errors_table(quick=True, seeds=2)
    assert [row.verdict for row in table.rows] == [ONLY_OURS] * 7 + [OK] * 3
    monkeypatch.setattr(precision, "measured", lambda *_: {name: [1.0] for name in precision.PRINTED})
    assert [row.verdict for row in precision.errors_table(quick=True).rows[-3:]] == [DIFFERS] * 3
