"""Compiled kernels on disk: what they are known by, and that a second process compiles nothing.

The latter on a GPU; and without one, where there is a compiler: this file, run as a program.
"""

import os
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import cuda_kernels
from cuda_kernels import disk_cache
from cuda_kernels.disk_cache import DiskCache, made_of

MISSING = 77                                                        # exit code: there is nothing to compile with
on_a_gpu = pytest.mark.skipif(cuda_kernels.SIMULATED, reason="kernels run in the simulator here")


@pytest.fixture
def here(monkeypatch):
    """The functions of this file count as functions of the package."""
    monkeypatch.setattr(disk_cache, "PACKAGE", Path(__file__).parent)


def kernel_of(R, name="float16", extra=None):
    """What a factory makes: a function that closes over numbers, and over another that does."""
    half = R // 2

    def helper(x):
        return x + half, name

    def forward(x):
        return helper(x), R, extra

    return SimpleNamespace(py_func=forward, targetoptions={"launch_bounds": 128, "debug": False})


def path_of(kernel, signature="(int64,)", capability=(9, 0)):
    return DiskCache(kernel, capability).path(signature)


def test_a_kernel_is_known_by_what_it_is_made_of(here, monkeypatch):
    first = path_of(kernel_of(32))
    assert first == path_of(kernel_of(32))
    others = [path_of(kernel_of(64)), path_of(kernel_of(32, "bfloat16")), path_of(kernel_of(32, extra=np.float32(1))),
              path_of(kernel_of(32), "(float32,)"), path_of(kernel_of(32), capability=(8, 0)),
              *(path_of(SimpleNamespace(py_func=kernel_of(32).py_func, targetoptions=options)) for options in (
                  {"launch_bounds": 256, "debug": False}, {"launch_bounds": 128, "debug": True}))]
    for name, value in (("SOURCE", "another source"), ("toolkit", lambda: (99, 0))):
        with monkeypatch.context() as patch:
            patch.setattr(disk_cache, name, value)
            others.append(path_of(kernel_of(32)))
    assert len({first, *others}) == 1 + len(others)


def test_another_text_of_the_same_name_is_another_function(here):
    """As where a fault is planted in a copy of a file: only an operation, or only a number differs."""
    made = set()
    for text in ("x + 1", "x - 1", "x + 2"):
        names = {"__name__": "cuda_kernels.fa2"}
        exec(compile(f"def forward(x):\n    return {text}", __file__, "exec"), names)
        made.add(made_of(names["forward"]))
    assert len(made) == 3


def test_what_is_not_of_the_package_is_refused():
    with pytest.raises(TypeError, match=r"kernel_of.<locals>.forward is not in .*cuda_kernels"):
        made_of(kernel_of(3).py_func)


def test_what_has_no_lasting_text_is_refused(here):
    assert "0x" not in made_of((1, np.float32(2), kernel_of(3).py_func, None))
    with pytest.raises(TypeError, match="a object in the closure"):
        made_of(object())
    with pytest.raises(TypeError, match="a list"):
        made_of(kernel_of(3, extra=[1]).py_func)


