"""Pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.ops.conv import window
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir.ops import PoolingAttrs


def _pooling(node: NodeContext, kind: str) -> PoolingAttrs:
    w = window(node, node.ints("kernel_shape"))
    ceil_mode = node.bool("ceil_mode")
    return PoolingAttrs(kind, w.kernel, w.strides, w.dilations, w.pads, w.auto_pad, ceil_mode)


@converter("MaxPool")
def _max_pool(node: NodeContext) -> None:
    attrs = replace(_pooling(node, "MAX"), storage_order=node.int("storage_order", 0))
    node.emit("Pooling", node.inputs, attrs, node.outputs)


@converter("AveragePool")
def _average_pool(node: NodeContext) -> None:
    attrs = replace(_pooling(node, "AVERAGE"), count_include_pad=node.bool("count_include_pad"))
    node.finish("Pooling", node.inputs, attrs)


@converter("LpPool", since=2)
def _lp_pool(node: NodeContext) -> None:
    node.finish("Pooling", node.inputs, replace(_pooling(node, "LP"), p=node.int("p", 2)))


_GLOBAL: Mapping[str, str] = {"GlobalAveragePool": "AVERAGE", "GlobalMaxPool": "MAX"}


def _global_pool(kind: str) -> Callable[[NodeContext], None]:
    def convert(node: NodeContext) -> None:
        node.finish("Pooling", node.inputs, PoolingAttrs(kind, is_global=True))

    return convert


for _name, _kind in _GLOBAL.items():
    converter(_name)(_global_pool(_kind))


@converter("GlobalLpPool", since=2)
def _global_lp_pool(node: NodeContext) -> None:
    node.finish("Pooling", node.inputs, PoolingAttrs("LP", is_global=True, p=node.int("p", 2)))
