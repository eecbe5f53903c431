"""Wrong answers to notebook 11; each must be rejected."""

import math

import numpy as np

LAST = {"K": ("copies", 1), "V": ("copies", 1), "S": ("tensor core", 2), "P": ("softmax", 2), "PV": ("tensor core", 2)}


def loop(Q, K, V, Br, Bc, fault=None):
    """The pipelined loop with a fault."""
    O, L = np.empty((len(Q), V.shape[1])), np.empty(len(Q))
    for i in range(0, len(Q), Br):
        Qi = Q[i:i + Br]
        m, l, acc = np.full(len(Qi), -np.inf), np.zeros(len(Qi)), np.zeros((len(Qi), V.shape[1]))
        P_before, V_before = np.zeros((len(Qi), 0)), V[:0]
        for j in range(0, len(K), Bc):
            Vj = V[j:j + Bc]
            Sij = Qi @ K[j:j + Bc].T / math.sqrt(Q.shape[1])
            m_new = np.maximum(m, Sij.max(axis=1))
            P, alpha = np.exp(Sij - m_new[:, None]), np.exp(m - m_new)[:, None]
            l = alpha[:, 0] * l + P.sum(axis=1)
            if fault == "V of the new tile" and j:
                V_before = V[len(V) - P_before.shape[1]:] if len(Vj) < P_before.shape[1] else Vj
            if fault == "rescales first":
                acc = alpha * acc + P_before @ V_before
            elif fault == "never rescales":
                acc = acc + P_before @ V_before
            else:
                acc = alpha * (acc + P_before @ V_before)
            m, P_before, V_before = m_new, P, Vj
        if fault != "forgets the last":
            acc = acc + P_before @ V_before
        O[i:i + Br], L[i:i + Br] = acc / l[:, None], m + np.log(l)
    return O, L


def fa3_forward__forgets_the_tile_that_still_waits(Q, K, V, Br, Bc):
    return loop(Q, K, V, Br, Bc, "forgets the last")


def fa3_forward__rescales_before_the_waiting_product(Q, K, V, Br, Bc):
    return loop(Q, K, V, Br, Bc, "rescales first")


def fa3_forward__never_rescales(Q, K, V, Br, Bc):
    return loop(Q, K, V, Br, Bc, "never rescales")


def fa3_forward__old_p_meets_the_new_v(Q, K, V, Br, Bc):
    return loop(Q, K, V, Br, Bc, "V of the new tile")


def fa3_forward__is_flash_attention_2(Q, K, V, Br, Bc):
    O, L = np.empty((len(Q), V.shape[1])), np.empty(len(Q))
    for i in range(0, len(Q), Br):
        Qi = Q[i:i + Br]
        m, l, acc = np.full(len(Qi), -np.inf), np.zeros(len(Qi)), np.zeros((len(Qi), V.shape[1]))
        for j in range(0, len(K), Bc):
            Sij = Qi @ K[j:j + Bc].T / math.sqrt(Q.shape[1])
            m_new = np.maximum(m, Sij.max(axis=1))
            P, alpha = np.exp(Sij - m_new[:, None]), np.exp(m - m_new)
            l, acc, m = alpha * l + P.sum(axis=1), alpha[:, None] * acc + P @ V[j:j + Bc], m_new
        O[i:i + Br], L[i:i + Br] = acc / l[:, None], m + np.log(l)
    return O, L


def fa3_forward__right_but_with_dot(Q, K, V, Br, Bc):
    O, L = np.empty((len(Q), V.shape[1])), np.empty(len(Q))
    for i in range(0, len(Q), Br):
        Qi, m, l, acc, waits = Q[i:i + Br], -np.inf, 0.0, 0.0, None
        for j in range(0, len(K), Bc):
            Sij = np.dot(Qi, K[j:j + Bc].T) / math.sqrt(Q.shape[1])
            acc = acc if waits is None else acc + waits[0] @ waits[1]
            m_new = np.maximum(m, Sij.max(axis=1))
            P, alpha = np.exp(Sij - m_new[:, None]), np.exp(m - m_new)
            l, acc, m, waits = alpha * l + P.sum(axis=1), alpha[:, None] * acc, m_new, (P, V[j:j + Bc])
        O[i:i + Br], L[i:i + Br] = (acc + waits[0] @ waits[1]) / l[:, None], m + np.log(l)
    return O, L


def fa3_forward__makes_all_scores_at_once(Q, K, V, Br, Bc):
    S = Q @ K.T / math.sqrt(Q.shape[1])
    m = S.max(axis=1)
    P = np.exp(S - m[:, None])
    l = P.sum(axis=1)
    return P @ V / l[:, None], m + np.log(l)


def at(start):
    """Rows from {"S 0": when it starts}."""
    return [(LAST[what.split()[0]][0], what, t, t + LAST[what.split()[0]][1]) for what, t in start.items()]


def best(T):
    """When each task starts in a schedule that is right; the faults below are changes of it."""
    start = {}
    for j in range(T):
        S = 1 if j == 0 else 4 * j - 1
        start |= {f"S {j}": S, f"P {j}": S + 2, f"PV {j}": 4 * j + 5 if j < T - 1 else max(S + 4, 4 * T - 1)}
        start |= {f"K {j}": S - 1, f"V {j}": S + 2}
    return start


def schedule__one_after_the_other(T):
    return at({f"{kind} {j}": 6 * j + t for j in range(T) for kind, t in
               (("K", 0), ("V", 1), ("S", 1), ("P", 3), ("PV", 5))})


def schedule__softmax_before_its_scores(T):
    return at(best(T) | {f"P {j}": best(T)[f"S {j}"] for j in range(T)})


def schedule__two_products_at_once(T):
    start = best(T)
    return at(start | {f"PV {j}": start[f"S {j}"] + 4 for j in range(T)} | {f"S {j}": 1 + 4 * j for j in range(T)}
              | {f"P {j}": 3 + 4 * j for j in range(T)})


def schedule__overwrites_v_while_it_is_read(T):
    return at(best(T) | {f"{kind} {j}": 2 * j + n for j in range(T) for n, kind in enumerate("KV")})


def schedule__reads_k_before_it_is_there(T):
    start = {what: t - 1 for what, t in best(T).items() if what[0] in "SP"}
    return at(start | {f"K {j}": start[f"S {j}"] for j in range(T)} | {f"V {j}": start[f"S {j}"] + 3 for j in range(T)})


def schedule__forgets_the_last_output(T):
    return [row for row in at(best(T)) if row[1] != f"PV {T - 1}"]
