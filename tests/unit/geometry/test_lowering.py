from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vkmnn.geometry
from vkmnn.errors import ModelError, PluginError, ShapeError
from vkmnn.geometry import GeometryContext, geometry, has_geometry, lower, lower_graph, registry
from vkmnn.geometry.regions import copy_region
from vkmnn.ir import OP_TYPES, DType, Op, OpAttrs, Region, TensorInfo, View
from vkmnn.ir.ops import (
    AttentionAttrs,
    RasterAttrs,
    SoftmaxAttrs,
    SplitAttrs,
    TransposeAttrs,
    UnaryAttrs,
)


def info(name: str, *shape: int) -> TensorInfo:
    return TensorInfo(name, DType.FLOAT32, shape)


def test_every_op_with_geometry_is_in_the_vocabulary() -> None:
    with_geometry = {op_type for op_type in OP_TYPES if has_geometry(op_type)}
    assert set(registry.COMPUTERS) == with_geometry
    assert "Raster" not in with_geometry
    assert {"Transpose", "Concat", "Pad", "Einsum", "Attention", "Shape"} <= with_geometry


def test_an_op_type_is_registered_once() -> None:
    with pytest.raises(PluginError, match="Transpose"):
        geometry("Transpose")(lambda ctx: None)


def test_ops_without_geometry_are_left_alone() -> None:
    op = Op("UnaryOp", "u", ["x"], ["y"], UnaryAttrs("ABS"))
    assert lower(op, [info("x", 3)], [info("y", 3)], [None]) is None
    infos = {"x": info("x", 3), "y": info("y", 3)}
    assert lower_graph([op], infos, {}) == ([op], infos, {})


def test_what_is_given_is_not_changed() -> None:
    op = Op("Transpose", "t", ["x"], ["y"], TransposeAttrs((1, 0)))
    infos = {"x": info("x", 2, 3), "y": info("y", 3, 2)}
    before = dict(infos)
    ops, known, _ = lower_graph([op], infos, {})
    assert infos == before
    assert op.type == "Transpose"
    assert [(item.type, item.outputs) for item in ops] == [("Raster", ["y"])]
    assert set(known) >= {"x", "y"}


def test_names_are_unique_over_nested_lowerings() -> None:
    shapes = {"q": (2, 5, 3), "k": (2, 7, 3), "v": (2, 7, 3), "y": (2, 5, 3)}
    infos = {name: info(name, *shape) for name, shape in shapes.items()}
    infos |= {"s": info("s", 2, 5, 3), "z": info("z", 2, 5, 3)}
    infos["mask"] = TensorInfo("mask", DType.BOOL, (5, 7))
    ops = [
        Op("Attention", "a", ["q", "k", "v", "mask"], ["y"], AttentionAttrs(1.0, True)),
        Op("Softmax", "b", ["y"], ["s"], SoftmaxAttrs(1, flatten=True)),
        Op("Transpose", "c", ["s"], ["z"], TransposeAttrs((0, 1, 2))),
    ]
    lowered, known, constants = lower_graph(ops, infos, {})
    names = [op.name for op in lowered]
    assert len(set(names)) == len(names)
    produced = [name for op in lowered for name in op.outputs]
    assert len(set(produced)) == len(produced)
    readable = set(infos) - set(produced) | set(constants)
    for op in lowered:
        assert set(op.inputs) <= readable
        readable |= set(op.outputs)
        assert all(known[name].is_static for name in op.outputs)


def test_a_name_that_is_taken_already_is_an_error() -> None:
    op = Op("Softmax", "s", ["x"], ["y"], SoftmaxAttrs(0, flatten=True), "node 7")
    infos = {name: info(name, 2, 3) for name in ("x", "y", "s~1")}
    with pytest.raises(ModelError, match=r"s~1.*node 7"):
        lower_graph([op], infos, {})


def test_an_absent_output_has_no_shape_and_no_op() -> None:
    op = Op("Split", "s", ["x"], ["", "b"], SplitAttrs(0))
    ops, _, _ = lower_graph([op], {"x": info("x", 6), "b": info("b", 3)}, {})
    assert [item.outputs for item in ops] == [["b"]]


def test_errors_name_op_and_node_and_keep_the_hint() -> None:
    op = Op("Transpose", "t", ["x"], ["y"], TransposeAttrs((0, 0)), "node 3")
    with pytest.raises(ShapeError) as caught:
        lower(op, [info("x", 2, 3)], [info("y", 3, 2)], [None])
    assert (caught.value.op, caught.value.node) == ("Transpose", "node 3")


def test_the_context_drops_empty_regions_and_unread_inputs_and_splits_long_ones() -> None:
    op = Op("Identity", "i", [], ["y"], OpAttrs(), "n")
    ctx = GeometryContext(op, [], [info("y", 1000)], [])
    weights = (64, 32, 16, 8, 4, 2, 1)
    long = Region(View(0, weights[::-1]), View(0, weights), (2,) * 7, 2)
    nothing = Region(View(0, (1,)), View(0, (1,)), (0,), 1)
    ctx.raster(ctx.outputs[0], ["a", "b", "c"], [nothing, long, copy_region(5)], 3, ordered=True)
    (raster,) = ctx.lowering.ops
    assert raster.inputs == ["c", "a"]
    assert raster.source == "n"
    assert isinstance(raster.attrs, RasterAttrs)
    assert (raster.attrs.fill, raster.attrs.ordered) == (3, True)
    assert [len(region.size) for region in raster.attrs.regions] == [6, 6, 1]
    assert [region.origin for region in raster.attrs.regions] == [0, 0, 1]


def test_temporaries_and_constants_have_infos() -> None:
    ctx = GeometryContext(Op("Identity", "i", [], ["y"], OpAttrs()), [], [info("y", 3)], [])
    temp = ctx.temp(DType.INT8, [2, 3])
    name = ctx.constant(np.zeros((5, 7), np.float16))
    assert ctx.lowering.infos == {
        temp.name: TensorInfo(temp.name, DType.INT8, (2, 3)),
        name: TensorInfo(name, DType.FLOAT16, (5, 7)),
    }
    assert temp.name != name
    ctx.constant_output(ctx.outputs[0], np.array([1, 2, 3]))
    assert ctx.lowering.constants["y"].dtype == np.float32


def test_required_inputs_and_contents() -> None:
    op = Op("Identity", "i", ["", "k"], ["y"], OpAttrs())
    ctx = GeometryContext(op, [None, info("k", 1)], [info("y", 3)], [None, None])
    assert ctx.optional_input(0) is None
    assert ctx.optional_input(7) is None
    assert ctx.value(7) is None
    assert ctx.ints(0, "axes") is None
    with pytest.raises(ShapeError, match="input 0"):
        ctx.input(0)
    with pytest.raises(ShapeError, match="content of input 1"):
        ctx.ints(1, "axes")


def test_geometry_imports_nothing_that_runs_ops() -> None:
    folder = Path(vkmnn.geometry.__file__).parent
    parts = ("geometry", "ir", "shape", "errors", "registry", "budget", "records", "base")
    allowed = tuple(f"vkmnn.{part}" for part in parts)
    for path in folder.glob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["from"], ["import"]) and words[1].startswith("vkmnn"):
                assert words[1].startswith(allowed), (path, line)
