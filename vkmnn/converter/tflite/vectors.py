"""Vectors of sizes and indices that are assembled at run time, number by number.

Converters write a new row of a list as the part before it, the row, and the part after it.
"""

from __future__ import annotations

from vkmnn.converter.tflite.nodes import LiteOp
from vkmnn.converter.tflite.subgraph import Cut, Part


def known_parts(op: LiteOp, number: int) -> tuple[Part, ...] | None:
    """Return an input that is a vector, number by number; None if it is not known to be one."""
    found = op.integers(number)
    if found is not None:
        return tuple(found)
    return op.subgraph.vectors.parts.get(op.inputs[number])


def note_sum(op: LiteOp) -> None:
    """Record a number that is one more than another."""
    for number in (0, 1):
        if op.integers(number) == [1] and not op.shape(1 - number):
            op.subgraph.vectors.after[op.outputs[0]] = op.inputs[1 - number]


def note_reshaped(op: LiteOp) -> None:
    """Record a vector of one number."""
    if op.shape(0) == () and op.integers(1) in ([1], [-1]):
        op.subgraph.vectors.parts[op.outputs[0]] = (op.inputs[0],)


def note_joined(op: LiteOp) -> None:
    """Record a vector concatenated from others, or packed from numbers."""
    parts: list[Part] = []
    for number, name in enumerate(op.inputs):
        if op.type == "PACK" and op.shape(number) == ():
            known = op.integers(number)
            parts.append(known[0] if known else name)
            continue
        found = known_parts(op, number) if op.rank(number) == 1 else None
        if found is None:
            return
        parts += found
    op.subgraph.vectors.parts[op.outputs[0]] = tuple(parts)


def note_cut(op: LiteOp) -> None:
    """Record a slice."""
    begins, sizes = known_parts(op, 1), known_parts(op, 2)
    if begins is not None and sizes is not None and len(begins) == len(sizes):
        op.subgraph.vectors.cuts[op.outputs[0]] = Cut(op.inputs[0], begins, sizes)


def replaced_row(op: LiteOp) -> tuple[str, str, str] | None:
    """Return tensor, index and row if three parts are the tensor with that row replaced.

    The parts are the part before the index, the row, and the part after it.
    """
    cuts = op.subgraph.vectors.cuts
    if len(op.inputs) != 3 or op.integer("axis") != 0:
        return None
    before, behind = cuts.get(op.inputs[0]), cuts.get(op.inputs[2])
    if before is None or behind is None or before.source != behind.source:
        return None
    at, after = before.sizes[0], behind.begins[0]
    if not isinstance(at, str) or not isinstance(after, str):
        return None
    whole, row = op.shape_of(before.source), op.shape(1)
    if whole is None or row is None or row[:1] != (1,) or row[1:] != whole[1:] or None in row:
        return None
    rest = tuple(whole[1:])
    all_of_it = all(size in (-1, full) for size, full in zip(before.sizes[1:], rest, strict=True))
    all_of_it &= all(size in (-1, full) for size, full in zip(behind.sizes[1:], rest, strict=True))
    plain = not any(before.begins) and not any(behind.begins[1:]) and behind.sizes[0] == -1
    if not plain or not all_of_it or op.subgraph.vectors.after.get(after) != at:
        return None
    return before.source, at, op.inputs[1]
