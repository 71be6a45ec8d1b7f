"""onnx's reference evaluator with bounds on time and memory, looked at before each node runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.budget import size_text

if TYPE_CHECKING:
    import onnx

DEADLINE: ContextVar[float] = ContextVar("deadline", default=inf)
"""Deadline of nodes, in `time.monotonic` seconds; past it, TimeoutError."""

ROOM: ContextVar[float] = ContextVar("room", default=inf)
"""Maximum bytes of values."""

HELD: ContextVar[int] = ContextVar("held", default=0)
"""Bytes of current values, rounded up."""

_SIZED = frozenset({
    *("ConstantOfShape", "Expand", "Tile", "Range", "OneHot", "Pad", "Resize", "Upsample"),
    *("RandomNormal", "RandomUniform", "HannWindow", "HammingWindow", "BlackmanWindow"),
    *("MelWeightMatrix", "CenterCropPad", "Col2Im", "MaxUnpool", "ConvTranspose", "AffineGrid"),
    *("RoiAlign", "MaxRoiPool", "DFT", "STFT", "Conv", "AveragePool", "MaxPool", "LpPool"),
})  # fmt: skip
"""Operators whose result sizes depend on values or attributes."""

_SMALL = 1 << 24
"""Bytes that an operator may allocate unseen: an outer product of all its inputs."""

_KNOWN_ELEMENTS = 64


class TooLargeError(Exception):
    """A node would produce more than memory allows."""


@contextmanager
def bounds(seconds: float, room: float) -> Iterator[None]:
    """Within the block, nodes of evaluators end after `seconds`, or beyond `room` bytes."""
    before = DEADLINE.get(), ROOM.get(), HELD.get()
    DEADLINE.set(time.monotonic() + seconds)
    ROOM.set(room)
    HELD.set(0)
    try:
        yield
    finally:
        DEADLINE.set(before[0])
        ROOM.set(before[1])
        HELD.set(before[2])


@cache
def evaluator_class() -> type:
    """Return the evaluator; onnx is imported only here."""
    from onnx.reference import ReferenceEvaluator

    class BoundedEvaluator(ReferenceEvaluator):
        """Watches its nodes, and those of the bodies that they run.

        Attributes:
            states: how many results of a run replace those of the run before.
        """

        states = 0

        def _init(self) -> None:
            super()._init()
            for node, op in zip(self.nodes_, self.rt_nodes_, strict=True):
                op.run = partial(_watched, op.run, node, self.opsets)
                if node.op_type == "Scan":
                    op.body.states = len(node.input) - op.num_scan_inputs

        def run(self, *args: Any, **kwargs: Any) -> Any:
            before = HELD.get()
            results: Any = super().run(*args, **kwargs)
            HELD.set(before + nbytes(results[self.states :]))
            return results

    return BoundedEvaluator


def nbytes(value: Any) -> int:
    """Return the approximate size of a value in memory."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return sum(8 + len(str(item)) for item in value.reshape(-1))
        return value.nbytes
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return sum(8 + nbytes(item) for item in value)
    return 8


def _watched(
    run: Any, node: onnx.NodeProto, opsets: Mapping[str, int], *inputs: Any, **kwargs: Any
) -> Any:
    if time.monotonic() > DEADLINE.get():
        raise TimeoutError(node.op_type)
    before = HELD.get()
    left = ROOM.get() - before
    expected = expected_bytes(node, opsets, inputs) if left < inf else 0
    if expected > left:
        raise _too_large(node, expected, left)
    results = run(*inputs, **kwargs)
    made = [
        value
        for value in results
        if not any(value is given for given in inputs) and getattr(value, "base", None) is None
    ]
    HELD.set(before + nbytes(made))
    if HELD.get() > ROOM.get():
        raise _too_large(node, HELD.get() - before, left)
    return results


def _too_large(node: onnx.NodeProto, wanted: int, left: float) -> TooLargeError:
    return TooLargeError(
        f"{node.op_type} would produce {size_text(wanted)}, but only "
        f"{size_text(max(int(left), 0))} remain"
    )


def expected_bytes(node: onnx.NodeProto, opsets: Mapping[str, int], inputs: Sequence[Any]) -> int:
    """Return the bytes of a node's results by onnx's rules; 0 if they are small.

    Args:
        node: a node without inner graphs.
        opsets: domains and their versions.
        inputs: its inputs; only arrays are considered.
    """
    arrays = [value for value in inputs if isinstance(value, np.ndarray)]
    outer = prod(max(array.size, 1) for array in arrays) * 8
    if node.op_type not in _SIZED and outer <= _SMALL:
        return 0
    found: Mapping[str, onnx.TypeProto] = {}
    with suppress(Exception):  # the C++ side throws untyped errors; the node then raises its own
        found = _inferred(node, opsets, inputs)
    return sum(_type_bytes(proto) for proto in found.values())


def _inferred(
    node: onnx.NodeProto, opsets: Mapping[str, int], inputs: Sequence[Any]
) -> Mapping[str, onnx.TypeProto]:
    from onnx import defs, helper, numpy_helper, shape_inference

    schema = defs.get_schema(node.op_type, opsets[node.domain], node.domain)
    types: dict[str, onnx.TypeProto] = {}
    values: dict[str, onnx.TensorProto] = {}
    for name, value in zip(node.input, inputs, strict=True):
        if isinstance(value, np.ndarray):
            code = helper.np_dtype_to_tensor_dtype(value.dtype)
            types[name] = helper.make_tensor_type_proto(code, value.shape)
            if value.size <= _KNOWN_ELEMENTS and value.ndim <= 1:
                values[name] = numpy_helper.from_array(value, name)
    imports = [helper.make_opsetid(*pair) for pair in opsets.items()]
    result: Mapping[str, onnx.TypeProto] = shape_inference.infer_node_outputs(
        schema, node, types, values, opset_imports=imports
    )
    return result


def _type_bytes(proto: onnx.TypeProto) -> int:
    from onnx import helper

    tensor = proto.tensor_type
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return 0
    size = int(helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize)
    elements: int = prod(dim.dim_value for dim in tensor.shape.dim)
    return elements * size
