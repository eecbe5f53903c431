"""The backward pass of FlashAttention-2 on tensor cores: three kernels, float16 and bfloat16.

The steps are those of `fa2_backward.py`, in another order: dP (9) before P (7); dV (8) after dS (10), behind the one
barrier that both need; dK (13) before dQ (12), whose additions then end behind other work; the scale (11) last. (1) and
(2), and the rounding of dQ, are kernels of their own in `fa2_mma_rows.py`. Between them, one block per tile of keys:

    grid        (Tc · Hkv, B): a block owns a tile of keys and meets the queries of all heads of its group, so nobody
                else adds to its dK and dV; with causal the longest tiles of all heads of a batch come first
    block       as many warps as can share the tiles, at most 8: see plan_backward in `tensor_cores.py`
    on chip     shared by the warps: Kj and Vj, Qi and dOi twice, Pij, dSij (see shared_bytes); a lane's own, in
                registers: its parts of S, dP, dQi, its Li and Di; and of dKj and dVj, which stay
    barriers    2 per tile of queries (and head): the tile is there, and everybody is done with the one before; P and dS
                are there. 2 at the end, around dKj and dVj
    in memory   dQ is added to by all blocks, with atomics: in any order, so its last bits may differ from run to run;
                `deterministic` leaves it to `fa2_mma_dq.py`

P is the left factor of dV and dS that of dK, both turned over; dS is also that of dQ. Each of these products needs what
other warps have computed, so P and dS go through shared memory, in pairs. The scale multiplies dK and dQ once, at the
end. dQ is float32, and lies in memory as registers hold it: a lane adds to four neighbours at once, a warp to 512
bytes.

L comes as L·log₂e, so that P is 2^(s·scale·log₂e − L·log₂e); it is +inf for rows past the end and for those that see
nothing, whose P is 0 then.
"""

from functools import cache

import numba
import numpy as np
from numba import cuda

from cuda_kernels import arrays, fa2_mma_dq, ptx, swizzled
from cuda_kernels.fa2_mma_rows import make_convert, make_preprocess
from cuda_kernels.launch import WARP, numbers
from cuda_kernels.products import OWN_ROWS, ROWS, Factor, part_of, product
from cuda_kernels.swizzled import padded
from cuda_kernels.tensor_cores import LOG2_E


