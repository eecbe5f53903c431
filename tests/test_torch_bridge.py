"""Torch tensors in, torch tensors out: the same bits as with NumPy, no graph, and torch's own attention agrees."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

import fa_ref
from fa_ref import varlen
from fa_ref.heads import ALGORITHMS

DTYPES = {torch.float64: np.float64, torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: bfloat16}
B, HQ, HKV, NQ, NK, D, DV = 2, 4, 2, 5, 7, 3, 6


def tensors(dtype=torch.float64, **changes):
    """Random q, k, v and dout by name."""
    torch.manual_seed(0)
    shapes = {"q": (B, HQ, NQ, D), "k": (B, HKV, NK, D), "v": (B, HKV, NK, DV), "dout": (B, HQ, NQ, DV)} | changes
    return {name: torch.randn(shape, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}


def every_option():
    """Options that are arrays, as tensors; all of them at once."""
    torch.manual_seed(1)
    return {"mask": torch.rand(NQ, NK) < .8, "bias": torch.randn(HQ, 1, NK), "alibi_slopes": torch.rand(B, HQ),
            "sink": torch.randn(HQ)}


def as_numpy(x):
    """A tensor as an array of the same dtype and bits; everything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach().contiguous()
    return x.view(torch.int16).numpy().view(bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def solve(given, package=fa_ref, cu=(), **options):
    """Forward and backward results by name, None left out."""
    qkv = given["q"], given["k"], given["v"]
    answer = package.forward(*qkv, *cu, **options)
    grads = package.backward(given["dout"], *qkv, *answer, *cu, dlse=given.get("dlse"), **options)
    return {name: x for name, x in (answer._asdict() | grads._asdict()).items() if x is not None}


def check_same_bits(given, package=fa_ref, cu=(), **options):
    """The call with tensors and the call with arrays give the same bits, each in kind."""
    results = solve(given, package, cu, **options)
    wanted = solve({name: as_numpy(x) for name, x in given.items()}, package, [as_numpy(x) for x in cu],
                   **{name: as_numpy(x) for name, x in options.items()})
    assert results.keys() == wanted.keys()
    for name, x in results.items():
        assert isinstance(x, torch.Tensor) and isinstance(wanted[name], np.ndarray), name
        assert x.device.type == "cpu" and x.is_contiguous() and not x.requires_grad and x.grad_fn is None, name
        assert DTYPES[x.dtype] == wanted[name].dtype and x.shape == wanted[name].shape, name
        assert as_numpy(x).tobytes() == wanted[name].tobytes(), name
    return results


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_torch_in_torch_out(algorithm, dtype):
    given = tensors(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    given["dlse"] = torch.randn(B, HQ, NQ, dtype=wide)
    results = check_same_bits(given, algorithm=algorithm, causal=True, block_q=2, block_k=3, **every_option())
    assert results["lse"].dtype == wide
    assert all(results[name].dtype == dtype for name in ("out", "dq", "dk", "dv"))
    assert results["dbias"].dtype == results["dsink"].dtype == torch.float32
    assert results["dbias"].shape == (HQ, 1, NK)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_and_sink_of_every_dtype(dtype):
    options = {name: x.to(dtype) for name, x in every_option().items() if name in ("bias", "sink")}
    results = check_same_bits(tensors(torch.float32), **options)
    assert results["dbias"].dtype == results["dsink"].dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed(dtype):
    given = {name: x[0] for name, x in tensors(dtype).items()}
    cu = [torch.tensor([0, 2, 2, NQ]), torch.tensor([0, 3, 5, NK], dtype=torch.int32)]
    options = every_option() | {"alibi_slopes": torch.rand(3, HQ)}
    check_same_bits(given, varlen, cu, causal=True, block_q=2, block_k=2, **options)


def test_arrays_as_options_of_tensors_and_the_other_way_round():
    given, options = tensors(torch.float32), every_option()
    mixed = solve(given, **{name: as_numpy(x) for name, x in options.items()})
    turned = solve({name: as_numpy(x) for name, x in given.items()}, **options)
    for name, x in solve(given, **options).items():
        assert isinstance(mixed[name], torch.Tensor) and torch.equal(mixed[name], x)
        assert isinstance(turned[name], np.ndarray) and np.array_equal(turned[name], x.numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", [lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
                                 lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
                                 lambda x: x[:, :, :1].expand(x.shape)], ids=["transposed", "stepped", "expanded"])
def test_tensors_that_are_not_contiguous(how, dtype):
    given = {name: how(x) for name, x in tensors(dtype).items()}
    assert not any(x.is_contiguous() for x in given.values())
    check_same_bits(given)


def test_a_negated_view():
    """The imaginary part of a conjugate is a tensor that torch negates lazily."""
    given = tensors()
    lazy = {name: torch.complex(torch.zeros_like(x), -x).conj().imag for name, x in given.items()}
    assert all(x.is_neg() for x in lazy.values())
    for name, x in solve(lazy).items():
        assert torch.equal(x, solve(given)[name])


def test_no_graph_is_recorded_and_nothing_is_changed():
    given = {name: x.requires_grad_() for name, x in tensors().items()}
    given["k"] = torch.nn.Parameter(given["k"].detach())
    options = {name: x.requires_grad_() if x.dtype != torch.bool else x for name, x in every_option().items()}
    before = {name: x.detach().clone() for name, x in (given | options).items()}
    check_same_bits(given, **options)
    for name, x in (given | options).items():
        assert torch.equal(x, before[name]) and x.grad is None, name
        assert x.requires_grad == (name != "mask"), name


def test_results_do_not_share_memory_with_inputs():
    given = tensors(k=(B, HKV, 1, D), v=(B, HKV, 1, DV))  # one key: out is v
    results = solve(given)
    copies = {name: x.clone() for name, x in results.items()}
    for x in given.values():
        x.zero_()
    assert all(torch.equal(results[name], copies[name]) for name in results)


# --- torch's own attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("option", ["plain", "causal", "boolean mask", "float mask", "grouped", "scale"])
def test_torch_attention_agrees(option, algorithm):
    """float64, forward and gradients. Causal is square here: torch aligns it at the top left."""
    square = {"k": (B, HQ, NQ, D), "v": (B, HQ, NQ, DV)} if option == "causal" else {}
    grouped = {} if option in ("grouped", "causal") else {"k": (B, HQ, NK, D), "v": (B, HQ, NK, DV)}
    given = tensors(**square, **grouped)
    hidden = torch.arange(NQ * NK).reshape(NQ, NK) % 4 == 1
    theirs, ours = {
        "plain": ({}, {}),
        "causal": ({"is_causal": True}, {"causal": True}),
        "boolean mask": ({"attn_mask": ~hidden}, {"mask": ~hidden}),
        "float mask": ({"attn_mask": (m := torch.randn(B, 1, NQ, NK).double().masked_fill(hidden, -torch.inf))},
                       {"mask": m}),
        "grouped": ({"enable_gqa": True}, {}),
        "scale": ({"scale": .3}, {"scale": .3}),
    }[option]

    leaves = [given[name].clone().requires_grad_() for name in "qkv"]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, **theirs)
    wanted = {"out": out.detach()} | dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, given["dout"]),
                                              strict=True))
    results = solve(given, algorithm=algorithm, block_q=2, block_k=3, **ours)
    for name, x in wanted.items():
        torch.testing.assert_close(results[name], x, rtol=0, atol=1e-12, msg=lambda told, name=name: f"{name}: {told}")


def test_importing_the_package_does_not_import_torch():
    code = ("import sys, numpy as np, fa_ref, fa_ref.varlen; x = np.ones((1, 1, 2, 2)); "
            "fa_ref.backward(x, x, x, x, *fa_ref.forward(x, x, x)); print('torch' in sys.modules)")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
