from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkmnn.cpu_fallback import run_op
from vkmnn.errors import ShapeError
from vkmnn.ir import Op, OpAttrs
from vkmnn.ir.ops import (
    AxisAttrs,
    BlockAttrs,
    ConvertTensorAttrs,
    PadAttrs,
    ReshapeAttrs,
    SplitAttrs,
    TransposeAttrs,
    TriluAttrs,
)

TYPES = ["float16", "float32", "float64", "int8", "int64", "uint8", "uint64", "bool"]
PLAIN = OpAttrs()


def ints(*values):
    return np.array(values, dtype=np.int64)


def apply(op_type, attrs, *arrays, outputs=1):
    names = ["" if array is None else f"i{index}" for index, array in enumerate(arrays)]
    return run_op(Op(op_type, "n", names, [f"o{i}" for i in range(outputs)], attrs), arrays)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_moves_unchanged(check, draw, dtype):
    x = draw(dtype, 2, 3, 5)
    check("Transpose", TransposeAttrs((2, 0, 1)), [x], "Transpose", {"perm": (2, 0, 1)})
    check("Identity", PLAIN, [x], "Identity")
    check("Reshape", ReshapeAttrs(), [x, ints(3, -1)], "Reshape")
    check("Concat", AxisAttrs(1), [x, x[:, :1]], "Concat", {"axis": 1})
    check("Expand", PLAIN, [x, ints(4, 1, 3, 1)], "Expand")
    check("Tile", PLAIN, [x, ints(1, 2, 3)], "Tile")
    check("Pad", PadAttrs("edge"), [x, ints(0, 1, 2, 1, 0, 0)], "Pad", {"mode": "edge"})
    check("Slice", PLAIN, [x, ints(1), ints(3), ints(2)], "Slice")
    check("Trilu", TriluAttrs(False), [x, np.array(1, np.int64)], "Trilu", {"upper": 0})


def test_convert_tensor_keeps_the_value(run, draw):
    x = draw("float32", 2, 3, 5, 7)
    (y,) = run("ConvertTensor", ConvertTensorAttrs("NCHW", "NC4HW4"), [x])
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (1, 2, 1, 3, 1, 2, 1, 1)], ids=str)
def test_transpose_reverses_by_default(check, draw, shape):
    check("Transpose", TransposeAttrs(), [draw("float32", *shape)], "Transpose")


@pytest.mark.parametrize("perm", [(0, 1), (0, 0, 1), (0, 1, 3)], ids=str)
def test_transpose_needs_a_permutation(run, draw, perm):
    with pytest.raises(ShapeError, match="Transpose"):
        run("Transpose", TransposeAttrs(perm), [draw("float32", 2, 3, 5)])


@pytest.mark.parametrize(
    ("shape", "target", "allowzero"),
    [
        ((2, 3, 5), (5, 6), 0),
        ((2, 3, 5), (0, -1), 0),
        ((2, 3, 5), (-1,), 0),
        ((), (1, 1), 0),
        ((1,), (), 0),
        ((0, 3), (3, 0), 1),
        ((0, 3), (0, 7), 1),
        ((2, 0, 3), (0, -1, 3), 0),
        ((0, 6), (0, 2, -1), 0),
    ],
    ids=str,
)
def test_reshape(run, draw, shape, target, allowzero):
    (y,) = run("Reshape", ReshapeAttrs(bool(allowzero)), [draw("float32", *shape), ints(*target)])
    assert y.size == np.prod(shape)
    if (shape, target) == ((0, 6), (0, 2, -1)):
        assert y.shape == (0, 2, 3)


def test_reshape_zero_copies_and_minus_one_is_deduced(check, draw):
    check("Reshape", ReshapeAttrs(), [draw("float32", 2, 3, 5), ints(0, -1, 1)], "Reshape")
    check(
        "Reshape",
        ReshapeAttrs(True),
        [draw("float32", 0, 3), ints(3, 0)],
        "Reshape",
        {"allowzero": 1},
    )


