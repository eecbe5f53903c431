"""Device or simulator: decided once, before Numba's CUDA target is imported, by the environment variable FA_REF_CUDA.

    auto    (if it is not set) the GPU if the driver finds one, else the simulator
    gpu     the GPU; an error if there is none
    sim     Numba's simulator: kernels run as Python, on any machine

Numba reads NUMBA_ENABLE_CUDASIM when `numba.cuda` is imported and never again. So this module sets it, and whoever
wants one mode must import `cuda_kernels` (or set the variable) first. `auto` follows a choice that is made already.
"""

import ctypes
import os
import sys
from importlib.util import find_spec

MODES = ("auto", "gpu", "sim")


def devices():
    """How many CUDA devices the driver finds; 0 without a driver. Numba is not asked: that would import it."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def decided():
    """Does Numba simulate? True or False once `numba.cuda` is imported, None as long as it can still be chosen."""
    return bool(sys.modules["numba.core.config"].ENABLE_CUDASIM) if "numba.cuda" in sys.modules else None


def decide():
    """Set Numba's mode for this process; returns whether kernels are simulated.

    ImportError without Numba, ValueError for an unknown mode, RuntimeError for a GPU that is not there and for a
    choice that comes too late.
    """
    for module in ("numba", "numba_cuda"):
        if find_spec(module) is None:
            raise ImportError(f"the kernels need numba and numba-cuda, and {module} is missing: pip install '.[gpu]'")
    mode = os.environ.get("FA_REF_CUDA") or "auto"
    if mode not in MODES:
        raise ValueError(f"FA_REF_CUDA must be one of {', '.join(MODES)}, got {mode!r}")
    already = decided()
    if mode == "auto":
        if already is not None:
            return already
        asked = os.environ.get("NUMBA_ENABLE_CUDASIM")
        simulate = devices() == 0 if asked is None else asked not in ("", "0")
    else:
        simulate = mode == "sim"
    if already is not None and already != simulate:
        is_now, wanted = ("simulator", "GPU") if already else ("GPU", "simulator")
        raise RuntimeError(
            f"FA_REF_CUDA={mode} comes too late: numba.cuda was imported before and runs on the {is_now}. Import "
            f"cuda_kernels before numba.cuda, or start Python with NUMBA_ENABLE_CUDASIM={int(simulate)} for the "
            f"{wanted}")
    if mode == "gpu" and devices() == 0:
        raise RuntimeError("FA_REF_CUDA=gpu, but the CUDA driver finds no device; FA_REF_CUDA=sim runs the simulator")
    os.environ["NUMBA_ENABLE_CUDASIM"] = str(int(simulate))
    if "numba.core.config" in sys.modules:          # numba is there, numba.cuda is not
        sys.modules["numba.core.config"].reload_config()
    return simulate


SIMULATED: bool = decide()
