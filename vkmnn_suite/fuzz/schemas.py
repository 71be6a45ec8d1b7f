"""The inputs that ONNX's operator schemas allow."""

from __future__ import annotations

from functools import lru_cache

import onnx

_NAMES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    **{f"tensor({s}int{b})": f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)},
}
"""Element types that vkmnn has, by the name that schemas give them."""

FLOATS = ("float32", "float16", "float64")
UNKNOWN_TO_ONNX = ("SimplifiedLayerNormalization",)
"""onnxruntime's operators that are in ONNX's own domain."""

_CONTRIB = ("float32", "float16")


class Skip(Exception):  # noqa: N818 - not an error
    """Something cannot be generated here: the opset lacks it, or no oracle computes it."""


@lru_cache(maxsize=4096)
def find_schema(op: str, opset: int, domain: str = "") -> onnx.defs.OpSchema:
    """Return an operator's schema at an opset.

    Raises:
        Skip: there is none, or the operator is deprecated.
    """
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError as error:
        raise Skip(op) from error
    if schema.deprecated:
        raise Skip(op)
    return schema


@lru_cache(maxsize=4096)
def input_dtypes(op: str, opset: int, index: int = 0, domain: str = "") -> tuple[str, ...]:
    """Return the element types that an input may have; raises as `find_schema`."""
    if domain:
        return _CONTRIB
    schema = find_schema(op, opset)
    kind = schema.inputs[min(index, len(schema.inputs) - 1)].type_str
    for constraint in schema.type_constraints:
        if constraint.type_param_str == kind:
            allowed = constraint.allowed_type_strs
            break
    else:
        allowed = [kind]
    return tuple(sorted(_NAMES[name] for name in allowed if name in _NAMES))
