"""Answers to notebook 10."""

import numpy as np

from fa_ref.online_softmax import finite_or_zero, nonzero_or_one


def waves(B, H, N, Br, multiprocessors):
    def grid(blocks):
        rounds = -(-blocks // multiprocessors)
        return blocks, rounds, blocks / (rounds * multiprocessors)

    return grid(B * H), grid(B * H * -(-N // Br))


def meet(m, l, acc):
    m_all = m.max(axis=0)
    weight = np.exp(m - finite_or_zero(m_all))
    l_all = (weight * l).sum(axis=0)
    O = (weight[:, :, None] * acc).sum(axis=0) / nonzero_or_one(l_all)[:, None]
    return O, m_all + np.log(nonzero_or_one(l_all))
