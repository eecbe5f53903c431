"""`math` with the meaning it has on a GPU: float32 in, float32 out; infinity and NaN instead of exceptions.

Python's `math.exp` answers a float32 with a double, and raises OverflowError where a GPU says inf.
"""

import math
from types import SimpleNamespace

import numpy as np

ONE_NUMBER = {"acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
              "atanh": np.arctanh, "cos": np.cos, "cosh": np.cosh, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
              "fabs": np.fabs, "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "sin": np.sin,
              "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh, "degrees": np.degrees,
              "radians": np.radians}
WITHOUT_NUMPY = {"erf": None, "erfc": None, "gamma": lambda x: math.inf if x > 0 else math.nan,
                 "lgamma": lambda x: math.inf}          # where they raise
TO_WHOLE = {"ceil": np.ceil, "floor": np.floor, "trunc": np.trunc}      # Python's own answer with integers of any size
TWO_NUMBERS = {"atan2": np.arctan2, "copysign": np.copysign, "fmod": np.fmod, "hypot": np.hypot, "pow": np.power}
ROUNDS_TO_INF = float(np.finfo(np.float32).max) * (1 + 2.0**-25)        # as a float32


def on_device(function, ieee):
    """`function` of math; where it raises, the function `ieee`, NumPy's as a rule, knows what IEEE 754 says."""
    def call(*args):
        try:
            value = function(*args)
        except (ValueError, OverflowError):
            with np.errstate(all="ignore"):
                value = float(ieee(*(np.float64(x) for x in args)))
        if type(args[0]) is np.float32 and type(args[-1]) is np.float32:
            return np.float32(math.copysign(math.inf, value) if abs(value) >= ROUNDS_TO_INF else value)
        return value

    call.__name__ = function.__name__
    return call


device_math = SimpleNamespace(**vars(math))
for name, ieee in {**ONE_NUMBER, **TWO_NUMBERS, **WITHOUT_NUMPY}.items():
    setattr(device_math, name, on_device(getattr(math, name), ieee))
for name, ieee in TO_WHOLE.items():
    setattr(device_math, name, on_device(ieee, ieee))
