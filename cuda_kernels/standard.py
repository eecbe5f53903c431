"""Standard attention on the GPU: S and P stand in memory, B·Hq·Nq·Nk elements each. The yardstick.

The steps are those of `fa_ref/standard.py`, number for number. Nothing is kept on chip: every product reads its
operands from memory again, and what one step writes the next one reads.

    forward     one kernel, grid (Tr, Hq, B): a block does some rows of S from beginning to end; 2 barriers
    backward    rows of P, dP, dS and dQ as above, but dV and dK are sums over rows. So there are four kernels, one
                after the other: rows (1) and (3) to (6) on the grid (Tr, Hq, B), the second with 2 barriers; columns
                (2) and (7) on the grid (Tc, Hkv, B), without any
    shared      0 bytes

Barriers make what some threads of a block wrote to memory visible to the others; between kernels everything is.
"""

import math
from functools import cache

from numba import cuda

from cuda_kernels import scores
from cuda_kernels.launch import numbers


def shared_bytes(Br, Bc, d, dv, itemsize, backward=False):
    """Bytes of shared memory of a block: none."""
    return 0


def forward(call, Q, K, V):
    """Launch the forward pass; returns O, L."""
    B, Hq, _, Nq, Nk, _, dv = call.sizes
    S, P = call.empty(B, Hq, Nq, Nk), call.empty(B, Hq, Nq, Nk, dtype=call.dtype)
    O = call.empty(B, Hq, Nq, dv, dtype=call.wide if call.flags.wide_out else call.dtype)
    L = call.empty(B, Hq, Nq)
    call.launch(make_forward(*call.key), (call.Tr, Hq, B), Q, K, V, O, L, S, P, *call.rule)
    return O, L


def backward(call, dO, Q, K, V, O, L, dL, deterministic):
    """Launch the backward pass; returns dQ (in the accumulator dtype), dK, dV. It is deterministic in any case."""
    B, Hq, Hkv, Nq, Nk, d, dv = call.sizes
    P, dP, dS = (call.empty(B, Hq, Nq, Nk, dtype=dtype) for dtype in (call.dtype, call.wide, call.dtype))
    dQ = call.empty(B, Hq, Nq, d)
    dK, dV = call.empty(B, Hkv, Nk, d, dtype=call.dtype), call.empty(B, Hkv, Nk, dv, dtype=call.dtype)
    backward_P, backward_dV, backward_dQ, backward_dK = make_backward(*call.key)
    rows, columns = (call.Tr, Hq, B), (call.Tc, Hkv, B)
    call.launch(backward_P, rows, Q, K, L, P, *call.rule)
    call.launch(backward_dV, columns, P, dO, dV)
    call.launch(backward_dQ, rows, dO, Q, K, V, P, dL, dP, dS, dQ, *call.rule)
    call.launch(backward_dK, columns, dS, Q, dK)
    return dQ, dK, dV


