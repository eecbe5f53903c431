"""The kinds of cases that only kernels can have: K10, K27 to K30 (`python tests/cases.py` says which tests there are).

Whether a barrier that is missing would be noticed is the subject of test_planted_faults.py.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cuda_kernels
from cases import ELSEWHERE
from fa_ref.testing import Problem, oracle, tolerance
from fa_ref.testing.problem import Result

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SOURCES = sorted(Path(cuda_kernels.__file__).parent.glob("*.py"))
WITH_BACKWARD = [kernel for kernel in cuda_kernels.PLAIN if kernel in cuda_kernels.WITH_BACKWARD]
BOTH = [(kernel, False) for kernel in cuda_kernels.PLAIN] + [(kernel, True) for kernel in WITH_BACKWARD]
kernels = pytest.mark.parametrize("kernel", cuda_kernels.PLAIN)
passes = pytest.mark.parametrize("kernel, backward", BOTH)
simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="about the simulator; kernels run on a GPU here")


def problem(Nq, Nk, d=3, dv=2, **options):
    """Two query heads that share one of keys, random numbers in float32."""
    rng = np.random.default_rng([Nq, Nk, d])
    shapes = {"q": (1, 2, Nq, d), "k": (1, 1, Nk, d), "v": (1, 1, Nk, dv), "dout": (1, 2, Nq, dv)}
    return Problem(**{name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}, **options)


def solve(p, kernel, warps=2, threads=5):
    """What a kernel answers, with gradients if it has them."""
    threads = 32 * warps if hasattr(cuda_kernels.KERNELS[kernel], "WARPS") else threads
    how = {**p.options, "kernel": kernel, "threads": threads, "block_q": p.block_q, "block_k": p.block_k}
    answer = cuda_kernels.forward(p.q, p.k, p.v, **how)
    if kernel not in cuda_kernels.WITH_BACKWARD:
        return Result(*answer)
    return Result(*answer, *cuda_kernels.backward(p.dout, p.q, p.k, p.v, *answer, deterministic=True, **how))


def judge(p, result):
    """Every field within the bound of every element."""
    for name, worst in tolerance.worst(result, oracle.solve(p), tolerance.bounds(p)).items():
        assert worst.fraction <= 1, (name, worst)


def kernel_functions(source):
    """The syntax trees of all functions that run on the device."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)
            and any(ast.unparse(decorator).startswith("cuda.jit") for decorator in node.decorator_list)]


# --- K10 ------------------------------------------------------------------------------------------------------

def flat_offsets(source):
    """Lines of kernels that index memory by an offset of their own: with a product, or an array in another shape.

    Arrays on chip, which a kernel makes itself, are small; they may be indexed in any way.
    """
    found = set()
    for kernel in kernel_functions(source):
        own = {ast.unparse(node.targets[0]) for node in ast.walk(kernel) if isinstance(node, ast.Assign)
               and re.match(r"cuda\.(shared|local)\.array\(", ast.unparse(node.value))}
        for node in ast.walk(kernel):
            in_memory = isinstance(node, ast.Subscript) and ast.unparse(node.value) not in own
            index = node.slice if in_memory else None
            product = index and any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult) for n in ast.walk(index))
            reshaped = isinstance(node, ast.Attribute) and node.attr in ("reshape", "ravel", "view", "flat", "strides")
            found |= {ast.unparse(node)} if product or reshaped else set()
    return found


def test_no_kernel_computes_a_flat_offset():
    """K10: arrays are indexed by axes, and Numba makes the offset of 64 bits. `gpu_check.py` tries it past 2³¹."""
    assert {path.name: flat_offsets(path.read_text(encoding="utf-8")) for path in SOURCES} == {
        path.name: set() for path in SOURCES}
    wrong = ("@cuda.jit\ndef f(K, out):\n    tile = cuda.shared.array(0, t)\n    tile[r * d + x] = 1\n"
             "    out.reshape(6)[0] = K[(b * N + n) * d + x]\n")
    assert flat_offsets(wrong) == {"K[(b * N + n) * d + x]", "out.reshape"}


