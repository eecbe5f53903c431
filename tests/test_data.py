"""The real input: the file is the one described, the heads do what their README says, the encoder is BERT."""

import hashlib
from importlib import resources

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16, float8_e4m3fn

from fa_ref import data
from fa_ref.data import make_minilm

FOLDER = resources.files(data)
H, N, D = 12, 251, 32


@pytest.fixture(scope="module")
def real():
    return data.load(np.float64)


@pytest.fixture(scope="module")
def maps(real):
    """Scores S and weights P of all heads, (H, N, N)."""
    S = real.q[0] @ real.k[0].swapaxes(-1, -2) / np.sqrt(D)
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    return S, P / P.sum(axis=-1, keepdims=True)


def test_the_file_is_small_and_the_one_that_was_made():
    stored = (FOLDER / "minilm_qkv.npz").read_bytes()
    assert 500_000 < len(stored) < 1_000_000
    half = data.load(np.float16)
    digest = hashlib.sha256(half.q.tobytes() + half.k.tobytes() + half.v.tobytes()).hexdigest()
    assert digest == "8072edfef60b0e1c7412cb2bface435c4a43595c6c4adb94c734ecbd6f86132c"


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16, float8_e4m3fn])
def test_shapes_and_dtypes(dtype):
    real = data.load(dtype)
    for array in real[:3]:
        assert array.shape == (1, H, N, D) and array.dtype == dtype
        assert np.isfinite(array.astype(np.float32)).all()
        assert array.astype(np.float32).std(axis=-2).min() > 0.2  # no channel is constant over the tokens
    assert len(real.tokens) == N and len(set(real.names)) == H


def test_default_is_float32_and_loses_nothing():
    for single, half in zip(data.load()[:3], data.load(np.float16)[:3], strict=True):
        assert single.dtype == np.float32 and np.array_equal(single, half)


def test_each_load_is_a_fresh_copy():
    first = data.load()
    first.q[:] = 0
    assert data.load().q.any()


