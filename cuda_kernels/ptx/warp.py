"""How a model does what all 32 lanes of a warp do at once. For the simulator only."""

from cuda_kernels.simulator import running
from cuda_kernels.simulator.blocks import WARP
from cuda_kernels.simulator.meetings import Part
from cuda_kernels.simulator.watched import address_of

ALL = 0xFFFFFFFF


def together(operation, value, compute):
    """All 32 lanes come, each with a value; `compute`, of the list of them, is asked once; every lane gets its part.

    RuntimeError if the warp is not whole: the instructions of this kind are undefined then.
    """
    block = running()
    lane = block.running
    values = block.meet(operation, Part(lane.warp, ALL), value)
    if "parts" not in values:                           # the first lane that goes on
        if len(values) < WARP:
            raise RuntimeError(f"{operation} takes a warp of 32 lanes; {len(values)} have come")
        values["parts"] = compute([values[number] for number in range(lane.warp * WARP, (lane.warp + 1) * WARP)])
    return values["parts"][lane.lane]


def cells(array, at, count):
    """`count` neighbouring cells of a guarded array, from this index on. IndexError unless all are there."""
    *before, last = at if isinstance(at, tuple) else (at,)
    view = array[(*before, slice(last, last + count))]
    if len(view) < count:
        raise array.refusal(at, f"{count} cells from here do not lie in it")
    return view


def aligned(view, nbytes, operation):
    """The view; ValueError unless its cells lie side by side from a multiple of nbytes on."""
    start = address_of(view.data)
    if view.origin.space == "shared":                   # a GPU aligns an array as was asked for, else by one element
        if view.origin.alignment % nbytes:
            raise ValueError(f"{operation}: {view.origin.name} begins at a multiple of {view.origin.alignment} bytes; "
                             f"{nbytes} are needed: cuda.shared.array(shape, dtype, {nbytes})")
        start -= address_of(view.origin.data)
    if start % nbytes or (len(view) > 1 and view.data.strides[-1] != view.data.itemsize):
        raise ValueError(f"{operation}: {len(view)} cells of {view.origin.name} at byte {start} do not lie side by "
                         f"side from a multiple of {nbytes} bytes on")
    return view
