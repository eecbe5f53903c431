"""Tokens per second and memory of a training step, with each attention in turn.

All share one model, so weights, optimizer and tokens are the same. A turn is a few steps, by the clock, with the GPU
idle before and after. A step comes first that does not count: large products make a GPU slow down for a while, standard
attention lets it recover, and nobody shall gain or lose by who came before. For the same reason each round has another
order. The first round does not count.
"""

import gc
import statistics
import time
from functools import partial

import torch

from cuda_kernels.bench.clock import order
from cuda_kernels.train import data
from cuda_kernels.train.attentions import ATTENTIONS
from cuda_kernels.train.sizes import A_TURN, VOCABULARY, WARM_UP
from cuda_kernels.train.trainer import Trainer


def measured(size, device, rounds, step=lambda what: None):
    """{"size", "attentions": {name: {"ms" of a step, "spread", "tokens_per_s", "mb" (MiB, at the peak)} or "why"}}."""
    trainer, tokens = Trainer(size, VOCABULARY, device), data.random(size, VOCABULARY, device)
    found, turns = {}, {}
    for name, attention in ATTENTIONS.items():
        step(f"{size.told}: {name}, warming up")
        try:
            found[name] = {"mb": warmed_up(trainer, tokens, attention)}
        except RuntimeError as problem:                             # no memory, or torch refuses
            found[name] = {"why": short(str(problem))}
        if "why" in found[name]:
            trainer.optimizer.zero_grad()
            release(device)
        else:
            turns[name] = partial(several, trainer, tokens, attention)
    step(f"{size.told}: {rounds} rounds")
    for name, times in zip(turns, timed(list(turns.values()), rounds, device), strict=True):
        low, middle, high = statistics.quantiles(times, n=4)
        found[name] |= {"ms": 1e3 * middle / A_TURN, "spread": (high - low) / middle,
                        "tokens_per_s": A_TURN * size.tokens / middle}
    return {"size": size._asdict(), "attentions": found}


def warmed_up(trainer, tokens, attention):
    """Make a few steps; what torch had given at the peak of the last one, in MiB. None on a CPU."""
    for _ in range(WARM_UP):
        synchronize(trainer.device)
        if trainer.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        trainer.step(tokens, attention)
    synchronize(trainer.device)
    return torch.cuda.max_memory_allocated() / 2**20 if trainer.device == "cuda" else None


def timed(calls, rounds, device):
    """[seconds of each round] of each call."""
    found = [[] for _ in calls]
    for turn in range(rounds + 1):
        for n in order(len(calls), turn):
            calls[n](1)
            synchronize(device)
            start = time.perf_counter()
            calls[n](A_TURN)
            synchronize(device)
            found[n].append(time.perf_counter() - start)
    return [times[1:] for times in found]


def several(trainer, tokens, attention, steps):
    """So many steps."""
    for _ in range(steps):
        trainer.step(tokens, attention)


def short(problem):
    """Its first line, without torch's advice: "CUDA out of memory. Tried to allocate 8.00 GiB."."""
    return (problem.splitlines() or ["no reason given"])[0].partition(" GPU ")[0]


def synchronize(device):
    """Wait for the GPU, if there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def release(device):
    """Give memory back that nobody uses."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
