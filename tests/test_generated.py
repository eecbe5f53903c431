"""What commands have written into README and docs is there, and is what they would write today where that is cheap."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import generate  # noqa: E402
import marks  # noqa: E402

import cuda_kernels.registered  # noqa: E402
from fa_ref.testing.registry import coverage_table  # noqa: E402

VERIFICATION = ROOT / "docs" / "verification.md"


def test_the_readme_shows_todays_coverage():
    assert marks.read(ROOT / "README.md", "coverage") == coverage_table(), "run: python docs/generate.py coverage"


def test_ten_thousand_problems_and_no_failure():
    """The table of the kit has a column for every implementation and no failure."""
    text = marks.read(VERIFICATION, "kit")
    assert all(name in text.splitlines()[0] for name in generate.NUMPY)
    problems, failures = re.search(r"^([\d,]+) problems, (\d+) failures", text, re.MULTILINE).groups()
    assert int(problems.replace(",", "")) >= 30_000 and int(failures) == 0


@pytest.mark.slow
def test_the_page_on_the_gpu_shows_todays_counts():
    assert marks.read(ROOT / "docs" / "gpu.md", "warps") == generate.warps_table(), "run: python docs/generate.py warps"


def test_the_page_on_tensor_cores_shows_every_function_of_ptx():
    shown = marks.read(ROOT / "docs" / "tensor_cores.md", "instructions")
    assert shown == generate.instructions_table(), "run: python docs/generate.py instructions"
    assert sorted(re.findall(r"^\| `(\w+)` \|", shown, re.MULTILINE)) == sorted(cuda_kernels.ptx.__all__)


def test_what_ran_on_a_gpu_held():
    """Every kernel is in each of the tables, and nothing in them failed."""
    checks, found, costs = (marks.read(VERIFICATION, name) for name in ("gpu", "sanitize", "costs"))
    for kernel in cuda_kernels.PLAIN:
        for dtype in ("float64", "float32", "float16", "bfloat16"):
            for kind in ("NumPy", "torch CUDA"):
                assert f"| kit {kernel} {dtype} {kind} | ok |" in checks
        assert re.search(rf"^\| {kernel} \| 12 \| 0 \| 0 \| 0 \|$", found, re.MULTILINE)
        assert f"| {kernel} | forward | 16 × 16 | 16 |" in costs
    assert "failed" not in checks and "out of time" not in checks
    ratio, = re.findall(r"^\| fa2 \| forward \| 32 × 32 \| 16 \| [\d.]+ \| ([\d.]+) × \|", costs, re.MULTILINE)
    assert float(ratio) <= 10
    planted = re.search(r"^\| a planted fault \| 1 \| (\d+) \| (\d+) \| (\d+) \|$", found, re.MULTILINE)
    assert all(int(n) > 0 for n in planted.groups())


def test_no_planted_fault_escaped():
    text = marks.read(VERIFICATION, "planted")
    assert int(re.search(r"^together +(\d+) ", text, re.MULTILINE)[1]) > 800 and "ESCAPED" not in text


@pytest.mark.parametrize("name", ["mutants", "bench"])
def test_measurements_have_been_written(name):
    assert re.search(r"\d", marks.read(VERIFICATION, name)), f"nothing between the marks {name!r}"


def test_filling_keeps_the_rest_of_the_file(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n")
    marks.fill(page, "x", "new")
    assert page.read_text() == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n"
    with pytest.raises(ValueError, match="no marks"):
        marks.fill(page, "y", "new")
