"""A recording of a kernel in the simulator: its lines, what it loads and stores, and what the page makes of it."""

import sys
from collections import Counter
from itertools import product
from types import CodeType, SimpleNamespace

import numpy as np
import pytest
from ml_dtypes import bfloat16

import cuda_kernels
from cuda_kernels import KERNELS, player, simulator
from cuda_kernels.simulator.audit import Audit
from cuda_kernels.simulator.watched import ATOMIC, READ, WRITE
from fa_ref import debug, fa1, fa2
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule

pytestmark = pytest.mark.skipif(not cuda_kernels.SIMULATED,
                                reason="records in the simulator; kernels run on a GPU here")
each_kernel = pytest.mark.parametrize("kernel", player.ONE_THREAD)


def head(Nq, Nk, d, dtype=np.float64):
    """q, k, v of one head."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, 1, n, d)).astype(dtype) for n in (Nq, Nk, Nk)]


def lines_and_locals(kernel, q, k, v, **options):
    """[(line, {name: number})] of the kernel in a run without a recording, and the answer."""
    codes = [c for c in KERNELS[kernel].make_forward.__wrapped__.__code__.co_consts if isinstance(c, CodeType)]
    seen = []

    def local(frame, event, _):
        if seen and seen[-1][1] is None:
            seen[-1][1] = {name: getattr(x, "item", lambda x=x: x)() for name, x in frame.f_locals.items()
                           if isinstance(x, int | float)}
            seen[-1][2] = {name: np.array(x.data) for name, x in frame.f_locals.items() if hasattr(x, "origin")}
        if event == "line":
            seen.append([frame.f_lineno, None, None])
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, event, _: local if frame.f_code in codes else None)
    try:
        answer = cuda_kernels.forward(q, k, v, kernel=kernel, threads=1, **options)
    finally:
        sys.settrace(before)
    return answer, seen


@each_kernel
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (1, 0), "softcap": 2.0}])
def test_lines_and_numbers_are_those_of_a_plain_run(kernel, options):
    q, k, v = head(3, 4, 2)
    options = {"block_q": 2, "block_k": 3, **options}
    recording = player.record_kernel(kernel, q, k, v, **options)
    answer, seen = lines_and_locals(kernel, q, k, v, **options)
    assert [step.line for step in recording.steps] == [line for line, *_ in seen]
    held = {}
    for step, (_, numbers, arrays) in zip(recording.steps, seen, strict=True):
        held.setdefault(step.call, dict(recording.calls[step.call].names)).update(step.names)
        for name, value in numbers.items():
            assert name not in held[step.call] or repr(held[step.call][name]) == repr(value)
        assert {name for name in numbers if name not in held[step.call]} <= {"zero", "one", "minus_inf"}
        for name in arrays.keys() & held[step.call].keys():
            np.testing.assert_array_equal(held[step.call][name], arrays[name])
    for ours, plain in zip(recording.answer, answer, strict=True):
        np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"reverse": True}])
@pytest.mark.parametrize("shape", [(4, 6, 2), (5, 3, 1)])
def test_fa2_touches_the_elements_that_the_ledger_sees_in_the_loop(options, shape):
    """The same elements of Q, K, V, O and L, each as often, in the kernel as in fa_ref/fa2.py."""
    q, k, v = head(*shape)
    recording = player.record_kernel("fa2", q, k, v, block_q=2, block_k=2, scale=1.0, **options)
    reverse = options.get("reverse", False)
    rule = Rule(shape[0], shape[1], scale=1.0, causal=options.get("causal", False))
    with Ledger(log=True) as led:
        O, L = fa2.forward_head(*(led.hbm(x[0, 0], name) for x, name in zip((q, k, v), "QKV", strict=True)), rule, 2, 2,
                                reverse)
    names = {id(O.record): "O", id(L.record): "L"}
    loop = Counter((a.record.name or names[id(a.record)], a.action, cell) for a in led.log
                   for cell in product(*(range(*part) for part in a.where)))
    kernel = Counter((a.record.name, a.action, tuple(start for start, _ in a.where))
                     for step in recording.steps for a in step.accesses)
    assert kernel == loop
    last = recording.steps[-1]
    assert (last.read, last.written) == (led.total("read_bytes"), led.total("write_bytes"))


def test_an_element_is_touched_by_the_line_that_names_it():
    recording = player.tiny("fa2")
    source = open(KERNELS["fa2"].__file__, encoding="utf-8").read().split("\n")
    for step in recording.steps:
        for access in step.accesses:
            assert f"{access.record.name}[" in source[step.line - 1]
            assert (f"{access.record.name}[b, h, row0 + r" in source[step.line - 1].split(" = ")[0]) == (
                access.action == "store")


def test_every_block_of_the_grid_is_a_call_and_memory_fills_up():
    recording = player.tiny("fa2")
    assert len(recording.calls) == 2 and [call.function for call in recording.calls] == [0, 0]
    O = recording.calls[0].memory["O"]
    assert np.isnan(O).all()                                            # nobody has written yet
    for step in recording.steps:
        O = step.memory.get("O", O)
        if step.call == 0:
            assert np.isnan(O[2:]).all()
    np.testing.assert_array_equal(O, recording.answer.out[0, 0])
    np.testing.assert_allclose(O, fa1.forward_head(*debug.tiny(), 2, 3)[0], rtol=1e-12)


def test_memory_of_bfloat16_is_shown_as_numbers():
    q, k, v = head(2, 2, 2, bfloat16)
    recording = player.record_kernel("fa2", q, k, v)
    np.testing.assert_array_equal(recording.calls[0].memory["K"].astype(float), k[0, 0].astype(float))
    assert recording.memory["K"].dtype == bfloat16 and recording.steps[-1].read == 3 * 4 * 2


def test_kernels_that_follow_are_not_recorded():
    """A sink is merged by another kernel."""
    q, k, v = head(2, 2, 2)
    plain = player.record_kernel("fa2", q, k, v)
    recording = player.record_kernel("fa2", q, k, v, sink=np.array([0.5]))
    assert [s.line for s in recording.steps] == [s.line for s in plain.steps]
    assert list(recording.memory) == list(plain.memory) and recording.steps[-1].written == plain.steps[-1].written
    assert (recording.answer.out != plain.answer.out).all()


@pytest.mark.parametrize(("kernel", "change", "error", "words"), [
    ("fa9", {}, ValueError, "fa9"),
    ("fa2_warps", {}, NotImplementedError, "fa2_warps works by warps of 32 threads.*standard, fa1, fa2"),
    ("fa2", {"threads": 4}, ValueError, "one thread, got threads = 4"),
    ("fa2", {"max_steps": 10}, ValueError, "steps, and a recording takes max_steps = 10"),
    ("fa2", {"q": np.ones((2, 3, 4, 2))}, ValueError, "k has|q has|batch"),
    ("fa2", {"alibi_slopes": np.ones(1)}, NotImplementedError, "alibi_slopes")])
def test_bad_input_is_refused_and_leaves_nothing_behind(kernel, change, error, words):
    q, k, v = head(4, 4, 2)
    options = dict(change)
    q = options.pop("q", q)
    before = sys.gettrace()
    with pytest.raises(error, match=words):
        player.record_kernel(kernel, q, k, v, **options)
    assert sys.gettrace() is before and Audit.active is None


def test_more_than_one_head_is_refused_with_the_way_out():
    q, k, v = (np.ones((2, 3, 4, 2)) for _ in range(3))
    with pytest.raises(ValueError, match=r"one head, got 2 batch entries of 3 heads: give q\[:1, :1\]"):
        player.record_kernel("fa2", q, k, v)


def test_on_a_gpu_it_says_where_to_record(monkeypatch):
    monkeypatch.setattr(cuda_kernels, "SIMULATED", False)
    with pytest.raises(RuntimeError, match="set FA_REF_CUDA=sim"):
        player.record_kernel("fa2", *head(2, 2, 2))


def test_inside_an_audit_it_is_refused():
    with simulator.audit(), pytest.raises(RuntimeError, match="audits do not nest"):
        player.record_kernel("fa2", *head(2, 2, 2))


@each_kernel
def test_play_writes_the_page(kernel, tmp_path, capsys):
    path = tmp_path / "page.html"
    assert player.main([kernel, "-o", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == player.tiny(kernel).html()
    assert f"{len(player.tiny(kernel))} steps of {kernel}" in capsys.readouterr().out


@pytest.mark.parametrize(("action", "told"), [
    (ATOMIC, ["load", "store"]), (READ, ["load"]), (WRITE, ["store"])])
def test_an_atomic_add_is_a_load_and_a_store(action, told):
    """No forward kernel has one; a kernel of your own may."""
    memory, cells = player.Memory(), np.zeros((1, 1, 2, 3), np.float32)
    array = SimpleNamespace(origin=SimpleNamespace(space="global", name="dQ", data=cells))
    memory.look = lambda x: ("dQ", cells)
    memory.access(action, array, cells.ctypes.data + 4 * 4)
    assert [(x.action, x.where) for x in memory.log] == [(done, ((1, 2), (1, 2))) for done in told]


@pytest.mark.parametrize(("Nq", "Nk"), [(0, 3), (3, 0)])
def test_nothing_to_record_is_said(Nq, Nk):
    with pytest.raises(ValueError, match=f"{Nq} queries and {Nk} keys: there is nothing to record"):
        player.record_kernel("fa2", *head(Nq, Nk, 2))
