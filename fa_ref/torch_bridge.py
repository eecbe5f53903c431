"""The bridge to torch: tensors come in, NumPy arrays are worked on, and results go back as tensors.

The kind of an array is NumPy, or torch on some device; the arrays of a call are of one kind. torch is never imported.
"""

import sys

import numpy as np
from ml_dtypes import bfloat16


def is_torch(x):
    """Is x a torch tensor? torch is never imported for the question: whoever made x has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def to_numpy(name, x):
    """x as a NumPy array that shares its memory where it can.

    A torch tensor is detached (no graph is recorded) and copied to the host if it lives elsewhere; bfloat16
    crosses as an int16 view, since NumPy knows it only through ml_dtypes. Anything else is a TypeError.
    """
    if is_torch(x):
        torch = sys.modules["torch"]
        check_dense(name, x)
        if x.device.type == "meta":
            raise TypeError(f"{name} is on the device meta, which holds no numbers")
        x = x.detach().cpu().resolve_neg()
        if x.dtype == torch.bfloat16:
            return x.view(torch.int16).numpy().view(bfloat16)
        try:
            return x.numpy()
        except TypeError:
            raise TypeError(f"{name} has dtype {x.dtype}, which NumPy does not know") from None
    if isinstance(x, np.ma.MaskedArray) or not isinstance(x, np.ndarray):
        raise not_an_array(name, x)
    return np.asarray(x)


def check_dense(name, x):
    """TypeError for a torch tensor that is sparse or nested."""
    if x.is_nested or x.layout != sys.modules["torch"].strided:
        what = "a nested one" if x.is_nested else f"one with the layout {x.layout}"
        raise TypeError(f"{name} must be a dense tensor, got {what}")


def not_an_array(name, x):
    """The error for what is neither a plain NumPy array nor a torch tensor."""
    return TypeError(f"{name} must be a NumPy array or a torch tensor, got {type(x).__name__}")


def in_kind(x, like):
    """The NumPy array x as what `like` is: itself, or a torch tensor on the same device."""
    if x is None or not is_torch(like):
        return x
    torch = sys.modules["torch"]
    if x.dtype == bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(x).to(like.device)


def check_one_kind(where):
    """TypeError unless all arrays are of one kind. where: {name of the array: its kind in words}."""
    if len(set(where.values())) > 1:
        told = ", ".join(f"{name} is {kind}" for name, kind in where.items())
        raise TypeError(f"arrays of different kinds or devices: {told}")


def same_kind(optional=None, **arrays):
    """Convert arrays that must be all NumPy or all torch on one device; they come back in the order given.

    optional: the name of the one that may be None.
    """
    where = {name: f"a torch tensor on {x.device}" if is_torch(x) else "a NumPy array"
             for name, x in arrays.items() if not (name == optional and x is None)}
    for name in where:
        if not is_torch(arrays[name]) and not isinstance(arrays[name], np.ndarray):
            raise not_an_array(name, arrays[name])
    check_one_kind(where)
    return [to_numpy(name, x) if name in where else None for name, x in arrays.items()]
