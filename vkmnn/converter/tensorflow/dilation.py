"""Dilated convolutions, which TensorFlow writes as three nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from vkmnn.converter.tensorflow.schema import Message
from vkmnn.ir import Array

_CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")


def joined(
    nodes: Mapping[str, Message], constant: Callable[[str], Array | None]
) -> dict[str, Message]:
    """Return the nodes with SpaceToBatchND, convolution and BatchToSpaceND as one convolution.

    Args:
        nodes: the graph's, by name.
        constant: returns the value of an input, None if it is computed.
    """
    readers = Counter(one.partition(":")[0] for node in nodes.values() for one in node.input)
    found = dict(nodes)
    for name, last in nodes.items():
        if last.op != "BatchToSpaceND" or len(last.input) < 3:
            continue
        middle = nodes.get(last.input[0])
        first = nodes.get(middle.input[0]) if middle is not None and middle.input else None
        if middle is None or first is None or first.op != "SpaceToBatchND":
            continue
        alone = readers[middle.name] == 1 and readers[first.name] == 1
        if middle.op not in _CONVOLUTIONS or len(first.input) < 3 or not alone:
            continue
        values = [constant(one) for one in (*first.input[1:3], *last.input[1:3])]
        made = _dilated(first, middle, name, values)
        if made is not None:
            found[name] = made
            del found[middle.name], found[first.name]
    return found


def _dilated(
    first: Message, middle: Message, name: str, values: list[Array | None]
) -> Message | None:
    """Return the convolution, or None where it is another case."""
    attrs = {one.key: one.value for one in middle.attr}
    steps = [list(attrs[key].list.i) for key in ("strides", "dilations") if key in attrs]
    plain = attrs["padding"].s == b"VALID" if "padding" in attrs else False
    last = attrs["data_format"].s in (b"NHWC", b"") if "data_format" in attrs else True
    block, pads, other, crops = values
    if block is None or pads is None or other is None or crops is None or not (plain and last):
        return None
    fits = block.shape == (2,) and pads.shape == crops.shape == (2, 2)
    if not fits or block.tolist() != other.tolist() or any(set(one) != {1} for one in steps):
        return None
    left = np.subtract(pads, crops)
    if left.min() < 0 or block.min() < 1:
        return None
    made = type(middle)(name=name, op=middle.op, input=[first.input[0], *middle.input[1:]])
    lists = {"strides": [1] * 4, "dilations": [1, *block.tolist(), 1]}
    lists["explicit_paddings"] = [0, 0, *left.reshape(-1).tolist(), 0, 0]
    for key, numbers in lists.items():
        made.attr.add(key=key).value.list.i.extend(numbers)
    made.attr.add(key="padding").value.s = b"EXPLICIT"
    return made
