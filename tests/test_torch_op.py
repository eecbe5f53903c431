"""The operator of torch: registered as torch wants it, the oracle's numbers, torch's own where they mean the same."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cuda_kernels  # noqa: E402, F401  first: it decides whether kernels are simulated
from cuda_kernels import torch_op  # noqa: E402
from cuda_kernels.torch_op import scaled_dot_product_attention  # noqa: E402

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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(5, 5), (3, 6), (6, 3)])
def test_it_stands_in_for_torchs_own(lengths, causal):
    """Values and gradients; is_causal is top-left."""
    ours, torchs = tensors(*lengths, heads=(4, 2)), tensors(*lengths, heads=(4, 2))
    out = scaled_dot_product_attention(*ours, is_causal=causal, enable_gqa=True)
    wanted = torch.nn.functional.scaled_dot_product_attention(*torchs, is_causal=causal, enable_gqa=True)
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


def test_autocast_casts_as_torch_does():
    q, k, v = tensors(dtype=torch.float32, grad=False)
    with torch.autocast("cpu", torch.bfloat16):
        ours = scaled_dot_product_attention(q, k, v, enable_gqa=True)
        torchs = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert ours.dtype == torchs.dtype == torch.bfloat16
    torch.testing.assert_close(ours, torchs, atol=2e-2, rtol=2e-2)


def test_what_is_refused():
    q, k, v = tensors()
    with pytest.raises(NotImplementedError, match="attn_mask is not offered"):
        scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(5, 7, dtype=torch.bool))
    with pytest.raises(NotImplementedError, match=r"dropout_p is not offered by fa_ref::attention, got 0.1"):
        scaled_dot_product_attention(q, k, v, dropout_p=0.1)
    with pytest.raises(ValueError, match="4 query heads and 2 of keys need enable_gqa=True"):
        scaled_dot_product_attention(q, k, v)
    out, _ = attention(q, k, v)
    (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()
    assert torch_op.library(q)[0].__name__ == "fa_ref"
