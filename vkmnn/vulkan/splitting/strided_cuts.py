"""Cuts of ops on views, whose loops correspond to no axis of a tensor."""

from __future__ import annotations

from dataclasses import replace

from vkmnn.geometry.regions import row_major
from vkmnn.ir import Op, View
from vkmnn.ir.ops import StridedAttentionAttrs
from vkmnn.vulkan.splitting.pieces import Cut, Part, Piece

SINK = 5  # of a StridedAttention, a number for every matrix


def attention_cuts(op: Op[StridedAttentionAttrs]) -> list[Cut]:
    """Return cuts along matrices, and along queries whose masks do not depend on their number."""
    attrs = op.attrs
    cuts = [_attention_cut(attrs, len(op.inputs), axis) for axis in range(len(attrs.batch))]
    if not (attrs.causal or attrs.window or (attrs.codes and attrs.codes.later)):
        cuts.append(_attention_cut(attrs, len(op.inputs), len(attrs.batch)))
    return cuts


def _attention_cut(attrs: StridedAttentionAttrs, count: int, axis: int) -> Cut:
    """Cut along a batch axis, or along the queries, which come after the batch axes."""
    sizes = (*attrs.batch, attrs.queries)

    def part(begin: int, end: int) -> Part:
        views = [*attrs.views, *([attrs.mask] if attrs.mask is not None else []), attrs.result]
        rows = [attrs.queries, attrs.keys, attrs.keys, attrs.queries]
        columns = [attrs.depth, attrs.depth, attrs.width, attrs.keys]
        if attrs.mask is None:
            rows, columns = rows[:3], columns[:3]
        rows.append(attrs.queries)
        columns.append(attrs.width)
        pieces, seen = [], []
        for number, (view, height, width) in enumerate(zip(views, rows, columns, strict=True)):
            size = [n if step else 1 for n, step in zip(attrs.batch, view.strides, strict=False)]
            size += [height if view.strides[3] else 1, width]
            offset = view.offset
            if size[axis] > 1 and (axis < len(attrs.batch) or number not in (1, 2)):
                offset += begin * view.strides[axis]
                size[axis] = end - begin
            strides = (*view.strides, 1)
            pieces.append(Piece(tuple(size), View(offset, strides), tuple(size)))
            steps = row_major(size)[:4]
            seen.append(
                View(0, tuple(s if n > 1 else 0 for n, s in zip(size, steps, strict=False)))
            )
        now = [*sizes[:axis], end - begin, *sizes[axis + 1 :]]
        changed = replace(
            attrs,
            batch=(now[0], now[1], now[2]),
            queries=now[3],
            views=(seen[0], seen[1], seen[2]),
            mask=seen[3] if attrs.mask is not None else None,
            result=seen[-1],
        )
        *taken, given = pieces
        others: list[Piece | None] = [None] * (count - len(taken))
        if count > SINK:
            others[-1] = _sinks(attrs.batch, axis, begin, end)
        return Part(changed, (*taken, *others), (given,))

    touched = {0, count} if axis == len(attrs.batch) else {0, 1, 2, count}
    touched |= {3} if attrs.mask else set()
    touched |= {SINK} if count > SINK and axis < len(attrs.batch) else set()
    return Cut(sizes[axis], 1, axis, frozenset(touched), part)


def _sinks(batch: tuple[int, ...], axis: int, begin: int, end: int) -> Piece | None:
    """Return the sinks of a part of the matrices; None for all, if queries are split."""
    if axis >= len(batch):
        return None
    size = (*batch[:axis], end - begin, *batch[axis + 1 :])
    steps = row_major(batch)
    return Piece(size, View(begin * steps[axis], tuple(steps)), size)
