"""FlashAttention you can read, step through, measure and trust: the NumPy reference.

The letters, the same in every file (capitals are one head's matrices and vectors; q, k, v, out, lse the whole batch):

    B           batch entries
    Hq, Hkv     query heads, key/value heads; head h uses key/value head h // (Hq / Hkv)
    Nq, Nk      number of queries, of keys          d, dv       head dim of q and k, of v
    Q K V       (Nq, d) (Nk, d) (Nk, dv)            O           (Nq, dv)  output, normalised
    S P         (Nq, Nk)  scores, softmax of them   L           (Nq,)     log-sum-exp: log Σ exp S, natural log
    Br Bc       rows of a tile of queries, of keys  Tr Tc       how many such tiles there are
    i j         which tile of queries, of keys      rows cols   the slices of it
    Qi Kj Vj    (br, d) (bc, d) (bc, dv)            Sij Pij     (br, bc)  one tile; br ≤ Br, bc ≤ Bc
    m l acc     (br,) (br,) (br, dv)  running maximum, sum, and output not yet divided by l
    alpha       (br,)  exp(m_old − m_new): what sums made with the old maximum are worth under the new one
    D           (Nq,)  rowsum(dO ∘ O) − dL          dX          gradient of the loss with respect to X
    …_before    P, V (and its scale) of the tile whose output waits one round, in fa3.py and fa3_fp8.py
    dB          (Nq, Nk)  gradient of the bias, which is that of the final scores
    p           position of a query on the axis of the keys: p = i + Nk − Nq
    sQ sK sV    (Tr,) (Tc,) (Tc,)  FP8: the scale of every tile of Q, of K, of V
    rule kind   all options of a head; whether a tile is empty, partial or full
    wide        the accumulator dtype: float64 for float64, else float32

Q, K, V, O, L live in memory (HBM on a GPU); everything with an i or j, and m, l, acc, lives on chip (in fa1.py O, l and
m live in memory too: that is its price). Cores (`forward_head`, `backward_head`) check nothing (but fa3_fp8, which has
no other door); `forward` and `backward` check everything. Read in this order: scores, online_softmax, standard, fa1,
fa2, fa3, fp8, fa3_fp8, heads, varlen. Then what looks at them: ledger (countable, metered, frames), costs, player
(recorder, page), schedule, fp8_errors, tables.
"""

from fa_ref.heads import ALGORITHMS, Forward, Gradients, backward, forward

__all__ = ["ALGORITHMS", "Forward", "Gradients", "backward", "forward"]
__version__ = "0.1.0"
