"""Real queries, keys and values: what a language model hands to attention while it reads a page of text.

Random numbers make a fair test and a dull picture. Here one head looks a token back with scores near 70,
one gives half its weight to a single token, one follows repeated words, one hardly chooses at all. README.md
says which head does what, where the model comes from and under which licence.
"""

from importlib import resources
from typing import Any, NamedTuple

import numpy as np


class Activations(NamedTuple):
    """q, k, v (1, H, N, 32); tokens, N strings; names, H strings such as "layer 0 head 2"."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    tokens: list[str]
    names: list[str]


def load(dtype: Any = np.float32) -> Activations:
    """Queries, keys and values of H = 12 heads of all-MiniLM-L6-v2 on N = 251 tokens of paragraph.txt.

    The arrays are fresh, of the given dtype, in the layout (B, H, N, d) = (1, 12, 251, 32). The file holds
    float16: float32 and float64 keep every number, bfloat16 and float8 round once more. The model attends
    with scale 1/√32 and no mask. Token 0 is [CLS], the last one is [SEP].

    Raises TypeError if dtype is not a floating type (ml_dtypes' bfloat16 and float8 types are).
    Source: the six-layer model of sentence-transformers (Apache-2.0), run by make_minilm.py.
    """
    dtype = np.dtype(dtype)
    if dtype.kind not in "fV":  # V: the types of ml_dtypes
        raise TypeError(f"dtype must be a floating type, got {dtype}")
    with resources.files(__name__).joinpath("minilm_qkv.npz").open("rb") as file, np.load(file) as stored:
        q, k, v = (stored[name][None].astype(dtype) for name in "qkv")
        picks = zip(stored["layers"], stored["heads"], strict=True)
        return Activations(q, k, v, stored["tokens"].tolist(), [f"layer {i} head {h}" for i, h in picks])
