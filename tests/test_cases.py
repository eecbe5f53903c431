"""Every case of `cases.py`, for every algorithm, dtype, tile and direction, with warnings as errors."""

import warnings

import numpy as np
import pytest
from ml_dtypes import bfloat16

import fa_ref
from cases import ALL, CASES, KINDS, NOT_COVERED, Case, Merge, Refused, Twins, View, kinds_covered, summary
from fa_ref import varlen
from fa_ref.online_softmax import merge

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": bfloat16}
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-3}
TILES = (1, 2, 4, 16)
WALKS = [{"algorithm": "standard"}] + [
    {"algorithm": algorithm, "block_q": Br, "block_k": Bc, "reverse": reverse}
    for algorithm in ("fa1", "fa2", "fa3") for Br in TILES for Bc in TILES for reverse in (False, True)]
SQUARE = [walk for walk in WALKS if walk.get("block_q") == walk.get("block_k")]
STORED = {"q", "k", "v", "dout"}


def arrays(inputs, dtype):
    """The inputs of a case as read-only arrays in full shape: see the shorthand of `cases.py`."""
    axes = 3 if "cu_seqlens_q" in inputs else 4
    ready = dict(inputs)
    for name in STORED & inputs.keys():
        x = inputs[name]
        ready[name] = x.how(in_full(x.base, axes, dtype)) if isinstance(x, View) else in_full(x, axes, dtype)
    if "dlse" in inputs:
        ready["dlse"] = np.asarray(inputs["dlse"], wide(dtype)).reshape(ready["q"].shape[:-1])
    for name in ("mask", "bias", "alibi_slopes", "sink"):
        if inputs.get(name) is not None and inputs[name].dtype == np.float64:
            ready[name] = inputs[name].astype(wide(dtype))
    for x in ready.values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    return ready


def in_full(x, axes, dtype):
    """The array x with all its axes; a list of numbers is one number per row."""
    x = np.asarray(x, float)
    x = x[:, None] if x.ndim == 1 else x
    return x.reshape((1,) * (axes - x.ndim) + x.shape).astype(dtype)


def wide(dtype):
    """The dtype of lse, and of the masks, biases and sinks of these cases."""
    return np.float64 if dtype == np.float64 else np.float32


def solve(ready, walk):
    """All results of a call as {name: array}: the forward ones, and the gradients if there is one to pass on."""
    options = {name: x for name, x in ready.items() if name not in {*STORED, "dlse"}} | walk
    cu = {name: options.pop(name) for name in ("cu_seqlens_q", "cu_seqlens_k") if name in options}
    package = varlen if cu else fa_ref
    q, k, v = ready["q"], ready["k"], ready["v"]
    answer = package.forward(q, k, v, **cu, **options)
    results = answer._asdict()
    if "dout" in ready:
        results |= package.backward(
            ready["dout"], q, k, v, *answer, **cu, dlse=ready.get("dlse"), **options)._asdict()
    return results


def agrees(result, expected, tolerance):
    """Is the result within the tolerance, NaN and infinities in the same places?"""
    expected = np.asarray(expected, float).reshape(result.shape)
    return np.allclose(result.astype(float), expected, rtol=0, atol=tolerance, equal_nan=True)


def tolerance_of(case, dtype, field):
    """The tolerance of this dtype, relative to the largest value and the largest finite entry expected."""
    values = case.inputs["v"].base if isinstance(case.inputs["v"], View) else case.inputs["v"]
    sizes = [abs(np.asarray(x, float)) for x in (values, case.expected[field])]
    return TOLERANCE[dtype] * max(1, *(x[np.isfinite(x)].max(initial=0) for x in sizes))


def walks(dtype):
    """Every algorithm, direction and pair of tiles in float64; square tiles are enough for the other dtypes."""
    return WALKS if dtype == "float64" else SQUARE


def pairs(record):
    """(case, dtype) of all cases of one type, named for pytest."""
    return [pytest.param(case, dtype, id=f"{case.kind} {case.name} {dtype}")
            for case in CASES if isinstance(case, record) for dtype in case.dtypes]


