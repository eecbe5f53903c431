"""Arrays as a kernel sees them: no negative index, no index past the end.

On a GPU an index past the end reads or overwrites whatever lies there, and nobody says so. Here it is an IndexError
that names the array.
"""

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support
from numpy.lib.mixins import NDArrayOperatorsMixin

GIVEN_ON = ("shape", "size", "ndim", "strides", "dtype", "itemsize", "nbytes", "flags")


class Origin:
    """The array that views were cut from: its name in messages, where it lives, and its cells; where in shared memory
    it begins is a multiple of so many bytes."""

    def __init__(self, name, space, data, device, alignment):
        self.name, self.space, self.data, self.device, self.alignment = name, space, data, device, alignment


class Guarded(NDArrayOperatorsMixin):
    """A window on a NumPy array that refuses what a GPU would do silently; its views are guarded too."""

    __slots__ = ("data", "origin")

    def __init__(self, data, origin):
        self.data, self.origin = data, origin

    def __getitem__(self, index):
        if type(index) is tuple:
            for i in index:
                if type(i) is not int or i < 0:
                    self.check(index)
                    break
        elif type(index) is not int or index < 0:
            self.check((index,))
        try:
            value = self.data[index]
        except IndexError as error:
            raise self.refusal(index, error) from None
        return type(self)(value, self.origin) if type(value) is np.ndarray else value

    def __setitem__(self, index, value):
        if type(index) is tuple:
            for i in index:
                if type(i) is not int or i < 0:
                    self.check(index)
                    break
        elif type(index) is not int or index < 0:
            self.check((index,))
        try:
            self.data[index] = value
        except IndexError as error:
            raise self.refusal(index, error) from None

    def check(self, indices):
        """IndexError unless each of these is an integer ≥ 0 or a slice between such."""
        for i in indices:
            if isinstance(i, slice):
                if min(i.start or 0, i.stop or 0) < 0 and (i.step or 1) > 0:
                    raise self.refusal(indices, "a negative end of a slice")
            elif isinstance(i, int | np.integer):
                if i < 0:
                    raise self.refusal(indices, "a negative index")
            elif i is not Ellipsis and i is not None:
                raise self.refusal(indices, "kernels index with integers and slices")

    def refusal(self, index, why):
        """The IndexError for this index."""
        index = ", ".join(words(i) for i in (index if isinstance(index, tuple) else (index,)))
        return IndexError(f"{self.origin.name}[{index}]: {why}; its shape is {self.data.shape}")

    def __len__(self):
        return len(self.data)

    def __getattr__(self, name):
        if name in GIVEN_ON:
            return getattr(self.data, name)
        raise AttributeError(f"{self.origin.name}: kernels know no .{name} of an array")

    def like(self, data):
        """The same cells in another shape or type, guarded as well."""
        if data.size and not np.may_share_memory(data, self.data):
            raise ValueError(f"{self.origin.name}: only a contiguous array can be given another shape in a kernel")
        return type(self)(data, self.origin)

    @property
    def T(self):
        return self.like(self.data.T)

    @property
    def real(self):
        return self.like(self.data.real)

    @property
    def imag(self):
        return self.like(self.data.imag)

    def transpose(self, *axes):
        return self.like(self.data.transpose(*axes))

    def reshape(self, *shape):
        return self.like(self.data.reshape(*shape))

    def ravel(self):
        return self.like(self.data.ravel())

    def view(self, dtype):
        return self.like(self.data.view(as_dtype(dtype)))

    def fill(self, value):
        self[...] = value

    def reading(self):
        """The cells, for someone who reads them all."""
        return self.data

    def writing(self):
        """The cells, for someone who writes them all."""
        return self.data

    def atomic_cell(self, index):
        """One cell as an array without axes, for someone who reads and writes it in one go."""
        index = index if isinstance(index, tuple) else (index,)
        self.check(index)
        try:
            cell = self.data[(*index, Ellipsis)]
        except IndexError as error:
            raise self.refusal(index, error) from None
        if cell.ndim:
            raise self.refusal(index, "an atomic operation takes one cell")
        return cell

    def __array__(self, dtype=None, copy=None):
        return np.array(self.reading(), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        inputs = [x.reading() if isinstance(x, Guarded) else x for x in inputs]
        targets = tuple(x.writing() if isinstance(x, Guarded) else x for x in out)
        value = getattr(ufunc, method)(*inputs, **options, **({"out": targets} if out else {}))
        return out[0] if len(out) == 1 else value

    def __repr__(self):
        return f"{self.origin.name} = {self.data!r}"


def as_dtype(dtype):
    """A NumPy dtype from what kernels write: numba.float32, np.float32."""
    return np.dtype(numpy_support.as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)


def words(index):
    """An index as it is written: 1:3 for slice(1, 3), 5 for np.int64(5)."""
    if isinstance(index, slice):
        return f"{'' if index.start is None else index.start}:{'' if index.stop is None else index.stop}"
    return str(index)
