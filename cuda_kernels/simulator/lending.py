"""What the names in a kernel's file stand for while it runs.

`cuda` is the simulated module, `math` that of a GPU, and a device function is the plain Python function that was
decorated, so that calling it costs nothing. It is done once per launch and undone at its end.
"""

import math

from numba import cuda
from numba.cuda.simulator.kernel import FakeCUDAKernel

from cuda_kernels.simulator.maths import device_math


class Loan:
    """All names lent during one launch; a context manager that takes them back."""

    def __init__(self, device):
        self.device, self.seen, self.lent = device, set(), []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for names, name, value in reversed(self.lent):
            names[name] = value

    def to(self, function):
        """Lend to the names that this function can see: those of its file and of the functions around it."""
        if function not in self.seen:
            self.seen.add(function)
            self.lend(function.__globals__, id(function.__globals__))
            for cell in function.__closure__ or ():
                self.lend(Cell(cell), id(cell))

    def lend(self, names, key):
        """Lend to all names of one dictionary."""
        if key not in self.seen:
            self.seen.add(key)
            for name, value in list(names.items()):
                stand_in = self.stand_in(value)
                if stand_in is not value:
                    self.lent.append((names, name, value))
                    names[name] = stand_in

    def stand_in(self, value):
        """The simulated thing for a module or a device function; anything else stays as it is."""
        if value is cuda:
            return self.device
        if value is math:
            return device_math
        if isinstance(value, FakeCUDAKernel) and value._device:
            self.to(value.fn)
            return value.fn
        return value


class Cell:
    """The variable of an enclosing function, seen as a dictionary with one entry."""

    def __init__(self, cell):
        self.cell = cell

    def items(self):
        try:
            return [("cell_contents", self.cell.cell_contents)]
        except ValueError:                              # not yet assigned
            return []

    def __setitem__(self, name, value):
        setattr(self.cell, name, value)
