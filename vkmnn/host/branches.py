"""The branches of an If as separate models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.branches import is_if, outer_names
from vkmnn.host.heavy import is_heavy
from vkmnn.ir import Array, HostGraphAttrs, Op

if TYPE_CHECKING:
    import onnx


def branch_models(
    op: Op, constants: Mapping[str, Array], always: bool = False
) -> tuple[dict[bool, onnx.ModelProto], tuple[str, ...]] | None:
    """Return the models of an If's branches by the condition, and their names of its inputs.

    None for other nodes, and for an If that is cheap on the host unless `always` is set.
    """
    import onnx
    from onnx import numpy_helper

    attrs = op.attrs
    assert isinstance(attrs, HostGraphAttrs)
    if attrs.kind != "If":
        return None
    model = onnx.ModelProto.FromString(attrs.model)
    (node,) = model.graph.node
    graphs = {attribute.name: attribute.g for attribute in node.attribute}
    if not is_if(node) or not (always or any(map(is_heavy, graphs.values()))):
        return None
    actual = dict(zip(attrs.inputs, op.inputs, strict=True))
    models = {}
    for taken, name in ((True, "then_branch"), (False, "else_branch")):
        proto = onnx.ModelProto(ir_version=model.ir_version, producer_name="vkmnn")
        proto.opset_import.extend(model.opset_import)
        proto.functions.extend(model.functions)
        proto.graph.CopyFrom(graphs[name])
        outer = outer_names(graphs[name])
        kept = (tensor for tensor in model.graph.initializer if tensor.name in outer)
        proto.graph.initializer.extend(kept)
        for value in model.graph.input:
            constant = constants.get(actual[value.name])
            if value.name in outer and constant is not None:
                proto.graph.initializer.append(numpy_helper.from_array(constant, value.name))
            elif value.name in outer:
                proto.graph.input.append(value)
        models[taken] = proto
    return models, attrs.inputs
