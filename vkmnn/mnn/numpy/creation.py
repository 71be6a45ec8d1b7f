"""MNN.numpy's functions that make Vars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.movement import fill, range_, unsqueeze
from vkmnn.mnn.expr.selection import one_hot
from vkmnn.mnn.expr.types import NCHW, dtype, narrowed, numpy_type
from vkmnn.mnn.expr.values import axes_of, cast, clone, placeholder, scalar, to_var
from vkmnn.mnn.expr.var import Var

float32 = dtype.float


def check_order(order: str | None) -> None:
    """Refuse orders of elements other than C's.

    Raises:
        ArgumentError: it is another one.
    """
    if order is not None and order not in ("C", "K"):
        raise ArgumentError(f"MNN.numpy has no order {order!r}", hint='use "C" or "K"')


def sizes_of(shape: Any) -> list[int]:
    """Return a shape given as a number, a list or a Var."""
    return axes_of(shape)


def array(
    object: Any,
    dtype: Any = None,
    copy: bool = True,
    order: str | None = "K",
    subok: bool = False,
    ndmin: int = 0,
    like: Any = None,
) -> Var:
    """Return a Var of an array, a list, a number, bytes or a Var, in at least `ndmin` axes."""
    check_order(order)
    made = to_var(object)
    if isinstance(object, Var) and copy:
        made = clone(object, True)
    if dtype is not None:
        made = cast(made, dtype)
    missing = ndmin - made.ndim
    return unsqueeze(made, list(range(missing))) if missing > 0 else made


def asarray(a: Any, dtype: Any = None, order: str | None = None) -> Var:
    """Return a Var; see `array`."""
    return array(a, dtype, order=order)


def asmatrix(data: Any, dtype: Any = None) -> Var:
    """Return a Var of at least two axes."""
    return array(data, dtype, ndmin=2)


def asfarray(a: Any, dtype: Any = None) -> Var:
    """Return a Var of floats."""
    return array(a, float32)


def frombuffer(buffer: Any, dtype: Any = float32, count: int = -1, offset: int = 0) -> Var:
    """Return the numbers that bytes hold."""
    if isinstance(buffer, bytes | bytearray | memoryview):
        return Var(narrowed(np.frombuffer(buffer, numpy_type(dtype), count, offset).copy()))
    return array(buffer, dtype)


def asscalar(a: Any) -> Any:
    """Return the first element as a number."""
    return to_var(a).read_as_tuple()[0]


def empty(shape: Any, dtype: Any = float32, order: str = "C") -> Var:
    """Return a placeholder of a shape."""
    check_order(order)
    return placeholder(sizes_of(shape), NCHW, dtype)


def empty_like(
    prototype: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Var:
    """Return a placeholder of another Var's shape and type."""
    check_order(order)
    like = to_var(prototype)
    sizes = like.shape if shape is None or order == "K" else sizes_of(shape)
    return placeholder(sizes, like.data_format, like.dtype if dtype is None else dtype)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Var:
    """Return a Var of one value: of integers for an int, of floats for a float."""
    check_order(order)
    value = asscalar(fill_value) if isinstance(fill_value, Var) else fill_value
    return fill(sizes_of(shape), scalar(value, dtype))


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
) -> Var:
    """Return a Var of one value, of another Var's shape and type."""
    like = to_var(a)
    sizes = like.shape if shape is None or order == "K" else sizes_of(shape)
    return full(sizes, fill_value, like.dtype if dtype is None else dtype)


def ones(shape: Any, dtype: Any = None, order: str = "C") -> Var:
    """Return ones: integers, unless a type is given."""
    return full(shape, 1, dtype, order)


def zeros(shape: Any, dtype: Any = None, order: str = "C") -> Var:
    """Return zeros: integers, unless a type is given."""
    return full(shape, 0, dtype, order)


