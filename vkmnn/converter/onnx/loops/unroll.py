"""Unrolls Loop and Scan with a known number of iterations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.converter.onnx.branches import outer_names, own_names, rename_reads
from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.converter.onnx.known import Known
from vkmnn.converter.onnx.loops.counting import counted_trips
from vkmnn.converter.onnx.names import Names
from vkmnn.converter.onnx.registry import find_converter
from vkmnn.converter.onnx.schema import Schema
from vkmnn.converter.onnx.sequences import SEQUENCE_OPS
from vkmnn.ir import Array, DType

if TYPE_CHECKING:
    import onnx

MAX_NODES = 1024
"""Maximum nodes of an unrolled Loop or Scan; planning takes about 0.1 ms for each."""

GLUE_OPSETS = {"": 18}
"""Opset of the nodes between iterations."""

_NESTED = ("Loop", "Scan")
_FLOATS = frozenset({1, 10, 16})  # TensorProto.DataType; devices have no float64


@dataclass(slots=True)
class Unrolled:
    """The nodes that replace a Loop or Scan, in order.

    Attributes:
        body: the inner graph, whose initializers have the new names given in `kept`.
        nodes: each with whether it comes from the body.
    """

    body: onnx.GraphProto
    kept: dict[str, str]
    nodes: list[tuple[onnx.NodeProto, bool]] = field(default_factory=list)


def is_loop(node: onnx.NodeProto) -> bool:
    """True for ONNX's Loop and Scan."""
    return node.op_type in _NESTED and not normal_domain(node.domain)


def unroll(
    node: onnx.NodeProto, name: str, known: Known, tensors: Names, ops: Names
) -> Unrolled | None:
    """Return the iterations of a Loop or Scan as nodes of the graph around it.

    None if their number is unknown, if there are none or too many, or if something in the body runs
    on the host anyway.

    Args:
        node: the Loop or Scan.
        name: its unique name, which prefixes all names within.
        known: the facts known from the outer graph.
        tensors: names of tensors that are in use.
        ops: names of nodes that are in use.
    """
    body = next((a.g for a in node.attribute if a.name == "body"), None)
    if body is None or not _has_floats(node, body, known):
        return None
    if not _is_for_devices(body, known.opsets, any(map(known.sequence, node.input))):
        return None
    writer = Writer(name, body, known, tensors, ops)
    if node.op_type == "Loop":
        done = _loop(node, body, known, writer)
    elif known.opsets.get("", 1) < 9:
        done = _batched_scan(node, body, known, writer)
    else:
        done = _scan(node, body, known, writer)
    return writer.made if done else None


def _is_for_devices(body: onnx.GraphProto, opsets: Mapping[str, int], known: bool) -> bool:
    """Return whether devices support all operators of a body, or it works on known sequences."""
    from onnx import defs

    for inner in body.node:
        domain = normal_domain(inner.domain)
        opset = opsets.get(domain, 1)
        nested = [a.g for a in inner.attribute if a.name == "body"]
        if is_loop(inner):
            if not all(_is_for_devices(graph, opsets, known) for graph in nested):
                return False
        elif inner.op_type in _SIZED_BY_DATA:
            return False
        elif known and inner.op_type in SEQUENCE_OPS and not domain:
            continue
        elif inner.op_type != "Constant" and find_converter(inner.op_type, domain, opset) is None:
            try:
                schema: Schema = defs.get_schema(inner.op_type, opset, domain)
            except defs.SchemaError:
                return False
            bodies = schema.function_opset_versions
            if not bodies and not schema.context_dependent_function_opset_versions:
                return False
    return True


def _has_floats(node: onnx.NodeProto, body: onnx.GraphProto, known: Known) -> bool:
    """Whether a loop computes floats; counters and token sequences are for the host."""
    types = {value.type.tensor_type.elem_type for value in (*body.input, *body.output)}
    names = {name for name in node.input if name}
    if any(map(known.sequence, names)):
        names |= outer_names(body)  # whose members may come from there
    infos = (known.info(name) for name in names)
    narrow = (info.dtype for info in infos if info and info.dtype is not DType.FLOAT64)
    return bool(types & _FLOATS) or any(dtype.is_float for dtype in narrow)


_SIZED_BY_DATA = frozenset(
    {"Compress", "If", "NonMaxSuppression", "NonZero", "SequenceMap", "Unique"}
)
"""Each would end a stage in every iteration; the host runs the whole loop at once."""


