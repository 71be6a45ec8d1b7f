"""Axes of products: of matrices, by equations, attention."""

from __future__ import annotations

from dataclasses import replace

from vkmnn.errors import ShapeError
from vkmnn.ir import Op, OpAttrs
from vkmnn.ir.ops import (
    AttentionAttrs,
    DynamicQuantizeMatMulAttrs,
    EinsumAttrs,
    ExpertMatMulAttrs,
    MatMulAttrs,
    MatMulNBitsAttrs,
    NormedMatMulAttrs,
    QuantizedMatMulAttrs,
)
from vkmnn.shape.axes.elementwise import aligned
from vkmnn.shape.axes.loops import Known, Loop, Shape, axes_of, mixed, parallel, reduction
from vkmnn.shape.einsum import parse_einsum

_BOTH = frozenset({0, 1})
_FACTOR = frozenset({4})


@axes_of("MatMul", "NormedMatMul", "QuantizedMatMul", "DynamicQuantizeMatMul")
def _matmul(
    op: Op[MatMulAttrs]
    | Op[NormedMatMulAttrs]
    | Op[QuantizedMatMulAttrs]
    | Op[DynamicQuantizeMatMulAttrs],
    known: Known,
) -> list[Loop]:
    """Batches of matrices, rows, columns, and the sum."""
    attrs, a, b = op.attrs, known.shape(0), known.shape(1)
    if not a or not b:
        raise ShapeError("a scalar has no rows or columns")
    loops = []
    batch = max(len(a), len(b)) - 2
    rank = max(batch, 0) + (len(a) > 1) + (len(b) > 1)
    for axis in range(batch):
        reads = [aligned(batch, shape[:-2], axis) for shape in (a, b)]
        size = _common(a, b, reads)
        loops.append(parallel(size, [*reads, None, axis], axis, broadcast=_BOTH))
    rows = len(a) - 1 - (not attrs.transpose_a) if len(a) > 1 else None
    columns = len(b) - 1 - attrs.transpose_b if len(b) > 1 else None
    if rows is not None:
        writes = rank - 1 - (columns is not None)
        loops.append(parallel(a[rows], [rows, None, None, writes], writes))
    if columns is not None:
        fours = getattr(attrs, "gated", False)  # two gates, and their gated values
        size = b[columns]
        if fours:
            size = size // 4 if isinstance(size, int) else None
        again = 1 if op.type == "QuantizedMatMul" else None
        reads = [None, columns, 0, rank - 1, 0, None, again]
        loops.append(parallel(size, reads, rank - 1, broadcast=_FACTOR))
    depth = len(a) - 1 - (attrs.transpose_a and len(a) > 1)
    across = len(b) - 1 - (not attrs.transpose_b and len(b) > 1)
    if getattr(attrs, "norm", "NONE") == "NONE":
        loops.append(reduction("SUM", a[depth], [depth, across]))
    else:
        loops.append(mixed(a[depth], [depth, across]))
    return loops


def _common(a: Shape, b: Shape, reads: list[int | None]) -> int | str | None:
    """Return the size to which an axis of two operands is broadcast."""
    sizes = {s[axis] for s, axis in zip((a, b), reads, strict=True) if axis is not None}
    sizes = sizes - {1} or {1}
    return sizes.pop() if len(sizes) == 1 else None


