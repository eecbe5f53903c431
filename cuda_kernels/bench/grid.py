"""Which problems are measured: always as many tokens, so that a longer sequence means a smaller batch."""

from itertools import product
from typing import NamedTuple

TOKENS, HIDDEN = 16384, 2048
DIMS = (64, 128, 256)
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
QUICK_DIMS, QUICK_LENGTHS = (64, 128), (1024, 4096)
PRODUCTS = {"forward": 2, "backward": 5}
SCORE_BYTES = {"forward": 9, "backward": 16}    # of torch's plain attention for each score, at least: 4 of S, 4 of P, 1
                                                # that says "hidden"; backward 4 each of S, P, dP and dS


class Case(NamedTuple):
    """One problem: q (B, H, N, d), k and v (B, Hkv, N, d)."""

    B: int
    H: int
    Hkv: int
    N: int
    d: int
    causal: bool

    @property
    def grouped(self):
        return self.H != self.Hkv

    @property
    def kind(self):
        """In a word or two: "full", "causal", "grouped, full"."""
        return ("grouped, " if self.grouped else "") + ("causal" if self.causal else "full")


GROUPED = (Case(4, 64, 8, 4096, 128, False), Case(4, 64, 8, 4096, 128, True))


def grid(dims=DIMS, lengths=LENGTHS, tokens=TOKENS, hidden=HIDDEN, grouped=GROUPED):
    """[Case] for every head dim, length, causal or not, and behind them the grouped ones with such a d and N.

    ValueError for a head dim that does not divide `hidden`, or a length that does not divide `tokens`.
    """
    check_divides("dims", dims, hidden, "channels")
    check_divides("seqlens", lengths, tokens, "tokens")
    plain = [Case(tokens // N, hidden // d, hidden // d, N, d, causal)
             for d, N, causal in product(dims, lengths, (False, True))]
    return plain + [case for case in grouped if case.d in dims and case.N in lengths]


def check_divides(name, numbers, total, what):
    """ValueError that names the numbers which are no divisors of the total."""
    wrong = [n for n in numbers if n < 1 or total % n]
    if wrong or not numbers:
        raise ValueError(f"{name} must divide the {total} {what} of a problem, got "
                         f"{', '.join(map(str, wrong)) or 'none'}")


def flops(case, what="forward"):
    """Of the two or five products, a multiply-add as two; half of them if causal, as the papers count."""
    return 2 * PRODUCTS[what] * case.B * case.H * case.N * case.N * case.d // (2 if case.causal else 1)


def plain_bytes(case, what):
    """What standard attention needs for its scores at least: enough to know that it cannot fit."""
    return SCORE_BYTES[what] * case.B * case.H * case.N * case.N