@pytest.mark.parametrize(
    "target", [(7,), (-1, -1), (-2, 15), (0, 0, 0, 0), (4, -1), (2, 3)], ids=str
)
def test_impossible_reshapes(run, draw, target):
    with pytest.raises(ShapeError, match="Reshape"):
        run("Reshape", ReshapeAttrs(), [draw("float32", 2, 3, 5), ints(*target)])


def test_reshape_with_an_ambiguous_minus_one(run, draw):
    with pytest.raises(ShapeError, match="deduced"):
        run("Reshape", ReshapeAttrs(True), [draw("float32", 0, 3), ints(0, -1)])


@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 0, 5)], ids=str)
def test_flatten(check, draw, axis, shape):
    if 0 in shape:  # the reference evaluator cannot flatten an empty tensor
        oracle = "runtime"
    else:
        oracle = "reference"
    x = draw("float32", *shape)
    check("Flatten", AxisAttrs(axis), [x], "Flatten", {"axis": axis}, oracle=oracle)


def test_flatten_of_a_scalar(run, draw):
    (y,) = run("Flatten", AxisAttrs(0), [draw("float32")])
    assert y.shape == (1, 1)


@pytest.mark.parametrize("axes", [None, (0,), (-1,), (0, 2), (2, 0)], ids=str)
def test_squeeze(check, draw, axes):
    x = draw("float32", 1, 3, 1)
    check("Squeeze", PLAIN, [x, None if axes is None else ints(*axes)], "Squeeze")


@pytest.mark.parametrize("axes", [(0,), (-1,), (0, 2, 5), (4, 0), ()], ids=str)
def test_unsqueeze(check, draw, axes):
    check("Unsqueeze", PLAIN, [draw("float32", 2, 3, 5), ints(*axes)], "Unsqueeze")


@pytest.mark.parametrize(
    ("op", "axes"),
    [("Squeeze", (1,)), ("Squeeze", (3,)), ("Unsqueeze", (0, 0)), ("Unsqueeze", (5,))],
)
def test_impossible_squeezes(run, draw, op, axes):
    with pytest.raises(ShapeError, match=op):
        run(op, PLAIN, [draw("float32", 1, 3, 1), ints(*axes)])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(check, draw, axis):
    shapes = [[2, 3, 5], [2, 3, 5], [2, 3, 5]]
    shapes[1][axis], shapes[2][axis] = 0, 7
    arrays = [draw("float32", *shape) for shape in shapes]
    check("Concat", AxisAttrs(axis), arrays, "Concat", {"axis": axis})


@pytest.mark.parametrize("shapes", [((2, 3), (2, 4)), ((2, 3), (2, 3, 1)), ((), ())], ids=str)
def test_impossible_concats(run, draw, shapes):
    with pytest.raises(ShapeError, match="Concat"):
        run("Concat", AxisAttrs(0), [draw("float32", *shape) for shape in shapes])


def test_concat_of_different_types(run, draw):
    with pytest.raises(ShapeError, match="int64"):
        run("Concat", AxisAttrs(0), [draw("float32", 2), draw("int64", 2)])


@pytest.mark.parametrize(
    ("size", "split", "count"),
    [(7, (2, 0, 5), 0), (7, None, 3), (8, None, 4), (1, None, 1), (0, None, 2)],
)
def test_split(check, draw, size, split, count):
    outputs = len(split) if split else count
    arrays = [draw("float32", 3, size), None if split is None else ints(*split)]
    theirs = {"axis": 1} if split else {"axis": 1, "num_outputs": count}
    check("Split", SplitAttrs(1, count), arrays, "Split", theirs, outputs=outputs)


