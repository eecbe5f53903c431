"""The part `instructions` of gpu_check.py, in the simulator: the models pass it, and it notices what is wrong."""

import numpy as np
import pytest

import cuda_kernels
import gpu_instructions
from cuda_kernels import ptx
from cuda_kernels.ptx import matrices

simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="gpu_check.py does this on a GPU")


class Rows(list):
    def add(self, name, ok, words):
        self.append((name, ok, words))


@simulated
def test_every_function_is_looked_at_and_its_model_is_right():
    rows = Rows()
    gpu_instructions.instructions(rows, count=256)
    assert [name for name, *_ in rows] == [f"ptx.{name}" for name in ptx.__all__]
    assert all(ok for _, ok, _ in rows), [words for _, ok, words in rows if not ok]


@simulated
def test_what_is_wrong_is_noticed_and_hides_nothing_else(monkeypatch):
    right = matrices.spread
    monkeypatch.setattr(ptx, "exp2", lambda x: np.float32(np.exp2(np.float64(x)) * (1 + 3e-6)))
    monkeypatch.setattr(matrices, "spread", lambda rows, trans: right(rows, not trans))
    monkeypatch.setattr(ptx, "ldmatrix_x2", lambda tile, at: (np.uint32(0), np.uint32(0)))
    monkeypatch.setattr(ptx, "store_pair", lambda array, index, pair: None)
    monkeypatch.setattr(ptx, "__all__", [*ptx.__all__, "something_new"])
    rows = Rows()
    with np.errstate(all="ignore"):
        gpu_instructions.instructions(rows, count=64)
    failed = {name.removeprefix("ptx.") for name, ok, _ in rows if not ok}
    assert failed == {"exp2", "ldmatrix_x2", "store_pair", "something_new"}
