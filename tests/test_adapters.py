"""Functions that are not ours: torch's pass with the right adapter, and fail the right properties with a wrong one."""

import math
import re

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

import fa_ref
from fa_ref import varlen
from fa_ref.testing import Recipe, adapters, check, oracle

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread():
    """Problems are tiny: threads only cost."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CONDUCT = {"repeats_are_bitwise_equal", "inputs_are_unchanged", "shapes_and_dtypes", "empty_rows_raise_no_warning"}


def failed(report):
    return {row.name for row in report.failures}


def added_up_in_16_bits(row):
    """Is this a gradient of a long problem that leaves its bound by no more than one more rounding?

    torch's kernel for CPUs adds up dK and dV in the storage dtype, tile of queries after tile. The bound knows one
    rounding of the sum; long problems are rare, and most of them stay within it all the same.
    """
    beyond = [float(x) for x in re.findall(r"is ([\d.e+]+) times the bound", row.detail)]
    return row.name == "gradients_equal_the_oracles" and row.recipe.Nq > 32 and max(beyond, default=2) < 1.5


def test_torch_adds_up_gradients_in_16_bits_tile_after_tile():
    """What the excuse above says: dV is the sum over two tiles of queries, rounded after each."""
    recipe = Recipe.parse("Nq=130 Nk=130 d=2 dtype=float16 logits=8.0 causal=True mask=bool gradients=True")
    p, P = recipe.build(), np.zeros(130)
    for row in oracle.rows(p.q, p.k, **p.options):
        P[row.i] = row.p[row.keys == 79].sum()
    terms = P.astype(np.float16).astype(float) * p.dout[0, 0, :, 1]         # of dv[0, 0, 79, 1]
    at_once, by_tiles = np.float16(terms.sum()), np.float16(0)
    for tile in np.split(terms, range(32, 130, 32)):
        by_tiles = np.float16(by_tiles + tile.sum())
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in (p.q, p.k, p.v))
    seen = torch.from_numpy(p.mask & np.tri(130, dtype=bool))
    sdpa(q, k, v, attn_mask=seen).backward(torch.from_numpy(p.dout))
    assert float(v.grad[0, 0, 79, 1]) == by_tiles != at_once


# --- our own signature ----------------------------------------------------------------------------------------

def test_out_alone_is_enough_of_packed_sequences_too():
    def bare(*arrays, **options):
        return fa_ref.forward(*arrays, **options).out

    def bare_packed(*arrays, **options):
        return varlen.forward(*arrays, **options).out

    ask, supports = adapters.fa_ref(bare, packed=bare_packed, lse=False)
    assert check(ask, supports, examples=10).ok
    assert check(ask, supports, examples=3, properties=["packed_is_a_loop_over_sequences"]).rows[0].status == "ok"


# --- scaled_dot_product_attention -----------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("causal", ["square", "top-left", None])
def test_torchs_sdpa_passes(causal, dtype):
    report = check(*adapters.sdpa(sdpa, causal=causal, dtypes=[dtype]), examples=25)
    excused = {row.name for row in report.failures if dtype.endswith("16") and added_up_in_16_bits(row)}
    assert failed(report) == excused, str(report)
    assert {row.name for row in report.rows if row.status == "ok"} | excused >= {
        "equals_the_oracle", "gradients_equal_the_oracles", "grouped_heads_are_repeated_heads", "order_of_keys_is_free",
        "shifted_scores_move_only_lse", "linear_in_the_values", "repeats_are_bitwise_equal"}


@pytest.mark.parametrize("causal", ["square", "top-left"])
def test_the_flag_itself_is_asked_not_a_mask_in_its_place(causal):
    lengths = set()

    def watched(q, k, v, *, is_causal=False, **options):
        if is_causal:
            lengths.add((q.shape[2], k.shape[2]))
        return sdpa(q, k, v, is_causal=is_causal, **options)

    assert check(*adapters.sdpa(watched, causal=causal), examples=60, properties=["the_future_has_no_influence"]).ok
    assert lengths and any(Nq != Nk for Nq, Nk in lengths) == (causal == "top-left")


def test_what_a_plain_function_does_not_take_is_not_asked():
    def plain(q, k, v, is_causal=False):
        S = q @ k.mT / math.sqrt(q.shape[3])
        hidden = torch.ones(S.shape[2:], dtype=torch.bool).triu(1) & is_causal
        return torch.softmax(S.masked_fill(hidden, -math.inf), 3) @ v

    ask, supports = adapters.sdpa(plain, dtypes=["float32"], causal="top-left")
    assert ask.left_out == ("bool_mask", "float_mask", "bias", "scale", "grouped")
    assert supports == supports.without(*ask.left_out) and supports.causal == "top-left"
    assert check(ask, supports, examples=20).ok
    assert adapters.sdpa(plain)[0].left_out[-1] == "causal where Nq ≠ Nk"
    assert adapters.sdpa(lambda q, k, v: v)[0].left_out[3:] == ("causal", "scale", "grouped")
    assert adapters.sdpa(sdpa, causal="top-left")[0].left_out == ()


def test_sdpa_is_not_bottom_right():
    report = check(*adapters.sdpa(sdpa, causal="bottom-right"), examples=200)     # few have the flag and Nq ≠ Nk
    assert failed(report) >= {"equals_the_oracle", "gradients_equal_the_oracles", "the_future_has_no_influence"}
    assert failed(report).isdisjoint(CONDUCT | {"order_of_keys_is_free"})
    for row in report.failures:
        assert row.recipe.causal and row.recipe.Nq != row.recipe.Nk, str(row.recipe)


def test_tiled_heads_are_not_grouped_heads():
    def tiled(q, k, v, *, enable_gqa=False, **options):
        group = q.shape[1] // k.shape[1]
        return sdpa(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1), **options)

    report = check(*adapters.sdpa(tiled), examples=80)
    assert failed(report) >= {"equals_the_oracle", "gradients_equal_the_oracles", "grouped_heads_are_repeated_heads"}
    assert failed(report).isdisjoint(CONDUCT)
    for row in report.failures:
        assert row.recipe.Hq > row.recipe.Hkv > 1, str(row.recipe)


def test_grouped_heads_that_are_not_offered_are_told_as_the_error():
    def older(q, k, v, attn_mask=None, is_causal=False, scale=None):
        return sdpa(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale)

    ask, supports = adapters.sdpa(older)
    assert ask.left_out[0] == "grouped" and not supports.grouped
    report = check(ask, supports.but(grouped=True), examples=50, properties=["equals_the_oracle"])
    assert "enable_gqa" in report.failures[0].detail and "TypeError" in report.failures[0].detail
    assert check(ask, supports, examples=50, properties=["equals_the_oracle"]).ok


def test_a_wrong_scale_is_found_where_the_scale_matters():
    def wrong(q, k, v, *, scale=None, **options):
        return sdpa(q, k, v, scale=scale or 1 / q.shape[3], **options)

    report = check(*adapters.sdpa(wrong), examples=100)
    assert failed(report) >= {"equals_the_oracle", "gradients_equal_the_oracles"}
    assert failed(report).isdisjoint(CONDUCT)


def test_sdpa_shares_memory_and_would_show_a_write():
    def writes(q, k, v, **options):
        out = sdpa(q, k, v, **options)
        q.detach().mul_(2)
        return out

    assert failed(check(*adapters.sdpa(writes, backward=False), examples=30)) >= {"inputs_are_unchanged"}


# --- flex_attention -------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_flex_attention_passes():
    names = ["equals_the_oracle", "parts_merge_to_the_whole"]       # 0.1 s per call without compilation
    report = check(*adapters.flex_attention(flex_attention), examples=15, properties=names)
    assert report.ok, str(report)


@pytest.mark.slow
def test_a_wrong_flex_attention_fails():
    def upside_down(q, k, v, *, score_mod, **options):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: score_mod(s, b, h, j, i), **options)

    report = check(*adapters.flex_attention(upside_down), examples=30, properties=["equals_the_oracle"])
    assert failed(report) == {"equals_the_oracle"}


# --- flash_attn -----------------------------------------------------------------------------------------------

def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False, longest=None):
    """A stand-in on the CPU with the signature and the conventions of FlashAttention-2."""
    dtype, (left, right) = q.dtype, window_size
    q, k, v = (x.transpose(1, 2).to(torch.promote_types(dtype, torch.float32)) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    Nq, Nk = q.shape[2], k.shape[2]
    at, j = torch.arange(Nq)[:, None] + Nk - Nq, torch.arange(Nk)
    left, right = (-1 if left >= (longest or Nk) else left), (0 if causal else right)
    S = q @ k.mT * (q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        S = softcap * torch.tanh(S / softcap)
    if alibi_slopes is not None:
        slopes = alibi_slopes.reshape(-1, q.shape[1], 1, 1)
        S = S + slopes * (j if left < 0 and right == 0 else -(at - j).abs())
    seen = torch.ones(Nq, Nk, dtype=torch.bool)
    seen &= (j >= at - left) | (left < 0)
    seen &= (j <= at + right) | (right < 0)
    S = torch.where(seen, S, -math.inf)
    m = torch.where(seen.any(dim=1, keepdim=True), S.detach().amax(dim=3, keepdim=True), 0.0)
    P = torch.exp(S - m)
    l = P.sum(dim=3, keepdim=True)
    out = (P @ v) / torch.where(l > 0, l, 1.0)
    lse = torch.where(l > 0, m + torch.log(l), math.inf)[..., 0]
    return out.to(dtype).transpose(1, 2), lse, None


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options):
    """The stand-in for packed sequences: (tokens, heads, channels)."""
    outs, lses = [], []
    for n in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[n], cu_seqlens_q[n + 1])
        keys = slice(cu_seqlens_k[n], cu_seqlens_k[n + 1])
        out, lse, _ = flash_attn_func(q[None, rows], k[None, keys], v[None, keys], longest=max_seqlen_k, **options)
        outs, lses = [*outs, out[0]], [*lses, lse[0]]
    return torch.cat(outs), torch.cat(lses, dim=1), None


STAND_IN = {"dtypes": ("float32", "bfloat16"), "device": "cpu"}


def test_a_function_like_flash_attn_passes():
    report = check(*adapters.flash_attn(flash_attn_func, packed=flash_attn_varlen_func, **STAND_IN), examples=40)
    assert report.ok, str(report)
    assert {row.name for row in report.rows if row.status == "ok"} >= {"packed_is_a_loop_over_sequences",
                                                                       "parts_merge_to_the_whole"}


@pytest.mark.parametrize("told", [{"empty_lse": -math.inf}, {"alibi_shifts_lse": False}])
def test_conventions_of_flash_attn_that_are_told_wrong_are_found(told):
    ask, supports = adapters.flash_attn(flash_attn_func, **STAND_IN, **told)
    report = check(ask, supports, examples=200, properties=["equals_the_oracle"])
    assert failed(report) == {"equals_the_oracle"} and "lse" in report.failures[0].detail


def test_a_top_left_flash_attn_fails():
    def older(q, k, v, *, causal, **options):
        if causal and q.shape[1] != k.shape[1]:
            options["window_size"] = (-1, max(0, q.shape[1] - k.shape[1]))
            causal = False
        return flash_attn_func(q, k, v, causal=causal, **options)

    names = ["equals_the_oracle", "the_future_has_no_influence"]
    report = check(*adapters.flash_attn(older, **STAND_IN), examples=200, properties=names)
    assert failed(report) == set(names)


def test_bfloat16_crosses_to_torch_and_back_unchanged():
    from fa_ref.testing import bridge

    for layout in ("contiguous", "transposed", "stepped", "reversed", "read-only"):
        for dtype in ("bfloat16", "float16", "float64"):
            x = Recipe(B=2, Hq=2, Hkv=2, Nq=3, Nk=3, d=4, dtype=dtype, layout=layout).build().q
            there = bridge.to_torch(x)
            assert tuple(there.shape) == x.shape and str(there.dtype) == f"torch.{dtype}"
            assert bridge.to_numpy(there).tobytes() == x.tobytes()


def test_the_oracle_and_torch_agree_on_one_problem_written_out():
    """Not through the kit: one causal problem in float64."""
    problem = Recipe(B=2, Hq=4, Hkv=4, Nq=5, Nk=5, d=3, dtype="float64", causal=True).build()
    theirs = sdpa(*(torch.from_numpy(x) for x in (problem.q, problem.k, problem.v)), is_causal=True)
    np.testing.assert_allclose(theirs.numpy(), oracle.solve(problem).out, rtol=1e-12, atol=1e-12)
