"""The operator of torch: registered as torch wants it, the oracle's numbers, torch's own where they mean the same."""

from types import SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad

import cuda_kernels  # noqa: F401  first: it decides whether kernels are simulated
import fa_ref
import gpu_operator
from cuda_kernels.torch_op import func, operators, scaled_dot_product_attention

attention = torch.ops.fa_ref.attention


def tensors(Nq=5, Nk=7, d=4, heads=(4, 2), dtype=torch.float64, grad=True):
    generator = torch.Generator().manual_seed(Nq + Nk)
    return [torch.randn(2, H, N, d, dtype=dtype, generator=generator).requires_grad_(grad)
            for H, N in ((heads[0], Nq), (heads[1], Nk), (heads[1], Nk))]


def test_torch_accepts_the_operators():
    q, k, v = tensors()
    for options in ((), (True, 0.3), (False, None, 2, 1)):
        torch.library.opcheck(attention.default, (q, k, v, *options))
    out, lse = (x.detach() for x in attention(q, k, v))
    arguments = (torch.ones_like(out), q.detach(), k.detach(), v.detach(), out, lse, None, False, None, -1, -1, False)
    torch.library.opcheck(torch.ops.fa_ref.attention_backward.default, arguments)


OPTIONS = {}, {"causal": True, "scale": 0.3}, {"window_left": 2, "window_right": 1}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_are_those_of_finite_differences(options):
    """Of out and of lse, which are both differentiable."""
    assert torch.autograd.gradcheck(lambda *x: attention(*x, **options), tensors(Nq=3, Nk=4, d=2))
    assert torch.autograd.gradcheck(lambda *x: attention(*x, **options)[1], tensors(Nq=3, Nk=4, d=2))
    assert not torch.autograd.gradcheck(lambda *x: Doubled.apply(attention(*x, **options)[0]),
                                        tensors(Nq=3, Nk=4, d=2), raise_exception=False)


