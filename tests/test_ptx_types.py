"""What the compiler makes of the kernels, read from their PTX without a GPU: number types, memory on chip, barriers.

Numba's mode is fixed per process, so the kernels are compiled in another one: this file, run as a program.
"""

import json
import os
import subprocess
import sys

import pytest

TILES, DIMS = (4, 8), (3, 5)
MISSING = 77                                                        # exit code: there is nothing to compile with


@pytest.fixture(scope="module")
def compiled():
    """{name: facts} of all kernels and of four that are wrong on purpose."""
    return facts_from(__file__)


def facts_from(program):
    """What a file like this one prints when it is run as a program; skipped where there is nothing to compile with."""
    environment = {name: x for name, x in os.environ.items() if name != "FA_REF_CUDA"} | {"NUMBA_ENABLE_CUDASIM": "0"}
    run = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    if run.returncode == MISSING:
        pytest.skip(f"cannot compile here: {run.stdout.strip()}")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
def test_float32_kernels_hold_no_float64(compiled):
    for name, facts in compiled.items():
        if "float64" not in name and "wrong" not in name:
            assert facts["f64"] == 0, f"{name}: {facts['f64']} times .f64"
    assert compiled["fa2 forward float64"]["f64"] > 100
    assert compiled["wrong: times 0.1"]["f64"] > 0 and compiled["wrong: a float as argument"]["f64"] > 0


@pytest.mark.slow
def test_no_local_memory(compiled):
    """Everything of a thread's own is in registers; but for the warp kernels' small arrays, which say so."""
    arrays = ["fa1_warps forward float32", "fa2_warps forward float32", "wrong: an array of its own, indexed"]
    assert [name for name, facts in compiled.items() if facts["local"]] == arrays


@pytest.mark.slow
def test_shared_memory_is_what_the_formulas_say(compiled):
    for name, facts in compiled.items():
        if facts["formula"] is not None:
            assert facts["shared"] == facts["formula"], name


@pytest.mark.slow
def test_every_barrier_is_there(compiled):
    """The compiler neither drops nor copies them: see the docstrings."""
    barriers = {"fa2 forward": 5, "fa2 backward": 4, "fa2 dq": 3, "fa1 forward": 4, "fa1 backward": 5,
                "standard forward": 2, "standard backward_dQ": 2, "fa1_warps forward": 4, "fa2_warps forward": 2}
    for name, number in barriers.items():
        assert compiled[f"{name} float32"]["barriers"] == number, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float16 64", "bfloat16 64", "bfloat16 64 3 blocks", "bfloat16 128", "bfloat16 256"])
