"""Data movement: reshapes, transposes, concatenation, slices, pads."""

from __future__ import annotations

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.errors import ModelError
from vkmnn.ir.ops import (
    AxisAttrs,
    BlockAttrs,
    OpAttrs,
    PadAttrs,
    ReshapeAttrs,
    SplitAttrs,
    TransposeAttrs,
    TriluAttrs,
)


@converter("Flatten")
def _flatten(node: NodeContext) -> None:
    node.finish("Flatten", node.inputs, AxisAttrs(node.int("axis", 1)))


@converter("Reshape", since=5)
def _reshape(node: NodeContext) -> None:
    node.finish("Reshape", node.inputs, ReshapeAttrs(node.bool("allowzero")))


@converter("Transpose")
def _transpose(node: NodeContext) -> None:
    perm = node.ints("perm", ())
    if sorted(perm) != list(range(len(perm))):
        raise ModelError(
            f"perm {list(perm)} does not name every axis once",
            op=node.op,
            node=node.name,
            hint="the model is not valid ONNX; export it again",
        )
    node.finish("Transpose", node.inputs, TransposeAttrs(perm))


@converter("Concat", since=4)
def _concat(node: NodeContext) -> None:
    node.finish("Concat", node.inputs, AxisAttrs(node.int("axis")))


@converter("Squeeze")
def _squeeze_attribute(node: NodeContext) -> None:
    axes = [node.ints_constant(node.ints("axes"))] if node.has("axes") else []
    node.finish("Squeeze", [*node.inputs, *axes])


@converter("Unsqueeze")
def _unsqueeze_attribute(node: NodeContext) -> None:
    node.finish("Unsqueeze", [*node.inputs, node.ints_constant(node.ints("axes"))])


def _as_it_is(node: NodeContext) -> None:
    node.finish(node.op, node.inputs, OpAttrs())


converter("Squeeze", since=13)(_as_it_is)
converter("Unsqueeze", since=13)(_as_it_is)
converter("Expand", since=8)(_as_it_is)
converter("Tile", since=6)(_as_it_is)
converter("Slice", since=10)(_as_it_is)


@converter("Slice")
def _slice_attributes(node: NodeContext) -> None:
    starts, ends = node.ints("starts"), node.ints("ends")
    axes = node.ints("axes", range(len(starts)))
    lists = [node.ints_constant(values) for values in (starts, ends, axes)]
    node.finish("Slice", [*node.inputs, *lists])


@converter("Split", since=2)
def _split_attribute(node: NodeContext) -> None:
    axis = node.int("axis", 0)
    if node.has("split"):
        sizes = node.ints_constant(node.ints("split"))
        node.emit("Split", [*node.inputs, sizes], SplitAttrs(axis), node.outputs)
    else:
        node.emit("Split", node.inputs, SplitAttrs(axis, node.num_outputs), node.outputs)


@converter("Split", since=13)
def _split_input(node: NodeContext) -> None:
    # Without sizes, opset 13 counts the outputs; opset 18 also has the number in an attribute.
    parts = 0 if node.input(1) else node.int("num_outputs", node.num_outputs)
    attrs = SplitAttrs(node.int("axis", 0), parts)
    node.emit("Split", node.inputs, attrs, node.outputs)


_PAD_MODES = ("constant", "reflect", "edge", "wrap")


@converter("Pad", since=2)
def _pad_attributes(node: NodeContext) -> None:
    x = node.input(0)
    attrs = PadAttrs(node.choice("mode", "constant", _PAD_MODES))
    pads = node.ints_constant(node.ints("pads"))
    value = node.float("value", 0.0)
    fill = node.constant(value, node.dtype(x)) if value else ""
    node.finish("Pad", [x, pads, fill], attrs)


@converter("Pad", since=11)
def _pad_inputs(node: NodeContext) -> None:
    node.finish("Pad", node.inputs, PadAttrs(node.choice("mode", "constant", _PAD_MODES)))


@converter("DepthToSpace")
def _depth_to_space(node: NodeContext) -> None:
    mode = node.choice("mode", "DCR", ("DCR", "CRD"))
    node.finish("DepthToSpace", node.inputs, BlockAttrs(node.int("blocksize"), mode))


@converter("SpaceToDepth")
def _space_to_depth(node: NodeContext) -> None:
    mode = node.choice("mode", "DCR", ("DCR", "CRD"))
    node.finish("SpaceToDepth", node.inputs, BlockAttrs(node.int("blocksize"), mode))


@converter("Trilu", since=14)
def _trilu(node: NodeContext) -> None:
    node.finish("Trilu", node.inputs, TriluAttrs(node.bool("upper", True)))
