from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.refine_shapes import RefineShapes
from vkmnn.ir import DType, TensorInfo

REFINE = RefineShapes()


def shapes(check, out, dims):
    done = check(out, REFINE, dims=dims)
    names = (out,) if isinstance(out, str) else out
    found = tuple(done.graph.infos[name].shape for name in names)
    return found[0] if isinstance(out, str) else found


IMAGE = {"x0": ("N", 3, "H", "W")}


def test_unnamed_dimensions_get_names(net, check):
    x = net.input(2, 3)
    assert shapes(check, net.unary("EXP", x), {x: (None, 3)}) == ("x0[0]", 3)


def test_convolutions(net, check):
    x = net.input(2, 3, 11, 9)
    same = net.conv(x, net.weights(5, 3, 3, 3), pads=1)
    valid = net.conv(x, net.weights(5, 3, 3, 3))
    half = net.conv(x, net.weights(5, 3, 3, 3), pads=1, strides=(2, 2))
    point = net.conv(x, net.weights(5, 3, 1, 1), strides=(2, 2))
    auto = net.conv(x, net.weights(5, 3, 3, 3), strides=(1, 2), auto_pad="SAME_UPPER")
    found = shapes(check, (same, valid, half, point, auto), IMAGE)
    assert found[0] == ("N", 5, "H", "W")
    assert found[1] == ("N", 5, "H + -2", "W + -2")
    assert found[2] == found[3]
    assert found[4][:3] == ("N", 5, "H")


def test_deconvolutions(net, check):
    x = net.input(2, 4, 11, 9)
    common = {"strides": (2, 2), "dilations": (1, 1), "group": 2}
    double = net.op(
        "Deconvolution",
        x,
        net.weights(4, 3, 2, 2),
        kernel=(2, 2),
        pads=(0, 0, 0, 0),
        output_padding=(0, 0),
        **common,
    )
    padded = net.op(
        "Deconvolution",
        x,
        net.weights(4, 3, 3, 3),
        kernel=(3, 3),
        pads=(1, 1, 1, 1),
        output_padding=(1, 1),
        **common,
    )
    found = shapes(check, (double, padded), {x: ("N", 4, "H", "W")})
    assert found == (("N", 6, "2*H", "2*W"), ("N", 6, "2*H", "2*W"))


def test_pooling(net, check):
    x = net.input(2, 3, 11, 9)
    half = {"kind": "MAX", "kernel": (2, 2), "strides": (2, 2)}
    pooled = net.op("Pooling", x, **half)
    ceiled = net.op("Pooling", x, ceil_mode=True, **half)
    late = net.op("Pooling", x, ceil_mode=True, **{**half, "strides": (3, 2)})
    whole = net.op("Pooling", x, kind="AVERAGE", is_global=True)
    found = shapes(check, (pooled, ceiled, whole, late), IMAGE)
    assert found[2] == ("N", 3, 1, 1)
    assert found[1][2:] == ("floor((H + -1)/2) + 1", "floor((W + -1)/2) + 1")
    assert found[3][2:] == (f"{late}[2]", "floor((W + -1)/2) + 1")


def test_matrix_products(net, check):
    a, b = net.input(2, 1, 3, 5, name="a"), net.input(7, 5, 11, name="b")
    dims = {"a": ("N", 1, "M", 5), "b": (7, 5, "K")}
    assert shapes(check, net.op("MatMul", a, b), dims) == ("N", 7, "M", "K")


def test_movement(net, check):
    x = net.input(2, 3, 4)
    dims = {x: ("N", 3, "L")}
    outs = (
        net.op("Transpose", x, perm=(2, 0, 1)),
        net.op("Concat", x, x, axis=2),
        net.op("Flatten", x, axis=1),
        net.op("Unsqueeze", x, net.ints(0, -1)),
        net.op("Squeeze", net.op("Unsqueeze", x, net.ints(1)), net.ints(1)),
        net.op("Pad", x, net.ints(0, 0, 1, 0, 0, 2)),
        net.op("Tile", x, net.ints(2, 1, 3)),
        net.op("Gather", x, net.const(np.array([[0, 2]])), axis=1),
        net.op("Reduction", x, net.ints(-1), kind="SUM"),
        net.op("Slice", x, net.ints(0), net.ints(2**31), net.ints(2)),
        net.op("Expand", net.weights(1, 3, 1), net.op("Shape", x)),
        net.op("ArgMax", x, axis=1, keepdims=False),
        net.op("Interp", x, "", net.const([1.0, 1.0, 2.0])),
    )
    assert shapes(check, outs, dims) == (
        ("L", "N", 3),
        ("N", 3, "2*L"),
        ("N", "3*L"),
        (1, "N", 3, "L", 1),
        ("N", 3, "L"),
        ("N", 3, "L + 3"),
        ("2*N", 3, "3*L"),
        ("N", 1, 2, "L"),
        ("N", 3, 1),
        ("N", 3, "L"),
        ("N", 3, "L"),
        ("N", "L"),
        ("N", 3, "2*L"),
    )


