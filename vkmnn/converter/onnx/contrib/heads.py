"""Helpers for onnxruntime's attention operators: heads, rotary embedding, masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    AttentionAttrs,
    AxisAttrs,
    BinaryAttrs,
    MatMulAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    RotaryAttrs,
    ShapeAttrs,
    SoftmaxAttrs,
    TransposeAttrs,
    UnaryAttrs,
)

_SWAP_HEADS = TransposeAttrs((0, 2, 1, 3))


def known_depth(node: NodeContext, heads: int, *candidates: str) -> int:
    """Return the width of a head from the first 3-D or 4-D tensor whose last size is known.

    Raises:
        UnsupportedCaseError: no size is known, or the heads do not fit into it.
    """
    for name in candidates:
        info = node.info(name) if name else None
        if info is None or info.shape is None or not isinstance(info.shape[-1], int):
            continue
        width = info.shape[-1]
        if len(info.shape) == 4:
            return width
        if heads < 1 or width % heads:
            raise node.unsupported(f"{width} columns cannot be cut into {heads} heads")
        return width // heads
    raise node.unsupported("the width of its heads is not known")


def binary(node: NodeContext, kind: str, first: str, second: str) -> str:
    """Return an op of two operands."""
    return node.emit("BinaryOp", [first, second], BinaryAttrs(kind))


def counted(node: NodeContext, count: str) -> str:
    """Return 0, 1, … up to a scalar."""
    zero, one = node.constant(np.int64(0)), node.constant(np.int64(1))
    return node.emit("Range", [zero, count, one])


def length(node: NodeContext, name: str, axis: int) -> str:
    """Return one size of a tensor as an int64 scalar."""
    size = node.emit("Shape", [name], ShapeAttrs(axis, axis + 1))
    return node.emit("Reshape", [size, node.ints_constant([])], ReshapeAttrs())


def part(node: NodeContext, x: str, start: int, end: int) -> str:
    """Return columns of the last axis."""
    bounds = [node.ints_constant([value]) for value in (start, end, -1)]
    return node.emit("Slice", [x, *bounds])


# --- rotary positions ----------------------------------------------------------------------------


def turned(node: NodeContext, x: str, tables: Sequence[str], width: int, interleaved: bool) -> str:
    """Turn pairs of columns of [batch, heads, length, depth]; the tables have `width` / 2 of them.

    Columns beyond `width` stay. Pairs are half of `width` apart, or adjacent.
    """
    return node.emit("Rotary", [x, *tables], RotaryAttrs(width, interleaved))


def table_rows(node: NodeContext, table: str, positions: str) -> str:
    """Return [batch, 1, length, width / 2]: the table's row at every position."""
    rows = node.emit("Gather", [table, positions], AxisAttrs(0))
    return node.emit("Unsqueeze", [rows, node.ints_constant([1])])


def rotated_width(node: NodeContext, table: str) -> int:
    """Return how many columns a table turns.

    Raises:
        UnsupportedCaseError: it is not known.
    """
    half = node.shape(table)[-1]
    if not isinstance(half, int):
        raise node.unsupported(f"the width of '{table}' is not known")
    return 2 * half


def join_heads(node: NodeContext, y: str) -> None:
    """Finish with [batch, length, heads · depth]."""
    y = node.emit("Transpose", [y], _SWAP_HEADS)
    node.finish("Reshape", [y, node.ints_constant([0, 0, -1])], ReshapeAttrs())


# --- scores and masks ------------------------------------------------------------------------


def with_past(node: NodeContext, past: str, new: str, output: int) -> str:
    """Return old and new rows, which are also an output of the node if it has one."""
    wanted = [node.output(output)] if node.output(output) else None
    if past:
        return node.emit("Concat", [past, new], AxisAttrs(2), wanted)
    return node.emit("Identity", [new], None, wanted) if wanted else new


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores become weights: scale, soft cap, softmax options.

    Attributes:
        scale: scale of q kᵀ.
        softcap: scores stay within ± this; 0 leaves them.
        sink: a tensor [heads] of scores that contribute to the softmax without a value, or "".
        scores: the output for the scores before the mask, with hidden ones set to 0.
        weights: the output for the factors of the values.
    """

    scale: float
    softcap: float = 0.0
    sink: str = ""
    scores: str = ""
    weights: str = ""

    @property
    def plain(self) -> bool:
        """True if the vocabulary's Attention supports it."""
        return not (self.scores or self.weights)


def attend(
    node: NodeContext, operands: Sequence[str], mask: str, scoring: Scoring, added: str = ""
) -> str:
    """Return attention [batch, heads, length, depth]; decomposed if scores are outputs.

    Args:
        node: the node that is converted.
        operands: queries, keys and values by head.
        mask: the addend that hides scores, or "".
        scoring: how scores become weights.
        added: another addend of scores, or "".
    """
    q, k, v = operands
    if scoring.plain:
        mask = binary(node, "ADD", added, mask) if added and mask else added or mask
        attrs = AttentionAttrs(scoring.scale, zero_fully_masked=False, softcap=scoring.softcap)
        inputs = [q, k, v, *([mask] if mask or scoring.sink else [])]
        if scoring.sink:
            shape = node.ints_constant([-1, 1, 1])
            inputs += ["", node.emit("Reshape", [scoring.sink, shape], ReshapeAttrs())]
        return node.emit("Attention", inputs, attrs)
    dtype, cap = node.dtype(q), scoring.softcap
    alpha = scoring.scale / (cap or 1.0)
    scores = node.emit("MatMul", [q, k], MatMulAttrs(transpose_b=True, alpha=alpha))
    if cap:
        scores = node.emit("UnaryOp", [scores], UnaryAttrs("TANH"))
        scores = binary(node, "MUL", scores, node.constant(cap, dtype))
    if added:
        scores = binary(node, "ADD", scores, added)
    if scoring.scores:
        _tell_scores(node, scores, mask, dtype, scoring.scores)
    if mask:
        scores = binary(node, "ADD", scores, mask)
    weights = node.emit("Softmax", [scores], SoftmaxAttrs(-1))
    share = _share(node, scores, scoring.sink) if scoring.sink else ""
    if scoring.weights:
        told = binary(node, "MUL", weights, share) if share else weights
        node.emit("Identity", [told], None, [scoring.weights])
    y = node.emit("MatMul", [weights, v], MatMulAttrs())
    return binary(node, "MUL", y, share) if share else y


def _tell_scores(node: NodeContext, scores: str, mask: str, dtype: DType, output: str) -> None:
    """Write scores to an output, 0 where the mask hides them."""
    if not mask:
        node.emit("Identity", [scores], None, [output])
        return
    zero = node.constant(0, dtype)
    shown = binary(node, "EQUAL", mask, zero)
    node.emit("Select", [shown, scores, zero], None, [output])


def _share(node: NodeContext, scores: str, sink: str) -> str:
    """Return the keys' share of the softmax: Σ exp(s) / (Σ exp(s) + exp(sink))."""
    axis = node.ints_constant([-1])
    total = node.emit("Reduction", [scores, axis], ReductionAttrs("LOG_SUM_EXP"))
    sink = node.emit("Reshape", [sink, node.ints_constant([1, -1, 1, 1])], ReshapeAttrs())
    return node.emit("UnaryOp", [binary(node, "SUB", total, sink)], UnaryAttrs("SIGMOID"))


def hidden(node: NodeContext, seen: str, dtype: DType) -> str:
    """Return the additive mask: 0 for visible keys, -inf elsewhere."""
    zero, hidden = node.constant(0, dtype), node.constant(-np.inf, dtype)
    return node.emit("Select", [seen, zero, hidden])