def ones_like(
    a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Var:
    """Return ones of another Var's shape and type."""
    return full_like(a, 1, dtype, order, subok, shape)


def zeros_like(
    a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Var:
    """Return zeros of another Var's shape and type."""
    return full_like(a, 0, dtype, order, subok, shape)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float32, order: str = "C") -> Var:
    """Return a matrix with ones on a diagonal: the main one, or `k` to its right."""
    check_order(order)
    made = one_hot(arange(k, N + k), N if M is None else M)
    return cast(made, dtype)


def identity(n: int, dtype: Any = float32) -> Var:
    """Return a square matrix with ones on its diagonal."""
    return eye(n, dtype=dtype)


def copy(a: Any, order: str = "K", subok: bool = False) -> Var:
    """Return a copy."""
    check_order(order)
    return clone(a, True)


def arange(*args: Any, dtype: Any = None, **kargs: Any) -> Var:
    """Return evenly spaced numbers: `arange(stop)` or `arange(start, stop, step, dtype)`.

    They are of the stop's type, int or float, unless a type is given.
    """
    given = dict(zip(("start", "stop", "step", "dtype"), args, strict=False))
    if len(args) == 1 and "stop" not in kargs:
        given = {"stop": args[0]}
    given = {"start": 0, "step": 1, "dtype": dtype} | given | kargs
    unknown = sorted(set(given) - {"start", "stop", "step", "dtype"})
    if unknown or "stop" not in given or len(args) > 4:
        raise ArgumentError("arange takes start, stop, step and dtype")
    numbers = [given[name] for name in ("start", "stop", "step")]
    kind = given["dtype"]
    whole = all(isinstance(one, int | np.integer) for one in numbers)
    if kind is None:
        kind = _int32 if whole else float32
    return cast(range_(*(scalar(one, None if whole else float32) for one in numbers)), kind)


_int32 = dtype.int


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """Return evenly spaced numbers from start to stop, which is included unless `endpoint` is off.

    They are integers if start, stop and the distance are.
    """
    parts = num - 1 if endpoint else num
    step = (stop - start) / parts if parts > 0 else float(stop - start)
    values = start + np.arange(num) * step
    whole = isinstance(start, int) and isinstance(stop, int) and float(step).is_integer()
    made = Var(np.asarray(values, np.int32 if whole else np.float32))
    made = made if dtype is None else cast(made, dtype)
    return (made, step) if retstep else made


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Var:
    """Return numbers whose logarithms are evenly spaced."""
    values = np.power(float(base), linspace(float(start), float(stop), num, endpoint).read())
    made = Var(values.astype(np.float32))
    return made if dtype is None else cast(made, dtype)


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Var:
    """Return numbers of which each is the same multiple of the one before."""
    made = Var(np.geomspace(start, stop, num, endpoint).astype(np.float32))
    return made if dtype is None else cast(made, dtype)


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Var]:
    """Return the coordinates of a grid's points, as numpy does."""
    try:
        grids = np.meshgrid(
            *(to_var(x).read() for x in xi), copy=copy, sparse=sparse, indexing=_indexing(indexing)
        )
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    return [Var(np.ascontiguousarray(grid)) for grid in grids]


def _indexing(name: str) -> Any:
    if name not in ("xy", "ij"):
        raise ArgumentError(f"there is no indexing {name!r}", hint='use "xy" or "ij"')
    return name


def repmat(a: Any, m: int, n: int) -> Var:
    """Return a matrix of copies of a vector: `m` rows of `n` copies."""
    return Var(np.tile(to_var(a).read(), (m, n)))


FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        *(arange, array, asarray, asfarray, asmatrix, asscalar, copy, empty, empty_like, eye),
        *(frombuffer, full, full_like, geomspace, identity, linspace, logspace, meshgrid, ones),
        *(ones_like, repmat, zeros, zeros_like),
    )
}
FUNCTIONS.update(
    asanyarray=asarray,
    asarray_chkfinite=asarray,
    ascontiguousarray=asarray,
    asfortranarray=asarray,
    mat=asmatrix,
    matrix=asmatrix,
)


def arrays(values: Sequence[Any]) -> list[Var]:
    """Return Vars for several values."""
    return [to_var(value) for value in values]
