"""What the tests of kernels on tensor cores share: small problems, both 16-bit dtypes, how an answer is judged, and a
module with a fault planted in it.
"""

import re
from types import ModuleType

import numpy as np
import pytest
from ml_dtypes import bfloat16

import cuda_kernels
from fa_ref.testing import Problem, oracle
from fa_ref.testing.standard_16bit import two_errors
from fa_ref.testing.unread import clean_unread, poison_unread, unread_keys
from test_kernels import judge, solve

DTYPES = {"float16": np.float16, "bfloat16": bfloat16}
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="about the simulator; kernels run on a GPU here")
slow = pytest.mark.slow


def problem(dtype=np.float16, Nq=32, Nk=32, d=64, heads=(1, 1), seed=0, B=1, **options):
    rng = np.random.default_rng([seed, Nq, Nk, d])
    shapes = (heads[0], Nq), (heads[1], Nk), (heads[1], Nk)
    return Problem(*(rng.standard_normal((B, *shape, d)).astype(dtype) for shape in shapes), **options)


def shifted(x):
    """The same numbers in rows that begin 2 bytes after a multiple of 16."""
    return np.concatenate([x[..., :1], x], -1)[..., 1:]


def solved(kernel, p, warps=1, Br=None, Bc=None):
    """The answer of the kernel to a problem, with these tiles."""
    return solve(p.replace(block_q=Br, block_k=Bc), kernel=kernel, threads=32 * warps)


def holds(kernel, p, **how):
    """Within the bound of every element, and the rule of two errors as well."""
    result = solved(kernel, p, **how)
    judge(p, result)
    verdict = two_errors(result, oracle.solve(p), p, round_scores=False)["out"]
    assert verdict.ok, verdict
    return result


def with_unread_keys(**how):
    """A problem with keys that no query sees, some in a tile with others: with NaN and inf there, and with zeros."""
    p = problem(Nq=4, Nk=45, d=16, window=(5, 3), **how)
    assert 32 < unread_keys(p).sum() < 45
    return poison_unread(p), clean_unread(p)


def first_key_outweighs():
    """A problem in whose rows the first of 64 keys has all the weight: out is its v, and lse its score."""
    p = problem(Nq=3, Nk=64, d=16)
    q, k = np.full_like(p.q, 4), np.full_like(p.k, -5.3)
    k[:, :, 0] *= -1
    return p.replace(q=q, k=k)


def faulty(original, pattern, instead):
    """A copy of a module in which `instead` stands for all that the pattern finds, which must be something."""
    with open(original.__file__, encoding="utf-8") as file:
        text, count = re.subn(pattern, instead, file.read())
    assert count >= 1
    copy = ModuleType(original.__name__)
    exec(compile(text, original.__file__, "exec"), vars(copy))
    return copy
