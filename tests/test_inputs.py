"""Bad input raises before anything runs and names the numbers; odd but good input is taken, whatever its layout."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16, float8_e4m3fn

import fa_ref
from fa_ref import options, varlen
from fa_ref.heads import ALGORITHMS

B, HQ, HKV, NQ, NK, D, DV = 2, 4, 2, 3, 5, 6, 7
FORWARD, BACKWARD = "forward", "backward"
PACKED_FORWARD, PACKED_BACKWARD = "packed forward", "packed backward"
EVERY_CALL = (FORWARD, BACKWARD, PACKED_FORWARD, PACKED_BACKWARD)
inf, nan = np.inf, np.nan


def good(call, dtype=np.float32, seed=0):
    """Valid arguments of a call by name; a packed call gets the first batch entry as two sequences."""
    draw = np.random.default_rng(seed).standard_normal
    shapes = {"dout": (B, HQ, NQ, DV), "q": (B, HQ, NQ, D), "k": (B, HKV, NK, D), "v": (B, HKV, NK, DV)}
    arguments = {name: draw(shape).astype(dtype) for name, shape in shapes.items()}
    qkv = [arguments[name] for name in "qkv"]
    cu = {}
    if "packed" in call:
        arguments = {name: x[0] for name, x in arguments.items()}
        cu = {"cu_seqlens_q": [0, 1, NQ], "cu_seqlens_k": [0, 3, NK]}
        out, lse = varlen.forward(*(x[0] for x in qkv), **cu)
    else:
        out, lse = fa_ref.forward(*qkv)
    if "backward" in call:
        arguments |= {"out": out, "lse": lse, "dlse": draw(lse.shape).astype(lse.dtype)}
    else:
        del arguments["dout"]
    return arguments | cu


def run(call, arguments):
    """Make the call."""
    package = varlen if "packed" in call else fa_ref
    return (package.backward if "backward" in call else package.forward)(**arguments)


# Each line: the argument, what is wrong with it, the error, and what its text must name. A function is applied to
# the good argument.

ANYWHERE = [
    ("algorithm", "fa9", ValueError, "algorithm", "'fa9'", "'standard'", "'fa1'", "'fa2'", "'fa3'"),
    ("algorithm", None, ValueError, "algorithm", "None", "'fa2'"),
    ("algorithm", ["fa2"], ValueError, "algorithm", "['fa2']", "'standard'"),
    ("scale", "1", TypeError, "scale", "'1'"),
    ("scale", True, TypeError, "scale", "True"),
    ("scale", 1j, TypeError, "scale", "1j"),
    ("scale", np.array(.5), TypeError, "scale", "array(0.5)"),
    ("scale", nan, ValueError, "scale", "nan"),
    ("scale", -inf, ValueError, "scale", "-inf"),
    ("scale", 1e39, ValueError, "scale", "1e+39", "float32"),
    ("scale", 10**400, ValueError, "scale", "float32"),
    ("softcap", -1.5, ValueError, "softcap", "-1.5"),
    ("softcap", inf, ValueError, "softcap", "inf"),
    ("softcap", nan, ValueError, "softcap", "nan"),
    ("softcap", 1e39, ValueError, "softcap", "1e+39", "float32"),
    ("softcap", 1e-40, ValueError, "softcap", "1e-40", "float32"),
    ("softcap", "2", TypeError, "softcap", "'2'"),
    ("softcap", False, TypeError, "softcap", "False"),
    *((flag, bad, TypeError, flag, repr(bad)) for flag in ("causal", "reverse") for bad in ("yes", 1, 0, None, 1.0)),
    ("window", (-2, 0), ValueError, "window left", "-1", "-2"),
    ("window", (0, -3), ValueError, "window right", "-1", "-3"),
    ("window", (1.0, 0), TypeError, "window left", "1.0"),
    ("window", (0, True), TypeError, "window right", "True"),
    ("window", (None, 0), TypeError, "window left", "None"),
    *(("window", bad, TypeError, "window", "(left, right)", repr(bad)) for bad in ((1,), (1, 2, 3), 4, None, "11")),
    *((block, bad, ValueError, block, "1", repr(bad)) for block in ("block_q", "block_k") for bad in (0, -4)),
    *((block, bad, TypeError, block, repr(bad))
      for block in ("block_q", "block_k") for bad in (2.0, "2", True, np.float32(2), (2,))),
    ("mask", np.ones((NQ, NK), int), TypeError, "mask", "int64"),
    ("mask", np.ones((NQ, NK), np.uint8), TypeError, "mask", "uint8"),
    ("mask", np.ones((NQ, NK), complex), TypeError, "mask", "complex128"),
    ("mask", np.ones((NQ, NK), object), TypeError, "mask", "object"),
    ("mask", np.ones((NQ, NK), ">f4"), TypeError, "mask", ">f4"),
    ("mask", np.ones((NQ, NK), float8_e4m3fn), TypeError, "mask", "float8_e4m3fn"),
    ("mask", np.ma.ones((NQ, NK), bool), TypeError, "mask", "MaskedArray"),
    ("mask", [[True] * NK] * NQ, TypeError, "mask", "list"),
    ("mask", True, TypeError, "mask", "bool"),
    ("mask", np.ones((NQ, NK + 1), bool), ValueError, "mask", str((NQ, NK + 1)), f"{HQ}, {NQ}, {NK})"),
    ("mask", np.ones((NK, NQ), bool), ValueError, "mask", str((NK, NQ)), f"{HQ}, {NQ}, {NK})"),
    ("mask", np.ones((HKV, NQ, NK), bool), ValueError, "mask", str((HKV, NQ, NK)), f"{HQ}, {NQ}, {NK})"),
    ("mask", np.ones((1, 1, 1, 1, NK), bool), ValueError, "mask", str((1, 1, 1, 1, NK)), f"{HQ}, {NQ}, {NK})"),
    ("mask", np.full((NQ, NK), 1e39), ValueError, "mask", "1e+39", "float32"),
    ("bias", np.ones((NQ, NK), bool), TypeError, "bias", "bool"),
    ("bias", np.ones((NQ, NK), int), TypeError, "bias", "int64"),
    ("bias", [[0.0] * NK] * NQ, TypeError, "bias", "list"),
    ("bias", np.zeros((NQ + 1, 1)), ValueError, "bias", str((NQ + 1, 1)), f"{HQ}, {NQ}, {NK})"),
    ("bias", np.full(NK, -1e39), ValueError, "bias", "-1e+39", "float32"),
    ("alibi_slopes", [1.0] * HQ, TypeError, "alibi_slopes", "list"),
    ("alibi_slopes", np.ones(HQ, int), TypeError, "alibi_slopes", "int64"),
    ("alibi_slopes", np.ones(HKV), ValueError, "alibi_slopes", str((HQ,)), str((HKV,))),
    ("alibi_slopes", np.ones((B + 1, HQ)), ValueError, "alibi_slopes", str((B, HQ)), str((B + 1, HQ))),
    ("alibi_slopes", np.array(1.0), ValueError, "alibi_slopes", str((HQ,)), "()"),
    ("alibi_slopes", np.array([1, 1, nan, 1]), ValueError, "alibi_slopes", "nan"),
    ("alibi_slopes", np.array([1, 1, inf, 1]), ValueError, "alibi_slopes", "inf"),
    ("alibi_slopes", np.array([1, 1, 1e39, 1]), ValueError, "alibi_slopes", "1e+39", "float32"),
    ("sink", 1.0, TypeError, "sink", "float"),
    ("sink", np.ones(HQ, int), TypeError, "sink", "int64"),
    ("sink", np.ones((HQ, 1)), ValueError, "sink", str((HQ,)), str((HQ, 1))),
    ("sink", np.ones(HKV), ValueError, "sink", str((HQ,)), str((HKV,))),
    ("sink", np.array([1, inf, 1, 1]), ValueError, "sink", "inf"),
    ("sink", np.array([1, nan, 1, 1]), ValueError, "sink", "nan"),
    ("q", lambda q: q[..., :-1], ValueError, "d = 5", "d = 6"),
    ("v", lambda v: v[..., :-1, :], ValueError, "Nk = 5", "Nk = 4"),
    ("v", lambda v: v[..., :1, :, :], ValueError, "heads", "k has 2", "v has 1"),
    ("q", lambda q: q[..., :3, :, :], ValueError, "3 query heads", "2 key/value heads"),
    ("q", lambda q: q[..., :1, :, :], ValueError, "1 query heads", "2 key/value heads"),
    ("q", lambda q: q[..., :0, :, :], ValueError, "0 query heads", "2 key/value heads"),
    ("v", lambda v: v[..., :0], ValueError, "dv = 0"),
    ("q", lambda q: q.astype(float), TypeError, "float64", "float32"),
    ("k", lambda k: k.astype(np.float16), TypeError, "float16", "float32"),
    *((name, lambda x, t=t: x.astype(t), TypeError, name, told) for name in "qkv" for t, told in (
        (int, "int64"), (bool, "bool"), (complex, "complex128"), (object, "object"), (">f4", ">f4"),
        (np.longdouble, "float128"), (float8_e4m3fn, "float8_e4m3fn"))),
    *((name, lambda x: x.tolist(), TypeError, name, "list") for name in "qkv"),
    *((name, lambda x: None, TypeError, name, "NoneType") for name in "qkv"),
    *((name, np.ma.array, TypeError, name, "MaskedArray") for name in "qkv"),
    *((name, torch.tensor, TypeError, f"{name} is a torch tensor", "is a NumPy array") for name in "qkv"),
]
UNPACKED = [
    *((name, lambda x: x[0], ValueError, name, "4 axes", told) for name, told in
      (("q", str((HQ, NQ, D))), ("k", str((HKV, NK, D))), ("v", str((HKV, NK, DV))))),
    ("q", lambda q: q[None], ValueError, "q", "4 axes", str((1, B, HQ, NQ, D))),
    ("k", lambda k: k[:1], ValueError, "batch", "q has 2", "k has 1", "v has 2"),
    ("mask", np.ones((B + 1, 1, 1, NK), bool), ValueError, "mask", str((B + 1, 1, 1, NK)), str((B, HQ, NQ, NK))),
]
PACKED = [
    *((name, lambda x: x[None], ValueError, name, "3 axes", told) for name, told in
      (("q", str((1, HQ, NQ, D))), ("k", str((1, HKV, NK, D))), ("v", str((1, HKV, NK, DV))))),
    ("q", lambda q: q[0], ValueError, "q", "3 axes", str((NQ, D))),
    ("cu_seqlens_q", [0, 1.0, 3], TypeError, "cu_seqlens_q", "float64"),
    ("cu_seqlens_q", [False, True, True], TypeError, "cu_seqlens_q", "bool"),
    ("cu_seqlens_q", ["0", "3"], TypeError, "cu_seqlens_q"),
    ("cu_seqlens_q", np.ma.array([0, 1, NQ]), TypeError, "cu_seqlens_q", "MaskedArray"),
    ("cu_seqlens_q", [0, [1], NQ], (TypeError, ValueError), "cu_seqlens_q"),
    ("cu_seqlens_q", [1, 2, NQ], ValueError, "cu_seqlens_q", "0", "got 1"),
    ("cu_seqlens_q", [0, 2, 1], ValueError, "cu_seqlens_q", "1 after 2"),
    ("cu_seqlens_q", [0, -1, NQ], ValueError, "cu_seqlens_q", "-1 after 0"),
    ("cu_seqlens_q", [0, 1, NQ - 1], ValueError, "cu_seqlens_q", "ends at 2", "3 tokens"),
    ("cu_seqlens_q", [0, 1, NQ + 1], ValueError, "cu_seqlens_q", "ends at 4", "3 tokens"),
    ("cu_seqlens_k", [0, 3, NK + 1], ValueError, "cu_seqlens_k", "ends at 6", "5 tokens"),
    ("cu_seqlens_k", [0, NK], ValueError, "cu_seqlens_q", "2 sequences", "cu_seqlens_k", "1"),
    ("cu_seqlens_k", [0], ValueError, "cu_seqlens_k", "ends at 0", "5 tokens"),
    ("cu_seqlens_k", [], ValueError, "cu_seqlens_k", "(0,)"),
    ("cu_seqlens_k", None, (TypeError, ValueError), "cu_seqlens_k"),
    ("cu_seqlens_k", 5, (TypeError, ValueError), "cu_seqlens_k"),
    ("cu_seqlens_k", [[0, 3, NK]], ValueError, "cu_seqlens_k", "(1, 3)"),
    ("cu_seqlens_k", torch.tensor([0.0, 3, NK]), TypeError, "cu_seqlens_k", "float32"),
    ("alibi_slopes", np.ones((B + 2, HQ)), ValueError, "alibi_slopes", str((2, HQ)), str((B + 2, HQ))),
]
GRADIENTS = [
    *((name, lambda x: x[..., :-1], ValueError, name, str(DV - 1), str(DV)) for name in ("dout", "out")),
    *((name, lambda x: x.astype(float), TypeError, name, "float64", "float32") for name in ("dout", "out")),
    *((name, lambda x: x.tolist(), TypeError, name, "list") for name in ("dout", "out", "lse", "dlse")),
    *((name, lambda x: x[..., :-1], ValueError, name, str(NQ - 1), str(NQ)) for name in ("lse", "dlse")),
    *((name, lambda x: x[..., None], ValueError, name, f"{NQ}, 1)") for name in ("lse", "dlse")),
    *((name, lambda x: x.astype(np.float16), TypeError, name, "float16") for name in ("lse", "dlse")),
    *((name, lambda x: x.astype(int), TypeError, name, "int64") for name in ("lse", "dlse")),
    *((name, lambda x: with_last(x.astype(float), 1e39), ValueError, name, "1e+39") for name in ("lse", "dlse")),
    ("lse", lambda x: with_last(x, inf), ValueError, "lse", f"{HQ - 1}, {NQ - 1})", "-inf"),
    ("dout", torch.tensor, TypeError, "dout is a torch tensor", "q is a NumPy array"),
]


def with_last(x, value):
    """A copy of x whose last entry is this value."""
    x = x.copy()
    x[(-1,) * x.ndim] = value
    return x


def table():
    """Every (call, argument, bad, error, words)."""
    return [
        pytest.param(call, argument, bad, error, words, id=f"{call}: {argument}, {' '.join(words)}")
        for call in EVERY_CALL
        for argument, bad, error, *words in (
            ANYWHERE + (PACKED if "packed" in call else UNPACKED) + (GRADIENTS if "backward" in call else []))]


@pytest.fixture
def nothing_may_run(monkeypatch):
    def ran(*args, **kwargs):
        pytest.fail("a core ran")

    for core in ALGORITHMS.values():
        monkeypatch.setattr(core, "forward_head", ran)
        monkeypatch.setattr(core, "backward_head", ran)


@pytest.mark.parametrize("call, argument, bad, error, words", table())
def test_bad_input_is_refused(call, argument, bad, error, words, request):
    arguments = good(call)
    arguments[argument] = bad(arguments[argument]) if callable(bad) else bad
    request.getfixturevalue("nothing_may_run")
    with pytest.raises(error) as caught:
        run(call, arguments)
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, str(caught.value)


@pytest.mark.parametrize("call", EVERY_CALL)
def test_an_unknown_option_is_refused_by_name(call, request):
    arguments = good(call)
    request.getfixturevalue("nothing_may_run")
    for unknown in ("dropout", "is_causal"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
            run(call, arguments | {unknown: 0})


@pytest.mark.parametrize("call", EVERY_CALL)
@pytest.mark.parametrize("argument, told", [("q", "int32"), ("k", "complex64"), ("v", "float64")])
def test_a_torch_tensor_of_another_dtype_is_refused(call, argument, told, request):
    arguments = {name: x if name.startswith("cu") else torch.tensor(x) for name, x in good(call).items()}
    arguments[argument] = arguments[argument].to(getattr(torch, told))
    request.getfixturevalue("nothing_may_run")
    with pytest.raises(TypeError, match=told):
        run(call, arguments)


def test_tensors_of_two_devices_are_refused(nothing_may_run):
    q, k, v = (torch.zeros(1, 1, 2, 3) for _ in range(3))
    with pytest.raises(TypeError, match="k is a torch tensor on meta"):
        fa_ref.forward(q, k.to("meta"), v)


def test_tensors_without_numbers_of_their_own_are_refused_by_name(nothing_may_run):
    q = torch.zeros(1, 1, 2, 3)
    with pytest.raises(TypeError, match=r"q must be a dense tensor, got one with the layout torch\.sparse_coo"):
        fa_ref.forward(q.to_sparse(), q, q)
    with pytest.raises(TypeError, match="k must be a dense tensor, got a nested one"):
        fa_ref.forward(q, torch.nested.nested_tensor(list(q)), q)
    with pytest.raises(TypeError, match="q is on the device meta, which holds no numbers"):
        fa_ref.forward(*[q.to("meta")] * 3)


def test_a_bias_is_looked_at_before_it_is_spread_over_heads(monkeypatch):
    looked_at = []
    monkeypatch.setattr(options, "check_fits", lambda name, x, wide: looked_at.append(x.size))
    q = np.ones((B, HQ, NQ, D), np.float32)
    fa_ref.forward(q, q, q, bias=np.zeros((NQ, NQ)), mask=np.zeros((1, NQ, NQ)))
    assert set(looked_at) == {NQ * NQ}


def test_options_are_checked_against_the_accumulator():
    """What is infinite in float32 may be a plain number in float64."""
    big = {"scale": 1e39, "softcap": 1e39, "bias": np.full(NK, 1e39)}
    for name, value in big.items():
        run(FORWARD, good(FORWARD, np.float64) | {name: value})
        for narrow in (np.float32, np.float16, bfloat16):
            with pytest.raises(ValueError, match=name):
                run(FORWARD, good(FORWARD, narrow) | {name: value})


# --- odd but good ---------------------------------------------------------------------------------------------

SAME = {
    "NumPy integers as tiles": ({"block_q": np.int8(2), "block_k": np.uint64(3)}, {"block_q": 2, "block_k": 3}),
    "enormous tiles": ({"block_q": 10**30, "block_k": 2**63}, {"block_q": NQ, "block_k": NK}),
    "a list as window": ({"window": [1, 0]}, {"window": (1, 0)}),
    "NumPy integers as window": ({"window": (np.uint8(1), np.int64(0))}, {"window": (1, 0)}),
    "the largest int64 as window": ({"window": (2**63 - 1, 2**63 - 1)}, {}),
    "a window to the right past int64": ({"window": (-1, 10**30)}, {}),
    "a window to the left past int64": ({"window": (10**30, 0)}, {"causal": True}),
    "NumPy booleans": ({"causal": np.True_, "reverse": np.False_}, {"causal": True}),
    "a float16 scale": ({"scale": np.float16(.5)}, {"scale": .5}),
    "a fraction as scale": ({"scale": Fraction(1, 2)}, {"scale": .5}),
    "a whole number as scale": ({"scale": 2}, {"scale": 2.0}),
    "None everywhere": (dict.fromkeys(("scale", "softcap", "mask", "bias", "alibi_slopes", "sink")), {}),
    "a softcap of 0": ({"softcap": 0}, {}),
    "a mask without axes": ({"mask": np.array(True)}, {}),
    "a mask (1, 1)": ({"mask": np.ones((1, 1), bool)}, {}),
    "a float16 mask of zeros": ({"mask": np.zeros(NK, np.float16)}, {}),
    "a bfloat16 mask": ({"mask": np.array([0, 0, 0, -inf, 0], bfloat16)}, {"mask": np.arange(NK) != 3}),
    "a sink of minus infinity": ({"sink": np.full(HQ, -inf)}, {}),
    "bfloat16 slopes": ({"alibi_slopes": np.full(HQ, 2, bfloat16)}, {"alibi_slopes": np.full((1, HQ), 2.0)}),
}


def one_sequence(call):
    """Valid arguments of a call with one batch entry or one packed sequence: masks then fit both."""
    arguments = good(call)
    if "packed" in call:
        return arguments | {"cu_seqlens_q": [0, NQ], "cu_seqlens_k": [0, NK]}
    return {name: x[:1] for name, x in arguments.items()}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("call", EVERY_CALL)
def test_odd_but_good_options(call, name):
    arguments = one_sequence(call)
    for algorithm in ALGORITHMS:
        got, wanted = (run(call, arguments | options | {"algorithm": algorithm}) for options in SAME[name])
        for a, b in zip(got, wanted, strict=True):
            assert a is None or b is None or np.allclose(a, b, rtol=0, atol=1e-6)


def turned(x):
    """The last two axes swapped in storage."""
    return x.swapaxes(-1, -2).copy().swapaxes(-1, -2)


def heads_inside(x):
    """Heads and length swapped in storage."""
    return x.swapaxes(-2, -3).copy().swapaxes(-2, -3)


def stepped(x):
    """Every second row and channel of a buffer full of NaN."""
    buffer = np.full((*x.shape[:-2], 2 * x.shape[-2], 2 * x.shape[-1]), nan, x.dtype)
    buffer[..., ::2, ::2] = x
    return buffer[..., ::2, ::2]


def backwards(x):
    """Negative strides everywhere."""
    everywhere = (slice(None, None, -1),) * x.ndim
    return x[everywhere].copy()[everywhere]


def one_row(x):
    """The first row for all, with a stride of zero."""
    return np.broadcast_to(x[..., :1, :], x.shape)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16])
@pytest.mark.parametrize("layout", [np.asfortranarray, turned, heads_inside, stepped, backwards, one_row])
@pytest.mark.parametrize("call", EVERY_CALL)
def test_the_layout_of_the_inputs_changes_no_bit(call, layout, dtype):
    laid_out = {name: x if name.startswith("cu") or x.ndim < 3 or "lse" in name else layout(x)
                for name, x in good(call, dtype).items()}
    laid_out["bias"] = layout(np.random.default_rng(1).standard_normal((1, NQ, NK)))
    laid_out["mask"] = layout(laid_out["bias"] > -1)
    contiguous = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in laid_out.items()}
    for algorithm in ALGORITHMS:
        options = {"algorithm": algorithm, "block_q": 2, "block_k": 4, "causal": True}
        for a, b in zip(run(call, laid_out | options), run(call, contiguous | options), strict=True):
            assert (a is None and b is None) or a.tobytes() == b.tobytes()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("call", EVERY_CALL)
def test_inputs_are_never_written_to(call, algorithm):
    options = {"mask": np.ones((NQ, NK), bool), "bias": np.zeros(NK), "alibi_slopes": np.ones(HQ), "sink": np.ones(HQ)}
    arguments = good(call) | options
    before = {name: np.array(x) for name, x in arguments.items()}
    for x in arguments.values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    results = run(call, arguments | {"algorithm": algorithm, "block_q": 2, "block_k": 2})
    for name, x in arguments.items():
        assert np.array_equal(x, before[name]), name
        if isinstance(x, np.ndarray):
            assert not any(np.shares_memory(x, y) for y in results if y is not None), name
