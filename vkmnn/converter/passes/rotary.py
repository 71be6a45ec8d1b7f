"""Rotary embedding that a model spells out."""

from __future__ import annotations

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Dim, Op
from vkmnn.ir.ops import AxisAttrs, OpAttrs, RotaryAttrs, SplitAttrs, UnaryAttrs

RANK, COLUMNS = 4, 3
"""Rotary turns columns of x [B, H, S, D]."""


@dataclass(frozen=True, slots=True)
class Part:
    """Columns `start` to `stop` of a tensor."""

    source: str
    start: int
    stop: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class _Match:
    value: str
    cosines: str
    sines: str
    width: int
    ops: tuple[Op, ...]


class FuseRotary(PatternPass[_Match]):
    """x · cos + (-x₂ | x₁) · sin, and (x₁ · cos - x₂ · sin | x₂ · cos + x₁ · sin): Rotary.

    x₁ and x₂ are the columns of x before and after its middle. If x is a part of a tensor, and the
    result is joined with the tensor's other columns, Rotary processes the whole of it.
    """

    name = "fuse_rotary"
    roots = frozenset({"BinaryOp", "Concat"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        if op.type == "BinaryOp":
            return _sum(op, index)
        if not _joins_columns(op, index):
            return NoMatch("not two groups of columns that are joined")
        whole = _widened(op, index)
        return whole if isinstance(whole, _Match) else _halfwise(op, index)

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        new: list[Op] = []
        tables = [_as_table(name, op, new, index) for name in (match.cosines, match.sines)]
        source, attrs = merged_source(match.ops), RotaryAttrs(match.width)
        inputs, outputs = [match.value, *tables], list(op.outputs)
        index.replace(op, *new, Op("Rotary", op.name, inputs, outputs, attrs, source))


# --- the three forms -----------------------------------------------------------------------------


def _sum(op: Op, index: GraphIndex) -> _Match | NoMatch:
    """Match x · cos + (-x₂ | x₁) · sin."""
    terms = binary_parts(op, "ADD")
    if terms is None or index.rank(op.outputs[0]) != RANK:
        return NoMatch("not a sum of tensors of four axes")
    products = [index.producer(name) for name in terms]
    for straight, crossed in (products, products[::-1]):
        for turned, sines in _orders(crossed):
            joined = index.producer_of_type(turned, "Concat")
            value = None if joined is None else _turned_by_a_quarter(joined, index)
            if value is None or joined is None or crossed is None or straight is None:
                continue
            for name, cosines in _orders(straight):
                if _part(name, index) == value:
                    inside = (straight, joined, crossed, op)
                    return _checked(_Match(name, cosines, sines, value.width, inside), index)
    return NoMatch("no sum of a product and a product with rotated columns")


def _halfwise(op: Op, index: GraphIndex) -> _Match | NoMatch:
    """Match (x₁ · cos - x₂ · sin | x₂ · cos + x₁ · sin)."""
    first, second = (index.producer(name) for name in op.inputs)
    minuend, plus = binary_parts(first, "SUB"), binary_parts(second, "ADD")
    if minuend is None or plus is None or first is None or second is None:
        return NoMatch("no difference next to a sum")
    a, b = (index.producer(name) for name in minuend)
    for c, d in ((index.producer(n) for n in plus), (index.producer(n) for n in plus[::-1])):
        for low, cosines in _orders(a):
            for high, sines in _orders(b):
                if {high, cosines} != set(_operands(c)) or {low, sines} != set(_operands(d)):
                    continue
                parts = _part(low, index), _part(high, index)
                whole = _joined(*parts)
                if whole is None or parts[0] is None or parts[0].width * 2 != whole.width:
                    continue
                if whole.start or whole.width != _columns(whole.source, index):
                    continue
                ops = tuple(one for one in (a, b, c, d, first, second, op) if one is not None)
                found = _Match(whole.source, cosines, sines, whole.width, ops)
                return _checked(found, index, pairs=True)
    return NoMatch("no columns rotated in pairs")


def _widened(op: Op, index: GraphIndex) -> _Match | NoMatch:
    """Match (Rotary of the first columns | the others as they are)."""
    rotary = index.producer_of_type(op.inputs[0], "Rotary")
    rest = _part(op.inputs[1], index)
    if rotary is None or rest is None or rotary.attrs.interleaved:
        return NoMatch("no columns that stay in place")
    turned = _part(rotary.inputs[0], index)
    whole = _joined(turned, rest)
    if whole is None or turned is None or turned.start or rotary.attrs.width != turned.width:
        return NoMatch("the rotated columns are not the first of the same tensor")
    if whole.width != _columns(whole.source, index):
        return NoMatch("not all columns of a tensor")
    if not index.read_only_by(rotary.outputs[0], (op,)):
        return NoMatch("the rotated columns are used elsewhere")
    _, cosines, sines = rotary.inputs
    return _Match(whole.source, cosines, sines, turned.width, (rotary, op))


# --- columns -------------------------------------------------------------------------------------


def _turned_by_a_quarter(op: Op, index: GraphIndex) -> Part | None:
    """Return x if the op is (-x₂ | x₁)."""
    if not _joins_columns(op, index):
        return None
    negated = _negated(op.inputs[0], index)
    high = None if negated is None else _part(negated, index)
    low = _part(op.inputs[1], index)
    whole = _joined(low, high)
    return whole if whole is not None and low is not None and low.width * 2 == whole.width else None


def _negated(name: str, index: GraphIndex) -> str | None:
    op = index.producer(name)
    if op is not None and isinstance(op.attrs, UnaryAttrs) and op.attrs.kind == "NEG":
        return op.inputs[0]
    for value, factor in _orders(op):
        if index.scalar(factor) == -1.0:
            return value
    return None


def _joins_columns(op: Op, index: GraphIndex) -> bool:
    """True for a Concat of two tensors along the last of four axes."""
    attrs = op.attrs
    return (
        isinstance(attrs, AxisAttrs)
        and len(op.inputs) == 2
        and index.rank(op.outputs[0]) == RANK
        and attrs.axis % RANK == COLUMNS
    )


def _joined(low: Part | None, high: Part | None) -> Part | None:
    """Return two parts as one, if the second follows the first."""
    if low is None or high is None or low.source != high.source or low.stop != high.start:
        return None
    return Part(low.source, low.start, high.stop)


def _columns(name: str, index: GraphIndex) -> int | None:
    shape = index.shape(name)
    size = shape[COLUMNS] if shape is not None and len(shape) == RANK else None
    return size if isinstance(size, int) else None


def _part(name: str, index: GraphIndex) -> Part | None:
    """Return the tensor and columns of a slice; the whole tensor if it is not one."""
    columns = _columns(name, index)
    if columns is None:
        return None
    op = index.producer(name)
    cut = None
    if op is not None and op.type == "Slice":
        cut = _slice_start(op, index)
    elif op is not None and isinstance(op.attrs, SplitAttrs) and op.attrs.axis % RANK == COLUMNS:
        sizes = [_columns(one, index) for one in op.outputs[: op.outputs.index(name)]]
        cut = None if None in sizes else sum(size or 0 for size in sizes)
    if op is None or cut is None:
        return Part(name, 0, columns)
    source = _part(op.inputs[0], index)
    if source is None:
        return Part(name, 0, columns)
    return Part(source.source, source.start + cut, source.start + cut + columns)


def _slice_start(op: Op[OpAttrs], index: GraphIndex) -> int | None:
    """Return the first column of a Slice of columns alone, in steps of one."""
    starts, *more = (index.ints(name) if name else None for name in op.inputs[1:])
    axes = more[1] if len(more) > 1 else None
    steps = more[2] if len(more) > 2 else None
    size = _columns(op.inputs[0], index)
    if starts is None or axes is None or len(axes) != 1 or axes[0] % RANK != COLUMNS:
        return None
    if size is None or (len(op.inputs) > 4 and op.inputs[4] and steps != (1,)):
        return None
    start = starts[0] + size if starts[0] < 0 else starts[0]
    return min(max(start, 0), size)


# --- tables --------------------------------------------------------------------------------------


def _operands(op: Op | None) -> tuple[str, ...]:
    return binary_parts(op, "MUL") or ()


def _orders(op: Op | None) -> tuple[tuple[str, str], ...]:
    parts = binary_parts(op, "MUL")
    return () if parts is None else (parts, parts[::-1])


def _checked(match: _Match, index: GraphIndex, *, pairs: bool = False) -> _Match | NoMatch:
    """Return the match if its tables have a number for every row and column, or every pair."""
    shape = index.shape(match.value)
    if shape is None or not index.is_float(match.value):
        return NoMatch("not known to be of a floating-point type")
    width = match.width // 2 if pairs else match.width
    for table in (match.cosines, match.sines):
        if not _fits(index.shape(table), shape, width):
            return NoMatch("the tables are not of rows and columns")
        if index.dtype(table) != index.dtype(match.value):
            return NoMatch("the tables are of another type")
    first, second = (index.shape(table) for table in (match.cosines, match.sines))
    if first != second:
        return NoMatch("the tables differ in shape")
    inside = match.ops
    if not all(index.read_only_by(one.outputs[0], inside) for one in inside[:-1]):
        return NoMatch("a value within the formula is used elsewhere")
    return match


def _fits(table: tuple[Dim, ...] | None, shape: tuple[Dim, ...], width: int) -> bool:
    if table is None or not 2 <= len(table) <= RANK or table[-1] != width:
        return False
    images, heads, rows = (*(1,) * (RANK - len(table)), *table)[:COLUMNS]
    return heads == 1 and images in (1, shape[0]) and rows == shape[2] and rows is not None


def _as_table(name: str, op: Op, new: list[Op], index: GraphIndex) -> str:
    """Return a table as a tensor of four axes."""
    shape = index.shape(name)
    if shape is None or len(shape) == RANK:
        return name
    array = index.constant(name)
    if array is not None:
        return index.add_constant(
            f"{name}_table", array.reshape(*(1,) * (RANK - array.ndim), *array.shape)
        )
    missing = RANK - len(shape)
    axes = index.add_constant(f"{name}_axes", np.arange(missing, dtype=np.int64))
    made = index.unique_name(f"{name}_table")
    new.append(Op("Unsqueeze", made, [name, axes], [made], OpAttrs(), op.source))
    info = index.info(name)
    if info is not None:
        index.add_info(made, info.dtype, (*(1,) * missing, *shape))
    return made
