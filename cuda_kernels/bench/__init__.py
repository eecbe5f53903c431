"""How fast the kernels on tensor cores are: beside torch's attention, all of it in one run on one GPU.

    python -m cuda_kernels bench                            the whole grid (some minutes)
    python -m cuda_kernels bench --quick                    two lengths, two head dims
    python -m cuda_kernels bench --save bench.json          keep everything for `python docs/generate.py performance`
    python -m cuda_kernels bench --backward                 the backward pass; kept for `docs/generate.py backward`

Passes in bfloat16 over 16,384 tokens and 2,048 channels in all: 2,048 / d heads of d channels, in a batch of 16,384 / N
sequences; and over a problem with grouped heads. Numbers of two days or two cards do not compare, ratios of one run do.
So all have a turn in every round (but standard attention, which is slow: it has rounds with `fa2_mma` alone), and what
counts is the ratio of the medians.

Ends with 0 if every target of `targets` that was measured is met, else with 1.
"""

import argparse
import json
import sys
from pathlib import Path

import cuda_kernels
from cuda_kernels import switch
from cuda_kernels.bench import grid

ON_TENSOR_CORES = tuple(name for name in cuda_kernels.KERNELS if name not in cuda_kernels.PLAIN)
BACKWARD = tuple(name for name in ON_TENSOR_CORES if name in cuda_kernels.WITH_BACKWARD)


def parsed(argv=None):
    """(options, cases). A kernel, head dim or length that is none ends the program, with 2 and its name."""
    parser = parser_of("bench", __doc__)
    parser.add_argument("--backward", action="store_true", help="the backward pass, in place of the forward pass")
    parser.add_argument("--quick", action="store_true", help="two lengths, two head dims")
    parser.add_argument("--dims", type=numbers, metavar="D,D,…", help=f"head dims {listed(grid.DIMS)}")
    parser.add_argument("--seqlens", type=numbers, metavar="N,N,…", help=f"lengths {listed(grid.LENGTHS)}")
    parser.add_argument("--kernels", metavar="NAME,NAME,…",
                        help=f"which of ours: {', '.join(ON_TENSOR_CORES)}; --backward: {', '.join(BACKWARD)} (all)")
    options = parser.parse_args(argv)
    known = BACKWARD if options.backward else ON_TENSOR_CORES
    options.kernels = options.kernels.split(",") if options.kernels is not None else list(known)
    wrong = [name for name in options.kernels if name not in known]
    if wrong:
        parser.error(f"--kernels takes {', '.join(known)}{' with --backward' if options.backward else ''}, "
                     f"got {', '.join(wrong)}")
    check_save(parser, options.save)
    dims = options.dims or (grid.QUICK_DIMS if options.quick else grid.DIMS)
    lengths = options.seqlens or (grid.QUICK_LENGTHS if options.quick else grid.LENGTHS)
    try:
        return options, grid.grid(dims, lengths)
    except ValueError as problem:
        parser.error(f"--{problem}")


def parser_of(name, doc):
    """The parser of a command that measures, which can be told to save what it finds; doc: that of its module."""
    parser = argparse.ArgumentParser(prog=f"python -m cuda_kernels {name}", description=doc.splitlines()[0])
    parser.add_argument("--save", metavar="FILE", type=Path, help="write everything as JSON, for docs/generate.py")
    return parser


def check_save(parser, path):
    """A file that cannot be written ends the program before anything is measured. None is no file."""
    if path is None:
        return
    if path.is_dir():
        parser.error(f"--save takes a file, and {path.absolute()} is a folder")
    if not path.absolute().parent.is_dir():
        parser.error(f"--save: there is no folder {path.absolute().parent}")
    is_new = not path.exists()
    try:
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as problem:
        parser.error(f"--save: {path.absolute()} cannot be written: {problem.strerror}")


def save(path, record):
    """Write what was measured as JSON, for docs/generate.py; None is no file. Says so if that fails: not saved, it can
    still be shown."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    except OSError as problem:
        print(f"not saved: {path.absolute()} cannot be written: {problem.strerror}", file=sys.stderr)


def numbers(text):
    """A list of whole numbers with commas between them."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers like 64,128") from None


def listed(numbers):
    return ",".join(map(str, numbers))


def main(argv=None):
    """Measure, show, judge, save; returns 0 or 1, or 2 where it cannot be measured."""
    options, cases = parsed(argv)
    why = unable()
    if why:
        print(why)
        return 2
    from cuda_kernels.bench import clock, measure, show, targets  # these import torch

    which = measure.PASSES["backward" if options.backward else "forward"]
    record = {"on": measure.machine()}
    try:
        with show.progress(len(cases) + 2) as step:
            measure.everything(clock.Gpu(at_once=which.AT_ONCE), cases, options.kernels, step=step, which=which,
                               found=record)
    finally:                                                        # of a run that fails, what it has found is kept
        save(options.save, record)
    show.everything(record)
    return 0 if targets.ok(targets.judged(record)) else 1


def unable(command="bench"):
    """Why this command can measure nothing here; None if it can."""
    if cuda_kernels.SIMULATED:
        return f"{command} measures kernels on a GPU, and {switch.without_gpu()}"
    try:
        import torch
    except ImportError:
        return f"{command} measures beside torch, which is not installed: make dev, or pip install torch"
    return None if torch.cuda.is_available() else f"{command} needs a torch that sees the GPU, and this one sees none"
