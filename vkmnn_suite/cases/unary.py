"""Cases of `unary`, for its shader and for the op in a network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vkmnn.core.float_range import FULL_UNARY_KINDS
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.shaders import kernels
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, shader_cases
from vkmnn.testing.shapes import arrays, f32, floats

PARAMETERS = {
    "CLIP": (-0.5, 0.75),
    "LEAKY_RELU": (0.1, 0.0),
    "HARD_SIGMOID": (0.2, 0.5),
    "ELU": (0.7, 0.0),
    "SELU": (1.67326, 1.0507),
    "CELU": (1.3, 0.0),
    "QUICK_GELU": (1.702, 0.0),
    "THRESHOLDED_RELU": (0.4, 0.0),
    "ISINF": (1.0, 1.0),
}
INTEGER_KINDS = frozenset({"ABS", "NEG", "SIGN", "NOT", "RELU", "CLIP", "SQUARE"})
_TESTS = frozenset({"ISNAN", "ISINF"})
_KINDS = frozenset(kernels.Unary.__members__) - _TESTS - {"NOT"}
_INTEGER_PARAMETERS = {"CLIP": (-3.0, 5.0)}
_POSITIVE = {"SQRT", "RSQRT", "LOG", "RECIPROCAL"}
_BELOW_ONE = {"ASIN", "ACOS", "ATANH"}
# Cases that built-in functions and comparisons of GLSL need not handle correctly.
_SPECIAL = f32([
    np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-8, -1e-8, 20.0, -20.0,
    88.7, -88.7, 104.5, -104.5, 1e4, -1e4, 8388609.0, -8388609.0, 3e38, -3e38, 2.5, -3.5,
])  # fmt: skip
# Numbers easily rounded the wrong way: ties, carries of an added half, ends of formulas.
_TIES = f32([
    0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 126.5, 127.5, -128.5, 0.49999997, -0.49999997, 0.50000006,
    4194303.5, 4194304.5, -4194305.5, 8388606.5, 8388607.5, -8388607.5, 8388608.0, 8388609.0,
    16777215.0, np.inf, np.nan,
])  # fmt: skip


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
    """Every kind on numbers in its domain and outside."""
    if variant.axes["form"] == "test":
        kinds = _TESTS
    elif variant.dtype == "i32":
        kinds = INTEGER_KINDS
    else:
        kinds = _KINDS - (FULL_UNARY_KINDS if variant.floats != "f32" else frozenset())
    if variant.images:
        for kind in sorted(kinds - _TESTS):
            yield from _image_cases(kind)
        return
    for kind in sorted(kinds):
        yield from unary_cases(kind, variant.dtype)


def _image_cases(kind: str) -> Iterator[Case]:
    """Yield cases of tensors in images: of whole blocks, and of rows of odd lengths."""
    attrs = UnaryAttrs(kind, *PARAMETERS.get(kind, ()))
    for shape in ((2, 8, 3, 5), (1, 7, 11)):
        x = _domain(kind, floats(*shape))
        yield blocked_case("UnaryOp", attrs, [x], rtol=2e-6, atol=1e-6)


def unary_cases(kind: str, dtype: str) -> Iterator[Case]:
    """Yield the cases of a kind, of every shape; `dtype` is a kernel's, "f32" or "i32"."""
    parameters = (PARAMETERS if dtype == "f32" else _INTEGER_PARAMETERS).get(kind, ())
    for x in arrays(dtype):
        source = _domain(kind, x) if dtype == "f32" else x > 0 if kind == "NOT" else x
        yield op_case("UnaryOp", UnaryAttrs(kind, *parameters), [source], rtol=2e-6, atol=1e-6)
    if dtype == "f32" and kind in _TESTS:
        bits = np.array([0x7F800001, 0xFF800001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7FFFFFFF], np.uint32)
        for alpha, beta in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0)):
            attrs = UnaryAttrs(kind, alpha, beta)
            yield op_case("UnaryOp", attrs, [np.append(bits.view(np.float32), _SPECIAL)])
    if kind == "ROUND":
        yield op_case("UnaryOp", UnaryAttrs(kind), [_TIES], rtol=0, atol=0)
    if dtype == "f32" and kind != "NOT":
        with np.errstate(all="ignore"):
            yield op_case(
                "UnaryOp", UnaryAttrs(kind, *parameters), [_SPECIAL], rtol=2e-6, atol=1e-6
            )
