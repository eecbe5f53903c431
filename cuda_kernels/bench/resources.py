"""What a block of each kernel that has run takes of a multiprocessor, as the driver says it.

    registers, local    of a thread: registers, and bytes of local memory, where registers did not suffice (spills)
    threads, shared     of a block: its threads, bytes of shared memory
    blocks              how many of these a multiprocessor runs at once (its occupancy)

A backward pass is several kernels, which the names of their functions tell apart.
"""

import ctypes

from cuda_kernels import prepared
from cuda_kernels.heads import KERNELS
from cuda_kernels.switch import driver

BACKWARD = "preprocess", "backward", "convert", "dq"                # functions


def used(what="forward"):
    """[{kernel, d, registers, local, threads, shared, blocks}] of all such calls that are kept ready; none twice.

    what: "forward" or "backward", whose kernels are "fa2_mma, preprocess" and so on.
    """
    names = {core: name for name, core in KERNELS.items()}
    rows = []
    for key, ready in list(prepared.known.items()):
        shape, *_ = ready.made[0]                                   # of out, or dQ
        name = names[key.parts[0]]
        for launch in ready.launches:
            part = part_of_backward(launch.compiled.entry_name)
            row = {"kernel": f"{name}, {part}" if part else name, "d": shape[-1]} | of_launch(launch)
            if bool(part) == (what == "backward") and row not in rows:
                rows.append(row)
    return sorted(rows, key=lambda row: (row["kernel"], row["d"], row["threads"], row["shared"]))


def part_of_backward(entry):
    """Which of the functions of the backward pass a kernel is, by its entry: …<locals>.dq ends up as …3e2dqB… there."""
    return next((name for name in BACKWARD if f"3e{len(name)}{name}B" in entry), None)


def of_launch(launch):
    """The numbers of one `prepared.Launch`."""
    function, _, _, _, threads, _, _, shared = (number.value for number in launch.launch.args)
    compiled = launch.compiled
    return {"registers": compiled.regs_per_thread, "local": compiled.local_mem_per_thread, "threads": threads,
            "shared": shared + compiled.shared_mem_per_block, "blocks": blocks(function, threads, shared)}


def blocks(function, threads, shared):
    """How many blocks a multiprocessor runs at once; RuntimeError with the driver's number of an error."""
    number = ctypes.c_int()
    error = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(number), ctypes.c_void_p(function), ctypes.c_int(threads), ctypes.c_size_t(shared))
    if error:
        raise RuntimeError(f"the driver cannot tell the occupancy: error {error}")
    return number.value
