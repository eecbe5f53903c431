"""The way to a launch: device or simulator, kinds of arrays, and every check that comes before a kernel runs."""

import os
import subprocess
import sys
import textwrap
import warnings
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

import cuda_kernels
import fa_ref
from cuda_kernels import arrays, fa1, fa2, launch, places, standard

simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="about the simulator; kernels run on a GPU here")
WITH_BACKWARD = [kernel for kernel in cuda_kernels.PLAIN if kernel in cuda_kernels.WITH_BACKWARD]
kernels = pytest.mark.parametrize("kernel", WITH_BACKWARD)


def qkv(dtype=np.float32, N=5, d=3, seed=0):
    """Three arrays (1, 2, N, d)."""
    return np.random.default_rng(seed).standard_normal((3, 1, 2, N, d)).astype(dtype)


def gradients(q, k, v, **options):
    """backward with a dout of ones; options as there."""
    answer = cuda_kernels.forward(q, k, v)
    return cuda_kernels.backward(np.ones_like(answer.out), q, k, v, *answer, **options)


@contextmanager
def nothing_is_launched(monkeypatch):
    """Any launch inside fails the test."""
    def refuse(*_):
        pytest.fail("something was launched")

    monkeypatch.setattr(launch.Call, "launch", refuse)
    yield


# --- device or simulator --------------------------------------------------------------------------------------

def python(code, **environment):
    """Run Python code in a process of its own; returns (exit code, last line of all it said)."""
    inherited = {name: x for name, x in os.environ.items() if name not in ("FA_REF_CUDA", "NUMBA_ENABLE_CUDASIM")}
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=inherited | environment, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return run.returncode, run.stdout.strip().split("\n")[-1]


SAY = "import cuda_kernels; print(cuda_kernels.SIMULATED)"
NO_DRIVER = """
import ctypes
load = ctypes.CDLL
class Without(load):
    def __init__(self, name, *more, **others):
        if str(name) in ("libcuda.so.1", "nvcuda.dll"): raise OSError(name)
        super().__init__(name, *more, **others)
ctypes.CDLL = Without
"""


@pytest.mark.parametrize("environment, simulates", [
    ({"FA_REF_CUDA": "sim"}, "True"),
    ({"FA_REF_CUDA": "sim", "NUMBA_ENABLE_CUDASIM": "0"}, "True"),      # the project's own word counts
    ({"FA_REF_CUDA": "auto", "NUMBA_ENABLE_CUDASIM": "1"}, "True"),
    ({"NUMBA_ENABLE_CUDASIM": "0"}, "False"),                           # whoever sets Numba's variable means it
    ({"FA_REF_CUDA": "", "NUMBA_ENABLE_CUDASIM": "1"}, "True"),
])
def test_the_switch(environment, simulates):
    assert python(SAY, **environment) == (0, simulates)


def test_auto_asks_the_driver():
    """A driver that counts two devices; and asking does not import Numba."""
    assert python("""
        import ctypes, importlib.util, sys
        class Driver:
            def __init__(self, name): pass
            def cuInit(self, flags): return 0
            def cuDeviceGetCount(self, count): count._obj.value = 2; return 0
        ctypes.CDLL = Driver
        folder = importlib.util.find_spec("cuda_kernels").submodule_search_locations[0]
        switch = {}
        exec(open(folder + "/switch.py").read(), switch)
        print(switch["devices"](), switch["SIMULATED"], "numba" in sys.modules)
    """) == (0, "2 False False")


def test_auto_without_a_driver_simulates():
    assert python(NO_DRIVER + SAY) == (0, "True")


@pytest.mark.parametrize("environment, first, why", [
    ({"FA_REF_CUDA": "gpu"}, "", "FA_REF_CUDA=gpu"),
    ({}, "import numba.cuda\n", "numba.cuda was imported first and looks for a GPU"),
])
def test_a_gpu_that_is_not_there(environment, first, why):
    """Said at the import, with the way out, not at the first launch."""
    code, said = python(NO_DRIVER + first + SAY, **environment)
    assert code and said.startswith(f"RuntimeError: {why}")
    assert said.endswith("but the CUDA driver finds no device; start Python with FA_REF_CUDA=sim for the simulator, "
                         "and import cuda_kernels before numba.cuda")


