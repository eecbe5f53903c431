"""What every right implementation of attention satisfies, one function each.

A check takes an implementation fn(problem) -> Result, one recipe, and what the implementation supports. It
raises PropertyError or returns. `@asks` names what it needs (an implementation without that is "unsupported",
never "ok"), what is left out of the problems drawn for it, and what all of them contain.

    against_oracle      the answer is the truth
    between_answers     answers to problems that belong together agree (`parts` takes problems apart for it)
    conduct             what the function does besides its numbers

Reports list them in this order, and those of one file as they stand there.
"""

from fa_ref.testing.asking import PROPERTIES, Property
from fa_ref.testing.properties import against_oracle, between_answers, conduct  # noqa: F401  enter theirs, in this order

__all__ = ["PROPERTIES", "Property"]
