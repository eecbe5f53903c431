"""Calls that are kept ready: what they are known by here, and on a GPU that they do what the first call did."""

import ctypes
import gc
import inspect
import sys
import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import cuda_kernels
from cuda_kernels import fa2, fa2_mma, heads, prepared

on_a_gpu = pytest.mark.skipif(cuda_kernels.SIMULATED, reason="kernels run in the simulator here")


class Tensor:
    """What `key_of` asks of a CUDA tensor."""

    def __init__(self, shape=(1, 2, 8, 64), pointer=256, device=0, cuda=True, negated=False, strides=None,
                 dtype="float16"):
        self.shape, self.pointer, self.device, self.is_cuda, self.negated = shape, pointer, device, cuda, negated
        self.strides, self.dtype = strides, dtype

    def stride(self):
        return self.strides or tuple(int(np.prod(self.shape[n + 1:])) for n in range(len(self.shape)))

    def get_device(self):
        return self.device

    def data_ptr(self):
        return self.pointer

    def is_neg(self):
        return self.negated


@pytest.fixture
def key_of(monkeypatch):
    """`prepared.key_of`, to which `Tensor` is torch's, and 0 the current device."""
    fake = SimpleNamespace(Tensor=Tensor, cuda=SimpleNamespace(current_device=lambda: 0))
    monkeypatch.setitem(sys.modules, "torch", fake)
    return prepared.key_of


def test_calls_of_one_kind_have_one_key(key_of):
    first = key_of(fa2_mma, [Tensor(), Tensor()], None, 0.5, True, (-1, -1))
    again = key_of(fa2_mma, [Tensor(pointer=512), Tensor()], None, 0.5, True, (-1, -1))
    assert first == again and hash(first) == hash(again) and {first: 1}[again] == 1


@pytest.mark.parametrize("change", [
    lambda q, options: (Tensor((1, 2, 9, 64)), options), lambda q, options: (Tensor(pointer=258), options),
    lambda q, options: (Tensor(strides=(1024, 64, 128, 1)), options),
    lambda q, options: (Tensor(dtype="bfloat16"), options),
    lambda q, options: (q, (None, 1.0, True, (-1, -1))), lambda q, options: (q, (None, True, True, (-1, -1))),
    lambda q, options: (q, (None, 1, 1, (-1, -1))), lambda q, options: (q, (None, 1, True, (-1, 0)))])
def test_whatever_decides_the_launch_is_in_the_key(key_of, change):
    """1, 1.0 and True are equal, but not all of them are a scale, and not all of them a flag."""
    q, options = Tensor(), (None, 1, True, (-1, -1))
    q_changed, options_changed = change(q, options)
    assert key_of(fa2_mma, [q, q], *options) != key_of(fa2_mma, [q_changed, q], *options_changed)


@pytest.mark.parametrize("function", [heads.forward, heads.backward], ids=lambda function: function.__name__)
def test_every_option_of_a_call_is_in_its_key(function, monkeypatch):
    class StopError(Exception):
        pass

    def stop(*asked):
        told.append(asked)
        raise StopError

    monkeypatch.setattr(prepared, "key_of", stop)
    told, x, parameters = [], np.zeros((1, 1, 4, 8), np.float16), inspect.signature(function).parameters.values()
    arrays = [x for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "kernel"]
    assert {"scale", "window", "block_q"} < set(names)
    for name in names:
        mark = object()
        with pytest.raises(StopError):
            function(*arrays, kernel="fa2_mma", **{name: mark})
        _, tensors, *others = told.pop()
        assert any(y is mark for y in (*tensors, *others)), name


@pytest.mark.parametrize(("core", "q", "option"), [
    (fa2, Tensor(), None), (fa2_mma, np.ones(3), None), (fa2_mma, Tensor(cuda=False), None),
    (fa2_mma, Tensor(device=1), None), (fa2_mma, Tensor(negated=True), None), (fa2_mma, Tensor(), np.ones(3)),
    (fa2_mma, Tensor(), [1, 2])])
def test_other_calls_have_none(key_of, core, q, option):
    assert key_of(core, [q, q], option) is None


def test_without_torch_nothing_is_prepared(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert prepared.key_of(fa2_mma, [np.ones(3)]) is None


def test_a_launch_has_three_dimensions():
    assert prepared.in_three((7,)) == (7, 1, 1) and prepared.in_three((7, 5)) == (7, 5, 1)
    assert prepared.in_three((7, 5, 3)) == (7, 5, 3)


def test_what_is_kept_holds_no_tensor_of_a_caller(monkeypatch):
    """Of a first call only constants stay in memory; a later call hands over the addresses of its own tensors."""
    compiled, handed, how = Mock(), [], []

    def launch(*arguments):
        *numbers, pointers, _ = arguments
        how.append([n.value for n in numbers])
        handed.append([ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int64))[0] for pointer in pointers])

    compiled._codelibrary.get_cufunc.return_value.kernel.handle = 11
    monkeypatch.setattr(prepared, "compiled_for", lambda *arguments: compiled)
    monkeypatch.setattr(prepared, "driver", lambda: SimpleNamespace(cuLaunchKernel=launch, cuCtxGetCurrent=Mock()))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=13))
    q, out, zeros = torch.ones(3), torch.empty(3), torch.zeros(3)
    launches = [(None, (5, 3), (q, zeros, out, np.int32(7)), 99)]
    place = SimpleNamespace(argument=lambda x: x.numpy())
    call = SimpleNamespace(place=place, threads=32, made=[out], launches=launches)
    monkeypatch.setattr(prepared, "constants", [])
    prepared.remember("key", call, [q], [q], [out])
    ready, gone, constant = prepared.known.pop("key"), [weakref.ref(q), weakref.ref(out)], zeros.data_ptr()
    del q, out, zeros, launches, call
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert [x.data_ptr() for x in prepared.constants] == [constant]
    other = torch.ones(3)
    (answer,) = ready(other)
    words = 4 + 1 + 2                                               # before the address; it; a shape and a stride
    assert [handed[0][at] for at in range(4, 3 * words, words)] == [other.data_ptr(), constant, answer.data_ptr()]
    assert handed[0][-1] == 7
    assert how == [[11, 5, 3, 1, 32, 1, 1, 99, 13]]                # function; grid; block; shared memory; stream


