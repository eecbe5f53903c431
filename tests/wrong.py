"""Attention that is wrong in one way each: what the kit must reject.

`Attention` is a plain, right implementation of everything, cut into small steps. A wrong one has one step replaced by a
function that is named for its fault, and whose docstring says how that happens in real code. So each is right but for
what its few lines say. `WRONG` holds them all, with the properties that must reject them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fa_ref.testing import Result, Supports
from fa_ref.testing.properties.conduct import storage

# --- the right one --------------------------------------------------------------------------------------------


class Attention:
    """One problem, all heads at once; the letters are the papers'. S and P are whole, the softmax goes tile by tile.

    Its methods are the steps, in the order in which they are taken. K and V have a copy for each query head.
    """

    def __init__(self, problem):
        self.problem = p = problem
        (self.B, self.Hq, self.Nq, self.d), (_, self.Hkv, self.Nk, self.dv) = p.q.shape, p.v.shape
        self.group = self.Hq // self.Hkv
        self.i, self.j = np.arange(self.Nq)[:, None], np.arange(self.Nk)
        self.here = self.i + self.Nk - self.Nq                      # the key that query i stands on
        self.Bc = p.block_k or max(1, self.Nk)
        self.wide = self.accumulator()
        self.scale = self.wide(self.softmax_scale())
        self.visible = self.inside() & self.unmasked()              # (B, Hq, Nq, Nk)
        self.Q = self.sighted(self.stored("q")).astype(self.wide)   # (B, Hq, Nq, d)
        self.K, self.V = (self.spread(self.clean(self.stored(name)).astype(self.wide)) for name in ("k", "v"))

    @classmethod
    def packed(cls, problems):
        """Answers for sequences that are packed into one call."""
        return with_one_dsink([cls(problem).answer() for problem in problems])

    def answer(self):
        """A Result, with gradients if there is a dout."""
        p, statistics = self.problem, np.float64 if self.problem.q.dtype == np.float64 else np.float32
        O, L = self.forward()
        out, lse = self.store(O, p.q.dtype), L.astype(statistics)
        if p.dout is None:
            return Result(out, lse)
        dQ, dK, dV, dB, dsink = self.backward(out.astype(self.wide), L)
        return Result(
            out, lse, *(self.store(x, p.q.dtype) for x in (dQ, dK, dV)),
            dbias=None if p.bias is None else dB.astype(p.bias.dtype),
            dsink=None if p.sink is None else dsink.astype(p.sink.dtype))

    # inputs

    def accumulator(self):
        return np.float64 if self.problem.q.dtype == np.float64 else np.float32

    def softmax_scale(self):
        return 1 / math.sqrt(self.d) if self.problem.scale is None else self.problem.scale

    def stored(self, name):
        return getattr(self.problem, name)

    def mask(self):
        return self.problem.mask

    def bias(self):
        return None if self.problem.bias is None else self.problem.bias.astype(self.wide)

    def clean(self, x):
        """x (B, Hkv, Nk, ·) with zeros for keys that nobody sees."""
        seen = self.visible.reshape(self.B, self.Hkv, self.group * self.Nq, self.Nk).any(axis=2)
        return np.where(seen[..., None], x, x.dtype.type(0))

    def sighted(self, x):
        """x (B, Hq, Nq) or (B, Hq, Nq, ·) with zeros for queries that see no key, nor a sink."""
        sees = self.visible.any(axis=-1) | (self.problem.sink is not None)
        return np.where(sees[..., None] if x.ndim == 4 else sees, x, x.dtype.type(0))

    def spread(self, x):
        """(B, Hkv, ...) → (B, Hq, ...)."""
        return x.repeat(self.group, axis=1)

    # who sees whom

    def inside(self):
        return self.causal() & self.window()

    def causal(self):
        return self.j <= self.here if self.problem.causal else np.full((self.Nq, self.Nk), True)

    def window(self):
        left, right = self.problem.window
        return ((left < 0) | (self.j >= self.here - left)) & ((right < 0) | (self.j <= self.here + right))

    def unmasked(self):
        seen = np.full((self.B, self.Hq, self.Nq, self.Nk), True)
        for x in (self.mask(), self.problem.bias):
            if x is not None:
                seen &= x if x.dtype == bool else x != -np.inf
        return seen

    # scores

    def scores(self):
        """S (B, Hq, Nq, Nk)."""
        return self.hide(self.cap(self.product()) + self.added())

    def product(self):
        return self.scale * (self.Q @ self.K.mT)

    def cap(self, S):
        c = self.problem.softcap
        return self.wide(c) * np.tanh(S / self.wide(c)) if c else S

    def added(self):
        """Float mask, bias and ALiBi: what is added to the scores."""
        terms = [x.astype(self.wide) for x in (self.mask(), self.bias()) if x is not None and x.dtype != bool]
        if self.problem.alibi_slopes is not None:
            terms.append(-self.problem.alibi_slopes[..., None, None].astype(self.wide) * self.distance())
        return sum(terms, self.wide(0))

    def distance(self):
        return np.abs(self.here - self.j).astype(self.wide)

    def hide(self, S):
        return np.where(self.visible, S, self.wide(-np.inf))

    # forward

    def forward(self):
        """O (B, Hq, Nq, dv) and L (B, Hq, Nq)."""
        S = self.scores()
        self.m, self.l, acc = self.start()
        for cols in self.tiles():
            self.m, self.l, acc = self.step(self.m, self.l, acc, S[..., cols], self.V[:, :, cols])
        if self.problem.sink is not None:
            self.m, self.l, acc = self.see_sink(self.m, self.l, acc)
        return self.normalise(acc, self.l), self.lse(self.m, self.l)

    def tiles(self):
        starts = range(0, self.Nk, self.Bc)
        return [slice(n, n + self.Bc) for n in (reversed(starts) if self.problem.reverse else starts)]

    def start(self):
        """m, l, acc before the first key."""
        rows = (self.B, self.Hq, self.Nq)
        return np.full(rows, -np.inf, self.wide), np.zeros(rows, self.wide), np.zeros((*rows, self.dv), self.wide)

    def step(self, m, l, acc, S, V):
        """m, l, acc after the keys with these scores and values."""
        m_new = np.maximum(m, S.max(axis=-1, initial=-np.inf))
        P, alpha = self.exp(S, m_new[..., None]), self.alpha(m, m_new)
        return m_new, alpha * l + P.sum(axis=-1), alpha[..., None] * acc + P @ V

    def exp(self, x, m):
        """exp(x − m); 0 where nothing has been seen, so that m = −inf."""
        return np.exp(x - np.where(m == -np.inf, self.wide(0), m))

    def alpha(self, m, m_new):
        return self.exp(m, m_new)

    def see_sink(self, m, l, acc):
        """A sink is one more key, of value zero."""
        shape = (self.B, self.Hq, self.Nq, 1)
        S = np.broadcast_to(self.problem.sink.astype(self.wide)[:, None, None], shape)
        return self.step(m, l, acc, S, np.zeros((1, self.dv), self.wide))

    def normalise(self, acc, l):
        return acc / np.where(l == 0, self.wide(1), l)[..., None]

    def lse(self, m, l):
        return m + np.log(np.where(l == 0, self.wide(1), l))

    def store(self, x, dtype):
        return x.astype(dtype)

    # backward

    def backward(self, O, L):
        """dQ, dK, dV, dbias, dsink (the last two None unless there was one), from the stored O and from L."""
        dO = self.sighted(self.stored("dout")).astype(self.wide)
        P, D = self.probabilities(L), self.D(dO, O)
        dS = P * (dO @ self.V.mT - D[..., None])
        dX = self.chain(dS)
        return self.dQ(dX), self.gather(self.dK(dX)), self.gather(self.dV(P, dO)), self.dbias(dS), self.dsink(L, D)

    def probabilities(self, L):
        return self.exp(self.scores(), L[..., None])

    def D(self, dO, O):
        return (dO * O).sum(axis=-1) - self.dL()

    def dL(self):
        return self.wide(0) if self.problem.dlse is None else self.sighted(self.problem.dlse).astype(self.wide)

    def chain(self, dS):
        """Back through the softcap."""
        c = self.problem.softcap
        return dS * (1 - np.tanh(self.product() / self.wide(c)) ** 2) if c else dS

    def dQ(self, dX):
        return self.scale * (dX @ self.K)

    def dK(self, dX):
        return self.scale * (dX.mT @ self.Q)

    def dV(self, P, dO):
        return P.mT @ dO

    def gather(self, dX):
        """(B, Hq, ...) → (B, Hkv, ...): the sum over the query heads that share a KV head."""
        return dX.reshape(self.B, self.Hkv, self.group, *dX.shape[2:]).sum(axis=2)

    def dbias(self, dS):
        if self.problem.bias is None:
            return None
        shape = (1,) * (4 - self.problem.bias.ndim) + self.problem.bias.shape
        stretched = tuple(axis for axis in range(4) if shape[axis] == 1)
        return dS.sum(axis=stretched, keepdims=True).reshape(self.problem.bias.shape)

    def dsink(self, L, D):
        if self.problem.sink is None:
            return None
        return -(self.exp(self.problem.sink.astype(self.wide)[:, None], L) * D).sum(axis=(0, 2))


def with_one_dsink(answers):
    """The answers of packed sequences: the gradient of the sink is one for all."""
    dsink = None if answers[0].dsink is None else sum(a.dsink for a in answers)
    return [replace(a, dsink=dsink) for a in answers]


# --- how a wrong one is made ----------------------------------------------------------------------------------

@dataclass(frozen=True)
class Implementation:
    """fn(problem) -> Result, what it supports, what is wrong and how it happens, and the properties that must fail."""

    name: str
    how: str
    caught_by: tuple[str, ...]
    fn: Callable
    supports: Supports


def implementation(kind, name, how, caught_by=()):
    """The class as something that the kit can ask."""
    return Implementation(name, how, caught_by, lambda problem: kind(problem).answer(),
                          Supports.everything(packed=kind.packed))


RIGHT = implementation(Attention, "right", "Nothing is wrong.")
WRONG: dict[str, Implementation] = {}


def instead_of(step, *caught_by):
    """Decorator: enter into WRONG the right one with this step replaced, named as the function."""
    def enter(fault):
        kind = type(fault.__name__, (Attention,), {step: classmethod(fault) if step == "packed" else fault})
        WRONG[fault.__name__] = implementation(kind, fault.__name__, fault.__doc__, caught_by)
        return fault

    return enter


# --- who sees whom --------------------------------------------------------------------------------------------

@instead_of("causal", "equals_the_oracle", "the_future_has_no_influence")
def causal_at_the_top_left(self):
    """The triangle is np.tri(Nq, Nk), which is right as long as Nq = Nk."""
    return self.j <= self.i if self.problem.causal else Attention.causal(self)


@instead_of("causal", "the_future_has_no_influence")
def causal_sees_one_key_ahead(self):
    """The loop over keys ends at a length that is taken for the last index."""
    return self.j <= self.here + 1 if self.problem.causal else Attention.causal(self)


@instead_of("causal", "equals_the_oracle")
def causal_hides_the_diagonal(self):
    """np.triu without k=1 is taken for what to hide."""
    return self.j < self.here if self.problem.causal else Attention.causal(self)


@instead_of("inside", "equals_the_oracle")
def window_replaces_causal(self):
    """One branch for windows, another one for causal, and both were given."""
    return self.window() if self.problem.window != (-1, -1) else self.causal()


@instead_of("window", "equals_the_oracle")
def window_of_one_key_less(self):
    """left is read as the number of keys in the window, the query's own included."""
    left, _ = self.problem.window
    return Attention.window(self) & ((left < 0) | (self.j > self.here - left))