@pytest.mark.parametrize("dtype", [np.int32, bool, complex, "U4"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(TypeError, match="floating"):
        data.load(dtype)


def test_tokens_spell_the_paragraph(real):
    assert real.tokens[0] == "[CLS]" and real.tokens[-1] == "[SEP]"
    spelled = "".join(token.removeprefix("##") for token in real.tokens[1:-1])
    assert spelled == "".join((FOLDER / "paragraph.txt").read_text().lower().split())


def test_names_are_the_picks_of_the_script(real):
    assert real.names == [f"layer {layer} head {head}" for layer, head in make_minilm.PICKS]


def test_maps_are_maps(maps):
    S, P = maps
    np.testing.assert_allclose(P.sum(axis=-1), 1, atol=1e-12)
    assert P.max() > 0.99  # some query has made up its mind
    assert P.max(axis=(1, 2)).min() < 0.1  # and one head never does
    assert 60 < S.max() < 88 and -60 < S.min() < -50  # exp(S) overflows float16, not float32


def test_every_head_does_what_the_readme_says(real, maps):
    _, P = maps
    head = {name: h for h, name in enumerate(real.names)}
    tokens = np.array(real.tokens)
    ahead = np.arange(N) - np.arange(N)[:, None]  # (N, N), key position minus query position
    sentence = np.cumsum(np.isin(np.roll(tokens, 1), [".", "?"]))

    def weight(name, where):
        """The mean weight that head gives to the keys at `where` (N, N) or (N,)."""
        return (P[head[name]] * where).sum() / N

    def tail(x):
        """Per head, how many standard deviations the largest number is out."""
        return np.abs(x[0]).max(axis=(1, 2)) / x[0].std(axis=(1, 2))

    entropy = -(P * np.log(P)).sum(axis=-1).mean(axis=-1) / np.log(N)  # (H,), 1 if uniform
    assert weight("layer 0 head 2", ahead == -1) > 0.75
    assert np.abs(real.q[0]).max(axis=(1, 2)).argmax() == np.abs(real.k[0]).max(axis=(1, 2)).argmax() == 0
    assert entropy.argmax() == head["layer 0 head 9"] == tail(real.v).argmax() and tail(real.v).max() > 7
    assert weight("layer 1 head 8", ahead == 1) > 0.65
    assert weight("layer 1 head 11", tokens == "[CLS]") > 0.5
    assert weight("layer 2 head 4", ahead <= 0) > 0.9
    assert weight("layer 2 head 9", (tokens == tokens[:, None]) & (ahead != 0)) > 0.25
    landmarks = np.isin(np.arange(N), [tokens.tolist().index(word) for word in ("?", "take", "we")])
    assert weight("layer 3 head 7", landmarks) > 8 * landmarks.mean()
    assert weight("layer 3 head 10", sentence == sentence[:, None]) > 0.2
    assert weight("layer 3 head 10", tokens == "[CLS]") > 0.35
    assert weight("layer 4 head 9", ahead == 1) > 0.25
    assert weight("layer 4 head 9", sentence == sentence[:, None]) > 0.45
    assert weight("layer 4 head 10", tokens == "[CLS]") > 0.35
    assert np.abs(real.v[0]).max(axis=(1, 2)).argmax() == head["layer 5 head 0"]
    assert weight("layer 5 head 1", tokens == "attention") > 0.2


def bert_weights(layer, i):
    """The weights of a torch encoder layer under the names that BERT gives them in layer i."""
    modules = {
        "attention.output.dense": layer.self_attn.out_proj,
        "attention.output.LayerNorm": layer.norm1,
        "intermediate.dense": layer.linear1,
        "output.dense": layer.linear2,
        "output.LayerNorm": layer.norm2,
    }
    for part in ("weight", "bias"):
        for name, module in modules.items():
            yield f"encoder.layer.{i}.{name}.{part}", getattr(module, part)
        thirds = getattr(layer.self_attn, "in_proj_" + part).chunk(3)
        for name, third in zip(("query", "key", "value"), thirds, strict=True):
            yield f"encoder.layer.{i}.attention.self.{name}.{part}", third


def test_the_encoder_is_torchs_encoder():
    """make_minilm.encoder against torch.nn.TransformerEncoderLayer: two layers of random weights."""
    heads, d, length, words = 3, 4, 9, 20
    options = dict(activation="gelu", layer_norm_eps=1e-12, dropout=0, batch_first=True, dtype=torch.float64)
    stack = [torch.nn.TransformerEncoderLayer(heads * d, heads, 17, **options) for _ in range(2)]
    norm = torch.nn.LayerNorm(heads * d, eps=1e-12, dtype=torch.float64)
    rows = {"word": words, "position": 16, "token_type": 2}
    tables = {name: torch.empty(n, heads * d, dtype=torch.float64) for name, n in rows.items()}
    w = {f"embeddings.{name}_embeddings.weight": table for name, table in tables.items()}
    w |= {f"embeddings.LayerNorm.{name}": array for name, array in norm.named_parameters()}
    for i, layer in enumerate(stack):
        w |= bert_weights(layer, i)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for array in w.values():  # views of torch's weights: all of them random, biases too
            array.copy_(torch.from_numpy(rng.normal(size=array.shape)))
        ids = torch.from_numpy(rng.integers(words, size=length))
        expected = norm(tables["word"][ids] + tables["position"][:length] + tables["token_type"][0])[None]
        for layer in stack:
            expected = layer(expected)

    weights = {name: array.detach().numpy() for name, array in w.items()}
    hidden, seen = make_minilm.encoder(ids.numpy(), weights, layers=2, heads=heads)
    np.testing.assert_allclose(hidden, expected[0].numpy(), rtol=0, atol=1e-12)
    assert [array.shape for qkv in seen for array in qkv] == [(heads, length, d)] * 6
