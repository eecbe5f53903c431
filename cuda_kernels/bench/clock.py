"""How long calls take and what memory they need: on a GPU by events and torch's allocator, elsewhere by the clock.

Short kernels are over before the host has asked for the next one. Then an event after each of them would measure the
host. So the GPU is kept waiting first, until the host is ahead by many calls; these then run one right after another.
It waits for about 10 ms. That suffices for 200 calls if the host needs 50 µs for one, events included, and for 40 if it
needs 250 µs, as it may where torch walks through a graph. While a call takes the GPU longer than that, the host stays
ahead in any case.
"""

import random
import time
from itertools import islice

import torch

WAIT_CYCLES = 20_000_000                                            # of the GPU: about 10 ms
AT_ONCE = 200                                                       # calls that the host asks for meanwhile


class Gpu:
    """The current CUDA device."""

    name = "cuda"

    def __init__(self, wait_cycles=WAIT_CYCLES, at_once=AT_ONCE):
        self.wait_cycles, self.at_once = wait_cycles, at_once

    def times(self, calls, rounds):
        """[milliseconds of each round] of each call. In a round everybody has a turn, in a new order."""
        found = [[] for _ in calls]
        turns, at_once = iter(range(rounds)), max(1, self.at_once // len(calls))
        while batch := list(islice(turns, at_once)):
            marks = []
            torch.cuda._sleep(self.wait_cycles)
            for turn in batch:
                for n in order(len(calls), turn):
                    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    start.record()
                    calls[n]()
                    end.record()
                    marks.append((n, start, end))
            torch.cuda.synchronize()
            for n, start, end in marks:
                found[n].append(start.elapsed_time(end))
        return found

    def with_memory(self, call):
        """(what the call returns, bytes that it needed at its peak beyond what was there; its results included)."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        answer = call()
        torch.cuda.synchronize()
        return answer, torch.cuda.max_memory_allocated() - before

    def free(self):
        """Bytes that could be had now."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def synchronize(self):
        torch.cuda.synchronize()


class Host:
    """The CPU, where the same code can be tried out: memory is not seen."""

    name = "cpu"

    def __init__(self, at_once=1):
        """Nothing is asked for before it is its turn."""

    def times(self, calls, rounds):
        found = [[] for _ in calls]
        for turn in range(rounds):
            for n in order(len(calls), turn):
                start = time.perf_counter()
                calls[n]()
                found[n].append(1e3 * (time.perf_counter() - start))
        return found

    def with_memory(self, call):
        return call(), None

    def free(self):
        return 2**33

    def synchronize(self):
        """Nothing runs behind our back."""


def order(number, turn):
    """Whose turn it is, in this round: shuffled, so that nobody always comes after the same one; alike in every run."""
    return random.Random(turn).sample(range(number), number)


def host_microseconds(device, calls, number, rounds=7):
    """[microseconds that the host is busy with a call] of each: `number` of them in a row, none waited for; the fastest
    of so many rounds."""
    best = [float("inf")] * len(calls)
    for turn in range(rounds):
        for n in order(len(calls), turn):
            call = calls[n]
            device.synchronize()
            start = time.perf_counter()
            for _ in range(number):
                call()
            best[n] = min(best[n], 1e6 * (time.perf_counter() - start) / number)
    device.synchronize()
    return best