def records(record):
    """All cases of one type, named for pytest."""
    return [pytest.param(case, id=f"{case.kind} {case.name}") for case in CASES if isinstance(case, record)]


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings(), np.errstate(divide="raise", over="raise", invalid="raise"):
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("case, dtype", pairs(Case))
def test_case(case, dtype):
    ready = arrays(case.inputs, DTYPES[dtype])
    for walk in walks(dtype):
        results = solve(ready, walk)
        for field, expected in case.expected.items():
            result, tolerance = results[field], tolerance_of(case, dtype, field)
            assert agrees(result, expected, tolerance), f"{field} with {walk}: {result.tolist()}, not {expected}"
        check_empty_rows(results, "sink" in case.inputs)
        check_dtypes(results, DTYPES[dtype])


def check_empty_rows(results, has_sink):
    """A row that sees no key is exactly zero."""
    if not has_sink:
        assert not results["out"][results["lse"] == -np.inf].any()


def check_dtypes(results, dtype):
    """Output and gradients in the dtype of the input; lse is wide, as are bias and sink of these cases."""
    for name, x in results.items():
        if x is not None:
            assert x.dtype == (wide(dtype) if name in ("lse", "dbias", "dsink") else dtype), name


@pytest.mark.parametrize("case, dtype", [p for p in pairs(Case) if p.values[0].wrong])
def test_wrong_answers_can_be_told_apart(case, dtype):
    results = solve(arrays(case.inputs, DTYPES[dtype]), {})
    for what, fields in case.wrong.items():
        for field, wrong in fields.items():
            assert np.shape(wrong) == np.shape(case.expected[field]), what
            assert not agrees(results[field], wrong, tolerance_of(case, dtype, field)), what


@pytest.mark.parametrize("case, dtype", pairs(Twins))
def test_twins(case, dtype):
    one = arrays(case.inputs, DTYPES[dtype])
    other = arrays(case.inputs | case.changes, DTYPES[dtype])
    for walk in walks(dtype):
        for (name, a), b in zip(solve(one, walk).items(), solve(other, walk).values(), strict=True):
            if a is None or b is None:  # a bias on one side only
                assert name in ("dbias", "dsink")
            elif case.bitwise:
                assert a.tobytes() == b.tobytes(), f"{name} with {walk}"
            else:
                assert agrees(a, b.astype(float), 2 * TOLERANCE[dtype]), f"{name} with {walk}"


@pytest.mark.parametrize("case", records(Merge))
def test_merge(case):
    for dtype in (np.float32, np.float64):
        parts = [(np.array([out], dtype), np.array(lse, dtype)) for out, lse in case.parts]
        out, lse = np.zeros(1, dtype), np.array(-np.inf, dtype)
        for part in parts:
            out, lse = merge(out, lse, *part)
        tolerance = TOLERANCE[np.dtype(dtype).name] * 10
        assert out.dtype == lse.dtype == dtype
        assert agrees(out, [case.expected[0]], tolerance) and agrees(lse, case.expected[1], tolerance)
        if sum(lse > -np.inf for _, lse in case.parts) < 2:
            assert (out[0], lse) == case.expected  # nothing to add: exactly
        for what, (wrong_out, wrong_lse) in case.wrong.items():
            told_apart = not (agrees(out, [wrong_out], tolerance) and agrees(lse, wrong_lse, tolerance))
            assert told_apart, what


@pytest.mark.parametrize("case", records(Refused))
def test_refused(case):
    ready = arrays(case.inputs, np.float32)
    with pytest.raises(case.error) as caught:
        solve(ready, {})
    for word in case.words:
        assert word in str(caught.value)


def test_every_kind_is_covered_or_says_what_it_waits_for():
    """`python tests/cases.py` prints the table."""
    covered = kinds_covered()
    assert {case.kind for case in CASES} <= set(KINDS)
    assert set(covered) | set(NOT_COVERED) == set(KINDS) and not set(covered) & set(NOT_COVERED)
    assert f"{len(CASES)} cases of {len(covered)} kinds" in summary()
    assert all(set(case.dtypes) <= set(ALL) for case in CASES if isinstance(case, Case | Twins))
