"""Ops between quantised products, bit for bit: ONNX's definition in float32, op by op."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn import InferenceSession

Array = npt.NDArray[Any]
SCALE, ZERO = np.float32(0.11), np.uint8(97)
ROUGH, HALF = np.float32(0.07), np.uint8(131)


class Chain:
    """A model of QuantizeLinear, DequantizeLinear and ops in between, and its results."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.x = self.rng.integers(0, 256, shape).astype(np.uint8)
        self.values: dict[str, Array] = {"x": self.x}

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = self.values[name] = np.asarray(array)
        return name

    def add(self, op: str, inputs: list[str], value: Array, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.values[name] = value
        return name

    def decoded(self, x: str, scale: np.float32 = SCALE, zero: np.uint8 = ZERO) -> str:
        whole = self.values[x].astype(np.int32) - np.int32(zero)
        names = [x, self.constant(scale), self.constant(zero)]
        return self.add("DequantizeLinear", names, whole.astype(np.float32) * scale)

    def coded(self, x: str, scale: np.float32 = SCALE, zero: np.uint8 = ZERO) -> str:
        whole = np.rint(self.values[x] / scale) + np.float32(zero)
        names = [x, self.constant(scale), self.constant(zero)]
        return self.add("QuantizeLinear", names, np.clip(whole, 0, 255).astype(np.uint8))

    def again(self, x: str, scale: np.float32 = SCALE, zero: np.uint8 = ZERO) -> str:
        return self.decoded(self.coded(x, scale, zero), scale, zero)

    def product(self, x: str, columns: int) -> str:
        """Return quantised x times constant bytes; scales are powers of two, so sums are exact."""
        depth = self.values[x].shape[-1]
        w = self.rng.integers(-127, 128, (depth, columns)).astype(np.int8)
        scale = np.float32(2.0**-9)
        right = [self.constant(w), self.constant(scale), self.constant(np.int8(0))]
        made = self.add("DequantizeLinear", right, w.astype(np.float32) * scale)
        whole = (self.values[x].astype(np.int64) - 128) @ w.astype(np.int64)
        left = self.decoded(x, np.float32(0.25), np.uint8(128))
        return self.add("MatMul", [left, made], (whole * 2.0**-11).astype(np.float32))

    def binary(self, op: str, a: str, b: str) -> str:
        functions: dict[str, Any] = {"Add": np.add, "Mul": np.multiply, "Div": np.divide}
        return self.add(op, [a, b], functions[op](self.values[a], self.values[b]))

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def ran(self, y: str, device: str) -> tuple[Array, list[str]]:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.UINT8, self.x.shape)],
            [helper.make_tensor_value_info(y, TensorProto.UINT8, None)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        with InferenceSession(model, device) as session:
            return session.run(None, {"x": self.x})[0], [op.type for op in session.placement()]


def assert_one_product(types: list[str]) -> None:
    """Beside zero points, of the input and of the result, which are integers for the host."""
    assert types.count("QuantizedMatMul") == 1
    assert types.count("BinaryOp") <= 2
    assert set(types) <= {"QuantizedMatMul", "BinaryOp", "Cast"}


SHAPES = [((5, 12), 8), ((2, 3, 17), 7), ((1, 33, 64), 133)]


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize(("shape", "columns"), SHAPES)
@pytest.mark.parametrize("coded", [True, False])
def test_biases_are_added_to_codes(shape: Any, columns: int, coded: bool, device: str) -> None:
    chain = Chain(shape)
    bias = chain.rng.standard_normal(columns).astype(np.float32)
    if coded:
        names = [chain.constant(chain.rng.integers(0, 256, columns).astype(np.uint8))]
        names += [chain.number(0.013), chain.constant(np.uint8(100))]
        whole = chain.values[names[0]].astype(np.float32) - np.float32(100)
        offset = chain.add("DequantizeLinear", names, whole * np.float32(0.013))
    else:
        offset = chain.constant(bias)
    y = chain.again(chain.product("x", columns))
    y = chain.coded(chain.binary("Add", offset, y), ROUGH, HALF)
    got, types = chain.ran(y, device)
    np.testing.assert_array_equal(got, chain.values[y])
    assert_one_product(types)


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize(("shape", "columns"), SHAPES)
@pytest.mark.parametrize("biased", [True, False])
def test_functions_of_single_codes_are_looked_up(
    shape: Any, columns: int, biased: bool, device: str
) -> None:
    """A gate between quantised values, as in GELU: x · clip(x / 1.7 + 0.5, 0, 1) · 0.5."""
    chain = Chain(shape, 1)
    y = chain.again(chain.product("x", columns))
    if biased:
        bias = chain.constant(chain.rng.standard_normal(columns).astype(np.float32))
        y = chain.again(chain.binary("Add", y, bias), ROUGH, HALF)
    gate = chain.binary("Add", chain.binary("Div", y, chain.number(1.7)), chain.number(0.5))
    low, high = chain.number(0), chain.number(1)
    value = np.clip(chain.values[gate], 0, 1)
    gate = chain.again(
        chain.add("Clip", [gate, low, high], value), np.float32(1 / 255), np.uint8(0)
    )
    y = chain.again(chain.binary("Mul", y, gate))
    y = chain.coded(chain.binary("Mul", y, chain.number(0.5)), ROUGH, HALF)
    got, types = chain.ran(y, device)
    np.testing.assert_array_equal(got, chain.values[y])
    assert_one_product(types)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_codes_that_are_read_twice_are_looked_up_nowhere(device: str) -> None:
    chain = Chain((6, 16), 2)
    codes = chain.again(chain.product("x", 12))
    gated = chain.again(chain.binary("Mul", codes, chain.binary("Add", codes, chain.number(1.0))))
    other = chain.constant(chain.rng.standard_normal((6, 12)).astype(np.float32))
    y = chain.coded(chain.binary("Add", gated, chain.binary("Mul", codes, other)), ROUGH, HALF)
    got, _ = chain.ran(y, device)
    np.testing.assert_array_equal(got, chain.values[y])
