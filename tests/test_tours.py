"""`make tour`, the main job: both parts run to their ends, show everything there is, and fail if anything disagrees."""

import pytest

import cuda_kernels
import cuda_kernels.tour
import fa_ref
import fa_ref.tour
from fa_ref.testing import tolerance

TOURS = {"fa_ref": (fa_ref.tour, fa_ref.ALGORITHMS), "cuda_kernels": (cuda_kernels.tour, cuda_kernels.KERNELS)}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOURS)
def test_a_tour_shows_all_and_agrees(name, monkeypatch, tmp_path, capsys):
    tour, names = TOURS[name]
    monkeypatch.chdir(tmp_path)
    assert tour.main() == 0
    told = capsys.readouterr().out
    assert "FAIL" not in told and [x for x in names if f" {x} " not in told] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TOURS)
def test_a_tour_notices_what_disagrees(name, monkeypatch, tmp_path, capsys):
    """Bounds a million times too small: whatever was rounded is wrong then."""
    tour, _ = TOURS[name]
    monkeypatch.chdir(tmp_path)
    right = tolerance.bounds
    monkeypatch.setattr(tolerance, "bounds", lambda *p: type(right(*p))(
        *(None if x is None else 1e-6 * x for x in vars(right(*p)).values())))
    assert tour.main() == 1
    assert "FAIL" in capsys.readouterr().out
