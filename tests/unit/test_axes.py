"""What each operator can do along an axis, which follows from its declared axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from tests.unit.shape.axis_cases import uses
from tests.unit.shape.test_axes import UNKNOWN
from vkmnn.base.budget import Budget, Meter
from vkmnn.base.registry import Snapshot
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.renumbered import renumbered
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.cpu_fallback import run_op
from vkmnn.decoding.batched_step import batched_step
from vkmnn.decoding.padded_graph import CacheSpec, CannotRewriteError, pad_caches
from vkmnn.errors import PluginError, ShapeError
from vkmnn.ir import OP_TYPES, Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.custom import CustomAttrs
from vkmnn.ir.ops import AxisAttrs
from vkmnn.plugin import (
    OpAttrs,
    axes,
    axes_of,
    check_registrations,
    cpu_execution,
    custom_execution,
    custom_op,
    elementwise_same_shape,
    like_first_input,
    op_type,
    required,
    size_computer,
)
from vkmnn.testing.axes import Use, check_axes
from vkmnn.vulkan.splitting.cuts import find_cuts


def info_of(name: str, array: Array) -> TensorInfo:
    return TensorInfo(name, DType.from_numpy(array.dtype), array.shape)


def is_cut(use: Use) -> bool:
    """Return whether a device may compute it in parts."""
    content = OP_TYPES[use.op.type].content
    inputs = [
        None
        if array is None
        else Tensor(info_of(name, array), Usage.CONSTANT, value=array)
        if place in content
        else Tensor(info_of(name, array))
        for place, (name, array) in enumerate(zip(use.op.inputs, use.arrays, strict=True))
    ]
    outputs = [Tensor(info_of(n, a)) for n, a in zip(use.op.outputs, use.results(), strict=True)]
    return any(cut.size > 1 for cut in find_cuts(use.op, inputs, outputs))


def is_grown(use: Use) -> bool:
    """Return whether its first input may be a cache that grows along some axis."""
    first = use.arrays[0] if use.arrays else None
    if first is None or 0 in OP_TYPES[use.op.type].content:
        return False
    graph = graph_of(use, [])
    for axis in range(first.ndim):
        size = first.shape[axis]
        if size < 2:
            continue
        name = use.op.inputs[0]
        past, new = np.delete(first, 0, axis), np.take(first, [0], axis)
        join = Op("Concat", "join", ["past", "new"], [name], AxisAttrs(axis))
        infos = [info_of("past", past), info_of("new", new)]
        whole = replace(graph, inputs=infos, ops=[join, use.op],
                        constants={n: a for n, a in graph.constants.items() if n != name},
                        outputs=[info_of(name, first), *graph.outputs])  # fmt: skip
        spec = CacheSpec({"past": (name, axis)}, {}, size)
        try:
            pad_caches(whole, {info.name: info for info in infos}, spec, run_op, Meter(Budget()))
        except (CannotRewriteError, ShapeError):
            continue
        return True
    return False


def is_batched(use: Use) -> bool:
    """Return whether the first axis of some inputs may number sequences."""
    content = OP_TYPES[use.op.type].content
    texts = [
        name
        for place, (name, array) in enumerate(zip(use.op.inputs, use.arrays, strict=True))
        if array is not None and place not in content and array.shape[:1] == (1,)
    ]
    for some in (texts[:1], texts):
        try:
            batched_step(graph_of(use, some), 3)
        except (CannotRewriteError, KeyError):
            continue
        return bool(some)
    return False


def is_moved(use: Use) -> bool:
    """Return whether a transpose may move past it."""
    index = GraphIndex(graph_of(use, use.op.inputs[:1]))
    rank = index.rank(use.op.inputs[0]) if use.op.inputs else None
    return any(
        renumbered(use.op, perm, index) is not None
        for perm in permutations(range(rank or 0))
        if perm != tuple(range(rank or 0))
    )


def graph_of(use: Use, fed: list[str]) -> Graph:
    """Return a graph of the op alone; inputs that are not fed are constant."""
    given = {n: a for n, a in zip(use.op.inputs, use.arrays, strict=True) if a is not None}
    results = [info_of(n, a) for n, a in zip(use.op.outputs, use.results(), strict=True)]
    return Graph(
        "one",
        [info_of(name, given[name]) for name in fed],
        results,
        [use.op],
        {name: array for name, array in given.items() if name not in fed},
        {info.name: info for info in results},
    )


ASKED = {"cut": is_cut, "grown": is_grown, "batched": is_batched, "moved": is_moved}

CAN = {
    "cut grown batched moved": """
        ArgMax ArgMin BinaryOp BitCast Cast Elementwise Identity Interp Pad Reduction Slice
        Softmax Split Tile TopK UnaryOp
    """,
    "cut batched moved": """
        Concat Select
    """,
    "cut grown batched": """
        Col2Im Convolution CumProd CumSum DFT Deconvolution DepthToSpace Det
        DynamicQuantizeConvolution DynamicQuantizeMatMul Einsum Gather GatherND GridSample
        GroupNorm ImageToTensor LRN LayerNorm MatMul MatMulNBits NormedMatMul OneHot Pooling
        QuantizedConvolution QuantizedMatMul Recurrent Reshape Rotary Scale SpaceToDepth Squeeze
        Trilu
    """,
    "cut batched": """
        DeformColumns ExpertMatMul GatherElements GatherNBits JoinPast LinearAttention
        SampleToken ScatterElements
    """,
    "cut grown": """
        Attention Expand Flatten RoiAlign RoiPool Transpose Unsqueeze
    """,
    "cut": """
        ScatterND
    """,
    "grown": """
        UnpackRows
    """,
}
"""What operators can do along some axis, in one of their cases (attention: in CachedAttention)."""

NOTHING = {
    "Append": "written where it lies; the caches of several texts are appended by CachedAttention",
    "DynamicRange": "one range for the whole tensor",
}
"""Ops that declare their axes and can do nothing along them, and why."""


def answers(some: list[Use]) -> str:
    return " ".join(word for word, ask in ASKED.items() if any(ask(use) for use in some))


def test_no_operator_is_silent() -> None:
    """Each declares its axes, or is listed with a reason; what follows is listed, too."""
    by_type: dict[str, list[Use]] = {}
    for use in uses():
        by_type.setdefault(use.op.type, []).append(use)
    listed = {name: what for what, names in CAN.items() for name in names.split()}
    found = {name: answers(some) for name, some in by_type.items()}
    assert {name: what for name, what in found.items() if what} == listed
    assert {name for name, what in found.items() if not what} == {*NOTHING, *UNKNOWN} & set(found)


@dataclass(frozen=True, slots=True)
class _Attrs(OpAttrs):
    """Attributes of the operators of the tests."""

    axis: int = -1


def registered(name: str) -> Use:
    """Register an operator, as a plug-in does; return a use of it."""
    op_type(name)(_Attrs)
    size_computer(name)(like_first_input)

    @cpu_execution(name)
    def compute(op: Op[_Attrs], inputs: list[Array | None]) -> list[Array]:
        x = required(inputs, 0)
        return [x / np.abs(x).max(op.attrs.axis, keepdims=True)]

    array = np.random.default_rng(0).standard_normal((1, 3, 5)).astype(np.float32)
    return Use(Op(name, "op", ["x"], ["y"], _Attrs()), (array,))


def rows(op: Op[_Attrs], known: axes.Known) -> list[axes.Loop]:
    """Declare an operator that reads rows along its axis."""
    shape = known.shape()
    return [
        (axes.mixed if axis == op.attrs.axis % len(shape) else axes.parallel)(size, [axis], axis)
        for axis, size in enumerate(shape)
    ]


def test_a_plug_in_that_declares_its_axes_can_do_all(registrations: Snapshot) -> None:
    use = registered("Rows")
    axes_of("Rows", numbering={"axis": axes.Numbering.AXES})(rows)
    check_registrations(registrations)
    check_axes(use.op, use.arrays)
    assert answers([use]) == "cut grown batched moved"


def test_a_plug_in_that_declares_nothing_is_left_alone(registrations: Snapshot) -> None:
    use = registered("Silent")
    check_registrations(registrations)
    assert answers([use]) == ""
    with pytest.raises(AssertionError, match="declares nothing"):
        check_axes(use.op, use.arrays)


def test_a_custom_op_declares_its_axes_by_its_type(registrations: Snapshot) -> None:
    custom_op("test.Twice")(like_first_input)
    custom_execution("test.Twice")(lambda op, inputs: [required(inputs, 0) * 2])
    use = Use(Op("Custom", "op", ["x"], ["y"], CustomAttrs("test.Twice")),
              (np.ones((1, 3, 5), np.float32),))  # fmt: skip
    assert answers([use]) == ""
    axes_of("Custom:test.Twice", numbering={})(elementwise_same_shape)
    check_registrations(registrations)
    assert answers([use]) == "cut grown batched moved"


def test_a_wrong_declaration_is_noticed(registrations: Snapshot) -> None:
    use = registered("Wrong")
    axes_of("Wrong", numbering={})(elementwise_same_shape)
    with pytest.raises(AssertionError):
        check_axes(use.op, use.arrays)


@pytest.mark.parametrize(
    ("name", "numbering", "message"),
    [
        ("Rows", {"axes": axes.Numbering.AXES}, "no attribute or content 'axes'"),
        ("Rows", {1: axes.Numbering.SIZES}, "no attribute or content 1"),
        ("Row", {}, "there is no such op type"),
    ],
)
def test_a_declaration_has_to_fit_its_op(
    name: str, numbering: Any, message: str, registrations: Snapshot
) -> None:
    registered("Rows")
    axes_of(name, numbering=numbering)(rows)
    with pytest.raises(PluginError, match=message):
        check_registrations(registrations)


@pytest.mark.parametrize(
    ("loops", "message"),
    [
        (lambda op, known: [axes.parallel(3, [3], 0)], "axis 3 of input 0"),
        (lambda op, known: [axes.parallel(3, [0], -1)], "axis -1 of output 0"),
        (lambda op, known: [axes.parallel(*known.inputs[0])], "listing the axes"),
    ],
)
def test_loops_of_axes_that_there_are_not(
    loops: Any, message: str, registrations: Snapshot
) -> None:
    use = registered("Rows")
    axes_of("Rows")(loops)
    with pytest.raises(PluginError, match=message):
        use.loops()
