"""Advice on models that gain little from quantisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING

from vkmnn.base.budget import size_text
from vkmnn.errors import InvalidInputError, plural
from vkmnn.quantization.model import graphs_of
from vkmnn.quantization.report import Size

if TYPE_CHECKING:
    import onnx

_QUANTIZED = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        *("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm"),
        *("MatMulNBits", "GatherBlockQuantized", "MatMulBnb4", "DynamicQuantizeMatMul"),
    }
)
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_READ_WEIGHTS = _CONVOLUTIONS | {"MatMul", "Gemm", "Gather", "LSTM", "GRU", "RNN"}
_FLOATS = frozenset({1, 10, 11, 16})  # TensorProto.DataType
_MIN_ELEMENTS = 256
_WORTH = 0.2  # the fraction of the weights' bytes above which int8 is recommended


def refuse_quantized(proto: onnx.ModelProto) -> None:
    """Refuse a model with quantised operators and no float weights.

    Raises:
        InvalidInputError: the model is already quantised.
    """
    found = Counter(
        node.op_type
        for graph in graphs_of(proto.graph)
        for node in graph.node
        if node.op_type in _QUANTIZED
    )
    if found and not any(_float_weights(proto, _READ_WEIGHTS)):
        named = ", ".join(f"{op} {count}" for op, count in found.most_common(3))
        raise InvalidInputError(
            f"the model is already quantised ({named}); nothing was written",
            hint="run it as it is, or quantise the float model that it was made from",
        )


def advice_for(proto: onnx.ModelProto, weights: str, after: Mapping[str, Size]) -> str:
    """Return a better choice of weights for a quantised model; "" if there is none.

    Args:
        proto: the quantised model.
        weights: the type that was asked for.
        after: sizes of its constants, by element type.
    """
    if weights != "int4":
        return ""
    kept = list(_float_weights(proto, _CONVOLUTIONS))
    nbytes = sum(size for _, size in kept)
    eight = sum(elements for elements, _ in kept)
    total = sum(size.nbytes for size in after.values())
    if nbytes - eight < _WORTH * total:
        return ""
    return (
        f"int4 leaves the weights of {plural(len(kept), 'convolution')} in float; int8 makes the "
        f"weights about {size_text(total - nbytes + eight)} instead of {size_text(total)}: "
        "--weights int8"
    )


def _float_weights(proto: onnx.ModelProto, ops: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield elements and bytes of the float weights that nodes of these types read."""
    for graph in graphs_of(proto.graph):
        tensors = {
            tensor.name: tensor
            for tensor in graph.initializer
            if tensor.data_type in _FLOATS and prod(tensor.dims) >= _MIN_ELEMENTS
        }
        for node in graph.node:
            if node.op_type in ops:
                for name in node.input:
                    if (tensor := tensors.get(name)) is not None:
                        elements = prod(tensor.dims)
                        width = {1: 4, 11: 8}.get(tensor.data_type, 2)
                        yield elements, elements * width
