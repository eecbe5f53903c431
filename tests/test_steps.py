"""A kernel carries the numbered steps of the NumPy file of the same name: the same list, order and words."""

import ast
import re
from pathlib import Path

import pytest

import cuda_kernels
import fa_ref

NUMPY, CUDA = (Path(package.__file__).parent for package in (fa_ref, cuda_kernels))
STEP = re.compile(r"#\s*\((\d+)\)\s*(.*?)\s*$")
SHAPE = re.compile(r"\s*\([bN][^()]*,[^()]*\)$")                    # a shape at the end of a line: (br, bc), (Nq,)
FILES = {"standard": ("standard",), "fa1": ("fa1", "fa1_backward"), "fa2": ("fa2", "fa2_backward")}
names = pytest.mark.parametrize("name", FILES)
BY_WARPS = {"fa1_warps": "fa1", "fa2_warps": "fa2", "fa1_mma": "fa1", "fa2_mma": "fa2"}


def functions(path):
    """(name, lines) of every function at the top of a file."""
    source = path.read_text(encoding="utf-8")
    lines = source.split("\n")
    found = [f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)]
    return [(f.name, lines[f.lineno - 1:f.end_lineno]) for f in found]


def steps(path):
    """{"forward": steps, "backward": steps} of a file; a step is (number, words), in the order of the numbers."""
    found = {"forward": [], "backward": []}
    for name, lines in functions(path):
        pass_ = "backward" if name in ("gradients", "make_preprocess") or "backward" in name else "forward"
        matches = [STEP.search(line) for line in lines]
        own = [(int(m[1]), SHAPE.sub("", m[2])) for m in matches if m]
        assert [n for n, _ in own] == sorted(n for n, _ in own), f"{path.name}: {name} counts {[n for n, _ in own]}"
        found[pass_] += own
    return {name: sorted(list_) for name, list_ in found.items()}


def kernel_steps(name):
    """The same of the files that make up one kernel."""
    parts = [steps(CUDA / f"{file}.py") for file in FILES[name]]
    return {pass_: sorted(step for part in parts for step in part[pass_]) for pass_ in ("forward", "backward")}


@names
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_the_steps_are_those_of_numpy(name, pass_):
    same(steps(NUMPY / f"{name}.py")[pass_], kernel_steps(name)[pass_])


@pytest.mark.parametrize("name", BY_WARPS)
def test_the_steps_by_warps_are_those_of_numpy(name):
    same(steps(NUMPY / f"{BY_WARPS[name]}.py")["forward"], steps(CUDA / f"{name}.py")["forward"])


def same(wanted, found):
    """The same steps; a kernel may add words to the end of one."""
    assert [n for n, _ in wanted] == list(range(1, len(wanted) + 1)) and len(wanted) >= 5
    assert [n for n, _ in found] == [n for n, _ in wanted]
    for (n, text), (_, reference) in zip(found, wanted, strict=True):
        assert text.startswith(reference), f"({n}) says {text!r}, NumPy's says {reference!r}"


def test_steps_are_read_as_they_stand(tmp_path):
    """The reader of this file can fail: it sees a step that is missing, out of order, or worded otherwise."""
    text = (NUMPY / "fa2.py").read_text(encoding="utf-8")
    for old, new in (("# (4) scores ", "# scores "), ("# (4) scores ", "# (4) dots "), ("# (4)", "# (14)")):
        assert text.count(old) >= 1
        (tmp_path / "fa2.py").write_text(text.replace(old, new, 1), encoding="utf-8")
        try:
            assert steps(tmp_path / "fa2.py") != steps(NUMPY / "fa2.py")
        except AssertionError as error:
            assert "counts" in str(error)


ALGORITHM_FILES = sorted({path for name in FILES for path in CUDA.glob(f"{name}*.py")})
KERNEL_FILES = [*ALGORITHM_FILES, CUDA / "finish.py"]


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda path: path.name)
def test_every_barrier_says_what_it_protects(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if "syncthreads" in line:
            assert re.search(r"cuda\.syncthreads\(\) +# \w+", line), f"{path.name}:{number}"


@pytest.mark.parametrize("path", [path for path in ALGORITHM_FILES if path.name != "standard.py"], ids=lambda p: p.name)
def test_the_docstring_says_grid_memory_and_barriers(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    for row in ("grid  +\\(", "on chip +\\w", "barriers +\\d per"):
        assert re.search(f"^    {row}", docstring, re.MULTILINE), f"{path.name} has no row {row!r}"


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda path: path.name)
def test_no_fastmath_and_short_files(path):
    """With fast maths the guards of empty rows are optimised away (m == -inf is never true)."""
    _, docstring, code = path.read_text(encoding="utf-8").split('"""', maxsplit=2)
    assert "fastmath" not in code and len(code.split("\n")) <= 240 and len(docstring.split("\n")) < 50
