"""What is trained: the models whose speed is measured, and the one that learns a text. Checked before anything runs."""

from typing import NamedTuple


class Size(NamedTuple):
    """One model, and the B sequences of N tokens that it gets in a step."""

    layers: int
    hidden: int
    d: int
    N: int
    tokens: int                                                     # of a step, B · N

    @property
    def B(self):
        return self.tokens // self.N

    @property
    def told(self):
        return f"hidden {self.hidden}, d = {self.d}, N = {self.N}"


class Plan(NamedTuple):
    """Everything that is run."""

    speed: list                                                     # of Size
    rounds: int                                                     # that count
    curve: Size
    steps: int                                                      # of the curves


VOCABULARY = 512                                                    # of random tokens: few, so that attention counts
WARM_UP, A_TURN = 3, 2                                              # steps that do not count; steps of a turn


def plan(device, quick=False, layers=None, hidden=None, seqlens=None, steps=None, tokens=None):
    """The Plan for "cuda" or "cpu", which is tiny; quick is smaller. What is not None replaces a number of it.

    hidden and seqlens are lists: a model for each pair. The first of each are those of the model that learns a text.
    ValueError, with the numbers, for sizes that do not fit.
    """
    if device == "cpu":
        known = {"layers": 2, "hidden": (16, 32), "seqlens": (8, 16), "tokens": 32}
        curve, rounds, known_steps = Size(2, 32, 8, 16, 64), 3, 10 if quick else 40
    else:
        known = {"layers": 12, "hidden": (1024, 2048), "seqlens": (2048, 8192), "tokens": 16384}
        curve, rounds, known_steps = Size(6, 384, 64, 1024, 16384), 3 if quick else 9, 60 if quick else 400
        if quick:
            known |= {"layers": 4, "hidden": (1024,), "seqlens": (2048,)}
    asked = {"layers": layers, "hidden": hidden, "seqlens": seqlens, "tokens": tokens}
    asked = {name: x for name, x in asked.items() if x is not None}
    known |= asked
    sizes = [Size(known["layers"], width, head_dim(device, width), N, known["tokens"])
             for width in known["hidden"] for N in known["seqlens"]]
    first = {"layers": layers, "hidden": hidden and hidden[0], "N": seqlens and seqlens[0], "tokens": tokens}
    curve = curve._replace(**{name: x for name, x in first.items() if x is not None})
    curve = curve._replace(d=head_dim(device, curve.hidden))
    found = Plan(sizes, rounds, curve, known_steps if steps is None else steps)
    for size in (*sizes, curve):
        check(size)
    if found.steps < 1:
        raise ValueError(f"steps must be at least 1, got {found.steps}")
    return found


def head_dim(device, hidden):
    """64, from a hidden size of 2048 on 128; on a CPU 8."""
    return 8 if device == "cpu" else 64 if hidden < 2048 else 128


def check(size):
    """ValueError if a size makes no model."""
    if not 1 <= size.tokens < 2**31:
        raise ValueError(f"tokens must be at least 1 and below 2³¹, got {size.tokens}")
    if size.layers < 1:
        raise ValueError(f"layers must be at least 1, got {size.layers}")
    if size.hidden < 1 or size.hidden % size.d:
        raise ValueError(f"hidden must be a multiple of the head dim {size.d}, got {size.hidden}")
    if size.N < 1 or size.tokens % size.N:
        raise ValueError(f"seqlens must divide the {size.tokens} tokens of a step, got {size.N}")
