"""Compiled kernels, kept on disk from one process to the next; and a line that says so when one is compiled.

Numba keeps kernels too (`cache=True`), but knows a kernel that a factory has made by the bytes that its closure is
pickled to, which differ from process to process, and by the date of its own file alone. Here a kernel is known by what
it is made of: the source of this package, the values that its factory got, the types of its arguments, Numba's options,
the card and the versions. Files that are known by something old are never read again; the folder may be deleted.

    FA_REF_QUIET=1                  no word about compiling
    NUMBA_CACHE_DIR                 where kernels are kept; else fa_ref in XDG_CACHE_HOME, or in ~/.cache
"""

import hashlib
import os
import pickle
import sys
import zlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile

import numba
import numpy as np
from numba import cuda
from numba.cuda import types

PACKAGE = Path(__file__).parent
SUFFIX = ".kernel"
PLAIN_VALUES = (int, float, bool, str, type(None), np.generic, np.dtype, types.Type, type)


def folder():
    """Where kernels are kept."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fa_ref"


def source(package=PACKAGE):
    """The package itself, as a hash: whoever edits a file gets new kernels."""
    files = sorted(package.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


SOURCE = source()           # as it is imported: a file that is edited later is not what this process compiles


def made_of(x):
    """A value from a closure as text that is the same in every process; functions by name, code and closure.

    TypeError for anything else, and for functions that are not of this package: its source says nothing about what
    those call. A kernel that holds such a thing is not kept.
    """
    if isinstance(x, PLAIN_VALUES):
        return repr(x)
    if isinstance(x, tuple):
        return f"({', '.join(map(made_of, x))})"
    function = getattr(x, "py_func", None) or getattr(x, "_defn", None) or x
    if not callable(function) or not hasattr(function, "__code__"):
        raise TypeError(f"a {type(x).__name__} in the closure of a kernel")
    name, code = f"{function.__module__}.{function.__qualname__}", function.__code__
    if not Path(code.co_filename).is_relative_to(PACKAGE):
        raise TypeError(f"{name} is not in {PACKAGE}")
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    constants = [x for x in code.co_consts if isinstance(x, PLAIN_VALUES)]
    return f"{name}[{code.co_code.hex()}, {constants}, {', '.join(map(made_of, cells))}]"


class DiskCache:
    """What a dispatcher asks before it compiles (`load_overload`) and tells when it has (`save_overload`)."""

    def __init__(self, kernel, capability):
        self.name = f"{kernel.py_func.__name__} of {kernel.py_func.__module__.rpartition('.')[2]}"
        options = sorted((name, repr(value)) for name, value in kernel.targetoptions.items())
        versions = numba.__version__, version("numba-cuda"), version("numpy"), sys.version_info[:2], toolkit()
        self.known_by = made_of(kernel), options, versions, capability, SOURCE

    def path(self, signature):
        """The file of one kernel for arguments of these types."""
        return folder() / f"{hashlib.sha256(repr((self.known_by, str(signature))).encode()).hexdigest()}{SUFFIX}"

    def load_overload(self, signature, context):
        """The kernel, or None if it must be compiled, which is said."""
        from numba.cuda.dispatcher import _Kernel

        try:
            return _Kernel._rebuild(**pickle.loads(zlib.decompress(self.path(signature).read_bytes())))
        except Exception:                                           # not there, or damaged: it is made anew
            say(f"compiling {self.name} for the GPU: some seconds, once (kept in {folder()})")
            return None

    def save_overload(self, signature, kernel):
        """Keep a kernel; that it cannot be written is no reason to fail."""
        from numba.cuda.serialize import dumps

        path, part = self.path(signature), None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = zlib.compress(dumps(kernel._reduce_states()))
            with NamedTemporaryFile(dir=path.parent, prefix=path.stem, delete=False) as file:
                part = Path(file.name)
                file.write(data)
            part.replace(path)                                      # another process sees all of it or nothing
        except (OSError, RuntimeError, pickle.PicklingError) as error:
            if part:
                part.unlink(missing_ok=True)
            warn(f"compiled kernels cannot be kept in {folder()}: {getattr(error, 'strerror', None) or error}")


def toolkit():
    """The version of the libraries that compile."""
    return cuda.runtime.get_version()


@cache
def warn(text):
    """The same, once."""
    say(text)


def say(text):
    """One line on stderr, unless FA_REF_QUIET is set."""
    if not os.environ.get("FA_REF_QUIET"):
        print(f"cuda_kernels: {text}", file=sys.stderr)


@cache
def attach(kernel, capability):
    """Let a dispatcher use the disk; done once for each. A kernel that cannot be known by text goes without."""
    try:
        kernel._cache = DiskCache(kernel, capability)
    except TypeError as error:
        say(f"{kernel.py_func.__name__} is compiled anew in every process: {error}")
