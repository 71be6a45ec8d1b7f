"""Complex tensors, which have real and imaginary parts along an axis at the end; random numbers."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.nodes import FLOAT
from vkmnn.converter.tflite.nodes import LiteOp, reads


@reads("RFFT2D")
def transform(op: LiteOp) -> None:
    """DFT of real numbers along the last axis, then along the one before it."""
    op.need(2)
    height, width = op.settled(1, "lengths of a transform")[:2]
    rank = op.known_rank(0)
    if rank < 2 or not (0 < height < 1 << 20 and 0 < width < 1 << 20):
        raise op.damaged(f"it transforms {height} by {width}")
    x = op.make("Unsqueeze", op.real(0), op.constant([-1]))
    lines = op.make("DFT", x, op.constant(width), op.constant(rank - 1), onesided=1)
    made = op.make("DFT", lines, op.constant(height), op.constant(rank - 2))
    op.scope.emit("Identity", [made], op.outputs[:1], op.name, FLOAT)


def _part(op: LiteOp, number: int) -> str:
    if not op.is_complex(0):
        raise op.damaged("its input is not complex")
    return op.make("Gather", op.inputs[0], op.constant(number), axis=-1)


@reads("REAL", "IMAG")
def part(op: LiteOp) -> None:
    """The real or the imaginary part."""
    op.need(1)
    op.give(_part(op, int(op.type == "IMAG")))


@reads("COMPLEX_ABS")
def magnitude(op: LiteOp) -> None:
    """The root of the sum of both parts' squares."""
    op.need(1)
    squares = [op.make("Mul", one, one) for one in (_part(op, 0), _part(op, 1))]
    op.give(op.make("Sqrt", op.make("Add", *squares)))


@reads("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL")
def random(op: LiteOp) -> None:
    """Random numbers in a shape that is known; other ones than TFLite's."""
    op.need(1)
    shape = op.settled(0, "a shape")
    kind = "RandomUniform" if op.type == "RANDOM_UNIFORM" else "RandomNormal"
    if not shape:
        base = op.constant(0, np.float32)
        op.give(op.make(f"{kind}Like", base, dtype=FLOAT))
        return
    op.give(op.make(kind, shape=shape, dtype=FLOAT))


@reads("MULTINOMIAL")
def draws(op: LiteOp) -> None:
    """Random classes by their logarithmic odds; others than TFLite's."""
    op.need(2)
    count = op.settled(1, "a number of draws")[:1] or [1]
    if not 0 < count[0] < 1 << 20:
        raise op.damaged(f"it draws {count[0]} times")
    kind = op.results[0].dtype
    op.give(op.make("Multinomial", op.real(0), sample_size=count[0], dtype=kind))