@pytest.mark.parametrize(("answers", "tries"), [([0], 1), ([201, 0], 2), ([201, 201], 2), ([700], 1)])
def test_a_thread_without_a_context_gets_the_one_of_the_first_call(monkeypatch, answers, tries):
    """201 is CUDA_ERROR_INVALID_CONTEXT; any other error, and a second one, is told."""
    driver, compiled = Mock(), Mock()
    compiled._codelibrary.get_cufunc.return_value.kernel.handle = 11
    driver.cuLaunchKernel.side_effect = answers
    monkeypatch.setattr(prepared, "compiled_for", lambda *arguments: compiled)
    monkeypatch.setattr(prepared, "driver", lambda: driver)
    launch = prepared.Launch(SimpleNamespace(place=None, threads=32), [], None, (1,), (np.int32(7),), 0)
    if answers[-1]:
        with pytest.raises(RuntimeError, match=f"error {answers[-1]}"):
            launch([], ctypes.c_void_p(0))
    else:
        launch([], ctypes.c_void_p(0))
    assert driver.cuLaunchKernel.call_count == tries
    assert [c.args for c in driver.cuCtxSetCurrent.call_args_list] == [(launch.context,)] * (tries - 1)


@on_a_gpu
@pytest.mark.gpu
def test_a_grid_of_two_dimensions():
    prepared.known.clear()
    q, k, v = (torch.randn(2, 3, 100, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    first, again = (cuda_kernels.forward(q, k, v, kernel="fa1_mma") for _ in range(2))
    assert len(prepared.known) == 1 and torch.equal(first.out, again.out) and torch.equal(first.lse, again.lse)


@on_a_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("d", [59, 64])
def test_a_prepared_call_is_the_first_one_again(d):
    prepared.known.clear()
    q, k, v = (torch.randn(2, 3, 100, d, device="cuda", dtype=torch.float16) for _ in range(3))
    first = cuda_kernels.forward(q, k, v, kernel="fa2_mma", causal=True)
    assert len(prepared.known) == 1
    again = cuda_kernels.forward(q, k, v, kernel="fa2_mma", causal=True)
    assert torch.equal(first.out, again.out) and torch.equal(first.lse, again.lse)
    other = cuda_kernels.forward(v, q, k, kernel="fa2_mma", causal=True)            # other addresses, the same key
    assert len(prepared.known) == 1 and not torch.equal(other.out, first.out)
    prepared.known.clear()
    assert torch.equal(cuda_kernels.forward(v, q, k, kernel="fa2_mma", causal=True).out, other.out)


@on_a_gpu
@pytest.mark.gpu
def test_a_prepared_call_follows_streams_and_can_be_captured():
    q, k, v = (torch.randn(1, 2, 300, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    first = cuda_kernels.forward(q, k, v, kernel="fa2_mma")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        other = cuda_kernels.forward(q, k, v, kernel="fa2_mma")
    stream.synchronize()
    assert torch.equal(other.out, first.out)
    with torch.cuda.graph(graph):
        captured = cuda_kernels.forward(q, k, v, kernel="fa2_mma")
    q.copy_(k)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured.out, cuda_kernels.forward(q, k, v, kernel="fa2_mma").out)


@on_a_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("with_dlse", [False, True])
def test_a_prepared_backward_pass_is_the_first_one_again(deterministic, with_dlse):
    q, k, v, dout = (torch.randn(2, 3, 100, 64, device="cuda", dtype=torch.float16) for _ in range(4))
    out, lse = cuda_kernels.forward(q, k, v, kernel="fa2_mma", causal=True)
    dlse = torch.randn_like(lse) if with_dlse else None
    how = {"kernel": "fa2_mma", "causal": True, "deterministic": deterministic}
    prepared.known.clear()
    first = cuda_kernels.backward(dout, q, k, v, out, lse, dlse=dlse, **how)
    assert len(prepared.known) == 1
    again = cuda_kernels.backward(dout, q, k, v, out, lse, dlse=dlse, **how)
    assert all(torch.allclose(a, b, atol=1e-2) for a, b in zip(first[:3], again[:3], strict=True))
    assert torch.equal(first.dk, again.dk) and torch.equal(first.dv, again.dv)
    other = cuda_kernels.backward(-dout, q, k, v, out, lse, dlse=None if dlse is None else -dlse, **how)
    assert len(prepared.known) == 1 and torch.equal(other.dk, -first.dk) and torch.equal(other.dv, -first.dv)
    if deterministic:
        assert torch.equal(first.dq, again.dq) and torch.equal(other.dq, -first.dq)
    converted = cuda_kernels.backward(dout, q, k, v, out, lse.double(), dlse=dlse, **how)
    assert len(prepared.known) == 1 and torch.equal(converted.dk, first.dk)