def test_tensor_cores(compiled, name):
    """One barrier, or two with one place for K and V, and one more where a part of Qi stays in registers; no local
    memory; all products of P and V written out, of Q and K those of some channels at least (a loop over channels may
    stay a loop: it indexes nothing of the lane's own)."""
    facts = compiled[f"fa2_mma {name}"]
    d = int(name.split()[1])
    slabs = 1 if d == 256 else 2
    of_scores = facts["products"] - slabs * (64 // 16) * (d // 8)
    assert of_scores >= slabs * 8 and of_scores % (slabs * 8) == 0
    stays = d != 128 and "3 blocks" not in name
    assert facts["barriers"] == (2 if d == 256 else 1) + stays and facts["local"] is False and facts["copies"] > 0
    assert facts["shared"] == 0                                     # it is asked for at the launch


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bfloat16 64", "float16 128"])
def test_tensor_cores_split_k(compiled, name):
    """Three barriers; no local memory, at the default tiles; all products written out."""
    facts, d = compiled[f"fa1_mma {name}"], int(name.split()[1])
    assert facts["products"] == facts["slabs"] * 2 * (facts["keys"] // 8 * d // 16)
    assert facts["barriers"] == 3 and facts["local"] is False and facts["copies"] > 0 and facts["shared"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float16 59", "bfloat16 59"])
def test_tensor_cores_with_rows_that_are_not_aligned(compiled, name):
    assert compiled[f"fa2_mma {name}"]["copies"] == 0 and compiled[f"fa2_mma {name}"]["products"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("d", [64, 128])
def test_tensor_cores_backward(compiled, d):
    """No local memory; all products written out: five of them, three for dQ alone; dQ added up where it is told."""
    facts, only_dQ = compiled[f"fa2_mma backward {d}"], compiled[f"fa2_mma dq {d}"]
    of_a_tile = {64: 128 * 128 * 64, 128: 64 * 128 * 128}[d] // (16 * 8 * 16)
    assert facts["products"] == 5 * of_a_tile // 8 and only_dQ["products"] == 3 * 32 * 32 * d // (16 * 8 * 16)
    assert facts["barriers"] == 4 and only_dQ["barriers"] == 1
    assert facts["local"] is only_dQ["local"] is False and facts["additions"] > 0 == only_dQ["additions"]


@pytest.mark.slow
def test_no_fast_maths(compiled):
    """Divisions are exact, tanh and exp those of libdevice."""
    assert [name for name, facts in compiled.items() if facts["fast"]] == ["wrong: fast maths"]
    assert compiled["fa2 forward float32"]["exact divisions"] > 0


@pytest.mark.slow
def test_16_bit_storage(compiled):
    """Conversions are single instructions, rounded to nearest; bfloat16 is never taken for float32 or float16."""
    bf16, f16 = compiled["fa2 forward bfloat16"], compiled["fa2 forward float16"]
    assert bf16["cvt.rn.bf16.f32"] >= 2 and f16["cvt.rn.f16.f32"] >= 2
    assert bf16["cvt.rn.f16.f32"] == f16["cvt.rn.bf16.f32"] == 0


# --- the program ----------------------------------------------------------------------------------------------

def compiler():
    """(numba.cuda, its types) where there may be no GPU; ends the program where one cannot compile either."""
    import types as python_types

    try:
        import numba.cuda.dispatcher
        from cuda.bindings import nvrtc
        from numba import cuda
        from numba.cuda import types
        from numba.cuda.cudadrv import nvvm
        nvvm.NVVM()
        nvrtc.nvrtcVersion()
    except Exception as error:                                      # no numba, no NVVM, no libdevice, no NVRTC
        print(f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}")
        sys.exit(MISSING)

    # device functions ask for the current device while they are compiled; there may be none
    numba.cuda.dispatcher.get_current_device = lambda: python_types.SimpleNamespace(compute_capability=(9, 0))
    return cuda, types


def main():
    """Compile everything for compute capability 9.0; print the facts as JSON."""
    cuda, types = compiler()

    import numba
    import numpy as np
    from ml_dtypes import bfloat16

    from cuda_kernels import (
        fa1,
        fa1_backward,
        fa1_mma,
        fa1_warps,
        fa2,
        fa2_backward,
        fa2_dq,
        fa2_mma,
        fa2_mma_backward,
        fa2_mma_dq,
        fa2_warps,
        finish,
        scores,
        standard,
    )

    def array(dtype, ndim):
        return types.Array(numba.from_dtype(np.dtype(np.uint16 if dtype == bfloat16 else dtype)), ndim, "A")

    found = {}

    def compile_(name, kernel, arguments, formula=None):
        options = {key: x for key, x in kernel.targetoptions.items() if key in ("fastmath", "launch_bounds")}
        ptx, _ = cuda.compile_ptx(kernel.py_func, arguments, cc=(9, 0), **options)
        found[name] = facts_of(ptx, formula)

    def compile_all(dtype, dtype_name, only=None):
        wide = np.float64 if dtype == np.float64 else np.float32
        number = numba.from_dtype(np.dtype(wide))
        S, W3, W4 = array(dtype, 4), array(wide, 3), array(wide, 4)     # storage; wide with 3 and 4 axes
        rule = (array(bool, 4), number, number, types.int64, types.int64, types.boolean)
        key = (*TILES, *DIMS, np.dtype(dtype), scores.Flags(softcap=True, mask=True))
        P, dV, dQ, dK = standard.make_backward(*key)
        d, dv = DIMS
        wanted = {
            "fa2 forward": (fa2.make_forward(*key), (S, S, S, S, W3, *rule)),
            "fa2 preprocess": (fa2_backward.make_preprocess(*key), (S, S, W3, W3, W4)),
            "fa2 backward": (fa2_backward.make_backward(*key, False), (S, S, S, S, W3, W3, W4, S, S, *rule)),
            "fa2 dq": (fa2_dq.make_dq(*key), (S, S, S, S, W3, W3, W4, *rule)),
            "fa1 forward": (fa1.make_forward(*key), (S, S, S, W4, W3, W3, *rule)),
            "fa1 backward": (fa1_backward.make_backward(*key), (S, S, S, S, S, W3, W3, W3, W4, S, S, *rule)),
            "fa1_warps forward": (fa1_warps.make_forward(*key, 2), (S, S, S, W4, W3, W3, *rule)),
            "fa2_warps forward": (fa2_warps.make_forward(*key, 2), (S, S, S, S, W3, *rule)),
            "standard forward": (standard.make_forward(*key), (S, S, S, S, W3, W4, S, *rule)),
            "standard backward_P": (P, (S, S, W3, S, *rule)),
            "standard backward_dV": (dV, (S, S, S)),
            "standard backward_dQ": (dQ, (S, S, S, S, S, W3, W4, S, W4, *rule)),
            "standard backward_dK": (dK, (S, S, S)),
            "merge": (finish.make_merge(dv, np.dtype(dtype)), (W4, W3, W3, array(wide, 1), S, W3)),
            "narrow": (finish.make_narrow(d, np.dtype(dtype)), (W4, S)),
            "sink gradient": (finish.make_sink_gradient(dv, np.dtype(dtype)),
                              (S, S, W3, W3, array(wide, 1), array(wide, 1))),
        }
        size = np.dtype(wide).itemsize
        formulas = {f"{name} {pass_}": core.shared_bytes(*TILES, *DIMS, size, pass_ == "backward")
                    for name, core in (("fa1", fa1), ("fa2", fa2)) for pass_ in ("forward", "backward")}
        formulas |= {f"{name} forward": core.shared_bytes(*TILES, *DIMS, size, threads=64)
                     for name, core in (("fa1_warps", fa1_warps), ("fa2_warps", fa2_warps))}
        for name, (kernel, arguments) in wanted.items():
            if only is None or name in only:
                compile_(f"{name} {dtype_name}", kernel, arguments, formulas.get(name))

    compile_all(np.float32, "float32")
    for dtype, name in ((np.float16, "float16"), (bfloat16, "bfloat16")):
        compile_all(dtype, name, ("fa2 forward", "fa1 backward", "standard backward_dQ", "merge", "narrow"))
    compile_all(np.float64, "float64", ("fa2 forward",))

    for name, dtype, R, d, aligned, blocks in (                     # 59: rows no copy takes whole
            ("float16 64", np.float16, 32, 64, True, 1), ("bfloat16 64", bfloat16, 32, 64, True, 1),
            ("bfloat16 64 3 blocks", bfloat16, 32, 64, True, 3), ("bfloat16 128", bfloat16, 32, 128, True, 1),
            ("bfloat16 256", bfloat16, 16, 256, True, 1), ("float16 59", np.float16, 32, 59, False, 1),
            ("bfloat16 59", bfloat16, 32, 59, False, 1)):
        S = array(dtype, 4)
        compile_(f"fa2_mma {name}", fa2_mma.make_forward(R, 4, 64, d, np.dtype(dtype), True, aligned, blocks),
                 (S, S, S, S, array(np.float32, 3), types.float32, types.int64, types.int64, types.int32))

    for name, dtype, d in (("bfloat16 64", bfloat16, 64), ("float16 128", np.float16, 128),
                           ("bfloat16 59", bfloat16, 59)):
        S, W3 = array(dtype, 4), array(np.float32, 3)
        _, warps, Br, C = next(row for row in fa1_mma.TILES if d <= row[0])         # those on a GPU
        compile_(f"fa1_mma {name}", fa1_mma.make_forward(Br, warps * C, warps, d, np.dtype(dtype), True, d % 8 == 0),
                 (S, S, S, S, W3, array(np.float32, 4), W3, W3, types.float32, types.int64, types.int64))
        found[f"fa1_mma {name}"] |= {"slabs": Br // 16, "keys": C}  # of a tile; of a warp

    for d, Br, Bc in ((64, 128, 128), (128, 64, 128)):              # those on a GPU
        S, W3, dtype = array(bfloat16, 4), array(np.float32, 3), np.dtype(bfloat16)
        numbers = types.float32, types.float32, types.int64, types.int64
        kernel = fa2_mma_backward.make_backward(Br, Bc, 8, d, dtype, True, True, False, (9, 0))
        outputs = array(np.float32, 4), S, S
        compile_(f"fa2_mma backward {d}", kernel, (S, S, S, S, W3, W3, *outputs, *numbers, types.int32))
        R = fa2_mma_dq.rows_of(d, 1024, 8)
        compile_(f"fa2_mma dq {d}", fa2_mma_dq.make_dq(R, 8, d, dtype, True, True), (S, S, S, S, W3, W3, S, *numbers))

    f4 = array(np.float32, 1)

    def times_a_tenth(x):
        x[0] = x[0] * 0.1

    def times_an_argument(x, a):
        x[0] = x[0] * a

    def own_array(x):
        mine = cuda.local.array(64, types.float32)
        for i in range(x.shape[0]):
            mine[i] = x[i]
        for i in range(x.shape[0]):
            x[i] = mine[x.shape[0] - 1 - i]

    def divided(x, a):
        x[0] = x[0] / a

    compile_("wrong: fast maths", cuda.jit(divided, fastmath=True), (f4, types.float32))
    compile_("wrong: times 0.1", cuda.jit(times_a_tenth), (f4,))
    compile_("wrong: a float as argument", cuda.jit(times_an_argument), (f4, types.float64))
    compile_("wrong: an array of its own, indexed", cuda.jit(own_array), (f4,))
    print(json.dumps(found))


def facts_of(ptx, formula):
    """What the tests want to know of a kernel."""
    import re
    return {
        "f64": ptx.count(".f64"),
        "local": bool(re.search(r"\.local\s+\.align|\b(ld|st)\.local", ptx)),
        "shared": sum(int(n) for n in re.findall(r"\.shared .*?\[(\d+)\]", ptx)),
        "formula": formula,
        "barriers": ptx.count("bar.sync"),
        "fast": re.findall(r"div\.(?:approx|full)\S*|tanh\.approx\S*", ptx),
        "products": ptx.count("mma.sync"),
        "copies": ptx.count("cp.async.cg"),
        "additions": ptx.count("red.global.add.v4.f32"),
        "exact divisions": ptx.count("div.rn.f32"),
        **{name: ptx.count(name) for name in ("cvt.rn.bf16.f32", "cvt.rn.f16.f32")},
    }


if __name__ == "__main__":
    main()
