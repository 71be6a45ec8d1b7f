"""MNN.expr's reductions, and sums and products along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.elementwise import op_name
from vkmnn.mnn.expr.types import dtype
from vkmnn.mnn.expr.values import (
    axes_of,
    integer,
    matched,
    normal_axis,
    result,
    results,
    to_var,
)
from vkmnn.mnn.expr.var import Var


def _mean(array: Array, axis: Any, keepdims: bool) -> Array:
    if array.dtype.kind == "f":
        return np.asarray(array.mean(axis, keepdims=keepdims))
    total = array.sum(axis, keepdims=keepdims)
    count = array.size // max(np.asarray(total).size, 1)
    return np.asarray(np.trunc(total / count).astype(array.dtype))


_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "reduce_sum": lambda a, axis, keepdims: a.sum(axis, keepdims=keepdims, dtype=a.dtype),
    "reduce_mean": _mean,
    "reduce_max": lambda a, axis, keepdims: a.max(axis, keepdims=keepdims),
    "reduce_min": lambda a, axis, keepdims: a.min(axis, keepdims=keepdims),
    "reduce_prod": lambda a, axis, keepdims: a.prod(axis, keepdims=keepdims, dtype=a.dtype),
}
_OF_INTEGERS: dict[str, Callable[..., Array]] = {
    "reduce_any": lambda a, axis, keepdims: (a != 0).any(axis, keepdims=keepdims),
    "reduce_all": lambda a, axis, keepdims: (a != 0).all(axis, keepdims=keepdims),
}


def _reduction(name: str, function: Callable[..., Array], integers: bool) -> Any:
    def call(x: Any, axis: Any = (), keepdims: bool = False) -> Var:
        x = to_var(x)
        if integers and x.dtype not in (dtype.int, dtype.int64):
            raise ArgumentError(
                f"expr.{name} takes integers, not {x.dtype.name}", hint="compare first: x != 0"
            )
        if x.dtype == dtype.uint8:
            x = to_var(x, dtype.int)
        axes = axes_of(axis)

        def compute(array: Array) -> Any:
            along = tuple(normal_axis(one, array.ndim) for one in axes) or None
            return function(array, along, keepdims)

        return result("Reduction", compute, x)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Return the {name.removeprefix('reduce_')} along axes; along all if none."
    return call


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _reduction(name, function, False) for name, function in _REDUCTIONS.items()},
    **{name: _reduction(name, function, True) for name, function in _OF_INTEGERS.items()},
}


def _along(name: str, function: Callable[..., Array], kind: dtype | None = None) -> Any:
    def call(x: Any, axis: int = 0) -> Var:
        along = integer(axis, "axis")
        op = op_name(name)
        return result(op, lambda a: function(a, axis=normal_axis(along, a.ndim)), to_var(x, kind))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Return the {name} along an axis."
    return call


FUNCTIONS.update(
    argmax=_along("argmax", np.argmax),
    argmin=_along("argmin", np.argmin),
    cumsum=_along("cumsum", lambda a, axis: np.cumsum(a, axis, a.dtype)),
    cumprod=_along("cumprod", lambda a, axis: np.cumprod(a, axis, a.dtype), dtype.float),
)


def matmul(a: Any, b: Any, transposeA: bool = False, transposeB: bool = False) -> Var:
    """Return the product of matrices, or of batches of them, in floats."""

    def compute(x: Array, y: Array) -> Any:
        if x.ndim < 2 or y.ndim < 2:
            raise ArgumentError("a matrix has at least two axes", hint="use MNN.numpy.dot")
        x = x.swapaxes(-1, -2) if transposeA else x
        y = y.swapaxes(-1, -2) if transposeB else y
        return np.asarray(x @ y)

    return result("MatMul", compute, to_var(a, dtype.float), to_var(b, dtype.float))


def moments(x: Any, axes: Any = (2, 3), shift: Any = None, keep_dims: bool = True) -> list[Var]:
    """Return the means and the variances along axes; `shift` has no effect."""
    along = tuple(axes_of(axes))

    def compute(a: Array) -> Any:
        return a.mean(along, keepdims=keep_dims), a.var(along, keepdims=keep_dims)

    return results("Moments", compute, 2, to_var(x, dtype.float))


def svd(x: Any) -> list[Var]:
    """Return the singular values w, then u and the transposed v of a matrix u · w · v."""

    def compute(a: Array) -> Any:
        u, w, v = np.linalg.svd(a, full_matrices=False)
        return w, u, v

    return results("Svd", compute, 3, to_var(x, dtype.float))


def histogram(input: Any, binNum: int, minVal: int, maxVal: int) -> Var:
    """Return how many elements lie in each of the equal parts of a range, as floats.

    Args:
        input: the elements.
        binNum: parts.
        minVal: lower end of the range.
        maxVal: upper end, which belongs to the last part.
    """

    def compute(a: Array) -> Any:
        return np.histogram(a, binNum, (minVal, maxVal))[0].astype(np.float32)

    return result("Histogram", compute, to_var(input))


def setdiff1d(x: Any, y: Any) -> Var:
    """Return the sorted elements of a Var of one axis that another one does not have."""
    first, second = matched(x, y)
    return result("SetDiff1D", np.setdiff1d, first, second)


FUNCTIONS.update(matmul=matmul, moments=moments, svd=svd, histogram=histogram, setdiff1d=setdiff1d)
