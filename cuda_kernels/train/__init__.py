"""Train a small GPT with our attention, with torch's and with standard attention: how fast, and is it the same?

    python -m cuda_kernels train                            on a GPU, a few minutes
    python -m cuda_kernels train --quick                    one size, fewer steps
    python -m cuda_kernels train --save train.json          keep everything for `python docs/generate.py training`
    python -m cuda_kernels train --device cpu               tiny, on any machine: ours is then the loops of fa_ref

First the speed of a step, for 12 layers with 16,384 random tokens in sequences of N. Then a smaller model learns a text
of our own, character by character, from the same weights with each attention, and once in float32. The runs differ in
one call, see `model` and `attentions`.

Ends with 0 if every target of `targets` that was measured is met, else with 1.
"""

from cuda_kernels.bench import check_save, numbers, parser_of, save
from cuda_kernels.bench import unable as unable_on_a_gpu
from cuda_kernels.train import sizes


def parsed(argv=None):
    """(options, sizes.Plan). Sizes that do not fit end the program, with 2 and the numbers."""
    parser = parser_of("train", __doc__)
    parser.add_argument("--quick", action="store_true", help="one size, fewer layers and steps")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny models (cuda)")
    parser.add_argument("--layers", type=int, metavar="L", help="of every model")
    parser.add_argument("--hidden", type=numbers, metavar="C,C,…", help="hidden sizes; the first given learns the text")
    parser.add_argument("--seqlens", type=numbers, metavar="N,N,…", help="lengths; the first given is that of the text")
    parser.add_argument("--tokens", type=int, metavar="T", help="of a step: a batch of T / N sequences")
    parser.add_argument("--steps", type=int, metavar="S", help="to learn a text")
    options = parser.parse_args(argv)
    check_save(parser, options.save)
    try:
        return options, sizes.plan(options.device, options.quick, options.layers, options.hidden, options.seqlens,
                                   options.steps, options.tokens)
    except ValueError as problem:
        parser.error(f"--{problem}")


def main(argv=None):
    """Measure, show, judge, save; returns 0 or 1, or 2 where it cannot be measured."""
    options, plan = parsed(argv)
    why = unable(options.device)
    if why:
        print(why)
        return 2
    import torch

    from cuda_kernels.bench.show import progress
    from cuda_kernels.bench.targets import ok
    from cuda_kernels.train import data, measure, show, targets

    if options.device == "cpu":
        torch.set_num_threads(1)                                    # so little work is not worth sharing
    try:
        data.check(data.text().tokens, plan.curve)
    except ValueError as problem:
        print(problem)
        return 2
    record = {}
    try:
        with progress(measure.parts(plan)) as step:
            measure.everything(plan, options.device, step, record)
    except RuntimeError as problem:                                 # no memory for one of the curves, say
        if "speed" in record:
            show.console.print(show.speed(record["speed"]))
        print(f"it could not be measured to the end: {str(problem).splitlines()[0]}")
        return 2
    finally:                                                        # of a run that fails, what it has found is kept
        save(options.save, record)
    show.everything(record)
    return 0 if ok(targets.judged(record)) else 1


def unable(device):
    """Why nothing can be trained here; None if it can."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return "train needs torch, which is not installed: make dev, or pip install torch"
    why = None if device == "cpu" else unable_on_a_gpu("train")
    return why and f"{why}; --device cpu tries it out"
