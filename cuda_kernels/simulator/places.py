"""Where in the kernel something happens, and how that is written in a message."""

import sys

# Modules whose frames are passed over on the way to the kernel's own line.
OURS = ("simulator.blocks", "simulator.warps", "simulator.device", "simulator.memory", "simulator.watched",
        "simulator.flights", "ptx.warp", "ptx.matrices", "ptx.copies", "ptx.atomics")
HIDDEN = {"numpy.lib.mixins", *(f"cuda_kernels.{name}" for name in OURS)}


def kernel_frame():
    """The innermost frame that belongs to the kernel and not to the simulator."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") in HIDDEN:
        frame = frame.f_back
    return frame


def place(frame):
    """file:line, which editors and terminals turn into a link."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def numbers(ordered):
    """Rising numbers with runs written as a–b: [0, 2, 3, 4] is "0, 2–4"."""
    runs = []
    for n in ordered:
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
