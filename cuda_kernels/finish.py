"""What is left when a kernel is done: the sink, the one rounding to the storage dtype, the gradient of the sink.

A sink is one more key whose value is zero. It costs no line in any kernel: attention over the true keys is merged with
(0, sink) afterwards, as `fa_ref.online_softmax.merge` does it, and the result is rounded once.
"""

import math
from functools import cache

from numba import cuda

from cuda_kernels.launch import numbers

ROWS = 32           # of a block
THREADS = 1024      # the most that a block can have


def merge_sink(call, O, l, m, sink):
    """out in the storage dtype and lse = m + log l, both with the sink (Hq,); None is a sink of −inf, which is none."""
    B, Hq, _, Nq, _, _, dv = call.sizes
    sink = call.constant(-math.inf, Hq) if sink is None else sink
    out, lse = call.empty(B, Hq, Nq, dv, dtype=call.dtype), call.empty(B, Hq, Nq)
    call.launch(make_merge(dv, call.dtype), (-(-Nq // ROWS), Hq, B), O, l, m, sink, out, lse)
    return out, lse


def narrowed(call, X):
    """X (B, H, N, d) in the storage dtype."""
    B, H, N, d = X.shape
    if call.wide == call.dtype:
        return X
    Y = call.empty(B, H, N, d, dtype=call.dtype)
    call.launch(make_narrow(d, call.dtype), (-(-N // ROWS), H, B), X, Y)
    return Y


def sink_gradient(call, dO, O, L, dL, sink):
    """dsink (Hq,) in the accumulator dtype, added up in one order: the same bits in every run."""
    Hq, dv = call.sizes.Hq, call.sizes.dv
    dsink = call.empty(Hq)
    call.launch(make_sink_gradient(dv, call.dtype), (Hq,), dO, O, L, dL, sink, dsink)
    return dsink


@cache
def make_merge(dv, dtype):
    """O (B, Hq, Nq, dv), l, m (B, Hq, Nq), sink (Hq,) in the accumulator dtype → out, lse. No barrier."""
    _, zero, one, minus_inf, _, narrow, _ = numbers(dtype)

    @cuda.jit
    def merge(O, l, m, sink, out, lse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        row0 = cuda.blockIdx.x * ROWS
        rows = min(ROWS, O.shape[2] - row0)

        for e in range(t, rows * dv, T):
            row, x = row0 + e // dv, e % dv
            L = m[b, h, row] + math.log(l[b, h, row] if l[b, h, row] != zero else one)
            top = max(L, sink[h])
            shift = top if top != minus_inf else zero
            weight = math.exp(L - shift)
            both = weight + math.exp(sink[h] - shift)
            o = zero
            if weight != zero:                                      # a part of weight zero is never read
                o = O[b, h, row, x] * (weight / both)
            out[b, h, row, x] = narrow(o)
            if x == 0:
                lse[b, h, row] = top + math.log(both if both != zero else one)

    return merge


@cache
def make_narrow(d, dtype):
    """X in the accumulator dtype → Y in the storage dtype, both (B, H, N, d). No barrier."""
    narrow = numbers(dtype).narrow

    @cuda.jit
    def round_once(X, Y):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        row0 = cuda.blockIdx.x * ROWS
        for e in range(t, min(ROWS, X.shape[2] - row0) * d, T):
            Y[b, h, row0 + e // d, e % d] = narrow(X[b, h, row0 + e // d, e % d])

    return round_once


@cache
def make_sink_gradient(dv, dtype):
    """d sink = −Σ exp(sink − L)·D with D = rowsum(dO ∘ O) − dL, over all rows of a head. Grid (Hq,), 1 barrier."""
    wide, zero, _, minus_inf, widen, _, _ = numbers(dtype)

    @cuda.jit
    def sink_gradient(dO, O, L, dL, sink, dsink):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        h = cuda.blockIdx.x
        B, Nq = O.shape[0], O.shape[2]
        parts = cuda.shared.array(THREADS, wide)

        part = zero
        for n in range(t, B * Nq, T):
            b, row = n // Nq, n % Nq
            D = -dL[b, h, row]
            x = 0
            while x < dv:
                o = widen(O[b, h, row, x])
                if o != zero:                                       # a row that sees no key may have any dO
                    D += widen(dO[b, h, row, x]) * o
                x += 1
            weight = math.exp(sink[h] - (L[b, h, row] if L[b, h, row] != minus_inf else zero))
            part -= weight * D if weight > zero else zero           # without weight dO and dL may be anything
        parts[t] = part

        cuda.syncthreads()                                          # every part is there
        if t == 0:
            total = zero
            for other in range(T):
                total += parts[other]
            dsink[h] = total

    return sink_gradient
