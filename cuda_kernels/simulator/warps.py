"""Shuffles, votes and matches: what the lanes of a warp do together, with the hardware's meaning.

All lanes of the mask that exist and have not returned must come, each with the same mask. A shuffle computes the lane
to take a value from by PTX's rules: only the low five bits of the number count, and past the end of the warp `up` and
`down` give a lane its own value back. From a lane that is not there the hardware answers anything; here it is NaN.
"""

import numpy as np

from cuda_kernels.simulator.blocks import WARP
from cuda_kernels.simulator.meetings import Part

ALL = 0xFFFFFFFF
SHUFFLED = (int, float, np.int32, np.int64, np.float32, np.float64)     # what Numba can shuffle and match


class Warps:
    """The part of `cuda` that works on a warp; `block` and `laneid` are those of the running thread."""

    warpsize = WARP

    def together(self, operation, mask, value=None):
        """Meet the lanes of the mask; returns {lane: value}."""
        lane = self.block.running
        mask = int(mask) & ALL
        if not mask >> lane.lane & 1:
            raise ValueError(f"{operation}: {self.block.name(lane)} is lane {lane.lane} of its warp, which its own "
                             f"mask {mask:#010x} leaves out")
        values = self.block.meet(operation, Part(lane.warp, mask), value)
        return {number % WARP: brought for number, brought in values.items()}

    def syncwarp(self, mask=ALL):
        """Wait for the lanes of the mask; what they wrote before is seen after."""
        self.together("syncwarp", mask)

    # --- shuffles ---

    def shuffle(self, operation, mask, value, source):
        """The value of lane `source`."""
        if type(value) not in SHUFFLED:
            raise TypeError(f"{operation} takes 32- and 64-bit integers and floats, not {type(value).__name__}")
        values = self.together(operation, mask, value)
        if source in values:
            return values[source]
        if self.block.watch:
            self.block.watch.absent_lane(self.block, operation, source)
        return type(value)("nan") if isinstance(value, float | np.floating) else type(value)(-0x54545455)

    def shfl_sync(self, mask, value, src_lane):
        """The value of lane src_lane, modulo 32."""
        return self.shuffle("shfl_sync", mask, value, int(src_lane) % WARP)

    def shfl_up_sync(self, mask, value, delta):
        """The value of the lane `delta` below; the lowest keep their own."""
        source = self.laneid - int(delta) % WARP
        return self.shuffle("shfl_up_sync", mask, value, source if source >= 0 else self.laneid)

    def shfl_down_sync(self, mask, value, delta):
        """The value of the lane `delta` above; the highest keep their own."""
        source = self.laneid + int(delta) % WARP
        return self.shuffle("shfl_down_sync", mask, value, source if source < WARP else self.laneid)

    def shfl_xor_sync(self, mask, value, lane_mask):
        """The value of the lane whose number differs in these bits."""
        return self.shuffle("shfl_xor_sync", mask, value, self.laneid ^ int(lane_mask) % WARP)

    # --- votes ---

    def all_sync(self, mask, predicate):
        """True if it is true in every lane."""
        return all(self.together("all_sync", mask, bool(predicate)).values())

    def any_sync(self, mask, predicate):
        """True if it is true in some lane."""
        return any(self.together("any_sync", mask, bool(predicate)).values())

    def eq_sync(self, mask, predicate):
        """True if it is true in all lanes or in none."""
        return len(set(self.together("eq_sync", mask, bool(predicate)).values())) == 1

    def ballot_sync(self, mask, predicate):
        """One bit for each lane where it is true, as int32: all 32 lanes are −1."""
        return int32(bits(self.together("ballot_sync", mask, bool(predicate))))

    # --- matches ---

    def match_any_sync(self, mask, value):
        """One bit for each lane that brought the very same bits."""
        mine = as_bytes(value)
        values = self.together("match_any_sync", mask, mine)
        return int32(bits({lane: other == mine for lane, other in values.items()}))

    def match_all_sync(self, mask, value):
        """(mask, True) if all lanes brought the same bits, else (0, False)."""
        values = self.together("match_all_sync", mask, as_bytes(value))
        same = len(set(values.values())) == 1
        return int32(bits(dict.fromkeys(values, same))), same

    # --- who is there ---

    def activemask(self):
        """One bit for each lane that has not returned. (A GPU leaves out lanes that took another branch.)"""
        return np.uint32(self.block.alive[self.block.running.warp])

    def lanemask_lt(self):
        """One bit for each lane with a lower number."""
        return np.uint32((1 << self.laneid) - 1)


def bits(predicates):
    """{lane: true or false} as one number."""
    return sum(1 << lane for lane, true in predicates.items() if true)


def int32(number):
    """32 bits read as a signed integer, which is what Numba declares."""
    return np.uint32(number).astype(np.int32)


def as_bytes(value):
    """The bits of a value, so that NaN matches NaN, and 0.0 does not match −0.0."""
    if type(value) not in SHUFFLED:
        raise TypeError(f"matches take 32- and 64-bit integers and floats, not {type(value).__name__}")
    return np.asarray(value).tobytes()
