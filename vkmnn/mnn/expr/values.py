"""Vars of values: constants, placeholders, and what functions accept in place of a Var."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError, OutOfBoundsError
from vkmnn.mnn.expr import cells
from vkmnn.mnn.expr.types import NCHW, data_format, dtype, narrowed, numpy_type
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.memory import bytes_at, is_address
from vkmnn.mnn.tensor import converted, reordered

_FIRST_ADDRESS = 1 << 16  # no program has memory below
_RANKS = ("uint8", "int8", "int32", "int64", "float32", "float64")
_INT32 = np.iinfo(np.int32)


def const(
    value_list: Any,
    shape: Sequence[int] = (),
    data_format: data_format = NCHW,
    dtype: dtype = dtype.float,
) -> Var:
    """Return a Var of values: a list, a tuple, an array, a number, bytes, or an address.

    An address is a PyCapsule or a number, as `Var.ptr` and `Tensor.getHost` return one; it has to
    hold as many elements as the shape. A number is taken for an address if it does not fill the
    shape, or does not fit 32 bits.

    Raises:
        InvalidInputError: the values do not fill the shape, or are of another kind.
    """
    kind = numpy_type(dtype)
    sizes = tuple(shape)
    if _is_address(value_list, sizes):
        if isinstance(value_list, int) and value_list < _FIRST_ADDRESS:
            raise ArgumentError(f"1 value does not fill a Var of shape {sizes}")
        value_list = bytes_at(value_list, prod(sizes) * kind.itemsize)
    if isinstance(value_list, bytes | bytearray):
        array = np.frombuffer(bytes(value_list), kind)
    else:
        array = converted(np.asarray(value_list), kind, "a Var")
    if shape or array.size == 0:
        try:
            array = array.reshape(sizes)
        except ValueError as error:
            raise ArgumentError(
                f"{array.size} values do not fill a Var of shape {sizes}"
            ) from error
    return Var(np.array(array), data_format)


def _is_address(value: Any, shape: tuple[int, ...]) -> bool:
    if not is_address(value):
        return False
    return not isinstance(value, int) or prod(shape) != 1 or not _fits(value)


def _fits(value: int) -> bool:
    return _INT32.min <= value <= _INT32.max


def placeholder(
    shape: Sequence[int] = (), format: data_format = NCHW, dtype: dtype = dtype.float
) -> Var:
    """Return a Var without data, to write to; sizes of -1 are open."""
    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    cell = cells.Cell(None, format, kind=cells.INPUT)
    cell.shape, cell.dtype = sizes, numpy_type(dtype)
    return Var._of(cell)


def scalar(value: Any, dtype: dtype | None = None) -> Var:
    """Return a Var without axes: of integers for an int, of floats for a float.

    Raises:
        ArgumentError: the value is not a number, or an integer needs more than 32 bits.
    """
    if not isinstance(value, bool | int | float | np.number):
        raise ArgumentError(f"{value!r} is not a number")
    array = np.asarray(value)
    if dtype is None:
        return Var(_narrow(array))
    return Var(cast_array(array, numpy_type(dtype)))


def to_var(value: Any, dtype: dtype | None = None) -> Var:
    """Return a Var for what MNN's functions accept as one: also numbers, lists and arrays.

    Integers become 32-bit ones, floats float32.

    Raises:
        ArgumentError: it is none of these, or an integer needs more than 32 bits.
    """
    if not isinstance(value, Var):
        value = Var(_array_of(value))
    return value if dtype is None else cast(value, dtype)


def _array_of(value: Any) -> Array:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes | bytearray):
        return np.array(np.frombuffer(bytes(value), np.uint8))
    try:
        array: Array = np.array(value)
    except ValueError as error:
        raise ArgumentError(f"the lists have different lengths: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ArgumentError(
            f"{type(value).__name__} cannot be read as a Var",
            hint="pass a Var, a number, a list of numbers or an array",
        )
    if isinstance(value, list | tuple) and (array.size == 0 or array.dtype.kind == "b"):
        return np.asarray(array, np.float32)
    return _narrow(array)


def _narrow(array: Array) -> Array:
    if array.dtype.kind in "iu" and array.size and array.dtype.itemsize > 4:
        low, high = int(array.min()), int(array.max())
        if not (_fits(low) and _fits(high)):
            raise ArgumentError(
                "an integer does not fit 32 bits, which MNN's Vars have",
                hint="use expr.const(values, shape, expr.NCHW, expr.int64)",
            )
    return narrowed(array)


def axes_of(axis: Any, count: int | None = None) -> list[int]:
    """Return axes, or other integers, given as one or several.

    Raises:
        ArgumentError: they are not integers, or not as many as expected.
    """
    if isinstance(axis, Var):
        axis = axis.read()
    try:
        axes = [int(one) for one in np.asarray(axis).reshape(-1).tolist()]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{axis!r} is no list of integers") from error
    if count is not None and len(axes) != count:
        raise ArgumentError(f"{count} integers are expected, not {axes}")
    return axes


def integer(value: Any, what: str = "the argument") -> int:
    """Return an integer.

    Raises:
        ArgumentError: it is none.
    """
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{what} is an integer, not {value!r}") from error


def normal_axis(axis: int, ndim: int) -> int:
    """Return an axis counted from the front.

    Raises:
        OutOfBoundsError: there is no such axis.
    """
    if not -ndim <= axis < ndim:
        raise OutOfBoundsError(f"a Var of {ndim} axes has no axis {axis}")
    return axis % ndim


def matched(first: Any, second: Any) -> tuple[Var, Var]:
    """Return two Vars of one type: the wider of theirs; integers for two of 8 bits."""
    x, y = to_var(first), to_var(second)
    names = [cells.sample(one._cell).dtype.name for one in (x, y)]
    ranks = [_RANKS.index(name) if name in _RANKS else _RANKS.index("int32") for name in names]
    wide = max(*ranks, _RANKS.index("int32"))
    kind = np.dtype(_RANKS[wide])
    return _as(x, kind), _as(y, kind)


def _as(x: Var, kind: np.dtype[Any]) -> Var:
    if cells.sample(x._cell).dtype == kind:
        return x
    return result("Cast", lambda array: cast_array(array, kind), x)


def cast(x: Any, dtype: Any = dtype.float) -> Var:
    """Return a Var in another type; 64-bit types become 32-bit ones, as in MNN.

    Fractions are cut off; integers that do not fit 8 bits lose their upper bits.
    """
    kind = narrowed(np.zeros(0, numpy_type(dtype))).dtype
    return _as(to_var(x), kind)


def cast_array(array: Array, kind: np.dtype[Any]) -> Array:
    """Return an array in another type, as C converts numbers."""
    if array.dtype.kind == "f" and kind.kind in "iu" and kind.itemsize < 4:
        with np.errstate(invalid="ignore"):
            array = array.astype(np.int32)
    with np.errstate(invalid="ignore", over="ignore"):
        return array.astype(kind)


def result(
    op: str, function: cells.Function, *inputs: Var, format: data_format | None = None
) -> Var:
    """Return the result of an operation on Vars."""
    (cell,) = cells.apply(op, function, [one._cell for one in inputs], format=format)
    return Var._of(cell)


def results(op: str, function: cells.Function, count: int, *inputs: Var) -> list[Var]:
    """Return the results of an operation with several."""
    made = cells.apply(op, function, [one._cell for one in inputs], count)
    return [Var._of(cell) for cell in made]


def convert(x: Any, format: data_format) -> Var:
    """Return the Var with its axes in another order."""
    x = to_var(x)
    source, target = x._order, Var(None, format)._order
    made = result(
        "ConvertTensor",
        lambda array: np.ascontiguousarray(reordered(array, source, target)),
        x,
        format=format,
    )
    made.name = x.name
    return made


def clone(x: Any, deepCopy: bool = False) -> Var:
    """Return another Var of the same content; a copy of its own if `deepCopy`."""
    x = to_var(x)
    if deepCopy:
        return result("Identity", lambda array: array.copy(), x)
    return Var._of(x._cell)


def zeros_like(x: Any) -> Var:
    """Return zeros of the shape and type of a Var."""
    return result("ZerosLike", np.zeros_like, to_var(x))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cast": cast,
    "clone": clone,
    "const": const,
    "convert": convert,
    "placeholder": placeholder,
    "scalar": scalar,
    "zeros_like": zeros_like,
}
