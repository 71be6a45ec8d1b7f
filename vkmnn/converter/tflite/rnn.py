"""RNN over sequences, single RNN steps, and SVDF; their states are variables of the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.converter.tflite.nodes import LiteOp, reads
from vkmnn.converter.tflite.recurrent import keep, plain, turned


def _rnn(op: LiteOp, x: str, at: int, state: int, backwards: bool = False) -> tuple[str, str]:
    """Return all outputs of an RNN with time first, and the last."""
    weights, recurrent, bias = (plain(op, at + number) for number in range(3))
    both = [op.make("Unsqueeze", name, op.constant([0])) for name in (weights, recurrent)]
    zeros = op.make("Mul", bias, op.constant(0, np.float32))
    joined = op.make("Concat", bias, zeros, axis=0)
    start = op.make("Unsqueeze", plain(op, state), op.constant([0]))
    kind = op.member("ActivationFunctionType", "fused_activation_function")
    names = {"TANH": "Tanh", "RELU": "Relu", "NONE": "Affine"}
    if kind not in names:
        raise op.unreadable(f"the activation {kind}")
    options: dict[str, Any] = {
        "hidden_size": (op.shape(state) or (None,))[-1],
        "activations": [names[kind]],
        "direction": "reverse" if backwards else "forward",
    }
    if kind == "NONE":
        options |= {"activation_alpha": [1.0], "activation_beta": [0.0]}
    bias = op.make("Unsqueeze", joined, op.constant([0]))
    made, last = op.make_several("RNN", 2, x, *both, bias, "", start, **options)
    squeezed = op.make("Squeeze", made, op.constant([1]))
    return squeezed, op.make("Squeeze", last, op.constant([0]))


@reads("RNN")
def rnn_step(op: LiteOp) -> None:
    """One step of an RNN; its output is kept between runs."""
    op.need(5)
    x = op.make("Unsqueeze", plain(op, 0), op.constant([0]))
    _, last = _rnn(op, x, 1, 4)
    keep(op, 4, last)
    op.give(last)


@reads("UNIDIRECTIONAL_SEQUENCE_RNN")
def rnn_sequence(op: LiteOp) -> None:
    """RNN; its output is kept between runs."""
    op.need(5)
    x, first = plain(op, 0), op.flag("time_major")
    made, last = _rnn(op, x if first else turned(op, x), 1, 4)
    keep(op, 4, last)
    op.give(made if first else turned(op, made))


@reads("BIDIRECTIONAL_SEQUENCE_RNN")
def rnn_both_ways(op: LiteOp) -> None:
    """RNN in both directions."""
    op.need(9)
    if any(op.has(number) for number in range(9, 12)):
        raise op.unreadable("an auxiliary input")
    x, first = plain(op, 0), op.flag("time_major")
    x = x if first else turned(op, x)
    parts = []
    for at, state, backwards in ((1, 4, False), (5, 8, True)):
        made, last = _rnn(op, x, at, state, backwards)
        keep(op, state, last)
        parts.append(made)
    if op.flag("merge_outputs"):
        parts = [op.make("Concat", *parts, axis=2)]
    for number, made in enumerate(parts):
        op.give(made if first else turned(op, made), number)


@reads("SVDF")
def svdf(op: LiteOp) -> None:
    """Filters in two stages: over features, then over the time that the state holds."""
    op.need(5)
    rank = op.integer("rank", 1)
    x, features, times = (plain(op, number) for number in range(3))
    state = plain(op, 4)
    shape = op.shape(2)
    if rank < 1 or shape is None or None in shape or len(shape) != 2 or (shape[0] or 0) % rank:
        raise op.damaged(f"its rank is {rank}, its filters have the shape {shape}")
    filters, memory = (size or 0 for size in shape)
    new = op.make("MatMul", x, op.make("Transpose", features, perm=[1, 0]))
    held = op.make("Reshape", state, op.constant([-1, filters, memory]))
    later = op.make("Slice", held, op.constant([1]), op.constant([memory]), op.constant([2]))
    held = op.make("Concat", later, op.make("Unsqueeze", new, op.constant([2])), axis=2)
    keep(op, 4, op.make("Reshape", held, op.constant([-1, filters * memory])))
    total = op.make("ReduceSum", op.make("Mul", held, times), op.constant([2]), keepdims=0)
    grouped = op.make("Reshape", total, op.constant([-1, filters // rank, rank]))
    made = op.make("ReduceSum", grouped, op.constant([2]), keepdims=0)
    made = op.make("Add", made, plain(op, 3)) if op.has(3) else made
    op.give_active(made)
