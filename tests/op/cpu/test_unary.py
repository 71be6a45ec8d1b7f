from __future__ import annotations

import math

import numpy as np
import pytest

from vkmnn.cpu_fallback.erf import erf
from vkmnn.ir.ops import UNARY_KINDS, UnaryAttrs

SHAPES = [(), (1,), (0,), (7,), (3, 5, 11), (2, 0, 3), (1, 2, 1, 3, 1, 2, 1, 1)]
FLOATS = ["float16", "float32", "float64"]

# kind, ONNX operator, our attributes, ONNX's
KINDS = [
    ("ABS", "Abs", {}, {}),
    ("NEG", "Neg", {}, {}),
    ("RECIPROCAL", "Reciprocal", {}, {}),
    ("FLOOR", "Floor", {}, {}),
    ("CEIL", "Ceil", {}, {}),
    ("ROUND", "Round", {}, {}),
    ("SQRT", "Sqrt", {}, {}),
    ("EXP", "Exp", {}, {}),
    ("LOG", "Log", {}, {}),
    ("ERF", "Erf", {}, {}),
    ("SIN", "Sin", {}, {}),
    ("COS", "Cos", {}, {}),
    ("TAN", "Tan", {}, {}),
    ("ASIN", "Asin", {}, {}),
    ("ACOS", "Acos", {}, {}),
    ("ATAN", "Atan", {}, {}),
    ("SINH", "Sinh", {}, {}),
    ("COSH", "Cosh", {}, {}),
    ("ASINH", "Asinh", {}, {}),
    ("ACOSH", "Acosh", {}, {}),
    ("ATANH", "Atanh", {}, {}),
    ("SIGN", "Sign", {}, {}),
    ("ISNAN", "IsNaN", {}, {}),
    ("RELU", "Relu", {}, {}),
    ("LEAKY_RELU", "LeakyRelu", {"alpha": 0.25}, {"alpha": 0.25}),
    ("SIGMOID", "Sigmoid", {}, {}),
    ("HARD_SIGMOID", "HardSigmoid", {"alpha": 0.375, "beta": 0.25}, {"alpha": 0.375, "beta": 0.25}),
    ("HARD_SWISH", "HardSwish", {}, {}),
    ("TANH", "Tanh", {}, {}),
    ("ELU", "Elu", {"alpha": 1.25}, {"alpha": 1.25}),
    ("SELU", "Selu", {"alpha": 1.625, "beta": 1.125}, {"alpha": 1.625, "gamma": 1.125}),
    ("CELU", "Celu", {"alpha": 1.75}, {"alpha": 1.75}),
    ("SOFTPLUS", "Softplus", {}, {}),
    ("SOFTSIGN", "Softsign", {}, {}),
    ("GELU", "Gelu", {}, {"approximate": "none"}),
    ("GELU_TANH", "Gelu", {}, {"approximate": "tanh"}),
    ("MISH", "Mish", {}, {}),
    ("THRESHOLDED_RELU", "ThresholdedRelu", {"alpha": 0.5}, {"alpha": 0.5}),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("kind", "node", "ours", "theirs"), KINDS, ids=[k[0] for k in KINDS])
def test_float_kinds_match_onnx(check, draw, kind, node, ours, theirs, dtype):
    x = draw(dtype, 3, 5, 7) * np.asarray(2, dtype)
    x.reshape(-1)[:6] = [0.0, -0.0, 0.5, 1.5, -2.5, 1.0]
    if kind in ("TAN", "RECIPROCAL"):
        x = np.where(np.abs(x) < 0.1, np.asarray(0.3, dtype), x)
    # ONNX's bodies of these hold float32 constants; erf's accuracy has a test of its own.
    rough = kind in ("ERF", "HARD_SWISH", "GELU", "GELU_TANH") and dtype == "float64"
    tolerance = 1e-6 if rough else None
    check("UnaryOp", UnaryAttrs(kind, **ours), [x], node, theirs, tolerance=tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["EXP", "GELU", "CLIP", "RELU", "ROUND", "NOT", "ISINF"])
def test_every_shape(run, draw, kind, shape):
    x = draw("bool" if kind == "NOT" else "float32", *shape)
    (y,) = run("UnaryOp", UnaryAttrs(kind, -1.0, 1.0), [x])
    assert y.shape == shape


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (kind, dtype)
        for kind in ("ABS", "SIGN", "RELU")
        for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint64")
        if kind != "RELU" or not dtype.startswith("u")  # ONNX has no unsigned Relu
    ],
)
def test_integer_kinds(check, draw, kind, dtype):
    node = kind.title()
    check("UnaryOp", UnaryAttrs(kind), [draw(dtype, 13)], node)


