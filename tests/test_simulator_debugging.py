"""A debugger stops inside a kernel; what a launch changes in the kernel's file, and that it is put back."""

import sys
import threading

import numpy as np
import pytest
from numba import cuda

import simulator_kernels as kernels
from cuda_kernels import simulator

seen = []

SCRIPT = """
@cuda.jit
def kernel(x):
    t = cuda.threadIdx.x
    y = x[t] + 1
    x[t] = y
x = np.arange(4.0)
kernel[1, {threads}](x)
print("x is", x)
"""


@cuda.jit(device=True, inline="always")
def twice(x):
    seen.append((type(cuda).__name__, len(stack())))
    return x + x


@cuda.jit
def kernel(x):
    seen.append((threading.get_ident(), stack()))
    for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
        x[i] = twice(x[i])


@cuda.jit
def launcher(x):
    kernel[1, 1](x)


@cuda.jit
def caller(x):
    kernel(x)


def stack():
    """The files of the frames from here outwards."""
    frame, files = sys._getframe(1), []
    while frame:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return files


def test_one_thread_runs_inline():
    seen.clear()
    kernel[1, 1](np.zeros(0))
    ident, files = seen[0]
    assert ident == threading.get_ident()
    assert files[0] == files[2] == __file__ and files[1].endswith("launch.py")      # kernel, call, this test
    kernel[1, 2](np.zeros(0))
    assert {ident for ident, _ in seen[1:]}.isdisjoint({threading.get_ident()})


def test_settrace_sees_the_lines():
    lines = []

    def trace(frame, event, _):
        if frame.f_code is kernels.early_return.py_func.__code__ and event == "line":
            lines.append(frame.f_lineno)
        return trace

    start = kernels.early_return.py_func.__code__.co_firstlineno
    for threads, expected in (1, [2, 3, 5, 6]), (2, [2, 3, 5, 2, 3, 4, 6]):
        lines.clear()
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            kernels.early_return[1, threads](np.zeros(1), np.zeros(1))
        finally:
            sys.settrace(before)
        assert [n - start for n in lines] == expected


@pytest.mark.parametrize(("threads", "stops"), [(1, ["0"]), (3, ["0", "1", "2"])])
def test_pdb_stops_in_the_kernel(tmp_path, threads, stops):
    commands = ["b 6", "c"] + ["p 't is', t, y", "p 'x[t] is', x[t]", "c"] * len(stops) + ["q"]
    run = kernels.run_script(tmp_path / "stop.py", SCRIPT.format(threads=threads), "-m", "pdb",
                             stdin="\n".join(commands) + "\n")
    assert run.stdout.count("-> x[t] = y") == len(stops), run.stdout + run.stderr
    for t in stops:
        assert f"('t is', {t}, np.float64({float(t) + 1}))" in run.stdout
    assert f"x is {np.arange(4.0) + (np.arange(4) < threads)}" in run.stdout


def test_device_functions_are_plain_functions_during_a_launch():
    for threads in (1, 3):
        seen.clear()
        x = np.arange(3.0)
        kernel[1, threads](x)
        assert (x == [0, 2, 4]).all()
        depths = {len(entry[1]) for entry in seen if isinstance(entry[1], list)}
        assert {entry for entry in seen if entry[0] == "Device"} == {("Device", depth + 1) for depth in depths}
        assert type(twice).__name__ == "FakeCUDAKernel" and type(cuda).__name__ == "module"


def test_names_are_put_back_after_an_error():
    from numba import cuda as gpu  # known to the kernel as a variable of this function

    @gpu.jit
    def failing(x):
        gpu.syncthreads()
        x[twice(x.size)] = 0

    for threads in (1, 2):
        with pytest.raises(IndexError):
            failing[1, threads](np.zeros(1))
        assert gpu is cuda and type(cuda).__name__ == "module" and type(twice).__name__ == "FakeCUDAKernel"


def test_a_kernel_called_in_a_kernel_is_a_device_function_and_cannot_be_launched():
    x = np.ones(2)
    caller[1, 2](x)
    assert (x == 2).all()
    for threads in (1, 2):
        with pytest.raises(RuntimeError, match="kernel is launched from within a kernel"):
            launcher[1, threads](x)


def test_configurations_do_not_disturb_each_other():
    x = np.ones(2)
    one, two = kernel[1, 1], kernel[2, 1]
    one(x)
    assert (x == 2).all()
    two(x)
    assert (x == 8).all()
    kernel.forall(0)(x)
    assert (x == 8).all()


def test_keywords_for_the_compiler_mean_nothing():
    options = {"max_registers": 64, "launch_bounds": (32, 1), "inline": "always", "fastmath": True, "lineinfo": True,
               "cache": True, "lto": False, "link": [], "opt": True, "forceinline": True}
    x = np.arange(2.0)
    cuda.jit(**options)(kernel.py_func)[1, 1](x)
    cuda.jit("void(float64[:])", **options)(kernel.py_func)[1, 1](x)
    assert (x == [0, 4]).all()
    with pytest.raises(TypeError, match="max_regs"):
        cuda.jit(max_regs=3)


def test_install_needs_the_simulator_and_an_audit_needs_install(monkeypatch):
    with monkeypatch.context() as on_a_gpu, pytest.raises(RuntimeError, match="set NUMBA_ENABLE_CUDASIM=1 before"):
        on_a_gpu.setattr(simulator.config, "ENABLE_CUDASIM", 0)
        simulator.install()
    monkeypatch.setattr(simulator, "numbas_own", {})
    with pytest.raises(RuntimeError, match=r"needs simulator.install\(\)"):
        simulator.audit()


def test_audits_do_not_nest():
    with simulator.audit(), pytest.raises(RuntimeError, match="do not nest"), simulator.audit():
        pass
    with simulator.audit():
        pass
