"""MNN.numpy's arithmetic, reductions, order and logic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.elementwise import FUNCTIONS as ELEMENTWISE
from vkmnn.mnn.expr.elementwise import relu6
from vkmnn.mnn.expr.reductions import FUNCTIONS as REDUCTIONS
from vkmnn.mnn.expr.reductions import histogram as histogram_of
from vkmnn.mnn.expr.selection import sort as sort_of
from vkmnn.mnn.expr.types import dtype
from vkmnn.mnn.expr.values import cast, clone, matched, result, to_var
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.numpy.creation import asscalar, float32, linspace
from vkmnn.mnn.numpy.shaping import concatenate, ravel

# Function of MNN.numpy -> function of MNN.expr.
_ALIASES = {
    "abs": "abs", "absolute": "abs", "fabs": "abs",
    "add": "add", "subtract": "subtract", "multiply": "multiply",
    "divide": "divide", "true_divide": "divide", "floor_divide": "floordiv",
    "power": "pow", "float_power": "pow",
    "mod": "mod", "fmod": "mod", "remainder": "mod",
    "maximum": "maximum", "fmax": "maximum", "minimum": "minimum", "fmin": "minimum",
    "negative": "negative", "reciprocal": "reciprocal", "sign": "sign", "square": "square",
    "sqrt": "sqrt", "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p",
    "sin": "sin", "cos": "cos", "tan": "tan",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "around": "round", "round": "round", "round_": "round", "rint": "round",
    "fix": "round", "trunc": "round", "floor": "floor", "ceil": "ceil",
    "greater": "greater", "greater_equal": "greater_equal", "less": "less",
    "less_equal": "less_equal", "equal": "equal", "not_equal": "not_equal",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
}  # fmt: skip


def _floats(name: str, function: Callable[..., Array]) -> Any:
    def call(*values: Any) -> Var:
        return result(name.upper(), function, *(to_var(one, dtype.float) for one in values))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Return {name} of the elements, in floats."
    return call


_IN_FLOATS: dict[str, Callable[..., Array]] = {
    "exp2": np.exp2,
    "log2": np.log2,
    "log10": np.log10,
    "logaddexp": np.logaddexp,
    "logaddexp2": np.logaddexp2,
    "hypot": np.hypot,
    "sinc": np.sinc,
    "cbrt": np.cbrt,
    "ldexp": lambda x, y: x * np.exp2(y),
    "signbit": np.signbit,
    "copysign": np.copysign,
}


def prod(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Return the product along axes; of all elements, as a number, if none is given."""
    return _reduced("reduce_prod", a, axis, keepdims)


