"""Scales of codes into the op that makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir import DType
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import (
    BinaryAttrs,
    LayerNormAttrs,
    PoolingAttrs,
    QuantizedConvolutionAttrs,
    QuantizedMatMulAttrs,
    SoftmaxAttrs,
)
from vkmnn.records import dataclass

_Rows = LayerNormAttrs | SoftmaxAttrs


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op
    shaped: Op | None
    attrs: QuantizedConvolutionAttrs | QuantizedMatMulAttrs | PoolingAttrs | _Rows


class DecodeCodes(PatternPass[_Match]):
    """Codes times one number, which nothing else reads: what makes them multiplies.

    A change of shape may stand between.
    """

    name = "decode_codes"
    roots = frozenset({"BinaryOp"})

    def match(self, op: Op[BinaryAttrs], index: GraphIndex) -> _Match | NoMatch:
        parts = binary_parts(op, "MUL")
        scale = index.scalar(parts[1]) if parts else None
        if parts is None or scale is None:
            return NoMatch("not a product with one number")
        shaped = index.producer_of_type(parts[0], "Flatten", "Reshape", "Squeeze")
        codes = shaped.inputs[0] if shaped else parts[0]
        producer = index.producer_of_type(
            codes, "QuantizedConvolution", "QuantizedMatMul", "Pooling", "LayerNorm", "Softmax"
        )
        if producer is None:
            return NoMatch("no codes before")
        attrs = _scaled(producer.attrs, scale)
        if attrs is None or not index.read_once(parts[0]) or not index.read_once(codes):
            return NoMatch("the codes are read elsewhere")
        if not index.same_shape(parts[0], op.outputs[0]):
            return NoMatch("the number has more axes")
        return _Match(producer, shaped, attrs)

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        producer, shaped, outputs = match.producer, match.shaped, list(op.outputs)
        source, inputs = merged_source((producer, op)), list(producer.inputs)
        made = outputs if shaped is None else [index.unique_name(f"{producer.outputs[0]}:decoded")]
        ops: list[Op] = [Op(producer.type, producer.name, inputs, made, match.attrs, source)]
        if shaped is not None:
            (before,) = producer.outputs[:1]
            index.add_info(made[0], DType.FLOAT32, index.shape(before))
            inputs = [*made, *shaped.inputs[1:]]
            ops.append(Op(shaped.type, shaped.name, inputs, outputs, shaped.attrs, shaped.source))
        index.replace(op, *ops)


_Attrs = TypeVar(
    "_Attrs",
    QuantizedConvolutionAttrs,
    QuantizedMatMulAttrs,
    PoolingAttrs,
    LayerNormAttrs,
    SoftmaxAttrs,
)


def _scaled(attrs: _Attrs, scale: float) -> _Attrs | None:
    """Return what multiplies codes by a scale; None where they are none, or multiplied already."""
    if isinstance(attrs, QuantizedConvolutionAttrs | QuantizedMatMulAttrs):
        return replace(attrs, scale=scale) if attrs.scale == 1.0 else None
    ending = attrs.ending
    if ending is None or ending.scale != 1.0:
        return None
    return replace(attrs, ending=replace(ending, scale=scale))
