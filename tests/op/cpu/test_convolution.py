from __future__ import annotations

import numpy as np
import pytest

from vkmnn.errors import ShapeError
from vkmnn.ir import Activation
from vkmnn.ir.ops import ConvolutionAttrs, DeconvolutionAttrs

# x, w, strides, dilations, pads, group
CONVOLUTIONS = [
    ((2, 3, 7, 11), (5, 3, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
    ((1, 4, 11, 7), (7, 4, 5, 3), (2, 3), (2, 1), (2, 1, 0, 3), 1),
    ((3, 5, 13, 17), (5, 1, 3, 3), (2, 1), (1, 2), (1, 0, 2, 1), 5),
    ((2, 3, 5, 7), (6, 1, 3, 2), (1, 1), (1, 1), (0, 0, 0, 0), 3),
    ((2, 6, 5, 7), (9, 2, 2, 2), (1, 1), (1, 1), (0, 1, 1, 0), 3),
    ((1, 7, 5, 3), (11, 7, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    ((2, 3, 13), (5, 3, 4), (3,), (2,), (1, 2), 1),
    ((2, 4, 5, 7, 6), (6, 2, 3, 2, 3), (1, 2, 1), (1, 1, 2), (1, 0, 2, 0, 1, 2), 2),
    ((0, 3, 5, 5), (2, 3, 3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution_matches_onnxruntime(check, check_fp16, run, draw, case):
    x_shape, w_shape, strides, dilations, pads, group = case
    x, w, b = (draw("float32", *shape) for shape in (x_shape, w_shape, w_shape[:1]))
    attrs = ConvolutionAttrs(w_shape[2:], strides, dilations, pads, group)
    theirs = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    arguments = ("Conv", theirs)
    check("Convolution", attrs, [x, w], *arguments, oracle="runtime", tolerance=1e-4)
    (y,) = check("Convolution", attrs, [x, w, b], *arguments, oracle="runtime", tolerance=1e-4)
    (z,) = run("Convolution", attrs, [item.astype(np.float64) for item in (x, w, b)])
    np.testing.assert_allclose(z, y, rtol=1e-4, atol=1e-4)
    check_fp16("Convolution", attrs, [x, w, b])


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3), (5, 4)])
def test_auto_pad(check, draw, auto_pad, strides):
    x, w = draw("float32", 1, 2, 11, 9), draw("float32", 3, 2, 4, 3)
    attrs = ConvolutionAttrs((4, 3), strides, (1, 1), (), 1, auto_pad)
    theirs = {"strides": strides, "auto_pad": auto_pad}
    check("Convolution", attrs, [x, w], "Conv", theirs, oracle="runtime", tolerance=1e-4)


def test_residual_comes_before_the_activation(run, draw):
    x, w, b = draw("float32", 1, 2, 5, 5), draw("float32", 3, 2, 3, 3), draw("float32", 3)
    residual = draw("float32", 1, 3, 5, 5)
    plain = ConvolutionAttrs((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    fused = ConvolutionAttrs(
        (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), activation=Activation("LEAKY_RELU", 0.25)
    )
    (y,) = run("Convolution", plain, [x, w, b])
    (z,) = run("Convolution", fused, [x, w, b, residual])
    want = y + residual
    np.testing.assert_allclose(z, np.where(want < 0, 0.25 * want, want), rtol=1e-6)
    (z,) = run("Convolution", fused, [x, w, None, residual])
    assert z.shape == residual.shape


def test_integers(run):
    x, w = np.arange(16, dtype=np.int32).reshape(1, 1, 4, 4), np.ones((1, 1, 2, 2), np.int32)
    (y,) = run("Convolution", ConvolutionAttrs((2, 2), (2, 2), (1, 1), (0, 0, 0, 0)), [x, w])
    np.testing.assert_array_equal(y.reshape(-1), [10, 18, 42, 50])


def test_empty_spatial_axis(run, draw):
    attrs = ConvolutionAttrs((3, 3), (1, 1), (1, 1), (0, 1, 0, 1))
    (y,) = run("Convolution", attrs, [draw("float32", 2, 3, 0, 5), draw("float32", 4, 3, 3, 3)])
    assert y.shape == (2, 4, 0, 5)


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 3, 5, 5), (4, 2, 3, 3), ConvolutionAttrs((3, 3), (1, 1), (1, 1), (0,) * 4)),
        ((1, 3, 2, 5), (4, 3, 3, 3), ConvolutionAttrs((3, 3), (1, 1), (1, 1), (0,) * 4)),
        ((1, 4, 5, 5), (3, 2, 3, 3), ConvolutionAttrs((3, 3), (1, 1), (1, 1), (0,) * 4, 2)),
        ((1, 3, 5, 5), (4, 3, 3, 3), ConvolutionAttrs((3, 3), (0, 1), (1, 1), (0,) * 4)),
        ((1, 3, 5, 5), (4, 3, 3, 3), ConvolutionAttrs((3, 3), (1, 1), (1, 1), (0, 0))),
        ((1, 3, 5, 5), (4, 3, 3, 3), ConvolutionAttrs((3, 3), (1, 1), (1, 1), (-1, 0, 0, 0))),
        ((1, 3, 5, 5), (4, 3, 3), ConvolutionAttrs((3,), (1,), (1,), (0, 0))),
        ((1, 3, 5, 5), (4, 3, 3, 3), ConvolutionAttrs((5, 3), (1, 1), (1, 1), (0,) * 4)),
        ((1, 3, 5, 5), (4, 3, 3, 3), ConvolutionAttrs((3, 3), (1, 1), (1, 1), (0,) * 4, 0)),
    ],
)
def test_impossible_shapes(run, draw, x, w, attrs):
    with pytest.raises(ShapeError) as error:
        run("Convolution", attrs, [draw("float32", *x), draw("float32", *w)])
    assert error.value.op == "Convolution"
    assert error.value.node == "node"
    assert error.value.hint
    assert str(list(x)) in str(error.value)


# x, w, strides, dilations, pads, output_padding, group
DECONVOLUTIONS = [
    ((2, 3, 5, 7), (3, 5, 3, 3), (1, 1), (1, 1), (0, 0, 0, 0), (0, 0), 1),
    ((1, 4, 3, 5), (4, 3, 3, 2), (2, 3), (1, 1), (1, 0, 1, 1), (1, 2), 1),
    ((2, 6, 3, 4), (6, 2, 3, 3), (2, 2), (2, 1), (2, 1, 0, 1), (0, 1), 3),
    ((1, 5, 4, 3), (5, 1, 4, 4), (2, 2), (1, 1), (1, 1, 1, 1), (0, 0), 5),
    ((2, 3, 7), (3, 2, 5), (3,), (2,), (1, 2), (2,), 1),
    ((1, 2, 3, 4, 2), (2, 3, 2, 3, 2), (2, 1, 2), (1, 1, 1), (1, 1, 0, 0, 1, 1), (1, 0, 1), 1),
]


@pytest.mark.parametrize("case", DECONVOLUTIONS, ids=str)
def test_deconvolution_matches_onnxruntime(check, draw, case):
    x_shape, w_shape, strides, dilations, pads, extra, group = case
    x, w = draw("float32", *x_shape), draw("float32", *w_shape)
    b = draw("float32", w_shape[1] * group)
    attrs = DeconvolutionAttrs(w_shape[2:], strides, dilations, pads, extra, group=group)
    theirs = {
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "output_padding": extra,
        "group": group,
    }
    check(
        "Deconvolution", attrs, [x, w, b], "ConvTranspose", theirs, oracle="runtime", tolerance=1e-4
    )


@pytest.mark.parametrize(
    ("output_shape", "extra"),
    [((10, 8), (0, 0)), ((10, 8), (1, 1)), ((7, 7), (0, 0)), ((8, 5), (0, 0))],
)
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_deconvolution_output_shape(check, draw, output_shape, extra, auto_pad):
    x, w = draw("float32", 1, 2, 3, 3), draw("float32", 2, 3, 3, 3)
    attrs = DeconvolutionAttrs((3, 3), (3, 2), (1, 1), (), extra, output_shape, auto_pad=auto_pad)
    theirs = {
        "strides": (3, 2),
        "output_shape": output_shape,
        "output_padding": extra,
        "auto_pad": auto_pad,
    }
    check("Deconvolution", attrs, [x, w], "ConvTranspose", theirs, oracle="runtime", tolerance=1e-4)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_deconvolution_auto_pad(check, draw, auto_pad, strides):
    x, w = draw("float32", 1, 2, 5, 3), draw("float32", 2, 3, 4, 3)
    attrs = DeconvolutionAttrs((4, 3), strides, (1, 1), (), (0, 0), auto_pad=auto_pad)
    theirs = {"strides": strides, "auto_pad": auto_pad}
    check("Deconvolution", attrs, [x, w], "ConvTranspose", theirs, oracle="runtime", tolerance=1e-4)


def test_deconvolution_is_the_transpose_of_convolution(run, draw):
    x, y = draw("float64", 2, 3, 9, 8), draw("float64", 2, 4, 5, 4)
    w = draw("float64", 4, 3, 3, 3)
    geometry = ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1))
    (forward,) = run("Convolution", ConvolutionAttrs(*geometry), [x, w])
    (back,) = run("Deconvolution", DeconvolutionAttrs(*geometry, (0, 1)), [y, w])
    np.testing.assert_allclose((forward * y).sum(), (back * x).sum(), rtol=1e-10)


def test_deconvolution_of_an_empty_axis(run, draw):
    attrs = DeconvolutionAttrs((3, 3), (2, 2), (1, 1), (0,) * 4, (0, 0))
    (y,) = run("Deconvolution", attrs, [draw("float32", 1, 2, 0, 3), draw("float32", 2, 1, 3, 3)])
    assert y.shape == (1, 1, 1, 7)
    assert not y.any()
