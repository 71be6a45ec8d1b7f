"""Reductions, argmax, top-k, cumulative sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir.ops import ArgReduceAttrs, CumSumAttrs, ReductionAttrs, TopKAttrs

# ONNX operator → (Reduction kind, opset at which the axes became an input).
_REDUCTIONS: Mapping[str, tuple[str, int]] = {
    "ReduceSum": ("SUM", 13),
    "ReduceMean": ("MEAN", 18),
    "ReduceMax": ("MAX", 18),
    "ReduceMin": ("MIN", 18),
    "ReduceProd": ("PROD", 18),
    "ReduceL1": ("L1", 18),
    "ReduceL2": ("L2", 18),
    "ReduceLogSum": ("LOG_SUM", 18),
    "ReduceLogSumExp": ("LOG_SUM_EXP", 18),
    "ReduceSumSquare": ("SUM_SQUARE", 18),
}


def _axes_attribute(kind: str) -> Callable[[NodeContext], None]:
    def convert(node: NodeContext) -> None:
        axes = [node.ints_constant(node.ints("axes"))] if node.has("axes") else []
        attrs = ReductionAttrs(kind, node.bool("keepdims", True))
        node.finish("Reduction", [*node.inputs, *axes], attrs)

    return convert


def _axes_input(kind: str) -> Callable[[NodeContext], None]:
    def convert(node: NodeContext) -> None:
        noop = node.bool("noop_with_empty_axes")
        attrs = ReductionAttrs(kind, node.bool("keepdims", True), noop)
        node.finish("Reduction", node.inputs, attrs)

    return convert


for _name, (_kind, _since) in _REDUCTIONS.items():
    converter(_name)(_axes_attribute(_kind))
    converter(_name, since=_since)(_axes_input(_kind))


def _arg_reduce(node: NodeContext) -> None:
    attrs = ArgReduceAttrs(
        node.int("axis", 0), node.bool("keepdims", True), node.bool("select_last_index")
    )
    node.finish(node.op, node.inputs, attrs)


converter("ArgMax")(_arg_reduce)
converter("ArgMin")(_arg_reduce)


@converter("TopK")
def _top_k_attribute(node: NodeContext) -> None:
    k = node.ints_constant([node.int("k")])
    node.emit("TopK", [*node.inputs, k], TopKAttrs(node.int("axis", -1)), node.outputs)


@converter("TopK", since=10)
def _top_k_input(node: NodeContext) -> None:
    attrs = TopKAttrs(node.int("axis", -1), node.bool("largest", True), node.bool("sorted", True))
    node.emit("TopK", node.inputs, attrs, node.outputs)


@converter("CumProd", since=26)
@converter("CumSum", since=11)
def _cum_sum(node: NodeContext) -> None:
    attrs = CumSumAttrs(node.bool("exclusive"), node.bool("reverse"))
    node.finish(node.op, node.inputs, attrs)
