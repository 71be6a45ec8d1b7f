"""Constants of every rank with a tensor: whichever op absorbs them, the result keeps its shape."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.classes.whole import check, devices, model, node
from vkmnn.ir import Array

X = np.random.default_rng(0).standard_normal


def filled(value: float, *shape: int) -> Array:
    return np.full(shape, value, np.float32)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean"])
@pytest.mark.parametrize("swapped", [False, True])
def test_one_element_of_higher_rank(op: str, swapped: bool) -> None:
    """A chain knows the constant as a number, which has no rank."""
    feeds = {"x": X((1, 33)).astype(np.float32)}
    nodes = [node(op, "c x" if swapped else "x c", "t"), node("Sigmoid", "t")]
    check(model(nodes, feeds, {"c": filled(1.5, 1, 1, 1)}), feeds)


def test_one_element_of_higher_rank_before_a_convolution() -> None:
    feeds = {"x": X((3, 8)).astype(np.float32)}
    nodes = [node("Add", "x c", "a"), node("Max", "a d", "t"), node("Conv", "t w")]
    weights = X((2, 3, 3)).astype(np.float32)
    check(model(nodes, feeds, {"c": filled(1.5, 1, 1, 1), "d": filled(0.1), "w": weights}), feeds)


def test_a_condition_of_higher_rank() -> None:
    feeds = {"x": X((4, 3)).astype(np.float32)}
    nodes = [node("Greater", "x c", "g"), node("Where", "g x d")]
    check(model(nodes, feeds, {"c": filled(0.25, 1, 1, 1), "d": filled(-1.0)}), feeds)


def test_only_one_of_the_operands_raises_the_rank() -> None:
    feeds = {"x": X((3,)).astype(np.float32)}
    nodes = [node("Max", "x c d", "t"), node("Add", "x t")]
    check(model(nodes, feeds, {"c": filled(0.5, 1, 1), "d": filled(-0.5, 1, 1, 1)}), feeds)


def test_negative_zero_is_another_number_than_zero() -> None:
    feeds = {"x": filled(1.0, 5)}
    nodes = [
        node("Greater", "x zero", "g"),
        node("Where", "g x one", "t"),
        node("Mul", "t minus", "s"),
        node("Div", "one s"),
    ]
    constants = {"zero": filled(0.0), "minus": filled(-0.0), "one": filled(1.0)}
    check(model(nodes, feeds, constants), feeds, [filled(-np.inf, 5)], on=("cpu",))


@pytest.mark.parametrize("form", ["power", "quotient", "root", "square", "epsilon"])
@pytest.mark.parametrize("rank", [0, 1, 2, 3, 4])
def test_constants_of_a_layer_normalization(form: str, rank: int) -> None:
    """(x - mean) · (variance + 0.3) ** -0.5, with one constant of another rank."""
    shapes = dict.fromkeys(("power", "quotient", "root", "square", "epsilon"), ()) | {
        form: (1,) * rank
    }
    inverse = {
        "power": [node("Pow", "v power", "i")],
        "quotient": [node("Sqrt", "v", "s"), node("Div", "quotient s", "i")],
        "root": [node("Pow", "v root", "s"), node("Reciprocal", "s", "i")],
    }
    nodes = [
        node("ReduceMean", "x axes", "m"),
        node("Sub", "x m", "d"),
        node("Pow", "d square", "q"),
        node("ReduceMean", "q axes", "u"),
        node("Add", "u epsilon", "v"),
        *inverse.get(form, inverse["power"]),
        node("Mul", "d i"),
    ]
    numbers = {"power": -0.5, "quotient": 1.0, "root": 0.5, "square": 2.0, "epsilon": 0.3}
    constants = {name: filled(numbers[name], *shape) for name, shape in shapes.items()}
    feeds = {"x": X((2, 5)).astype(np.float32)}
    check(model(nodes, feeds, {**constants, "axes": np.array([-1])}), feeds)


class Chain:
    """Grows random ops whose other operands are constants of any rank that broadcasts."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.constants: dict[str, Array] = {}
        self.nodes = []
        rank = int(self.random.integers(0, 4))
        self.shape = tuple(self.pick(1, 1, 2, 3) for _ in range(rank))
        self.x = self.random.standard_normal(self.shape).astype(np.float32)
        for number in range(int(self.random.integers(2, 5))):
            self.grow("x" if not number else f"t{number - 1}", f"t{number}")

    def pick(self, *choices):
        return choices[int(self.random.integers(len(choices)))]

    def constant(self) -> str:
        rank = len(self.shape)
        tail = self.shape[self.pick(*range(rank + 1)) :]
        forms = [
            (),
            (1,) * rank,
            (1,) * (rank + 1),
            (1,) * (rank + 2),
            self.shape,
            (1, *self.shape),
        ]
        shape = self.pick(*forms, tuple(self.pick(1, size) for size in tail))
        name = f"c{len(self.constants)}"
        value = self.pick(0.5, 1.0, 2.0, -1.0, 1.702)
        plain = self.random.uniform(0.5, 2.0, shape).astype(np.float32)
        self.constants[name] = filled(value, *shape) if self.pick(0, 1) else plain
        self.shape = np.broadcast_shapes(self.shape, shape)
        return name

    def grow(self, before: str, after: str) -> None:
        kind = self.pick("binary", "binary", "several", "unary", "choice", "product", "channels")
        if kind == "unary":
            op = self.pick("Relu", "Sigmoid", "Abs", "Neg", "HardSwish", "Softplus")
            self.nodes.append(node(op, before, after))
        elif kind == "several":
            names = f"{self.constant()} {before} {self.constant()}"
            self.nodes.append(node(self.pick("Sum", "Mean", "Max", "Min"), names, after))
        elif kind == "choice":
            self.nodes.append(node("Less", f"{before} {self.constant()}", f"{after}b"))
            self.nodes.append(node("Where", f"{after}b {before} {self.constant()}", after))
        elif kind == "product" and self.shape:
            size = self.shape[-1]
            self.constants[f"{after}w"] = self.random.standard_normal((size, 3)).astype(np.float32)
            self.shape = (*self.shape[:-1], 3)
            self.nodes.append(node("MatMul", f"{before} {after}w", after))
        elif kind == "channels" and len(self.shape) > 1:
            names = [f"{after}{letter}" for letter in "sbmv"]
            for name in names:
                values = self.random.uniform(0.5, 2.0, self.shape[1])
                self.constants[name] = values.astype(np.float32)
            self.nodes.append(node("BatchNormalization", " ".join((before, *names)), after))
        else:
            op, other = self.pick("Add", "Sub", "Mul", "Div", "Max"), self.constant()
            swaps = op != "Div" and self.pick(0, 1)
            self.nodes.append(
                node(op, f"{other} {before}" if swaps else f"{before} {other}", after)
            )


@pytest.mark.parametrize("seed", range(80))
def test_random_chains(seed: int) -> None:
    chain = Chain(seed)
    last = chain.nodes[-1].output[0]
    made = model(chain.nodes, {"x": chain.x}, chain.constants, last)
    # The passes are the same for both; the device takes longer.
    on = devices() if seed % 4 == 0 else ("cpu",)
    check(made, {"x": chain.x}, atol=1e-3, rtol=1e-3, on=on)
