"""What stands between Q Kᵀ and the softmax, as one Rule per head.

A core asks its rule twice in every tile: `kind` (may this tile be skipped, or go unmasked?) and `scores`; the backward
pass also asks for the `chain` rule.
The order is: scale → softcap c·tanh(s/c) → bias and ALiBi → masks, which set hidden scores to −inf.

Positions are aligned at the bottom right: query i stands at p = i + Nk − Nq on the axis of the keys, so that
the last query sees as far as the last key. Causal shows it the keys j ≤ p, a window (left, right) those with
p − left ≤ j ≤ p + right:

    causal, Nq=2, Nk=5      causal, Nq=5, Nk=2      window (1, 0), Nq=Nk=4
      1 1 1 1 .               . .  (these rows        1 . . .
      1 1 1 1 1               . .   see no key)       1 1 . .
                              . .                     . 1 1 .
                              1 .                     . . 1 1
                              1 1
"""

import numpy as np

from fa_ref.inputs import floating
from fa_ref.options import check_flag, check_mask, check_number, check_scores_shaped, check_softcap, check_window
from fa_ref.torch_bridge import to_numpy

EMPTY, PARTIAL, FULL = "empty", "partial", "full"


def tiles(N, size):
    """The slices of N rows, `size` at a time; the last may be shorter."""
    return [slice(n, min(n + size, N)) for n in range(0, N, size)]


class Rule:
    """All options of one head.

    Nq, Nk: lengths. scale: factor of q·k only. mask: bool (True = visible) or float (added), bias: float, both
    broadcast to (Nq, Nk), −inf in either hides the key. alibi_slope: adds −slope·|p − j|. softcap: None = off.
    Raises ValueError or TypeError for options out of range and arrays that do not broadcast.
    """

    def __init__(self, Nq, Nk, *, scale, causal=False, window=(-1, -1), mask=None, bias=None, alibi_slope=None,
                 softcap=None):
        left, right = check_window(window)
        unlimited = Nq + Nk                             # farther than any key is from any query
        self.Nq, self.Nk = Nq, Nk
        self.offset = Nk - Nq
        self.left = unlimited if left < 0 else min(left, unlimited)
        self.right = 0 if check_flag("causal", causal) else unlimited if right < 0 else min(right, unlimited)
        self.scale = check_number("scale", scale)
        self.softcap = check_softcap(softcap)
        self.alibi_slope = None if alibi_slope is None else check_number("alibi_slope", alibi_slope)
        terms = []
        if mask is not None:
            terms.append(check_scores_shaped("mask", check_mask(to_numpy("mask", mask)), (Nq, Nk)))
        if bias is not None:
            terms.append(check_scores_shaped("bias", floating("bias", bias), (Nq, Nk)))
        self.masks = [x for x in terms if x.dtype == bool]
        self.biases = [x for x in terms if x.dtype != bool]     # a float mask is a bias without a gradient

    def visible(self, rows, cols):
        """Which keys `cols` may which queries `rows` (slices) see: bool (br, bc)."""
        p = np.arange(rows.start, rows.stop)[:, None] + self.offset
        j = np.arange(cols.start, cols.stop)[None, :]
        seen = (p - self.left <= j) & (j <= p + self.right)
        for mask in self.masks:
            seen &= mask[rows, cols]
        for bias in self.biases:
            seen &= bias[rows, cols] != -np.inf
        return seen

    def kind(self, rows, cols):
        """EMPTY: no query of the tile sees a key of it. FULL: every query sees every key. PARTIAL: look closer."""
        p_first, p_last = rows.start + self.offset, rows.stop - 1 + self.offset
        j_first, j_last = cols.start, cols.stop - 1
        if j_last < p_first - self.left or j_first > p_last + self.right:
            return EMPTY
        if self.masks or self.biases:
            seen = self.visible(rows, cols)
            return FULL if seen.all() else PARTIAL if seen.any() else EMPTY
        inside = p_last - self.left <= j_first and j_last <= p_first + self.right
        return FULL if inside else PARTIAL

    def scores(self, Qi, Kj, rows, cols, kind, descale=1):
        """The final scores of a tile, (br, bc), −inf where hidden. Qi (br, d) and Kj (bc, d) in accumulator width.

        descale: factor of q·k besides the scale, for tiles that were divided by scales of their own (FP8).
        """
        Sij = Qi @ Kj.T * (self.scale * descale)
        if self.softcap:
            Sij = self.softcap * np.tanh(Sij / self.softcap)
        for bias in self.biases:
            Sij = Sij + bias[rows, cols].astype(Sij.dtype)
        if self.alibi_slope is not None:
            p = np.arange(rows.start, rows.stop)[:, None] + self.offset
            j = np.arange(cols.start, cols.stop)[None, :]
            Sij = Sij - self.alibi_slope * np.abs(p - j).astype(Sij.dtype)
        if kind != FULL:
            Sij = np.where(self.visible(rows, cols), Sij, -np.inf)
        return Sij

    def chain(self, dSij, Qi, Kj):
        """From the gradient of the final scores to that of q·k: through the softcap and the scale, (br, bc).

        Bias and ALiBi are added, so they pass it on unchanged. With a softcap q·k is formed once more.
        """
        if self.softcap:
            tanh = np.tanh(Qi @ Kj.T * self.scale / self.softcap)
            dSij = dSij * (1 - tanh * tanh)
        return dSij * self.scale

    def reach(self):
        """Which queries see at least one key, bool (Nq,), and which keys are seen by at least one query, bool (Nk,)."""
        p, j = np.arange(self.Nq) + self.offset, np.arange(self.Nk)
        live_queries = (p + self.right >= 0) & (p - self.left < self.Nk) & (self.Nk > 0)
        live_keys = (j >= self.offset - self.left) & (j < self.offset + self.Nq + self.right) & (self.Nq > 0)
        if self.masks or self.biases:
            live_queries[:], live_keys[:] = False, False
            for start in range(0, self.Nq, 64):              # strip by strip: no Nq × Nk array is made
                rows = slice(start, min(start + 64, self.Nq))
                strip = self.visible(rows, slice(0, self.Nk))
                live_queries[rows] = strip.any(axis=1)
                live_keys |= strip.any(axis=0)
        return live_queries, live_keys
