"""Operators between numbers and quantised values."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.nodes import FLOAT, FLOAT16
from vkmnn.converter.nodes.composed import rounded_to_steps
from vkmnn.converter.nodes.quantized import decode
from vkmnn.converter.tflite.nodes import LiteOp, reads


@reads("DEQUANTIZE")
def dequantize(op: LiteOp) -> None:
    """DequantizeLinear, or Cast of float16; constant weights stay as they are stored."""
    op.need(1)
    name, array, output = op.inputs[0], op.value(0), op.outputs[0]
    by = op.quantization(0)
    if by is None:
        if op.type_of(name) not in (FLOAT16, FLOAT):
            raise op.damaged("its input has no scale")
        if array is not None:
            op.scope.set_constant(output, array.astype(np.float32))
        else:
            op.finish("Cast", name, dtype=FLOAT, to=FLOAT)
        return
    if array is not None:
        op.subgraph.decoded[output] = name, by
    op.scope.emit("Identity", [decode(op, name, by)], [output], op.name)


@reads("QUANTIZE")
def quantize(op: LiteOp) -> None:
    """QuantizeLinear; of quantised values, to another scale."""
    op.need(1)
    if op.result_quantization() is None:
        raise op.damaged("its output has no scale")
    op.pass_on(op.inputs[0]) if op.quantization(0) is not None else op.give(op.real(0))


@reads("FAKE_QUANT")
def fake_quant(op: LiteOp) -> None:
    """Rounding to the steps between two limits, which are moved so that zero is a step."""
    op.need(1)
    low, high, bits = op.number("min"), op.number("max"), op.integer("num_bits", 8)
    op.give(rounded_to_steps(op, op.real(0), low, high, bits, op.flag("narrow_range")))
