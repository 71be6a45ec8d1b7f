"""Equal ranges of channels: a channel's scale moves from activations to the weights that read them.

A scale per tensor leaves few steps for channels with a small range. Between two products with
nothing but ReLU, pooling and the like, each channel can be divided by a number before, and
multiplied by it in the weights after; the network computes the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.quantization.calibration import Sample
from vkmnn.quantization.model import graphs_of

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, np.dtype[Any]]

_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_SCALABLE = frozenset(
    {"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Identity", "Flatten"}
)
"""Operators for which f(s x) = s f(x), channel by channel, for positive s."""
_MOST = 1e3
"""The largest factor of a channel."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """Two products with nothing but scalable operators between them.

    Attributes:
        first: the one that computes the channels.
        biases: constants that are added to them.
        second: the one that reads them.
        tensor: what the second one reads.
    """

    first: onnx.NodeProto
    biases: Sequence[str]
    second: onnx.NodeProto
    tensor: str


def equalised(
    proto: onnx.ModelProto,
    samples: Sequence[Sample],
    opened: Callable[[bytes], Any],
) -> onnx.ModelProto | None:
    """Return a model with equal ranges of channels; None if it has no such pair.

    Args:
        proto: the model, with its data in it.
        samples: inputs on which ranges of activations are measured.
        opened: opens a model: a context of a function from inputs to outputs by name.
    """
    import onnx
    from onnx import numpy_helper

    made = onnx.ModelProto()
    made.CopyFrom(proto)
    pairs = list(_pairs(made.graph))
    if not pairs:
        return None
    shown = onnx.ModelProto()
    shown.CopyFrom(made)
    outputs = {value.name for value in shown.graph.output}
    tensors = {pair.tensor: 1 if pair.second.op_type == "Conv" else -1 for pair in pairs}
    shown.graph.output.extend(onnx.ValueInfoProto(name=n) for n in tensors if n not in outputs)
    ranges: dict[str, Array] = {}
    with opened(shown.SerializeToString()) as run:
        for sample in samples:
            results = run(sample)
            for name, axis in tensors.items():
                value = np.moveaxis(np.abs(results[name]), axis, 0)
                largest = value.reshape(len(value), -1).max(1)
                ranges[name] = np.maximum(ranges.get(name, largest), largest)
    weights = {tensor.name: tensor for tensor in made.graph.initializer}
    arrays: dict[str, Array] = {}

    def array(name: str) -> Array:
        if name not in arrays:
            arrays[name] = numpy_helper.to_array(weights[name]).copy()
        return arrays[name]

    for pair in pairs:
        _equalise(pair, ranges[pair.tensor], array)
    for name, value in arrays.items():
        weights[name].CopyFrom(numpy_helper.from_array(value, name))
    return made


def _equalise(pair: _Pair, activations: Array, array: Callable[[str], Array]) -> None:
    """Scale the weights of a pair in place."""
    before, after = _rows(pair.first, array), _columns(pair.second, array)
    channels, features = len(before), after.shape[0]
    if features % channels or len(activations) != features:
        return
    reach = np.abs(after).reshape(channels, -1).max(1)
    if _attribute(pair.second, "group", 1) > 1:  # each channel has its own scale of weights
        reach = np.ones_like(reach)
    activations = activations.reshape(channels, -1).max(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.sqrt(activations / reach)
    usable = np.isfinite(factors) & (factors > 0)
    if not usable.any():
        return
    factors = np.where(usable, factors, 1) / np.exp(np.log(factors[usable]).mean())
    factors = np.clip(np.where(usable, factors, 1), 1 / _MOST, _MOST).astype(np.float32)
    before /= factors.reshape(-1, *[1] * (before.ndim - 1))
    for name in pair.biases:
        bias = array(name)
        bias /= factors.reshape(bias.shape) if bias.ndim == 1 else factors
    after *= np.repeat(factors, features // channels).reshape(-1, *[1] * (after.ndim - 1))


def _rows(node: onnx.NodeProto, array: Callable[[str], Array]) -> Array:
    """Return a view of weights whose first axis is the channels that they compute."""
    weights = array(node.input[1])
    turned = node.op_type == "Conv" or _attribute(node, "transB", 0)
    return weights if turned else weights.T


def _columns(node: onnx.NodeProto, array: Callable[[str], Array]) -> Array:
    """Return a view of weights whose first axis is the channels that they read."""
    weights = array(node.input[1])
    group = _attribute(node, "group", 1)
    if node.op_type != "Conv":
        return weights.T if _attribute(node, "transB", 0) else weights
    if group == 1:
        return np.moveaxis(weights, 1, 0)
    return weights.reshape(group, -1, *weights.shape[2:])  # one channel for each group


def _pairs(graph: onnx.GraphProto) -> Iterator[_Pair]:
    """Yield the pairs whose weights nothing else reads."""
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer
             if tensor.data_type == 1}  # fmt: skip
    read = Counter(name for each in graphs_of(graph) for node in each.node for name in node.input)
    read.update(value.name for value in graph.output)
    readers = {name: node for node in graph.node for name in node.input}
    for node in graph.node:
        if not _is_product(node, sizes, read):
            continue
        biases = list(node.input[2:3])
        found = _second(node, biases, sizes, read, readers)
        if found is None or not _is_product(found[0], sizes, read):
            continue
        second, tensor, between = found
        if not _keeps_channels(node, between, second):
            continue
        ready = all(name in sizes and read[name] == 1 and prod(sizes[name]) > 1 for name in biases)
        if ready and second.input[0] == tensor and _reads_plainly(second, sizes):
            yield _Pair(node, biases, second, tensor)


def _second(
    node: onnx.NodeProto,
    biases: list[str],
    sizes: Mapping[str, tuple[int, ...]],
    read: Mapping[str, int],
    readers: Mapping[str, onnx.NodeProto],
) -> tuple[onnx.NodeProto, str, list[str]] | None:
    """Return the next operator that is not scalable, what it reads, and the operators between.

    Constants that are added on the way are appended to `biases`.
    """
    name, between = node.output[0], list[str]()
    while read[name] == 1 and name in readers:
        after = readers[name]
        added = [one for one in after.input if one != name]
        is_bias = after.op_type == "Add" and len(added) == 1 and len(sizes.get(added[0], ())) == 1
        if is_bias and node.op_type != "Conv":
            biases.append(added[0])  # before any ReLU, or scaled like what it is added to
        elif after.op_type not in _SCALABLE or _attribute(after, "axis", 1) != 1:
            return after, name, between
        else:
            between.append(after.op_type)
        name = after.output[0]
    return None


def _keeps_channels(first: onnx.NodeProto, between: Sequence[str], second: onnx.NodeProto) -> bool:
    """Return whether the channels of one node's result are those that the next one reads."""
    flat = between.count("Flatten")
    if second.op_type == "Conv":
        return first.op_type == "Conv" and not flat
    if first.op_type == "Conv":
        return flat == 1 and not any("Pool" in one for one in between[between.index("Flatten") :])
    return not flat and not any("Pool" in one for one in between)


def _is_product(
    node: onnx.NodeProto, sizes: Mapping[str, tuple[int, ...]], read: Mapping[str, int]
) -> bool:
    """Return whether a node multiplies by constant weights that only it reads, as they are."""
    if node.op_type not in _PRODUCTS or len(node.input) < 2 or read[node.input[1]] != 1:
        return False
    plain = _attribute(node, "alpha", 1.0) == 1 and _attribute(node, "beta", 1.0) == 1
    if not plain or _attribute(node, "transA", 0):
        return False
    return len(sizes.get(node.input[1], ())) >= 2


def _reads_plainly(node: onnx.NodeProto, sizes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether each weight belongs to one channel: no groups, or one channel in each."""
    shape = sizes[node.input[1]]
    return _attribute(node, "group", 1) == 1 or shape[1] == 1


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    from onnx import helper

    found = next((item for item in node.attribute if item.name == name), None)
    return default if found is None else helper.get_attribute_value(found)
