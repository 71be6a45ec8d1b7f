from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vkmnn.errors import ShapeError
from vkmnn.ir.ops import ConvolutionAttrs, DeconvolutionAttrs, PoolingAttrs
from vkmnn.shape.windows import (
    conv_output_size,
    conv_padding,
    conv_window,
    deconv_window,
    pool_output_size,
    pool_window,
)

SMALL = st.integers(1, 5)
PAD = st.integers(0, 4)


@settings(max_examples=300, deadline=None, database=None)
@given(st.integers(1, 19), SMALL, SMALL, SMALL, PAD, PAD, st.booleans())
def test_pool_output_size_counts_windows(size, kernel, stride, dilation, begin, end, ceil_mode):
    extent = (kernel - 1) * dilation + 1
    assume(size + begin + end >= extent)
    padded = size + begin + end
    starts = [start for start in range(0, padded, stride) if start + extent <= padded]
    if ceil_mode:
        if starts[-1] + extent < padded:  # a partial window covers the rest
            starts.append(starts[-1] + stride)
        if starts[-1] >= size + begin:  # the last one would see padding only
            starts.pop()
    count = len(starts)
    assert pool_output_size(size, extent, stride, begin, end, ceil_mode=ceil_mode) == count


@pytest.mark.parametrize(
    ("size", "extent", "stride", "begin", "end", "ceil_mode", "count"),
    [
        (7, 3, 2, 0, 0, False, 3),
        (8, 3, 2, 0, 0, False, 3),
        (8, 3, 2, 0, 0, True, 4),
        (5, 1, 3, 0, 2, True, 2),
        (0, 1, 1, 0, 0, False, 0),
        (0, 3, 1, 1, 1, False, 0),
        (0, 3, 1, 2, 2, False, 2),
        (1, 1, 7, 0, 0, True, 1),
        (2, 3, 1, 0, 0, True, 0),
        (2, 3, 2, 0, 0, True, 1),
        (4, 1280, 1280, 0, 0, True, 1),
        (4, 1280, 1280, 0, 0, False, 1),
        (3, 5, 1, 0, 1, False, 0),
        (3, 5, 2, 0, 0, False, 0),
    ],
)
def test_pool_output_size(size, extent, stride, begin, end, ceil_mode, count):
    assert pool_output_size(size, extent, stride, begin, end, ceil_mode=ceil_mode) == count


def test_a_kernel_larger_than_its_input():
    with pytest.raises(ShapeError, match="larger than the padded input"):
        pool_output_size(3, 6, 1, 0, 1)
    with pytest.raises(ShapeError, match="larger than the padded input"):
        conv_output_size(3, 5, 2, 0, 1)


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 19), SMALL, SMALL, SMALL), min_size=1, max_size=3),
    st.sampled_from(["SAME_UPPER", "SAME_LOWER"]),
)
def test_same_padding_gives_ceil_of_size_by_stride(axes, auto_pad):
    spatial, kernel, strides, dilations = (tuple(item) for item in zip(*axes, strict=True))
    pads = conv_padding(spatial, kernel, strides, dilations, (), auto_pad)
    count = len(spatial)
    attrs = ConvolutionAttrs(kernel, strides, dilations, (), 1, auto_pad)
    output = conv_window(attrs, spatial, kernel).output
    assert output == tuple(
        -(-size // stride) for size, stride in zip(spatial, strides, strict=True)
    )
    for begin, end in zip(pads[:count], pads[count:], strict=True):
        assert (end - begin if auto_pad == "SAME_UPPER" else begin - end) in (0, 1)


def test_explicit_and_valid_padding():
    assert conv_padding((5, 5), (3, 3), (1, 1), (1, 1), (1, 2, 3, 4)) == (1, 2, 3, 4)
    assert conv_padding((5, 5), (3, 3), (), (), ()) == (0, 0, 0, 0)
    assert conv_padding((5, 5), (3, 3), (1, 1), (1, 1), (1, 2, 3, 4), "VALID") == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ((5,), (3,), (0,), (1,), (0, 0)),
        ((5,), (3,), (1,), (0,), (0, 0)),
        ((5,), (0,), (1,), (1,), (0, 0)),
        ((5,), (3,), (1,), (1,), (0, -1)),
        ((5,), (3,), (1, 1), (1,), (0, 0)),
        ((5,), (3,), (1,), (1,), (0,)),
        ((5,), (3,), (1,), (1,), (0, 0), "SAME"),
    ],
)
def test_impossible_windows(arguments):
    with pytest.raises(ShapeError):
        conv_padding(*arguments)


def test_global_pooling_covers_everything():
    window = pool_window(PoolingAttrs("MAX", (2, 2), (3, 3), is_global=True), (5, 7))
    assert (window.kernel, window.output, window.pads) == ((5, 7), (1, 1), (0, 0, 0, 0))


@settings(max_examples=200, deadline=None, database=None)
@given(st.integers(1, 9), SMALL, SMALL, SMALL, PAD, PAD, st.integers(0, 3))
def test_deconvolution_undoes_the_shape_of_convolution(
    size, kernel, stride, dilation, begin, end, extra
):
    assume(extra < stride)
    attrs = DeconvolutionAttrs((kernel,), (stride,), (dilation,), (begin, end), (extra,))
    try:
        window = deconv_window(attrs, (size,), (kernel,))
    except ShapeError:
        assert (size - 1) * stride + (kernel - 1) * dilation + 1 + extra < begin + end
        return
    extent = (kernel - 1) * dilation + 1
    if window.output[0] + begin + end >= extent:
        assert pool_output_size(window.output[0], extent, stride, begin, end) == size
    assert sum(window.pads) + window.output[0] == (size - 1) * stride + extent


@pytest.mark.parametrize(
    ("auto_pad", "begins", "ends"),
    [("SAME_UPPER", (1,), (2,)), ("NOTSET", (2,), (1,)), ("SAME_LOWER", (2,), (1,))],
)
def test_output_shape_decides_the_pads(auto_pad, begins, ends):
    attrs = DeconvolutionAttrs((5,), (1,), (1,), (), (0,), (8,), auto_pad=auto_pad)
    window = deconv_window(attrs, (7,), (5,))
    assert (window.begins, window.ends, window.output) == (begins, ends, (8,))


def test_an_output_shape_beyond_the_products():
    window = deconv_window(DeconvolutionAttrs((3,), (3,), (1,), (), (0,), (10,)), (3,), (3,))
    assert (window.begins, window.ends, window.output) == ((0,), (-1,), (10,))