def sum(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Return the sum along axes; of all elements, as a number, if none is given."""
    return _reduced("reduce_sum", a, axis, keepdims)


def amax(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Return the maximum along axes; of all elements, as a number, if none is given."""
    return _reduced("reduce_max", a, axis, keepdims, False)


def amin(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Return the minimum along axes; of all elements, as a number, if none is given."""
    return _reduced("reduce_min", a, axis, keepdims, False)


def _reduced(name: str, a: Any, axis: Any, keepdims: bool, numbers: bool = True) -> Any:
    x = to_var(a)
    if axis is None:
        return asscalar(REDUCTIONS[name](ravel(x)))
    made = REDUCTIONS[name](x, axis, keepdims)
    return asscalar(made) if numbers and made.ndim == 0 else made


def mean(
    a: Any, axis: Any = None, dtype: Any = float32, out: Any = None, keepdims: bool = False
) -> Any:
    """Return the mean along axes; of all elements, as a number, if none is given."""
    return _reduced("reduce_mean", cast(a, dtype), axis, keepdims, False)


def var(
    a: Any,
    axis: Any = None,
    dtype: Any = float32,
    out: Any = None,
    ddof: int = 0,
    keepdims: bool = False,
) -> Any:
    """Return the variance along axes; of all elements, as a number, if none is given.

    Args:
        a: the elements.
        axis: one axis, several, or None.
        dtype: the type to compute in.
        out: ignored.
        ddof: what the number of elements is reduced by, for a sample's variance.
        keepdims: keep the axes with size 1.
    """
    x = cast(a, dtype)
    along = None if axis is None else tuple(np.atleast_1d(np.asarray(axis)).tolist())
    made = result("Reduction", lambda v: v.var(along, ddof=ddof, keepdims=keepdims), x)
    return asscalar(made) if axis is None else made


def std(
    a: Any,
    axis: Any = None,
    dtype: Any = float32,
    out: Any = None,
    ddof: int = 0,
    keepdims: bool = False,
) -> Any:
    """Return the standard deviation along axes; see `var`."""
    found = var(a, axis, dtype, out, ddof, keepdims)
    return ELEMENTWISE["sqrt"](found) if isinstance(found, Var) else float(np.sqrt(found))


def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False) -> Any:
    """Return the mean along axes.

    Raises:
        ArgumentError: weights are given.
    """
    if weights is not None:
        raise ArgumentError("MNN.numpy's average does not accept weights")
    return mean(a, axis)


def ptp(a: Any, axis: Any = None) -> Any:
    """Return the difference of maximum and minimum."""
    high, low = amax(a, axis), amin(a, axis)
    return ELEMENTWISE["subtract"](high, low) if isinstance(high, Var) else high - low


def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return how many elements are not 0."""
    return sum(ELEMENTWISE["not_equal"](a, 0), axis, None, keepdims)


def argmax(a: Any, axis: Any = None, out: Any = None) -> Any:
    """Return the index of the largest element along an axis; in the flat Var without one."""
    return _index("argmax", a, axis)


def argmin(a: Any, axis: Any = None, out: Any = None) -> Any:
    """Return the index of the smallest element along an axis; in the flat Var without one."""
    return _index("argmin", a, axis)


def _index(name: str, a: Any, axis: Any) -> Any:
    if axis is None:
        return asscalar(REDUCTIONS[name](ravel(a), 0))
    return REDUCTIONS[name](a, axis)


def all(a: Any, axis: Any = None, out: Any = None, keepdims: Any = None) -> Any:
    """Tell whether no element is 0; along axes, as a Var."""
    return _truth("reduce_all", a, axis, keepdims)


def any(a: Any, axis: Any = None, out: Any = None, keepdims: Any = None) -> Any:
    """Tell whether an element is not 0; along axes, as a Var."""
    return _truth("reduce_any", a, axis, keepdims)


def _truth(name: str, a: Any, axis: Any, keepdims: Any) -> Any:
    truths = ELEMENTWISE["not_equal"](a, 0)
    if axis is None:
        return bool(asscalar(REDUCTIONS[name](truths)))
    made = REDUCTIONS[name](truths, axis, bool(keepdims))
    return bool(asscalar(made)) if made.size == 1 else made


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    """Tell whether two Vars have the same shape and elements."""
    return bool(np.array_equal(to_var(a1).read(), to_var(a2).read(), equal_nan=equal_nan))


def array_equiv(a1: Any, a2: Any) -> bool:
    """Tell whether two Vars have the same elements, broadcast."""
    return bool(np.array_equiv(to_var(a1).read(), to_var(a2).read()))


def divmod(x1: Any, x2: Any) -> tuple[Var, Var]:
    """Return the quotient, rounded down, and the remainder."""
    return ELEMENTWISE["floordiv"](x1, x2), ELEMENTWISE["mod"](x1, x2)


def modf(x: Any) -> tuple[Var, Var]:
    """Return the fractional part and the part before the point."""
    x = to_var(x, dtype.float)
    return result("MOD", lambda v: np.modf(v)[0], x), result("FLOOR", lambda v: np.modf(v)[1], x)


def clip(x: Any, a_min: Any, a_max: Any) -> Var:
    """Return the elements, limited to a range.

    Raises:
        ArgumentError: the limits are not numbers.
    """
    if not isinstance(a_min, int | float | np.number) or not isinstance(
        a_max, int | float | np.number
    ):
        raise ArgumentError("clip takes two numbers as limits")
    x = to_var(x)
    return cast(relu6(cast(x), float(a_min), float(a_max)), x.dtype)


def sort(a: Any, axis: int = -1, kind: Any = None, order: Any = None) -> Var:
    """Return the elements in order along an axis."""
    return sort_of(a, axis)


def argsort(a: Any, axis: int = -1, kind: Any = None, order: Any = None) -> Var:
    """Return the indices of the elements in order along an axis."""
    return sort_of(a, axis, True)


def msort(a: Any) -> Var:
    """Return the elements in order along the first axis."""
    return sort_of(a, 0)


def histogram(
    a: Any,
    bins: int = 10,
    range: Any = None,
    normed: Any = None,
    weights: Any = None,
    density: Any = None,
) -> tuple[Var, Var]:
    """Return how many elements lie in equal parts of a range, and the parts' limits."""
    x = to_var(a)
    low, high = (amin(x), amax(x)) if range is None else range
    edges = concatenate([linspace(float(low), float(high), bins, False), [float(high)]])
    return histogram_of(x, bins, low, high), edges


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Return the product of vectors, of matrices, or of batches of them, as numpy does."""
    x, y = matched(a, b)

    def compute(first: Array, second: Array) -> Any:
        return np.asarray(np.dot(first, second), first.dtype)

    made = result("MatMul", compute, x, y)
    return asscalar(made) if made.ndim == 0 else made


def matmul(a: Any, b: Any) -> Any:
    """Return the product of matrices; batches of matrices are broadcast."""
    x, y = matched(a, b)
    if min(x.ndim, y.ndim) < 2:
        return dot(x, y)
    return result("MatMul", lambda first, second: np.asarray(first @ second, first.dtype), x, y)


FUNCTIONS: dict[str, Any] = {
    **{name: ELEMENTWISE[function] for name, function in _ALIASES.items()},
    **{name: _floats(name, function) for name, function in _IN_FLOATS.items()},
    **{name: REDUCTIONS[name] for name in ("cumsum", "cumprod")},
    **{
        function.__name__: function
        for function in (
            *(all, amax, amin, any, argmax, argmin, argsort, array_equal, array_equiv, average),
            *(clip, count_nonzero, divmod, dot, histogram, matmul, mean, modf, msort, prod, ptp),
            *(sort, std, sum, var),
        )
    },
}
FUNCTIONS.update(
    max=amax,
    min=amin,
    nanmax=amax,
    nanmin=amin,
    nanargmax=argmax,
    nanargmin=argmin,
    nanprod=prod,
    nansum=sum,
    nanmean=mean,
    nanstd=std,
    nanvar=var,
    nancumsum=REDUCTIONS["cumsum"],
    nancumprod=REDUCTIONS["cumprod"],
    inner=dot,
    vdot=dot,
    lexsort=sort,
    positive=clone,
)
