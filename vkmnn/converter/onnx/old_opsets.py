"""Models of opsets before 7: converted to newer ones by onnx's version converter."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.converter.onnx.model_file import MIN_OPSET, ModelFile
from vkmnn.converter.onnx.old_shapes import with_shapes

if TYPE_CHECKING:
    import onnx

_LOG = logging.getLogger(__name__)

_TARGET = 9
"""Upsample has its scales as an input from here on, and nothing has become different since 7."""

_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_COMPARISONS = frozenset({"And", "Equal", "Greater", "Less", "Or", "Xor"})
_OF_OPSET_1 = frozenset({"Cast", "GlobalLpPool", "LpPool", "Pad", "Split", "Tile"})
_DROPPED = frozenset({"broadcast", "output_sequence"})
_ASIDE = "vkmnn.as_it_is"


def is_old(proto: onnx.ModelProto) -> bool:
    """True for a model in operators that the front end does not read."""
    return any(
        entry.version < MIN_OPSET and not normal_domain(entry.domain)
        for entry in proto.opset_import
    )


def upgraded(file: ModelFile) -> ModelFile:
    """Return an old model in newer operators, or unchanged if that is impossible.

    Unchanged, only the host runs it: the converters do not know its operators' attributes.
    """
    import onnx
    from onnx import version_converter

    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    for number, data in file.weights.items():
        proto.graph.initializer[number].raw_data = bytes(data)
    _number_types(proto.graph)
    complete = ModelFile(proto, {}, file.folder)
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    _name_inputs(changed.graph)
    _expand_prelu(changed.graph)
    try:
        changed = with_shapes(changed)
        _align_operands(changed.graph)
        _renew_tiles(changed.graph)
        _set_aside(changed)
        converted = version_converter.convert_version(changed, _TARGET)
        _put_back(converted)
    except Exception as error:  # noqa: BLE001 - native code, which throws what it likes
        _LOG.info("the model stays in its old opset: %s", error)
        return complete
    return ModelFile(converted, {}, file.folder)


def _set_aside(model: onnx.ModelProto) -> None:
    """Put operators for which onnx's converter has no rule into a domain that it skips."""
    first = any(one.version == 1 for one in model.opset_import if not normal_domain(one.domain))
    kinds = _RECURRENT | _COMPARISONS | (_OF_OPSET_1 if first else frozenset())
    nodes = [node for node in model.graph.node if node.op_type in kinds and not node.domain]
    for node in nodes:
        node.domain = _ASIDE
    if nodes:
        model.opset_import.add(domain=_ASIDE, version=1)


def _put_back(model: onnx.ModelProto) -> None:
    """Restore operators that were set aside, as operators of opset 7.

    Recurrent ones state only in their outputs what they produce, and operands always broadcast;
    `paddings` became `pads`, and the order of a norm an integer.
    """
    from onnx import helper

    for node in model.graph.node:
        if node.domain == _ASIDE:
            node.domain = ""
            kept = [one for one in node.attribute if one.name not in _DROPPED]
            for one in kept:
                if one.name == "paddings":
                    one.name = "pads"
                if one.name == "p":
                    one.CopyFrom(helper.make_attribute("p", int(helper.get_attribute_value(one))))
            del node.attribute[:]
            node.attribute.extend(kept)
    imports = [one for one in model.opset_import if one.domain != _ASIDE]
    del model.opset_import[:]
    model.opset_import.extend(imports)


def _align_operands(graph: onnx.GraphProto) -> None:
    """Append axes to second operands that broadcast along an axis; onnx's converter errs.

    Raises:
        ValueError: a rank is not known.
    """
    from onnx import helper

    values = (*graph.input, *graph.value_info, *graph.output)
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in values
        if value.type.tensor_type.HasField("shape")
    }
    nodes = []
    for number, node in enumerate(graph.node):
        axis = next((one.i for one in node.attribute if one.name == "axis"), None)
        if axis is not None and any(one.name == "broadcast" for one in node.attribute):
            first, second = node.input
            if first not in ranks or second not in ranks:
                raise ValueError(f"the ranks of '{first}' and '{second}' are not known")
            trailing = ranks[first] - axis % ranks[first] - ranks[second]
            if trailing:
                axes = list(range(ranks[second], ranks[second] + trailing))
                aligned = f"{second}/aligned_{number}"
                nodes.append(helper.make_node("Unsqueeze", [second], [aligned], axes=axes))
                node.input[1] = aligned
            kept = [one for one in node.attribute if one.name != "axis"]
            del node.attribute[:]
            node.attribute.extend(kept)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _renew_tiles(graph: onnx.GraphProto) -> None:
    """Write the repeats of Tile of opset 1 as in later opsets: for every axis.

    Raises:
        ValueError: the rank, or how often, is not known.
    """
    from onnx import helper, numpy_helper

    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    values = {value.name: value for value in (*graph.input, *graph.value_info)}
    nodes = []
    for number, node in enumerate(graph.node):
        if node.op_type == "Tile" and len(node.input) == 3:
            x, count, axis = node.input
            if x not in values or count not in tensors or axis not in tensors:
                raise ValueError(f"how often '{x}' is repeated is not known")
            repeats = [1] * len(values[x].type.tensor_type.shape.dim)
            place = int(numpy_helper.to_array(tensors[axis]).item())
            repeats[place] = int(numpy_helper.to_array(tensors[count]).item())
            tensor = helper.make_tensor("", 7, [len(repeats)], repeats)
            node.input[1:] = [f"{x}/repeats_{number}"]
            nodes.append(helper.make_node("Constant", [], node.input[1:], value=tensor))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _name_inputs(graph: onnx.GraphProto) -> None:
    """Make initializers inputs, as before IR version 4; the converter relies on it."""
    from onnx import helper

    known = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.name not in known:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            graph.input.append(value)


def _number_types(graph: onnx.GraphProto) -> None:
    """Write the target types of Cast, which were names once, as numbers."""
    import onnx

    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.s:
                name = attribute.s.decode("utf-8", "replace").upper()
                if name in onnx.TensorProto.DataType.keys():  # noqa: SIM118 - not a dictionary
                    code = onnx.TensorProto.DataType.Value(name)
                    attribute.CopyFrom(onnx.helper.make_attribute("to", code))


def _expand_prelu(graph: onnx.GraphProto) -> None:
    """Write PRelu by other operators: a slope for each channel, which later opsets lack."""
    from onnx import helper

    nodes = []
    for node in graph.node:
        if node.op_type != "PRelu" or node.domain:
            nodes.append(node)
            continue
        (x, slope), (y,) = node.input, node.output
        positive, negated, negative, scaled = (f"{y}/{part}" for part in ("p", "n", "m", "s"))
        nodes += [
            helper.make_node("Relu", [x], [positive], name=f"{node.name}/positive"),
            helper.make_node("Neg", [x], [negated], name=f"{node.name}/negated"),
            helper.make_node("Relu", [negated], [negative], name=f"{node.name}/negative"),
            helper.make_node("Mul", [negative, slope], [scaled], broadcast=1, axis=1),
            helper.make_node("Sub", [positive, scaled], [y], name=node.name),
        ]
    del graph.node[:]
    graph.node.extend(nodes)
