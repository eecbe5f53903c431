"""Answers of one function to problems that belong together agree with one another, within their bounds."""

from dataclasses import replace

import numpy as np

from fa_ref.testing.asking import asks
from fa_ref.testing.building import random
from fa_ref.testing.problem import Result
from fa_ref.testing.properties.parts import cuts, merge, part_of_keys, sequences
from fa_ref.testing.unread import clean_unread, visible
from fa_ref.testing.verdict import added, agree, allowed, ask, at, call, fail, in_our_terms, total

POSITIONS = ("causal", "window", "alibi")  # options for which it matters where a key stands
SHIFTS = (-30.0, -2.0, 3.0, 30.0)


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
          f" as for the whole (parts of {[part.k.shape[2] for part in parts]} keys)")


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
