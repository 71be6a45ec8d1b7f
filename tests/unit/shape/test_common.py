from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkmnn.errors import ModelError, ShapeError
from vkmnn.ir import DType, Op, OpAttrs, TensorInfo, check_attrs
from vkmnn.shape.common import (
    broadcast_shapes,
    check_broadcastable_to,
    content_of,
    int_list,
    int_scalar,
    normalize_axes,
    normalize_axis,
    same_dtype,
    shape_of,
)
from vkmnn.shape.movement import transpose_perm
from vkmnn.shape.reshaping import reshape_dims, squeeze_dims, unsqueeze_dims
from vkmnn.shape.slicing import pad_widths, slice_ranges, split_sizes

SHAPE = st.lists(st.integers(0, 4), max_size=5).map(tuple)


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(SHAPE, min_size=1, max_size=4))
def test_broadcasting_is_numpys(shapes):
    try:
        want = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError):
            broadcast_shapes(*shapes)
        return
    assert broadcast_shapes(*shapes) == want


@settings(max_examples=300, deadline=None, database=None)
@given(SHAPE, SHAPE)
def test_broadcastable_to_is_numpys(shape, target):
    try:
        np.broadcast_to(np.zeros(shape), target)
    except ValueError:
        with pytest.raises(ShapeError, match="thing"):
            check_broadcastable_to(shape, target, "thing")
        return
    check_broadcastable_to(shape, target, "thing")


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.integers(1, 4), max_size=4).map(tuple), st.lists(st.integers(-1, 6), max_size=4))
def test_reshape_without_zeros_is_numpys(shape, target):
    try:
        want = np.zeros(shape).reshape(target).shape
    except ValueError:
        with pytest.raises(ShapeError):
            reshape_dims(shape, target, allowzero=True)
        return
    assert reshape_dims(shape, target, allowzero=True) == want


@settings(max_examples=200, deadline=None, database=None)
@given(SHAPE, st.data())
def test_squeeze_undoes_unsqueeze(shape, data):
    count = data.draw(st.integers(0, 3))
    rank = len(shape) + count
    axes = (
        data.draw(st.lists(st.integers(0, rank - 1), max_size=count, min_size=count, unique=True))
        if rank
        else []
    )
    if len(axes) < count:
        return
    longer = unsqueeze_dims(shape, axes)
    assert longer == np.expand_dims(np.zeros(shape), tuple(axes)).shape
    assert squeeze_dims(longer, [axis - rank for axis in axes]) == shape


@settings(max_examples=300, deadline=None, database=None)
@given(
    st.integers(0, 9), st.integers(-12, 12), st.integers(-12, 12), st.integers(-4, 4).filter(bool)
)
def test_slice_ranges_stay_inside(size, start, end, step):
    ((first, stride, count),) = slice_ranges((size,), [start], [end], [0], [step])
    assert stride == step
    assert count >= 0
    indices = [first + step * index for index in range(count)]
    assert all(0 <= index < size for index in indices)
    if start >= -size:  # below that, Python's negative steps differ from ONNX's
        assert (
            indices
            == list(range(size))[
                slice(start, end if end >= -size else None if step < 0 else 0, step)
            ]
        )


def test_axes_that_are_not_sliced():
    assert slice_ranges((3, 5, 7), [1], [2], [-2]) == [(0, 1, 3), (1, 1, 1), (0, 1, 7)]
    assert slice_ranges((3, 5), [1], [9]) == [(1, 1, 2), (0, 1, 5)]
    assert slice_ranges((), [], []) == []


def test_axes():
    assert normalize_axis(-1, 3) == 2
    assert normalize_axes([-1, 0], 3) == [2, 0]
    assert transpose_perm(3, ()) == (2, 1, 0)
    assert transpose_perm(3, (-1, 0, 1)) == (2, 0, 1)
    for axis in (3, -4):
        with pytest.raises(ShapeError, match="outside"):
            normalize_axis(axis, 3)
    with pytest.raises(ShapeError):
        normalize_axis(0, 0)
    with pytest.raises(ShapeError, match="twice"):
        normalize_axes([0, -3], 3)


def test_split_sizes():
    assert split_sizes(7, None, 3, 3) == [3, 3, 1]
    assert split_sizes(7, None, 0, 2) == [4, 3]
    assert split_sizes(7, [0, 7], 0, 2) == [0, 7]
    for arguments in ((7, [3, 3], 0, 2), (5, None, 4, 4), (5, None, 0, 0)):
        with pytest.raises(ShapeError):
            split_sizes(*arguments)


def test_pad_widths():
    assert pad_widths((3, 5), [1, 2, 3, 4]) == [(1, 3), (2, 4)]
    assert pad_widths((3, 5), [1, -2], [-1]) == [(0, 0), (1, -2)]
    with pytest.raises(ShapeError, match="crop"):
        pad_widths((3,), [-2, -2])


def test_contents():
    values = [np.int64([1, 2]), None, np.float32([1]), np.int32(3), np.int64([[1]])]
    assert int_list(values, 0, "x") == [1, 2]
    assert int_scalar(values, 3, "x") == 3
    for index in (2, 4):
        with pytest.raises(ShapeError, match="x must be a 1-D integer tensor"):
            int_list(values, index, "x")
    with pytest.raises(ShapeError, match="x must hold one integer"):
        int_scalar(values, 0, "x")
    for index in (1, 5):
        with pytest.raises(ShapeError, match="unknown"):
            content_of(values, index)


def test_infos():
    infos = [TensorInfo("a", DType.INT8, (2,)), None, TensorInfo("b", DType.FLOAT32, (2,))]
    assert same_dtype(infos, 0, 1) is DType.INT8
    with pytest.raises(ShapeError, match="int8, float32"):
        same_dtype(infos, 0, 2)
    with pytest.raises(ShapeError, match="absent"):
        same_dtype(infos, 1)
    with pytest.raises(ShapeError, match="absent"):
        shape_of(infos, 3)


def test_attributes_of_the_wrong_class():
    with pytest.raises(ModelError, match="not AxisAttrs") as error:
        check_attrs(Op("Gather", "n", [], [], OpAttrs()))
    assert (error.value.op, error.value.node) == ("Gather", "n")
