"""Reduction: sums, means, extrema, products and norms over neighbouring axes."""

from __future__ import annotations

from math import inf, nan, prod

import numpy as np

from vkmnn.core.execution import Layouts, Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType, Layout
from vkmnn.ir.ops import ReductionAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.shape.common import int_list
from vkmnn.shape.reduction import reduction_axes
from vkmnn.vulkan.copies.fill import encode_fill
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatRule
from vkmnn.vulkan.rows.reduction import (
    Line,
    ReduceOp,
    Reduction,
    column_local,
    encode_reduction,
    line_of,
)
from vkmnn.vulkan.storage import kernel_dtype

_FINISH = kernels.ReduceFinish

# The kernels' view of a kind. LOG_SUM_EXP takes two reductions.
_KINDS: dict[str, tuple[ReduceOp, kernels.ReduceFinish]] = {
    "SUM": ("SUM", _FINISH.NONE),
    "MEAN": ("SUM", _FINISH.DIVIDE),
    "MAX": ("MAX", _FINISH.NONE),
    "MIN": ("MIN", _FINISH.NONE),
    "PROD": ("PROD", _FINISH.NONE),
    "L1": ("L1", _FINISH.NONE),
    "L2": ("SUM_SQUARE", _FINISH.SQRT),
    "LOG_SUM": ("SUM", _FINISH.LOG),
    "SUM_SQUARE": ("SUM_SQUARE", _FINISH.NONE),
}
# Kinds of integers that need wider sums.
_EXACT = {
    "MEAN": kernels.ExactKind.MEAN,
    "L2": kernels.ExactKind.L2,
    "LOG_SUM": kernels.ExactKind.LOG_SUM,
}
# Kinds that return zero for zeros, so that the tail lanes of NC4HW4 stay zero.
_KEEPS_ZERO = frozenset({"SUM", "MEAN", "MAX", "MIN", "PROD", "L1", "L2", "SUM_SQUARE"})
# Results over no elements; the integers' extrema are the limits of their type (ONNX).
_OF_NOTHING = {
    "SUM": 0.0,
    "MEAN": nan,
    "MAX": -inf,
    "MIN": inf,
    "PROD": 1.0,
    "L1": 0.0,
    "L2": 0.0,
    "LOG_SUM": -inf,
    "LOG_SUM_EXP": -inf,
    "SUM_SQUARE": 0.0,
}
_INT32 = np.iinfo(np.int32)


@vulkan_execution("Reduction")
class ReductionExecution(VulkanExecution[ReductionAttrs]):
    """One dispatch, more if lines are long or few; geometry has made the axes adjacent."""

    float_rule = FloatRule.READS

    def prepare(self, info: DeviceInfo) -> None:
        """Reject long sums of wide integers, and results beyond 32 bits."""
        kind, x, axes = self.attrs.kind, self.operand(0), self.optional(1)
        given = None if axes is None else int_list([None, axes.value], 1, "axes")
        self._axes = reduction_axes(
            len(x.shape), given, noop_with_empty_axes=self.attrs.noop_with_empty_axes
        )
        self._line = (
            line_of(x.shape, self._axes[0], self._axes[-1])
            if self._axes
            else Line(prod(x.shape), 1, 1)
        )
        size = self._line.size
        if kernel_dtype(x.dtype) == "f32" or 0 in self.output.shape:
            return
        if size == 0 and _of_nothing(kind, x.dtype) is None:
            raise Rejection(f"{kind} of no {x.dtype.value} elements")
        if kind == "LOG_SUM_EXP":
            raise Rejection(f"{kind} of integers, which float32 cannot represent exactly")
        if kind in _EXACT and size > MAX_LOOP_ROUNDS:
            raise Rejection(f"{kind} of {size} integers, at most {MAX_LOOP_ROUNDS} fit")

    def layouts(self) -> Layouts:
        """Stay channel-blocked if all pixels of an image are reduced."""
        attrs, x = self.attrs, self.operand(0)
        pixels = tuple(range(2, len(x.shape)))
        words = kernel_dtype(x.dtype) == "f32" or attrs.kind not in _EXACT
        blocked = x.layout is Layout.NC4HW4 and self._axes == pixels and words
        if not blocked or attrs.kind not in _KEEPS_ZERO or 0 in x.shape:
            return [Layout.NCHW] * len(self.inputs), [Layout.NCHW]
        made = Layout.NC4HW4 if attrs.keepdims else Layout.NCHW
        return [Layout.NC4HW4, *[Layout.NCHW] * (len(self.inputs) - 1)], [made]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        attrs, x, y, line = self.attrs, self.operand(0), self.output, self._line
        if 0 in y.shape:
            return
        if line.size == 0:
            value = _of_nothing(attrs.kind, y.dtype)
            assert value is not None
            encode_fill(y, value, encoder)
        elif x.layout is Layout.NC4HW4:
            _encode_pixels(attrs.kind, x, y, encoder)
        elif kernel_dtype(x.dtype) == "f32":
            _encode(attrs.kind, x, y, line, encoder)
        elif attrs.kind in _EXACT:
            _encode_exact(attrs.kind, x, y, line, encoder)
        else:
            _encode(attrs.kind, x, y, line, encoder)


