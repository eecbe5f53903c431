"""The same numbers in other storage: views, strides, read-only memory.

Storage outside a view is filled with NaN, so that reading it shows.
"""

import numpy as np

LAYOUTS = ("contiguous", "transposed", "stepped", "slice", "reversed", "broadcast", "mixed", "read-only")


def transposed(x):
    """A view of storage in which the head axis comes after the length axis."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)


def stepped(x):
    """Every second row and channel of a larger array."""
    storage = np.full((*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3]), np.nan, x.dtype)
    storage[:, :, ::2, ::2] = x
    return storage[:, :, ::2, ::2]


def sliced(x):
    """The middle of an array that is larger along every axis."""
    storage = np.full([n + 2 for n in x.shape], np.nan, x.dtype)
    inner = storage[1:-1, 1:-1, 1:-1, 1:-1]
    inner[...] = x
    return inner


def backwards(x):
    """A view with negative strides along length and channels."""
    return np.ascontiguousarray(x[:, :, ::-1, ::-1])[:, :, ::-1, ::-1]


def one_row(x):
    """The first row of the first batch element, repeated with strides of zero (the gradient of a sum looks so)."""
    return np.broadcast_to(x[:1, :, :1], x.shape)


def read_only(x):
    """The same array, locked."""
    x = x.copy()
    x.flags.writeable = False
    return x


def lay_out(problem, layout):
    """The problem with its arrays in the layout of this name; the numbers stay (but for `broadcast`, see one_row)."""
    everywhere = {"contiguous": np.ascontiguousarray, "transposed": transposed, "stepped": stepped,
                  "slice": sliced, "reversed": backwards}
    if layout in everywhere:
        ways = dict.fromkeys(("q", "k", "v", "dout"), everywhere[layout])
    elif layout == "broadcast":
        ways = {"dout": one_row}
    elif layout == "mixed":
        ways = {"q": backwards, "k": transposed, "v": stepped, "dout": sliced,
                "mask": np.asfortranarray, "bias": np.asfortranarray, "dlse": np.asfortranarray}
    else:
        ways = dict.fromkeys(("q", "k", "v", "dout", "dlse", "mask", "bias", "alibi_slopes", "sink"), read_only)
    return problem.replace(**{name: way(getattr(problem, name)) for name, way in ways.items()
                              if getattr(problem, name) is not None})