@axes_of("MatMulNBits")
def _matmul_nbits(op: Op[MatMulNBitsAttrs], known: Known) -> list[Loop]:
    """Rows and columns; blocks along the sum share scales."""
    attrs, x = op.attrs, known.shape()
    last = len(x) - 1
    each = 4 if attrs.gated else 1

    def narrower(begin: int, end: int) -> OpAttrs:
        return replace(attrs, columns=(end - begin) * each)

    rows = [parallel(x[axis], [axis, None, None, axis], axis) for axis in range(last)]
    reads = [None, 0, 0, last, 0, 0]
    columns = parallel(attrs.columns // each, reads, last, attrs=narrower)
    return [*rows, columns, mixed(x[last], [last, *[None] * 5, 0])]


@axes_of("ExpertMatMul")
def _expert_matmul(op: Op[ExpertMatMulAttrs], known: Known) -> list[Loop]:
    """Rows, and the experts of each, whose results may be summed; columns; the sum."""
    attrs, chosen = op.attrs, known.shape(2)
    last = len(chosen) - 1
    summed = len(op.inputs) > 6 and bool(op.inputs[6])
    each = 4 if attrs.gated else 1

    def narrower(begin: int, end: int) -> OpAttrs:
        return replace(attrs, columns=(end - begin) * each)

    loops = [
        parallel(chosen[axis], [axis, None, axis, None, None, None, axis, axis], axis)
        for axis in range(last)
    ]
    of_row = [last if attrs.each else None, None, last, None, None, None, last]
    if not summed:
        loops.append(parallel(chosen[last], of_row, last))
    elif not any(op.inputs[7:]):
        loops.append(reduction("SUM", chosen[last], of_row))
    writes = last + (not summed)
    reads = [None, 1, None, 1, 1, 1, None, writes]
    loops.append(parallel(attrs.columns // each, reads, writes, attrs=narrower))
    return [*loops, mixed(attrs.depth, [last + attrs.each])]


@axes_of("Einsum")
def _einsum(op: Op[EinsumAttrs], known: Known) -> list[Loop]:
    """One loop per letter."""
    shapes = [known.shape(place) for place in range(len(known.inputs))]
    static = [tuple(dim for dim in shape if isinstance(dim, int)) for shape in shapes]
    if static != shapes:
        raise ShapeError("sizes are not known")
    plan = parse_einsum(op.attrs.equation, static)
    if any(len(set(labels)) < len(labels) for labels in plan.operands):
        raise ShapeError("a diagonal has no separate axis")
    every = frozenset(range(len(shapes)))
    loops = []
    for label, size in plan.sizes.items():
        reads = [labels.index(label) if label in labels else None for labels in plan.operands]
        if label in plan.result:
            loops.append(parallel(size, reads, plan.result.index(label), broadcast=every))
        else:
            loops.append(reduction("SUM", size, reads, broadcast=every))
    return loops


@axes_of("Attention")
def _attention(op: Op[AttentionAttrs], known: Known) -> list[Loop]:
    """Matrices, queries if no mask depends on their number, keys, and the elements of a row."""
    attrs = op.attrs
    q, k, v = (known.shape(place) for place in range(3))
    mask, sink = (known.inputs[n] if n < len(known.inputs) else None for n in (3, 5))
    if min(map(len, (q, k, v))) < 2:
        raise ShapeError("queries, keys and values are matrices")
    rank = max(map(len, (q, k, v)))
    ordered = attrs.causal or bool(attrs.window) or bool(attrs.codes and attrs.codes.later)
    shapes = [q, k, v, mask, None, sink]
    loops = []
    for axis in range(rank - 2):
        reads = [aligned(rank, shape, axis) for shape in shapes]
        sizes = {
            s[n] for s, n in zip(shapes, reads, strict=True) if s is not None and n is not None
        }
        sizes = sizes - {1} or {1}
        size = sizes.pop() if len(sizes) == 1 else None
        loops.append(parallel(size, reads, axis, broadcast=frozenset({0, 1, 2, 3, 5})))
    masked = frozenset({3})
    queries = [len(q) - 2, None, None, aligned(rank, mask, rank - 2)]
    loops.append(
        mixed(q[-2], queries, rank - 2)
        if ordered
        else parallel(q[-2], queries, rank - 2, broadcast=masked)
    )
    keys = [None, len(k) - 2, len(v) - 2, aligned(rank, mask, rank - 1)]
    if attrs.causal or attrs.codes or any(op.inputs[4:5]):
        loops.append(mixed(k[-2], keys))
    else:
        loops.append(reduction("", k[-2], keys, broadcast=masked, count_input=4))
    return [
        *loops,
        reduction("SUM", q[-1], [len(q) - 1, len(k) - 1]),
        parallel(v[-1], [None, None, len(v) - 1], rank - 1),
    ]


@axes_of("LinearAttention")
def _linear_attention(op: Op, known: Known) -> list[Loop]:
    """Sequences; each step continues from the one before."""
    shape = known.shape()
    return [
        parallel(shape[0], [0] * 6, 0),
        mixed(shape[1], [1, 1, 1, None, 1, 1], (1, None)),
    ]
