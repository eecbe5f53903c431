"""Packed sequences are a loop over sequences: the judge solves each alone, and nothing leaks into a neighbour."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16, finfo

import fa_ref
from fa_ref import varlen
from fa_ref.heads import ALGORITHMS
from fa_ref.testing import oracle

HQ, HKV, D, DV = 4, 2, 3, 2
SHAPES = {
    "head, query, key": lambda tq, tk: (HQ, tq, tk),
    "query, key": lambda tq, tk: (tq, tk),
    "1, query, key": lambda tq, tk: (1, tq, tk),
    "head, 1, key": lambda tq, tk: (HQ, 1, tk),
    "head": lambda tq, tk: (HQ, 1, 1),
    "query": lambda tq, tk: (tq, 1),
    "key": lambda tq, tk: (tk,),
    "nothing": lambda tq, tk: (),
}


class Packed:
    """Random q, k, v, dout, dlse of sequences whose (Nq, Nk) are given, and where each sequence lies."""

    def __init__(self, lengths, seed=0, dtype=np.float64):
        self.r = np.random.default_rng(seed)
        self.cu_q, self.cu_k = ([0, *np.cumsum([n[axis] for n in lengths]).tolist()] for axis in (0, 1))
        self.total_q, self.total_k = self.cu_q[-1], self.cu_k[-1]
        self.q, self.k, self.v, self.dout = (
            self.r.standard_normal(shape).astype(dtype) for shape in (
                (HQ, self.total_q, D), (HKV, self.total_k, D), (HKV, self.total_k, DV), (HQ, self.total_q, DV)))
        wide = np.float64 if dtype == np.float64 else np.float32
        self.dlse = self.r.standard_normal((HQ, self.total_q)).astype(wide)
        self.spans = [(slice(*self.cu_q[s:s + 2]), slice(*self.cu_k[s:s + 2])) for s in range(len(lengths))]

    def solve(self, cu_q=None, cu_k=None, **options):
        """(out, lse, dq, dk, dv, dbias, dsink) of the packed calls."""
        cu = self.cu_q if cu_q is None else cu_q, self.cu_k if cu_k is None else cu_k
        answer = varlen.forward(self.q, self.k, self.v, *cu, **options)
        return (*answer, *varlen.backward(self.dout, self.q, self.k, self.v, *answer, *cu, dlse=self.dlse, **options))

    def one_by_one(self, forward, backward, bias=None, mask=None, alibi_slopes=None, sink=None, **options):
        """The same from dense calls, one sequence after the other; dbias in full shape (HQ, total_q, total_k)."""
        q, k, v, dout, dlse = self.q, self.k, self.v, self.dout, self.dlse
        full = (HQ, self.total_q, self.total_k)
        out, lse, dq, dk, dv = (np.zeros(x.shape, x.dtype) for x in (dout, dlse, q, k, v))
        dbias, dsink = np.zeros(full), np.zeros(HQ)
        for s, (rows, cols) in enumerate(self.spans):
            own = options | {"sink": sink, "alibi_slopes": alibi_slopes}
            own |= {name: None if x is None else np.broadcast_to(x, full)[None, :, rows, cols]
                    for name, x in (("mask", mask), ("bias", bias))}
            if alibi_slopes is not None and alibi_slopes.ndim == 2:
                own["alibi_slopes"] = alibi_slopes[s]
            qkv = q[None, :, rows], k[None, :, cols], v[None, :, cols]
            answer = forward(*qkv, **own)
            grads = backward(dout[None, :, rows], *qkv, answer, dlse=dlse[None, :, rows], **own)
            out[:, rows], lse[:, rows] = answer.out[0], answer.lse[0]
            dq[:, rows], dk[:, cols], dv[:, cols] = grads.dq[0], grads.dk[0], grads.dv[0]
            if bias is not None:
                dbias[:, rows, cols] = grads.dbias[0]
            if sink is not None:
                dsink += grads.dsink
        dbias = None if bias is None else oracle.sum_to(dbias, bias.shape)
        return out, lse, dq, dk, dv, dbias, None if sink is None else dsink


def judged(packed, **options):
    """The answer of the judge, sequence by sequence."""
    def backward(dout, q, k, v, answer, **own):
        return oracle.backward(dout, q, k, v, **own)
    return packed.one_by_one(oracle.forward, backward, **options)


def dense(packed, walk, **options):
    """The answer of `fa_ref.forward` and `backward`, sequence by sequence."""
    def forward(q, k, v, **own):
        return fa_ref.forward(q, k, v, **own, **walk)

    def backward(dout, q, k, v, answer, **own):
        return fa_ref.backward(dout, q, k, v, *answer, **own, **walk)
    return packed.one_by_one(forward, backward, **options)


def check_close(results, wanted, atol=1e-11):
    """All fields agree."""
    for name, a, b in zip(("out", "lse", "dq", "dk", "dv", "dbias", "dsink"), results, wanted, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=name)


lengths = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4)


@st.composite
def options(draw, packed):
    """Any of the options, for these sequences."""
    def random(shape):
        return packed.r.standard_normal(shape)

    def shape():
        return SHAPES[draw(st.sampled_from(list(SHAPES)))](packed.total_q, packed.total_k)

    S = len(packed.spans)
    mask = draw(st.sampled_from(["none", "bool", "float"]))
    chosen = {"causal": draw(st.booleans()), "scale": draw(st.sampled_from([None, 0.0, -.7])),
              "softcap": draw(st.sampled_from([None, 1.5])),
              "window": (draw(st.integers(-1, 3)), draw(st.integers(-1, 3)))}
    if mask != "none":
        x = random(shape())
        chosen["mask"] = np.asarray(x > -.3 if mask == "bool" else np.where(x > -.3, x, -np.inf))
    if draw(st.booleans()):
        chosen["bias"] = np.asarray(random(shape()))
    slopes = draw(st.sampled_from([None, (HQ,), (S, HQ)]))
    if slopes:
        chosen["alibi_slopes"] = random(slopes)
    if draw(st.booleans()):
        chosen["sink"] = random(HQ)
    return chosen


walks = st.fixed_dictionaries({
    "algorithm": st.sampled_from(list(ALGORITHMS)), "block_q": st.sampled_from([1, 2, 3, 16]),
    "block_k": st.sampled_from([1, 2, 3, 16]), "reverse": st.booleans()})


@given(lengths=lengths, seed=st.integers(0, 999), walk=walks, data=st.data())
def test_packed_is_a_loop_over_sequences(lengths, seed, walk, data):
    packed = Packed(lengths, seed)
    chosen = data.draw(options(packed), label="options")
    check_close(packed.solve(**chosen, **walk), judged(packed, **chosen))


LENGTHS = [(3, 2), (0, 4), (2, 5), (4, 0), (1, 1), (3, 3)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16])
def test_every_dtype_gives_the_bits_of_the_dense_call(dtype, algorithm):
    packed, walk = Packed(LENGTHS, dtype=dtype), {"algorithm": algorithm, "block_q": 2, "block_k": 2}
    for a, b in zip(packed.solve(causal=True, **walk), dense(packed, walk, causal=True), strict=True):
        assert a is b is None or (a.dtype == b.dtype and a.tobytes() == b.tobytes())


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16])
def test_the_gradient_of_a_bias_has_the_shape_and_dtype_of_the_bias(name, dtype):
    packed = Packed(LENGTHS)
    bias = packed.r.standard_normal(SHAPES[name](packed.total_q, packed.total_k))
    bias = np.asarray(bias).astype(dtype)
    *_, dbias, _ = packed.solve(bias=bias)
    *_, wanted, _ = judged(packed, bias=bias)
    assert dbias.dtype == bias.dtype and dbias.shape == bias.shape
    half_a_unit = abs(wanted) * float(finfo(dtype).eps) / 2
    assert (abs(dbias.astype(float) - wanted) <= half_a_unit + 1e-7).all()  # rounded once, after all sequences


def test_between_sequences_the_gradient_of_a_bias_is_zero():
    packed = Packed(LENGTHS)
    *_, dbias, _ = packed.solve(bias=np.zeros((HQ, packed.total_q, packed.total_k)))
    for rows, cols in packed.spans:
        dbias[:, rows, cols] = 0
    assert not dbias.any()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_neighbour_has_no_influence(bad, algorithm):
    """All arrays are spoiled outside one sequence, and masks between sequences; its own results keep every bit."""
    packed = Packed(LENGTHS)
    full = (HQ, packed.total_q, packed.total_k)
    own = {"mask": packed.r.standard_normal(full), "bias": packed.r.standard_normal(full), "causal": True,
           "algorithm": algorithm, "block_q": 2, "block_k": 2}
    clean = packed.solve(**own)
    for rows, cols in packed.spans:
        spoiled = Packed(LENGTHS)
        for name, kept in (("q", rows), ("dout", rows), ("k", cols), ("v", cols), ("dlse", rows)):
            x = getattr(spoiled, name)
            others = np.ones(x.shape[1], bool)
            others[kept] = False
            x[:, others] = np.nan if name == "dlse" else bad
        outside = own.copy()
        for name in ("mask", "bias"):
            between = np.ones(full, bool)
            for r, c in packed.spans:
                between[:, r, c] = False
            outside[name] = np.where(between, np.nan, own[name])
        with np.errstate(invalid="ignore"):  # inf − inf, in the neighbours
            out, lse, dq, dk, dv, dbias, _ = spoiled.solve(**outside)
        for kept, pairs in ((rows, ((out, clean[0]), (lse, clean[1]), (dq, clean[2]))),
                            (cols, ((dk, clean[3]), (dv, clean[4])))):
            for a, b in pairs:
                assert a[:, kept].tobytes() == b[:, kept].tobytes()
        assert dbias[:, rows, cols].tobytes() == clean[5][:, rows, cols].tobytes()


@pytest.mark.parametrize("kind", [
    list, tuple, np.array, lambda cu: np.array(cu, np.int32), lambda cu: np.array(cu, np.uint8),
    lambda cu: np.array(cu, ">i8"), torch.tensor, lambda cu: torch.tensor(cu, dtype=torch.int32),
    lambda cu: np.array([cu, cu]).T[:, 0]],
    ids=["list", "tuple", "int64", "int32", "uint8", "big-endian", "torch int64", "torch int32", "strided"])
def test_offsets_of_every_kind(kind):
    packed = Packed(LENGTHS)
    results = packed.solve(kind(packed.cu_q), kind(packed.cu_k), causal=True)
    for a, b in zip(results, packed.solve(causal=True), strict=True):
        assert a is b is None or a.tobytes() == b.tobytes()


def test_one_sequence_is_the_dense_call():
    packed = Packed([(5, 7)])
    out, lse = fa_ref.forward(packed.q[None], packed.k[None], packed.v[None], causal=True)
    results = packed.solve(causal=True)
    assert np.array_equal(results[0], out[0]) and np.array_equal(results[1], lse[0])


@pytest.mark.parametrize("lengths", [[], [(0, 0)], [(0, 0)] * 3, [(0, 3)], [(3, 0)]])
def test_nothing_to_attend_to(lengths):
    packed = Packed(lengths)
    out, lse, dq, dk, dv, dbias, dsink = packed.solve(bias=np.zeros(packed.total_k), sink=np.zeros(HQ))
    assert out.shape == packed.dout.shape and not out.any()
    assert lse.shape == packed.dlse.shape and not lse.any()  # a row without keys has lse = sink = 0
    assert dq.shape == packed.q.shape and dk.shape == packed.k.shape and dv.shape == packed.v.shape
    assert not any(x.any() for x in (dq, dk, dv, dbias))
    assert np.allclose(dsink, packed.dlse.sum(axis=1))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gradients_of_sink_and_bias_come_in_their_own_dtypes(dtype):
    x = np.ones((2, 3, 2), np.float32)
    options = {"sink": np.zeros(2, dtype), "bias": np.zeros((1, 2, 3, 3), dtype)}
    out, lse = varlen.forward(x, x, x, [0, 1, 3], [0, 1, 3], **options)
    grads = varlen.backward(x, x, x, x, out, lse, [0, 1, 3], [0, 1, 3], **options)
    assert (grads.dsink.dtype, grads.dbias.dtype, grads.dbias.shape) == (dtype, dtype, (1, 2, 3, 3))