@simulated
def test_another_mode_after_the_import(monkeypatch):
    """In a notebook, say: the variable is set when kernels run in the simulator already."""
    x = np.zeros((1, 1, 2, 2), np.float32)
    for mode in ("sim", "auto", ""):
        monkeypatch.setenv("FA_REF_CUDA", mode)
        cuda_kernels.forward(x, x, x)
    monkeypatch.setenv("FA_REF_CUDA", "gpu")
    with pytest.raises(RuntimeError, match="FA_REF_CUDA=gpu comes too late: kernels of this process run in the simul"):
        cuda_kernels.forward(x, x, x)


def test_an_unknown_mode_names_the_known_ones():
    code, said = python(SAY, FA_REF_CUDA="cpu")
    assert code and said == "ValueError: FA_REF_CUDA must be one of auto, gpu, sim, got 'cpu'"


def test_a_choice_that_comes_too_late():
    """numba.cuda reads its mode once: sim after a device import is an error that says what to do; auto adapts."""
    code, said = python("import numba.cuda; " + SAY, FA_REF_CUDA="sim", NUMBA_ENABLE_CUDASIM="0")
    assert code and said.startswith("RuntimeError: FA_REF_CUDA=sim comes too late: numba.cuda was imported before and")
    assert "NUMBA_ENABLE_CUDASIM=1" in said
    assert python("import numba.cuda; " + SAY, NUMBA_ENABLE_CUDASIM="1") == (0, "True")
    assert python("import numba; " + SAY, FA_REF_CUDA="sim") == (0, "True")       # numba alone is not too late


def test_without_numba_the_way_to_it_is_named():
    code, said = python("""
        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *more: None if name == "numba_cuda" else find(name, *more)
        import cuda_kernels
    """)
    assert code and said == ("ImportError: the kernels need numba and numba-cuda, and numba_cuda is missing: run make "
                             "tour, or pip install -e . in the folder of this project")


# --- kinds of arrays ------------------------------------------------------------------------------------------

