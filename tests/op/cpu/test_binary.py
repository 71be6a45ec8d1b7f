from __future__ import annotations

import numpy as np
import pytest

from vkmnn.errors import ShapeError
from vkmnn.ir import Activation, DType, OpAttrs
from vkmnn.ir.ops import BINARY_KINDS, BIT_KINDS, BinaryAttrs, CastAttrs, ScaleAttrs

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
NODES = {
    "ADD": "Add",
    "SUB": "Sub",
    "MUL": "Mul",
    "DIV": "Div",
    "MIN": "Min",
    "MAX": "Max",
    "EQUAL": "Equal",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "MOD": "Mod",
    "PRELU": "PRelu",
}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (kind, dtype)
        for kind in NODES
        for dtype in FLOATS + INTEGERS
        if kind != "MOD" or dtype in INTEGERS  # ONNX Mod of floats is FMOD
        if kind != "PRELU" or dtype not in ("int8", "int16", "uint8", "uint16")
    ],
)
def test_arithmetic_matches_onnx(check, draw, kind, dtype):
    a, b = draw(dtype, 3, 5, 7), draw(dtype, 5, 1)
    if kind in ("DIV", "MOD"):
        b = np.where(b == 0, np.asarray(3, dtype), b)
    check("BinaryOp", BinaryAttrs(kind), [a, b], NODES[kind])


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "uint8"])
def test_fmod_has_the_sign_of_the_dividend(check, draw, dtype):
    a, b = draw(dtype, 31), draw(dtype, 31)
    b = np.where(b == 0, np.asarray(3, dtype), b)
    check("BinaryOp", BinaryAttrs("FMOD"), [a, b], "Mod", {"fmod": 1})


def test_float_mod_has_the_sign_of_the_divisor(run):
    a, b = np.float32([5.5, -5.5, 5.5, -5.5]), np.float32([3, 3, -3, -3])
    (y,) = run("BinaryOp", BinaryAttrs("MOD"), [a, b])
    np.testing.assert_array_equal(y, np.float32([2.5, 0.5, -0.5, -2.5]))


def test_integer_division_truncates(run):
    a, b = np.int32([7, -7, 7, -7, 6, 0]), np.int32([2, 2, -2, -2, -3, 5])
    (y,) = run("BinaryOp", BinaryAttrs("DIV"), [a, b])
    np.testing.assert_array_equal(y, [3, -3, -3, 3, -2, 0])


