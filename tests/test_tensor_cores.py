"""What every kernel on tensor cores must do in its forward pass. Each has tests of its own.

They run in the simulator, and on the GPU where FA_REF_CUDA=gpu.
"""

import numpy as np
import pytest

import cuda_kernels
from tensor_core_problems import dtypes, first_key_outweighs, problem, shifted, slow, solved, with_unread_keys

kernels = pytest.mark.parametrize("kernel", [name for name in cuda_kernels.KERNELS if name not in cuda_kernels.PLAIN])


@kernels
def test_what_was_added_up_does_not_fade(kernel):
    """Where the maximum stays alpha is exactly 1, however many tiles of keys follow."""
    p = first_key_outweighs()
    one, four = (solved(kernel, p, Bc=Bc) for Bc in (64, 16))
    assert np.array_equal(four.out, np.broadcast_to(p.v[:, :, :1], p.q.shape))
    assert four.lse.tobytes() == one.lse.tobytes() and four.out.tobytes() == one.out.tobytes()


@kernels
@dtypes
def test_keys_that_nobody_sees_may_be_anything(kernel, dtype):
    """Zeros stand for them on chip: P is 0 there, and 0 · NaN would be NaN."""
    poisoned, clean = (solved(kernel, p) for p in with_unread_keys(dtype=dtype))
    assert poisoned.out.tobytes() == clean.out.tobytes() and poisoned.lse.tobytes() == clean.lse.tobytes()


@slow
@kernels
def test_any_strides(kernel):
    """Rows that cannot be copied 16 bytes at a time, heads inside tokens, rows backwards: the same bits."""
    p = problem(d=16, Nq=20, Nk=20, heads=(2, 2), causal=True)
    clean = solved(kernel, p)
    for laid in (shifted, spread, turned, backwards):
        other = solved(kernel, p.replace(q=laid(p.q), k=laid(p.k), v=laid(p.v)))
        assert clean.out.tobytes() == other.out.tobytes() and clean.lse.tobytes() == other.lse.tobytes(), laid


def spread(x):
    return x.repeat(2, -1)[..., ::2]


def turned(x):
    return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)


def backwards(x):
    return np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1]
