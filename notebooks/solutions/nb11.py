"""Answers to notebook 11."""

import math

import numpy as np

from exercises.nb11 import KINDS, UNITS
from fa_ref.schedule import Task, run


def fa3_forward(Q, K, V, Br, Bc):
    O, L = np.empty((len(Q), V.shape[1])), np.empty(len(Q))
    for i in range(0, len(Q), Br):
        Qi = Q[i:i + Br]
        m, l, acc = np.full(len(Qi), -np.inf), np.zeros(len(Qi)), np.zeros((len(Qi), V.shape[1]))
        P_before, V_before = np.zeros((len(Qi), 0)), V[:0]
        for j in range(0, len(K), Bc):
            Sij = Qi @ K[j:j + Bc].T * (1 / math.sqrt(Q.shape[1]))
            acc = acc + P_before @ V_before
            m_new = np.maximum(m, Sij.max(axis=1))
            Pij = np.exp(Sij - m_new[:, None])
            alpha = np.exp(m - m_new)
            l = alpha * l + Pij.sum(axis=1)
            acc = alpha[:, None] * acc
            m, P_before, V_before = m_new, Pij, V[j:j + Bc]
        acc = acc + P_before @ V_before
        O[i:i + Br], L[i:i + Br] = acc / l[:, None], m + np.log(l)
    return O, L


def schedule(T):
    tasks = []

    def add(kind, j, *after):
        tasks.append(Task(f"{kind} {j}", *KINDS[kind], tuple(f"{other} {n}" for other, n in after if n >= 0)))

    for j in range(T + 1):
        if j < T:
            add("K", j, ("S", j - 2))
            add("V", j, ("PV", j - 2))
            add("S", j, ("K", j), ("PV", j - 2))
            add("P", j, ("S", j), ("P", j - 1))
        if j > 0:
            add("PV", j - 1, ("P", j - 1), ("V", j - 1), ("PV", j - 2))
    return run(tasks, UNITS)
