"""Run the kit on an attention function: `check` in Python, `suite` in pytest, `main` on the command line.

    python -m fa_ref check torch.nn.functional:scaled_dot_product_attention --as sdpa --causal top-left

The command ends with 0 if every property that could be asked held; 1 if one failed; 2 for wrong usage, a module that
does not import, or nothing that could be asked; 3 if the time was up before every property got its problems; 130
after Ctrl-C, with the properties that were finished.
"""

import argparse
import importlib
import shlex
import sys
import time
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from fa_ref.testing import adapters
from fa_ref.testing.building import DTYPES
from fa_ref.testing.properties import PROPERTIES
from fa_ref.testing.recipe import Recipe
from fa_ref.testing.report import Report, story
from fa_ref.testing.running import replay_property, try_property
from fa_ref.testing.supports import CAUSAL, Supports

ABILITIES = tuple(f.name for f in fields(Supports) if not f.default and f.name != "head_dims")
ADAPTERS = ("sdpa", "flash_attn", "flex_attention", "fa_ref", "problem")


def check(fn, supports=None, *, examples=100, seed=0, time_budget=None, properties=None, progress=None):
    """Try properties on an implementation fn(problem) -> Result; returns a Report.

    supports: what it can be asked (fn.supports if None, else the least there is; adapters give both). examples:
    problems per property.
    seed: of the draw. time_budget: seconds for everything, None for no limit. properties: names, None for all.
    progress: called with the name of the property after every problem. ValueError for unknown names and numbers < 1.

        report = check(*adapters.sdpa(torch.nn.functional.scaled_dot_product_attention))
        print(report); assert report.ok
    """
    if examples < 1 or (time_budget is not None and time_budget <= 0):
        raise ValueError(f"examples and time_budget must be positive, got {examples} and {time_budget}")
    stop_at, supports = None if time_budget is None else time.monotonic() + time_budget, abilities(fn, supports)
    return Report(tuple(
        try_property(name, fn, supports, examples=examples, seed=seed, stop_at=stop_at,
                     on_example=lambda name=name: progress and progress(name))
        for name in known(properties)), getattr(fn, "left_out", ()))


def replay(fn, supports, recipe, properties=None):
    """Try properties on one Recipe, or on the seed line of one; returns a Report."""
    recipe = Recipe.parse(recipe) if isinstance(recipe, str) else recipe
    return Report(tuple(replay_property(name, fn, supports, recipe) for name in known(properties)),
                  getattr(fn, "left_out", ()))


def suite(fn, supports=None, *, examples=100, seed=0, properties=None):
    """A pytest test of an implementation, one case per property; what cannot be asked is skipped with its reason.

        from fa_ref.testing import Supports, suite
        from mine import attention

        test_attention = suite(attention, Supports(causal="bottom-right", lse="natural"))
    """
    import pytest

    supports = abilities(fn, supports)

    @pytest.mark.parametrize("name", known(properties))
    def test(name):
        row = try_property(name, fn, supports, examples=examples, seed=seed)
        if row.status == "unsupported":
            pytest.skip(row.detail)
        if row.status == "failed":
            pytest.fail(f"{PROPERTIES[name].sentence}\n{story(row)}", pytrace=False)

    return test


def abilities(fn, supports):
    """What fn can be asked: what is said, else its attribute `supports`, else the least there is. TypeError if that is
    no Supports."""
    supports = getattr(fn, "supports", Supports()) if supports is None else supports
    if not isinstance(supports, Supports):
        raise TypeError(f"supports must be a Supports, got {supports!r}")
    return supports


def known(names):
    """The names of properties to try, all for None; ValueError for one that does not exist."""
    names = (names,) if isinstance(names, str) else names
    for name in names or ():
        if name not in PROPERTIES:
            raise ValueError(f"unknown property {name!r}; known are {', '.join(PROPERTIES)}")
    return tuple(names or PROPERTIES)


# --- command line ---------------------------------------------------------------------------------------------

