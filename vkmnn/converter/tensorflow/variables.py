"""Operators that read and assign variables."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.nodes import INT32, INT64, UnreadableError
from vkmnn.converter.tensorflow.nodes import TfNode, reads
from vkmnn.converter.tensorflow.states import ASSIGNING, SCATTERS, variable_key


def _key(op: TfNode) -> str:
    found = op.model.handles.get(op.inputs[0]) if op.inputs else None
    if not found:
        raise op.unreadable("a resource that is not a variable of the model")
    return found


@reads("VarHandleOp", "VariableV2", "Variable", "VarHandlesOp")
def handle(op: TfNode) -> None:
    """A variable: its value is in the SavedModel's files."""
    op.need(0)
    if op.type == "VarHandlesOp":
        raise op.unreadable("several variables in one node")
    if op.model.file.values is None:
        raise op.unreadable("the graph is not frozen: its variables are in another file")
    shared = op.text("shared_name")
    op.model.handles[op.outputs[0]] = variable_key(
        op.type, op.node.name, shared, op.text("container")
    )
    if op.type != "VarHandleOp":
        op.model.references.add(op.outputs[0])


@reads("ReadVariableOp")
def read(op: TfNode) -> None:
    """The present value of a variable."""
    op.need(1)
    op.alias(op.model.variables.value(_key(op)), op.outputs[0])


@reads("VarIsInitializedOp", "IsVariableInitialized")
def is_initialised(op: TfNode) -> None:
    """True: variables have the values of the files."""
    op.need(1)
    _key(op)
    op.scope.set_constant(op.outputs[0], np.array(True))


@reads("VariableShape")
def shape(op: TfNode) -> None:
    """The shape of a variable."""
    op.need(1)
    dtype = op.dtype("out_type") if "out_type" in op.attrs else INT32
    found = op.make("Shape", op.model.variables.value(_key(op)), dtype=INT64)
    op.finish_as(dtype, found)


@reads("DisableCopyOnRead")
def nothing(op: TfNode) -> None:
    """Nothing."""


@reads(*sorted(one for one in ASSIGNING if "Scatter" not in one))
def assign(op: TfNode) -> None:
    """Another value for a variable: it is a state that sessions keep between runs."""
    op.need(2, 0)
    variables, key = op.model.variables, _key(op)
    value = op.inputs[1]
    if "Add" in op.type or "Sub" in op.type:
        value = op.make("Add" if "Add" in op.type else "Sub", variables.value(key), value)
    _assigned(op, key, value)


def _assigned(op: TfNode, key: str, value: str) -> None:
    if value not in op.scope.types:
        raise UnreadableError("a value that is no tensor", op=op.type, node=op.name)
    op.model.variables.assign(key, value)
    if not op.type.startswith("Resource") and not op.type.endswith("VariableOp"):
        op.alias(value, op.outputs[0])


@reads(*sorted(one for one in ASSIGNING if "Scatter" in one))
def scatter(op: TfNode) -> None:
    """Another value for rows, or for elements, of a variable."""
    op.need(3, 0)
    variables, key = op.model.variables, _key(op)
    where, rows = op.long(1), op.inputs[2]
    kind = op.type.rpartition("Scatter")[2]
    places = where
    if kind.startswith("Nd"):
        kind = kind[2:]
    else:
        places = op.make("Unsqueeze", where, op.constant([-1]))
    if kind == "Sub":
        rows = op.make("Neg", rows)
    made = op.make("ScatterND", variables.value(key), places, rows, reduction=SCATTERS[kind])
    _assigned(op, key, made)


@reads("ResourceGather", "ResourceGatherNd")
def gather(op: TfNode) -> None:
    """Rows, or elements, of a variable."""
    op.need(2)
    value = op.model.variables.value(_key(op))
    if op.integer("batch_dims"):
        raise op.unreadable("batches of indices into a variable")
    if op.type == "ResourceGather":
        op.finish("Gather", value, op.inputs[1], axis=0)
    else:
        op.finish("GatherND", value, op.long(1))
