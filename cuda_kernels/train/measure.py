"""Every number, as plain dictionaries and lists: what is saved, judged and shown.

    on          the card, the day, the versions
    device      "cuda" or "cpu"
    speed       [of each size: see `speed`]
    curves      see `curves`
"""

import platform
from datetime import date

import torch

from cuda_kernels.bench import measure
from cuda_kernels.train import curves, speed
from cuda_kernels.train.attentions import ATTENTIONS


def everything(plan, device, step=lambda what: None, found=None):
    """All of it for a `sizes.Plan`, in a dictionary, `found` if given; step(what) is told before each part."""
    found = {} if found is None else found
    found |= {"on": where(device), "device": device, "speed": []}
    for size in plan.speed:
        found["speed"].append(speed.measured(size, device, plan.rounds, step))
        speed.release(device)
    found["curves"] = curves.measured(plan.curve, plan.steps, device, step)
    return found


def parts(plan):
    """How many times `everything` calls step."""
    return len(plan.speed) * (len(ATTENTIONS) + 1) + (len(ATTENTIONS) + 1) * min(plan.steps, curves.PARTS)


def where(device):
    """With what it was measured."""
    if device == "cuda":
        return measure.machine()
    return {"card": f"CPU ({platform.machine()})", "date": str(date.today()), "driver": "–", "torch": torch.__version__,
            "numba-cuda": "–"}