# --- K27 ------------------------------------------------------------------------------------------------------

@simulated
@kernels
def test_all_threads_meet_the_same_barriers(kernel):
    """K27-a: Nq = 5, Nk = 6, tiles of 4; in every block of every launch."""
    from cuda_kernels import simulator

    with simulator.audit() as a:
        solve(problem(5, 6, block_q=4, block_k=4), kernel)
    assert len(a.blocks) > 1 and a.counts.barriers > 0 and not a.divergences, a


@simulated
@kernels
@pytest.mark.parametrize("option", [{}, {"causal": True}, {"window": (2, 0)}], ids=str)
def test_tiles_that_are_used_again(kernel, option):
    """K27-b: three tiles of keys, shared memory NaN at the start: no report, and the oracle's numbers."""
    from cuda_kernels import simulator

    p = problem(5, 6, block_q=2, block_k=2, **option)
    with simulator.audit() as a:
        result = solve(p, kernel)
    assert a.ok and (a.counts.shared_writes > 0) == (kernel != "standard"), a
    judge(p, result)


# --- K28 ------------------------------------------------------------------------------------------------------

@kernels
def test_what_a_block_has_no_room_for(kernel):
    """K28-a: tiles of 32 × 32 in float32 fit for d = 64 and not for d = 128; 1500 threads fit never."""
    if kernel != "standard":                                        # which keeps nothing on chip
        with pytest.raises(ValueError, match=rf"{kernel} .* 32 × 32 needs \d+ bytes .* 49152 on .*: 16 × 16 would fit"):
            solve(problem(2, 2, 128, 128, block_q=32, block_k=32), kernel)
    p = problem(2, 2, 64, 64, block_q=32, block_k=32)
    with pytest.raises(ValueError, match=r"threads must be at most 1024 on .*, got 1500"):
        cuda_kernels.forward(p.q, p.k, p.v, kernel=kernel, threads=1500)
    judge(p, Result(*cuda_kernels.forward(p.q, p.k, p.v, kernel=kernel, block_q=32, block_k=32)))


@simulated
@passes
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_bytes_that_are_checked_are_those_taken(monkeypatch, kernel, backward, dtype):
    """K28: what the host computes before a launch is what the kernel makes; the largest, where there are several."""
    from cuda_kernels.simulator import device, spaces

    taken = []

    class Noted(spaces.Shared):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            taken.append(self)

    core, p = cuda_kernels.KERNELS[kernel], problem(3, 5)
    q, k, v, dout = (x.astype(dtype) for x in (p.q, p.k, p.v, p.dout))
    warps = {"threads": 64} if hasattr(core, "WARPS") else {}
    how = {"kernel": kernel, "block_q": 2, "block_k": 4, **warps}
    answer = cuda_kernels.forward(q, k, v, **how)
    monkeypatch.setattr(device, "Shared", Noted)
    if backward:
        cuda_kernels.backward(dout, q, k, v, *answer, deterministic=True, **how)
    else:
        cuda_kernels.forward(q, k, v, **how)
    computed = core.shared_bytes(2, 4, 3, 2, 8 if dtype is np.float64 else 4, **warps or {"backward": backward})
    assert max(shared.bytes for shared in taken) == computed