def test_the_source_of_the_package_is_part_of_it(tmp_path):
    """As it was imported, in every folder of it."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a.py").write_text("x = 1")
    first = disk_cache.source(tmp_path)
    assert first == disk_cache.source(tmp_path) and len(disk_cache.SOURCE) == 64
    (tmp_path / "inside" / "a.py").write_text("x = 2")
    assert disk_cache.source(tmp_path) != first


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert disk_cache.folder() == tmp_path / "fa_ref"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert disk_cache.folder() == Path.home() / ".cache" / "fa_ref"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "other"))
    assert disk_cache.folder() == tmp_path / "other"


def test_words_can_be_turned_off(monkeypatch, capsys):
    monkeypatch.delenv("FA_REF_QUIET", raising=False)
    disk_cache.say("compiling")
    monkeypatch.setenv("FA_REF_QUIET", "1")
    disk_cache.say("more")
    assert capsys.readouterr().err == "cuda_kernels: compiling\n"


def test_what_cannot_be_written_is_told_once(here, monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("FA_REF_QUIET", raising=False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a file" / "below"))
    (tmp_path / "a file").write_text("")
    kept = SimpleNamespace(_reduce_states=lambda: {"a": 1})
    monkeypatch.setitem(sys.modules, "numba.cuda.serialize", SimpleNamespace(dumps=lambda states: b"1"))
    for signature in ("(int64,)", "(float32,)"):
        DiskCache(kernel_of(32), (9, 0)).save_overload(signature, kept)
    assert capsys.readouterr().err.count("cannot be kept") == 1


def test_a_write_that_fails_leaves_nothing_behind(here, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "numba.cuda.serialize", SimpleNamespace(dumps=lambda states: b"1"))
    cache, kept = DiskCache(kernel_of(32), (9, 0)), SimpleNamespace(_reduce_states=lambda: {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", Mock(side_effect=OSError("disk full")))
        cache.save_overload("(int64,)", kept)
    assert list(tmp_path.iterdir()) == []
    cache.save_overload("(int64,)", kept)
    assert list(tmp_path.iterdir()) == [cache.path("(int64,)")]


def test_a_kernel_that_is_not_kept_is_told_once(capsys, monkeypatch):
    monkeypatch.delenv("FA_REF_QUIET", raising=False)
    kernel = type("Kernel", (), {"_cache": None})()                 # it has a hash, as a dispatcher has
    vars(kernel).update(vars(kernel_of(32)))
    for _ in range(2):
        disk_cache.attach(kernel, (9, 0))
    assert kernel._cache is None and capsys.readouterr().err.count("compiled anew in every process") == 1


# --- from process to process ----------------------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.parametrize("damage", [None, b"no kernel", zlib.compress(b"no kernel")])
def test_a_kernel_comes_back_without_a_gpu(tmp_path, damage):
    """Compiled for a card that is not there; the next process reads the same code, whatever its hashes of strings."""
    told = []
    for seed in ("1", "2"):
        environment = {name: x for name, x in os.environ.items() if name not in ("FA_REF_CUDA", "FA_REF_QUIET")} | {
            "NUMBA_ENABLE_CUDASIM": "0", "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
        if run.returncode == MISSING:
            pytest.skip(f"cannot compile here: {run.stdout.strip()}")
        assert run.returncode == 0, run.stderr
        told.append((run.stdout, run.stderr.count("compiling forward of fa2_mma")))
        kept = [*tmp_path.iterdir()]
        if damage:
            kept[0].write_bytes(damage)
    assert told == [(told[0][0], 1), (told[0][0], 0 if damage is None else 1)]
    assert len(kept) == 1 and kept[0].suffix == disk_cache.SUFFIX


CALL = """
import torch, cuda_kernels
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 100, 64, device="cuda", dtype=torch.float16) for _ in range(3))
print(cuda_kernels.forward(q, k, v, kernel="fa2_mma", causal=True).out.double().sum().item())
"""


@on_a_gpu
@pytest.mark.gpu
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {name: x for name, x in os.environ.items() if name != "FA_REF_QUIET"}
    environment |= {"NUMBA_CACHE_DIR": str(tmp_path), "FA_REF_CUDA": "gpu"}
    first, second, third = [], [], []
    for said, more in ((first, {}), (second, {}), (third, {"FA_REF_QUIET": "1"})):
        run = subprocess.run([sys.executable, "-c", CALL], env=environment | more, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        said += [run.stdout, run.stderr.count("compiling")]
        if said is second:                                          # damaged: it is compiled again, and nothing is said
            for path in tmp_path.glob("*.kernel"):
                path.write_bytes(b"no kernel")
    assert first[1] == 1 and second[1] == third[1] == 0
    assert first[0] == second[0] == third[0]


# --- the program ----------------------------------------------------------------------------------------------

def main():
    """Compile a small fa2_mma for a card of compute capability 9.0, or find it; print a hash of its machine code."""
    import hashlib

    from numba import cuda
    from numba.cuda import codegen, dispatcher, types
    from numba.cuda.cudadrv import nvvm

    from cuda_kernels import fa2_mma

    try:
        nvvm.NVVM()
        cuda.runtime.get_version()
    except Exception as problem:                                    # whatever a missing library leads to
        print(problem)
        return MISSING
    device = SimpleNamespace(compute_capability=(9, 0), id=0)
    dispatcher.get_current_device = lambda: device
    codegen.devices.get_context = lambda *which: SimpleNamespace(device=device)
    dispatcher._Kernel.bind = lambda kernel: kernel._codelibrary.get_cubin()        # all of it but to load it
    kernel = fa2_mma.make_forward(16, 1, 16, 16, np.dtype(np.float16), True, True)
    arrays = [types.Array(types.float16, 4, "A")] * 4 + [types.Array(types.float32, 3, "A")]
    disk_cache.attach(kernel, device.compute_capability)
    kernel.targetctx.refresh()
    compiled = kernel.compile((*arrays, types.float32, types.int64, types.int64))
    cubin, = compiled._codelibrary._cubin_cache.values()
    print(hashlib.sha256(cubin.code).hexdigest(), compiled.entry_name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
