"""What gpu_check.py does on a GPU, tried in the simulator as far as it goes: right kernels pass, wrong ones do not."""

import re
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

import cuda_kernels
import gpu_arrays
import gpu_check
import gpu_kit
import gpu_tensor_cores
import gpu_torch
from cuda_kernels import launch
from fa_ref.testing.standard_16bit import float64_truth
from test_gpu_instructions import Rows

simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="gpu_check.py does this on a GPU")
pytestmark = [pytest.mark.slow, simulated]
kernels = pytest.mark.parametrize("kernel", gpu_arrays.ON_TENSOR_CORES)
SMALL = (9, 14), (17, 17)


def by_numpy(p, kernel):
    return gpu_arrays.solve_numpy(p, kernel, threads=32)


@kernels
def test_official_sizes(kernel):
    _, failed, told = gpu_tensor_cores.official_job(kernel, "bfloat16", 16, SMALL, by_numpy)
    assert failed == [] and told.startswith("9 problems")


def test_official_sizes_tell_every_problem_that_is_wrong():
    """Of several faults, and of one that raises, none hides another."""
    def wrong(p, kernel):
        result = float64_truth(p)
        if p.causal:
            return replace(result, out=result.out + 0.1)
        if p.window != (-1, -1):
            return replace(result, lse=result.lse + 1e-3)
        raise RuntimeError("no answer")

    _, failed, _ = gpu_tensor_cores.official_job("fa1_mma", "float16", 16, SMALL, wrong)
    assert sum(": out " in text for text in failed) == 3 and sum(": lse " in text for text in failed) == 3
    assert sum("no answer" in text for text in failed) == 3


@kernels
def test_small_problems(kernel, monkeypatch):
    report, some = Rows(), gpu_kit.small_on_tensor_cores()[::5]
    monkeypatch.setattr(gpu_kit, "small_on_tensor_cores", lambda: some)
    gpu_kit.small(report, kernel)
    assert report == [(f"small problems, {kernel}", True, "3 problems")]


@kernels
def test_calls_are_repeated(kernel):
    assert "the same bits" in gpu_tensor_cores.repeated(kernel, (1, 1, 20, 16), runs=2)


def test_calls_that_differ_are_noticed(monkeypatch):
    calls, right = iter(range(99)), cuda_kernels.forward
    monkeypatch.setattr(cuda_kernels, "forward", lambda *x, **how: (
        lambda found: found._replace(lse=found.lse + (next(calls) == 2)))(right(*x, **how)))
    with pytest.raises(AssertionError, match="forward differs in call 1"):
        gpu_tensor_cores.repeated("fa1_mma", (1, 1, 5, 16), runs=4)


PROBLEMS = (20, 9, 16, {"causal": True}), (5, 20, 8, {}), (40, 9, 16, {"window": (0, 0)})


@kernels
def test_outputs_are_written(kernel):
    assert gpu_tensor_cores.written(kernel, PROBLEMS) == "3 problems, the same bits"


def test_outputs_that_are_not_written_are_noticed(monkeypatch):
    right = launch.Call.launch

    def forgetful(self, kernel, grid, *arguments, shared=0):
        right(self, kernel, grid, *arguments, shared=shared)
        arguments[3][..., -1] = np.nan                              # as if nobody had written the last channel

    monkeypatch.setattr(launch.Call, "launch", forgetful)
    with pytest.raises(AssertionError, match=r"20 × 9, d = 16.*out has NaN"):
        gpu_tensor_cores.written("fa1_mma", PROBLEMS)


def test_a_kit_without_time_for_one_problem_is_a_failure():
    _, failed, told = gpu_kit.kit_job("fa2", "float32", "NumPy", 5, time.monotonic() - 1)
    assert "0 problems" in told and len(failed) > 10 and all("not one problem" in text for text in failed)


def test_lengths_of_zero():
    for kernel in gpu_arrays.KERNELS:
        assert gpu_torch.of_length_zero(kernel) == "zeros and −inf"


def test_the_table_shows_what_held_and_the_error_of_what_did_not():
    report = gpu_check.Report()
    gpu_arrays.rows(report, "halves", lambda kernel: f"{1 / (kernel != 'b')}\nmore", ("a", "b"))
    assert report.table() == "halves, a  ok      1.0\nhalves, b  FAILED  ZeroDivisionError: division by zero"


@pytest.mark.parametrize(("option", "told"), [
    ("--only=streams,speed", "--only takes kit, larger, .*; got speed"),
    ("--kernels=fa2,fa4", "--kernels takes standard, .*; got fa4")])
def test_unknown_names_are_refused_before_anything_runs(option, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", option])
    with pytest.raises(SystemExit):
        gpu_check.main()
    assert re.search(told, capsys.readouterr().err)


def test_a_failure_is_a_row_and_hides_nothing():
    report = Rows()
    gpu_arrays.rows(report, "halves", lambda kernel: f"{1 / (kernel != 'b')}", ("a", "b", "c"))
    assert [(name, ok) for name, ok, _ in report] == [("halves, a", True), ("halves, b", False), ("halves, c", True)]
    assert "ZeroDivisionError" in report[1][2]
