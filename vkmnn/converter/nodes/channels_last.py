"""Channels last: Transposes around operators that ONNX defines with channels first.

They are written naively; `passes/transpose_region.py` moves and removes them. Only the tensor that
was just transposed is not transposed back.
"""

from __future__ import annotations

from collections.abc import Callable

from vkmnn.converter.nodes.source_op import SourceOp

_FIRST, _LAST = "channels first", "channels last"


def first_order(rank: int) -> list[int]:
    """Return the permutation that moves the last axis to the second position."""
    return [0, rank - 1, *range(1, rank - 1)]


def last_order(rank: int) -> list[int]:
    """Return the permutation that moves the second axis to the last position."""
    return [0, *range(2, rank), 1]


def to_first(op: SourceOp, name: str, rank: int) -> str:
    """Return a tensor with channels last as one with channels first."""
    return _moved(op, name, first_order(rank), _FIRST, _LAST)


def to_last(op: SourceOp, name: str, rank: int) -> str:
    """Return a tensor with channels first as one with channels last."""
    return _moved(op, name, last_order(rank), _LAST, _FIRST)


def _moved(op: SourceOp, name: str, order: list[int], to: str, back: str) -> str:
    def make() -> str:
        made = op.make("Transpose", name, perm=order)
        op.scope.notes.setdefault((made, back), name)
        return made

    return op.scope.memoised(name, to, make)


def spatial(op: SourceOp, name: str, rank: int, body: Callable[[str], str]) -> str:
    """Apply `body` to a tensor in channels-first order, and return channels-last."""
    return to_last(op, body(to_first(op, name, rank)), rank)


def note_last(op: SourceOp, name: str, made: str) -> None:
    """Record that `made`, channels-last, was transposed from `name`, channels-first."""
    op.scope.notes.setdefault((made, _FIRST), name)
    op.scope.notes.setdefault((name, _LAST), made)


def note_line(op: SourceOp, name: str, made: str) -> None:
    """Record a tensor's channels-first form if only axes of size 1 were added or removed.

    1-D sequences are images of one row: between the two, the layout stays.

    Args:
        op: the operator whose nodes they are.
        name: the tensor, with channels last, of three axes or of four.
        made: the same values with the axis before the last two, or without it.
    """
    first = op.scope.notes.get((name, _FIRST))
    given, wanted = op.shape_of(name) or (), op.shape_of(made) or ()
    short, long = sorted((given, wanted), key=len)
    fits = (len(short), len(long)) == (3, 4) and long[1] == 1 and long[2:] == short[1:]
    if first is None or not fits or None in short[1:]:
        return
    kind = "Unsqueeze" if len(given) == 3 else "Squeeze"
    note_last(op, op.make(kind, first, op.constant([2])), made)
