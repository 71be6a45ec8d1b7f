"""Dilated convolutions, which TensorFlow writes as three nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from vkmnn.converter.tensorflow.functions import Node, Tensor
from vkmnn.converter.tensorflow.schema import message_class
from vkmnn.ir import Array

_CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")


def joined(
    nodes: Mapping[str, Node], constant: Callable[[Tensor], Array | None]
) -> dict[str, Node]:
    """Return the nodes with SpaceToBatchND, convolution and BatchToSpaceND as one convolution.

    Args:
        nodes: the graph's, by name.
        constant: returns the value of an input, None if it is computed.
    """
    found = dict(nodes)
    lasts = [node for node in nodes.values() if node.op == "BatchToSpaceND"]
    if not lasts:
        return found
    readers = Counter(one for node in nodes.values() for one, _ in node.inputs)
    for last in lasts:
        middle = nodes.get(last.inputs[0][0]) if len(last.inputs) > 2 else None
        first = nodes.get(middle.inputs[0][0]) if middle is not None and middle.inputs else None
        if middle is None or first is None or first.op != "SpaceToBatchND":
            continue
        alone = readers[middle.name] == 1 and readers[first.name] == 1
        if middle.op not in _CONVOLUTIONS or len(first.inputs) < 3 or not alone:
            continue
        values = [constant(one) for one in (*first.inputs[1:3], *last.inputs[1:3])]
        made = _dilated(first, middle, last, values)
        if made is not None:
            found[last.name] = made
            del found[middle.name], found[first.name]
    return found


def _dilated(first: Node, middle: Node, last: Node, values: list[Array | None]) -> Node | None:
    """Return the convolution, or None where it is another case."""
    attrs = middle.attrs
    steps = [list(attrs[key].list.i) for key in ("strides", "dilations") if key in attrs]
    plain = attrs["padding"].s == b"VALID" if "padding" in attrs else False
    outer = attrs["data_format"].s in (b"NHWC", b"") if "data_format" in attrs else True
    block, pads, other, crops = values
    if block is None or pads is None or other is None or crops is None or not (plain and outer):
        return None
    fits = block.shape == (2,) and pads.shape == crops.shape == (2, 2)
    if not fits or block.tolist() != other.tolist() or any(set(one) != {1} for one in steps):
        return None
    left = np.subtract(pads, crops)
    if left.min() < 0 or block.min() < 1:
        return None
    lists = {"strides": [1] * 4, "dilations": [1, *block.tolist(), 1]}
    lists["explicit_paddings"] = [0, 0, *left.reshape(-1).tolist(), 0, 0]
    made = {}
    for key, numbers in lists.items():
        made[key] = message_class("AttrValue")()
        made[key].list.i.extend(numbers)
    made["padding"] = message_class("AttrValue")(s=b"EXPLICIT")
    inputs = [first.inputs[0], *middle.inputs[1:]]
    return Node(last.name, middle.op, made, inputs, [*first.controls, *last.controls])
