"""Elements of shape vectors as far as they follow from shapes that may be known in part only."""

from __future__ import annotations

from vkmnn.converter.passes.symbolic.facts import Facts, Shape, ValueRule
from vkmnn.converter.passes.symbolic.shapes import is_absent
from vkmnn.ir.graph import Dim, Op
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    ConstantOfShapeAttrs,
    ReductionAttrs,
    ShapeAttrs,
)

MAX_ELEMENTS = 64
"""Longer tensors are no shapes."""


def _same(op: Op, facts: Facts) -> Shape | None:
    return facts.value(op, 0)


def _cast(op: Op, facts: Facts) -> Shape | None:
    assert isinstance(op.attrs, CastAttrs)
    return facts.value(op, 0) if op.attrs.to.is_integer else None


def _shape(op: Op, facts: Facts) -> Shape | None:
    assert isinstance(op.attrs, ShapeAttrs)
    shape = facts.shape(op)
    return None if shape is None else shape[op.attrs.start : op.attrs.end]


def _size(op: Op, facts: Facts) -> Shape | None:
    shape = facts.shape(op)
    return None if shape is None else (facts.algebra.product(shape),)


def _gather(op: Op, facts: Facts) -> Shape | None:
    assert isinstance(op.attrs, AxisAttrs)
    data, indices = facts.value(op, 0), facts.ints(op, 1)
    if data is None or indices is None or len(facts.shape(op) or ()) != 1:
        return None
    if not all(-len(data) <= place < len(data) for place in indices):
        return None
    return tuple(data[place] for place in indices)


def _slice(op: Op, facts: Facts) -> Shape | None:
    data, starts, ends = facts.value(op, 0), facts.ints(op, 1), facts.ints(op, 2)
    steps = (1,) if is_absent(op, 4) else facts.ints(op, 4)
    if data is None or not starts or not ends or not steps or len(facts.shape(op) or ()) != 1:
        return None
    stop = None if steps[0] < 0 and ends[0] < -len(data) else ends[0]
    return data[starts[0] : stop : steps[0]]


def _concat(op: Op, facts: Facts) -> Shape | None:
    joined: list[Dim] = []
    for place in range(len(op.inputs)):
        value, shape = facts.value(op, place), facts.shape(op, place)
        if value is None and shape is not None and len(shape) == 1 and isinstance(shape[0], int):
            value = (None,) * min(shape[0], MAX_ELEMENTS + 1)
        if value is None or len(joined) + len(value) > MAX_ELEMENTS:
            return None
        joined.extend(value)
    return tuple(joined)


def _arithmetic(kind: str, a: Dim, b: Dim, facts: Facts) -> Dim:
    algebra = facts.algebra
    if kind == "ADD":
        return algebra.add(a, b)
    if kind == "SUB":
        return algebra.subtract(a, b)
    if kind == "MUL":
        return algebra.multiply(a, b)
    if kind == "DIV":
        if b == 0 or (isinstance(a, int) and a < 0) or (isinstance(b, int) and b < 0):
            return None  # truncation and floor differ
        return algebra.floor_divide(a, b) if isinstance(b, int) else algebra.divide(a, b)
    if kind == "EQUAL":
        return _equal(a, b)
    if kind in ("MIN", "MAX") and isinstance(a, int) and isinstance(b, int):
        return min(a, b) if kind == "MIN" else max(a, b)
    return None


def _equal(a: Dim, b: Dim) -> Dim:
    """Compare dimensions; a named one is never negative."""
    if a is None or b is None:
        return None
    if a == b:
        return 1
    known = [dim for dim in (a, b) if isinstance(dim, int)]
    return 0 if len(known) == 2 or (known and known[0] < 0) else None


def _binary(op: Op, facts: Facts) -> Shape | None:
    assert isinstance(op.attrs, BinaryAttrs)
    a, b = facts.value(op, 0), facts.value(op, 1)
    if a is None or b is None or op.attrs.activation.kind != "NONE":
        return None
    length = max(len(a), len(b))
    if len(a) not in (1, length) or len(b) not in (1, length):
        return None
    a, b = a * (length // len(a) if a else 0), b * (length // len(b) if b else 0)
    kind = op.attrs.kind
    return tuple(_arithmetic(kind, one, other, facts) for one, other in zip(a, b, strict=True))


def _select(op: Op, facts: Facts) -> Shape | None:
    parts = [facts.value(op, place) for place in range(3)]
    known = [part for part in parts if part]
    if len(known) != 3:
        return None
    length = max(map(len, known))
    if any(len(part) not in (1, length) for part in known):
        return None
    test, first, second = (part * (length // len(part)) for part in known)
    return tuple(
        None if use is None else one if use else other
        for use, one, other in zip(test, first, second, strict=True)
    )


def _constant_of_shape(op: Op, facts: Facts) -> Shape | None:
    assert isinstance(op.attrs, ConstantOfShapeAttrs)
    shape, value = facts.ints(op, 0), op.attrs.value
    if shape is None or len(shape) > 1 or not op.attrs.dtype.is_integer:
        return None
    length = shape[0] if shape else 1
    return (int(value),) * length if length <= MAX_ELEMENTS else None


def _reduction(op: Op, facts: Facts) -> Shape | None:
    assert isinstance(op.attrs, ReductionAttrs)
    value = facts.value(op, 0)
    if value is None or op.attrs.kind != "PROD" or op.attrs.noop_with_empty_axes:
        return None
    return (facts.algebra.product(value),)


VALUE_RULES: dict[str, ValueRule] = {
    "BinaryOp": _binary,
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Gather": _gather,
    "Identity": _same,
    "Reduction": _reduction,
    "Reshape": _same,
    "Select": _select,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Squeeze": _same,
    "Unsqueeze": _same,
}
