"""A property as an object: what it needs from an implementation, and on which problems it is tried."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fa_ref.testing.strategies import recipes

PROPERTIES: dict[str, "Property"] = {}


@dataclass(frozen=True)
class Property:
    """One statement about attention. Call it with (fn, recipe, supports): PropertyError if fn breaks it.

    needs: abilities (fields of `Supports`) without which it cannot be asked. without: abilities left out of the
    problems drawn for it. always: abilities that all these problems use. numpy_only: it watches NumPy's memory.
    conduct: it is about what the function does besides its numbers, and does not fail because they are wrong.
    """

    name: str
    sentence: str
    check: Callable
    needs: tuple[str, ...]
    without: tuple[str, ...]
    always: tuple[str, ...]
    numpy_only: bool
    conduct: bool

    def refusal(self, supports):
        """Why an implementation with these abilities cannot be asked; None if it can."""
        if self.numpy_only and supports.framework != "numpy":
            return "watches NumPy's memory only"
        missing = [name for name in self.needs if not getattr(supports, name)]
        return f"needs {', '.join(missing)}" if missing else None

    def refusal_of(self, recipe, supports):
        """Why this implementation cannot be asked about this recipe, or the property says nothing about it; None if
        it can."""
        about = set(self.always) - recipe.abilities() - {"empty_rows"}
        return (self.refusal(supports) or supports.without(*self.without).refusal(recipe)
                or (f"is about problems with {', '.join(sorted(about))}" if about else None))

    def recipes(self, supports):
        """The strategy of the recipes that it is tried on."""
        return recipes(supports.without(*self.without), self.always)

    def __call__(self, fn, recipe, supports):
        """Raise PropertyError if fn breaks the property on this recipe."""
        with np.errstate(all="ignore"):  # a wrong answer may hold infinities: comparing them is no event
            self.check(fn, recipe, supports)


def asks(*needs, without=(), always=(), numpy_only=False, conduct=False):
    """Decorator that enters a check (fn, recipe, supports) into PROPERTIES under its own name."""
    def enter(check):
        name, sentence = check.__name__, check.__doc__.strip()
        PROPERTIES[name] = Property(name, sentence, check, needs, tuple(without), tuple(always), numpy_only,
                                    conduct)
        return PROPERTIES[name]

    return enter
