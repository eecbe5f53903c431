"""What the page shows, as lists and dictionaries of text; steps.js has the other end.

    functions   name, first (line), labels (the step of each line), counters; numbers: names of other numbers;
                arrays {name: [rows, columns, width]}: the most that it ever has, and the longest text in it
    memory      [name, rows, columns, width] of each array in memory; width 0: too large for its numbers
    calls       [function, names, memory]: {name: change} before the first line of the call
    steps       [line, call, names, memory, accesses, bytes read, bytes written]; line is counted from 0
    change      null: nothing to show any more. Text: a number, or the shape of what is too large.
                [rows, columns, cells]: an array. [cells]: only some cells of it, "index text index text …"
    accesses    [array in memory, 0 load or 1 store, first row, last row + 1, the same for columns]
"""

import math

import numpy as np

from fa_ref.page.listing import counters, labels


def encoded(recording, sources):
    """The data of a Recording."""
    encoder = Encoder(recording, sources)
    return {"steps": [encoder.step(step) for step in recording.steps], "calls": encoder.calls,
            "functions": encoder.functions, "memory": encoder.memory}


class Encoder:
    """Goes through the steps in their order, and knows what is held so far."""

    def __init__(self, recording, sources):
        self.recorded, self.sources, self.calls = recording.calls, sources, []
        self.functions = [{"name": s.name, "first": s.first, "labels": labels(s), "counters": counters(s),
                           "numbers": [], "arrays": {}} for s in sources]
        self.memory = [[name, *rows_and_columns(r.shape), 0] for name, r in recording.memory.items()]
        self.index = {id(record): n for n, record in enumerate(recording.memory.values())}
        self.slot = {name: n for n, name in enumerate(recording.memory)}
        self.cells, self.held = {}, []                              # what memory holds, what the names of each call do

    def step(self, step):
        """One entry of `steps`."""
        while len(self.calls) <= step.call:
            call = self.recorded[len(self.calls)]
            self.held.append({})
            self.calls.append([call.function, self.names(len(self.calls), call.names), self.stored(call.memory)])
        line = step.line - self.functions[self.recorded[step.call].function]["first"]
        accesses = [[self.index[id(a.record)], int(a.action == "store"), *rectangle(a.where)] for a in step.accesses]
        return [line, step.call, self.names(step.call, step.names), self.stored(step.memory), accesses,
                step.read, step.written]

    def names(self, call, values):
        """Changes of local names."""
        function = self.functions[self.recorded[call].function]
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                now = *rows_and_columns(value.shape), width(value)
                function["arrays"][name] = list(map(max, now, function["arrays"].get(name, now)))
            elif name not in (*function["counters"], *function["numbers"]):
                function["numbers"].append(name)
        return changes(self.held[call], values)

    def stored(self, arrays):
        """Changes of arrays in memory."""
        arrays = {name: x for name, x in arrays.items() if name in self.slot and isinstance(x, np.ndarray)}
        for name, value in arrays.items():
            slot = self.memory[self.slot[name]]
            slot[3] = max(slot[3], width(value))
        return changes(self.cells, arrays)


def changes(held, values):
    """{name: change}; held {name: what it was} is brought up to date."""
    out = {}
    for name, value in values.items():
        out[name] = change(held.get(name), value)
        held[name] = value
    return out


def change(before, value):
    """See the top of this file."""
    if value is None:
        return None
    if not isinstance(value, np.ndarray):
        return text(value)
    cells = value.ravel().tolist()
    if isinstance(before, np.ndarray) and before.shape == value.shape:
        pairs = zip(before.ravel().tolist(), cells, strict=True)
        differ = [n for n, (x, y) in enumerate(pairs) if x != y and not (x != x and y != y)]    # NaN is not NaN
        if len(differ) < len(cells):
            return [" ".join(f"{n} {text(cells[n])}" for n in differ)]
    return [*rows_and_columns(value.shape), " ".join(map(text, cells))]


def text(x):
    """What is shown for a value: 3 decimals, or 2 digits and an exponent; whole numbers as they are."""
    if isinstance(x, str):
        return x.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(x, slice):
        return f"{x.start}:{x.stop}" + (f":{x.step}" if x.step is not None else "")
    if hasattr(x, "shape"):                                         # recorder.Large
        return " × ".join(map(str, x.shape)) + f" {x.dtype}, not shown"
    if isinstance(x, float) and math.isfinite(x):
        plain = x == int(x) and abs(x) < 1e6
        digits, exponent = f"{x:.1e}".split("e")
        x = int(x) if plain else f"{x:.3f}" if 0.01 <= abs(x) < 1000 else f"{digits}e{int(exponent)}"
    return str(x).replace("-", "−").replace("inf", "∞")


def width(array):
    """The longest text in it."""
    return max((len(text(x)) for x in array.ravel().tolist()), default=1)


def rows_and_columns(shape):
    """How an array is drawn: a vector is one column; of more than two axes the first one is drawn."""
    return (shape[0], shape[1] if len(shape) == 2 else 1)


def rectangle(where):
    """(start, stop) of each axis as first row, last row + 1, first column, last column + 1."""
    return *where[0], *(where[1] if len(where) == 2 else (0, 1))