def main(argv=None):
    """`python -m fa_ref check`: see the module. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fa_ref check", description="Property-test an attention function.",
        epilog="properties: " + ", ".join(PROPERTIES) + ". " + __doc__.rpartition("\n\n")[2])
    add = parser.add_argument
    add("function", metavar="module:function", help="for example torch.nn.functional:scaled_dot_product_attention")
    add("--as", dest="kind", required=True, choices=ADAPTERS, help="whose signature it has; problem: our Problem in")
    add("--backward", metavar="module:function", help="its backward, for --as fa_ref")
    add("--supports", metavar="module:name", help="its Supports, for --as problem (default: function.supports)")
    add("--causal", choices=[*filter(None, CAUSAL), "none"], help="what its causal flag means (top-left: sdpa only; "
        "square, the default of sdpa: only Nq = Nk is asked, where all meanings agree)")
    add("--dtypes", help=f"comma-separated, out of {', '.join(DTYPES)}")
    add("--device", help="for torch functions: cpu (flash_attn: cuda)")
    add("--examples", type=positive(int), default=100, metavar="N", help="problems per property (100)")
    add("--seed", type=int, default=0, metavar="S", help="of the draw (0)")
    add("--time", type=positive(float), metavar="SECONDS", help="give up after so long")
    add("--property", action="append", metavar="NAME", help="only this one (may be repeated)")
    add("--replay", metavar="LINE", help="only the problem of this seed line")
    add("--without", metavar="NAMES", help=f"what it cannot do, comma-separated, out of {', '.join(ABILITIES)}")
    add("--no-gradients", action="store_true", help="forward only: --without gradients,dlse")
    options = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    try:
        names = known(options.property)
        recipe = None if options.replay is None else Recipe.parse(options.replay)
        fn, supports = implementation(options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        console.print(f"error: {error}", style="bold red", markup=False, soft_wrap=True)
        return 2
    if supports.framework == "torch" and supports.device == "cpu":
        importlib.import_module("torch").set_num_threads(1)     # for problems this small, threads only cost
    rows, interrupted = [], False
    try:
        for row in (replay(fn, supports, recipe, names).rows if recipe is not None else
                    rows_with_progress(fn, supports, names, options, console)):
            rows.append(row)
    except KeyboardInterrupt:
        interrupted = True
        console.print(f"interrupted after {len(rows)} of {len(names)} properties")
    report = Report(tuple(rows), getattr(fn, "left_out", ()))
    report.print(console, command(options))
    return 130 if interrupted else report.exit_code


def command(options):
    """The command line that asks the same function the same way; which properties, and of what, is left open."""
    words = ["python", "-m", "fa_ref", "check", options.function, "--as", options.kind]
    for name in ("backward", "supports", "causal", "dtypes", "device", "without"):
        words += [f"--{name}", getattr(options, name)] if getattr(options, name) else []
    return shlex.join(words + ["--no-gradients"] * options.no_gradients)


def positive(kind):
    """A number that argparse reads, of this kind and above 0."""
    def read(text):
        number = kind(text)
        if number <= 0:
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return number

    read.__name__ = kind.__name__
    return read


def implementation(options):
    """(fn(problem) -> Result, Supports) for the function and the adapter named on the command line."""
    fn, kind = load(options.function), options.kind
    if not callable(fn):
        raise TypeError(f"{options.function} is a {type(fn).__name__}, not a function")
    causal = None if options.causal == "none" else options.causal
    if kind not in ("fa_ref", "problem"):
        imported("torch")
    given = {"dtypes": tuple(options.dtypes.split(","))} if options.dtypes else {}
    if kind == "sdpa":
        given |= {"causal": causal} if options.causal else {}
    elif causal == "top-left":
        raise ValueError("--causal top-left goes with --as sdpa only")
    if options.device:
        if kind in ("fa_ref", "problem"):
            raise ValueError(f"--device is for functions of torch, not for --as {kind}")
        given["device"] = options.device
    if kind == "fa_ref":
        given |= {"backward": load(options.backward) if options.backward else None, "lse": adapters.gives_lse(fn)}
    if kind == "problem":
        supports = load(options.supports) if options.supports else getattr(fn, "supports", None)
        if not isinstance(supports, Supports):
            raise ValueError(f"{options.function} has no attribute `supports`, a Supports; name one with --supports")
        supports = supports.but(**given)
    else:
        fn, supports = getattr(adapters, kind)(fn, **given)
    if options.causal:
        supports = supports.but(causal=causal)
    if supports.device.startswith("cuda") and not imported("torch").cuda.is_available():
        raise ValueError(f"--as {kind} asks on the device {supports.device}, and torch finds none here (--device cpu?)")
    left_out = [name.strip() for name in options.without.split(",")] if options.without else []
    left_out += ["gradients", "dlse"] * options.no_gradients
    return fn, supports.without(*left_out)


def load(path):
    """What `module:name` or `module:name.attribute` stands for; ImportError or AttributeError if it cannot be had."""
    module, colon, names = path.partition(":")
    if not colon or not module or not names:
        raise ValueError(f"expected module:function, got {path!r}")
    if "/" in module or module.endswith(".py"):
        file = Path(module)
        raise ValueError(f"expected module:function, got the file {module}: in its folder it is {file.stem}:{names}")
    found = imported(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def imported(module):
    """The module of this name; ImportError, whatever it raises while it is imported."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        first = module.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and error.name == first
        advice = f"; run it in the folder of {first}.py or set PYTHONPATH (or install it)" if missing else ""
        raise ImportError(f"cannot import {module}: {type(error).__name__}: {error}{advice}") from error


def rows_with_progress(fn, supports, names, options, console):
    """The rows of `check` one after the other, with a progress bar where somebody watches."""
    stop_at = None if options.time is None else time.monotonic() + options.time
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        askable = [name for name in names if PROPERTIES[name].refusal(supports) is None]
        task = bar.add_task("", total=len(askable) * options.examples)
        for name in names:
            yield try_property(name, fn, supports, examples=options.examples, seed=options.seed, stop_at=stop_at,
                               on_example=lambda name=name: bar.update(task, advance=1, description=name))


if __name__ == "__main__":
    sys.exit(main())
