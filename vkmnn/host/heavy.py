"""Decides which inner graphs are worth a plan on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.branches import inner_graphs

if TYPE_CHECKING:
    import onnx

_HEAVY = frozenset(
    {
        *("Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM"),
        *("LinearAttention", "MatMul", "RNN"),
        *("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
        # com.microsoft's
        *("DecoderMaskedMultiHeadAttention", "DynamicQuantizeMatMul", "FusedConv", "FusedGemm"),
        *("FusedMatMul", "GemmFastGelu", "GroupQueryAttention", "MatMulIntegerToFloat"),
        *("MatMulNBits", "MoE", "MultiHeadAttention", "QGemm", "QMoE"),
    }
)


def is_heavy(graph: onnx.GraphProto) -> bool:
    """Whether a graph, or one inside it, contains a heavy operator."""
    return any(node.op_type in _HEAVY for node in _nodes(graph))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in inner_graphs(node):
            yield from _nodes(inner)
