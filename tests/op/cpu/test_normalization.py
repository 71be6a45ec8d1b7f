from __future__ import annotations

import numpy as np
import pytest

from vkmnn.errors import ShapeError
from vkmnn.ir import Activation
from vkmnn.ir.ops import GroupNormAttrs, LayerNormAttrs, LRNAttrs


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_layer_norm(check, check_fp16, draw, axis):
    shape = (3, 5, 7)
    x, scale, bias = (draw("float32", *dims) for dims in (shape, shape[axis:], shape[axis:]))
    attrs, theirs = LayerNormAttrs(axis, 1e-3), {"axis": axis, "epsilon": 1e-3}
    check("LayerNorm", attrs, [x, scale, bias], "LayerNormalization", theirs, outputs=3, opset=17)
    check("LayerNorm", attrs, [x, scale], "LayerNormalization", theirs, opset=17)
    check_fp16("LayerNorm", attrs, [x, scale, bias], 3)


def test_layer_norm_types_of_the_statistics(run, draw):
    for dtype in ("float16", "float32", "float64"):
        y, mean, inverse = run("LayerNorm", LayerNormAttrs(), [draw(dtype, 2, 7)], 3)
        assert (y.dtype, mean.dtype, inverse.dtype) == (dtype, np.float32, np.float32)
        assert mean.shape == inverse.shape == (2, 1)


def test_layer_norm_broadcasts_scale(run, draw):
    x, scale = draw("float32", 3, 5, 7), draw("float32", 1, 7)
    (y,) = run("LayerNorm", LayerNormAttrs(1), [x, scale])
    (z,) = run("LayerNorm", LayerNormAttrs(1), [x, np.broadcast_to(scale, (5, 7))])
    np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize("axis", [1, -1])
def test_rms_norm(check, check_fp16, draw, axis):
    x, scale = draw("float32", 3, 5, 7), draw("float32", *(3, 5, 7)[axis:])
    attrs, theirs = LayerNormAttrs(axis, 1e-3, rms=True), {"axis": axis, "epsilon": 1e-3}
    check("LayerNorm", attrs, [x, scale], "RMSNormalization", theirs, opset=23)
    check_fp16("LayerNorm", attrs, [x, scale])


def test_layer_norm_far_from_zero(run, draw):
    x = draw("float32", 2, 1024) + np.float32(4096)
    (y,) = run("LayerNorm", LayerNormAttrs(), [x])
    wide = x.astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 7), (3, 0), (1, 1)], ids=str)
def test_layer_norm_of_odd_shapes(run, draw, shape):
    run("LayerNorm", LayerNormAttrs(), [draw("float32", *shape)], 3)


def test_layer_norm_rejects_a_scale_that_does_not_fit(run, draw):
    with pytest.raises(ShapeError, match="scale"):
        run("LayerNorm", LayerNormAttrs(), [draw("float32", 3, 5), draw("float32", 3)])


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (2, 6, 5), (1, 6, 2, 3, 5)], ids=str)
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_norm(check, check_fp16, draw, shape, groups):
    x, scale, bias = (draw("float32", *dims) for dims in (shape, (6,), (6,)))
    attrs, theirs = GroupNormAttrs(groups, 1e-3), {"num_groups": groups, "epsilon": 1e-3}
    check("GroupNorm", attrs, [x, scale, bias], "GroupNormalization", theirs, opset=21)
    check_fp16("GroupNorm", attrs, [x, scale, bias])


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (2, 1, 5), (1, 3, 2, 3, 5)], ids=str)
def test_instance_norm(check, draw, shape):
    x, scale, bias = (draw("float32", *dims) for dims in (shape, shape[1:2], shape[1:2]))
    check(
        "GroupNorm",
        GroupNormAttrs(0, 1e-3),
        [x, scale, bias],
        "InstanceNormalization",
        {"epsilon": 1e-3},
    )


def test_group_norm_options(run, draw):
    x = draw("float32", 2, 4, 3, 3)
    (y,) = run("GroupNorm", GroupNormAttrs(2), [x])
    (z,) = run("GroupNorm", GroupNormAttrs(2, activation=Activation("RELU")), [x])
    np.testing.assert_array_equal(z, np.maximum(y, 0))
    for shape in ((0, 4, 3), (2, 0, 3), (2, 4, 0), (2, 4)):
        run("GroupNorm", GroupNormAttrs(0), [draw("float32", *shape)])
    with pytest.raises(ShapeError, match="groups"):
        run("GroupNorm", GroupNormAttrs(3), [x])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 13])
@pytest.mark.parametrize("shape", [(2, 7, 3, 5), (1, 1, 1, 1)], ids=str)
def test_lrn(check, check_fp16, draw, size, shape):
    attrs, theirs = (
        LRNAttrs(size, 0.5, 0.6, 1.5),
        {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5},
    )
    x = draw("float32", *shape)
    # onnxruntime takes odd sizes only; the reference evaluator confuses batch and channel.
    if size % 2:
        check("LRN", attrs, [x], "LRN", theirs, oracle="runtime")
    check_fp16("LRN", attrs, [x])


def test_lrn_with_an_even_size_looks_further_ahead(run):
    x = np.float32([1, 2, 4, 8]).reshape(1, 4, 1)
    (y,) = run("LRN", LRNAttrs(2, 2.0, 1.0, 0.0), [x])
    np.testing.assert_allclose(y.reshape(-1), [1 / 5, 2 / 20, 4 / 80, 8 / 64])
