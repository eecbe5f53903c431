"""Warps in a block: one tile of queries meets one of keys, cut by keys (split-K) or by queries (split-Q).

Dao, arXiv 2307.08691, section 3.3, after the kernels `cuda_kernels/fa1_warps.py` and `fa2_warps.py`. | is a barrier:

    split-K     load Qi | scores, maximum of own keys | read maxima, P V of own keys, hand over | put together
    split-Q     load Kj, Vj | scores, P V of own queries | (the next tile)

The unit of time is one element that one thread reads from shared memory or writes there. Summed over the warps, the
table has what `cuda_kernels/counts.py` says of a pair of tiles, which the simulator's audit has counted.

Limits. Arithmetic, shuffles and memory outside of the block take no time. An element costs the same whoever reads it;
the hardware serves the 32 threads of a warp at once if they read one word, so it is kinder to "read maxima" than this
table. The warps do not stand in each other's way.
"""

from fa_ref.options import check_choice, check_whole
from fa_ref.schedule.model import Task, run
from fa_ref.scores import Rule

WARP = 32                                                               # threads


def schedule(split, *, br, bc, d, dv, warps, causal=False):
    """The Table of one pair of tiles. split: "split-K" or "split-Q"; br, bc: queries and keys of the tiles.

    A warp has br or bc divided by warps, rounded up, so the last ones may have less. causal: the pair at the bottom
    right, whose last query sees all bc keys. Raises ValueError for sizes below 1 and any other split, TypeError for
    sizes that are not whole.
    """
    check_choice("split", split, SPLITS)
    for name, size in {"br": br, "bc": bc, "d": d, "dv": dv, "warps": warps}.items():
        check_whole(name, size, 1)
    visible = Rule(br, bc, scale=1.0, causal=causal).visible(slice(0, br), slice(0, bc))
    phases = SPLITS[split](visible, d, dv, warps)

    tasks, before = [], {}                                              # what each warp waits for
    for phase in phases:                                                # from barrier to barrier
        for w in range(warps):
            for step, elements in phase.items():
                tasks.append(Task(f"{step}, warp {w}", f"warp {w}", elements[w], before.get(w, ())))
                before[w] = (tasks[-1].what,)
        met = tuple(name for names in before.values() for name in names)
        before = dict.fromkeys(range(warps), met)
    return run(tasks, {f"warp {w}": 1 for w in range(warps)})


def split_K(visible, d, dv, warps):
    """FlashAttention-1: [{step: elements for each warp}], a barrier between any two."""
    br, _ = visible.shape
    seen = [int(part.sum()) for part in cut(visible.T, warps)]
    return [
        {"load": written(br * d, warps)},
        {"scores": [2 * d * n for n in seen], "write maxima": [br] * warps},
        {"read maxima": [br * WARP * warps] * warps, "P V": [dv * n for n in seen],
         "hand over": [br * (1 + dv)] * warps},                         # the sum and the output of own keys
        {"put together": [len(rows) * warps * (WARP + WARP + dv) for rows in cut(visible, warps)]},
    ]


def split_Q(visible, d, dv, warps):
    """FlashAttention-2, likewise."""
    _, bc = visible.shape
    seen = [int(part.sum()) for part in cut(visible, warps)]
    load = [k + v for k, v in zip(written(bc * d, warps), written(bc * dv, warps), strict=True)]
    return [{"load": load}, {"scores": [2 * d * n for n in seen], "P V": [dv * n for n in seen]}]


SPLITS = {"split-K": split_K, "split-Q": split_Q}


def cut(rows, warps):
    """Each warp's rows of it."""
    height = -(-len(rows) // warps)
    return [rows[w * height:(w + 1) * height] for w in range(warps)]


def written(elements, warps):
    """Of a thread-stride loop over so many elements, how many each warp's threads write."""
    rounds, left = divmod(elements, warps * WARP)
    return [rounds * WARP + min(max(left - w * WARP, 0), WARP) for w in range(warps)]
