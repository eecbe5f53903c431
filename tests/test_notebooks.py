"""The notebooks run from their sources, and what is committed is what comes out."""

import re
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
sys.path.insert(0, str(NOTEBOOKS))
import build  # noqa: E402

each_source = pytest.mark.parametrize("source", build.SOURCES, ids=lambda source: source.stem)
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def committed(source):
    return nbformat.read(source.with_suffix(".ipynb"), 4)


def texts(cell):
    """What a cell printed and gave back, as text; pictures count by their words."""
    told = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            told.append(output.text)
        elif output.output_type == "error":
            told.append(output.ename)
        else:
            html = output.data.get("text/html", "")
            told.append(" ".join(re.findall(r'alt="([^"]*)"', html)) or output.data.get("text/plain", ""))
    return ADDRESS.sub("0x…", "\n".join(told))


@each_source
def test_the_committed_notebook_has_the_cells_of_its_source(source):
    want, have = build.read(source), committed(source)
    assert [(c.cell_type, c.source) for c in have.cells] == [(c.cell_type, c.source) for c in want.cells]
    assert [c.metadata.get("tags", []) for c in have.cells] == [c.metadata.get("tags", []) for c in want.cells]


@each_source
def test_the_committed_notebook_was_run_in_order_and_is_small(source):
    code = [c for c in committed(source).cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    assert any(c.outputs for c in code)
    assert not [o for c in code for o in c.outputs if o.output_type == "error"]
    for number, cell in enumerate(code):
        size = sum(len(str(o)) for o in cell.outputs)
        assert size < 300_000, f"code cell {number + 1} has {size:,} bytes of outputs"


@pytest.mark.slow
@each_source
def test_a_run_gives_what_is_committed(source):
    """An assertion in a cell fails the run; what is printed is compared, but for cells tagged "varies"."""
    for number, (now, then) in enumerate(zip(build.run(source).cells, committed(source).cells, strict=True)):
        if now.cell_type == "code" and "varies" not in now.metadata.get("tags", []):
            assert texts(now) == texts(then), f"cell {number} gives something else now; `make notebooks` writes it anew"


@each_source
def test_every_picture_has_a_text(source):
    for cell in committed(source).cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            assert "image/png" not in data and "image/svg+xml" not in data, "show it with course.show(figure, alt)"
            images = re.findall(r"<img\b[^>]*>", data.get("text/html", ""))
            assert all(re.search(r'alt="[^"]{20,}"', image) for image in images)


@each_source
def test_links_of_a_notebook_lead_somewhere(source):
    text = "\n".join(c.source for c in build.read(source).cells if c.cell_type == "markdown")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)#][^)]*)\)", text)]
    assert [link for link in links if re.match(r"\w+:", link)] == [], "nothing may depend on a network"
    assert [link for link in links if not (NOTEBOOKS / link).exists()] == []


def test_what_a_run_prints_is_compared(tmp_path):
    """The comparison sees another number, and a failing assertion stops the run."""
    source = tmp_path / "00_short.py"
    source.write_text("# %%\nprint(1)\n", encoding="utf-8")
    first = build.run(source)
    source.write_text("# %%\nprint(2)\n", encoding="utf-8")
    assert texts(first.cells[0]) != texts(build.run(source).cells[0])
    source.write_text("# %%\nassert 1 == 2\n", encoding="utf-8")
    with pytest.raises(Exception, match="AssertionError"):
        build.run(source)
