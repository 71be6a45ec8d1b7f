"""Advice on models that gain little from quantisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.base.budget import size_text
from vkmnn.converter.front_end import FRONT_ENDS
from vkmnn.errors import InvalidInputError, plural
from vkmnn.opening import CPU_DEVICE, front_end_of, load_network
from vkmnn.quantization.model import graphs_of
from vkmnn.quantization.report import Measured, Size
from vkmnn.quantization.scheme import Scheme
from vkmnn.runtime.device import enumerate_devices
from vkmnn.vulkan.device_rules import has_fast_dots, is_gpu

if TYPE_CHECKING:
    import onnx

_QUANTIZED = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        *("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm"),
        *("MatMulNBits", "GatherBlockQuantized", "MatMulBnb4", "DynamicQuantizeMatMul"),
    }
)
_OWN_READERS = frozenset({"ONNX", "vkmnn", "GGUF and safetensors"})
"""Front ends whose models are refused or read with their own words."""
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_READ_WEIGHTS = _CONVOLUTIONS | {"MatMul", "Gemm", "Gather", "LSTM", "GRU", "RNN"}
_FLOATS = frozenset({1, 10, 11, 16})  # TensorProto.DataType
_MIN_ELEMENTS = 256
_TINY = 16 << 10
"""Bytes of weights below which quantisation gains nothing."""
_LITTLE = 0.9
_SAME, _ERROR = 0.9, 0.3
"""The share of equal top 1, and the relative error, beyond which much accuracy is lost."""
_WORTH = 0.2  # the fraction of the weights' bytes above which int8 is recommended


def refuse_formats(model: object) -> None:
    """Refuse models of other formats than ONNX, and say whether they are quantised already.

    Raises:
        InvalidInputError: another front end than ONNX's recognises the model.
        ModelError: the file is damaged.
    """
    if not isinstance(model, str | Path):
        return
    found = front_end_of(model)
    name = next((name for name in FRONT_ENDS if type(found) is FRONT_ENDS[name]), "ONNX")
    if name in _OWN_READERS:
        return
    graph = load_network(model, optimised=False).source
    sizes = Counter[bool]()
    for array in graph.constants.values():
        if array.size >= _MIN_ELEMENTS:
            sizes[array.dtype.itemsize == 1 and array.dtype.kind != "b"] += array.size
    if sizes[True] > sizes[False]:
        raise InvalidInputError(
            f"'{model}' is a model of {name} that is already quantised (weights in 8 bits or "
            "less); nothing was written",
            hint="run it as it is, or quantise the float model that it was made from, as ONNX",
        )
    raise InvalidInputError(
        f"'{model}' is a model of {name}, and quantize reads ONNX",
        hint="export the model that it was made from as ONNX, and quantise that",
    )


def refuse_quantized(proto: onnx.ModelProto, activations: str | None = None) -> None:
    """Refuse a model with quantised operators and no float weights.

    Raises:
        InvalidInputError: the model is already quantised; or partly, and its activations are to be
            quantised, which would round them twice.
    """
    found = Counter(
        node.op_type
        for graph in graphs_of(proto.graph)
        for node in graph.node
        if node.op_type in _QUANTIZED
    )
    if not found:
        return
    named = ", ".join(f"{op} {count}" for op, count in found.most_common(3))
    left = list(_float_weights(proto, _READ_WEIGHTS))
    if not left:
        raise InvalidInputError(
            f"the model is already quantised ({named}); nothing was written",
            hint="run it as it is, or quantise the float model that it was made from",
        )
    if activations is not None:
        raise InvalidInputError(
            f"the model is already quantised in part ({named}), and its activations would be "
            "rounded twice; nothing was written",
            hint=f"leave out --activations: {plural(len(left), 'weight')} in float can be packed; "
            "or quantise the float model that it was made from",
        )


def advice_for(
    proto: onnx.ModelProto,
    scheme: Scheme,
    before: Mapping[str, Size],
    after: Mapping[str, Size],
    measured: Measured,
    made_up: bool,
) -> str:
    """Return a better choice for a quantised model, or what to expect; "" if there is nothing.

    Args:
        proto: the quantised model.
        scheme: what was asked for.
        before: sizes of the float model's constants, by element type.
        after: those of the quantised model.
        measured: its accuracy.
        made_up: the inputs were random.
    """
    found = [
        _of_convolutions(proto, scheme, after),
        _of_size(before, after),
        "" if made_up else _of_accuracy(proto, scheme, measured),
    ]
    return "; ".join(one for one in found if one)


def advice_for_device(activations: str | None, device: str | int) -> str:
    """Say where 8-bit activations do not make a network faster; "" if they do.

    Args:
        activations: their type, if they are quantised.
        device: the device that runs the network, as callers name it.
    """
    if activations is None or device == CPU_DEVICE:
        return ""
    slow = [info.name for info in enumerate_devices() if is_gpu(info) and not has_fast_dots(info)]
    if not slow:
        return ""
    return (
        f"{slow[0]} has no instructions for integer dot products: 8-bit activations do not make "
        "the network faster there; weights alone (without --activations) take as little memory"
    )


def _of_convolutions(proto: onnx.ModelProto, scheme: Scheme, after: Mapping[str, Size]) -> str:
    if scheme.weights != "int4" or scheme.activations:
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


def _of_size(before: Mapping[str, Size], after: Mapping[str, Size]) -> str:
    """Say where there is nothing to gain: in tiny networks, and where little could be packed."""
    old, new = (sum(size.nbytes for size in side.values()) for side in (before, after))
    if old < _TINY:
        return (
            f"the weights take {size_text(old)} in float, so quantisation saves neither memory nor "
            "time that would be noticed: use the float model"
        )
    if new > _LITTLE * old:
        return (
            f"the weights take {size_text(new)} instead of {size_text(old)}: most of them cannot "
            "be packed, see the nodes in float"
        )
    return ""


def _of_accuracy(proto: onnx.ModelProto, scheme: Scheme, measured: Measured) -> str:
    """Say what costs the most accuracy, if much is lost."""
    shares = [one.top1 for one in measured.outputs if one.top1 is not None]
    errors = [one.rms for one in measured.outputs if one.rms is not None]
    if min(shares, default=1.0) >= _SAME and max(errors, default=0.0) <= _ERROR:
        return ""
    lost = "the outputs differ much from the float model's"
    deep, all_of = _depthwise(proto)
    better = "--sensitivity ranks the nodes, and --target 'top1>=99%' leaves the worst in float"
    if scheme.activations and deep and deep * 4 >= all_of:
        return (
            f"{lost}: {deep} of {plural(all_of, 'convolution')} are depthwise, whose channels have "
            f"very different ranges, and 8 bits of activations lose much there; {better}; weights "
            "alone lose less: leave out --activations"
        )
    if scheme.weights == "int4":
        return f"{lost}: 4 bits are too few for this model; --weights int8, or {better}"
    return f"{lost}: {better}"


def _depthwise(proto: onnx.ModelProto) -> tuple[int, int]:
    """Return the number of depthwise convolutions, and of all convolutions."""
    groups = [
        next((item.i for item in node.attribute if item.name == "group"), 1)
        for graph in graphs_of(proto.graph)
        for node in graph.node
        if node.op_type in _CONVOLUTIONS
    ]
    return sum(count > 3 for count in groups), len(groups)


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
