"""MNN.expr's functions that pick elements: by index, by order, by condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkmnn.ir import Op
from vkmnn.ir.ops import NonMaxSuppressionAttrs
from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError, OutOfBoundsError
from vkmnn.mnn.expr.movement import integers
from vkmnn.mnn.expr.types import dtype
from vkmnn.mnn.expr.values import integer, matched, normal_axis, result, to_var
from vkmnn.mnn.expr.var import Var


def gather(x: Any, index: Any) -> Var:
    """Return the parts of a Var along its first axis at indices."""

    def compute(a: Array, where: Array) -> Any:
        return a[_inside(where, a.shape[0] if a.ndim else 0)]

    return result("GatherV2", compute, to_var(x), integers(index, "index"))


def gather_nd(x: Any, indices: Any) -> Var:
    """Return the parts of a Var at indices of its first axes, which the last axis lists."""

    def compute(a: Array, where: Array) -> Any:
        return a[_places(where, a.shape)]

    return result("GatherND", compute, to_var(x), integers(indices, "indices"))


def scatter_nd(indices: Any, updates: Any, shape: Any) -> Var:
    """Return zeros in which updates replace the parts at indices; of several, the last one."""

    def compute(where: Array, values: Array, sizes: Array) -> Any:
        made = np.zeros(sizes.reshape(-1).tolist(), values.dtype)
        made[_places(where, made.shape)] = values
        return made

    given = (integers(indices, "indices"), to_var(updates), integers(shape, "shape"))
    return result("ScatterNd", compute, *given)


def _places(where: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    if not where.ndim or where.shape[-1] > len(shape):
        raise ArgumentError(f"indices of shape {list(where.shape)} do not suit {list(shape)}")
    return tuple(_inside(where[..., axis], shape[axis]) for axis in range(where.shape[-1]))


def _inside(where: Array, size: int) -> Array:
    if where.size and (where.min() < -size or where.max() >= size):
        raise OutOfBoundsError(f"an index is outside an axis of {size}")
    return where


def one_hot(
    indices: Any, depth: Any, onValue: float = 1.0, offValue: float = 0.0, axis: int = -1
) -> Var:
    """Return a Var with a new axis, on which one element differs: that at the index."""
    count = integer(depth, "depth")

    def compute(where: Array) -> Any:
        found = where[..., None] == np.arange(count)
        made = np.where(found, np.float32(onValue), np.float32(offValue))
        return np.moveaxis(made, -1, axis)

    return result("OneHot", compute, integers(indices, "indices"))


def where(x: Any) -> Var:
    """Return the indices of the elements that are not 0: [elements, axes]."""
    return result("Where", np.argwhere, to_var(x))


def select(cond: Any, x: Any, y: Any) -> Var:
    """Return the elements of x where a condition is not 0, those of y elsewhere."""
    x, y = matched(x, y)
    return result("Select", lambda c, a, b: np.where(c != 0, a, b), to_var(cond), x, y)


def sort(x: Any, axis: int = -1, arg: bool = False, descend: bool = False) -> Var:
    """Return the elements in order along an axis, or their indices in that order.

    Elements of the same value keep their order.
    """
    along = integer(axis, "axis")

    def compute(a: Array) -> Any:
        one = normal_axis(along, a.ndim)
        if descend:  # the order of equal elements stays: sort the reverse, and turn the result
            order = a.shape[one] - 1 - np.argsort(np.flip(a, one), one, "stable")
            order = np.flip(order, one)
        else:
            order = np.argsort(a, one, "stable")
        return order if arg else np.take_along_axis(a, order, one)

    return result("TopKV2", compute, to_var(x))


def unravel_index(indices: Any, shape: Any) -> Var:
    """Return the indices along each axis for indices of flat elements: [axes, indices]."""

    def compute(flat: Array, sizes: Array) -> Any:
        return np.stack(np.unravel_index(flat.reshape(-1), sizes.tolist()))

    return result("UnravelIndex", compute, integers(indices, "indices"), integers(shape, "shape"))


def nms(
    boxes: Any,
    scores: Any,
    max_detections: int,
    iou_threshold: float = -1.0,
    score_threshold: float = -1.0,
) -> Var:
    """Return the indices of the boxes that remain after suppression of those that overlap others.

    Args:
        boxes: [boxes, 4]: two corners, y and x.
        scores: [boxes].
        max_detections: at most as many.
        iou_threshold: boxes that overlap a better one by more are dropped; a negative one is 0.
        score_threshold: boxes with lower scores are dropped; negative for none.
    """
    most = integer(max_detections, "max_detections")
    if most < 0:
        raise ArgumentError(f"there cannot be {most} detections")
    attrs = NonMaxSuppressionAttrs()
    op = Op("NonMaxSuppression", "nms", [*"bsmil"], ["y", "count"], attrs)

    def compute(corners: Array, values: Array) -> Any:
        if corners.shape != (values.size, 4):
            raise ArgumentError(f"{values.size} scores do not suit boxes {corners.shape}")
        limits = [np.array(most, np.int64), np.float32(max(iou_threshold, 0))]
        least = np.float32(score_threshold if score_threshold >= 0 else -np.inf)
        given = [corners[None], values.reshape(1, 1, -1), *map(np.asarray, limits)]
        from vkmnn.cpu_fallback import run_op

        found, count = run_op(op, [*given, np.asarray(least)])
        return found[: int(count[0]), 2]

    return result(
        "NonMaxSuppressionV2", compute, to_var(boxes, dtype.float), to_var(scores, dtype.float)
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "gather": gather,
    "gather_nd": gather_nd,
    "nms": nms,
    "one_hot": one_hot,
    "scatter_nd": scatter_nd,
    "select": select,
    "sort": sort,
    "unravel_index": unravel_index,
    "where": where,
}