def test_blocks(net, check):
    x = net.input(2, 4, 6, 4)
    depth = net.op("SpaceToDepth", x, block_size=2)
    space = net.op("DepthToSpace", x, block_size=2)
    found = shapes(check, (depth, space), {x: ("N", 4, "2*H", "W")})
    assert found[0][1] == 16
    assert found[1] == ("N", 1, "2*2*H", "2*W")


def test_heads_split_and_merge(net, check):
    x = net.input(2, 5, 12)
    shape = net.op("Shape", x)
    batch = net.op("Gather", shape, net.ints(0))
    length = net.op("Gather", shape, net.ints(1))
    split = net.op("Reshape", x, net.op("Concat", batch, length, net.ints(3, -1)))
    heads = net.op("Transpose", split, perm=(0, 2, 1, 3))
    both = net.binary("MUL", batch, net.ints(3))
    merged = net.op("Reshape", heads, net.op("Concat", both, net.ints(-1, 4)))
    found = shapes(check, (split, merged), {x: ("B", "S", 12)})
    assert found == (("B", "S", 3, 4), ("3*B", "S", 4))


def test_shape_arithmetic_that_never_changes(net, check):
    x = net.input(2, 12)
    size = net.op("Slice", net.op("Shape", x), net.ints(-1), net.ints(2**31))
    third = net.binary("DIV", size, net.ints(3))
    done = check(third, REFINE, dims={x: ("N", 12)})
    assert not done.types
    assert done.graph.constants[third].tolist() == [4]


def test_scalars_stay_scalars(net, check):
    x = net.input(2, 12)
    size = net.op("Gather", net.op("Shape", x), net.const(1, "int64"))
    done = check(size, REFINE, dims={x: ("N", 12)})
    assert done.graph.constants[size].shape == ()


def test_minus_one_in_expand(net, check):
    x = net.input(1, 5)
    rows = net.op("Shape", x, start=1, end=2)
    wanted = net.op("Concat", net.ints(-1), rows)
    test = net.binary("EQUAL", wanted, net.ints(-1))
    target = net.op("Select", test, net.ints(1, 1), wanted)
    out = net.op("Expand", x, target)
    assert shapes(check, out, {x: (1, "L")}) == (1, "L")


def test_what_depends_on_the_input_stays(net, check):
    x = net.input(2, 12)
    out = net.binary("MUL", net.op("Shape", x), net.ints(2))
    assert check(out, REFINE, dims={x: ("N", 12)}).types == ["Shape", "BinaryOp"]


def test_the_model_knows_more(net):
    x, target = net.input(6), net.input(2, dtype="int64")
    net.feeds[target] = np.array([2, 3])
    inner = net.op("Reshape", x, target)
    out = net.unary("EXP", inner)
    graph = net.finish(out, infos=False)
    graph.infos = {inner: TensorInfo(inner, DType.FLOAT32, (None, 3))}
    REFINE.run(graph)
    assert graph.infos[out].shape == (f"{inner}[0]", 3)


def test_nothing_to_do_a_second_time(net):
    x = net.input(2, 3, 8, 8)
    graph = net.finish(net.conv(x, net.weights(5, 3, 3, 3)))
    graph.inputs = [TensorInfo(x, DType.FLOAT32, (None, 3, None, "W"))]
    graph.infos.clear()
    assert REFINE.run(graph) > 0
    assert REFINE.run(graph) == 0


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split(net, check, axis):
    x = net.input(4, 6)
    first = net.op("Split", x, outputs=2, axis=axis, num_outputs=2)
    dims = {x: (4, "C")} if axis == 0 else {x: ("N", 6)}
    found = shapes(check, net.unary("EXP", first), dims)
    assert found == ((2, "C") if axis == 0 else ("N", 3))


@pytest.mark.parametrize(("delta", "size"), [(1, "L"), (2, None)])
def test_from_one_size_to_another(net, check, delta, size):
    """Positions of new rows: from the number of rows in a cache on."""
    new, past = net.input(3, name="new"), net.input(4, name="past")
    start, length = (
        net.op("Gather", net.op("Shape", x), net.const(0, "int64"), axis=0) for x in (past, new)
    )
    out = net.op("Range", start, net.binary("ADD", start, length), net.const(delta, "int64"))
    (found,) = shapes(check, out, {"new": ("L",), "past": ("P",)})
    assert found == (size or f"{out}[0]")