VIEWS = {
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "stepped": lambda x: x.repeat(2, axis=3)[..., ::2],
    "reversed": lambda x: np.ascontiguousarray(x[:, :, ::-1, ::-1])[:, :, ::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@kernels
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [np.float32, bfloat16], ids=["float32", "bfloat16"])
def test_any_strides(kernel, view, dtype):
    viewed = [view(x) for x in qkv(dtype)]
    plain = [np.array(x) for x in viewed]
    ours, theirs = (cuda_kernels.forward(*x, kernel=kernel, threads=3) for x in (viewed, plain))
    assert ours.out.tobytes() == theirs.out.tobytes() and ours.out.flags.c_contiguous and ours.out.flags.writeable


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_torch_tensors_of_the_cpu(dtype):
    numpy_dtype = bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    host = [*qkv(numpy_dtype), qkv(numpy_dtype, seed=1)[0]]
    mask = np.tri(5, dtype=bool)

    def tensor(x):
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == bfloat16 else torch.from_numpy(x)

    def call(q, k, v, dout, mask, sink):
        options = {"mask": mask, "sink": sink, "block_q": 2, "block_k": 2}
        answer = cuda_kernels.forward(q, k, v, **options)
        return [*answer, *cuda_kernels.backward(dout, q, k, v, *answer, **options)]

    sink = np.ones(2, np.float32)
    ours = call(*(tensor(x).requires_grad_() for x in host), torch.from_numpy(mask), torch.from_numpy(sink))
    for x, y in zip(ours, call(*host, mask, sink), strict=True):
        if y is not None:
            assert x.device.type == "cpu" and not x.requires_grad and str(x.dtype) == f"torch.{y.dtype}"
            x = x.view(torch.int16).numpy().view(bfloat16) if x.dtype == torch.bfloat16 else x.numpy()
            assert x.tobytes() == y.tobytes()


@pytest.fixture
def tensors_as_on_a_gpu(monkeypatch):
    """The way of CUDA tensors, walked with tensors of the CPU: only the last step, to a kernel's argument, differs."""

    class Stand(places.Torch):
        stream = 0

        def here(self):
            return nullcontext()

        def argument(self, x):
            return places.FakeCUDAArray(x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy())

    monkeypatch.setattr(places, "Torch", Stand)
    for module in (arrays, places):
        monkeypatch.setattr(module, "on_device", lambda name, x: isinstance(x, torch.Tensor))
    return torch


@simulated
@kernels
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_way_of_cuda_tensors(tensors_as_on_a_gpu, kernel, dtype):
    torch, dtype = tensors_as_on_a_gpu, bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    host = [*qkv(dtype), qkv(dtype, seed=1)[0]]
    host[1] = VIEWS["transposed"](host[1])
    mask, sink, dlse = np.tri(5, dtype=bool)[None], np.array([1, -2], np.float64), np.ones((1, 2, 5), np.float32)

    def tensor(x):
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == bfloat16 else torch.from_numpy(x)

    def call(q, k, v, dout, dlse, **options):
        how = {**options, "kernel": kernel, "threads": 3, "block_q": 2, "block_k": 2}
        answer = cuda_kernels.forward(q, k, v, **how)
        return [*answer, *cuda_kernels.backward(dout, q, k, v, *answer, dlse=dlse, **how)]

    wanted = call(*host, dlse, mask=mask, sink=sink)
    q, *others = (tensor(x) for x in host)
    for options in ({"mask": mask, "sink": sink}, {"mask": tensor(mask), "sink": tensor(sink)}):
        found = call(q.requires_grad_(), *others, tensor(dlse), **options)
        for x, y in zip(found, wanted, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                assert x.is_contiguous() and not x.requires_grad and str(x.dtype) == f"torch.{y.dtype}"
                x = x.view(torch.int16).numpy().view(bfloat16) if x.dtype == torch.bfloat16 else x.numpy()
                assert x.tobytes() == y.tobytes()


@simulated
def test_checks_on_the_way_of_cuda_tensors(tensors_as_on_a_gpu, monkeypatch):
    """Shapes and dtypes are checked on stand-ins, with the words of all other checks; axes of length 0 are taken."""
    torch = tensors_as_on_a_gpu
    x, no_rows = torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 0, 3)
    for q, k in ((no_rows, x), (x, no_rows), (no_rows, no_rows)):
        out, lse = cuda_kernels.forward(q, k, k, mask=torch.ones(1, dtype=torch.bool))
        grads = cuda_kernels.backward(out, q, k, k, out, lse, sink=torch.zeros(2))
        assert out.shape == q.shape and grads.dk.shape == k.shape and not grads.dk.any()
    out, lse = cuda_kernels.forward(x, x, x)
    with nothing_is_launched(monkeypatch):
        for arguments, options, error, text in [
            ((x, x[..., :2], x), {}, ValueError, "q has d = 3, k has d = 2"),
            ((x.to(torch.int8), x, x), {}, TypeError, "q has dtype int8; offered are float64"),
            ((x.to(torch.float8_e4m3fn), x, x), {}, TypeError, "q has dtype float8_e4m3fn; offered are"),
            ((x, x, x), {"mask": torch.zeros(5, 5)}, NotImplementedError, "a mask of dtype float32 is not offered"),
            ((x, x, x), {"mask": torch.ones(4, dtype=torch.bool)}, ValueError, r"mask of shape \(4,\) does not"),
            ((x, x, x), {"sink": torch.zeros(3)}, ValueError, r"sink must have shape \(2,\).* got \(3,\)"),
            ((x, x, x), {"mask": np.ones((5, 5), int)}, TypeError, "mask must be boolean"),
        ]:
            with pytest.raises(error, match=text):
                cuda_kernels.forward(*arguments, **options)
        with pytest.raises(ValueError, match=r"lse must have shape \(1, 2, 5\), got \(2, 5\)"):
            cuda_kernels.backward(out, x, x, x, out, lse[0])
        with pytest.raises(TypeError, match="lse must be float32 or float64, got float16"):
            cuda_kernels.backward(out, x, x, x, out, lse.half())


def test_a_sink_on_the_host_may_have_any_dtype_and_may_be_locked(tensors_as_on_a_gpu):
    torch = tensors_as_on_a_gpu
    x = torch.ones(1, 2, 5, 3)
    sink = np.array([1, -2], bfloat16)
    sink.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = cuda_kernels.forward(x, x, x, sink=sink).out
    assert torch.equal(out, cuda_kernels.forward(x, x, x, sink=torch.tensor([1.0, -2.0])).out)


@simulated
def test_tile_sizes_reach_kernels_as_ints(monkeypatch):
    """np.int64 is no constant to Numba's compiler; the simulator takes anything."""
    seen, launch_it = [], launch.Call.launch

    def watched(self, *arguments, **how):
        seen.extend([self.Br, self.Bc, self.threads])
        launch_it(self, *arguments, **how)

    monkeypatch.setattr(launch.Call, "launch", watched)
    for kernel in cuda_kernels.KERNELS:
        q, k, v = qkv(np.float16, d=8)
        size = np.int64(16)
        cuda_kernels.forward(q, k, v, kernel=kernel, threads=2 * size, block_q=size, block_k=size)
    assert len(seen) >= 3 * len(cuda_kernels.KERNELS) and {type(n) for n in seen} == {int}


def test_results_share_no_memory_with_inputs():
    q, k, v = qkv(N=1)                                      # one key: out is v
    answer = cuda_kernels.forward(q, k, v)
    before = answer.out.copy()
    v[:] = 0
    assert np.array_equal(answer.out, before)


class OnDevice:
    """An array that says it lies on a device."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": (1, 2, 5, 3), "typestr": "<f4", "data": (0, False), "version": 3}


@simulated
def test_device_memory_in_the_simulator():
    q, k, v = qkv()
    with pytest.raises(TypeError, match=r"q is an array on the device, but kernels run in the simulator.*CUDA=gpu"):
        cuda_kernels.forward(OnDevice(), OnDevice(), OnDevice())
    with pytest.raises(TypeError, match="arrays of different kinds or devices: q is a NumPy array, k is an array on"):
        cuda_kernels.forward(q, OnDevice(), v)
    with pytest.raises(TypeError, match="mask is an array on the device, but kernels run in the simulator"):
        cuda_kernels.forward(q, k, v, mask=OnDevice())
    with pytest.raises(TypeError, match="sink must be a NumPy array or a torch tensor, got list"):
        cuda_kernels.forward(q, k, v, sink=[1.0, 2.0])


@simulated
def test_cuda_tensors_in_the_simulator():
    """A tensor that says it is on a GPU; there is none here."""

    class Claimed(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, *_):
            raise NotImplementedError

    x = torch.Tensor._make_wrapper_subclass(Claimed, (1, 2, 5, 3), device="cuda:0")
    with pytest.raises(TypeError, match=r"q is a torch tensor on cuda:0, but kernels run in the simulator.*CUDA=gpu"):
        cuda_kernels.forward(x, x, x)
    cpu = torch.zeros(1, 2, 5, 3)
    with pytest.raises(TypeError, match="q is a torch tensor on cuda:0, k is a torch tensor on cpu"):
        cuda_kernels.forward(x, cpu, cpu)
    meta = cpu.to("meta")
    with pytest.raises(TypeError, match="q must be on cpu or cuda, got a torch tensor on meta"):
        cuda_kernels.forward(meta, meta, meta)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
def test_host_memory_goes_to_the_device_and_back(dtype):
    x = qkv(dtype)[0].swapaxes(1, 2)
    copied = places.Copied(x)
    loaded, back = copied.load(x), copied.result(copied.load(x), dtype)
    assert copied.known("x", x) is x and back.dtype == dtype and back.tobytes() == x.tobytes()
    assert loaded.dtype == copied.empty((1,), dtype).dtype == np.dtype(np.uint16 if dtype == bfloat16 else dtype)
    assert copied.result(copied.load(x, np.float64), np.float32).dtype == np.float32
    assert copied.full((2,), 3, np.float32).copy_to_host().tolist() == [3, 3]


def test_what_the_checks_see_of_device_memory():
    """A stand-in with the shape and dtype, a single element large."""
    x = places.stand_in((70_000, 16, 4096, 128), np.dtype(bfloat16))
    assert (x.shape, x.dtype, x.strides) == ((70_000, 16, 4096, 128), bfloat16, (0, 0, 0, 0))


# --- bad input ------------------------------------------------------------------------------------------------

BAD = [
    ({"kernel": "fa4"}, ValueError, "unknown kernel 'fa4'; known are 'standard', 'fa1', 'fa2'"),
    ({"kernel": None}, ValueError, "unknown kernel None"),
    ({"threads": 0}, ValueError, "threads must be at least 1, got 0"),
    ({"threads": -32}, ValueError, "threads must be at least 1, got -32"),
    ({"threads": 1025}, ValueError, "threads must be at most 1024 on .*, got 1025"),
    ({"threads": 32.0}, TypeError, "threads must be a whole number, got 32.0"),
    ({"bias": np.zeros((5, 5))}, NotImplementedError, "bias is not offered by the kernels; fa_ref.forward"),
    ({"alibi_slopes": np.zeros(2)}, NotImplementedError, "alibi_slopes is not offered by the kernels; fa_ref.forward"),
    ({"mask": np.zeros((5, 5))}, NotImplementedError, "a mask of dtype float64 is not offered by the kernels; fa_ref"),
    ({"mask": np.zeros((5, 5), int)}, TypeError, "mask must be boolean .* got int64"),
    ({"mask": np.ones((5, 4), bool)}, ValueError, r"mask of shape \(5, 4\) does not broadcast to .*\(1, 2, 5, 5\)"),
    ({"sink": np.zeros(3)}, ValueError, r"sink must have shape \(2,\).* got \(3,\)"),
    ({"sink": np.full(2, np.nan)}, ValueError, "sink must hold finite numbers or -inf, got nan"),
    ({"softcap": -1.0}, ValueError, "softcap must be .* got -1.0"),
    ({"scale": np.inf}, ValueError, "scale must be finite in float32, got inf"),
    ({"window": (-2, 0)}, ValueError, "window left must be at least -1, got -2"),
    ({"block_q": 0}, ValueError, "block_q must be at least 1, got 0"),
    ({"causal": 1}, TypeError, "causal must be True or False, got 1"),
]


@pytest.mark.parametrize("options, error, text", BAD, ids=[text for *_, text in BAD])
def test_bad_options(monkeypatch, options, error, text):
    q, k, v = qkv()
    answer = cuda_kernels.forward(q, k, v)
    with nothing_is_launched(monkeypatch):
        with pytest.raises(error, match=text):
            cuda_kernels.forward(q, k, v, **options)
        with pytest.raises(error, match=text):
            cuda_kernels.backward(answer.out, q, k, v, *answer, **options)


def test_bad_arrays(monkeypatch):
    q, k, v = qkv()
    out, lse = cuda_kernels.forward(q, k, v)
    with nothing_is_launched(monkeypatch):
        for arguments, error, text in [
            ((q, k[..., :2], v), ValueError, "q has d = 3, k has d = 2"),
            ((q[0], k, v), ValueError, "q must have 4 axes"),
            ((q.astype(int), k, v), TypeError, "q has dtype int64; offered are float64, float32, float16, bfloat16"),
            ((q, k.astype(np.float16), v), TypeError, "must share one dtype, got float32, float16 and float32"),
            (([1.0], k, v), TypeError, "q must be a NumPy array or a torch tensor, got list"),
            ((q[:, :1].repeat(3, axis=1), k, v), ValueError, "3 query heads cannot be shared among 2"),
        ]:
            with pytest.raises(error, match=text):
                cuda_kernels.forward(*arguments)
        for arguments, options, error, text in [
            ((out[:, :, 1:], q, k, v, out, lse), {}, ValueError, r"dout must have shape \(1, 2, 5, 3\), got \(1, 2, 4"),
            ((out, q, k, v, out.astype("f8"), lse), {}, TypeError, "out must have dtype float32, got float64"),
            ((out, q, k, v, out, lse[0]), {}, ValueError, r"lse must have shape \(1, 2, 5\), got \(2, 5\)"),
            ((out, q, k, v, out, lse + np.inf), {}, ValueError, "lse is \\+inf at"),
            ((out, q, k, v, out, lse), {"dlse": lse[..., 1:]}, ValueError, "dlse must have shape"),
            ((out, q, k, v, out, lse), {"deterministic": 1}, TypeError, "deterministic must be True or False, got 1"),
        ]:
            with pytest.raises(error, match=text):
                cuda_kernels.backward(*arguments, **options)


# --- limits ---------------------------------------------------------------------------------------------------

def test_tiles_that_do_not_fit(monkeypatch):
    """K28-a, and its like for the backward pass: the bytes, the limit and tiles that would fit; before any launch."""
    q, k, v = qkv(d=128)
    out, lse = fa_ref.forward(q, k, v)
    with nothing_is_launched(monkeypatch):
        with pytest.raises(ValueError, match=(
                r"the forward kernel fa2 for d = 128, dv = 128 in float32 with tiles of 32 × 32 needs 70400 bytes of "
                r"shared memory, but a block has 49152 on .*: 16 × 16 would fit")):
            cuda_kernels.forward(q, k, v, block_q=32, block_k=32)
        with pytest.raises(ValueError, match=r"the backward kernel fa1 .* tiles of 16 × 32 needs .* 49152 on .*would"):
            cuda_kernels.backward(out, q, k, v, out, lse, kernel="fa1", block_q=16, block_k=32)
        halves = [x.astype(np.float16) for x in (q, k, v)]
        for kernel, fits in (("fa2_mma", "16 × 64"), ("fa1_mma", "16 × 64")):       # a change of block_k alone will do
            with pytest.raises(ValueError, match=rf"{kernel} .* 16 × 4096 needs .*: {fits} would fit"):
                cuda_kernels.forward(*halves, kernel=kernel, threads=32, block_q=16, block_k=4096)
        x, lse_16 = np.ones((1, 1, 2, 256), np.float16), np.ones((1, 1, 2), np.float32)
        with pytest.raises(ValueError, match=r"fa2_mma .* 128 × 64 needs .*: 64 × 64 would fit"):
            cuda_kernels.backward(x, x, x, x, x, lse_16, kernel="fa2_mma", block_q=128, block_k=64)
        wide = qkv(d=10_000)
        with pytest.raises(ValueError, match="no tile fits, the head dim is too large"):
            cuda_kernels.forward(*wide)


@pytest.mark.parametrize("d", [1, 64, 128, 300])
@pytest.mark.parametrize("core", [standard, fa1, fa2], ids=WITH_BACKWARD)
@pytest.mark.parametrize("backward", [False, True])
def test_default_tiles_are_the_largest_that_fit(core, d, backward):
    card = launch.CARDS["H200"]

    def bytes_of(Br, Bc):
        return core.shared_bytes(Br, Bc, d, d, 4, backward)

    Br, Bc = launch.check_tiles(bytes_of, None, None, card, "")
    assert Br == Bc <= launch.LARGEST_TILE and bytes_of(Br, Bc) <= card.shared_bytes
    assert Br == launch.LARGEST_TILE or bytes_of(2 * Br, 2 * Bc) > card.shared_bytes
    assert launch.check_tiles(bytes_of, 1, None, card, "")[0] == 1


def test_another_card_has_other_limits():
    """A tile that fits one card overflows another; the text names the card."""
    small = launch.CARDS["T4"]._replace(shared_bytes=1000, threads=512, grid=(10, 5, 2), card="a small card")
    assert launch.check_tiles(lambda Br, Bc: 4 * Br * Bc, None, None, small, "") == (8, 8)
    with pytest.raises(ValueError, match=r"x with tiles of 20 × 20 needs 1600 bytes .* 1000 on a small card: 8 × 8"):
        launch.check_tiles(lambda Br, Bc: 4 * Br * Bc, 20, 20, small, "x")
    with pytest.raises(ValueError, match="threads must be at most 512 on a small card, got 513"):
        launch.check_threads(513, small)
    launch.check_grid((10, 5, 2), small)
    for grid in ((11, 1, 1), (1, 6), (1, 1, 3)):
        with pytest.raises(ValueError, match="blocks is more than a small card takes"):
            launch.check_grid(grid, small)


@pytest.mark.parametrize("kernel", cuda_kernels.PLAIN)
def test_a_grid_that_no_card_takes(kernel, monkeypatch):
    """65536 heads or batch entries: said before any launch (the arrays are one element that is repeated)."""
    for shape in ((1, 65_536, 1, 1), (65_536, 1, 1, 1)):
        x = np.broadcast_to(np.zeros((), np.float32), shape)
        said = r"a grid of \(1, .*65536.*\) blocks is more than .*, \(2147483647, 65535"
        with nothing_is_launched(monkeypatch), pytest.raises(ValueError, match=said):
            cuda_kernels.forward(x, x, x, kernel=kernel)


def test_empty_grids_are_not_launched(monkeypatch):
    """Nor is anything else where there is no key."""
    launched = []
    monkeypatch.setattr(launch, "launch_compiled", lambda *_: launched.append("on the device"))
    monkeypatch.setattr(launch.Call, "launch", lambda self, kernel, grid, *_: launched.append(grid))
    for Nq, Nk in ((0, 5), (5, 0)):
        q, k = np.zeros((1, 2, Nq, 3), "f4"), np.zeros((1, 2, Nk, 3), "f4")
        answer = cuda_kernels.forward(q, k, k)
        cuda_kernels.backward(answer.out, q, k, k, *answer)
    assert launched == []


@simulated
def test_results_are_nan_until_they_are_written(monkeypatch):
    """Not what an earlier call left in the same memory, which may be the right answer."""
    monkeypatch.setattr(launch.Call, "launch", lambda *_: None)
    answer = cuda_kernels.forward(*qkv())
    assert np.isnan(answer.out).all() and np.isnan(answer.lse).all()


# --- kernels from factories -----------------------------------------------------------------------------------

def test_a_kernel_is_made_once():
    fa2.make_forward.cache_clear()
    for d in (3, 4, 3, 4):
        cuda_kernels.forward(*qkv(d=d), block_q=2, block_k=2)
    cuda_kernels.forward(*qkv(N=7), block_q=2, block_k=2, causal=True, scale=2.0, window=(1, 1))    # numbers, not flags
    assert fa2.make_forward.cache_info().misses == 2
    cuda_kernels.forward(*qkv(), block_q=2, block_k=2, softcap=1.0)
    cuda_kernels.forward(*qkv(np.float16), block_q=2, block_k=2)
    assert fa2.make_forward.cache_info().misses == 4


def test_results_lie_in_memory_as_their_arguments_do():
    x = torch.zeros(2, 3, 4, 8, dtype=torch.float16)
    by_token = torch.zeros(2, 4, 3, 8).transpose(1, 2)
    assert arrays.empty_as(x, (2, 3, 4, 5), dtype=torch.float32).is_contiguous()
    found = arrays.empty_as(by_token, (2, 3, 4, 5), dtype=torch.float16)
    assert found.shape == (2, 3, 4, 5) and found.dtype == torch.float16 and found.transpose(1, 2).is_contiguous()


def test_numbers_on_a_device_are_looked_at_only_by_calls_that_wait(monkeypatch):
    capturing, there = [False], [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(arrays, "on_device", lambda name, x: there[0])
    assert arrays.may_be_read(torch.zeros(1), waits=True) and not arrays.may_be_read(torch.zeros(1), waits=False)
    capturing[0] = True                                             # a CUDA graph is recorded: nobody may wait
    assert not arrays.may_be_read(torch.zeros(1), waits=True)
    there[0] = False
    assert arrays.may_be_read(torch.zeros(1), waits=False)


def test_rows_on_a_device_must_lie_side_by_side(monkeypatch):
    """Only kernels on tensor cores ask, of every array that they copy by rows; one channel has no neighbour."""
    x, asked = torch.zeros(1, 2, 4, 8), []
    monkeypatch.setattr(arrays, "on_device", lambda name, x: True)
    arrays.check_rows("fa2_mma", q=x, k=x.transpose(1, 2), v=x[..., :1], dlse=None)
    arrays.check_rows("fa2_mma", q=torch.from_numpy(np.zeros((1, 2, 0, 8))))                # NumPy's strides are 0
    for name, wrong, step in (("q", x.mT, 8), ("k", x[..., ::2], 2), ("dout", x[:, :, :1, :1].expand(x.shape), 0)):
        with pytest.raises(ValueError, match=f"fa2_mma takes a {name} whose last axis .* it is {step} elements"):
            arrays.check_rows("fa2_mma", **{name: wrong})
    monkeypatch.undo()
    monkeypatch.setattr(arrays, "check_rows", lambda kernel, **arrays: asked.append((kernel, *arrays)))
    q = np.zeros((1, 1, 4, 8), np.float16)
    for kernel in ("fa2", "fa2_mma"):
        out, lse = cuda_kernels.forward(q, q, q, kernel=kernel)
        cuda_kernels.backward(out, q, q, q, out, lse, kernel=kernel)
    assert asked == [("fa2_mma", "q", "k", "v"), ("fa2_mma", "dout", "q", "k", "v", "out")]
