"""Training operators: optimisers, and training-mode batch normalisation."""

from __future__ import annotations

from collections.abc import Callable

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    BinaryAttrs,
    CastAttrs,
    OpAttrs,
    ReductionAttrs,
    ScaleAttrs,
    UnaryAttrs,
)

_DOMAIN = "ai.onnx.preview.training"
_FIRST = 2  # rate and step number come before the tensors


class Formula:
    """Arithmetic on the tensors of a node, in one float type."""

    def __init__(self, node: NodeContext, dtype: DType) -> None:
        self._node = node
        self._dtype = dtype

    def number(self, value: float | str) -> str:
        """Return a tensor as it is, and a number as a constant."""
        return value if isinstance(value, str) else self._node.constant(value, self._dtype)

    def binary(self, kind: str, a: float | str, b: float | str) -> str:
        """Combine two tensors or numbers."""
        return self._node.emit("BinaryOp", [self.number(a), self.number(b)], BinaryAttrs(kind))

    def add(self, a: float | str, b: float | str) -> str:
        """A + b."""
        return self.binary("ADD", a, b)

    def sub(self, a: float | str, b: float | str) -> str:
        """A − b."""
        return self.binary("SUB", a, b)

    def mul(self, a: float | str, b: float | str) -> str:
        """A · b; by 1 it is the other."""
        return str(b) if a == 1 else self.binary("MUL", a, b)

    def div(self, a: float | str, b: float | str) -> str:
        """A / b."""
        return self.binary("DIV", a, b)

    def root(self, a: str) -> str:
        """Return the square root."""
        return self._node.emit("UnaryOp", [a], UnaryAttrs("SQRT"))

    def cast(self, a: str) -> str:
        """Return a tensor in the type that is computed in."""
        if self._node.dtype(a) is self._dtype:
            return a
        return self._node.emit("Cast", [a], CastAttrs(self._dtype))

    def select(self, condition: str, a: float | str, b: float | str) -> str:
        """Return a where the condition holds, else b."""
        return self._node.emit("Select", [condition, self.number(a), self.number(b)])


Step = Callable[[NodeContext, Formula, str, str, list[str]], list[str]]
"""Returns updated tensors of one variable from learning rate, step and tensors."""


def _optimiser(count: int) -> Callable[[Step], Callable[[NodeContext], None]]:
    """Apply a step to every variable; each has `count` tensors, grouped by role."""

    def wrap(step: Step) -> Callable[[NodeContext], None]:
        def convert(node: NodeContext) -> None:
            tensors = node.inputs[_FIRST:]
            each = len(tensors) // count
            if not each or len(tensors) != each * count:
                raise node.unsupported(f"{len(tensors)} tensors are not {count} for each variable")
            formula = Formula(node, node.dtype(tensors[0]))
            rate, number = formula.cast(node.inputs[0]), node.inputs[1]
            for index in range(each):
                results = step(node, formula, rate, number, tensors[index::each])
                for place, result in enumerate(results):
                    output = node.output(place * each + index)
                    if output:
                        node.emit("Identity", [result], None, [output])

        return convert

    return wrap


def _regularised(node: NodeContext, f: Formula, x: str, gradient: str) -> str:
    norm = node.float("norm_coefficient", 0.0)
    return f.add(f.mul(norm, x), gradient) if norm else gradient


def _is_later(node: NodeContext, number: str) -> str:
    zero = node.constant(0, node.dtype(number))
    return node.emit("BinaryOp", [number, zero], BinaryAttrs("GREATER"))


@converter("Adagrad", domain=_DOMAIN)
@_optimiser(3)
def _adagrad(
    node: NodeContext, f: Formula, rate: str, number: str, tensors: list[str]
) -> list[str]:
    x, gradient, squares = tensors
    gradient = _regularised(node, f, x, gradient)
    decay = f.add(1.0, f.mul(node.float("decay_factor", 0.0), f.cast(number)))
    squares = f.add(squares, f.mul(gradient, gradient))
    scale = f.add(f.root(squares), node.float("epsilon", 1e-6))
    step = f.div(f.mul(f.div(rate, decay), gradient), scale)
    return [f.sub(x, step), squares]


@converter("Adam", domain=_DOMAIN)
@_optimiser(4)
def _adam(node: NodeContext, f: Formula, rate: str, number: str, tensors: list[str]) -> list[str]:
    x, gradient, momentum, squares = tensors
    alpha, beta = node.float("alpha", 0.9), node.float("beta", 0.999)
    gradient = _regularised(node, f, x, gradient)
    momentum = f.add(f.mul(alpha, momentum), f.mul(1 - alpha, gradient))
    squares = f.add(f.mul(beta, squares), f.mul(1 - beta, f.mul(gradient, gradient)))
    scale = f.add(f.root(squares), node.float("epsilon", 0.0))
    steps = f.cast(number)
    ahead = f.root(f.sub(1.0, f.binary("POW", beta, steps)))
    corrected = f.div(f.mul(rate, ahead), f.sub(1.0, f.binary("POW", alpha, steps)))
    adjusted = f.select(_is_later(node, number), corrected, rate)
    x = f.sub(x, f.mul(adjusted, f.div(momentum, scale)))
    return [f.mul(1 - node.float("norm_coefficient_post", 0.0), x), momentum, squares]


@converter("Momentum", domain=_DOMAIN)
@_optimiser(3)
def _momentum(
    node: NodeContext, f: Formula, rate: str, number: str, tensors: list[str]
) -> list[str]:
    x, gradient, momentum = tensors
    alpha, beta = node.float("alpha"), node.float("beta")
    mode = node.choice("mode", "standard", ("standard", "nesterov"))
    gradient = _regularised(node, f, x, gradient)
    adjusted = f.select(_is_later(node, number), beta, 1.0)
    momentum = f.add(f.mul(alpha, momentum), f.mul(adjusted, gradient))
    step = momentum
    if mode == "nesterov":
        step = f.add(gradient, f.mul(alpha, momentum))
    return [f.sub(x, f.mul(rate, step)), momentum]


def batch_statistics(node: NodeContext) -> None:
    """Write a BatchNormalization in training mode: by the batch's statistics, with running ones.

    It computes in the statistics' type, the most precise one.
    """
    x, scale, bias, mean, variance = node.inputs
    f = Formula(node, node.dtype(mean))
    rank = node.rank(x)
    axes = node.ints_constant([axis for axis in range(rank) if axis != 1])
    wide = f.cast(x)

    def average(values: str) -> str:
        return node.emit("Reduction", [values, axes], ReductionAttrs("MEAN", keepdims=True))

    def flat(values: str) -> str:
        return node.emit("Squeeze", [values, axes], OpAttrs())

    centre = average(wide)
    apart = f.sub(wide, centre)
    spread = average(f.mul(apart, apart))
    means, spreads = flat(centre), flat(spread)
    inverse = node.emit(
        "UnaryOp", [f.add(spreads, node.float("epsilon", 1e-5))], UnaryAttrs("RSQRT")
    )
    factor = f.mul(f.cast(scale), inverse)
    offset = f.sub(f.cast(bias), f.mul(means, factor))
    y = node.emit("Scale", [wide, factor, offset], ScaleAttrs())
    node.finish("Cast", [y], CastAttrs(node.dtype(x)))
    momentum = node.float("momentum", 0.9)
    for place, (before, now) in enumerate([(mean, means), (variance, spreads)], 1):
        if node.output(place):
            new = f.add(f.mul(momentum, before), f.mul(1 - momentum, now))
            node.emit("Identity", [new], None, [node.output(place)])