def _of_nothing(kind: str, dtype: DType) -> float | None:
    """Return the reduction of no elements, None if the device cannot represent it."""
    value = _OF_NOTHING[kind]
    if kernel_dtype(dtype) == "f32":
        return value
    if dtype is DType.BOOL and kind in ("MAX", "MIN"):
        return float(kind == "MIN")
    if kind in ("MAX", "MIN"):
        limits = np.iinfo(dtype.numpy.name)
        limit = limits.min if kind == "MAX" else limits.max
        return float(limit) if _INT32.min <= limit <= _INT32.max else None
    return value if value in (0.0, 1.0) else None


def _encode(
    kind: str,
    x: Tensor,
    y: Tensor,
    line: Line,
    encoder: VulkanEncoder,
    *,
    vectors: bool = False,
) -> None:
    if kind == "LOG_SUM_EXP":
        peak = encoder.scratch(line.columns, full=True)
        encode_reduction(Reduction("MAX"), x, peak, line, encoder)
        powers = Reduction("SUM_EXP", _FINISH.LOG_ADD, center=peak, subtract=True)
        encode_reduction(powers, x, y, line, encoder)
        return
    op, finish = _KINDS[kind]
    reduction = Reduction(op, finish, divisor=line.size)
    encode_reduction(reduction, x, y, line, encoder, vectors=vectors)


def _encode_pixels(kind: str, x: Tensor, y: Tensor, encoder: VulkanEncoder) -> None:
    """Reduce all pixels of channel-blocked images."""
    batch, channels = x.shape[:2]
    blocks = ceil_div(channels, 4)
    line = Line(blocks * batch, prod(x.shape[2:]), 1)
    # One image of one pixel looks the same in both orders.
    if y.layout is Layout.NC4HW4 or batch == 1:
        _encode(kind, x, y, line, encoder, vectors=True)
        return
    made = encoder.scratch(
        line.outer * 4,
        DType.FLOAT32 if kernel_dtype(x.dtype) == "f32" else DType.INT32,
        full=True,
    )
    _encode(kind, x, made, line, encoder, vectors=True)
    params = kernels.ConvertLayoutParams(count=line.outer, batch=batch, channels=channels, pixels=1)
    shader = kernels.convert_layout(dest="nchw", element="f32", result="f32", load=encoder.load)
    encoder.dispatch_linear(shader, [made, y], params, line.outer)


def _encode_exact(kind: str, x: Tensor, y: Tensor, line: Line, encoder: VulkanEncoder) -> None:
    count = line.columns
    params = kernels.ReduceExactParams(count=count, size=line.size, inner=line.inner)
    spec = {"KIND": _EXACT[kind].value, **column_local(count, encoder)}
    shader = kernels.reduce_exact(load=encoder.load)
    encoder.dispatch_linear(shader, [x, y], params, count, spec)
