"""What the measurements are held against: pure functions of what `measure.everything` returns.

Two curves in bfloat16 drift apart: a step's rounding errors are in the weights of all steps after it. How far they may,
standard attention in bfloat16 shows, by the rule of two errors (`fa_ref.testing.standard_16bit`). Each max is over
steps:

    max|ours − truth| ≤ 2 max|eager − truth| + 2 noise / √tokens,    noise = max|bfloat16(truth) − truth|

The last term is small. It stands for the rounding of logits to bfloat16, whatever the attention: about as much as that
of one token's loss. The loss of a step is a mean over its tokens, in which independent errors shrink by √tokens.
"""

import math
import statistics
from typing import NamedTuple

import numpy as np
from ml_dtypes import bfloat16

from cuda_kernels.bench.targets import NOT_MEASURED, Target
from cuda_kernels.train.sizes import Size

OURS, PEER, PLAIN, TRUTH = "ours", "flash", "eager", "float32"
LEAST = 1.0                                                         # tokens/s, to the peer's


class Verdict(NamedTuple):
    """Of a curve: how far it is from the truth, and how far it may be."""

    error: float
    allowed: float

    @property
    def holds(self):
        return self.error <= self.allowed


def two_errors(curve, plain, truth, tokens):
    """The Verdict on a curve; all three are losses of each step, tokens how many a step has. A NaN never holds."""
    curve, plain, truth = (np.asarray(x, dtype=np.float64) for x in (curve, plain, truth))
    noise = abs(truth.astype(bfloat16).astype(np.float64) - truth).max()
    allowed = 2 * abs(plain - truth).max() + 2 * noise / math.sqrt(tokens)
    return Verdict(float(abs(curve - truth).max()), float(allowed))


def verdict(curves, name=OURS):
    """The same for one of the runs of `curves.measured`."""
    losses = curves["losses"]
    return two_errors(losses[name], losses[PLAIN], losses[TRUTH], curves["size"]["tokens"])


def ratios(row, name=OURS, peer=PEER):
    """[how many times as many tokens/s as the peer, in each round] of a row of `speed.measured`.

    A GPU that is slow in a round is slow for both. Empty where either was not measured, and for standard attention,
    which has rounds of its own.
    """
    a, b = (row["attentions"].get(who, {}).get("rounds_ms", []) for who in (name, peer))
    return [y / x for x, y in zip(a, b, strict=True)] if a and b and PLAIN not in (name, peer) else []


def ratio(row, name=OURS, peer=PEER):
    """The median of these, or for standard attention the ratio of the medians; None where either was not measured."""
    if found := ratios(row, name, peer):
        return statistics.median(found)
    a, b = (row["attentions"].get(who, {}).get("ms") for who in (name, peer))
    return b / a if a and b else None


def quartiles(row, name=OURS, peer=PEER):
    """[the first, the third] of these; None where there are none."""
    found = ratios(row, name, peer)
    return statistics.quantiles(found, n=4)[::2] if found else None


def judged(record):
    """[Target] of a record of `measure.everything`: speed; the curves of ours and of those added; that it falls."""
    losses = record["curves"]["losses"]
    added = [name for name in losses if name not in (OURS, PEER, PLAIN, TRUTH)]
    return [fast(record), *(close(record["curves"], name) for name in (OURS, *added)), learned(losses[OURS])]


def fast(record):
    """Is a step with ours fast enough? On a CPU that is no question: there it is NumPy's loops."""
    what = f"at least {LEAST} × the tokens/s of torch {PEER}"
    if record["device"] == "cpu":
        return Target(what, f"{NOT_MEASURED} on a CPU", None)
    known = {Size(**row["size"]): ratio(row) for row in record["speed"] if "tokens_per_s" in row["attentions"][PEER]}
    if not known:
        return Target(what, NOT_MEASURED, None)
    speeds = {size: x or 0.0 for size, x in known.items()}          # what we cannot do counts as 0
    worst, enough = min(speeds, key=speeds.get), sum(x >= LEAST for x in speeds.values())
    told = f"{enough} of {len(speeds)}; least {speeds[worst]:.3f} × at {worst.told}"
    return Target(what, told, enough == len(speeds))


def close(curves, name=OURS):
    """Is a curve as near to float32's as the rule of two errors asks?"""
    found = verdict(curves, name)
    return Target(f"loss curve{'' if name == OURS else f' of {name}'}, by the rule of two errors",
                  f"at most {found.error:.1e} from float32, {found.allowed:.1e} allowed", found.holds)


def learned(losses):
    """Does the loss fall? The mean of the last tenth of the steps beside the first one."""
    what, last = "the loss falls", last_tenth(losses)
    if len(losses) < 2:
        return Target(what, NOT_MEASURED, None)
    return Target(what, f"from {losses[0]:.2f} to {last:.2f}, the mean of the last tenth", last < losses[0])


def last_tenth(losses):
    """The mean loss of the last tenth of the steps, at least one."""
    return statistics.fmean(losses[-max(1, len(losses) // 10):])
