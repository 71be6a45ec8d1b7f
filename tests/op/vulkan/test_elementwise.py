"""Element-wise ops and data movement on the device against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check, check_case, run_graph
from vkmnn.ir import Activation, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    ACTIVATION_KINDS,
    BINARY_KINDS,
    BIT_KINDS,
    UNARY_KINDS,
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    ConvolutionAttrs,
    ReshapeAttrs,
    TransposeAttrs,
    UnaryAttrs,
)
from vkmnn_suite.cases.coded import quantizer
from vkmnn_suite.cases.elementwise import MORE_PAIRS, PAIRS, operands_of
from vkmnn_suite.cases.unary import INTEGER_KINDS, PARAMETERS, unary_cases

RNG = np.random.default_rng(1)
INTEGER_BINARY = set(BINARY_KINDS) - {"AND", "OR", "XOR", "PRELU"}
LOGICAL = ("AND", "OR", "XOR", "EQUAL")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", [kind for kind in UNARY_KINDS if kind != "NOT"])
def test_unary(kind: str) -> None:
    for case in unary_cases(kind, "f32"):
        check_case(case)


@pytest.mark.parametrize("kind", sorted(INTEGER_KINDS))
def test_unary_of_integers(kind: str) -> None:
    for case in unary_cases(kind, "i32"):
        check_case(case)


@pytest.mark.parametrize(("a", "b"), [*PAIRS, *MORE_PAIRS], ids=str)
@pytest.mark.parametrize("kind", sorted(INTEGER_BINARY - set(BIT_KINDS)))
def test_binary(kind: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check("BinaryOp", BinaryAttrs(kind), operands_of(kind, "f32", a, b), rtol=1e-5)


@pytest.mark.parametrize("kind", sorted(INTEGER_BINARY))
def test_binary_of_integers(kind: str) -> None:
    a = RNG.integers(-9, 9, (5, 7)).astype(np.int64)
    b = RNG.integers(1, 5, (7,)).astype(np.int64)
    check("BinaryOp", BinaryAttrs(kind), [a, b])
    if kind != "POW":
        check("BinaryOp", BinaryAttrs(kind), [a, -b])


@pytest.mark.parametrize("kind", LOGICAL)
def test_logic(kind: str) -> None:
    check("BinaryOp", BinaryAttrs(kind), [RNG.random((5, 7)) > 0.5, RNG.random((5, 1)) > 0.5])


def test_binary_with_activation_and_constant_operand() -> None:
    attrs = BinaryAttrs("ADD", Activation("RELU"))
    for shape in ((8, 1, 1), (1,), (2, 8, 5, 3)):
        check("BinaryOp", attrs, [floats(2, 8, 5, 3), floats(*shape)], constant={1})


def test_power_of_negative_numbers() -> None:
    base = np.array([-2, -2, -2, 0, 0, 2, -8], np.float32)
    exponent = np.array([2, 3, 5, 0, 2, -1, 7], np.float32)
    check("BinaryOp", BinaryAttrs("POW"), [base, exponent])


@pytest.mark.parametrize("channels", [3, 5, 8])
@pytest.mark.parametrize("other", ["same", "per_channel", "per_pixel", "scalar", "vector"])
@pytest.mark.parametrize("kind", ["ADD", "MUL", "DIV", "EQUAL"])
def test_binary_between_convolutions_keeps_tail_lanes_zero(
    channels: int, other: str, kind: str
) -> None:
    """Channel-blocked operands of every broadcast form, read by a convolution afterwards."""
    shape = {
        "same": (2, channels, 5, 3),
        "per_channel": (1, channels, 1, 1),
        "per_pixel": (2, 1, 5, 3),
        "scalar": (),
        "vector": (channels, 1, 1),
    }[other]
    conv = ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
    eye = np.eye(channels, dtype=np.float32)[:, :, None, None]
    out = DType.BOOL if kind == "EQUAL" else DType.FLOAT32
    last = (
        Op("Cast", "cast", ["z"], ["zf"], CastAttrs(DType.FLOAT32))
        if out is DType.BOOL
        else Op("UnaryOp", "neg", ["z"], ["zf"], UnaryAttrs("NEG"))
    )
    graph = Graph(
        "chain",
        [
            TensorInfo("x", DType.FLOAT32, (2, channels, 5, 3)),
            TensorInfo("o", DType.FLOAT32, shape),
        ],
        [TensorInfo("y", DType.FLOAT32, None)],
        [
            Op("Convolution", "first", ["x", "w"], ["a"], conv),
            Op("BinaryOp", "op", ["a", "o"], ["z"], BinaryAttrs(kind)),
            last,
            Op("Convolution", "second", ["zf", "w"], ["y"], conv),
        ],
        {"w": eye},
    )
    x, o = floats(2, channels, 5, 3), floats(*shape) + np.float32(3)
    (y,) = run_graph(graph, {"x": x, "o": o})
    want = {"ADD": x + o, "MUL": x * o, "DIV": x / o, "EQUAL": x == o}[kind]
    np.testing.assert_allclose(y, want if kind == "EQUAL" else -want, rtol=1e-5, atol=1e-6)


CASTS = [np.float32, np.float16, np.int32, np.int64, np.uint8, np.int8, np.bool_]


@pytest.mark.parametrize("source", CASTS)
@pytest.mark.parametrize("dest", CASTS)
def test_cast(source: type, dest: type) -> None:
    x = (50 * floats(3, 5, 7)).astype(np.int32)
    if np.dtype(source).kind == "u":
        x = np.abs(x)
    x = np.clip(x, -127, 127).astype(source)
    if np.dtype(source).kind == "f":
        x = x + source(0.25)
        if np.dtype(dest).kind == "u":
            x = np.abs(x)
    check("Cast", CastAttrs(DType.from_numpy(dest)), [x])


def test_cast_wraps_narrow_integers() -> None:
    x = np.array([300, -1, 256, 127, 128, 70000], np.int32)
    for dest in (DType.UINT8, DType.INT8, DType.UINT16, DType.INT16):
        check("Cast", CastAttrs(dest), [x])


@pytest.mark.parametrize(
    "shapes", [((3, 5), (3, 5), (1, 5)), ((5, 1), (8,), ()), ((1, 3), (3, 1), (1,))]
)
def test_select(shapes: tuple[tuple[int, ...], ...]) -> None:
    condition, a, b = shapes
    check("Select", OpAttrs(), [RNG.random(condition) > 0.5, floats(*a), floats(*b)])
    numbers = [RNG.integers(0, 99, shape) for shape in (a, b)]
    check("Select", OpAttrs(), [RNG.random(condition) > 0.5, *numbers])


@pytest.mark.parametrize("perm", [(2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0)])
@pytest.mark.parametrize("shape", [(3, 5, 7), (4, 8, 12), (1, 1, 1), (0, 2, 3)])
def test_transpose(perm: tuple[int, ...], shape: tuple[int, ...]) -> None:
    check("Transpose", TransposeAttrs(perm), [floats(*shape)])


@pytest.mark.parametrize("channels", [(4, 8), (3, 5), (4, 3), (8, 4, 4)])
@pytest.mark.parametrize("batch", [1, 2])
def test_concat_of_convolutions(channels: tuple[int, ...], batch: int) -> None:
    """Whole channel blocks are copied as they lie; others go through plain order."""
    conv = ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
    x = floats(batch, 3, 5, 7)
    weights = {f"w{i}": floats(c, 3, 1, 1) for i, c in enumerate(channels)}
    ops = [
        Op("Convolution", f"c{i}", ["x", f"w{i}"], [f"t{i}"], conv) for i in range(len(channels))
    ]
    names = [f"t{i}" for i in range(len(channels))]
    ops.append(Op("Concat", "concat", names, ["all"], AxisAttrs(1)))
    ops.append(Op("UnaryOp", "neg", ["all"], ["y"], UnaryAttrs("NEG")))
    graph = Graph(
        "concat",
        [TensorInfo("x", DType.FLOAT32, x.shape)],
        [TensorInfo("y", DType.FLOAT32, None)],
        ops,
        weights,
    )
    (y,) = run_graph(graph, {"x": x})
    parts = [np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]) for w in weights.values()]
    np.testing.assert_allclose(y, -np.concatenate(parts, 1), rtol=1e-5, atol=1e-5)


def test_reshape_is_free() -> None:
    check("Reshape", ReshapeAttrs(), [floats(3, 5, 7), np.array([-1, 5])], constant={1})


@pytest.mark.parametrize("unit", [0.0123, 0.7, 3.1e-5, 97.3])
def test_codes_are_rounded_quotients(unit: float) -> None:
    # Halves of units, and what lies an ULP or two beside them.
    middle = ((np.arange(-140, 140) + 0.5) * np.float32(unit)).astype(np.float32)
    bits = middle.view(np.int32)[:, None] + np.arange(-2, 3, dtype=np.int32)
    x = np.ascontiguousarray(bits).view(np.float32)
    check("Elementwise", quantizer(unit, -128, 127), [x], rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["MOD", "FMOD"])
def test_rests_of_special_floats(kind: str) -> None:
    numbers = np.float32([0, 1, 3, 0.7, 7, 1e-30, np.inf, np.nan])
    numbers = np.concatenate([numbers, -numbers])
    a, b = (array.reshape(-1) for array in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        ((y,), expected) = (
            check("BinaryOp", BinaryAttrs(kind), [a, b], atol=1e-6),
            {"MOD": np.mod, "FMOD": np.fmod}[kind](a, b),
        )
    np.testing.assert_array_equal(np.signbit(y[expected == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("kind", ["MOD", "FMOD"])
def test_rests_are_exact_whatever_the_quotient(kind: str) -> None:
    exponents = np.arange(-126, 127, 7)
    numbers = np.ldexp(RNG.uniform(1, 2, exponents.size), exponents).astype(np.float32)
    a, b = (array.reshape(-1) for array in np.meshgrid(numbers, -numbers[::-1]))
    # Sums of MOD round once, as numpy's; what lies below the smallest normal number may be zero.
    check("BinaryOp", BinaryAttrs(kind), [a, b], rtol=0, atol=1.2e-38)


@pytest.mark.parametrize(
    "kind", ["SIN", "TAN", "SINH", "TANH", "ASIN", "ATAN", "ASINH", "ATANH", "ERF"]
)
def test_odd_functions_keep_the_sign_of_zero(kind: str) -> None:
    x = np.float32([0.0, -0.0, -0.0, 0.0, -0.0])
    (y,) = check("UnaryOp", UnaryAttrs(kind), [x])
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


@pytest.mark.parametrize("kind", ["SIGN", "RELU"])
def test_zero_has_no_sign(kind: str) -> None:
    (y,) = check("UnaryOp", UnaryAttrs(kind), [np.float32([0.0, -0.0, -1.0, 2.0, -0.0])])
    assert not np.signbit(y[[0, 1, 4]]).any()


@pytest.mark.parametrize("kind", [k for k in ACTIVATION_KINDS if k != "NONE"])
def test_activations_let_nan_through(kind: str) -> None:
    x = np.float32([np.nan, 1.0, -np.nan, -1.0, 300.0, -300.0, 0.0])
    parameters = PARAMETERS.get(kind, ())
    attrs = BinaryAttrs("MUL", Activation(kind, *parameters))
    check("BinaryOp", attrs, [x, np.float32([1] * 7)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64])
def test_constants_beyond_32_bits_are_left_to_the_backup(dtype: type[np.generic]) -> None:
    x, big = np.ones(3, dtype), np.array([np.iinfo(dtype).max], dtype)
    check("BinaryOp", BinaryAttrs("EQUAL"), [x, big], constant={1}, on_device=False)


def test_rounding_to_half_precision() -> None:
    """Every half-precision number, the middles between neighbours and what lies beside those."""
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:-1] + halves[:-2]) / 2
    middles = np.append(middles, np.float32(65520))
    x = np.concatenate(
        [halves, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.inf)]
    )
    x = np.concatenate([x, -x, np.float32([np.nan])])
    check("Cast", CastAttrs(DType.FLOAT16), [x], rtol=0, atol=0)


def test_powers_of_special_floats() -> None:
    numbers = np.float32([0, 1, 2, 3, 0.5, 0.7, 7, 33, 34, 1e-30, 1e30, np.inf, np.nan])
    numbers = np.concatenate([numbers, -numbers])
    a, b = (array.reshape(-1) for array in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        check("BinaryOp", BinaryAttrs("POW"), [a, b], rtol=1e-5, atol=1e-30)


def test_powers_of_whole_numbers_are_exact() -> None:
    a, b = (array.astype(np.float32) for array in np.meshgrid(np.arange(-20, 21), np.arange(6)))
    check("BinaryOp", BinaryAttrs("POW"), [a, b], rtol=0, atol=0)
