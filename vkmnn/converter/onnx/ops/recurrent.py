"""LSTM, GRU, RNN: products with the input for all steps at once, then the steps."""

from __future__ import annotations

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.errors import ModelError
from vkmnn.ir import Activation
from vkmnn.ir.ops import (
    RECURRENT_GATES,
    AxisAttrs,
    BinaryAttrs,
    MatMulAttrs,
    RecurrentAttrs,
    ReshapeAttrs,
)

# The kind of each activation, and its alpha and beta with their defaults.
_ACTIVATIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "sigmoid": ("SIGMOID", ()),
    "tanh": ("TANH", ()),
    "relu": ("RELU", ()),
    "affine": ("AFFINE", (1.0, 0.0)),
    "leakyrelu": ("LEAKY_RELU", (0.01,)),
    "thresholdedrelu": ("THRESHOLDED_RELU", (1.0,)),
    "scaledtanh": ("SCALED_TANH", (1.0, 1.0)),
    "hardsigmoid": ("HARD_SIGMOID", (0.2, 0.5)),
    "elu": ("ELU", (1.0,)),
    "softsign": ("SOFTSIGN", ()),
    "softplus": ("SOFTPLUS", ()),
}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_LENGTHS, _FIRST_H, _FIRST_C, _PEEPHOLES = 4, 5, 6, 7


@converter("LSTM")
@converter("GRU")
@converter("RNN")
def _recurrent(node: NodeContext) -> None:
    cell = node.op
    direction = node.choice("direction", "forward", ("forward", "reverse", "bidirectional"))
    attrs = RecurrentAttrs(
        cell,
        _activations(node, 2 if direction == "bidirectional" else 1),
        direction.upper(),
        node.float("clip", 0.0),
        linear=node.bool("linear_before_reset"),
        coupled=node.bool("input_forget"),
        batch_first=node.bool("layout"),
    )
    rows = attrs.directions * RECURRENT_GATES[cell] * _hidden(node)
    flat = node.ints_constant([rows, -1])
    x, w, r = node.inputs[:3]
    operands = [x, node.emit("Reshape", [w, flat], ReshapeAttrs())]
    bias = ""
    if node.input(3):
        added, bias = _biases(node, attrs, node.input(3))
        operands.append(node.emit("Reshape", [added, node.ints_constant([rows])], ReshapeAttrs()))
    gates = node.emit("MatMul", operands, MatMulAttrs(transpose_b=True))
    states = [node.input(index) for index in (_LENGTHS, _FIRST_H, _FIRST_C, _PEEPHOLES)]
    node.emit("Recurrent", [gates, r, bias, *states], attrs, node.outputs)


def _hidden(node: NodeContext) -> int:
    """Return the number of units, from the weights' shape if the attribute is absent."""
    shape = node.shape(node.input(2))
    known = shape[2] if len(shape) == 3 else None
    hidden = node.int("hidden_size", known if isinstance(known, int) else 0)
    if hidden < 1 or (isinstance(known, int) and known != hidden):
        if hidden < 1 and known is None:
            raise node.unsupported("neither hidden_size nor the shape of R is known")
        raise ModelError(
            f"hidden_size is {hidden}, and R has shape {list(shape)}",
            op=node.op,
            node=node.name,
            hint="the model is not valid ONNX; export it again",
        )
    return hidden


def _activations(node: NodeContext, directions: int) -> tuple[Activation, ...]:
    """Return the activations; those with an alpha or a beta consume the next given one."""
    defaults = _DEFAULTS[node.op] * directions
    names = node.strings("activations", defaults)
    if len(names) != len(defaults):
        raise ModelError(
            f"{len(names)} activations, {len(defaults)} are needed",
            op=node.op,
            node=node.name,
            hint="the model is not valid ONNX; export it again",
        )
    given = [list(node.floats(f"activation_{which}", ())) for which in ("alpha", "beta")]
    found = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise ModelError(
                f"activation '{name}' is not one of ONNX's",
                op=node.op,
                node=node.name,
                hint="the activations are " + ", ".join(_ACTIVATIONS),
            )
        kind, values = _ACTIVATIONS[name.lower()]
        taken = [rest.pop(0) if rest else value for rest, value in zip(given, values, strict=False)]
        found.append(Activation(kind, *taken))
    return tuple(found)


def _biases(node: NodeContext, attrs: RecurrentAttrs, bias: str) -> tuple[str, str]:
    """Return the biases added from the start, and those after the reset of a GRU."""
    first, second = _halves(node, bias, 0, 2), _halves(node, bias, 1, 2)
    add = BinaryAttrs("ADD")
    if not attrs.linear or attrs.cell != "GRU":
        return node.emit("BinaryOp", [first, second], add), ""
    gates = [
        node.emit("BinaryOp", [_halves(node, first, i, 3), _halves(node, second, i, 3)], add)
        for i in range(2)
    ]
    added = node.emit("Concat", [*gates, _halves(node, first, 2, 3)], AxisAttrs(1))
    return added, _halves(node, second, 2, 3)


def _halves(node: NodeContext, tensor: str, part: int, parts: int) -> str:
    """Return one of equal parts of a matrix's rows."""
    size = 2 * RECURRENT_GATES[node.op] * _hidden(node)
    width = size // 2 if parts == 2 else size // 6
    ends = [node.ints_constant([value]) for value in (part * width, (part + 1) * width, 1)]
    return node.emit("Slice", [tensor, *ends])
