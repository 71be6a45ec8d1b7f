"""Sequences with known members: their operators become names of tensors.

Exporters write sequences even for known contents: torch's `tensor_split` is a Loop of one iteration
that inserts into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.ir import Array, TensorInfo

if TYPE_CHECKING:
    import onnx

SEQUENCE_OPS = frozenset(
    {
        *("SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceAt"),
        *("SequenceLength", "ConcatFromSequence", "SplitToSequence"),
    }
)

MAX_PARTS = 1024
"""Maximum parts of a split tensor; the host handles longer lists."""

_FLOAT = 1  # TensorProto.DataType: what SequenceEmpty holds by default


@dataclass(frozen=True, slots=True)
class _Members:
    """Tensors in order; `dtype` as in SequenceEmpty."""

    names: tuple[str, ...]
    dtype: int = _FLOAT


@dataclass(slots=True)
class KnownSequences:
    """The known members of a graph's sequences.

    Attributes:
        value: returns a tensor's content where it follows from constants and sizes.
        info: returns the known shape and type of a tensor.
        constant: adds a constant and returns its name.
        new_name: returns a unique name for a tensor.
    """

    value: Callable[[str], Array | None]
    info: Callable[[str], TensorInfo | None]
    constant: Callable[[Array], str]
    new_name: Callable[[str], str]
    _known: dict[str, _Members] = field(default_factory=dict)

    def holds(self, name: str) -> bool:
        """Return whether a name is a sequence of known members."""
        return name in self._known

    def resolve(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return the replacement of a node, perhaps empty; None for nodes that stay.

        Nodes are in opset 18.
        """
        if normal_domain(node.domain) or not all(node.output):
            return None
        try:
            return self._resolved(node)
        except (LookupError, ValueError):  # nonsense, which is reported where nodes are checked
            return None

    def _resolved(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if node.op_type == "Identity" and node.input and node.input[0] in self._known:
            self._known[node.output[0]] = self._known[node.input[0]]
            return []
        if node.op_type not in SEQUENCE_OPS:
            return None
        if node.op_type in ("SequenceEmpty", "SequenceConstruct"):
            dtype = next((a.i for a in node.attribute if a.name == "dtype"), _FLOAT)
            self._known[node.output[0]] = _Members(tuple(node.input), dtype)
            return []
        if node.op_type == "SplitToSequence":
            return self._split(node)
        members = self._known.get(node.input[0])
        return None if members is None else self._taken(node, members)

    def construct(self, names: set[str]) -> Iterator[onnx.NodeProto]:
        """Yield nodes that construct the known sequences of these names."""
        from onnx import helper

        for name in sorted(names & self._known.keys()):
            members = self._known.pop(name)
            if members.names:
                yield helper.make_node("SequenceConstruct", members.names, [name], name=name)
            else:
                yield helper.make_node("SequenceEmpty", [], [name], name=name, dtype=members.dtype)

    def _taken(self, node: onnx.NodeProto, members: _Members) -> list[onnx.NodeProto] | None:
        """Resolve a node that reads a known sequence."""
        from onnx import helper

        names, output = members.names, node.output[0]
        if node.op_type == "SequenceLength":
            length = self.constant(np.array(len(names), np.int64))
            return [helper.make_node("Identity", [length], [output], name=node.name)]
        if node.op_type == "ConcatFromSequence":
            return self._joined(node, names)
        last = len(names) if node.op_type == "SequenceInsert" else len(names) - 1
        places = {"SequenceInsert": 2, "SequenceErase": 1, "SequenceAt": 1}
        place = self._place(node, places[node.op_type], last, len(names))
        if place is None or not 0 <= place <= last:
            return None
        if node.op_type == "SequenceAt":
            return [helper.make_node("Identity", [names[place]], [output], name=node.name)]
        rest = names[place + (node.op_type == "SequenceErase") :]
        added = (node.input[1],) if node.op_type == "SequenceInsert" else ()
        self._known[output] = _Members((*names[:place], *added, *rest), members.dtype)
        return []

    def _place(self, node: onnx.NodeProto, number: int, default: int, count: int) -> int | None:
        """Return a position that a node names, counted from the beginning; None if unknown."""
        if len(node.input) <= number or not node.input[number]:
            return default
        value = self.value(node.input[number])
        if value is None or value.size != 1:
            return None
        place = int(value.reshape(-1)[0])
        return place + count if place < 0 else place

    def _joined(self, node: onnx.NodeProto, names: tuple[str, ...]) -> list[onnx.NodeProto] | None:
        from onnx import helper

        given = {a.name: a.i for a in node.attribute}
        if not names or "axis" not in given:
            return None
        nodes, parts = [], list(names)
        if given.get("new_axis", 0):
            axes = self.constant(np.array([given["axis"]], np.int64))
            parts = [self.new_name(f"{node.output[0]}/row") for _ in names]
            for name, part in zip(names, parts, strict=True):
                nodes.append(helper.make_node("Unsqueeze", [name, axes], [part], name=part))
        join = helper.make_node("Concat", parts, node.output, name=node.name, axis=given["axis"])
        return [*nodes, join]

    def _split(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        from onnx import helper

        given: dict[str, Any] = {a.name: a.i for a in node.attribute}
        axis, info = given.get("axis", 0), self.info(node.input[0])
        shape = None if info is None else info.shape
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        size = shape[axis]
        if not isinstance(size, int) or not size:
            return None
        single = len(node.input) < 2 or not node.input[1]
        value = np.array(1) if single else self.value(node.input[1])
        if value is None or not value.size:
            return None
        sizes = [int(one) for one in value.reshape(-1)]
        if min(sizes) < 1:
            return None
        if value.ndim == 0:
            sizes = [min(sizes[0], size - first) for first in range(0, size, sizes[0])]
        if sum(sizes) != size or len(sizes) > MAX_PARTS:
            return None
        parts = [self.new_name(f"{node.output[0]}/part") for _ in sizes]
        counts = self.constant(np.array(sizes, np.int64))
        nodes = [
            helper.make_node("Split", [node.input[0], counts], parts, name=node.name, axis=axis)
        ]
        if single and not given.get("keepdims", 1):
            axes = self.constant(np.array([axis], np.int64))
            kept, parts = parts, [self.new_name(f"{node.output[0]}/row") for _ in sizes]
            for name, part in zip(kept, parts, strict=True):
                nodes.append(helper.make_node("Squeeze", [name, axes], [part], name=part))
        self._known[node.output[0]] = _Members(tuple(parts))
        return nodes
