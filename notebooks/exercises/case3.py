"""The checks of case 3 (notebook 06): a witness and a repair, both judged by running them."""

import importlib.util
from pathlib import Path

from course.checking import Case, TookTooLong, Verdict, check, number, time_limit, without_case
from fa_ref.testing import Recipe, oracle, tolerance
from fa_ref.testing import check as conformance


def case3(step=None, version=None):
    """A fresh copy of notebooks/detective/case3.py, with one step replaced."""
    path = Path(__file__).parent.parent / "detective" / "case3.py"
    spec = importlib.util.spec_from_file_location("case3_copy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if step:
        setattr(module, step, version)
    return module


def case3_witness(answer):
    """Check case3_witness() → three seed lines: one that is wrong, two near it that are right."""
    verdict = check(answer, [Case("the three seed lines", {})], without_case(fault_of_witness))
    return Verdict(True, "ok: wrong, right, right. It takes a ragged last tile of keys, and nothing that hides keys "
                         "there anyway.") if verdict else verdict


def fault_of_witness(returned):
    """What is wrong with the three seed lines, or None."""
    if not isinstance(returned, tuple | list) or len(returned) != 3 or not all(isinstance(x, str) for x in returned):
        return f"It must return three seed lines (strings), got {returned!r}."
    names, module = ("broken", "other_length", "other_sight"), case3()
    try:
        recipes = [Recipe.parse(line) for line in returned]
    except ValueError as error:
        return f"Not a seed line: {error}"
    for name, recipe in zip(names, recipes, strict=True):
        if max(recipe.B, recipe.Hq, recipe.Nq, recipe.Nk, recipe.d) > 64:
            return f"{name} is larger than it needs to be: no number above 64, please."
        if why := module.supports.refusal(recipe):
            return f"{name} cannot be asked: case 3 {why}."
    if recipes[0].Nk <= 8:
        return f"broken has {number(recipes[0].Nk, 'key', 'keys')}; find one with more than 8."
    for name, recipe, allowed in zip(names[1:], recipes[1:], ({"Nk"}, {"causal", "window"}), strict=True):
        changed = {key for key, value in vars(recipe).items() if value != getattr(recipes[0], key)}
        if len(changed) != 1 or not changed <= allowed:
            return (f"{name} must differ from broken in {' or '.join(sorted(allowed))} alone; it differs in "
                    f"{', '.join(sorted(changed)) or 'nothing'}.")
    for name, recipe in zip(names, recipes, strict=True):
        error = error_of(module, recipe)
        if (error > 1) != (name == "broken"):
            return (f"Case 3 is {'wrong' if error > 1 else 'right'} for {name} ({str(recipe)!r}): its largest "
                    f"error is {error:.2g} times the bound.")
    return None


def error_of(module, recipe):
    """The largest error of an answer, as a multiple of its bound."""
    problem = recipe.build()
    worst = tolerance.worst(module.attention(problem), oracle.solve(problem), tolerance.bounds(problem))
    return max(x.fraction for x in worst.values())


def times_the_bound(line):
    """The error of case 3 for a seed line, as a multiple of its bound."""
    return error_of(case3(), Recipe.parse(line))


def case3_repair(answer):
    """Check case3_repair() → (name of one step, a function to put in its place)."""
    verdict = check(answer, [Case("the name of the step, and its repair", {})], without_case(fault_of_repair))
    return Verdict(True, "ok: the kit passes, and tiles that need no mask go without.") if verdict else verdict


UNMASKED = {                                                        # which tiles need to ask `visible`
    "Nq=8 Nk=10 block_q=4 block_k=4": [(0, 8), (4, 8)],
    "Nq=6 Nk=10 block_q=4 block_k=4": [(0, 8), (4, 8)],            # a ragged tile of queries needs no mask
    "Nq=8 Nk=8 block_q=4 block_k=4": [],
}


def fault_of_repair(returned):
    """What is wrong with (name of a step, function), or None."""
    steps = case3().STEPS
    if not (isinstance(returned, tuple | list) and len(returned) == 2 and returned[0] in steps
            and callable(returned[1])):
        return f"It must return (name, function), the name one of {', '.join(steps)}; got {returned!r}."
    mended = case3(*returned)
    try:
        with time_limit(6):
            report = conformance(mended.attention, mended.supports, examples=40,
                                 properties=("equals_the_oracle", "the_future_has_no_influence"))
    except TookTooLong:
        return "With this repair the kit was not done within 6 s."
    if report.failures:
        row = report.failures[0]
        return (f"The kit does not pass with this {returned[0]}: {row.name} fails for {str(row.recipe)!r}, "
                + row.detail.partition("\n")[0])
    look, asked = mended.visible, []
    mended.visible = lambda *tile: asked.append(tile[:2]) or look(*tile)
    for line, needed in UNMASKED.items():
        asked.clear()
        mended.attention(Recipe.parse(line).build())
        if sorted(asked) != needed:
            return (f"Right, but for {line.partition(' block')[0]} without a mask these tiles (i0, j0) asked "
                    f"`visible`: {', '.join(map(str, asked)) or 'none'}. Those that need to: "
                    f"{', '.join(map(str, needed)) or 'none'}. The others must stay as fast as they were.")
    return None