class Writer:
    """Writes the iterations, one after the other."""

    def __init__(
        self, name: str, body: onnx.GraphProto, known: Known, tensors: Names, ops: Names
    ) -> None:
        self._name = name
        self._body = body
        self._known = known
        self._tensors = tensors
        self._ops = ops
        kept = [t.name for t in body.initializer] + [t.values.name for t in body.sparse_initializer]
        formal = {value.name for value in body.input}
        self.made = Unrolled(
            body, {one: tensors.new(f"{name}/{one}") for one in kept if one not in formal}
        )
        self._inner = sorted(own_names(body) - formal - set(kept) - {""})
        self._count = 0

    def iterate(self, given: Sequence[str]) -> list[str]:
        """Write one iteration on these inputs; return the names of its outputs."""
        import onnx

        prefix = f"{self._name}/{self._count}"
        self._count += 1
        own = {one: self._tensors.new(f"{prefix}/{one}") for one in self._inner}
        own |= self.made.kept
        own.update(zip((value.name for value in self._body.input), given, strict=True))

        def rename(inner: str) -> str:
            return own.get(inner, inner)

        for number, inner in enumerate(self._body.node):
            proto = onnx.NodeProto()
            proto.CopyFrom(inner)
            proto.input[:] = [rename(one) for one in inner.input]
            proto.output[:] = [rename(one) for one in inner.output]
            rename_reads(proto, rename)
            proto.name = self._ops.new(f"{prefix}/{inner.name or f'{inner.op_type}_{number}'}")
            self.made.nodes.append((proto, True))
        return [rename(value.name) for value in self._body.output]

    def scalar(self, place: int, value: object) -> str:
        """Return a constant in the rank that the body declares for an input of one element."""
        array = np.array(value)
        dims = self._body.input[place].type.tensor_type.shape.dim
        return self._known.constant(array.reshape(1) if len(dims) == 1 else array)

    def glue(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Write a node around the iterations; return its output."""
        output = output or self.tensor(op)
        self.node(op, inputs, [output], **attributes)
        return output

    def tensor(self, name: str) -> str:
        """Return a new name for a tensor."""
        return self._tensors.new(f"{self._name}/{name}")

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Write a node around the iterations."""
        from onnx import helper

        name = self._ops.new(f"{self._name}/{op}")
        proto = helper.make_node(op, list(inputs), list(outputs), name=name, **attributes)
        self.made.nodes.append((proto, False))

    def take(self, source: str, index: int, axis: int) -> str:
        """Write a slice of a tensor, without the axis."""
        at = self._known.constant(np.array(index, np.int64))
        return self.glue("Gather", [source, at], axis=axis)

    def stack(self, parts: Sequence[str], axis: int, output: str = "") -> str:
        """Write a stack of tensors along a new axis."""
        axes = self._known.constant(np.array([axis], np.int64))
        rows = [self.glue("Unsqueeze", [part, axes]) for part in parts]
        return self.glue("Concat", rows, output, axis=axis)

    def hand_out(self, names: Sequence[str], outputs: Sequence[str]) -> None:
        """Write the tensors under the names of the node's outputs."""
        for name, output in zip(names, outputs, strict=True):
            if output:
                self.glue("Identity", [name], output)


# --- Loop ----------------------------------------------------------------------------------------


def _loop(node: onnx.NodeProto, body: onnx.GraphProto, known: Known, writer: Writer) -> bool:
    """Write a Loop; False if that is impossible."""
    given = [*node.input, "", ""][: max(2, len(node.input))]
    carried = list(given[2:])
    scanned = len(body.output) - 1 - len(carried)
    fits = len(body.input) == len(given) and len(node.output) <= len(carried) + scanned
    count = _trips(body, given, known) if fits and scanned >= 0 else 0
    if not 0 < count * max(1, len(body.node)) <= MAX_NODES or not all(carried):
        return False
    seen: list[list[str]] = [[] for _ in range(scanned)]
    going = writer.scalar(1, True)
    for turn in range(count):
        made = writer.iterate([writer.scalar(0, np.int64(turn)), going, *carried])
        carried = made[1 : 1 + len(carried)]
        for rows, one in zip(seen, made[1 + len(carried) :], strict=True):
            rows.append(one)
    outputs = [*node.output, *[""] * (len(carried) + scanned - len(node.output))]
    writer.hand_out(carried, outputs[: len(carried)])
    for rows, output in zip(seen, outputs[len(carried) :], strict=True):
        if output:
            writer.stack(rows, 0, output)
    return True


def _trips(body: onnx.GraphProto, given: Sequence[str], known: Known) -> int:
    """Return the iterations of a Loop, 0 if unknown."""
    limit, first = given[:2]
    most = known.value(limit) if limit else None
    start = known.value(first) if first else np.array(True)
    if start is None or start.size != 1 or not start.reshape(-1)[0]:
        return 0
    still = constant_condition(body, known.value)
    if still is None:
        return counted_trips(body, given, known, start, MAX_NODES // max(1, len(body.node)))
    if (most is None and (limit or still)) or (most is not None and most.size != 1):
        return 0
    trips = 1 if most is None else int(most.reshape(-1)[0])
    return trips if still else min(trips, 1)


def constant_condition(body: onnx.GraphProto, known: Callable[[str], Array | None]) -> bool | None:
    """Return the condition that all iterations of a Loop end with; None if they differ."""
    from onnx import numpy_helper

    if not body.output or len(body.input) < 2:
        return None
    makers = {name: inner for inner in body.node for name in inner.output}
    name = body.output[0].name
    while name in makers and makers[name].op_type in ("Identity", "Cast"):
        (name,) = makers[name].input[:1] or [""]
    if name == body.input[1].name:
        return True  # the condition passed in, which was true
    tensors = {tensor.name: tensor for tensor in body.initializer}
    value = None
    if name in makers:
        constant = makers[name].op_type == "Constant"
        held = [a.t for a in makers[name].attribute if constant and a.name == "value"]
        value = numpy_helper.to_array(held[0]) if held else None
    elif name in tensors:
        value = numpy_helper.to_array(tensors[name])
    elif name not in {one.name for one in body.input}:
        value = known(name)
    return bool(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


# --- Scan ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ways:
    """Axes and directions of a Scan's inputs and outputs; one entry each."""

    states: int
    in_axes: tuple[int, ...]
    in_back: tuple[bool, ...]
    out_axes: tuple[int, ...]
    out_back: tuple[bool, ...]


def ways_of(node: onnx.NodeProto, body: onnx.GraphProto, given: int) -> Ways | None:
    """Return the directions of a Scan, or None if its attributes are inconsistent."""
    lists = {a.name: tuple(a.ints) for a in node.attribute}
    count = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    states = given - count
    scanned = len(body.output) - states
    if not 0 < count <= given or len(body.input) != given or scanned < 0:
        return None
    if len(node.output) > len(body.output):
        return None

    def each(name: str, size: int) -> tuple[int, ...]:
        return lists.get(name) or (0,) * size

    in_axes, out_axes = each("scan_input_axes", count), each("scan_output_axes", scanned)
    backs = each("scan_input_directions", count), each("scan_output_directions", scanned)
    if lists.get("directions"):
        backs = lists["directions"], backs[1]
    if [len(one) for one in (in_axes, out_axes, *backs)] != [count, scanned, count, scanned]:
        return None
    if not {0, 1}.issuperset((*backs[0], *backs[1])):
        return None
    ins, outs = (tuple(bool(one) for one in back) for back in backs)
    return Ways(states, in_axes, ins, out_axes, outs)


def _length(names: Sequence[str], axes: Sequence[int], known: Known) -> int:
    """Return the length of all of these along their axes, 0 if unknown."""
    sizes = set()
    for name, axis in zip(names, axes, strict=True):
        info = known.info(name)
        shape = info.shape if info is not None else None
        if shape is None or not -len(shape) <= axis < len(shape):
            return 0
        sizes.add(shape[axis])
    size = sizes.pop() if len(sizes) == 1 else 0
    return size if isinstance(size, int) else 0


def _scan(node: onnx.NodeProto, body: onnx.GraphProto, known: Known, writer: Writer) -> bool:
    """Write a Scan of opset 9 or later; False if that is impossible."""
    given = list(node.input)
    ways = ways_of(node, body, len(given))
    if ways is None or not all(given):
        return False
    count = _length(given[ways.states :], ways.in_axes, known)
    if not 0 < count * max(1, len(body.node)) <= MAX_NODES:
        return False
    states, rows = _sequence(given[: ways.states], given[ways.states :], ways, count, writer)
    outputs = [*node.output, *[""] * (len(body.output) - len(node.output))]
    writer.hand_out(states, outputs[: ways.states])
    for parts, axis, output in zip(rows, ways.out_axes, outputs[ways.states :], strict=True):
        if output:
            writer.stack(parts, axis, output)
    return True


def _sequence(
    states: Sequence[str], scanned: Sequence[str], ways: Ways, count: int, writer: Writer
) -> tuple[list[str], list[list[str]]]:
    """Write the iterations over sequences; return the states, and the outputs to stack."""
    states = list(states)
    rows: list[list[str]] = [[] for _ in ways.out_axes]
    for turn in range(count):
        slices = [
            writer.take(name, count - 1 - turn if back else turn, axis)
            for name, axis, back in zip(scanned, ways.in_axes, ways.in_back, strict=True)
        ]
        made = writer.iterate([*states, *slices])
        states = made[: len(states)]
        for parts, one in zip(rows, made[len(states) :], strict=True):
            parts.append(one)
    for parts, back in zip(rows, ways.out_back, strict=True):
        if back:
            parts.reverse()
    return states, rows


def _batched_scan(
    node: onnx.NodeProto, body: onnx.GraphProto, known: Known, writer: Writer
) -> bool:
    """Write a Scan of opset 8 with batched sequences; False if that is impossible."""
    given = list(node.input[1:])
    ways = ways_of(node, body, len(given))
    if ways is None or not all(given) or node.input[0]:  # lengths: for the host
        return False
    scanned = given[ways.states :]
    batch = _length(given, [0] * len(given), known)
    count = _length(scanned, [1] * len(scanned), known)
    if not 0 < batch * count * max(1, len(body.node)) <= MAX_NODES:
        return False
    results: list[list[str]] = [[] for _ in body.output]
    for place in range(batch):
        picked = [writer.take(name, place, 0) for name in given]
        states, rows = _sequence(picked[: ways.states], picked[ways.states :], ways, count, writer)
        made = [*states, *(writer.stack(parts, 0) for parts in rows)]
        for parts, one in zip(results, made, strict=True):
            parts.append(one)
    for parts, output in zip(results, node.output, strict=False):
        if output:
            writer.stack(parts, 0, output)
    return True
