"""Try one property on drawn problems, and shrink the first failing one to the smallest."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Flaky

from fa_ref.testing.asking import PROPERTIES
from fa_ref.testing.recipe import Recipe
from fa_ref.testing.verdict import PropertyError

OK, UNSUPPORTED, FAILED, OUT_OF_TIME = "ok", "unsupported", "failed", "out of time"


@dataclass(frozen=True)
class Row:
    """What became of one property: status, on how many problems, and why (for a failure: the whole story)."""

    name: str
    status: str
    examples: int = 0
    detail: str = ""
    recipe: Recipe | None = None


class _OutOfTime(BaseException):
    """Ends a run of Hypothesis from within: it takes only BaseException for no failure."""


def try_property(name, fn, supports, *, examples=100, seed=0, stop_at=None, on_example: Callable = lambda: None):
    """Row for one property on `examples` drawn problems. stop_at: a time.monotonic() after which to give up."""
    prop = PROPERTIES[name]
    if why := prop.refusal(supports):
        return Row(name, UNSUPPORTED, detail=why)
    tried, failures = 0, []

    @hypothesis.seed(seed)
    @settings(max_examples=examples, database=None, deadline=None, phases=[Phase.generate, Phase.shrink],
              suppress_health_check=list(HealthCheck), print_blob=False, report_multiple_bugs=False)
    @given(prop.recipes(supports))
    def run(recipe):
        nonlocal tried
        if stop_at is not None and time.monotonic() > stop_at:
            raise _OutOfTime
        try:
            prop(fn, recipe, supports)
        except PropertyError as error:
            failures.append(error)
            raise
        tried += not failures
        on_example()

    try:
        run()
    except PropertyError as error:
        return Row(name, FAILED, tried, str(error), error.recipe)
    except Flaky:
        detail = f"{failures[-1]}\n(not always: the same problem also passed)"
        return Row(name, FAILED, tried, detail, failures[-1].recipe)
    except _OutOfTime:
        if failures:
            detail = f"{failures[-1]}\n(time ran out while looking for a smaller problem)"
            return Row(name, FAILED, tried, detail, failures[-1].recipe)
        return Row(name, OUT_OF_TIME, tried, f"{tried} of {examples} problems passed before the time was up")
    return Row(name, OK, tried)


def replay_property(name, fn, supports, recipe):
    """Row for one property on this one recipe."""
    prop = PROPERTIES[name]
    if why := prop.refusal_of(recipe, supports):
        return Row(name, UNSUPPORTED, detail=why)
    try:
        prop(fn, recipe, supports)
    except PropertyError as error:
        return Row(name, FAILED, 1, str(error), recipe)
    return Row(name, OK, 1)
