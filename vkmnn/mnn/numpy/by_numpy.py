"""Functions that MNN.numpy names and does not compute: numpy's own, on Vars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkmnn.mnn.codes import ArgumentError, NotOfferedError, OutOfBoundsError
from vkmnn.mnn.expr.types import dtype, narrowed, numpy_type
from vkmnn.mnn.expr.values import to_var
from vkmnn.mnn.expr.var import Var

_NAMES = (
    *("append", "argpartition", "base_repr", "binary_repr", "bincount", "block", "broadcast"),
    *("choose", "compress", "convolve", "corrcoef", "correlate", "cov", "cross", "deg2rad"),
    *("degrees", "delete", "diag", "diag_indices", "diag_indices_from", "diagflat", "diagonal"),
    *("diff", "digitize", "ediff1d", "extract", "flip", "fliplr", "flipud", "frexp"),
    *("fromfile", "fromfunction", "fromiter", "fromstring", "gcd", "gradient", "heaviside"),
    *("histogram2d", "histogram_bin_edges", "histogramdd", "i0", "indices", "insert", "interp"),
    *("invert", "ix_", "lcm", "left_shift", "loadtxt", "mask_indices", "median", "nan_to_num"),
    *("nanmedian", "nanpercentile", "nanquantile", "ndenumerate", "ndindex", "nextafter"),
    *("outer", "packbits", "partition", "percentile", "quantile", "rad2deg", "radians"),
    *("ravel_multi_index", "real_if_close", "require", "resize", "right_shift", "roll", "rot90"),
    *("searchsorted", "select", "spacing", "take", "take_along_axis", "tensordot", "trapz"),
    *("tri", "tril", "tril_indices", "tril_indices_from", "trim_zeros", "triu", "triu_indices"),
    *("triu_indices_from", "unique", "unpackbits", "unwrap", "vander"),
)
_IN_PLACE = ("fill_diagonal", "place", "put", "put_along_axis", "putmask")
_RENAMED = {"trapz": ("trapezoid", "trapz")}  # since numpy 2
_ERRORS = (ValueError, TypeError, ArithmeticError, AttributeError, np.linalg.LinAlgError)


def plain(value: Any) -> Any:
    """Return an argument as numpy takes it: Vars as arrays, MNN's types as numpy's."""
    if isinstance(value, Var):
        return value.read()
    if isinstance(value, dtype):
        return numpy_type(value)
    if isinstance(value, list | tuple):
        return type(value)(plain(one) for one in value)
    return value


def wrapped(value: Any) -> Any:
    """Return a result as MNN has it: arrays as Vars, numpy's numbers as Python's.

    Raises:
        NotOfferedError: it consists of complex numbers.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise NotOfferedError(f"a Var has no elements of {value.dtype}")
        return Var(narrowed(value.copy()))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return (
            type(value)([wrapped(one) for one in value])
            if type(value) in (list, tuple)
            else (tuple(wrapped(one) for one in value))
        )
    return value


def _called(name: str, function: Any, args: Any, kargs: Any) -> Any:
    given = [plain(one) for one in args]
    options = {key: plain(value) for key, value in kargs.items()}
    try:
        with np.errstate(all="ignore"):
            return function(*given, **options)
    except IndexError as error:
        raise OutOfBoundsError(str(error), op=name) from error
    except _ERRORS as error:
        raise ArgumentError(str(error), op=name) from error


def _found(name: str) -> Any:
    for own in _RENAMED.get(name, (name,)):
        if hasattr(np, own):
            return getattr(np, own)
    raise NotOfferedError(f"this numpy has no function {name}")


def _by_numpy(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kargs: Any) -> Any:
        return wrapped(_called(name, _found(name), args, kargs))

    return _named(call, name, f"Return what numpy's {name} does, on Vars.")


def _in_place(name: str) -> Callable[..., Any]:
    def call(target: Any, *args: Any, **kargs: Any) -> None:
        array = to_var(target).read().copy()
        _called(name, _found(name), (array, *args), kargs)
        target[...] = Var(array)

    return _named(call, name, f"Change a Var as numpy's {name} changes an array.")


def _named(function: Callable[..., Any], name: str, text: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _by_numpy(name) for name in _NAMES},
    **{name: _in_place(name) for name in _IN_PLACE},
}
