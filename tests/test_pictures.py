"""What the pictures of docs/ say is true, and the files are what docs/pictures.py draws today."""

import re
import runpy
import sys
from importlib.metadata import version
from math import prod
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import cuda_kernels
from cuda_kernels import fa2, simulator
from cuda_kernels.simulator import watched

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import pictures  # noqa: E402

PAGES = {name: (ROOT / "docs" / name).read_text(encoding="utf-8")
         for name in ("gpu.md", "tensor_cores.md", "schedule.md")}
IMAGES = re.findall(r"!\[([^]]+)\]\(([^)]+)\)", "".join(PAGES.values()))
QUOTED = {"gpu.md": ("cuda_kernels/fa1.py", "cuda_kernels/fa2.py", "cuda_kernels/fa1_warps.py",
                     "cuda_kernels/fa2_warps.py", "fa_ref/fa2.py"),
          "tensor_cores.md": ("cuda_kernels/fa2_mma.py", "cuda_kernels/swizzled.py")}
simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="watches the simulator; kernels run on a GPU here")
Br, Bc, d, dv = 4, 5, 6, 7


def run(threads, core=fa2):
    """Two tiles of queries, three of keys; returns the audit."""
    q, k, v = (np.random.default_rng(0).standard_normal((1, 1, n, x)) for n, x in ((8, d), (15, d), (15, dv)))
    with mock.patch.dict(cuda_kernels.KERNELS, copy=core), simulator.audit() as audit:
        cuda_kernels.forward(q, k, v, kernel="copy", threads=threads, block_q=Br, block_k=Bc)
    return audit


def what_happens(monkeypatch):
    """[{array: "r", "w" or "rw"}] of shared memory between the barriers of the first block."""
    parts, note = {}, watched.BlockWatch.access

    def access(watch, action, array, address):
        if array.origin.space == "shared" and not any(watch.blockIdx):
            done = parts.setdefault(watch.counts.barriers, {})
            name = array.origin.name.split()[0]
            done[name] = "".join(sorted({*done.get(name, ""), action[0]}))
        note(watch, action, array, address)

    monkeypatch.setattr(watched.BlockWatch, "access", access)
    run(threads=1)
    return [parts[n] for n in sorted(parts)]


@simulated
def test_the_timeline_is_what_happens(monkeypatch):
    first, *tiles, last = what_happens(monkeypatch)
    assert first == {"Qi": "w", "m": "w", "l": "w", "acc": "w"} and last == {"acc": "r", "l": "r", "m": "r"}
    assert tiles == 3 * [done for _, done, _ in pictures.TIMELINE]


@simulated
@pytest.mark.parametrize("part", range(4))
def test_the_arrows_are_what_a_barrier_protects(part, tmp_path):
    """Take the barrier away, and there is a race for these arrays and no others."""
    barrier = pictures.TIMELINE[part][2]
    lines = Path(fa2.__file__).read_text(encoding="utf-8").split("\n")
    found = [n for n, line in enumerate(lines) if re.search(rf"cuda\.syncthreads\(\) +# {barrier}\b", line)]
    assert len(found) == 1
    lines[found[0]] = lines[found[0]].replace("cuda.syncthreads()", "pass")
    copy = tmp_path / "fa2.py"
    copy.write_text("\n".join(lines), encoding="utf-8")
    races = run(threads=5, core=SimpleNamespace(**runpy.run_path(str(copy)))).races
    assert {race.array.split()[0] for race in races} == set(pictures.PROTECTED[part])


@simulated
def test_without_a_fault_there_is_no_race():
    assert run(threads=5).ok


def test_the_tiles_fill_the_bytes_that_are_written_below_them():
    for sizes in ((Br, Bc, d, dv), (32, 32, 64, 64)):
        shapes = pictures.tile_shapes(*sizes)
        assert 4 * sum(map(prod, shapes.values())) == fa2.shared_bytes(*sizes, itemsize=4)
    allocated = re.findall(r"(\w+) = cuda\.shared\.array", Path(fa2.__file__).read_text(encoding="utf-8"))
    assert sorted(allocated) == sorted(shapes)


class Noted:
    """A sheet that notes what is written on it as code."""

    def __init__(self, _):
        self.code = []

    def text(self, _x, _y, words, code=False, **_):
        self.code += [words] if code else []

    def box(self, *_, **__):
        """Nothing is drawn."""

    arrow = box


def test_names_in_the_machine_are_names_of_the_kernel():
    draw = mock.Mock(Sheet=Noted)
    registers, shared, memory = (line.split() for line in pictures.machine(draw).code)
    source = Path(fa2.__file__).read_text(encoding="utf-8")
    assert sorted(shared) == sorted(pictures.tile_shapes(1, 1, 1, 1))
    assert f"def forward({', '.join(memory)}, mask" in source
    assert [name for name in registers if not re.search(
        rf"^ {{8,}}(for )?(\w+, )?{name}(, \w+)? (=|in|\+=) ", source, re.MULTILINE)] == []


# --- files ----------------------------------------------------------------------------------------------------

def test_every_picture_is_shown_once_and_described():
    assert sorted(file for _, file in IMAGES) == sorted(f"pictures/{p.__name__}.svg" for p in pictures.PICTURES)
    assert all(len(words.split()) >= 15 for words, _ in IMAGES)


@pytest.mark.parametrize("picture", pictures.PICTURES, ids=lambda p: p.__name__)
def test_text_is_text_on_a_light_background_and_without_a_date(picture):
    svg = (pictures.FOLDER / f"{picture.__name__}.svg").read_text(encoding="utf-8")
    assert len(re.findall("<text", svg)) >= 10
    assert 'width="525pt"' in svg and "fill: #fdfdfa" in svg            # 700 pixels
    assert "<dc:date>" not in svg and "Matplotlib" not in svg
    sizes = [float(size) / 0.75 for size in re.findall(r"font-size: ([\d.]+)px", svg)]
    assert min(sizes) >= 10, sizes                                      # pixels


def test_the_files_are_what_is_drawn_today(tmp_path):
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    if (found := version("matplotlib")) != pinned:
        pytest.skip(f"the pictures were drawn by matplotlib {pinned}, here is {found}")
    pictures.main(folder=tmp_path)
    for file in sorted(pictures.FOLDER.iterdir()):
        assert (tmp_path / file.name).read_text() == file.read_text(), f"{file.name}: run python docs/pictures.py"


# --- code that the page quotes --------------------------------------------------------------------------------

def not_there(page, files):
    """Code spans with an operator or a bracket in them that stand in none of the files."""
    sources = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
    return [span for span in spans if re.search(r"[=(\[+]", span) and span not in sources]


@pytest.mark.parametrize("name", QUOTED)
def test_the_code_that_a_page_quotes_is_there(name):
    assert not_there(PAGES[name], QUOTED[name]) == []


def test_code_that_is_not_there_is_noticed():
    assert not_there("`t = cuda.thread`, `Qi[r, x]`, `m`", QUOTED["gpu.md"]) == ["t = cuda.thread"]
