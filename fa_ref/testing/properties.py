"""What every right implementation of attention satisfies, one function each.

A check takes an implementation fn(problem) -> Result, one recipe, and what the implementation supports. It
raises PropertyError or returns. `@asks` names what it needs (an implementation without that is "unsupported",
never "ok"), what is left out of the problems drawn for it, and what all of them contain.
"""

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import ml_dtypes
import numpy as np

from fa_ref.testing import oracle
from fa_ref.testing.asking import PROPERTIES, Property, asks
from fa_ref.testing.building import random
from fa_ref.testing.problem import Result
from fa_ref.testing.unread import clean_unread, visible
from fa_ref.testing.verdict import NAMES, added, agree, allowed, ask, at, call, fail, in_our_terms, promised, total

__all__ = ["PROPERTIES", "Property"]
POSITIONS = ("causal", "window", "alibi")  # options for which it matters where a key stands
SHIFTS = (-30.0, -2.0, 3.0, 30.0)
BY_CHANCE = "invalid value encountered in matmul"  # NumPy's BLAS reads what lies on the stack, and does not use it


# --- against the oracle ---------------------------------------------------------------------------------------

@asks(without=["gradients"])
def equals_the_oracle(fn, recipe, supports):
    """out (and lse) are the oracle's, within the bound of every element."""
    against_the_oracle(fn, recipe, supports)


@asks("gradients", always=["gradients"])
def gradients_equal_the_oracles(fn, recipe, supports):
    """The gradients for a random dout (and dlse) are the oracle's, within the bound of every element."""
    against_the_oracle(fn, recipe, supports)


def against_the_oracle(fn, recipe, supports):
    """The truth is found before fn is called: it may write to its inputs."""
    problem = recipe.build()
    truth, bound = oracle.solve(problem), allowed(problem, supports)
    agree(ask(fn, problem, recipe, supports), truth, bound, problem, recipe)


# --- the way through the tiles does not matter ----------------------------------------------------------------

@asks("tiles")
def any_tiles_give_the_same(fn, recipe, supports):
    """The sizes of the tiles do not change the answer."""
    problem = recipe.build()
    block_q, block_k = (int(n) for n in random(recipe, "property").choice(supports.tiles, 2))
    same(fn, problem, problem.replace(block_q=block_q, block_k=block_k), recipe, supports, "other tiles")


@asks("reverse")
def either_direction_gives_the_same(fn, recipe, supports):
    """The direction of the loop over the keys does not change the answer."""
    problem = recipe.build()
    same(fn, problem, problem.replace(reverse=not problem.reverse), recipe, supports, "the other direction")


def same(fn, problem, other, recipe, supports, what):
    """Two problems with the same truth get answers within their two bounds."""
    bound = allowed(problem, supports)
    agree(ask(fn, problem, recipe, supports), ask(fn, other, recipe, supports), added(bound, bound), problem,
          recipe, f" as with {what}")


# --- parts and wholes -----------------------------------------------------------------------------------------

@asks("lse", "cross_lengths", without=["gradients", *POSITIONS])
def parts_merge_to_the_whole(fn, recipe, supports):
    """Attention over parts of the keys, merged by lse, is attention over all keys."""
    problem = recipe.build()
    parts = [part_of_keys(problem, start, stop) for start, stop in cuts(problem, recipe, supports)]
    parts[1:] = [part.replace(sink=None) for part in parts[1:]]     # the sink counts once
    merged, uncertain = merge([ask(fn, part, recipe, supports) for part in parts],
                              [allowed(part, supports) for part in parts])
    whole = ask(fn, problem, recipe, supports)
    agree(merged, whole, added(uncertain, allowed(problem, supports)), problem, recipe,
          f" as for the whole ({len(parts)} parts, cut at {[part.k.shape[2] for part in parts]})")