@cache
def make_forward(Br, Bc, d, dv, dtype, flags):
    """The kernel for these tiles (of which Br counts), head dims, storage dtype and options.

    Arguments of the kernel: Q (B, Hq, Nq, d), K (B, Hkv, Nk, d), V (B, Hkv, Nk, dv), O (B, Hq, Nq, dv) and P in the
    storage dtype, L (B, Hq, Nq) and S in the accumulator dtype; S, P and mask (bool) (B, Hq, Nq, Nk); then numbers.
    """
    _, zero, one, minus_inf, widen, narrow, _ = numbers(dtype)
    visible, score, _, _ = scores.functions(flags, one)
    store = numbers(one.dtype).narrow if flags.wide_out else narrow

    @cuda.jit
    def forward(Q, K, V, O, L, S, P, mask, scale, softcap, left, right, reverse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        Nq, Nk = Q.shape[2], K.shape[2]
        g = h // (Q.shape[1] // K.shape[1])                         # the KV head of query head h
        offset = Nk - Nq
        first, last = i * Br, min(i * Br + Br, Nq)                  # the rows of this block

        for row in range(first, last):
            for col in range(t, Nk, T):
                s = minus_inf                                       # what is hidden is not looked at: 0·NaN is NaN
                if visible(b, h, row, col, offset, left, right, mask):
                    # (1) read Q and K
                    product = zero
                    x = 0
                    while x < d:
                        product += widen(Q[b, h, row, x]) * widen(K[b, g, col, x])
                        x += 1
                    s = score(product, scale, softcap)
                # (2) write S
                S[b, h, row, col] = s

        cuda.syncthreads()                                          # S is there
        for row in range(first + t, last, T):
            # (3) read S again
            m = minus_inf
            for col in range(Nk):
                m = max(m, S[b, h, row, col])
            shift = m if m != minus_inf else zero
            l = zero
            for col in range(Nk):
                l += math.exp(S[b, h, row, col] - shift)
            # (4) write P
            for col in range(Nk):
                P[b, h, row, col] = narrow(math.exp(S[b, h, row, col] - shift) / (l if l != zero else one))
            L[b, h, row] = m + math.log(l if l != zero else one)

        cuda.syncthreads()                                          # P is there
        # (5) read P and V, write O = P V
        for e in range(t, (last - first) * dv, T):
            row, x = first + e // dv, e % dv
            o = zero
            col = 0
            while col < Nk:
                p = widen(P[b, h, row, col])
                if p != zero:
                    o += p * widen(V[b, g, col, x])
                col += 1
            O[b, h, row, x] = store(o)

    return forward


@cache
def make_backward(Br, Bc, d, dv, dtype, flags):
    """The four kernels, in the order in which they are launched.

    dO, Q, K, V, dK, dV, P and dS in the storage dtype, L, dL, dP and dQ in the accumulator dtype, shaped as above.
    """
    _, zero, one, minus_inf, widen, narrow, _ = numbers(dtype)
    visible, score, chain, _ = scores.functions(flags, one)
    use_softcap = flags.softcap

    @cuda.jit
    def backward_P(Q, K, L, P, mask, scale, softcap, left, right, reverse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        Nq, Nk = Q.shape[2], K.shape[2]
        g = h // (Q.shape[1] // K.shape[1])
        offset = Nk - Nq
        # (1) P as the forward pass left it
        for row in range(i * Br, min(i * Br + Br, Nq)):
            shift = L[b, h, row] if L[b, h, row] != minus_inf else zero
            for col in range(t, Nk, T):
                p = zero
                if visible(b, h, row, col, offset, left, right, mask):
                    product = zero
                    x = 0
                    while x < d:
                        product += widen(Q[b, h, row, x]) * widen(K[b, g, col, x])
                        x += 1
                    p = math.exp(score(product, scale, softcap) - shift)
                P[b, h, row, col] = narrow(p)

    @cuda.jit
    def backward_dV(P, dO, dV):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        j, g, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        group, Nq, Nk = dO.shape[1] // dV.shape[1], dO.shape[2], dV.shape[2]
        # (2) read P and dO, write dV = Pᵀ dO
        for e in range(t, min(Bc, Nk - j * Bc) * dv, T):
            col, x = j * Bc + e // dv, e % dv
            total = zero
            for h in range(g * group, (g + 1) * group):
                row = 0
                while row < Nq:
                    p = widen(P[b, h, row, col])
                    if p != zero:
                        total += p * widen(dO[b, h, row, x])
                    row += 1
            dV[b, g, col, x] = narrow(total)

    @cuda.jit
    def backward_dQ(dO, Q, K, V, P, dL, dP, dS, dQ, mask, scale, softcap, left, right, reverse):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        Nq, Nk = Q.shape[2], K.shape[2]
        g = h // (Q.shape[1] // K.shape[1])
        first, last = i * Br, min(i * Br + Br, Nq)

        # (3) read dO and V, write dP = dO Vᵀ
        for row in range(first, last):
            for col in range(t, Nk, T):
                dp = zero
                if widen(P[b, h, row, col]) != zero:                # what is hidden is not looked at: 0·NaN is NaN
                    x = 0
                    while x < dv:
                        dp += widen(dO[b, h, row, x]) * widen(V[b, g, col, x])
                        x += 1
                dP[b, h, row, col] = dp

        cuda.syncthreads()                                          # dP is there
        for row in range(first + t, last, T):
            # (4) read P and dP
            D = -dL[b, h, row]
            col = 0
            while col < Nk:
                D += widen(P[b, h, row, col]) * dP[b, h, row, col]
                col += 1
            for col in range(Nk):
                p = widen(P[b, h, row, col])
                ds = zero
                if p != zero:
                    ds = p * (dP[b, h, row, col] - D)
                    # (5) write dS, through softcap and scale
                    product = zero
                    if use_softcap:
                        x = 0
                        while x < d:
                            product += widen(Q[b, h, row, x]) * widen(K[b, g, col, x])
                            x += 1
                    ds = chain(ds, product, scale, softcap)
                dS[b, h, row, col] = narrow(ds)

        cuda.syncthreads()                                          # dS is there
        # (6) read dS, write dQ
        for e in range(t, (last - first) * d, T):
            row, x = first + e // d, e % d
            total = zero
            col = 0
            while col < Nk:
                ds = widen(dS[b, h, row, col])
                if ds != zero:
                    total += ds * widen(K[b, g, col, x])
                col += 1
            dQ[b, h, row, x] = total

    @cuda.jit
    def backward_dK(dS, Q, dK):
        t, T = cuda.threadIdx.x, cuda.blockDim.x
        j, g, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        group, Nq, Nk = Q.shape[1] // dK.shape[1], Q.shape[2], dK.shape[2]
        # (7) read dS, write dK
        for e in range(t, min(Bc, Nk - j * Bc) * d, T):
            col, x = j * Bc + e // d, e % d
            total = zero
            for h in range(g * group, (g + 1) * group):
                row = 0
                while row < Nq:
                    ds = widen(dS[b, h, row, col])
                    if ds != zero:
                        total += ds * widen(Q[b, h, row, x])
                    row += 1
            dK[b, g, col, x] = narrow(total)

    return backward_P, backward_dV, backward_dQ, backward_dK
