"""How the threads of a block take turns, meet, and end."""

import signal
import threading
import time
import traceback

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda.simulator.kernel import FakeCUDAKernel

import simulator_kernels as kernels
from cuda_kernels import simulator
from simulator_kernels import line

events = []


@cuda.jit
def two_phases():
    events.append((0, cuda.threadIdx.x))
    cuda.syncthreads()
    events.append((1, cuda.threadIdx.x))
    cuda.syncthreads()


@cuda.jit
def places(out):
    x, y, z = cuda.grid(3)
    out[x, y, z] = cuda.threadIdx.x + 10 * cuda.threadIdx.y + 100 * cuda.blockIdx.x + 1000 * cuda.blockIdx.z
    events.append((cuda.laneid, *cuda.threadIdx))


@cuda.jit
def predicates(x, out):
    t = cuda.threadIdx.x
    out[t, 0] = cuda.syncthreads_count(x[t])
    out[t, 1] = cuda.syncthreads_and(x[t])
    out[t, 2] = cuda.syncthreads_or(x[t])


@cuda.jit
def faulty(x, culprit):
    t = cuda.threadIdx.x
    try:
        if t == culprit:
            x[t + 100] = 0                                      # past the end
        cuda.syncthreads()
    finally:
        events.append(t)


@cuda.jit
def locked_sum(x, lock, out):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:                  # take the lock
        pass
    cuda.nanosleep(10)                                          # let the others try in vain
    out[0] += x[cuda.threadIdx.x]
    cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def never_unlocked(lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass


@pytest.fixture(autouse=True)
def no_events():
    events.clear()


def test_turns_are_in_order():
    for _ in range(20):
        events.clear()
        two_phases[1, 5]()
        assert events == [(phase, t) for phase in (0, 1) for t in range(5)]


def test_indices_in_three_directions():
    out = np.full((4, 3, 4), -1)
    places[(2, 1, 2), (2, 3, 2)](out)
    x, y, z = np.indices(out.shape)
    assert (out == x % 2 + 10 * y + 100 * (x // 2) + 1000 * (z // 2)).all()
    assert events[:12] == [(x + 2 * y + 6 * z, x, y, z) for z in range(2) for y in range(3) for x in range(2)]


@pytest.mark.parametrize("x", [[0, 0, 0], [1, 0, 2], [1, 1, 1], [7]])
def test_barriers_with_a_predicate(x):
    out = np.zeros((len(x), 3), int)
    predicates[1, len(x)](np.array(x), out)
    assert (out == [np.count_nonzero(x), all(x), any(x)]).all()


def test_threads_that_returned_are_not_waited_for():
    x, out = np.arange(3.0), np.zeros(8)
    kernels.early_return[1, 8](x, out)
    assert (out[:3] == x).all() and not out[3:].any()


def test_an_exception_ends_the_run():
    with pytest.raises(IndexError, match=r"x\[102\].*shape is \(4,\)") as caught:
        faulty[(1, 2), 4](np.zeros(4), 2)
    assert caught.value.__notes__ == ["in thread 2 of block (0, 0, 0)"]
    assert line(faulty, "past the end") in [frame.lineno for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert sorted(events) == [0, 1, 2]                          # thread 3 had no turn; 0 and 1 were woken to end


def test_an_exception_in_a_single_thread_has_its_note_too():
    with pytest.raises(IndexError) as caught:
        faulty[1, 1](np.zeros(4), 0)
    assert caught.value.__notes__ == ["in thread 0 of block (0, 0, 0)"]


def test_failing_runs_leave_no_thread_behind():
    before, original = threading.active_count(), faulty.py_func.__globals__["cuda"]
    for n in range(1000):
        with pytest.raises(IndexError):
            faulty[1, 3](np.zeros(4), n % 3)
    assert threading.active_count() == before
    assert faulty.py_func.__globals__["cuda"] is original is cuda


def test_an_exception_before_a_barrier_ends_the_process(tmp_path):
    run = kernels.run_script(tmp_path / "crash.py", """
@cuda.jit
def kernel(x):
    t = cuda.threadIdx.x
    if t == 3:
        x[t + 1] = 0
    cuda.syncthreads()
kernel[1, 4](np.zeros(4))
""")
    assert run.returncode == 1
    assert "x[t + 1] = 0" in run.stderr and "x[4]" in run.stderr and "in thread 3 of block (0, 0, 0)" in run.stderr


def test_a_deadlock_says_who_waits_where(tmp_path):
    run = kernels.run_script(tmp_path / "deadlock.py", """
import time
@cuda.jit
def kernel():
    t = cuda.threadIdx.x
    if t == 6:
        return
    if t == 1:
        cuda.syncthreads()      # line 9
    cuda.syncwarp()             # line 10
start = time.perf_counter()
try:
    kernel[1, 8]()
finally:
    assert time.perf_counter() - start < 1
""")
    assert run.returncode == 1 and "AssertionError" not in run.stderr
    assert "Deadlock: no thread of block (0, 0, 0) can go on" in run.stderr
    assert f"waiting at syncwarp with mask 0xffffffff ({tmp_path}/deadlock.py:10): threads 0, 2–5, 7" in run.stderr
    assert f"waiting at syncthreads ({tmp_path}/deadlock.py:9): threads 1\n" in run.stderr
    assert "returned: threads 6" in run.stderr


def test_ctrl_c_ends_a_run_of_many_threads(tmp_path):
    run = kernels.run_script(tmp_path / "interrupt.py", """
import _thread, threading
@cuda.jit
def kernel(x):
    t = cuda.threadIdx.x
    cuda.syncthreads()
    while t == 1:
        x[0] += 1
threading.Timer(0.5, _thread.interrupt_main).start()
try:
    kernel[1, 4](np.zeros(1))
except KeyboardInterrupt:
    print("ended,", threading.active_count(), "thread left")
""", timeout=30)
    assert run.stdout == "ended, 1 thread left\n", run.stderr


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends a signal")
def test_ctrl_c_at_any_moment(tmp_path):
    """Thirty times, a little later each: no thread is left, nothing is printed, nobody waits in vain."""
    run = kernels.run_script(tmp_path / "interrupts.py", """
import signal, threading, time
@cuda.jit
def kernel(x):
    t = cuda.threadIdx.x
    for _ in range(400):
        cuda.syncthreads()
        x[t] += 1
signal.signal(signal.SIGALRM, signal.default_int_handler)
ended, longest = 0, 0.0
for n in range(30):
    begun = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.001 * n)
        kernel[1, 32](np.zeros(32))
    except KeyboardInterrupt:
        ended += 1
    longest = max(longest, time.monotonic() - begun)
signal.setitimer(signal.ITIMER_REAL, 0)
x = np.zeros(32)
kernel[1, 32](x)
until = time.monotonic() + 3                            # a thread that has been told to end may need its turn first
while threading.active_count() > 1 and time.monotonic() < until:
    time.sleep(0.01)
print(ended > 20, longest < 3, threading.active_count(), x.sum())
""")
    assert (run.stdout, run.stderr) == ("True True 1 12800.0\n", "")


def test_ctrl_c_while_a_thread_starts(tmp_path):
    """Threading has not heard of the new thread yet; it ends all the same."""
    run = kernels.run_script(tmp_path / "start.py", """
import _thread, threading, time
start = threading.Thread.start
def interrupted(self):
    if self.name != "CUDA thread 3":
        return start(self)
    threading._limbo[self] = self
    _thread.start_new_thread(self._bootstrap, ())
    raise KeyboardInterrupt
threading.Thread.start = interrupted
@cuda.jit
def kernel():
    cuda.syncthreads()
try:
    kernel[1, 8]()
except KeyboardInterrupt:
    time.sleep(0.5)
    print([thread.name for thread in threading.enumerate()])
""")
    assert (run.stdout, run.stderr) == ("['MainThread']\n", "")


def test_different_operations_cannot_meet():
    @cuda.jit
    def kernel():
        if cuda.threadIdx.x:
            cuda.syncthreads_count(1)
        else:
            cuda.syncthreads()

    with pytest.raises(RuntimeError, match=r"thread 1 comes to syncthreads_count .* thread 0 waits .* syncthreads \("):
        kernel[1, 2]()


def test_a_lock_works_and_a_lost_one_is_a_deadlock(monkeypatch):
    out = np.zeros(1)
    locked_sum[1, 6](np.arange(6.0), np.zeros(1, np.int32), out)
    assert out[0] == 15
    monkeypatch.setattr("cuda_kernels.simulator.blocks.IDLE_TURNS", 50)
    out[:], n = 0, 40                                               # who look in vain over 50 times, not in a row
    locked_sum[1, n](np.ones(n), np.zeros(1, np.int32), out)
    assert out[0] == n
    for threads in (1, 3):
        with pytest.raises(simulator.Deadlock, match="looking at memory in vain: threads 0"):
            never_unlocked[1, threads](np.ones(1, np.int32))


def test_a_crowd_of_1024_threads():
    out = np.zeros((1, 2), np.float32)
    kernels.shuffle_sum[1, 1024](np.ones((1, 1024), np.float32), out[0])
    assert out[0, 0] == 1024
    with pytest.raises(ValueError, match=r"1056 threads.*1024"):
        kernels.shuffle_sum[1, 1056](np.ones((1, 1056), np.float32), out[0])
    with pytest.raises(ValueError, match=r"grid \(0, 1, 1\)"):
        kernels.shuffle_sum[0, 32](np.ones((1, 32), np.float32), out[0])


def test_launches_from_two_host_threads_take_turns():
    outs = np.zeros((2, 20, 3), np.float32)

    def host(n):
        for i in range(20):
            kernels.tree_sum[3, 1 + 3 * n](np.full((3, 4), n + i, np.float32), outs[n, i])

    hosts = [threading.Thread(target=host, args=(n,)) for n in (0, 1)]
    for thread in hosts:
        thread.start()
    for thread in hosts:
        thread.join()
    assert (outs == np.arange(20)[:, None] * [[[1]], [[4]]] + [[[0]], [[4]]]).all()


# --- the same as Numba's own simulator, but sooner ---

def outcome(kernel, grid, block, *arrays, shared=0):
    arrays = [np.array(a) for a in arrays]
    kernel[grid, block, 0, shared](*arrays)
    return arrays


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_same_results_as_numbas_own(threads):
    rng = np.random.default_rng(threads)
    x = rng.standard_normal((3, threads), np.float32)
    bins = rng.integers(0, 8, 50)
    cases = [(kernels.tree_sum, 3, threads, x, np.zeros(3, np.float32)),
             (kernels.histogram, 2, threads, bins, np.zeros(8, np.int32)),
             (places, (2, 1, 1), (threads, 2, 1), np.zeros((2 * threads, 2, 1), int)),
             (kernels.tiled_matmul, (2, 1), (4, 4), *rng.standard_normal((2, 8, 8), np.float32), np.zeros((8, 8)))]
    for kernel, grid, block, *arrays in cases:
        ours = outcome(kernel, grid, block, *arrays)
        with simulator.stock():
            theirs = outcome(kernel, grid, block, *arrays)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_stock_is_numbas_own_and_ours_comes_back():
    ours = FakeCUDAKernel.__call__
    with pytest.raises(ZeroDivisionError), simulator.stock():
        assert FakeCUDAKernel.__call__.__module__ == "numba.cuda.simulator.kernel"
        raise ZeroDivisionError
    assert FakeCUDAKernel.__call__ is ours
    simulator.install()                                         # a second time: nothing happens
    assert FakeCUDAKernel.__call__ is ours


def test_many_barriers_take_a_third_of_the_time_or_less():
    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        s[t] = t
        for _ in range(30):
            cuda.syncthreads()
            value = s[7 - t]
            cuda.syncthreads()
            s[t] = value
        out[t] = s[t]

    def seconds():
        start = time.perf_counter()
        kernel[1, 8](np.zeros(8, np.float32))
        return time.perf_counter() - start

    ours = min(seconds() for _ in range(3))
    with simulator.stock():
        theirs = seconds()
    print(f"60 barriers, 8 threads: {ours:.4f} s, Numba's own {theirs:.4f} s, {theirs / ours:.0f} × faster")
    assert ours * 3 < theirs