def odd_arrays(source):
    """Arrays that kernels make with a shape that is computed there, or more than one on a line."""
    found = []
    for kernel in kernel_functions(source):
        own = {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own |= {argument.arg for argument in kernel.args.args}
        lines = []
        for node in ast.walk(kernel):
            if isinstance(node, ast.Call) and re.fullmatch(r"cuda\.(shared|local)\.array", ast.unparse(node.func)):
                shape = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else [node.args[0]]
                plain = all(isinstance(n, ast.Constant | ast.Name) and ast.unparse(n) not in own for n in shape)
                found += [ast.unparse(node)] if not plain or node.lineno in lines else []
                lines.append(node.lineno)
    return found


def test_arrays_on_chip_have_the_shape_of_constants():
    """K28: shapes are names from around the kernel, which freeze when it is compiled; one array on a line."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    assert sum(text.count("cuda.shared.array(") for text in texts) > 40
    assert [odd_arrays(text) for text in texts] == [[]] * len(texts)
    for wrong in ("cuda.shared.array((n, 2), f)", "cuda.shared.array(Br // 2, f)", "cuda.local.array(x.size, f)"):
        assert odd_arrays(f"@cuda.jit\ndef f(x, n):\n    a = {wrong}\n    b = cuda.shared.array(Br, f)") == [wrong]
    assert len(odd_arrays("@cuda.jit\ndef f(x):\n    a, b = cuda.shared.array(2, f), cuda.shared.array(2, f)")) == 1


@kernels
def test_another_head_dim_and_back_again(kernel):
    """K28-b: d = 4, 8 and 4 again in one process."""
    for d in (4, 8, 4):
        p = problem(3, 4, d, d, block_q=2, block_k=2)
        judge(p, solve(p, kernel, warps=1))


# --- K30 ------------------------------------------------------------------------------------------------------

@simulated
def test_a_thread_that_fails_before_a_barrier_ends_the_process():
    """K30-a: thread 3 of our own kernel reads past the end of Q, the others wait. See also test_simulator_blocks.py."""
    run = subprocess.run([sys.executable, "-c", """if True:
        import conftest, pathlib, tempfile, planted
        faults = planted.faults(r"(?<=Q\\[b, h, row0 \\+ r)(?=, x\\])", " + (100 if t == 3 else 0)")
        fault = next(fault for fault in faults if fault.path.stem == "fa2")
        with tempfile.TemporaryDirectory() as folder, planted.planted(fault, pathlib.Path(folder)):
            p = planted.SMALL["ragged tails"].problem
            planted.cuda_kernels.forward(p.q, p.k, p.v, kernel="fa2", threads=4, block_q=2, block_k=3)
    """], cwd=HERE, timeout=60, capture_output=True, text=True)
    assert run.returncode == 1 and "in thread 3 of block (0, 0, 0)" in run.stderr, run.stderr
    assert re.search(r"IndexError: Q\[0, 0, 101, 0\]: .*; its shape is \(1, 1, 3, 3\)", run.stderr), run.stderr


@kernels
def test_a_window_before_the_first_key(kernel):
    """K30-b: Nq = 3, tiles of 2, window (1, 0): arrays refuse negative indices, and none is asked for."""
    p = problem(3, 3, window=(1, 0), block_q=2, block_k=2)
    judge(p, solve(p, kernel))
    p = problem(5, 2, window=(1, 0), block_q=2, block_k=2)           # the first queries stand before the first key
    judge(p, solve(p, kernel))


@kernels
@pytest.mark.parametrize("where", [0, 1, 4])
def test_a_nan_among_the_keys_shows(kernel, where):
    """K30: max(1, NaN) is 1 and max(NaN, 1) is NaN, but wherever the NaN stands, the row that sees it is NaN."""
    p = problem(3, 5, block_q=2, block_k=2, causal=True)
    k = p.k.copy()
    k[:, :, where] = np.nan
    out, lse, *_ = vars(solve(p.replace(k=k), kernel, warps=1)).values()
    sees = np.array([where <= i + 2 for i in range(3)])
    assert np.array_equal(np.isnan(out), np.broadcast_to(sees[:, None], out.shape))
    assert np.array_equal(np.isnan(lse), np.broadcast_to(sees, lse.shape))


# --- the list -------------------------------------------------------------------------------------------------

def test_every_kind_is_where_the_list_says():
    """Each kind that cases.py leaves to other tests is named in the first of the files that it points to."""
    assert set(ELSEWHERE) == {"K10", "K27", "K28", "K29", "K30"}
    for kind, words in ELSEWHERE.items():
        files = re.findall(r"\w+\.py", words)
        assert files and all((HERE / file).is_file() for file in files), words
        assert kind in (HERE / files[0]).read_text(encoding="utf-8"), words
