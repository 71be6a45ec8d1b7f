"""Einsum as strided copies, reductions, and pairwise products of two operands.

Operands stay in place as long as possible: an operand is a stored tensor and one stride per label,
so that transpositions and diagonals accumulate and become at most one copy, when an op needs the
elements in a certain order. Axes of size 1 have no label: the other operands determine what they
broadcast to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, combinations
from math import prod

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.geometry.regions import row_major
from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import DType, Region, TensorInfo, View
from vkmnn.ir.ops import BinaryAttrs, EinsumAttrs, MatMulAttrs, ReductionAttrs
from vkmnn.shape.einsum import EinsumPlan, Label, parse_einsum


@dataclass(frozen=True, slots=True)
class _Operand:
    """A stored tensor, read through one stride per label (labels in insertion order)."""

    name: str
    strides: dict[Label, int]

    @property
    def labels(self) -> tuple[Label, ...]:
        return tuple(self.strides)


@geometry("Einsum")
def _einsum(ctx: GeometryContext[EinsumAttrs]) -> None:
    shapes = [ctx.input(index).dims for index in range(len(ctx.inputs))]
    plan = parse_einsum(ctx.attrs.equation, shapes)
    _Contraction(ctx, plan).run()


class _Contraction:
    """The evaluation of one equation."""

    def __init__(self, ctx: GeometryContext, plan: EinsumPlan) -> None:
        self.ctx = ctx
        self.plan = plan
        self.dtype: DType = ctx.input(0).dtype
        self.shapes = {info.name: info.dims for info in ctx.inputs if info is not None}

    def run(self) -> None:
        """Contract the cheapest pair repeatedly, then bring the last operand into order."""
        operands = [self.operand(index, labels) for index, labels in enumerate(self.plan.operands)]
        while True:
            uses = self.uses(operands)
            operands = [self.sum_out(operand, self.needed(uses, operand)) for operand in operands]
            if len(operands) == 1:
                break
            self.ctx.check_pieces(len(operands))
            first, second = self.cheapest(operands)
            rest = [x for index, x in enumerate(operands) if index not in (first, second)]
            needed = self.needed(uses, operands[first], operands[second])
            operands = [self.product(operands[first], operands[second], needed), *rest]
        self.copy(operands[0], self.plan.result, self.ctx.outputs[0])

    def operand(self, index: int, labels: Sequence[Label]) -> _Operand:
        """Return an input; a label that occurs twice steps along the diagonal."""
        info = self.ctx.input(index)
        strides: dict[Label, int] = {}
        for label, dim, stride in zip(labels, info.dims, row_major(info.dims), strict=True):
            if dim != 1:
                strides[label] = strides.get(label, 0) + stride
        return _Operand(info.name, strides)

    def uses(self, operands: Iterable[_Operand]) -> Counter[Label]:
        """Return how many operands use each label; the result counts as one more."""
        return Counter(chain(set(self.plan.result), *(operand.labels for operand in operands)))

    def needed(self, uses: Counter[Label], *own: _Operand) -> set[Label]:
        """Return the labels of some operands that the result or other operands still use."""
        mine = Counter(chain.from_iterable(operand.labels for operand in own))
        return {label for label, count in mine.items() if uses[label] > count}

    def cheapest(self, operands: Sequence[_Operand]) -> tuple[int, int]:
        """Return the pair of operands whose product has the fewest elements.

        Operands with the same labels are equal: only the first two of them are examined.
        """
        uses = self.uses(operands)
        alike: dict[frozenset[Label], list[int]] = {}
        for index, operand in enumerate(operands):
            alike.setdefault(frozenset(operand.labels), []).append(index)
        some = sorted(index for indices in alike.values() for index in indices[:2])

        def cost(pair: tuple[int, int]) -> int:
            return prod(self.sizes(self.needed(uses, *(operands[index] for index in pair))))

        return min(combinations(some, 2), key=cost)

    def sizes(self, labels: Iterable[Label]) -> list[int]:
        return [self.plan.sizes[label] for label in labels]

    # --- emitting ------------------------------------------------------------------------------

    def stored(self, name: str, labels: Sequence[Label]) -> _Operand:
        """Return a contiguous tensor whose axes are `labels`."""
        return _Operand(name, dict(zip(labels, row_major(self.sizes(labels)), strict=True)))

    def copy(self, operand: _Operand, labels: Sequence[Label], output: TensorInfo) -> None:
        """Emit the copy of an operand, in the order of `labels`, to `output`."""
        size = tuple(self.sizes(labels))
        strides = tuple(operand.strides.get(label, 0) for label in labels)
        region = Region(View(0, strides), View(0, row_major(size)), size)
        self.ctx.raster(output, [operand.name], [region])

    def arranged(self, operand: _Operand, labels: Sequence[Label], shape: Sequence[int]) -> str:
        """Return a tensor of `shape` that holds the operand in the order of `labels`.

        An input that already is one is read directly, so that a constant stays known.
        """
        if self.shapes.get(operand.name) == tuple(shape) and self.is_stored(operand, labels):
            return operand.name
        info = self.ctx.temp(self.dtype, shape)
        self.copy(operand, labels, info)
        return info.name

    def sum_out(self, operand: _Operand, needed: set[Label]) -> _Operand:
        """Sum over the labels that nothing else uses."""
        labels = operand.labels
        kept = [label for label in labels if label in needed]
        if len(kept) == len(labels):
            return operand
        axes = [axis for axis, label in enumerate(labels) if label not in needed]
        source = self.arranged(operand, labels, self.sizes(labels))
        result = self.ctx.temp(self.dtype, self.sizes(kept))
        names = [source, self.ctx.constant(np.array(axes, np.int64))]
        self.ctx.emit("Reduction", names, ReductionAttrs("SUM", keepdims=False), result)
        return self.stored(result.name, kept)

    def product(self, a: _Operand, b: _Operand, needed: set[Label]) -> _Operand:
        """Multiply two operands and sum over shared indices that nothing else uses."""
        shared = [label for label in a.labels if label in b.strides]
        if all(label in needed for label in shared):
            return self.multiply(a, b)
        return self.matmul(a, b, [label for label in shared if label in needed])

    def multiply(self, a: _Operand, b: _Operand) -> _Operand:
        labels = self.in_result_order({**a.strides, **b.strides})
        names = []
        for operand in (a, b):
            own = [label for label in labels if label in operand.strides]
            shape = [self.plan.sizes[x] if x in operand.strides else 1 for x in labels]
            names.append(self.arranged(operand, own, shape))
        result = self.ctx.temp(self.dtype, self.sizes(labels))
        self.ctx.emit("BinaryOp", names, BinaryAttrs("MUL"), result)
        return self.stored(result.name, labels)

    def in_result_order(self, labels: Iterable[Label]) -> list[Label]:
        """Return labels in the order of the result, followed by those that it lacks."""
        order = {label: place for place, label in enumerate(self.plan.result)}
        return sorted(labels, key=lambda label: order.get(label, len(order)))

    def matmul(self, a: _Operand, b: _Operand, batch: list[Label]) -> _Operand:
        inner = [label for label in a.labels if label in b.strides and label not in batch]
        rows = [label for label in a.labels if label not in b.strides]
        columns = [label for label in b.labels if label not in a.strides]
        ordered = self.in_result_order([*rows, *columns])
        if columns and rows and ordered == [*columns, *rows]:
            a, b, rows, columns = b, a, columns, rows  # the result has its final order already
        left, transpose_a = self.matrices(a, batch, rows, inner)
        right, transpose_b = self.matrices(b, batch, inner, columns)
        labels = [*batch, *rows, *columns]
        result = self.ctx.temp(
            self.dtype, [*self.flat(batch), prod(self.sizes(rows)), prod(self.sizes(columns))]
        )
        attrs = MatMulAttrs(transpose_a, transpose_b)
        self.ctx.emit("MatMul", [left, right], attrs, result)
        return self.stored(result.name, labels)

    def flat(self, batch: Sequence[Label]) -> list[int]:
        return [prod(self.sizes(batch))] if batch else []

    def matrices(
        self,
        operand: _Operand,
        batch: Sequence[Label],
        rows: Sequence[Label],
        columns: Sequence[Label],
    ) -> tuple[str, bool]:
        """Return a tensor [batch, rows, columns], or its transpose and True when that is stored."""
        transposed = self.is_stored(operand, [*batch, *columns, *rows])
        if self.is_stored(operand, [*batch, *rows, *columns]):
            transposed = False
        first, second = (columns, rows) if transposed else (rows, columns)
        shape = [*self.flat(batch), prod(self.sizes(first)), prod(self.sizes(second))]
        return self.arranged(operand, [*batch, *first, *second], shape), transposed

    def is_stored(self, operand: _Operand, labels: Sequence[Label]) -> bool:
        """True when the operand is contiguous in the order of `labels`."""
        return self.stored(operand.name, labels).strides == operand.strides
