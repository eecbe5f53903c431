"""Run the notebooks from their sources and write the .ipynb that a reader opens: python notebooks/build.py [NN …]

A notebook is a Python file in the percent format of jupytext. What is written holds the outputs, and nothing that
differs from run to run: no times, no numbers of executions of a longer session. `tests/test_notebooks.py` runs them all
again and compares.
"""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("FA_REF_CUDA", "sim")                             # the kernels of a notebook run in the simulator
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")            # no warning about frozen modules

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def read(source):
    """The notebook of a source, without outputs; ids of cells are their numbers, so that every build gives the same."""
    notebook = jupytext.read(source)
    notebook.metadata = {"kernelspec": notebook.metadata.get("kernelspec", {}), "language_info": {"name": "python"},
                         "jupytext": {"formats": "ipynb,py:percent"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    return notebook


def run(source):
    """The notebook of a source, run from its first cell to its last. Raises nbclient's CellExecutionError."""
    notebook = read(source)
    place = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)                            # when it ran
        joined(cell.get("outputs", []))
    return notebook


def joined(outputs):
    """Pieces of one stream that the kernel happened to send apart become one output, in place."""
    kept = []
    for output in outputs:
        if kept and output.output_type == "stream" == kept[-1].output_type and output.name == kept[-1].name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    outputs[:] = kept


def main(numbers):
    """Build the notebooks of these numbers, all if there are none; returns the exit code."""
    chosen = [s for s in SOURCES if not numbers or s.name[:2] in numbers]
    if not chosen or {s.name[:2] for s in chosen} < set(numbers):
        print(f"no such notebook; there are {', '.join(s.name[:2] for s in SOURCES)}")
        return 2
    for source in chosen:
        start = time.monotonic()
        print(f"{source.stem} …", end=" ", flush=True)
        nbformat.write(run(source), source.with_suffix(".ipynb"))
        size = source.with_suffix(".ipynb").stat().st_size
        print(f"{time.monotonic() - start:.0f} s, {size / 1000:.0f} kB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
