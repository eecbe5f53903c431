"""What notebook 09 shows of fa2: steps beside the loop's, its barriers, a copy without one, a session in pdb."""

import inspect
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

os.environ.setdefault("FA_REF_CUDA", "sim")             # before Numba is imported
import cuda_kernels
from course import steps
from cuda_kernels import fa2
from fa_ref import fa2 as loop


def beside(first, last=None):
    """Print steps of fa_ref/fa2.py, and below them the same steps of cuda_kernels/fa2.py."""
    last = first if last is None else last
    print("NumPy, a tile at a time:\n")
    steps(loop.forward_head, first, last)
    lines = inspect.getsource(fa2.make_forward).splitlines()
    start = next(n for n, line in enumerate(lines) if f"# ({first}) " in line)
    stop = next(n for n, line in enumerate(lines) if n > start and
                (f"# ({last + 1}) " in line or "cuda.syncthreads()" in line))
    if lines[start - 1].lstrip().startswith("for "):
        start -= 1                                      # the head of the loop belongs to the step
    print("\nThe kernel, thread t of T:\n")
    print(textwrap.indent(textwrap.dedent("\n".join(lines[start:stop]).rstrip()), " " * 8))


def barriers():
    """The comments of all barriers of fa2, in order."""
    return re.findall(r"cuda\.syncthreads\(\) +# (.*)", inspect.getsource(fa2.make_forward))


@contextmanager
def without(barrier):
    """Inside, kernel="copy" is a copy of fa2 in which the barrier with this comment does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder) / "fa2_copy.py", type(fa2)("fa2_copy")
        text = Path(fa2.__file__).read_text(encoding="utf-8")
        path.write_text(re.sub(rf"cuda\.syncthreads\(\)(?= +# {re.escape(barrier)})", "pass", text), encoding="utf-8")
        exec(compile(path.read_text(encoding="utf-8"), path, "exec"), vars(copy))
        with mock.patch.dict(cuda_kernels.KERNELS, copy=copy):
            yield


def session(commands, *options):
    """Print a session of `python -m cuda_kernels debug` with these commands typed in; q ends it."""
    ran = subprocess.run([sys.executable, "-m", "cuda_kernels", "debug", *options], input="\n".join([*commands, "q"]),
                         capture_output=True, text=True, timeout=60, env={**os.environ, "FA_REF_CUDA": "sim"})
    said = ran.stdout[ran.stdout.index("> "):]
    said = re.sub(r"> \S*?(\w+/\w+\.py)\(\d+\)", r"> \1(…)", said)                        # the same on every machine
    said = re.sub(r" \(shared, fa2.py:\d+\)|(?<=Disabled breakpoint 1) at .*", "", said)
    typed = iter([*commands, "q"])
    print(f"$ {' '.join(['python -m cuda_kernels debug', *options])}")
    print(re.sub(r"\(Pdb\) ?", lambda _: f"(Pdb) {next(typed)}\n", said).rstrip())


def numbered(kernel):
    """Print the source of a kernel with the numbers that its lines have in their file."""
    lines, start = inspect.getsourcelines(kernel.py_func)
    print("".join(f"{start + n:3}  {line}" for n, line in enumerate(lines)), end="")