@pytest.mark.parametrize(
    ("split", "count"), [((2, 2), 0), ((8, -1), 0), ((3, 4, 0), 0), (None, 6), (None, 3)]
)
def test_impossible_splits(run, draw, split, count):
    outputs = 2 if count != 6 else 6
    arrays = [draw("float32", 7), None if split is None else ints(*split)]
    with pytest.raises(ShapeError, match="Split"):
        run("Split", SplitAttrs(0, count), arrays, outputs)


LIMITS = st.one_of(st.integers(-9, 9), st.sampled_from([2**63 - 1, -(2**63), 2**31 - 1, -(2**31)]))


@settings(max_examples=300, deadline=None, database=None)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=4).flatmap(
        lambda shape: st.tuples(
            st.just(shape),
            st.lists(
                st.tuples(
                    st.integers(-len(shape), len(shape) - 1),
                    LIMITS,
                    LIMITS,
                    st.integers(-4, 4).filter(bool),
                ),
                max_size=len(shape),
                unique_by=lambda item: item[0] % len(shape),
            ),
        )
    )
)
def test_slice_follows_the_definition(case):
    """ONNX Slice 13, element by element."""
    shape, cuts = case
    x = np.arange(np.prod(shape)).reshape(shape)
    columns = list(zip(*cuts, strict=True)) or [(), (), (), ()]
    axes, starts, ends, steps = (ints(*column) for column in columns)
    (y,) = apply("Slice", PLAIN, x, starts, ends, axes, steps)
    want = x
    for axis, start, end, step in cuts:
        size = shape[axis]
        start, end = (value + size if value < 0 else value for value in (start, end))
        if step > 0:
            start, end = min(max(start, 0), size), min(max(end, 0), size)
        else:
            start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
        want = np.take(want, np.arange(start, end, step, dtype=np.int64), axis=axis)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((1, 0), (3, 2), None, None),
        ((-1,), (-100,), (1,), (-2,)),
        ((-100,), (100,), (-1,), (3,)),
        ((4,), (1,), (2,), (1,)),
        ((-100,), (-200,), (1,), (-1,)),
    ],
)
def test_slice(check, draw, starts, ends, axes, steps):
    arrays = [draw("float32", 3, 5, 7), ints(*starts), ints(*ends)]
    arrays += [None if item is None else ints(*item) for item in (axes, steps)]
    check("Slice", PLAIN, arrays, "Slice", oracle="runtime")


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((0,), (1, 2), None, None),
        ((0,), (1,), (3,), None),
        ((0, 0), (1, 1), (0, -3), None),
        ((0,), (1,), (0,), (0,)),
        ((0, 0, 0, 0), (1, 1, 1, 1), None, None),
    ],
)
def test_impossible_slices(run, draw, starts, ends, axes, steps):
    arrays = [draw("float32", 3, 5, 7), ints(*starts), ints(*ends)]
    arrays += [None if item is None else ints(*item) for item in (axes, steps)]
    with pytest.raises(ShapeError, match="Slice"):
        run("Slice", PLAIN, arrays)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    "pads", [(1, 2, 0, 3), (0, 0, 0, 0), (7, 11, 8, 13), (2, 0, 0, 5)], ids=str
)
@pytest.mark.parametrize("shape", [(3, 5), (1, 2), (2, 1)], ids=str)
def test_pad(check, draw, mode, pads, shape):
    check("Pad", PadAttrs(mode), [draw("float32", *shape), ints(*pads)], "Pad", {"mode": mode})


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("pads", [(-1, 2, 1, -2), (-1, -2, -1, -2), (-3, 0, 0, 0)], ids=str)
def test_negative_pads_crop(check, draw, mode, pads):
    arrays = [draw("float32", 5, 7), ints(*pads)]
    check("Pad", PadAttrs(mode), arrays, "Pad", {"mode": mode}, oracle="runtime")


def test_pad_value_and_axes(check, draw):
    arrays = [draw("float32", 3, 5, 7), ints(1, 0, 2, 3), np.float32(1.5), ints(-1, 0)]
    check("Pad", PadAttrs(), arrays, "Pad")