@pytest.mark.parametrize("base", ["float16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("exponent", ["float32", "float64", "int32", "int64", "uint8"])
def test_power_keeps_the_type_of_the_base(check, draw, base, exponent):
    a = np.abs(draw(base, 11)) + np.asarray(1, base)
    b = np.abs(draw(exponent, 11)) % np.asarray(3, exponent)
    check("BinaryOp", BinaryAttrs("POW"), [a, b], "Pow", opset=15)


def test_power_of_integers_with_a_negative_exponent(run):
    a, b = np.int64([2, 1, -1, 3]), np.int64([-1, -5, -3, 2])
    np.testing.assert_array_equal(run("BinaryOp", BinaryAttrs("POW"), [a, b])[0], [0, 1, -1, 9])


def test_power_of_int64_is_exact(run):
    (y,) = run("BinaryOp", BinaryAttrs("POW"), [np.int64([3]), np.int64([39])])
    assert y[0] == 3**39


@pytest.mark.parametrize("kind", ["AND", "OR", "XOR", "EQUAL"])
def test_logic(check, draw, kind):
    node = kind.title()
    check("BinaryOp", BinaryAttrs(kind), [draw("bool", 3, 1), draw("bool", 5)], node)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kind", ["AND", "OR", "XOR"])
def test_bits(check, kind, dtype):
    limits, random = np.iinfo(dtype), np.random.default_rng(4)
    a = random.integers(limits.min, limits.max, (3, 1), dtype, endpoint=True)
    b = np.array([limits.min, limits.max, limits.max // 3, 0, 1], dtype)
    check("BinaryOp", BinaryAttrs(f"BIT_{kind}"), [a, b], f"Bitwise{kind.title()}", opset=18)


def test_bits_of_floats_are_refused(run):
    with pytest.raises(ShapeError, match="BIT_OR of float32, not of integers"):
        run("BinaryOp", BinaryAttrs("BIT_OR"), [np.ones(2, np.float32)] * 2)


@pytest.mark.parametrize(
    "shapes",
    [((), ()), ((1,), ()), ((0,), (1,)), ((3, 0), (1,)), ((2, 1, 3), (5, 1)), ((1,) * 8, (7,))],
    ids=str,
)
def test_broadcasting(check, draw, shapes):
    a, b = (draw("float32", *shape) for shape in shapes)
    check("BinaryOp", BinaryAttrs("ADD"), [a, b], "Add")


@pytest.mark.parametrize("kind", ["MIN", "MAX"])
def test_nan_spreads(run, kind):
    a, b = np.float32([np.nan, 1, 2]), np.float32([1, np.nan, 3])
    (y,) = run("BinaryOp", BinaryAttrs(kind), [a, b])
    np.testing.assert_array_equal(np.isnan(y), [True, True, False])


def test_every_kind_survives_zeros_and_warns_of_nothing(run, recwarn):
    for dtype in ("float32", "int32", "uint8", "bool"):
        a = np.array([0, 1], dtype=dtype)
        for kind in BINARY_KINDS:
            if dtype == "bool" and kind in (
                "SUB",
                "POW",
                "DIV",
                "MOD",
                "FMOD",
                "PRELU",
                *BIT_KINDS,
            ):
                continue
            if dtype == "float32" and kind in BIT_KINDS:
                continue
            run("BinaryOp", BinaryAttrs(kind), [a, np.zeros_like(a)])
    assert not recwarn.list


def test_activation(run):
    a = np.float32([-3, 1, 9])
    attrs = BinaryAttrs("ADD", Activation("CLIP", 0.0, 6.0))
    np.testing.assert_array_equal(run("BinaryOp", attrs, [a, np.float32(1)])[0], [0, 2, 6])


@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "uint8", "bool"])
def test_select(check, draw, dtype):
    arrays = [draw("bool", 3, 1, 1), draw(dtype, 5, 1), draw(dtype, 7)]
    check("Select", OpAttrs(), arrays, "Where")


@pytest.mark.parametrize("source", [*FLOATS, "int8", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("target", [dtype for dtype in DType if dtype is not DType.OBJECT])
def test_cast(check, draw, source, target):
    from onnx import helper

    x = draw(source, 3, 7)
    if np.dtype(target.value).kind == "u":
        x = np.abs(x)
    to = helper.np_dtype_to_tensor_dtype(target.numpy)
    check("Cast", CastAttrs(target), [x], "Cast", {"to": to})


def test_cast_details(run):
    x = np.float32([1.9, -1.9, 0.5, -0.5, 0.0])
    np.testing.assert_array_equal(run("Cast", CastAttrs(DType.INT32), [x])[0], [1, -1, 0, 0, 0])
    np.testing.assert_array_equal(
        run("Cast", CastAttrs(DType.BOOL), [np.float32([0.1, -0.0, np.nan])])[0],
        [True, False, True],
    )
    np.testing.assert_array_equal(
        run("Cast", CastAttrs(DType.UINT8), [np.float32([-1.0, 257.0])])[0], [255, 1]
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (1, 7, 3, 2), (2, 3, 0)], ids=str)
def test_scale(run, draw, dtype, shape):
    x, scale, bias = draw(dtype, *shape), draw(dtype, shape[1]), draw(dtype, shape[1])
    (y,) = run("Scale", ScaleAttrs(Activation("RELU")), [x, scale, bias])
    channel = (-1,) + (1,) * (len(shape) - 2)
    want = np.maximum(x * scale.reshape(channel) + bias.reshape(channel), 0)
    np.testing.assert_allclose(y, want, rtol=4e-3 if dtype == "float16" else 1e-6, atol=4e-3)
