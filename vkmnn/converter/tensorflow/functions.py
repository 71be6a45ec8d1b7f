"""Graphs and functions of TensorFlow as nodes with resolved inputs, in an order to run them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vkmnn.converter.tensorflow.schema import Message
from vkmnn.errors import ModelError

Tensor = tuple[str, int]
"""A node, and the number of its output."""

MOST_OUTPUTS = 10_000

_COUNTED = {"Split": "num_split", "SplitV": "num_split", "Unpack": "num"}
"""Attributes with the number of a node's outputs."""

_NMS = "selected_indices", "selected_scores", "valid_outputs"
_LSTM = "i", "cs", "f", "o", "ci", "co", "h"
_OUTPUTS = {
    "TopKV2": ("values", "indices"),
    "TopK": ("values", "indices"),
    "Unique": ("y", "idx"),
    "UniqueV2": ("y", "idx"),
    "UniqueWithCounts": ("y", "idx", "count"),
    "UniqueWithCountsV2": ("y", "idx", "count"),
    "ListDiff": ("out", "idx"),
    "NonMaxSuppressionV4": ("selected_indices", "valid_outputs"),
    "NonMaxSuppressionV5": _NMS,
    "CombinedNonMaxSuppression": (
        *("nmsed_boxes", "nmsed_scores", "nmsed_classes", "valid_detections"),
    ),
    "MaxPoolWithArgmax": ("output", "argmax"),
    "SoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "SparseSoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "Switch": ("output_false", "output_true"),
    "Merge": ("output", "value_index"),
    "TensorArrayV3": ("handle", "flow"),
    "TensorListPopBack": ("output_handle", "tensor"),
    "TensorListConcatV2": ("tensor", "lengths"),
    "TensorArrayConcatV3": ("value", "lengths"),
    "BroadcastGradientArgs": ("r0", "r1"),
    "LSTMBlockCell": _LSTM,
    "BlockLSTM": _LSTM,
    "BlockLSTMV2": _LSTM,
    "GRUBlockCell": ("r", "u", "c", "h"),
    "Svd": ("s", "u", "v"),
    "Qr": ("q", "r"),
    "SelfAdjointEigV2": ("e", "v"),
    "QuantizeV2": ("output", "output_min", "output_max"),
    "StatelessRandomGetKeyCounter": ("key", "counter"),
    "StatelessRandomGetKeyCounterAlg": ("key", "counter", "alg"),
    "RngReadAndSkip": ("value",),
    "CudnnRNNV3": ("output", "output_h", "output_c", "reserve_space", "host_reserved"),
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2"),
        ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2"),
    ),
    "FusedBatchNormV3": (
        *("y", "batch_mean", "batch_variance"),
        *("reserve_space_1", "reserve_space_2", "reserve_space_3"),
    ),
}
"""Names of the outputs of operators with several; functions call outputs by these."""


@dataclass
class Node:
    """A node.

    Attributes:
        name: unique in its function.
        op: its operator.
        attrs: its attributes.
        inputs: what it reads.
        controls: nodes that have to run before it.
    """

    name: str
    op: str
    attrs: Mapping[str, Message]
    inputs: list[Tensor] = field(default_factory=list)
    controls: list[str] = field(default_factory=list)


@dataclass
class Function:
    """A graph, or a function of it.

    Attributes:
        name: what it is called.
        nodes: its nodes, which functions made of parts of a graph share.
        arguments: tensors that a caller gives it; what makes them in `nodes` is not run.
        results: what it returns.
        ends: nodes that have to run, for their effects.
    """

    name: str
    nodes: dict[str, Node]
    arguments: list[Tensor] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def order(self, has_effect: Callable[[Node], bool]) -> list[Node]:
        """Return the nodes that the results and effects need, each after what it reads.

        Args:
            has_effect: whether a node has to run although nothing reads it.

        Raises:
            ModelError: nodes form a circle.
        """
        effects = {name for name, node in self.nodes.items() if has_effect(node)}
        needed, passed = self._needed(effects)
        found = self._sorted(needed | passed, bool(effects))
        return [node for node in found if node.name in needed]

    def _needed(self, effects: Collection[str]) -> tuple[set[str], set[str]]:
        """Return the nodes whose results count, and those passed on the way to effects."""
        given = set(self.arguments)
        needed: set[str] = set()
        passed: set[str] = set()
        work = [(one[0], True) for one in self.results if one not in given]
        work += [(name, False) for name in self.ends]
        while work:
            name, counts = work.pop()
            if name not in self.nodes:
                continue
            node, counts = self.nodes[name], counts or name in effects
            if name in needed or (not counts and name in passed):
                continue
            (needed if counts else passed).add(name)
            if node.op in _BOUNDS and not counts:
                continue
            work += [(one[0], counts) for one in node.inputs if one not in given]
            if effects:
                work += [(one, False) for one in node.controls]
        return needed, passed - needed

    def _sorted(self, kept: Collection[str], controlled: bool) -> list[Node]:
        given = set(self.arguments)
        found: list[Node] = []
        state: dict[str, bool] = {}  # whether it is finished
        starts = [*(one[0] for one in self.results if one not in given), *self.ends]
        work = [(name, False) for name in reversed(starts) if name in kept]
        while work:
            name, done = work.pop()
            node = self.nodes[name]
            if done:
                state[name] = True
                found.append(node)
                continue
            if name in state:
                if not state[name]:
                    raise ModelError("it reads what follows from itself", op=node.op, node=name)
                continue
            state[name] = False
            work.append((name, True))
            before = [one[0] for one in node.inputs if one not in given]
            before += node.controls if controlled else []
            work += [(one, False) for one in before if one in kept and not state.get(one, False)]
        return found