@settings(max_examples=200, deadline=None, database=None)
@given(st.integers(0, 5), st.integers(-6, 6), st.integers(-6, 6))
def test_constant_pad_follows_the_definition(size, begin, end):
    x = np.arange(1, size + 1)
    count = size + begin + end
    if count < 0:
        with pytest.raises(ShapeError):
            apply("Pad", PadAttrs(), x, ints(begin, end))
        return
    (y,) = apply("Pad", PadAttrs(), x, ints(begin, end))
    want = [i - begin + 1 if 0 <= i - begin < size else 0 for i in range(count)]
    np.testing.assert_array_equal(y, want)


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.integers(1, 5), st.integers(0, 13), st.integers(0, 13), st.sampled_from(["reflect", "edge"])
)
def test_pad_follows_numpy(size, begin, end, mode):
    x = np.arange(size)
    (y,) = apply("Pad", PadAttrs(mode), x, ints(begin, end))
    np.testing.assert_array_equal(y, np.pad(x, (begin, end), mode=mode))


@pytest.mark.parametrize("pads", [(1, 2), (1, 2, 3), (-2, 0, -2, 0)], ids=str)
def test_impossible_pads(run, draw, pads):
    with pytest.raises(ShapeError, match="Pad"):
        run("Pad", PadAttrs(), [draw("float32", 3, 5), ints(*pads)])


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_an_empty_axis_has_nothing_to_repeat(run, draw, mode):
    run("Pad", PadAttrs(mode), [draw("float32", 0, 3), ints(0, 1, 0, 1)])
    with pytest.raises(ShapeError, match="nothing to repeat"):
        run("Pad", PadAttrs(mode), [draw("float32", 0, 3), ints(1, 0, 0, 0)])


@pytest.mark.parametrize("target", [(3, 5), (2, 1, 5), (7, 3, 1), (1,), (0, 3, 5)], ids=str)
def test_expand(check, draw, target):
    check("Expand", PLAIN, [draw("float32", 3, 1), ints(*target)], "Expand")


@pytest.mark.parametrize(("op", "target"), [("Expand", (2, 5)), ("Tile", (2,)), ("Tile", (1, -1))])
def test_impossible_repeats(run, draw, op, target):
    with pytest.raises(ShapeError, match=op):
        run(op, PLAIN, [draw("float32", 3, 1), ints(*target)])


@pytest.mark.parametrize("repeats", [(1, 1), (2, 3), (0, 2)], ids=str)
def test_tile(check, draw, repeats):
    check("Tile", PLAIN, [draw("float32", 3, 5), ints(*repeats)], "Tile")


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_depth_to_space_and_back(check, run, draw, mode, block):
    x = draw("float32", 2, 5 * block * block, 3, 7)
    theirs = {"blocksize": block, "mode": mode}
    attrs = BlockAttrs(block, mode)
    (y,) = check("DepthToSpace", attrs, [x], "DepthToSpace", theirs)
    np.testing.assert_array_equal(run("SpaceToDepth", attrs, [y])[0], x)
    check("SpaceToDepth", BlockAttrs(block), [y], "SpaceToDepth", {"blocksize": block}, opset=13)


@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
@pytest.mark.parametrize("shape", [(1, 5, 3, 3), (4, 4, 4)], ids=str)
def test_impossible_blocks(run, draw, op, shape):
    with pytest.raises(ShapeError, match=op):
        run(op, BlockAttrs(2), [draw("float32", *shape)])


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 100, -100, 2**63 - 1, -(2**63)])
def test_trilu(run, draw, upper, k):
    x = draw("int64", 2, 3, 5)
    (y,) = run("Trilu", TriluAttrs(bool(upper)), [x, None if k is None else np.array(k, np.int64)])
    distance = np.arange(5) - np.arange(3)[:, None]
    keep = distance >= (k or 0) if upper else distance <= (k or 0)
    np.testing.assert_array_equal(y, np.where(keep, x, 0))
