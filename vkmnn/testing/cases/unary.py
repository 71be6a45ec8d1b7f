"""Cases of `unary`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.testing.case import Case, Variant, op_case, shader_cases
from vkmnn.testing.cases.shapes import arrays

_PARAMETERS = {
    "CLIP": (-0.5, 0.75),
    "LEAKY_RELU": (0.1, 0.0),
    "HARD_SIGMOID": (0.2, 0.5),
    "ELU": (0.7, 0.0),
    "SELU": (1.67326, 1.0507),
    "CELU": (1.3, 0.0),
    "THRESHOLDED_RELU": (0.4, 0.0),
    "ISINF": (1.0, 1.0),
}
_INTEGER_PARAMETERS = {"CLIP": (-3.0, 5.0)}
_POSITIVE = {"SQRT", "RSQRT", "LOG", "RECIPROCAL"}
_BELOW_ONE = {"ASIN", "ACOS", "ATANH"}


def _domain(kind: str, x: AnyArray) -> AnyArray:
    """Bring numbers to where a function is defined."""
    if kind in _POSITIVE:
        return np.asarray(np.abs(x) + np.float32(0.01))
    if kind in _BELOW_ONE:
        return np.asarray(np.tanh(x))
    if kind == "ACOSH":
        return np.asarray(np.abs(x) + np.float32(1))
    if kind in {"ISNAN", "ISINF"} and x.size > 3:
        x.flat[:3] = np.nan, np.inf, -np.inf
    return x


@shader_cases("unary")
def unary(variant: Variant) -> Iterator[Case]:
    """Every kind on numbers of its domain; special values are tests of the op."""
    kind, dtype = str(variant.axes["op"]), str(variant.axes["dtype"])
    parameters = (_PARAMETERS if dtype == "f32" else _INTEGER_PARAMETERS).get(kind, ())
    for x in arrays(dtype):
        source = _domain(kind, x) if dtype == "f32" else x > 0 if kind == "NOT" else x
        yield op_case("UnaryOp", UnaryAttrs(kind, *parameters), [source], rtol=2e-6, atol=1e-6)