def cuts(problem, recipe, supports):
    """(start, stop) of up to three parts of the keys; parts that may not be asked for (empty ones) do not occur."""
    Nk, step = problem.k.shape[2], supports.length_multiples[1]
    edges = [0, *np.sort(step * random(recipe, "property").integers(0, Nk // step + 1, 2)).tolist(), Nk]
    parts = list(pairwise(edges))
    if not (supports.zero_lengths and supports.empty_rows):
        parts = [(start, stop) for start, stop in parts if start < stop]
    if not supports.empty_rows and not all(visible(part_of_keys(problem, *part)).any(-1).all() for part in parts):
        parts = []
    return parts or [(0, Nk)]


def part_of_keys(problem, start, stop):
    """The problem with the keys start ≤ j < stop only."""
    def along_keys(x):
        return x if x is None or x.shape[-1] == 1 else x[..., start:stop]

    return problem.replace(k=problem.k[:, :, start:stop], v=problem.v[:, :, start:stop],
                           mask=along_keys(problem.mask), bias=along_keys(problem.bias))


def merge(answers, bounds):
    """(merged answer, its bound): parts weigh exp(lse − lse of all); a part of weight zero is not read."""
    lses = np.stack([answer.lse.astype(np.float64) for answer in answers])
    top = lses.max(axis=0)
    weights = np.exp(lses - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=0)
    weights = np.divide(weights, total, where=total > 0, out=weights)
    lse = np.where(total > 0, top + np.log(total, where=total > 0, out=np.zeros_like(total)), -np.inf)
    outs = [np.where(w[..., None] > 0, a.out.astype(np.float64), 0) for w, a in zip(weights, answers, strict=True)]

    of_lse = sum(w * b.lse for w, b in zip(weights, bounds, strict=True))
    out = sum(w[..., None] * x for w, x in zip(weights, outs, strict=True))
    of_out = sum(w[..., None] * (b.out + np.expm1(np.minimum(b.lse + of_lse, 50))[..., None] * abs(x))
                 for w, x, b in zip(weights, outs, bounds, strict=True))
    return Result(out, lse), Result(of_out, of_lse)


@asks("packed", without=["bool_mask", "float_mask", "bias", "zero_lengths"])
def packed_is_a_loop_over_sequences(fn, recipe, supports):
    """Sequences packed into one call get the answers that they get one by one (and dsink is the sum)."""
    problems = sequences(recipe, supports)
    packed = call(lambda problems: list(supports.packed(problems)), problems, problems[0], recipe)
    if len(packed) != len(problems):
        fail(f"{len(problems)} packed sequences, but {len(packed)} results", problems[0], recipe)
    alone, bounds = [ask(fn, p, recipe, supports) for p in problems], [allowed(p, supports) for p in problems]
    dsink, of_dsink = total("dsink", alone), total("dsink", bounds)
    for problem, answer, want, bound in zip(problems, packed, alone, bounds, strict=True):
        want, bound = replace(want, dsink=dsink), replace(added(bound, bound), dsink=of_dsink)
        agree(in_our_terms(answer, problem, recipe, supports), want, bound, problem, recipe,
              f" as alone (packed: {[(p.q.shape[2], p.k.shape[2]) for p in problems]})")


def sequences(recipe, supports):
    """Two to four problems of one sequence each, of random lengths, that share everything else."""
    rng = random(recipe, "property")
    first = recipe.but(B=1, alibi="none" if recipe.alibi == "none" else "H")
    problems = [first.build()]
    of_q, of_k = supports.length_multiples
    least = 0 if supports.zero_lengths and supports.empty_rows else 1
    for n in range(int(rng.integers(1, 4))):
        Nq = of_q * int(rng.integers(least, supports.max_length // of_q + 1))
        Nk = of_k * int(rng.integers(least, supports.max_length // of_k + 1))
        if not supports.cross_lengths or recipe.Nq == recipe.Nk:
            Nk = Nq
        elif not supports.empty_rows:
            Nk = max(Nk, -(-Nq // of_k) * of_k)
        other = first.but(Nq=Nq, Nk=Nk, seed=recipe.seed + 1 + n).build()
        problems.append(other.replace(alibi_slopes=problems[0].alibi_slopes, sink=problems[0].sink))
    return problems


@asks("grouped", always=["grouped"])
def grouped_heads_are_repeated_heads(fn, recipe, supports):
    """Query heads that share a KV head get what they get with a copy each; dk and dv are sums over the group."""
    problem = recipe.build()
    B, Hkv, _, _ = problem.k.shape
    group = problem.q.shape[1] // Hkv
    repeated = problem.replace(k=problem.k.repeat(group, axis=1), v=problem.v.repeat(group, axis=1))

    def summed(answer):
        return replace(answer, **{name: x.astype(np.float64).reshape(B, Hkv, group, *x.shape[2:]).sum(axis=2)
                                  for name in ("dk", "dv") if (x := getattr(answer, name)) is not None})

    agree(ask(fn, problem, recipe, supports), summed(ask(fn, repeated, recipe, supports)),
          added(allowed(problem, supports), summed(allowed(repeated, supports))), problem, recipe,
          " as with repeated heads")


# --- symmetries of the formula --------------------------------------------------------------------------------

@asks(without=["gradients", "softcap", "sink"])
def shifted_scores_move_only_lse(fn, recipe, supports):
    """A constant added to all scores leaves out as it is and is added to lse."""
    problem = recipe.build()
    scale = problem.q.shape[3] ** -0.5 if problem.scale is None else problem.scale
    column = problem.k.dtype.type(random(recipe, "property").choice(SHIFTS) / (scale or 1))
    q = with_last_column(problem.q, 1)
    plain = problem.replace(q=q, k=with_last_column(problem.k, 0))
    moved = problem.replace(q=q, k=with_last_column(problem.k, column))
    want, got = ask(fn, plain, recipe, supports), ask(fn, moved, recipe, supports)
    lse = None if supports.lse is None else got.lse - float(column) * scale
    agree(Result(got.out, lse), want, added(allowed(plain, supports), allowed(moved, supports)), problem, recipe,
          f" as without the shift of {float(column) * scale:g}")


def with_last_column(x, number):
    """A copy of x in which the last channel of every row is this number."""
    x = x.copy()
    x[..., -1] = number
    return x


@asks(without=POSITIONS)
def order_of_keys_is_free(fn, recipe, supports):
    """Permuting the keys (values, mask and bias with them) permutes dk, dv, dbias and changes nothing else."""
    problem = recipe.build()
    order = random(recipe, "property").permutation(problem.k.shape[2])

    def permuted(x, axis):
        return x if x is None or x.shape[axis] == 1 else x.take(order, axis=axis)

    shuffled = problem.replace(k=permuted(problem.k, 2), v=permuted(problem.v, 2), mask=permuted(problem.mask, -1),
                               bias=permuted(problem.bias, -1))
    def reordered(answer):
        return replace(answer, dk=permuted(answer.dk, 2), dv=permuted(answer.dv, 2), dbias=permuted(answer.dbias, -1))

    bound = reordered(allowed(problem, supports))
    agree(ask(fn, shuffled, recipe, supports), reordered(ask(fn, problem, recipe, supports)), added(bound, bound),
          problem, recipe, f" (the keys taken as {at(order)})")


@asks(without=["gradients"])
def linear_in_the_values(fn, recipe, supports):
    """out for the values V + W is out for V plus out for W (with numbers whose sums are exact)."""
    problem = recipe.build()
    quarters = np.round(4 * random(recipe, "property").standard_normal((2, *problem.v.shape))).clip(-16, 16)
    V, W = (quarters / 4).astype(problem.v.dtype)
    problems = [problem.replace(v=v) for v in (V + W, V, W)]
    both, one, other = (ask(fn, p, recipe, supports) for p in problems)
    out = one.out.astype(np.float64) + other.out.astype(np.float64)
    agree(Result(both.out), Result(out), added(*(Result(allowed(p, supports).out) for p in problems)), problem,
          recipe, " as the sum of both")


# --- what must have no influence ------------------------------------------------------------------------------

@asks("causal", always=["causal"])
def the_future_has_no_influence(fn, recipe, supports):
    """With a causal rule, new numbers in later keys and values change no earlier row of out, lse and dq."""
    problem = recipe.build()
    rng, (_, Hq, Nq, _), (B, Hkv, Nk, _) = random(recipe, "property"), problem.q.shape, problem.k.shape
    rows = int(rng.integers(min(1, Nq), Nq + 1))
    seen = visible(problem)[:, :, :rows].reshape(B, Hkv, Hq // Hkv * rows, Nk).any(axis=2)[..., None]

    def changed(x):
        return np.where(seen, x, rng.permutation(x, axis=3) + x.dtype.type(1))

    other = problem.replace(k=changed(problem.k), v=changed(problem.v))

    def past(answer):
        return Result(**{name: x[:, :, :rows] for name in ("out", "lse", "dq")
                         if (x := getattr(answer, name)) is not None})

    agree(past(ask(fn, other, recipe, supports)), past(ask(fn, problem, recipe, supports)),
          added(past(allowed(problem, supports)), past(allowed(other, supports))), problem, recipe,
          f" as before the keys that no row up to {rows - 1} sees were changed")


@asks("unread_nan", always=["unread_nan"])
def unread_storage_has_no_influence(fn, recipe, supports):
    """NaN and inf in keys that nobody may see, in queries that see no key, and around strided views change nothing."""
    problem = recipe.build()
    same(fn, problem, clean_unread(problem), recipe, supports, "zeros there")


# --- conduct --------------------------------------------------------------------------------------------------

@asks(conduct=True)
def repeats_are_bitwise_equal(fn, recipe, supports):
    """The same call gives the same bits."""
    problem = recipe.build()
    once, again = ask(fn, problem, recipe, supports), ask(fn, problem, recipe, supports)
    equal_bits(once, again, repeatable(supports), problem, recipe, "in a second call")


@asks(numpy_only=True, conduct=True)
def outputs_are_fully_written(fn, recipe, supports):
    """Fresh memory full of NaN (np.empty and np.empty_like are replaced during the call) changes no bit.

    Gradients that are not the same bits every time may change within their bounds.
    """
    problem = recipe.build()
    plain = ask(fn, problem, recipe, supports)
    with fresh_memory_is_nan():
        poisoned = ask(fn, problem, recipe, supports)
    equal_bits(plain, poisoned, repeatable(supports), problem, recipe, "when fresh memory holds NaN")
    if not supports.deterministic:
        bound = allowed(problem, supports)
        agree(poisoned, plain, added(bound, bound), problem, recipe, " when fresh memory holds NaN")


def repeatable(supports):
    """The fields that must be the same bits in every call."""
    return NAMES if supports.deterministic else ("out", "lse")


def equal_bits(once, again, names, problem, recipe, when):
    """PropertyError unless both answers hold the same bits in these fields."""
    for name in names:
        x, y = getattr(once, name), getattr(again, name)
        if x is not None and x.tobytes() != y.tobytes():
            where = np.argwhere(~((x == y) | (np.isnan(x) & np.isnan(y))))
            index = tuple(where[0]) if len(where) else (0,) * x.ndim
            fail(f"{name}{at(index)} is {x[index]}, and {y[index]} {when}", problem, recipe)


@contextmanager
def fresh_memory_is_nan():
    """np.empty and np.empty_like give floating arrays full of NaN. It reaches code that calls them by these names."""
    def poisoned(make):
        def make_nan(*args, **kwargs):
            x = make(*args, **kwargs)
            if x.dtype.kind in "fc" or x.dtype == ml_dtypes.bfloat16:
                x.fill(np.nan)
            return x
        return make_nan

    with mock.patch.object(np, "empty", poisoned(np.empty)):
        with mock.patch.object(np, "empty_like", poisoned(np.empty_like)):
            yield


@asks(conduct=True)
def inputs_are_unchanged(fn, recipe, supports):
    """No input changes by a bit, nor does the storage around it."""
    problem = recipe.build()
    arrays = {name: x for name, x in vars(problem).items() if isinstance(x, np.ndarray)}
    before = {name: storage(x).tobytes() for name, x in arrays.items()}
    ask(fn, problem, recipe, supports)
    for name, x in arrays.items():
        if storage(x).tobytes() != before[name]:
            fail(f"{name} was written to", problem, recipe)


def storage(x):
    """The array whose memory x is a view of."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


@asks(conduct=True)
def shapes_and_dtypes(fn, recipe, supports):
    """out is shaped and typed like q (with v's channels), gradients like their inputs, lse float32 or wider."""
    problem = recipe.build()
    answer = ask(fn, problem, recipe, supports)                     # looks at shapes
    for name in promised(problem, supports):
        dtype, exact = getattr(answer, name).dtype, name in ("out", "dq", "dk", "dv")
        if dtype != problem.q.dtype if exact else dtype not in (np.float32, np.float64):
            fail(f"{name} has dtype {dtype}, expected {problem.q.dtype if exact else 'float32 or float64'}",
                 problem, recipe)


@asks("empty_rows", always=["empty_rows"], conduct=True)
def empty_rows_raise_no_warning(fn, recipe, supports):
    """Rows that see no key cause no floating-point warning."""
    problem = recipe.build()
    heard = []
    in_our_terms(call(fn, problem, problem, recipe, heard), problem, recipe, supports)
    for warning in heard:
        if issubclass(warning.category, RuntimeWarning) and BY_CHANCE not in str(warning.message):
            fail(f"warned: {warning.message} ({warning.filename}:{warning.lineno})", problem, recipe)
