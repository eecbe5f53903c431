"""Shuffles, votes and matches mean in the simulator what they mean on a GPU."""

import numpy as np
import pytest
from numba import cuda

import simulator_kernels as kernels
from cuda_kernels import simulator
from simulator_kernels import line

ALL = 0xFFFFFFFF


def per_lane(function, threads=32, dtype=None, grid=1):
    """What function(cuda, number of the thread) returns in each thread."""
    out = [None] * threads

    @cuda.jit
    def kernel():
        out[cuda.threadIdx.x] = function(cuda, cuda.threadIdx.x)

    kernel[grid, threads]()
    return out


@pytest.mark.parametrize("threads", [32, 64, 70])
@pytest.mark.parametrize("n", [0, 1, 5, 31, 32, 33])
def test_shuffles_take_from_the_lane_that_ptx_says(n, threads):
    """PTX: five bits of the number count; out of range gives the lane its own value."""
    full = [t for t in range(threads) if t < threads // 32 * 32]

    def shuffled(name):
        def function(cuda, t):
            return getattr(cuda, name)(ALL, 100 + t, n)
        return [value - 100 for t, value in enumerate(per_lane(function, threads)) if t in full]

    low = n % 32
    assert shuffled("shfl_sync") == [t // 32 * 32 + low for t in full]
    assert shuffled("shfl_up_sync") == [t - low if t % 32 >= low else t for t in full]
    assert shuffled("shfl_down_sync") == [t + low if t % 32 + low < 32 else t for t in full]
    assert shuffled("shfl_xor_sync") == [t ^ low for t in full]


@pytest.mark.parametrize("value", [np.float32(0.1), np.float64(0.1), np.int32(-7), np.int64(2**40), 3, 0.25])
def test_shuffles_keep_bits_and_type(value):
    for got in per_lane(lambda cuda, t: cuda.shfl_xor_sync(ALL, value, 16)):
        assert type(got) is type(value) and got == value


@pytest.mark.parametrize("value", [np.float16(1), np.uint32(1), True, np.bool_(True), None])
def test_shuffles_refuse_what_numba_cannot_shuffle(value):
    with pytest.raises(TypeError, match="shfl_sync takes 32- and 64-bit"):
        per_lane(lambda cuda, t: cuda.shfl_sync(ALL, value, 0))


def test_halves_of_a_warp_work_apart():
    def function(cuda, t):
        mask = 0x0000FFFF if t < 16 else 0xFFFF0000
        total = t
        for step in (8, 4, 2, 1) if t < 16 else (1, 2, 4, 8):   # not even at the same operation at the same time
            total += cuda.shfl_xor_sync(mask, total, step)
        return total, cuda.ballot_sync(mask, t % 2)

    assert per_lane(function) == [(120, 0xAAAA)] * 16 + [(376, 0xAAAA0000 - 2**32)] * 16


def test_lanes_that_are_not_there():
    """A block of 6: all lanes may be named, but a value from lane 14 is undefined: NaN, and a finding."""
    def function(cuda, t):
        return cuda.shfl_xor_sync(ALL, np.float32(t), 8), cuda.shfl_down_sync(ALL, t, 1), cuda.shfl_up_sync(0x3F, t, 1)

    with simulator.audit() as a:
        got = per_lane(function, 6)
    assert np.isnan([x for x, _, _ in got]).all()
    assert [x for _, x, _ in got] == [1, 2, 3, 4, 5, -0x54545455]
    assert [x for _, _, x in got] == [0, 0, 1, 2, 3, 4]
    assert [(f.kind, f.array, f.count) for f in a.findings] == [
        ("absent lane", "shfl_xor_sync", 1)] * 6 + [("absent lane", "shfl_down_sync", 1)]


def test_a_lane_must_be_in_its_own_mask():
    with pytest.raises(ValueError, match="thread 4 is lane 4 of its warp, which its own mask 0x0000000f leaves out"):
        per_lane(lambda cuda, t: cuda.syncwarp(0xF))


@pytest.mark.parametrize("mask", [ALL, -1, 0xFF])
@pytest.mark.parametrize("truth", [lambda t: 0, lambda t: 1, lambda t: t == 3, lambda t: t % 2])
def test_votes(mask, truth):
    lanes = [t for t in range(32) if mask >> t & 1]
    true = [bool(truth(t)) for t in lanes]

    def function(cuda, t):
        if t in lanes:
            votes = (cuda.all_sync, cuda.any_sync, cuda.eq_sync, cuda.ballot_sync)
            return [vote(mask, truth(t)) for vote in votes]

    ballot = sum(1 << t for t in lanes if truth(t))
    signed = ballot - 2**32 if ballot >> 31 else ballot
    for t, got in enumerate(per_lane(function)):
        if t in lanes:
            assert got == [all(true), any(true), len(set(true)) == 1, signed] and type(got[3]) is np.int32


def test_matches():
    def function(cuda, t):
        return (cuda.match_any_sync(ALL, t % 3), cuda.match_all_sync(ALL, t % 3),
                cuda.match_all_sync(ALL, np.float32("nan")), cuda.match_any_sync(ALL, 0.0 if t < 31 else -0.0))

    for t, (some, different, same, zeros) in enumerate(per_lane(function)):
        assert some == np.uint32(sum(1 << u for u in range(t % 3, 32, 3))).astype(np.int32)
        assert different == (0, False) and same == (-1, True)
        assert zeros == (0x7FFFFFFF if t < 31 else -2**31)


def test_who_is_there():
    def function(cuda, t):
        before = cuda.activemask()
        if t % 2:
            return before, cuda.laneid, cuda.warpsize, cuda.lanemask_lt()
        cuda.syncwarp()
        return before, cuda.activemask()

    got = per_lane(function, 40)
    for t in range(1, 40, 2):
        assert got[t][1:] == (t % 32, 32, 2 ** (t % 32) - 1)
    assert got[0] == (ALL, 0x55555555) and got[32] == (0xFF, 0x55)
    assert type(got[0][0]) is type(got[1][3]) is np.uint32


def test_bits_of_negative_numbers():
    ones = np.int32(-1)
    got = per_lane(lambda cuda, t: (cuda.popc(ones), cuda.clz(ones), cuda.ffs(ones), cuda.brev(np.uint32(1)),
                                    cuda.popc(np.int64(-1)), cuda.clz(1), cuda.ffs(0), cuda.clz(np.int64(1))), 1)
    assert got == [(32, 0, 1, 2**31, 64, 31, 0, 63)]


def test_every_warp_name_of_numba_is_here():
    names = {"shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync", "all_sync", "any_sync", "eq_sync",
             "ballot_sync", "match_any_sync", "match_all_sync", "activemask", "lanemask_lt", "syncwarp", "laneid",
             "warpsize"}
    assert per_lane(lambda cuda, t: names <= set(dir(cuda)), 1) == [True]


def test_syncwarp_and_shuffles_are_counted_once_per_warp():
    x = np.ones((2, 64), np.float32)
    with simulator.audit() as a:
        kernels.shuffle_sum[2, 64](x, np.zeros(2, np.float32))
        per_lane(lambda cuda, t: (cuda.syncwarp(), cuda.any_sync(ALL, 1)), 33)
    assert (a.counts.shuffles, a.counts.syncwarps, a.counts.votes, a.counts.barriers) == (2 * 3 * 5, 2, 2, 2)
    assert a.ok, a


def test_a_shuffle_from_two_lines_is_reported():
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx.x
        if t < 16:
            out[t] = cuda.shfl_xor_sync(ALL, t, 1)              # low
        else:
            out[t] = cuda.shfl_xor_sync(ALL, t, 1)              # high

    with simulator.audit() as a:
        kernel[1, 32](np.zeros(32))
    finding, = a.divergences
    assert finding.lines == [line(kernel, "# low"), line(kernel, "# high")] and finding.array == "shfl_xor_sync"
