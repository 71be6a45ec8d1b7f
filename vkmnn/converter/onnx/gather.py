"""Gathering, scattering and sampling by index."""

from __future__ import annotations

from collections.abc import Callable

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    AxisAttrs,
    CastAttrs,
    GatherNDAttrs,
    GridSampleAttrs,
    ScatterElementsAttrs,
    ScatterNDAttrs,
)

_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _gather(op_type: str) -> Callable[[NodeContext], None]:
    def convert(node: NodeContext) -> None:
        node.finish(op_type, node.inputs, AxisAttrs(node.int("axis", 0)))

    return convert


converter("Gather")(_gather("Gather"))
converter("GatherElements", since=11)(_gather("GatherElements"))


@converter("GatherND", since=11)
def _gather_nd(node: NodeContext) -> None:
    node.finish("GatherND", node.inputs, GatherNDAttrs(node.int("batch_dims", 0)))


@converter("ScatterND", since=11)
def _scatter_nd(node: NodeContext) -> None:
    reduction = node.choice("reduction", "none", _REDUCTIONS)
    node.finish("ScatterND", node.inputs, ScatterNDAttrs(reduction))


@converter("ScatterElements", since=11)
@converter("Scatter", since=9)
def _scatter_elements(node: NodeContext) -> None:
    reduction = node.choice("reduction", "none", _REDUCTIONS)
    attrs = ScatterElementsAttrs(node.int("axis", 0), reduction)
    node.finish("ScatterElements", node.inputs, attrs)


@converter("OneHot", since=9)
def _one_hot(node: NodeContext) -> None:
    indices, depth, values = node.inputs

    def as_int64(name: str) -> str:
        if node.dtype(name).is_integer:
            return name
        return node.emit("Cast", [name], CastAttrs(DType.INT64))

    attrs = AxisAttrs(node.int("axis", -1))
    node.finish("OneHot", [as_int64(indices), as_int64(depth), values], attrs)


_OLD_SAMPLE_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_PADDING_MODES = ("zeros", "border", "reflection")


@converter("GridSample", since=16)
def _grid_sample(node: NodeContext) -> None:
    mode = node.choice("mode", "linear", ("linear", "nearest", "cubic", *_OLD_SAMPLE_MODES))
    attrs = GridSampleAttrs(
        _OLD_SAMPLE_MODES.get(mode, mode),
        node.choice("padding_mode", "zeros", _PADDING_MODES),
        node.bool("align_corners"),
    )
    node.finish("GridSample", node.inputs, attrs)
