"""Tokens per second and memory of a training step, with each attention in turn.

All share one model, so weights, optimizer and tokens are the same. A turn is a few steps, by the clock, with the GPU
idle before and after, and a step before them that does not count. Each has two turns in a round: the second ones come
in the opposite order, so that a GPU that slows down meanwhile favours nobody. The first round does not count.

Large products make a GPU slow down for a while, and standard attention, which waits for memory, lets it recover. Who
comes after it would gain: it has rounds of its own.
"""

import gc
import statistics
import time
from functools import partial

import torch

from cuda_kernels.train import data
from cuda_kernels.train.attentions import ATTENTIONS
from cuda_kernels.train.sizes import A_TURN, VOCABULARY, WARM_UP
from cuda_kernels.train.targets import PLAIN
from cuda_kernels.train.trainer import Trainer


def measured(size, device, rounds, step=lambda what: None):
    """{"size", "attentions": {name: {…} or {"why"}}}: what is known of a step with each attention, or why nothing is.

    "rounds_ms" milliseconds of a step in each round, "ms" their median, "tokens_per_s" of that, "mb" MiB at the peak,
    None on a CPU.
    """
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
    for group in together(turns):
        for name, times in zip(group, timed([turns[name] for name in group], rounds, device), strict=True):
            ms = statistics.median(times)
            found[name] |= {"rounds_ms": times, "ms": ms, "tokens_per_s": 1e3 * size.tokens / ms}
    return {"size": size._asdict(), "attentions": found}


def together(names):
    """Who takes turns with whom: [names of a group]. Standard attention is alone: see `targets.ratios`."""
    return [[name for name in names if (name == PLAIN) is alone] for alone in (False, True)]


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
    """[milliseconds of a step, in each round] of each call. A round goes through them forwards and then backwards."""
    found, there = [[] for _ in calls], range(len(calls))
    for _ in range(rounds + 1):
        seconds = [0.0 for _ in calls]
        for n in (*there, *reversed(there)):
            calls[n](1)
            synchronize(device)
            start = time.perf_counter()
            calls[n](A_TURN)
            synchronize(device)
            seconds[n] += time.perf_counter() - start
        for times, spent in zip(found, seconds, strict=True):
            times.append(1e3 * spent / (2 * A_TURN))
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