@instead_of("mask", "equals_the_oracle")
def mask_dropped_under_causal(self):
    """The causal kernel takes no mask, and the dispatch does not look."""
    return None if self.problem.causal else self.problem.mask


@instead_of("mask", "equals_the_oracle")
def mask_upside_down(self):
    """True means hidden, as in a padding mask of other libraries."""
    mask = self.problem.mask
    return ~mask if mask is not None and mask.dtype == bool else mask


@instead_of("hide", "equals_the_oracle")
def hidden_by_a_finite_number(self, S):
    """−1e4 stands for −inf, for fear of NaN; a row that sees nothing now sees everything."""
    return np.where(self.visible, S, self.wide(-1e4))


@instead_of("clean", "unread_storage_has_no_influence")
def unread_keys_multiplied_away(self, x):
    """Padding is multiplied by a mask of zeros, but 0·NaN is NaN."""
    return x * Attention.clean(self, np.ones_like(x))


# --- inputs ---------------------------------------------------------------------------------------------------

@instead_of("softmax_scale", "equals_the_oracle")
def scale_zero_means_default(self):
    """`scale or default`: the number 0 is false."""
    return self.problem.scale or 1 / math.sqrt(self.d)


@instead_of("softmax_scale", "equals_the_oracle")
def scale_of_the_padded_head_dim(self):
    """The default is computed after d was padded to a multiple of 8."""
    return 1 / math.sqrt(-(-self.d // 8) * 8) if self.problem.scale is None else self.problem.scale


@instead_of("spread", "grouped_heads_are_repeated_heads")
def grouped_heads_tiled(self, x):
    """np.tile or expand-and-reshape for repeat: query head h gets KV head h % Hkv."""
    return np.tile(x, (1, self.group, 1, 1))


@instead_of("stored", "equals_the_oracle")
def strides_ignored(self, name):
    """The kernel gets a pointer and the shape, and takes the array for contiguous."""
    x = Attention.stored(self, name)
    return np.resize(storage(x), x.shape)


@instead_of("clean", "inputs_are_unchanged")
def padding_cleaned_in_place(self, x):
    """Rows that nobody may read are set to zero where they lie: in the caller's array."""
    x = np.require(x, requirements="W")
    np.copyto(x, Attention.clean(self, x))
    return x


@instead_of("accumulator", "equals_the_oracle", "gradients_equal_the_oracles")
def sums_in_float16(self):
    """Scores and running sums are kept in the dtype of the input."""
    return np.float16 if self.problem.q.dtype == np.float16 else Attention.accumulator(self)


@instead_of("product", "equals_the_oracle")
def float32_inside_float64(self):
    """A table, a constant or a buffer is float32 whatever the input is."""
    return Attention.product(self).astype(np.float32).astype(self.wide)


# --- scores ---------------------------------------------------------------------------------------------------

@instead_of("product", "equals_the_oracle")
def scale_applied_twice(self):
    """Once to q before the call, once to q·k inside."""
    return self.scale * Attention.product(self)


@instead_of("scores", "equals_the_oracle")
def softcap_after_the_mask(self):
    """c·tanh(−inf / c) is −c: hidden keys come back."""
    return self.cap(self.hide(self.product() + self.added()))


@instead_of("bias", "equals_the_oracle")
def bias_scaled(self):
    """The bias is added before the scale is applied, which is for q·k only."""
    bias = Attention.bias(self)
    return None if bias is None else np.where(bias == -np.inf, bias, self.scale * bias)


@instead_of("added", "any_tiles_give_the_same", "order_of_keys_is_free")
def bias_of_the_first_tile(self):
    """The pointer to the bias is not moved on with the tile of keys."""
    added = np.broadcast_to(Attention.added(self), self.visible.shape)
    return added[..., self.j % self.Bc]


@instead_of("distance", "equals_the_oracle")
def alibi_without_offset(self):
    """|i − j|, which is the distance only where Nq = Nk."""
    return np.abs(self.i - self.j).astype(self.wide)


# --- forward --------------------------------------------------------------------------------------------------

@instead_of("start", "equals_the_oracle", "shifted_scores_move_only_lse")
def maximum_starts_at_zero(self):
    """Memory for the running maximum is cleared to 0, and in a row of low scores every exp underflows."""
    m, l, acc = Attention.start(self)
    return np.where(self.visible.any(axis=-1), self.wide(0), m), l, acc


@instead_of("alpha", "equals_the_oracle", "any_tiles_give_the_same")
def rescaling_inverted(self, m, m_new):
    """diag(exp(m_old − m_new))⁻¹, as Algorithm 1 of the FlashAttention-2 paper prints it."""
    return np.where(m == -np.inf, self.wide(0), 1 / np.maximum(self.exp(m, m_new), np.finfo(self.wide).tiny))


@instead_of("exp", "empty_rows_raise_no_warning")
def not_a_number_swept_away(self, x, m):
    """−inf − −inf is let happen, and nan_to_num cleans up afterwards."""
    return np.nan_to_num(np.exp(x - m))


@instead_of("tiles", "equals_the_oracle", "any_tiles_give_the_same")
def last_ragged_tile_skipped(self):
    """Tc = Nk // Bc."""
    return [cols for cols in Attention.tiles(self) if cols.stop <= self.Nk]


@instead_of("tiles", "either_direction_gives_the_same")
def reverse_begins_with_a_whole_tile(self):
    """Walking back from Nk in steps of Bc, the loop ends before the keys that are left over at the front."""
    if not self.problem.reverse:
        return Attention.tiles(self)
    return [slice(stop - self.Bc, stop) for stop in range(self.Nk, self.Bc - 1, -self.Bc)]


@instead_of("step", "equals_the_oracle", "any_tiles_give_the_same")
def padded_keys_counted(self, m, l, acc, S, V):
    """The last tile is filled up with zero keys, whose score 0 is not hidden."""
    missing = -self.Nk % self.Bc if S.shape[-1] == self.Nk % self.Bc else 0
    S = np.concatenate([S, np.zeros((*S.shape[:-1], missing), self.wide)], axis=-1)
    V = np.concatenate([V, np.zeros((*V.shape[:-2], missing, self.dv), self.wide)], axis=-2)
    return Attention.step(self, m, l, acc, S, V)


@instead_of("see_sink", "equals_the_oracle", "any_tiles_give_the_same")
def sink_seen_by_every_tile(self, m, l, acc):
    """Each partial softmax starts with the sink, and the parts are then added up."""
    for _ in self.tiles():
        m, l, acc = Attention.see_sink(self, m, l, acc)
    return m, l, acc


@instead_of("normalise", "outputs_are_fully_written")
def empty_rows_left_unwritten(self, acc, l):
    """A row that sees no key returns early, before anything is stored."""
    return np.divide(acc, l[..., None], where=l[..., None] > 0, out=np.empty_like(acc))


@instead_of("normalise", "repeats_are_bitwise_equal")
def parts_added_in_any_order(self, acc, l):
    """Blocks add to the output whenever they finish: the last bits are different every time."""
    noise = np.random.default_rng().uniform(-100, 100, acc.shape) * np.finfo(self.wide).eps
    return Attention.normalise(self, acc * (1 + noise).astype(self.wide), l)


@instead_of("start", "linear_in_the_values")
def values_in_8_bits(self):
    """A path for quantised values is taken for all of them: V is stored as whole numbers up to 127 and one scale."""
    step = np.abs(self.V).max(initial=0) / self.wide(127) or self.wide(1)
    self.V = np.round(self.V / step) * step
    return Attention.start(self)


@instead_of("lse", "equals_the_oracle", "parts_merge_to_the_whole")
def lse_in_base_2(self, m, l):
    """The kernel works with exp2 and log2, and does not come back to e."""
    return Attention.lse(self, m, l) / self.wide(math.log(2))


@instead_of("lse", "equals_the_oracle", "shifted_scores_move_only_lse")
def lse_without_the_maximum(self, m, l):
    """log l alone, where l = Σ exp(s − m)."""
    return Attention.lse(self, np.where(m == -np.inf, m, self.wide(0)), l)


@instead_of("lse", "equals_the_oracle")
def lse_of_empty_rows_plus_infinity(self, m, l):
    """So that exp(s − lse) is 0 in the backward pass; whoever merges by lse then trusts the empty part alone."""
    return np.where(l == 0, self.wide(np.inf), Attention.lse(self, m, l))


@instead_of("lse", "equals_the_oracle")
def sink_left_out_of_lse(self, m, l):
    """The sink joins the denominator after lse is stored."""
    if self.problem.sink is None:
        return Attention.lse(self, m, l)
    without = l - np.exp(self.problem.sink.astype(self.wide)[:, None] - m)
    return Attention.lse(self, np.where(without > 0, m, self.wide(-np.inf)), np.maximum(without, 0))


@instead_of("store", "shapes_and_dtypes")
def answers_in_the_accumulators_dtype(self, x, dtype):
    """The last cast is missing."""
    return x


@instead_of("packed", "packed_is_a_loop_over_sequences")
def sequences_leak(cls, problems):
    """The first tile of keys begins before its sequence does, and the keys of the one before are not hidden."""
    answers = [cls(problems[0]).answer()]
    for before, p in pairwise(problems):
        k, v = (np.concatenate([getattr(x, name) for x in (before, p)], axis=2) for name in ("k", "v"))
        a, n = cls(p.replace(k=k, v=v)).answer(), before.k.shape[2]
        answers.append(a if a.dk is None else replace(a, dk=a.dk[:, :, n:], dv=a.dv[:, :, n:]))
    return with_one_dsink(answers)


# --- backward -------------------------------------------------------------------------------------------------

@instead_of("probabilities", "gradients_equal_the_oracles")
def mask_forgotten_in_backward(self, L):
    """The scores are formed once more, but not hidden once more."""
    return self.exp(self.cap(self.product()) + self.added(), L[..., None])


@instead_of("D", "gradients_equal_the_oracles")
def D_for_a_dout_of_ones(self, dO, O):
    """rowsum(O): the gradient was only ever tried on out.sum()."""
    return Attention.D(self, np.ones_like(dO), O)


@instead_of("dL", "gradients_equal_the_oracles")
def dlse_ignored(self):
    """lse is returned for information only, until somebody merges by it."""
    return self.wide(0)


@instead_of("chain", "gradients_equal_the_oracles")
def softcap_without_its_derivative(self, dS):
    """The cap is put into the forward pass, and the backward pass left as it was."""
    return dS


@instead_of("dQ", "gradients_equal_the_oracles")
def dQ_of_the_last_tile_only(self, dX):
    """dQ is stored at every step where it should be added to."""
    dQ = np.zeros_like(self.Q)
    for cols in self.tiles():
        dQ = self.scale * (dX[..., cols] @ self.K[:, :, cols])
    return dQ


@instead_of("dK", "gradients_equal_the_oracles")
def scale_forgotten_in_dK(self, dX):
    """q was scaled when it was loaded, so that dQ needs the factor; here nobody scaled q for dK."""
    return dX.mT @ self.Q


@instead_of("dV", "gradients_equal_the_oracles")
def dV_from_unnormalised_P(self, P, dO):
    """exp(S − m) is at hand, exp(S − L) is meant."""
    return Attention.dV(self, P * self.l[..., None], dO)


@instead_of("gather", "gradients_equal_the_oracles", "grouped_heads_are_repeated_heads")
def last_head_of_the_group_wins(self, dX):
    """dK and dV are stored per query head into the place of the KV head, one over the other."""
    return dX[:, self.group - 1::self.group]


@instead_of("dbias", "gradients_equal_the_oracles")
def dbias_of_the_last_batch_entry(self, dS):
    """A bias that all batch entries share gets stored, not added, once per entry."""
    shared = self.problem.bias is not None and (self.problem.bias.ndim < 4 or len(self.problem.bias) == 1)
    last = np.arange(self.B)[:, None, None, None] == self.B - 1
    return Attention.dbias(self, np.where(last, dS, 0) if shared else dS)
