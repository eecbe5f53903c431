"""Small inputs on which published attention kernels went wrong, with answers one can compute by hand.

Data only; `test_cases.py` runs it. Every record has a `kind`, the code of one of the KINDS below, and a name:

    Case     a forward call (and a backward call if there is a dout or dlse) and its expected results
    Twins    two ways to say the same: all results must agree
    Merge    partial results (out, lse) and what they add up to
    Refused  a call that must raise, and the words and numbers that the text must hold

`wrong` holds what well-known wrong versions give; the tests must be able to tell it from the right answer.
`dtypes` are those whose range and precision can hold the numbers of the case.

A shorthand for shapes: [a, b] is one number per row, (2, 1); two axes are (length, head dim); missing batch and
head axes are 1. With `cu_seqlens_q` the call is the packed one and there is no batch axis. A probe has q = 0 and
V = I: every row of the output is then a row of P, and shows which keys were seen.

    python tests/cases.py        prints how many cases there are of each kind, and which kinds wait for what
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from math import exp, log, tanh
from typing import Any

import numpy as np

KINDS = {
    "K01": "rows with no visible key",
    "K02": "running maximum while whole tiles are hidden; a finite number in place of minus infinity",
    "K03": "causal alignment when there are more or fewer keys than queries",
    "K04": "length that is no multiple of the tile, tile longer than the sequence",
    "K05": "head dim that is 1, odd, no power of two, or large",
    "K06": "values with another head dim than queries and keys",
    "K07": "views: transposed, sliced, stepped, reversed, broadcast, read-only",
    "K08": "axes of length zero",
    "K09": "packed and padded sequences: leaks, bad offsets, surplus tokens",
    "K10": "flat offsets past 2³¹",
    "K11": "large logits that overflow",
    "K12": "scale: zero, negative, applied once and to q·k alone",
    "K13": "grouped heads",
    "K14": "what the log-sum-exp is",
    "K15": "keys split in parts, and merging the parts",
    "K16": "sliding window",
    "K17": "softcap",
    "K18": "ALiBi and additive bias",
    "K19": "meaning, dtype and shape of a mask",
    "K20": "garbage in storage that must not be read",
    "K21": "paged cache",
    "K22": "appending to a key/value cache",
    "K23": "dropout",
    "K24": "backward: formula, options, accumulation",
    "K25": "gradients at the edges: empty rows, through lse",
    "K26": "dtypes and rounding",
    "K27": "barriers and races",
    "K28": "shared memory and launch limits",
    "K29": "number types inside kernels, fast maths",
    "K30": "where a simulator is not the device",
    "K31": "attention sink",
}
ELSEWHERE = {                   # kinds that need a launch, not numbers: the tests that have them
    "K10": "NumPy has no flat offsets; kernels: test_kernel_cases.py, test_kernel_types.py, on a GPU gpu_check.py",
    "K27": "test_kernel_cases.py, test_planted_faults.py, test_simulator_audit.py, test_simulator_races.py",
    "K28": "test_kernel_cases.py, test_launch.py",
    "K29": "test_kernel_types.py, with a toolkit test_ptx_types.py",
    "K30": "test_kernel_cases.py, test_simulator_blocks.py, test_simulator_memory.py, test_simulator_debugging.py",
}
NOT_COVERED = {                 # kinds without a case in this file
    **ELSEWHERE,
    "K21": "there is no paged cache",
    "K22": "there is no key/value cache to append to",
    "K23": "dropout is left out on purpose",
}

ALL = ("float64", "float32", "float16", "bfloat16")
WIDE = ("float64", "float32")


@dataclass(frozen=True)
class Case:
    kind: str
    name: str
    inputs: dict[str, Any]
    expected: dict[str, Any]
    wrong: dict[str, dict[str, Any]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ALL


@dataclass(frozen=True)
class Twins:
    kind: str
    name: str
    inputs: dict[str, Any]
    changes: dict[str, Any]
    bitwise: bool = False
    dtypes: tuple[str, ...] = ALL


@dataclass(frozen=True)
class Merge:
    kind: str
    name: str
    parts: list[tuple[float, float]]
    expected: tuple[float, float]
    wrong: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    kind: str
    name: str
    inputs: dict[str, Any]
    error: type[Exception]
    words: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """An array that is not contiguous: `how` is applied to `base` after the base has got its dtype."""

    base: Any
    how: Any


INF, NAN = math.inf, math.nan
LN2, LN3, LN4, LN5 = log(2), log(3), log(4), log(5)
TRIANGLE = [1, 3, 6, 10, 15]  # sums of the weights 1, 2, 3, 4, 5
SMALLEST = float(np.finfo(np.float32).min)


def probe(Nq, Nk, **options):
    """Equal scores and V = I: the output is P itself."""
    return {"q": np.zeros((Nq, Nk)), "k": np.zeros((Nk, Nk)), "v": np.eye(Nk), **options}


def flat(**given):
    """Equal scores of d = 1: q and k are zero. `v` is given; `n` queries, as many as keys if it is not."""
    Nk = len(given["v"])
    return {"q": np.zeros(given.pop("n", Nk)), "k": np.zeros(Nk), **given}


def shares(*weights):
    """The weights as fractions of their sum."""
    return [w / math.fsum(weights) for w in weights]


def equal(seen, *, of, start=0):
    """A row of P over `of` keys that sees `seen` of them from `start` on, with equal weights."""
    return [1 / seen if start <= j < start + seen else 0 for j in range(of)]


def bits(*rows):
    """A boolean mask from strings of 0 and 1."""
    return np.array([[c == "1" for c in row] for row in rows])


def uniform(*shape, seed=0):
    """Random numbers for twins, where no answer has to be known."""
    return np.random.default_rng(seed).uniform(-2, 2, shape)


CASES: list[Case | Twins | Merge | Refused] = [
    # --- K01 --------------------------------------------------------------------------------------------------
    Case("K01", "the mask empties the second row",
         probe(2, 3, mask=bits("110", "000")),
         {"out": [[1/2, 1/2, 0], [0, 0, 0]], "lse": [LN2, -INF]},
         {"a finite minus infinity": {"out": [[1/2, 1/2, 0], [1/3, 1/3, 1/3]]}}),
    Case("K01", "causal empties the first rows when there are fewer keys",
         {"q": [1, 1, 1], "k": [2], "v": [7], "scale": 1, "causal": True},
         {"out": [0, 0, 7], "lse": [-INF, -INF, 2]},
         {"top-left": {"out": [7, 7, 7]}}),
    Case("K01", "the first tile of queries is empty, the second is not",
         probe(4, 4, mask=bits("0000", "0000", "1000", "0110")),
         {"out": [equal(0, of=4), equal(0, of=4), equal(1, of=4), equal(2, of=4, start=1)],
          "lse": [-INF, -INF, 0, LN2]}),
    Case("K01", "one whole head is hidden, the other is not",
         {"q": np.zeros((2, 2, 1)), "k": np.zeros((2, 2, 1)), "v": [[[1], [3]], [[2], [6]]],
          "mask": np.array([False, True]).reshape(2, 1, 1)},
         {"out": [[[0], [0]], [[4], [4]]], "lse": [[-INF, -INF], [LN2, LN2]]}),
    Case("K01", "a window empties rows that stand before the first key",
         probe(4, 2, window=(0, 0)),
         {"out": [[0, 0], [0, 0], [1, 0], [0, 1]], "lse": [-INF, -INF, 0, 0]}),
    Case("K01", "causal and a mask empty a row only together",
         probe(2, 2, causal=True, mask=bits("01", "11")),
         {"out": [[0, 0], [1/2, 1/2]], "lse": [-INF, LN2]}),
    Case("K01", "a bias of minus infinity empties a row",
         probe(2, 2, bias=np.array([[-INF, -INF], [0, 0]])),
         {"out": [[0, 0], [1/2, 1/2]], "lse": [-INF, LN2]}),

    # --- K02 --------------------------------------------------------------------------------------------------
    Case("K02", "the first tiles of keys are hidden, the rest is far below zero",
         {"q": [1], "k": [5, 9, -200, -200], "v": [1, 2, 10, 20], "scale": 1, "mask": bits("0011")},
         {"out": [15], "lse": [-200 + LN2]},
         {"a maximum that starts at 0": {"out": [0]}}),
    Case("K02", "two rows of one tile see different tiles of keys",
         {"q": [1, 1], "k": [-200, -200, -300, -300], "v": [1, 3, 10, 20], "scale": 1,
          "mask": bits("0011", "1100")},
         {"out": [15, 2], "lse": [-300 + LN2, -200 + LN2]},
         {"one maximum for the tile": {"out": [0, 2]}}),
    Case("K02", "a visible score below many a finite minus infinity",
         {"q": [1], "k": [-50_000, 0], "v": [3, 500], "scale": 1, "mask": bits("10")},
         {"out": [3], "lse": [-50_000]},
         {"hidden scores set to −10000": {"out": [500]}}, WIDE),
    Case("K02", "all scores are below −50000",
         {"q": [1], "k": [-60_000, -60_001], "v": np.eye(2), "scale": 1},
         {"out": [shares(1, exp(-1))], "lse": [-60_000 + log(1 + exp(-1))]},
         {"a maximum that starts at −50000": {"out": [[0, 0]]}}, WIDE),

    # --- K03 --------------------------------------------------------------------------------------------------
    Case("K03", "a single query sees every key",
         probe(1, 4, causal=True),
         {"out": [equal(4, of=4)]},
         {"top-left": {"out": [equal(1, of=4)]}}),
    Case("K03", "two queries, five keys",
         probe(2, 5, causal=True),
         {"out": [equal(4, of=5), equal(5, of=5)]},
         {"top-left": {"out": [equal(1, of=5), equal(2, of=5)]}}),
    Case("K03", "five queries, two keys",
         probe(5, 2, causal=True),
         {"out": [[0, 0], [0, 0], [0, 0], [1, 0], [1/2, 1/2]], "lse": [-INF, -INF, -INF, 0, LN2]},
         {"top-left": {"out": [[1, 0], [1/2, 1/2], [1/2, 1/2], [1/2, 1/2], [1/2, 1/2]]}}),
    Case("K03", "the last row of a square call …",
         {"q": [LN2] * 4, "k": [0, 1, 2, 3], "v": np.eye(4), "causal": True},
         {"out": [shares(1, 0, 0, 0), shares(1, 2, 0, 0), shares(1, 2, 4, 0), shares(1, 2, 4, 8)],
          "lse": [log(1), log(3), log(7), log(15)]}),
    Case("K03", "… is the call with the last query alone",
         {"q": [LN2], "k": [0, 1, 2, 3], "v": np.eye(4), "causal": True},
         {"out": [shares(1, 2, 4, 8)], "lse": [log(15)]},
         {"top-left": {"out": [shares(1, 0, 0, 0)]}}),
    Case("K03", "each packed sequence is aligned by its own lengths",
         flat(n=3, v=[1, 2, 3, 10, 20], cu_seqlens_q=[0, 1, 3], cu_seqlens_k=[0, 3, 5], causal=True),
         {"out": [2, 10, 15]},
         {"aligned by the totals": {"out": [2, 10, 10]}, "top-left": {"out": [1, 10, 15]}}),
    Case("K03", "gradients follow the same alignment",
         probe(2, 3, causal=True, dout=np.ones((2, 3))),
         {"dv": np.outer([1/2 + 1/3, 1/2 + 1/3, 1/3], np.ones(3))},
         {"top-left": {"dv": np.outer([1 + 1/2, 1/2, 0], np.ones(3))}}),

    # --- K04 --------------------------------------------------------------------------------------------------
    Case("K04", "three queries, five keys",
         probe(3, 5, dout=np.ones((3, 5))),
         {"out": np.full((3, 5), 1/5), "lse": [LN5] * 3, "dv": np.full((5, 5), 3/5),
          "dq": np.zeros((3, 5)), "dk": np.zeros((5, 5))},
         {"padded to six keys": {"out": np.full((3, 5), 1/6)}, "padded to eight": {"out": np.full((3, 5), 1/8)}}),
    Case("K04", "a padded key of logit 0 would win",
         {"q": [1], "k": [-30] * 3, "v": [1, 2, 3], "scale": 1},
         {"out": [2], "lse": [-30 + LN3]},
         {"padded with zeros": {"out": [6 * exp(-30) / (1 + 3 * exp(-30))], "lse": [0]}}),
    Case("K04", "causal with a ragged tail",
         probe(3, 5, causal=True),
         {"out": [equal(3, of=5), equal(4, of=5), equal(5, of=5)]}),
    Case("K04", "one key more than the largest tile",
         probe(1, 17),
         {"out": [equal(17, of=17)], "lse": [log(17)]},
         {"the last tile dropped": {"out": [equal(16, of=17)]}}),

    # --- K05 --------------------------------------------------------------------------------------------------
    Case("K05", "d = 3: the scale is that of the true d",
         {"q": [[1, 1, 1]], "k": [[1, 1, 1], [0, 0, 0]], "v": np.eye(2)},
         {"out": [shares(exp(3 ** .5), 1)]},
         {"padded to d = 4": {"out": [shares(exp(3 / 2), 1)]}}),
    Case("K05", "d = 65: only the last channel is not zero",
         {"q": [[0] * 64 + [65 ** .5 * LN3]], "k": [[0] * 64 + [1], [0] * 65], "v": np.eye(2)},
         {"out": [[3/4, 1/4]]},
         {"the first 64 channels only": {"out": [[1/2, 1/2]]}}),
    Case("K05", "d = 129: only the last channel is not zero",
         {"q": [[0] * 128 + [129 ** .5 * LN3]], "k": [[0] * 128 + [1], [0] * 129], "v": np.eye(2)},
         {"out": [[3/4, 1/4]]},
         {"the first 128 channels only": {"out": [[1/2, 1/2]]}}),
    Case("K05", "d = 1",
         {"q": [LN3], "k": [1, 0], "v": [4, 8]},
         {"out": [5], "lse": [LN4]}),

    # --- K06 --------------------------------------------------------------------------------------------------
    Case("K06", "more channels in V",
         {"q": np.zeros((1, 2)), "k": np.zeros((2, 2)), "v": np.arange(10).reshape(2, 5)},
         {"out": [[2.5, 3.5, 4.5, 5.5, 6.5]]}),
    Case("K06", "fewer channels in V: the scale is that of d",
         {"q": [[2 * LN3, 0, 0, 0]], "k": [[1, 0, 0, 0], [0, 0, 0, 0]], "v": [4, 0]},
         {"out": [3]},
         {"scale 1/√dv": {"out": [4 * 9/10]}}),
    Case("K06", "backward sums over all channels of V",
         {"q": [0], "k": [1, -1], "v": [[0, 2], [0, 0]], "dout": [[0, 1]], "scale": 1},
         {"dq": [1], "dk": [0, 0], "dv": [[0, 1/2], [0, 1/2]]},
         {"the first d channels only": {"dq": [0]}}),
    Case("K06", "dV channel by channel when dv does not divide d",
         {"q": np.zeros((1, 4)), "k": np.zeros((2, 4)), "v": np.zeros((2, 3)), "dout": [[1, 2, 3]]},
         {"dv": [[1/2, 1, 3/2], [1/2, 1, 3/2]]}),

    # --- K07 --------------------------------------------------------------------------------------------------
    Case("K07", "V with heads and length swapped in storage",
         {"q": np.zeros((2, 1, 2)), "k": np.zeros((2, 3, 2)),
          "v": View(np.arange(12).reshape(1, 3, 2, 2), lambda x: x.transpose(0, 2, 1, 3))},
         {"out": [[[4, 5]], [[6, 7]]]},
         {"read as contiguous": {"out": [[[2, 3]], [[8, 9]]]}}),
    Case("K07", "every second key, values contiguous",
         {"q": [1], "k": View([0, 9, LN2, 9, LN5, 9], lambda x: x[:, :, ::2]), "v": [8, 16, 24], "scale": 1},
         {"out": [20], "lse": [log(8)]},
         {"read as contiguous": {"out": [np.dot(shares(1, exp(9), 2), [8, 16, 24])]}}),
    Case("K07", "a transposed gradient of the output",
         {"q": np.zeros((2, 2)), "k": np.zeros((2, 2)), "v": np.zeros((2, 2)),
          "dout": View([[1, 2], [3, 4]], lambda x: x.swapaxes(2, 3))},
         {"dv": [[3/2, 7/2], [3/2, 7/2]]},
         {"read as contiguous": {"dv": [[2, 3], [2, 3]]}}),
    Case("K07", "keys and values backwards",
         {"q": [1], "k": View([LN5, LN2, 0], lambda x: x[:, :, ::-1]), "scale": 1,
          "v": View([24, 16, 8], lambda x: x[:, :, ::-1])},
         {"out": [20]}),
    Case("K07", "one query and one value, broadcast",
         {"q": View([LN3], lambda x: np.broadcast_to(x, (1, 1, 3, 1))), "k": [1, 0],
          "v": View([6], lambda x: np.broadcast_to(x, (1, 1, 2, 1))), "dout": [1, 1, 1]},
         {"out": [6, 6, 6], "lse": [LN4] * 3, "dv": [9/4, 3/4], "dq": [0, 0, 0]}),
    Case("K07", "a slice of a larger buffer full of NaN",
         {"q": View([NAN, 1, NAN], lambda x: x[:, :, 1:2]), "k": View([NAN, 0, LN3, NAN], lambda x: x[:, :, 1:3]),
          "v": View([NAN, 4, 8, NAN], lambda x: x[:, :, 1:3])},
         {"out": [7]}),
    Twins("K07", "column-major arrays, bit for bit",
          {"q": uniform(5, 7, seed=1), "k": uniform(6, 7, seed=2), "v": uniform(6, 3, seed=3),
           "dout": uniform(5, 3, seed=4)},
          {name: View(uniform(*shape, seed=seed), lambda x: x.swapaxes(2, 3).copy().swapaxes(2, 3))
           for name, shape, seed in (("q", (5, 7), 1), ("k", (6, 7), 2), ("v", (6, 3), 3), ("dout", (5, 3), 4))},
          bitwise=True),

    # --- K08 --------------------------------------------------------------------------------------------------
    Case("K08", "no keys",
         {"q": np.zeros((2, 2)), "k": np.zeros((0, 2)), "v": np.zeros((0, 3)), "dout": np.ones((2, 3))},
         {"out": np.zeros((2, 3)), "lse": [-INF, -INF], "dq": np.zeros((2, 2)),
          "dk": np.zeros((0, 2)), "dv": np.zeros((0, 3))},
         {"+inf for rows without keys": {"lse": [INF, INF]}}),
    Case("K08", "no queries",
         {"q": np.zeros((0, 2)), "k": np.ones((3, 2)), "v": np.ones((3, 4)), "dout": np.zeros((0, 4))},
         {"out": np.zeros((0, 4)), "lse": [], "dq": np.zeros((0, 2)),
          "dk": np.zeros((3, 2)), "dv": np.zeros((3, 4))}),
    Case("K08", "neither",
         {"q": np.zeros((0, 2)), "k": np.zeros((0, 2)), "v": np.zeros((0, 2)), "causal": True},
         {"out": np.zeros((0, 2)), "lse": []}),
    Case("K08", "no batch",
         {"q": np.zeros((0, 2, 3, 4)), "k": np.zeros((0, 1, 5, 4)), "v": np.zeros((0, 1, 5, 2)),
          "dout": np.zeros((0, 2, 3, 2))},
         {"out": np.zeros((0, 2, 3, 2)), "lse": np.zeros((0, 2, 3)), "dk": np.zeros((0, 1, 5, 4))}),
    Case("K08", "packed: a sequence without queries, one without keys",
         flat(v=[1, 3, 50], cu_seqlens_q=[0, 2, 2, 3], cu_seqlens_k=[0, 2, 3, 3], dout=[1, 1, 1]),
         {"out": [2, 2, 0], "lse": [LN2, LN2, -INF], "dv": [1, 1, 0], "dq": [0, 0, 0], "dk": [0, 0, 0]}),
    Case("K08", "packed: keys whose sequence has no query get no gradient",
         flat(n=1, v=[5, 6, 7], cu_seqlens_q=[0, 0, 1], cu_seqlens_k=[0, 2, 3], dout=[1]),
         {"out": [7], "dv": [0, 0, 1], "dk": [0, 0, 0], "dq": [0]}),
    Case("K08", "packed: the same with d = 8",
         {"q": np.zeros((1, 8)), "k": np.ones((3, 8)), "v": [5, 6, 7], "dout": [1],
          "cu_seqlens_q": [0, 0, 1], "cu_seqlens_k": [0, 2, 3]},
         {"dv": [0, 0, 1], "dk": np.zeros((3, 8)), "dq": np.zeros((1, 8))}),
    Case("K08", "packed: no sequence at all",
         {"q": np.zeros((0, 1)), "k": np.zeros((0, 1)), "v": np.zeros((0, 1)), "dout": np.zeros((0, 1)),
          "cu_seqlens_q": [0], "cu_seqlens_k": [0]},
         {"out": np.zeros((0, 1)), "lse": [], "dk": np.zeros((0, 1))}),

    # --- K09 --------------------------------------------------------------------------------------------------
    Case("K09", "two sequences inside one tile",
         flat(v=[1, 2, 3, 100], cu_seqlens_q=[0, 3, 4], cu_seqlens_k=[0, 3, 4]),
         {"out": [2, 2, 2, 100]},
         {"all tokens see all": {"out": [26.5] * 4}}),
    Case("K09", "causal with more queries than keys",
         flat(n=3, v=[6], cu_seqlens_q=[0, 3], cu_seqlens_k=[0, 1], causal=True, dout=[1, 1, 1]),
         {"out": [0, 0, 6], "lse": [-INF, -INF, 0], "dq": [0, 0, 0], "dv": [1]}),
    Case("K09", "a batch padded to one length, with a mask for each entry",
         {"q": np.zeros((2, 1, 3, 1)), "k": np.zeros((2, 1, 3, 1)),
          "v": np.reshape([1, 3, 99, 1, 2, 6], (2, 1, 3, 1)), "mask": bits("110", "111").reshape(2, 1, 1, 3)},
         {"out": np.reshape([2, 2, 2, 3, 3, 3], (2, 1, 3, 1))},
         {"mask of the first for all": {"out": np.reshape([2, 2, 2, 1.5, 1.5, 1.5], (2, 1, 3, 1))}}),
    Case("K09", "padding on the left or on the right does not matter",
         {"q": np.zeros((2, 1, 1, 1)), "k": np.reshape([9, 0, LN3, 0, LN3, 9], (2, 1, 3, 1)),
          "v": np.reshape([99, 4, 8, 4, 8, 99], (2, 1, 3, 1)), "mask": bits("011", "110").reshape(2, 1, 1, 3)},
         {"out": np.reshape([6, 6], (2, 1, 1, 1))}),
    Case("K09", "causal stays on beside a padding mask that hides nothing",
         probe(3, 3, causal=True, mask=bits("111")),
         {"out": [equal(1, of=3), equal(2, of=3), equal(3, of=3)]},
         {"causal dropped": {"out": [equal(3, of=3)] * 3}}),
    Refused("K09", "tokens left over behind the last sequence",
            flat(v=[1, 2, 3, 4, 5], cu_seqlens_q=[0, 2, 4], cu_seqlens_k=[0, 2, 5]), ValueError,
            ("cu_seqlens_q", "4", "5")),
    Refused("K09", "different numbers of sequences",
            flat(v=[1, 2], cu_seqlens_q=[0, 2], cu_seqlens_k=[0, 1, 2]), ValueError, ("1", "2", "cu_seqlens")),

    # --- K11 --------------------------------------------------------------------------------------------------
    Case("K11", "exp(1000) is infinite",
         {"q": [1], "k": [1000, 1000, 0], "v": [2, 4, 99], "scale": 1},
         {"out": [3], "lse": [1000 + LN2]},
         {"no maximum subtracted": {"out": [NAN]}}),
    Case("K11", "q·k is past the range of float16",
         {"q": [[200] * 4], "k": [[200] * 4, [199] * 4], "v": [5, 9], "scale": .5},
         {"out": [5], "lse": [80_000]},
         {"a product in float16": {"out": [NAN]}}),

    # --- K12 --------------------------------------------------------------------------------------------------
    Case("K12", "scale 0",
         {"q": [1], "k": [0, 50], "v": [2, 4], "scale": 0.0, "dout": [1]},
         {"out": [3], "lse": [LN2], "dq": [0], "dk": [0, 0], "dv": [1/2, 1/2]},
         {"0 taken for not given": {"out": [4]}}),
    Case("K12", "a negative scale",
         {"q": [1], "k": [0, LN3], "v": np.eye(2), "scale": -1},
         {"out": [[3/4, 1/4]]},
         {"its absolute value": {"out": [[1/4, 3/4]]}}),
    Case("K12", "a negative scale and a large logit",
         {"q": [1], "k": [0, 500], "v": np.eye(2), "scale": -1},
         {"out": [[1, 0]], "lse": [0]},
         {"maximum before scaling": {"out": [[NAN, NAN]]}}),
    Case("K12", "the scale leaves the bias alone",
         {"q": [0], "k": [0, 0], "v": np.eye(2), "scale": .5, "bias": np.array([0, 2 * LN3])},
         {"out": [[1/10, 9/10]]},
         {"bias scaled": {"out": [[1/4, 3/4]]}}),
    Case("K12", "by default q·k is divided by √d",
         {"q": [[2 * LN3, 0, 0, 0]], "k": [[1, 0, 0, 0], [0, 0, 0, 0]], "v": np.eye(2)},
         {"out": [[3/4, 1/4]]},
         {"multiplied by √d": {"out": [shares(81, 1)]}}),
    Case("K12", "a scale of 1 replaces the default",
         {"q": [[LN3, 0, 0, 0]], "k": [[1, 0, 0, 0], [0, 0, 0, 0]], "v": np.eye(2), "scale": 1},
         {"out": [[3/4, 1/4]]},
         {"1/√d all the same": {"out": [shares(3 ** .5, 1)]}}),

    # --- K13 --------------------------------------------------------------------------------------------------
    Case("K13", "four query heads, two KV heads",
         {"q": np.zeros((4, 1, 1)), "k": np.zeros((2, 1, 1)), "v": np.reshape([10, 20], (2, 1, 1))},
         {"out": np.reshape([10, 10, 20, 20], (4, 1, 1))},
         {"KV heads tiled": {"out": np.reshape([10, 20, 10, 20], (4, 1, 1))}}),
    Case("K13", "eight query heads, two KV heads",
         {"q": np.zeros((8, 1, 1)), "k": np.zeros((2, 1, 1)), "v": np.reshape([10, 20], (2, 1, 1))},
         {"out": np.reshape([10] * 4 + [20] * 4, (8, 1, 1))},
         {"h // Hkv": {"out": np.reshape([10, 10, 20, 20, 10, 10, 20, 20], (8, 1, 1))}}),
    Case("K13", "as many KV heads as query heads",
         {"q": np.zeros((4, 1, 1)), "k": np.zeros((4, 1, 1)), "v": np.reshape([1, 2, 3, 4], (4, 1, 1))},
         {"out": np.reshape([1, 2, 3, 4], (4, 1, 1))},
         {"h // Hkv": {"out": np.reshape([1, 1, 1, 1], (4, 1, 1))}}),
    Case("K13", "keys too belong to the group",
         {"q": np.ones((4, 1, 1)), "k": [[[LN3], [0]], [[0], [LN3]]], "v": [[[4], [8]]] * 2,
          "dout": np.ones((4, 1, 1))},
         {"out": np.reshape([5, 5, 7, 7], (4, 1, 1)), "dq": np.reshape([-1, -1, 1, 1], (4, 1, 1)) * 3/4 * LN3,
          "dk": [[[-3/2], [3/2]]] * 2, "dv": [[[3/2], [1/2]], [[1/2], [3/2]]]},
         {"KV heads tiled": {"out": np.reshape([5, 7, 5, 7], (4, 1, 1))}}),
    Case("K13", "dV is the sum over the group",
         {"q": np.zeros((4, 1, 1)), "k": np.zeros((2, 1, 1)), "v": np.ones((2, 1, 1)),
          "dout": np.reshape([1, 2, 3, 4], (4, 1, 1))},
         {"dv": np.reshape([3, 7], (2, 1, 1))},
         {"KV heads tiled": {"dv": np.reshape([4, 6], (2, 1, 1))}, "the last head": {"dv": [[[2]], [[4]]]}}),
    Case("K13", "dK is the sum over the group",
         {"q": np.reshape([1, 2, 3], (3, 1, 1)), "k": np.zeros((1, 2, 1)), "v": [[[4], [0]]], "scale": 1,
          "dout": np.ones((3, 1, 1))},
         {"dk": [[[6], [-6]]], "dv": [[[3/2], [3/2]]]},
         {"the last head": {"dk": [[[3], [-3]]]}}),
    Case("K13", "the causal limit counts rows, not rows of a group",
         {"q": np.zeros((4, 2, 1)), "k": np.zeros((2, 2, 1)), "v": [[[10], [30]], [[20], [40]]], "causal": True},
         {"out": [[[10], [20]], [[10], [20]], [[20], [30]], [[20], [30]]]},
         {"rows divided by the group": {"out": [[[10], [10]], [[10], [10]], [[20], [20]], [[20], [20]]]}}),
    Refused("K13", "three query heads, two KV heads",
            {"q": np.zeros((3, 1, 1)), "k": np.zeros((2, 1, 1)), "v": np.zeros((2, 1, 1))}, ValueError,
            ("3", "2", "heads")),

    # --- K14 --------------------------------------------------------------------------------------------------
    Case("K14", "it is a natural logarithm",
         probe(1, 4),
         {"lse": [LN4]},
         {"base 2": {"lse": [2]}, "the sum itself": {"lse": [4]}}),
    Case("K14", "it holds the maximum, and the scale once",
         {"q": [2], "k": [3, 3], "v": [1, 1], "scale": .5},
         {"lse": [3 + LN2]},
         {"without the maximum": {"lse": [LN2]}, "scaled twice": {"lse": [3/2 + LN2]}}),
    Case("K14", "packed: one number per head and token",
         {"q": np.zeros((2, 4, 1)), "k": np.zeros((2, 4, 1)), "v": np.zeros((2, 4, 1)),
          "cu_seqlens_q": [0, 3, 4], "cu_seqlens_k": [0, 3, 4]},
         {"lse": [[LN3, LN3, LN3, 0]] * 2}),
    Case("K14", "it holds bias and ALiBi",
         {"q": [0], "k": [0, 0], "v": [0, 0], "bias": np.array([LN4, LN3]), "alibi_slopes": np.array([LN2])},
         {"lse": [LN5]},
         {"without the bias": {"lse": [log(3/2)]}, "without ALiBi": {"lse": [log(7)]}}),

    # --- K15 --------------------------------------------------------------------------------------------------
    Merge("K15", "weights 1 and 3", [(1, 0), (3, LN3)], (5/2, LN4),
          {"base-2 lse taken for natural": (shares(1, 3 ** (1 / LN2))[0] + 3 * shares(1, 3 ** (1 / LN2))[1], LN4)}),
    Merge("K15", "three parts, one of them empty", [(1, 0), (0, -INF), (3, LN3), (-1, LN4)], (3/4, log(8))),
    Merge("K15", "an empty part on the right", [(7, -3), (1e30, -INF)], (7, -3)),
    Merge("K15", "an empty part on the left", [(1e30, -INF), (7, -3)], (7, -3)),
    Merge("K15", "an empty part that holds NaN", [(NAN, -INF), (7, -3), (NAN, -INF)], (7, -3)),
    Merge("K15", "nothing but empty parts", [(5, -INF), (NAN, -INF)], (0, -INF), {"0/0": (NAN, NAN)}),
    Merge("K15", "a sink beside two parts counts once", [(2, LN2), (0, LN2), (6, LN4)], (3.5, log(8)),
          {"counted twice": (2.8, log(10))}),
    Merge("K15", "far apart", [(7, -1000), (3, 1000)], (3, 1000)),

    # --- K16 --------------------------------------------------------------------------------------------------
    Case("K16", "one key to the left",
         probe(5, 5, causal=True, window=(1, 0)),
         {"out": [equal(1, of=5)] + [equal(2, of=5, start=i) for i in range(4)]},
         {"one key too many": {"out": [equal(min(i + 1, 3), of=5, start=max(i - 2, 0)) for i in range(5)]},
          "one too few": {"out": np.eye(5)}}),
    Case("K16", "the same without saying causal",
         probe(5, 5, window=(1, 0)),
         {"out": [equal(1, of=5)] + [equal(2, of=5, start=i) for i in range(4)]}),
    Case("K16", "wide to the left: plain causal",
         probe(6, 6, window=(5, 0)),
         {"out": [equal(i + 1, of=6) for i in range(6)]}),
    Case("K16", "unlimited to the left: plain causal",
         probe(6, 6, window=(-1, 0)),
         {"out": [equal(i + 1, of=6) for i in range(6)]}),
    Case("K16", "nothing to either side: O = V",
         probe(6, 6, window=(0, 0)),
         {"out": np.eye(6)}),
    Case("K16", "one key to the right",
         probe(4, 4, window=(0, 1)),
         {"out": [equal(2, of=4, start=i) for i in range(3)] + [equal(1, of=4, start=3)]},
         {"right ignored": {"out": np.eye(4)}}),
    Case("K16", "causal cuts the right side off",
         probe(3, 3, causal=True, window=(1, 2)),
         {"out": [equal(1, of=3), equal(2, of=3), equal(2, of=3, start=1)]},
         {"causal forgotten": {"out": [equal(3, of=3), equal(3, of=3), equal(2, of=3, start=1)]}}),
    Case("K16", "aligned at the bottom right",
         probe(2, 5, window=(1, 0)),
         {"out": [equal(2, of=5, start=2), equal(2, of=5, start=3)]},
         {"top-left": {"out": [equal(1, of=5), equal(2, of=5)]}}),
    Case("K16", "far wider than the sequence",
         {"q": [LN3] * 3, "k": [1, 0], "v": np.eye(2), "window": (2 ** 63 - 1, 2 ** 63 - 1)},
         {"out": [[3/4, 1/4]] * 3, "lse": [LN4] * 3},
         {"the position wraps": {"out": [[1/2, 1/2]] * 3}}),
    Twins("K16", "a window of all keys to the left is causal",
          {"q": uniform(6, 4, seed=1), "k": uniform(6, 4, seed=2), "v": uniform(6, 4, seed=3), "causal": True,
           "dout": uniform(6, 4, seed=4)},
          {"causal": False, "window": (5, 0)}),

    # --- K17 --------------------------------------------------------------------------------------------------
    Case("K17", "capped before masked",
         {"q": [5], "k": [1, 1], "v": [1, 2], "scale": 1, "softcap": 1, "mask": bits("10")},
         {"out": [1], "lse": [tanh(5)]},
         {"the hidden key becomes −cap": {"out": [1 + shares(exp(tanh(5)), exp(-1))[1]]}}),
    Case("K17", "cap·tanh(s/cap)",
         {"q": [2], "k": [1, 0], "v": np.eye(2), "scale": 1, "softcap": 2},
         {"out": [shares(exp(2 * tanh(1)), 1)]},
         {"cap·tanh(s)": {"out": [shares(exp(2 * tanh(2)), 1)]}, "tanh(s/cap)": {"out": [shares(exp(tanh(1)), 1)]}}),
    Case("K17", "scaled before capped",
         {"q": [4], "k": [1], "v": [1], "scale": .5, "softcap": 2},
         {"lse": [2 * tanh(1)]},
         {"capped before scaled": {"lse": [tanh(2)]}}),
    Case("K17", "capped before the bias is added",
         {"q": [2], "k": [1], "v": [1], "scale": 1, "softcap": 2, "bias": np.array([.5])},
         {"lse": [2 * tanh(1) + .5]},
         {"bias capped too": {"lse": [2 * tanh(1.25)]}}),
    Case("K17", "0 is off",
         {"q": [LN3], "k": [1, 0], "v": np.eye(2), "softcap": 0.0},
         {"out": [[3/4, 1/4]]}),
    Case("K17", "backward passes through the tanh",
         {"q": [2], "k": [1, 0], "v": [1, 0], "scale": 1, "softcap": 2, "dout": [1]},
         {"dq": [math.prod(shares(exp(2 * tanh(1)), 1)) * (1 - tanh(1) ** 2)],
          "dk": [2 * math.prod(shares(exp(2 * tanh(1)), 1)) * (1 - tanh(1) ** 2),
                 -2 * math.prod(shares(exp(2 * tanh(1)), 1))]},
         {"1 − tanh² forgotten": {"dq": [math.prod(shares(exp(2 * tanh(1)), 1))]}}),

    # --- K18 --------------------------------------------------------------------------------------------------
    Case("K18", "ALiBi counts the distance to either side",
         probe(3, 3, alibi_slopes=np.array([1.0])),
         {"out": [shares(1, exp(-1), exp(-2)), shares(exp(-1), 1, exp(-1)), shares(exp(-2), exp(-1), 1)]},
         {"slope·column": {"out": [shares(exp(-2), exp(-1), 1)] * 3}}),
    Case("K18", "ALiBi is aligned at the bottom right",
         probe(1, 3, causal=True, alibi_slopes=np.array([1.0])),
         {"out": [shares(exp(-2), exp(-1), 1)]},
         {"no offset": {"out": [shares(1, exp(-1), exp(-2))]}}),
    Case("K18", "ALiBi with causal",
         probe(2, 2, causal=True, alibi_slopes=np.array([1.0])),
         {"out": [[1, 0], shares(exp(-1), 1)]}),
    Case("K18", "ALiBi with a slope for each batch entry and head",
         {"q": np.zeros((2, 2, 1, 2)), "k": np.zeros((2, 2, 2, 2)), "v": np.broadcast_to(np.eye(2), (2, 2, 2, 2)),
          "alibi_slopes": np.array([[0, LN2], [LN3, LN4]])},
         {"out": [[[[1/2, 1/2]], [[1/3, 2/3]]], [[[1/4, 3/4]], [[1/5, 4/5]]]]},
         {"the first row for all": {"out": [[[[1/2, 1/2]], [[1/3, 2/3]]]] * 2}}),
    Case("K18", "ALiBi with a slope for each head",
         {"q": np.zeros((2, 2, 1, 2)), "k": np.zeros((2, 2, 2, 2)), "v": np.broadcast_to(np.eye(2), (2, 2, 2, 2)),
          "alibi_slopes": np.array([0, LN2])},
         {"out": [[[[1/2, 1/2]], [[1/3, 2/3]]]] * 2}),
    Case("K18", "packed: a slope for each sequence and head",
         {"q": np.zeros((1, 2, 2)), "k": np.zeros((1, 4, 2)), "v": np.tile(np.eye(2), (2, 1))[None],
          "alibi_slopes": np.array([[LN2], [LN3]]), "cu_seqlens_q": [0, 1, 2], "cu_seqlens_k": [0, 2, 4]},
         {"out": [[[1/3, 2/3], [1/4, 3/4]]]}),
    Case("K18", "the gradient of a broadcast bias is a sum",
         {"q": np.zeros((2, 2, 1, 1)), "k": np.zeros((2, 2, 2, 1)), "bias": np.zeros((1, 1, 1, 2)),
          "v": np.broadcast_to([[1.], [0]], (2, 2, 2, 1)), "dout": np.reshape([1, 2, 3, 4], (2, 2, 1, 1))},
         {"dbias": [[[[5/2, -5/2]]]]},
         {"the last one": {"dbias": [[[[1, -1]]]]}}),
    Case("K18", "the gradient of a bias with a batch axis",
         {"q": np.zeros((2, 2, 1, 1)), "k": np.zeros((2, 2, 2, 1)), "bias": np.zeros((2, 1, 1, 2)),
          "v": np.broadcast_to([[1.], [0]], (2, 2, 2, 1)), "dout": np.reshape([1, 2, 3, 4], (2, 2, 1, 1))},
         {"dbias": [[[[3/4, -3/4]]], [[[7/4, -7/4]]]]}),
    Case("K18", "the gradient of a bias with keys as its only axis",
         {"q": np.zeros((2, 2, 1, 1)), "k": np.zeros((2, 2, 2, 1)), "bias": np.zeros(2),
          "v": np.broadcast_to([[1.], [0]], (2, 2, 2, 1)), "dout": np.reshape([1, 2, 3, 4], (2, 2, 1, 1))},
         {"dbias": [5/2, -5/2]}),
    Twins("K18", "ALiBi is a bias",
          {"q": uniform(4, 3, seed=1), "k": uniform(6, 3, seed=2), "v": uniform(6, 2, seed=3),
           "dout": uniform(4, 2, seed=4), "alibi_slopes": np.array([.5])},
          {"alibi_slopes": None, "bias": -.5 * abs(np.arange(4)[:, None] + 2 - np.arange(6))}),

    # --- K19 --------------------------------------------------------------------------------------------------
    Case("K19", "a boolean mask: True is visible",
         probe(1, 3, mask=bits("101")),
         {"out": [[1/2, 0, 1/2]]},
         {"True is hidden": {"out": [[0, 1, 0]]}}),
    Case("K19", "its additive twin",
         probe(1, 3, mask=np.array([0, -INF, 0])),
         {"out": [[1/2, 0, 1/2]]}),
    Case("K19", "a float mask is added",
         probe(1, 2, mask=np.array([[1.0, 0]])),
         {"out": [shares(exp(1), 1)]},
         {"taken for a boolean": {"out": [[1, 0]]}}),
    Case("K19", "a boolean mask and causal intersect",
         probe(3, 3, causal=True, mask=bits("111", "011", "101")),
         {"out": [[1, 0, 0], [0, 1, 0], [1/2, 0, 1/2]]},
         {"causal dropped": {"out": [equal(3, of=3), equal(2, of=3, start=1), [1/2, 0, 1/2]]}}),
    Case("K19", "the smallest finite number everywhere hides nothing",
         flat(n=1, v=[1, 5], mask=np.array([[SMALLEST, SMALLEST]])),
         {"out": [3], "lse": [SMALLEST]},
         {"taken for an empty row": {"out": [0]}}),
    Case("K19", "a mask (1, 1, 1, Nk)",
         probe(2, 3, mask=bits("011").reshape(1, 1, 1, 3)),
         {"out": [[0, 1/2, 1/2]] * 2}),
    Case("K19", "a mask that differs between query heads of one KV head",
         {"q": np.zeros((2, 1, 1)), "k": np.zeros((1, 2, 1)), "v": [[[1], [3]]],
          "mask": np.array([[[True, False]], [[True, True]]])},
         {"out": [[[1]], [[2]]]}),
    Case("K19", "mask and bias together: no gradient for the mask, one for the bias",
         {"q": [0], "k": [0, 0, 0], "v": [1, 0, 5], "mask": np.array([0, LN3, -INF]), "bias": np.array([LN3, 0, 0]),
          "dout": [1]},
         {"out": [1/2], "dbias": [1/4, -1/4, 0]}),
    Refused("K19", "a mask made for a longer sequence",
            {**flat(v=[1] * 5), "mask": np.ones((8, 8), bool)}, ValueError, ("mask", "(8, 8)", "(1, 1, 5, 5)")),
    Refused("K19", "a mask with more keys than there are",
            {**flat(v=[1] * 5), "mask": np.ones((5, 6), bool)}, ValueError, ("mask", "(5, 6)", "(1, 1, 5, 5)")),
    Refused("K19", "a mask of integers",
            {**flat(v=[1] * 2), "mask": np.ones((2, 2), int)}, TypeError, ("mask", "int64")),

    # --- K20 --------------------------------------------------------------------------------------------------
    *(Case("K20", f"slots past the length: {what}",
           {"q": [0], "k": [0, 0, bad_k, bad_k], "v": [2, 4, bad_v, bad_v], "mask": bits("1100"), "dout": [1]},
           {"out": [3], "lse": [LN2], "dq": [0], "dk": [0, 0, 0, 0], "dv": [1/2, 1/2, 0, 0]},
           {"0·NaN": {"out": [NAN]}})
      for what, bad_k, bad_v in (("NaN in K and V", NAN, NAN), ("NaN in K", NAN, 7), ("NaN in V", 7, NAN),
                                 ("inf in K and V", INF, -INF), ("nothing", 7, 7))),
    Case("K20", "a hidden key that is NaN",
         {"q": [1], "k": [1, NAN], "v": [1, NAN], "scale": 1, "mask": bits("10")},
         {"out": [1], "lse": [1]}),
    Case("K20", "the same with an additive mask",
         {"q": [1], "k": [1, NAN], "v": [1, NAN], "scale": 1, "mask": np.array([[0, -INF]])},
         {"out": [1], "lse": [1]},
         {"NaN − inf": {"out": [NAN]}}),
    Case("K20", "keys that are outside the window of every query",
         {"q": [0, 0], "k": [NAN, NAN, 0, 0, 0], "v": [NAN, INF, 1, 3, 5], "window": (1, 0), "dout": [1, 1]},
         {"out": [2, 4], "dq": [0, 0], "dv": [0, 0, 1/2, 1, 1/2]}),
    Case("K20", "a query that sees no key",
         {"q": [NAN, 0], "k": [0, LN3], "v": [1, 3], "mask": bits("00", "11"), "dout": [NAN, 1]},
         {"out": [0, 2], "dq": [0, LN3/2], "dk": [0, 0], "dv": [1/2, 1/2]}),
    Case("K20", "packed: NaN stays in its own sequence",
         {"q": [0, 0, 0, 1], "k": [0, 0, 0, NAN], "v": [1, 2, 3, NAN], "cu_seqlens_q": [0, 3, 4],
          "cu_seqlens_k": [0, 3, 4], "dout": [1, 1, 1, 0]},
         {"out": [2, 2, 2, NAN], "dv": [1, 1, 1, NAN]}),

    # --- K24 --------------------------------------------------------------------------------------------------
    Case("K24", "every gradient of a small call",
         {"q": [[1, 0, 0, 0]], "k": [[2 * LN3, 0, 0, 0], [0, 0, 0, 0]], "v": [1, 0], "dout": [1]},
         {"out": [3/4], "dq": [[3/16 * LN3, 0, 0, 0]], "dk": [[3/32, 0, 0, 0], [-3/32, 0, 0, 0]],
          "dv": [3/4, 1/4]},
         {"scale forgotten in dK": {"dk": [[3/16, 0, 0, 0], [-3/16, 0, 0, 0]]}}),
    Case("K24", "dV without causal",
         flat(v=[1, 2], dout=[1, 1]),
         {"dv": [1, 1]},
         {"causal all the same": {"dv": [3/2, 1/2]}}),
    Case("K24", "dV with causal",
         flat(v=[1, 2], dout=[1, 1], causal=True),
         {"dv": [3/2, 1/2]},
         {"causal forgotten": {"dv": [1, 1]}}),
    Case("K24", "packed: dV without causal",
         flat(v=[1, 2], dout=[1, 1], cu_seqlens_q=[0, 2], cu_seqlens_k=[0, 2]),
         {"dv": [1, 1]}),
    Case("K24", "one query and one key",
         {"q": [2], "k": [3], "v": [4], "dout": [5]},
         {"out": [4], "dq": [0], "dk": [0], "dv": [5]}),
    Case("K24", "the ragged tail is left out of the sums",
         {"q": [1], "k": [-30] * 3, "v": [1, 2, 3], "scale": 1, "dout": [1]},
         {"dq": [0], "dk": [-1/3, 0, 1/3], "dv": [1/3, 1/3, 1/3]}, {}, WIDE),
    Case("K24", "bias, causal and a ragged tail at once",
         flat(v=[1, 0, 0, 0, 0], dout=[1] * 5, causal=True, bias=np.log(np.arange(1.0, 6))),
         {"out": [1 / t for t in TRIANGLE], "dq": [0] * 5, "dk": [0] * 5,
          "dv": [sum((j + 1) / t for t in TRIANGLE[j:]) for j in range(5)],
          "dbias": [sum((j + 1) / t * ((j == 0) - 1 / t) for t in TRIANGLE[j:]) for j in range(5)]}),
    Twins("K24", "a repeat is the same bit for bit",
          {"q": uniform(8, 3, seed=1), "k": uniform(8, 3, seed=2), "v": uniform(8, 3, seed=3),
           "dout": uniform(8, 3, seed=4), "causal": True}, {}, bitwise=True),

    # --- K25 --------------------------------------------------------------------------------------------------
    Case("K25", "an empty row gives nothing to dV",
         flat(v=[1, 3], mask=bits("11", "00"), dout=[1, 5]),
         {"out": [2, 0], "dq": [0, 0], "dk": [0, 0], "dv": [1/2, 1/2]},
         {"mean over all keys": {"dv": [3, 3]}}),
    Case("K25", "a gradient through lse",
         {"q": [1], "k": [LN3, 0], "v": [1, 2], "scale": 1, "dout": [0], "dlse": [1]},
         {"dq": [3/4 * LN3], "dk": [3/4, 1/4], "dv": [0, 0]},
         {"silently ignored": {"dq": [0], "dk": [0, 0]}}),
    Case("K25", "a gradient through the lse of an empty row",
         {"q": [1, 1], "k": [LN3, 0], "v": [1, 2], "scale": 1, "dout": [0, 0], "dlse": [1, 1],
          "mask": bits("00", "11")},
         {"dq": [0, 3/4 * LN3], "dk": [3/4, 1/4], "dv": [0, 0]}),

    # --- K26 --------------------------------------------------------------------------------------------------
    Twins("K26", "a NumPy float64 as scale widens nothing",
          {"q": uniform(8, 4, seed=1), "k": uniform(8, 4, seed=2), "v": uniform(8, 4, seed=3),
           "dout": uniform(8, 4, seed=4), "scale": .5},
          {"scale": np.float64(.5)}, bitwise=True),
    Case("K26", "64 weights of which 63 are tiny",
         {"q": [1], "k": [0] + [-8] * 63, "v": [1] * 64, "scale": 1},
         {"out": [1], "lse": [log(1 + 63 * exp(-8))]},
         {"a sum in float16": {"out": [.979]}}),
    Case("K26", "float64 has no float32 inside",
         {"q": [1], "k": [2.1, 0], "v": [1, 0]},
         {"out": [shares(exp(2.1), 1)[0]]},
         {"2.1 in float32": {"out": [shares(exp(float(np.float32(2.1))), 1)[0]]}}, ("float64",)),

    # --- K31 --------------------------------------------------------------------------------------------------
    Case("K31", "one more logit in the denominator",
         flat(n=1, v=[2, 6], sink=np.array([LN2])),
         {"out": [2], "lse": [LN4]},
         {"no sink": {"out": [4]}, "counted twice": {"out": [4/3]}}),
    Case("K31", "a sink that takes nearly all",
         flat(n=1, v=[4, 4], sink=np.array([10.0])),
         {"out": [8 / (2 + exp(10))], "lse": [log(2 + exp(10))]}, {}, WIDE),
    Case("K31", "a row with no key has lse = sink",
         flat(v=[2, 6], sink=np.array([LN2]), mask=bits("00", "11")),
         {"out": [0, 2], "lse": [LN2, LN4]}),
    Case("K31", "a sink for each head, untouched by the scale",
         {"q": np.zeros((2, 1, 1)), "k": np.zeros((2, 1, 1)), "v": [[[5]], [[5]]], "scale": .5,
          "sink": np.array([0, LN4])},
         {"out": [[[5/2]], [[1]]]},
         {"scaled": {"out": [[[5/2]], [[5/3]]]}}),
    Case("K31", "its gradient, and those of the others",
         {"q": [0], "k": [3], "v": [4], "scale": 1, "sink": np.array([0.0]), "dout": [1]},
         {"out": [2], "dq": [3], "dk": [0], "dv": [1/2], "dsink": [-1]},
         {"no gradient": {"dsink": [0]}}),
    Case("K31", "its gradient through lse, also in a row with no key",
         flat(n=2, v=[4], sink=np.array([0.0]), dout=[0, 0], dlse=[1, 1], mask=bits("1", "0")),
         {"dsink": [3/2], "dv": [0], "dq": [0, 0]}),
    Case("K31", "packed: it counts in every sequence",
         flat(v=[2, 4], sink=np.array([0.0]), dout=[1, 1], cu_seqlens_q=[0, 1, 2], cu_seqlens_k=[0, 1, 2]),
         {"out": [1, 2], "lse": [LN2, LN2], "dsink": [-3/2]}),
    Case("K31", "a sink of minus infinity is none",
         flat(n=1, v=[2, 6], sink=np.array([-INF]), dout=[1]),
         {"out": [4], "lse": [LN2], "dsink": [0]}),
]


def kinds_covered():
    """How many cases there are of each kind: {code: number}, in the order of KINDS."""
    found = Counter(case.kind for case in CASES)
    return {kind: found[kind] for kind in KINDS if found[kind]}


def summary():
    """The table that `python tests/cases.py` prints."""
    covered = kinds_covered()
    lines = [f"{len(CASES)} cases of {len(covered)} kinds, {len(ELSEWHERE)} kinds in other tests, "
             f"{len(KINDS) - len(covered) - len(ELSEWHERE)} kinds not covered"]
    for kind, text in KINDS.items():
        why = f": {NOT_COVERED[kind]}" if kind in NOT_COVERED else ""
        lines.append(f"  {kind}  {covered.get(kind, '-'):>3}  {text}{why}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