def width_on_chip(Br, Bc, d, warps):
    """The numbers of a row of Q, K, V, dO on chip: d, rounded up so that all warps can share dQ, dK and dV."""
    beside = max(warps // (Br // ROWS), warps // (Bc // ROWS), 1)
    return -(-d // (16 * beside)) * 16 * beside


def shared_bytes(Br, Bc, d, warps):
    """Bytes of shared memory of a block: Kj, Vj, Qi and dOi twice, Pij, dSij."""
    width = width_on_chip(Br, Bc, d, warps)
    return 2 * (2 * Bc * width + 4 * Br * width + 2 * Br * Bc)


@cache
def make_backward(Br, Bc, warps, d, dtype, positive, aligned, deterministic, capability):
    """The kernel of dK and dV, and of dQ unless it is `deterministic`.

    dO, Q (B, Hq, Nq, d), K, V, dK, dV (B, Hkv, Nk, d) in the storage dtype; L2, D, dQ as `make_preprocess` has left
    them; scale in float32, and scale · log₂e; left and right (the window, as `Rule` has it); Hq / Hkv. positive: is the
    scale > 0? aligned: may Q, K, V, dO be read 16 bytes at a time? capability: of the card, which decides how dQ is
    added up.
    """
    wide, zero, one, minus_inf, _, narrow, _ = numbers(dtype)
    storage, pair = numba.from_dtype(arrays.word_dtype(dtype)), ptx.pair(dtype)
    add_four = ptx.atomic_add_four(capability)
    width, T = width_on_chip(Br, Bc, d, warps), warps * WARP
    cell, _, load, store = swizzled.functions(d, warps, narrow, aligned, width)
    P_cell, _ = swizzled.places(Bc)
    of_S, of_dK, of_dQ = part_of(Br, Bc, warps), part_of(Bc, width, warps), part_of(Br, width, warps)
    row, column, P_column = Factor(width), Factor(width, across=True), Factor(Bc, across=True)
    add_scores = product(dtype, of_S, width, row, row)              # Q Kᵀ, dO Vᵀ
    add_over_queries = product(dtype, of_dK, Br, P_column, column)  # Pᵀ dO, dSᵀ Q
    add_over_keys = product(dtype, of_dQ, Bc, Factor(Bc), column)   # dS K
    S_size, S_strips, S_tall, S_columns = of_S.size, of_S.strips, of_S.tall, of_S.columns
    K_size, K_strips, K_tall, K_columns = of_dK.size, of_dK.strips, of_dK.tall, of_dK.columns
    Q_size, Q_columns = of_dQ.size, of_dQ.columns
    V_at, Q_at = Bc * width, 2 * Bc * width                         # where Vj, Qi begin; Kj is at 0
    stage = Br * width                                              # how far on the next Qi is
    dO_at, P_at = Q_at + 2 * stage, Q_at + 4 * stage
    dS_at = P_at + Br * Bc

    @cuda.jit(launch_bounds=T)
    def backward(dO, Q, K, V, L2, D, dQ, dK, dV, scale, scale_log2, left, right, group):
        t = cuda.threadIdx.x & 1023                                 # & tells the compiler: t is not negative; copies
        w, lane = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP     # are faster with it, products without it
        Hkv, Nq, Nk = K.shape[1], Q.shape[2], K.shape[2]
        j, g, b = cuda.blockIdx.x // Hkv, cuda.blockIdx.x % Hkv, cuda.blockIdx.y
        offset = Nk - Nq
        col0 = j * Bc
        seen = max(0, offset - left)                                # the first key that some query sees
        top = max(0, -offset - right)                               # the first query that sees some key
        tile = cuda.shared.array(0, storage, 128)                   # Kj, Vj, Qi twice, dOi twice, Pij, dSij
        # (3) load Kj, Vj
        load(tile, 0, Bc, K, b, g, col0, seen, Nk, t)
        load(tile, V_at, Bc, V, b, g, col0, seen, Nk, t)

        low = max(0, col0 - right - offset)                         # the queries that see some key of the tile:
        high = min(Nq, min(col0 + Bc, Nk) + left - offset)          # low … high − 1
        first = low // Br                                           # their tiles: first … first + tiles − 1
        tiles = max(0, (high + Br - 1) // Br - first) if low < high else 0
        remaining = scale_log2 if positive else one                 # factor that scores still lack below
        S_row, S_col = w % S_tall * ROWS, w // S_tall * S_columns   # where the warp's part of S and of dP begins
        K_row, K_col = w % K_tall * ROWS, w // K_tall * K_columns   # and of dKj and dVj
        Q_col = w // S_tall * Q_columns                             # and of dQi, whose rows are those of S

        S = cuda.local.array(S_size, wide)
        dP = cuda.local.array(S_size, wide)
        dKj = cuda.local.array(K_size, wide)
        dVj = cuda.local.array(K_size, wide)
        Li = cuda.local.array(OWN_ROWS, wide)
        Di = cuda.local.array(OWN_ROWS, wide)

        if tiles > 0:                                               # (5) load Qi, dOi for the first step
            load(tile, Q_at, Br, Q, b, g * group, first * Br, top, Nq, t)
            load(tile, dO_at, Br, dO, b, g * group, first * Br, top, Nq, t)
        ptx.commit_copies()
        # (4) nothing yet
        for e in range(K_size):
            dKj[e] = zero
            dVj[e] = zero

        h, i = g * group, first
        for visit in range(group * tiles):                          # head after head, tile after tile
            row0 = i * Br
            now, then = (visit & 1) * stage, (visit + 1 & 1) * stage
            h_next, i_next = (h, i + 1) if i + 1 < first + tiles else (h + 1, first)

            ptx.wait_copies(0)
            cuda.syncthreads()                                      # Qi, dOi are there, the tile before is done with
            # (5) load Qi, dOi for the next step; Li, Di
            if visit + 1 < group * tiles:
                load(tile, Q_at + then, Br, Q, b, h_next, i_next * Br, top, Nq, t)
                load(tile, dO_at + then, Br, dO, b, h_next, i_next * Br, top, Nq, t)
            ptx.commit_copies()
            for n in range(OWN_ROWS):
                r = S_row + n * 8 + lane // 4
                Li[n] = L2[b, h, row0 + r]
                Di[n] = D[b, h, row0 + r]

            # (6) scores once more
            for e in range(S_size):
                S[e] = zero
                dP[e] = zero
            add_scores(S, tile, Q_at + now, S_row, 0, S_col, lane)
            if not positive:
                for e in range(S_size):
                    S[e] *= scale_log2
            p_first = row0 + offset                                 # where the first and the last query stand
            p_last = p_first + min(Br, Nq - row0) - 1
            if col0 < p_last - left or col0 + Bc > min(p_first + right + 1, Nk):    # not every query sees all keys
                for n in range(OWN_ROWS):
                    p = p_first + S_row + n * 8 + lane // 4         # where the row stands
                    mine = col0 + S_col + lane % 4 * 2              # the lane's first key; seen are …
                    lowest = np.int32(max(p - left - mine, 0))      # … those this far from it, and not farther
                    highest = np.int32(min(min(p + right, Nk - 1) - mine, Bc))      # than this
                    for y in range(S_strips):
                        for z in range(2):
                            e = (n // 2 * S_strips + y) * 4 + n % 2 * 2 + z
                            S[e] = S[e] if lowest <= y * 8 + z <= highest else minus_inf
            # (9) dP = dO Vᵀ
            add_scores(dP, tile, dO_at + now, S_row, V_at, S_col, lane)
            for n in range(OWN_ROWS):
                for y in range(S_strips):
                    e = (n // 2 * S_strips + y) * 4 + n % 2 * 2
                    at = P_cell(S_row + n * 8 + lane // 4, S_col // 8 + y) + lane % 4 * 2
                    # (7) P, normalised by L
                    P0 = ptx.exp2(cuda.fma(S[e], remaining, -Li[n]))
                    P1 = ptx.exp2(cuda.fma(S[e + 1], remaining, -Li[n]))
                    ptx.store_pair(tile, P_at + at, pair(P0, P1))
                    # (10) dS = P ∘ (dP − D)
                    dS0, dS1 = P0 * (dP[e] - Di[n]), P1 * (dP[e + 1] - Di[n])
                    ptx.store_pair(tile, dS_at + at, pair(dS0, dS1))

            cuda.syncthreads()                                      # P and dS are there
            # (8) dV += Pᵀ dO
            add_over_queries(dVj, tile, P_at, K_row, dO_at + now, K_col, lane)
            # (13) dK += dSᵀ Q
            add_over_queries(dKj, tile, dS_at, K_row, Q_at + now, K_col, lane)
            # (12) dQ += dS K, in memory
            if not deterministic:
                dQi = cuda.local.array(Q_size, wide)
                for e in range(Q_size):
                    dQi[e] = zero
                add_over_keys(dQi, tile, dS_at, S_row, 0, Q_col, lane)
                for e in range(0, Q_size, 4):
                    add_four(dQ, (b, h, i, (e // 4 * T + t) * 4), dQi[e], dQi[e + 1], dQi[e + 2], dQi[e + 3])
            h, i = h_next, i_next

        ptx.wait_copies(0)                                          # a tile that no query sees has not waited yet
        cuda.syncthreads()                                          # everybody is done with Kj, Vj: dKj, dVj go there
        for n in range(OWN_ROWS):
            for y in range(K_strips):
                e = (n // 2 * K_strips + y) * 4 + n % 2 * 2
                at = cell(K_row + n * 8 + lane // 4, K_col // 8 + y) + lane % 4 * 2
                # (11) the scale, once
                ptx.store_pair(tile, at, pair(dKj[e] * scale, dKj[e + 1] * scale))
                ptx.store_pair(tile, V_at + at, pair(dVj[e], dVj[e + 1]))
        cuda.syncthreads()                                          # dKj, dVj are there
        # (14) store dKj, dVj
        store(tile, 0, Bc, dK, b, g, col0, Nk, t, T)
        store(tile, V_at, Bc, dV, b, g, col0, Nk, t, T)

    return backward


def backward(call, dO, Q, K, V, O, L, dL, deterministic):
    """Launch the backward pass; returns dQ, dK, dV in the storage dtype."""
    B, Hq, Hkv, Nq, _, d, _ = call.sizes
    Br, Bc, warps = call.Br, call.Bc, call.threads // WARP
    _, scale, _, left, right, _ = call.rule
    rule, positive = (scale, scale * LOG2_E, left, right), bool(scale > 0)
    aligned = swizzled.aligned(call, dO, O, Q, K, V)
    dQ, dK, dV = (call.empty(*X.shape, dtype=call.dtype, like=X) for X in (Q, K, V))
    L2, D = call.empty(B, Hq, call.Tr * Br), call.empty(B, Hq, call.Tr * Br)
    width = width_on_chip(Br, Bc, d, warps)
    size = 0 if deterministic else Br * width
    sums = call.empty(B, Hq, call.Tr, max(size, 1))                 # dQ, as registers hold it; else nobody reads it

    over_queries = call.Tr, Hq, B
    call.launch(make_preprocess(Br, warps, d, size, call.dtype, aligned), over_queries, dO, O, L, dL, L2, D, sums,
                shared=4 * Br * padded(d))
    kernel = make_backward(Br, Bc, warps, d, call.dtype, positive, aligned, deterministic, call.card.capability)
    call.launch(kernel, (call.Tc * Hkv, B), dO, Q, K, V, L2, D, sums, dK, dV, *rule, np.int32(Hq // Hkv),
                shared=shared_bytes(Br, Bc, d, warps))
    if deterministic:
        R = fa2_mma_dq.rows_of(d, Nq, warps)
        call.launch(fa2_mma_dq.make_dq(R, warps, d, call.dtype, positive, aligned), (-(-Nq // (R * warps)) * Hq, B),
                    dO, Q, K, V, L2, D, dQ, *rule, shared=fa2_mma_dq.shared_bytes(R, d, warps))
    else:
        call.launch(make_convert(Br, width, warps, d, call.dtype), over_queries, sums, dQ, scale, shared=2 * Br * width)
    return dQ, dK, dV
