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
        cuda = driver()
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def without_gpu():
    """Why kernels run in the simulator, for commands that measure them."""
    return "the CUDA driver finds none here" if devices() == 0 else "the simulator was asked for (FA_REF_CUDA)"


def driver():
    """The CUDA driver's library; OSError if there is none."""
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


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
            raise ImportError(f"the kernels need numba and numba-cuda, and {module} is missing: run make tour, or "
                              "pip install -e . in the folder of this project")
    mode = os.environ.get("FA_REF_CUDA") or "auto"
    if mode not in MODES:
        raise ValueError(f"FA_REF_CUDA must be one of {', '.join(MODES)}, got {mode!r}")
    already = decided()
    asked = os.environ.get("NUMBA_ENABLE_CUDASIM")
    if mode != "auto":
        simulate = mode == "sim"
    elif already is not None:
        simulate = already
    else:
        simulate = devices() == 0 if asked is None else asked not in ("", "0")
    if already is not None and already != simulate:
        is_now, wanted = ("simulator", "GPU") if already else ("GPU", "simulator")
        raise RuntimeError(
            f"FA_REF_CUDA={mode} comes too late: numba.cuda was imported before and runs on the {is_now}. Import "
            f"cuda_kernels before numba.cuda, or start Python with NUMBA_ENABLE_CUDASIM={int(simulate)} for the "
            f"{wanted}")
    if not simulate and (mode == "gpu" or asked is None) and devices() == 0:    # with Numba's variable, only compile
        why = "FA_REF_CUDA=gpu" if mode == "gpu" else "numba.cuda was imported first and looks for a GPU"
        raise RuntimeError(f"{why}, but the CUDA driver finds no device; start Python with FA_REF_CUDA=sim for the "
                           "simulator, and import cuda_kernels before numba.cuda")
    os.environ["NUMBA_ENABLE_CUDASIM"] = str(int(simulate))
    if "numba.core.config" in sys.modules:          # numba is there, numba.cuda is not
        sys.modules["numba.core.config"].reload_config()
    return simulate


SIMULATED: bool = decide()


def check_still():
    """RuntimeError if FA_REF_CUDA now asks for another mode than the one that this process runs in."""
    mode = os.environ.get("FA_REF_CUDA") or "auto"
    if mode != "auto" and (mode == "sim") != SIMULATED:
        now = "in the simulator" if SIMULATED else "on the GPU"
        raise RuntimeError(f"FA_REF_CUDA={mode} comes too late: kernels of this process run {now}. Start Python anew "
                           "with it")