@pytest.mark.parametrize("kind", ["FLOOR", "CEIL", "ROUND"])
def test_rounding_leaves_integers_alone(run, kind):
    x = np.array([2**62 + 1, -3], dtype=np.int64)
    (y,) = run("UnaryOp", UnaryAttrs(kind), [x])
    np.testing.assert_array_equal(x, y)


def test_int64_keeps_all_its_bits(run):
    x = np.array([-(2**62) - 1, 2**62 + 1], dtype=np.int64)
    np.testing.assert_array_equal(run("UnaryOp", UnaryAttrs("NEG"), [x])[0], -x)
    np.testing.assert_array_equal(run("UnaryOp", UnaryAttrs("ABS"), [x])[0], np.abs(x))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint8"])
def test_clip(check, draw, dtype):
    x = draw(dtype, 5, 7)
    low, high = np.asarray(1, dtype), np.asarray(3, dtype)
    check(
        "UnaryOp", UnaryAttrs("CLIP", 1.0, 3.0), [x], "Clip", onnx_arrays=[x, low, high], opset=13
    )


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_clip_without_limits_keeps_integers(run, dtype):
    limits = np.iinfo(dtype)
    x = np.array([limits.min, 0, 5, limits.max], dtype=dtype)
    (y,) = run("UnaryOp", UnaryAttrs("CLIP", -math.inf, math.inf), [x])
    np.testing.assert_array_equal(x, y)


def test_clip_with_crossed_limits_gives_the_upper_one(run):
    (y,) = run("UnaryOp", UnaryAttrs("CLIP", 3.0, 1.0), [np.array([0.0, 2.0, 5.0], np.float32)])
    np.testing.assert_array_equal(y, [1.0, 1.0, 1.0])


@pytest.mark.parametrize(("negative", "positive"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_isinf(check, negative, positive):
    x = np.array([np.inf, -np.inf, np.nan, 1.0], dtype=np.float32)
    theirs = {"detect_negative": negative, "detect_positive": positive}
    check("UnaryOp", UnaryAttrs("ISINF", negative, positive), [x], "IsInf", theirs)


def test_not(check, draw):
    check("UnaryOp", UnaryAttrs("NOT"), [draw("bool", 11)], "Not")


@pytest.mark.parametrize("dtype", FLOATS)
def test_kinds_without_an_onnx_operator(run, draw, dtype):
    x = draw(dtype, 17)
    positive = np.abs(x) + np.asarray(0.5, dtype)
    wide = x.astype(np.float64)
    limit = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    wanted = {
        "SQUARE": (x, wide**2),
        "SILU": (x, wide / (1 + np.exp(-wide))),
        "RSQRT": (positive, positive.astype(np.float64) ** -0.5),
    }
    for kind, (given, want) in wanted.items():
        (y,) = run("UnaryOp", UnaryAttrs(kind), [given])
        np.testing.assert_allclose(y, want.astype(dtype), rtol=limit)


def test_every_kind_runs_and_warns_of_nothing(run, recwarn):
    x = np.array([-np.inf, -5, -1, -0.0, 0, 0.5, 1, 5, 100, np.inf, np.nan], dtype=np.float32)
    for kind in UNARY_KINDS:
        run("UnaryOp", UnaryAttrs(kind, 1.0, 1.0), [x])
    assert not recwarn.list


@pytest.mark.parametrize("kind", ["RELU", "CLIP", "LEAKY_RELU", "ELU", "SIGMOID", "GELU"])
def test_nan_stays_nan(run, kind):
    (y,) = run("UnaryOp", UnaryAttrs(kind, 0.1, 1.0), [np.array([np.nan], dtype=np.float32)])
    assert np.isnan(y).all()


def test_erf_is_accurate_to_float64():
    x = np.concatenate([np.linspace(-7, 7, 5003), [0.46875, 4.0, 1e-300, np.inf, -np.inf]])
    want = np.array([math.erf(value) for value in x])
    assert np.abs(erf(x) - want).max() < 1e-15
    assert np.isnan(erf(np.nan))
    assert erf(-0.0) == 0.0
    assert np.signbit(erf(-0.0))
