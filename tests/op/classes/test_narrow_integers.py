"""Integers narrower than a device word: values out of range wrap before anything reads them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.op.classes.whole import check, devices, model, node
from vkmnn import InferenceSession, IntegerRangeError
from vkmnn.ir import Array

TYPES = ["int8", "uint8", "int16", "uint16"]
SMALL = np.array([1, 3, 2, 7, 5, 4] * 4, np.int64)
AXIS = np.array([1])

Wide = Callable[[Array, Array], Array]

# Operator, inputs, attributes, and the result in 64 bits; a and b are any numbers of the type.
CASES: dict[str, tuple[str, str, dict[str, object], Wide]] = {
    "add": ("Add", "a b", {}, lambda a, b: a + b),
    "subtract": ("Sub", "a b", {}, lambda a, b: a - b),
    "multiply": ("Mul", "a b", {}, lambda a, b: a * b),
    "divide": ("Div", "a s", {}, lambda a, b: np.trunc(a / _row(SMALL)).astype(np.int64)),
    "power": ("Pow", "a s", {}, lambda a, b: a ** _row(SMALL)),
    "power of float": ("Pow", "a three", {}, lambda a, b: a**3),
    "negate": ("Neg", "a", {}, lambda a, b: -a),
    "size": ("Abs", "a", {}, lambda a, b: abs(a)),
    "invert": ("BitwiseNot", "a", {}, lambda a, b: ~a),
    "both bits": ("BitwiseAnd", "a b", {}, lambda a, b: a & b),
    "either bit": ("BitwiseOr", "a b", {}, lambda a, b: a | b),
    "differing bits": ("BitwiseXor", "a b", {}, lambda a, b: a ^ b),
    "sum": ("ReduceSum", "a axis", {}, lambda a, b: a.sum(1, keepdims=True)),
    "sum of all": ("ReduceSum", "a", {}, lambda a, b: a.sum(keepdims=True)),
    "product": ("ReduceProd", "a axis", {}, lambda a, b: a.prod(1, keepdims=True)),
    "sizes": ("ReduceL1", "a axis", {}, lambda a, b: abs(a).sum(1, keepdims=True)),
    "squares": ("ReduceSumSquare", "a axis", {}, lambda a, b: (a * a).sum(1, keepdims=True)),
    "running sum": ("CumSum", "a one", {}, lambda a, b: a.cumsum(1)),
    "rest": (
        "CumSum",
        "a one",
        {"reverse": 1, "exclusive": 1},
        lambda a, b: a[:, ::-1].cumsum(1)[:, ::-1] - a,
    ),
    "einsum": ("Einsum", "a b", {"equation": "ij,kj->ik"}, lambda a, b: a @ b.T),
    "products": ("Einsum", "a b", {"equation": "ij,ij->ij"}, lambda a, b: a * b),
    "scatter": (
        "ScatterND",
        "a first b",
        {"reduction": "add"},
        lambda a, b: np.concatenate([a[:1] + b.sum(0), a[1:]]),
    ),
    "scatter elements": (
        "ScatterElements",
        "a rows b",
        {"reduction": "mul"},
        lambda a, b: np.concatenate([a[:1] * b.prod(0), a[1:]]),
    ),
}


def _row(values: Array) -> Array:
    return values.reshape(4, 6)


def _operands(dtype: str) -> tuple[Array, Array]:
    """Return random numbers of the type, its limits among them."""
    limits, random = np.iinfo(dtype), np.random.default_rng(3)
    a, b = (random.integers(limits.min, limits.max + 1, 24) for _ in range(2))
    a[:4] = b[2:6] = [limits.min, limits.max, limits.min, limits.max]
    return _row(a), _row(b)


@pytest.mark.parametrize("dtype", TYPES)
def test_results_wrap_before_they_are_read(dtype: str) -> None:
    """Each result as such, cast to a wider integer, and dequantized."""
    a, b = _operands(dtype)
    feeds = {"a": a.astype(dtype), "b": b.astype(dtype)}
    constants = {
        "s": _row(SMALL).astype(dtype),
        "three": np.array(3, np.float32),
        "axis": AXIS,
        "one": np.array(1),
        "first": np.zeros((4, 1), np.int64),
        "rows": np.zeros((4, 6), np.int64),
        "scale": np.array(0.5, np.float32),
    }
    nodes, names, expected = [], [], []
    for number, (op, inputs, attributes, wide) in enumerate(CASES.values()):
        name = f"r{number}"
        nodes.append(node(op, inputs, name, **attributes))
        nodes.append(node("Cast", name, f"{name}i", to=6))
        nodes.append(node("DequantizeLinear", f"{name} scale", f"{name}f"))
        names += [name, f"{name}i", f"{name}f"]
        want = wide(a, b).astype(dtype)
        expected += [want, want.astype(np.int32), want.astype(np.float32) / 2]
    check(model(nodes, feeds, constants, " ".join(names)), feeds, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts(dtype: str, direction: str) -> None:
    bits = np.iinfo(dtype).bits
    far = min(bits, 16)
    amount = np.arange(24) % far
    # The device holds 32 bits with sign.
    x = np.random.default_rng(0).integers(0, 2**8 if bits == 8 else 2**14, 24)
    feeds = {"x": x.astype(dtype), "n": amount.astype(dtype)}
    nodes = [node("BitShift", "x n", "r", direction=direction), node("Cast", "r", "f", to=1)]
    shift = np.left_shift if direction == "LEFT" else np.right_shift
    want = shift(feeds["x"], feeds["n"])
    check(model(nodes, feeds, None, "r f"), feeds, [want, want.astype(np.float32)], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_signed_numbers_shift_their_sign_in(dtype: str) -> None:
    bits = np.iinfo(dtype).bits
    x = np.array([-128, -1, 0, 1, 127, 100, -100, 5], dtype)
    feeds = {"x": x, "n": np.array([bits - 1, bits - 1, 3, 6, bits - 1, bits - 2, 2, 1], dtype)}
    made = model([node("BitShift", "x n", direction="RIGHT")], feeds)
    check(made, feeds, [np.right_shift(x, feeds["n"])])


@pytest.mark.parametrize("dtype", TYPES)
def test_what_reads_the_results_of_sums(dtype: str) -> None:
    """Comparisons, extrema, orders and products of matrices."""
    a, b = _operands(dtype)
    feeds = {"a": a.astype(dtype), "b": b.astype(dtype)}
    total = (a + b).astype(dtype)
    nodes = [
        node("Add", "a b", "t"),
        node("Greater", "t b", "greater"),
        node("Max", "t b", "largest"),
        node("TopK", "t k", "top places"),
        node("ReduceMin", "t axis", "least"),
        node("Where", "greater t b", "chosen"),
    ]
    constants = {"k": np.array([2]), "axis": AXIS}
    outputs = "greater largest top least chosen"
    expected = [
        total > feeds["b"],
        np.maximum(total, feeds["b"]),
        -np.sort(-total.astype(np.int64), 1)[:, :2],
        total.min(1, keepdims=True),
        np.maximum(total, feeds["b"]),
    ]
    expected[2] = expected[2].astype(dtype)
    if dtype in ("int8", "uint8"):
        nodes += [node("Transpose", "b", "bt", perm=[1, 0]), node("MatMulInteger", "t bt", "m")]
        outputs += " m"
        expected.append(total.astype(np.int32) @ b.T.astype(np.int32))
    check(model(nodes, feeds, constants, outputs), feeds, expected)


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_differences_that_a_device_word_cannot_hold_are_noticed(dtype: str) -> None:
    feeds = {"a": np.array([5, 6], dtype), "b": np.array([5, 7], dtype)}
    made = model([node("Sub", "a b")], feeds)
    check(made, feeds, [feeds["a"] - feeds["b"]], on=("cpu",))
    same = {"a": feeds["b"], "b": feeds["a"]}
    check(made, same, [np.array([0, 1], dtype)])
    if "auto" in devices():
        with (
            InferenceSession(made, require_device=True) as session,
            pytest.raises(IntegerRangeError, match="does not fit the 32-bit integers"),
        ):
            session.run(None, feeds)
        check(made, feeds, [feeds["a"] - feeds["b"]])