class Doubled(torch.autograd.Function):
    """A function whose gradient is wrong, to see that the check would say so."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(5, 5), (3, 6), (6, 3)])
def test_it_stands_in_for_torchs_own(lengths, causal, scale):
    """Values and gradients; is_causal is top-left."""
    ours, torchs = tensors(*lengths, heads=(4, 2)), tensors(*lengths, heads=(4, 2))
    how = {"is_causal": causal, "enable_gqa": True, "scale": scale}
    out = scaled_dot_product_attention(*ours, **how)
    wanted = torch.nn.functional.scaled_dot_product_attention(*torchs, **how)
    torch.testing.assert_close(out, wanted)
    out.square().sum().backward()
    wanted.square().sum().backward()
    for x, y in zip(ours, torchs, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.slow
def test_compiled_it_gives_the_same():
    """In one graph, forward and backward."""
    def loss(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sin().sum()

    q, k, v = tensors(6, 6)
    plain = torch.autograd.grad(loss(q, k, v), (q, k, v))
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(q, k, v), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(plain, compiled, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_autocast_casts_as_torch_does(dtype):
    """float64 it leaves as it is."""
    q, k, v = tensors(dtype=dtype, grad=False)
    with torch.autocast("cpu", torch.bfloat16):
        ours = scaled_dot_product_attention(q, k, v, enable_gqa=True)
        torchs = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert ours.dtype == torchs.dtype == (dtype if dtype == torch.float64 else torch.bfloat16)
    torch.testing.assert_close(ours, torchs, atol=2e-2, rtol=2e-2)


# --- torch.func -----------------------------------------------------------------------------------------------

def loss(q, k, v):
    out, lse = attention(q, k, v, causal=True, scale=0.3)
    return out.sin().sum() + lse.sin().sum()


def gradients():
    x = tensors()
    return torch.autograd.grad(loss(*x), x)


def test_torch_func_takes_gradients():
    """The bits of torch.autograd.grad, and around a tensor that requires grad too; the options are not lost."""
    wanted, x = gradients(), tensors(grad=False)
    for found in (torch.func.grad(loss, (0, 1, 2))(*x), torch.func.jacrev(loss, (0, 1, 2))(*x),
                  torch.func.grad(loss, (0, 1, 2))(*tensors()),
                  torch.func.vjp(loss, *x)[1](torch.ones((), dtype=torch.float64))):
        assert all(map(torch.equal, found, wanted))


def test_torch_func_hands_on_every_option(monkeypatch):
    told, options = [], (True, 0.3, 2, 1, True)
    monkeypatch.setattr(func.Attention, "apply", lambda *arguments: told.append(arguments[3:]))
    func.in_func(None, None, None, *options)
    assert told == [options]


def test_torch_func_maps():
    """Over any axis of some of the tensors, alone and around a gradient."""
    q, k, v = tensors(grad=False)
    many = torch.stack([q, 2 * q, -q], 2)
    found = torch.func.vmap(loss, (2, None, None))(many, k, v)
    torch.testing.assert_close(found, torch.stack([loss(x, k, v) for x in (q, 2 * q, -q)]))
    found = torch.func.vmap(torch.func.grad(loss, (0, 1)), (2, None, None))(many, k, v)
    for n, x in enumerate((q, 2 * q, -q)):
        assert all(torch.equal(many[n], one)
                   for many, one in zip(found, torch.func.grad(loss, (0, 1))(x, k, v), strict=True))


def test_torch_func_maps_over_nothing():
    """No batches, and batches of no sequences."""
    q, k, v = tensors(grad=False)
    for shape in ((0, *q.shape), (3, 0, *q.shape[1:])):
        found, lse = torch.func.vmap(attention, (0, None, None) if shape[1] else (0, 0, 0))(
            q.new_zeros(shape), *((k, v) if shape[1] else (k.new_zeros(3, 0, *k.shape[1:]),) * 2))
        assert found.shape == shape and lse.shape == shape[:-1]


def test_derivatives_that_go_forwards_are_refused():
    """By name; torch would say 0 for the tangent."""
    x = tensors(grad=False)
    forwards = pytest.raises(NotImplementedError, match=r"forwards \(jvp.*torch.func.grad and jacrev go backwards")
    with forwards:
        torch.func.jvp(loss, tuple(x), tuple(x))
    with forwards:
        torch.func.jacfwd(loss)(*x)
    with forwards, forward_ad.dual_level():
        attention(forward_ad.make_dual(x[0], x[0]), *x[1:])
    out, _ = attention(*tensors())
    with forwards, forward_ad.dual_level():
        out.backward(forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out)))
    _, lse = attention(*tensors())
    with forwards, forward_ad.dual_level():
        lse.backward(forward_ad.make_dual(torch.ones_like(lse), torch.ones_like(lse)))
    given = [x.detach() for x in (out, *x, out, lse, lse)]
    for n in range(len(given)):                                     # dout, q, k, v, out, lse, dlse
        with forwards, forward_ad.dual_level():
            dual = [forward_ad.make_dual(x, x) if m == n else x for m, x in enumerate(given)]
            torch.ops.fa_ref.attention_backward(*dual, False, None, -1, -1, False)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q, *x[1:]).sum())(x[0])


# --- what is refused ------------------------------------------------------------------------------------------


def test_what_is_refused():
    q, k, v = tensors()
    with pytest.raises(NotImplementedError, match="attn_mask is not offered"):
        scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(5, 7, dtype=torch.bool))
    with pytest.raises(NotImplementedError, match=r"dropout_p is not offered by fa_ref::attention, got 0.1"):
        scaled_dot_product_attention(q, k, v, dropout_p=0.1)
    with pytest.raises(ValueError, match="4 query heads and 2 key/value heads need enable_gqa=True"):
        scaled_dot_product_attention(q, k, v)
    out, _ = attention(q, k, v)
    (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()
    assert operators.package_for(q)[0].__name__ == "fa_ref"


def shaped(*shapes, dtypes=(torch.float32,) * 3):
    return [torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


Q, K = (1, 2, 3, 4), (1, 2, 5, 4)
BAD = {
    "3 axes": (shaped(Q[1:], K, K), {}, ValueError, r"q must have 4 axes .*got shape \(2, 3, 4\)"),
    "5 axes": (shaped(Q, (1, *K), K), {}, ValueError, r"k must have 4 axes .*got shape \(1, 1, 2, 5, 4\)"),
    "batches": (shaped(Q, K, (3, 2, 5, 4)), {}, ValueError, "q has 1, k has 1, v has 3"),
    "heads": (shaped((1, 3, 3, 4), K, K), {}, ValueError, "3 query heads cannot be shared among 2"),
    "head dims": (shaped((1, 2, 3, 8), K, K), {}, ValueError, "q has d = 8, k has d = 4"),
    "keys": (shaped(Q, K, (1, 2, 6, 4)), {}, ValueError, "k has Nk = 5, v has Nk = 6"),
    "dtypes": (shaped(Q, K, K, dtypes=(torch.float32, torch.float16, torch.float32)), {}, TypeError,
               "got float32, float16 and float32"),
    "whole numbers": (shaped(Q, K, K, dtypes=(torch.int32,) * 3), {}, TypeError, "q has dtype int32"),
    "window": (shaped(Q, K, K), {"window_left": -2}, ValueError, "window left must be at least -1, got -2"),
    "other end": (shaped(Q, K, K), {"window_right": -5}, ValueError, "window right must be at least -1, got -5"),
    "scale": (shaped(Q, K, K), {"scale": float("nan")}, ValueError, "scale must be finite in float32, got nan"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_the_numbers(name, monkeypatch):
    """Before anything runs, whether a gradient is wanted or not, and by torch.func too."""
    x, options, error, text = BAD[name]
    monkeypatch.setattr(fa_ref.fa2, "forward_head", lambda *x: pytest.fail("it ran"))
    with pytest.raises(error, match=text):
        attention(*x, **options)
    if x[0].is_floating_point():
        with pytest.raises(error, match=text):
            attention(*(y.clone().requires_grad_() for y in x), **options)
        with pytest.raises(error, match=text):
            torch.func.vjp(lambda *x: attention(*x, **options), *x)


def test_tensors_on_different_devices_are_refused():
    """Here one that has no memory stands for the other device; tests/gpu_operator.py takes a GPU."""
    q, k, v = shaped(Q, K, K)
    with pytest.raises(TypeError, match="q is a torch tensor on cpu, k is a torch tensor on meta"):
        attention(q, k.to("meta"), v)
    with pytest.raises(TypeError, match="query is a torch tensor on meta, key is a torch tensor on cpu"):
        scaled_dot_product_attention(q.to("meta"), k, v)


def test_a_tensor_without_axes_is_refused_in_words():
    _, k, v = shaped(Q, K, K)
    for one in (torch.tensor(1.0), torch.ones(3)):
        with pytest.raises(ValueError, match=r"q must have 4 axes .*got shape \((3,)?\)"):
            attention(one, k, v)


def test_bad_shapes_are_refused_where_nothing_runs():
    """As torch.compile asks, which knows only shapes."""
    q, k, v = (x.to("meta") for x in shaped(Q, K[1:], K))
    with pytest.raises(ValueError, match=r"k must have 4 axes .*got shape \(2, 5, 4\)"):
        attention(q, k, v)


@pytest.mark.parametrize("name", [name for name, bad in BAD.items() if not bad[1]])
def test_shapes_and_dtypes_are_checked_where_nothing_runs(name):
    """A model is wrong on meta too."""
    x, _, error, text = BAD[name]
    with pytest.raises(error, match=text):
        attention(*(y.to("meta") for y in x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_not_dense_are_refused_by_name():
    """Of nested ones torch says itself that the operator does not know them."""
    q, k, v = shaped(Q, K, K)
    for other in (q.to_sparse(), torch.nested.nested_tensor(list(q))):
        with pytest.raises(TypeError, match="query must be a dense tensor"):
            scaled_dot_product_attention(other, k, v)
    for x, name in (((q.to_sparse(), k, v), "q"), ((q, k.to_sparse(), v), "k")):
        with pytest.raises(TypeError, match=f"{name} must be a dense tensor"):
            attention(*x)


def test_bad_input_of_the_stand_in():
    """What it looks at itself before the operator does."""
    q, k, v = shaped(Q, K, K)
    with pytest.raises(ValueError, match=r"query must have 4 axes .*got shape \(2, 3, 4\)"):
        scaled_dot_product_attention(q[0], k[0], v[0])
    with pytest.raises(ValueError, match="key has Nk = 5, value has Nk = 4"):
        scaled_dot_product_attention(q, k, v[:, :, :4], is_causal=True)
    with pytest.raises(TypeError, match="key must be a tensor, got ndarray"):
        scaled_dot_product_attention(q, k.numpy(), v)
    for flag in ("is_causal", "enable_gqa"):
        with pytest.raises(TypeError, match=f"{flag} must be True or False, got 'no'"):
            scaled_dot_product_attention(q, k, v, **{flag: "no"})
    with pytest.raises(TypeError, match="scale must be a number, got a tensor"):
        scaled_dot_product_attention(q, k, v, scale=torch.tensor(0.5, requires_grad=True))
    with pytest.raises(TypeError, match="scale must be a real number, got True"):
        scaled_dot_product_attention(q, k, v, scale=True)


def test_without_memory_only_shapes_are_computed():
    q, k, v = (x.to("meta") for x in tensors(grad=False))
    out = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert out.device.type == "meta" and out.shape == q.shape


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_autocast_leaves_alone_what_is_no_float(dtype):
    """As without autocast: refused, not cast."""
    q, k, v = (x.to(dtype) for x in tensors(grad=False, heads=(2, 2)))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError):
        scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("setting", [False, True])
def test_torchs_setting_of_deterministic_algorithms_is_heeded(asked, setting, monkeypatch):
    """On a GPU, where it makes a difference."""
    told = []

    def gradients(*x, deterministic, dlse, **options):
        told.append(deterministic)
        return fa_ref.backward(*x, **options)

    package = SimpleNamespace(forward=fa_ref.forward, backward=gradients)
    monkeypatch.setattr(operators, "cuda_kernels", package)
    monkeypatch.setattr(operators, "package_for", lambda q: (package, {}))
    torch.use_deterministic_algorithms(setting)
    try:
        out, _ = attention(*tensors(), deterministic=asked)
        out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert told == [asked or setting]


# --- what tests/gpu_operator.py does on a GPU, tried here -----------------------------------------------------

def test_checks_for_a_gpu():
    """Those that are quick by the loops of `fa_ref`."""
    for name in ("bfloat16", "float32"):
        assert gpu_operator.right(name, "cpu", [(9, 14), (14, 9)]).startswith("16 problems")
        assert gpu_operator.cast(name, "cpu").startswith("out torch.bfloat16")
    assert gpu_operator.asked("bfloat16", "cpu") == "fa_ref, fa2"
    assert gpu_operator.spread("bfloat16", "cpu") == "the same bits"
    assert gpu_operator.by_setting("bfloat16", "cpu", N=9) == "the same bits in 10 runs"
    assert gpu_operator.in_place_of_torchs("bfloat16", "cpu").startswith("12 problems")
    assert gpu_operator.by_func("bfloat16", "cpu") == "the same bits"
    assert gpu_operator.refuses("bfloat16", "cpu", "meta").startswith("7 kinds")


@pytest.mark.slow
def test_checks_for_a_gpu_that_take_longer():
    assert gpu_operator.accepted("bfloat16", "cpu") == "12 calls, forward and backward"
    told = gpu_operator.compiled("bfloat16", "aot_eager", "cpu", (9, 14, 20))
    assert told == "the same bits at N = 9, 14, 20"


def wrong_forward(q, k, v, **options):
    out, lse = fa_ref.forward(q, k, v, **options)
    return out, lse + 0.1


def wrong_backward(*x, **options):
    dq, dk, dv, *rest = fa_ref.backward(*x, **options)
    return fa_ref.heads.Gradients(dq, 1.1 * dk, dv, *rest)


@pytest.mark.parametrize(("name", "wrong"), [("forward", wrong_forward), ("backward", wrong_backward)])
def test_checks_for_a_gpu_notice_what_is_wrong(name, wrong, monkeypatch):
    package = SimpleNamespace(**{"forward": fa_ref.forward, "backward": fa_ref.backward, name: wrong})
    monkeypatch.setattr(operators, "package_for", lambda q: (package, {"algorithm": "fa2"}))
    for dtype in ("bfloat16", "float32"):
        with pytest.raises(AssertionError, match="lse" if name == "forward" else "dk"):
            gpu_operator.right(dtype, "cpu", [(9, 14)])
    if name == "backward":
        with pytest.raises(AssertionError, match="dk has"):
            gpu_operator.in_place_of_torchs("bfloat16", "cpu")


def test_a_copy_is_made_of_rows_that_are_not_side_by_side_and_of_nothing_else():
    x = torch.randn(1, 2, 4, 8)
    for whole in (x, x.transpose(1, 2), x[:, :, ::2], x[..., :1]):
        assert operators.in_rows(whole) is whole
    for broken in (x.mT, x[..., ::2], x[:, :, :1, :1].expand(x.shape)):
        copy = operators.in_rows(broken)
        assert copy.is_contiguous() and torch.equal(copy, broken)