_BOUNDS = frozenset({"Switch", "Merge", "Placeholder", "PlaceholderV2", "LoopVariable"})
"""Operators behind which no effect of the same function is looked for."""


def tensor_of(name: str) -> Tensor:
    """Return the node and the number of the output that an input of a graph names."""
    node, mark, number = name.rpartition(":")
    return (node, int(number)) if mark and number.isdecimal() and len(number) < 9 else (name, 0)


def read_nodes(protos: Iterable[Message]) -> dict[str, Node]:
    """Return the nodes of a graph by name.

    Raises:
        ModelError: two of them have one name, or one reads what is not there.
    """
    nodes = _by_name(protos, tensor_of)
    for node in nodes.values():
        for one, _ in node.inputs:
            if one not in nodes:
                raise ModelError(
                    f"it reads '{one}', which does not exist", op=node.op, node=node.name
                )
    return nodes


def _by_name(protos: Iterable[Message], tensor: Callable[[str], Tensor]) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for proto in protos:
        if proto.name in nodes:
            raise ModelError("two nodes have this name", op=proto.op, node=proto.name)
        nodes[proto.name] = Node(
            proto.name,
            proto.op,
            {one.key: one.value for one in proto.attr},
            [tensor(one) for one in proto.input if not one.startswith("^")],
            [one[1:] for one in proto.input if one.startswith("^")],
        )
    return nodes


def read_function(proto: Message) -> Function:
    """Return a function of a library.

    Raises:
        ModelError: it contradicts itself.
    """
    name = proto.signature.name
    arguments = [one.name for one in proto.signature.input_arg]
    kinds = {one.name: one.op for one in proto.node_def}

    def tensor(text: str) -> Tensor:
        node, *rest = text.split(":")
        if node in arguments and len(rest) < 2:
            return node, 0
        if node not in kinds or len(rest) != 2 or not rest[1].isdecimal() or len(rest[1]) > 8:
            raise ModelError(f"it reads '{text}', which does not exist", node=name)
        names = _OUTPUTS.get(kinds[node])
        place = names.index(rest[0]) if names and rest[0] in names else 0
        return node, place + int(rest[1])

    nodes = _by_name(proto.node_def, tensor)
    if len(set(arguments)) < len(arguments) or nodes.keys() & set(arguments):
        raise ModelError("two arguments or nodes have one name", node=name)
    returned = {one.key: one.value for one in proto.ret}
    results = []
    for one in proto.signature.output_arg:
        if one.name not in returned:
            raise ModelError(f"nothing makes its result '{one.name}'", node=name)
        results.append(tensor(returned[one.name]))
    ends = [one.value for one in proto.control_ret]
    return Function(name, nodes, [(one, 0) for one in arguments], results, ends)


def output_counts(nodes: Mapping[str, Node], results: Sequence[Tensor]) -> dict[str, int]:
    """Return how many outputs each node has: what its operator says, or the most that is read."""
    counts = {name: _count(node) for name, node in nodes.items()}
    read = [one for node in nodes.values() for one in node.inputs]
    for name, number in (*read, *results):
        if name in counts:
            counts[name] = max(counts[name], number + 1)
    return counts


def _count(node: Node) -> int:
    if node.op in _COUNTED and _COUNTED[node.op] in node.attrs:
        return max(int(node.attrs[_COUNTED[node.op]].i), 1)
    if node.op in ("TopKV2", "TopK", "Unique"):
        return 2
    return 1
