"""Wrong answers to notebook 10; each must be rejected."""

import numpy as np


def grids(fa1, fa2, multiprocessors):
    """Right once the numbers of blocks are."""
    rounds = [-(-blocks // multiprocessors) for blocks in (fa1, fa2)]
    return [(blocks, n, blocks / (n * multiprocessors)) for blocks, n in zip((fa1, fa2), rounds, strict=True)]


def waves__a_started_wave_does_not_count(B, H, N, Br, multiprocessors):
    found = []
    for blocks in (B * H, B * H * -(-N // Br)):
        rounds = max(1, blocks // multiprocessors)
        found.append((blocks, rounds, blocks / (rounds * multiprocessors)))
    return found


def waves__forgets_the_heads(B, H, N, Br, multiprocessors):
    return grids(B, B * -(-N // Br), multiprocessors)


def waves__forgets_the_batch(B, H, N, Br, multiprocessors):
    return grids(H, H * -(-N // Br), multiprocessors)


def waves__drops_the_last_tile(B, H, N, Br, multiprocessors):
    return grids(B * H, B * H * max(1, N // Br), multiprocessors)


def waves__the_same_grid_twice(B, H, N, Br, multiprocessors):
    return grids(B * H * -(-N // Br), B * H * -(-N // Br), multiprocessors)


def waves__busy_beyond_all(B, H, N, Br, multiprocessors):
    return [(blocks, rounds, blocks / multiprocessors)
            for blocks, rounds, _ in grids(B * H, B * H * -(-N // Br), multiprocessors)]


def shift(m):
    return np.where(m == -np.inf, 0, m)


def meet__adds_the_parts_as_they_are(m, l, acc):
    l_all = l.sum(axis=0)
    divisor = np.where(l_all == 0, 1, l_all)
    return acc.sum(axis=0) / divisor[:, None], m.max(axis=0) + np.log(divisor)


def meet__nan_where_nothing_was_seen(m, l, acc):
    m_all = m.max(axis=0)
    weight = np.exp(m - m_all)
    l_all = (weight * l).sum(axis=0)
    return (weight[:, :, None] * acc).sum(axis=0) / l_all[:, None], m_all + np.log(l_all)


def meet__the_mean_of_the_warps(m, l, acc):
    m_all = m.max(axis=0)
    l_all = (np.exp(m - shift(m_all)) * l).sum(axis=0)
    O = (acc / np.where(l == 0, 1, l)[:, :, None]).mean(axis=0)
    return O, m_all + np.log(np.where(l_all == 0, 1, l_all))


def meet__forgets_the_maximum_in_l(m, l, acc):
    m_all = m.max(axis=0)
    weight = np.exp(m - shift(m_all))
    l_all = (weight * l).sum(axis=0)
    divisor = np.where(l_all == 0, 1, l_all)
    return (weight[:, :, None] * acc).sum(axis=0) / divisor[:, None], np.where(l_all == 0, -np.inf, np.log(divisor))


def meet__one_maximum_for_all_rows(m, l, acc):
    m_all = m.max()
    weight = np.exp(m - shift(m_all))
    l_all = (weight * l).sum(axis=0)
    divisor = np.where(l_all == 0, 1, l_all)
    L = np.where(l_all == 0, -np.inf, shift(m_all) + np.log(divisor))
    return (weight[:, :, None] * acc).sum(axis=0) / divisor[:, None], L


def meet__does_not_divide(m, l, acc):
    m_all = m.max(axis=0)
    weight = np.exp(m - shift(m_all))
    l_all = (weight * l).sum(axis=0)
    return (weight[:, :, None] * acc).sum(axis=0), m_all + np.log(np.where(l_all == 0, 1, l_all))
