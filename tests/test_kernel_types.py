"""K29 and K10, without the CUDA toolkit: the types that Numba infers for every variable of every kernel.

What the compiler makes of them stands in test_ptx_types.py, where there is a toolkit. Numba's mode is fixed per
process, so types are inferred in another one: this file, run as a program.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

DTYPES = ("float32", "float16", "bfloat16")
NUMBERED = {"t", "T", "i", "j", "h", "g", "b", "other"}             # threads, blocks and what they are the numbers of
NO_ROWS = {"b0", "b1", "b2", "b3", "lowest", "highest", "group"}    # pairs of numbers; distances in a tile; Hq / Hkv


@pytest.fixture(scope="module")
def inferred():
    """{name of a function: {variable: type}} of all that is launched, and of what that calls."""
    environment = {name: x for name, x in os.environ.items() if name != "FA_REF_CUDA"} | {"NUMBA_ENABLE_CUDASIM": "0"}
    run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def narrow_integers(types):
    """The names of a function's variables that are integers of less than 64 bits; words of bfloat16 do not count."""
    return {variable.removeprefix("arg.").split(".")[0] for variable, type_ in types.items()
            if type_ in ("int8", "uint8", "int16", "int32", "uint32") and not variable.startswith("$")}


def test_everything_is_there(inferred):
    """All kernels of all files (of float16, those of fa2), what they call, and narrowing where the dtype is narrow."""
    for dtype in DTYPES:
        names = {name.removesuffix(f" {dtype}") for name in inferred if name.endswith(f" {dtype}")}
        assert names >= {"fa2.forward", "fa2_backward.preprocess", "fa2_backward.backward", "fa2_dq.dq", "finish.merge",
                         "finish.sink_gradient", "scores.visible", "scores.score", "scores.chain", "scores.empty"}
        assert dtype == "float16" or names >= {"standard.forward", "standard.backward_dV", "fa1.forward",
                                               "fa1_backward.backward", "fa1_warps.forward", "fa2_warps.forward"}
        assert dtype == "float32" or names >= {"fa1_mma.forward", "fa2_mma.forward", "swizzled.cell",
                                               "swizzled.further", "swizzled.load"}
        assert ("finish.round_once" in names) == ("launch.rounded" in names) == (dtype != "float32")


def test_no_float64(inferred):
    """K29-a: nothing in a kernel of 16 or 32 bits is of 64, not even for a moment."""
    for name, types in inferred.items():
        wide = [variable for variable, type_ in types.items() if "float64" in type_]
        assert bool(wide) == (name in ("wrong.times_a_tenth", "wrong.halved")), (name, wide)


def test_rows_are_counted_in_64_bits(inferred):
    """K10: only threads and blocks have 32-bit numbers; what is computed from them is wider."""
    for name, types in inferred.items():
        narrow = narrow_integers(types)
        assert (narrow <= NUMBERED | NO_ROWS) == (name != "wrong.counted"), (name, narrow)
    assert {"t", "T", "b"} <= narrow_integers(inferred["fa2.forward float32"])


def test_no_fast_maths():
    """K29-b: no file of the package asks for it (the simulator's list of keywords that it ignores does not count)."""
    import cuda_kernels

    for path in Path(cuda_kernels.__file__).parent.glob("*.py"):
        assert "fastmath" not in path.read_text(encoding="utf-8"), path.name


# --- the program ----------------------------------------------------------------------------------------------

def main():
    """Call every kernel with every option, but infer types where a launch would be; print them as JSON."""
    from types import SimpleNamespace

    import numba
    import numba.cuda.dispatcher
    from ml_dtypes import bfloat16
    from numba import cuda
    from numba.cuda import types
    from numba.cuda.compiler import compile_cuda

    import cuda_kernels
    from cuda_kernels import arrays, heads, launch, places

    found, done = {}, set()

    def note(function, dtype, compiled):
        """The types of a compiled function and of the device functions that it calls."""
        name = f"{function.__module__.split('.')[-1]}.{function.__name__} {dtype}"
        found.setdefault(name, {}).update({v: str(t) for v, t in compiled.type_annotation.typemap.items()})
        for cell in function.__closure__ or ():
            for inner in getattr(cell.cell_contents, "overloads", {}).values():
                note(cell.cell_contents.py_func, dtype, inner)

    def infer(function, kinds, dtype):
        note(function, dtype, compile_cuda(function, types.void, kinds, debug=False, lineinfo=False, cc=(9, 0)))

    def launched(kernel, grid, threads, stream, arguments, shared=0):
        if kernel not in done:
            infer(kernel.py_func, tuple(types.Array(numba.from_dtype(x.dtype), x.ndim, "A") if getattr(x, "ndim", 0)
                                        else numba.typeof(x) for x in arguments), dtype)
            done.add(kernel)

    class Host(places.Simulated):
        """NumPy arrays as they are: only their dtypes count."""

        def argument(self, x):
            return arrays.words(x)

    # there may be no device
    numba.cuda.dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))
    places.place_of = lambda optional=None, **named: Host(named["q"])
    heads.limits = launch.limits = lambda: launch.CARDS["H200"]
    launch.launch_compiled = launched

    for dtype in DTYPES:
        q, k, v = (np.zeros((1, heads_, 5, d), bfloat16 if dtype == "bfloat16" else dtype)
                   for heads_, d in ((2, 3), (1, 3), (1, 2)))
        out, lse = np.zeros((1, 2, 5, 2), q.dtype), np.zeros((1, 2, 5), np.float32)
        for kernel in cuda_kernels.PLAIN if dtype != "float16" else ("fa2",):
            how = {"kernel": kernel, "softcap": 1.0, "sink": np.zeros(2, np.float32), "mask": np.ones((5, 5), bool)}
            cuda_kernels.forward(q, k, v, **how)
            for deterministic in (False, True) if kernel in cuda_kernels.WITH_BACKWARD else ():
                cuda_kernels.backward(out, q, k, v, out, lse, deterministic=deterministic, **how)

        if dtype != "float32":
            for scale in (1.0, -1.0):
                for kernel in ("fa1_mma", "fa2_mma"):
                    cuda_kernels.forward(k, k, k, kernel=kernel, scale=scale)

    def times_a_tenth(x):
        x[0] = x[0] * 0.1

    def halved(x):
        x[0] = np.float32(x[0] / 2)

    def counted(x):
        row = np.int32(cuda.blockIdx.x * 32)
        x[row] = np.float32(0)

    for function in (times_a_tenth, halved, counted):
        compiled = compile_cuda(function, types.void, (types.float32[:],), debug=False, lineinfo=False, cc=(9, 0))
        found[f"wrong.{function.__name__}"] = {v: str(t) for v, t in compiled.type_annotation.typemap.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
