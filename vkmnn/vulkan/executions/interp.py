"""Interp (ONNX Resize): one dispatch for two axes, from tables of taps computed on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.base.records import dataclass
from vkmnn.core.execution import Layouts, Rejection
from vkmnn.core.float_range import fits
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, DType, Layout
from vkmnn.ir.ops import InterpAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.shape.resizing import AxisResize, axis_taps, resize_axes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule, apply_float_rule
from vkmnn.vulkan.quantized.byte_codes import code_shift, code_spec, rounding_spec
from vkmnn.vulkan.storage import kernel_dtype, to_storage

# Two axes share a dispatch up to this many taps per element; beyond, one by one is less work.
MAX_FUSED_TAPS = 16
# Every pair of taps is one iteration, and an invocation may do 65,000.
MAX_TAPS = 120_000
# Wider integers do not fit the 24 bits of float32, in which taps are summed.
_INTERPOLATED_INTEGERS = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """The taps of each output element of one axis.

    Args:
        axis: number of the axis.
        indices: [size, taps] input elements, inside the axis.
        weights: [size, taps], or None when the only tap is copied.
        outside: [size] elements that get the extrapolation value.
    """

    axis: int
    indices: Array
    weights: Array | None
    outside: Array

    @property
    def size(self) -> int:
        """Output elements."""
        return int(self.indices.shape[0])

    @property
    def count(self) -> int:
        """Taps of an element."""
        return int(self.indices.shape[1])

    @property
    def pairs(self) -> int:
        """Pairs of weighted taps of an element; linear and cubic always have an even number."""
        return 0 if self.weights is None else self.count // 2

    def table(self, stride: int) -> Array:
        """Return int32 [size, pairs or 1, 4]: offsets in steps of `stride` and bits of weights."""
        table = np.zeros((self.size, max(self.pairs, 1), 4), np.int32)
        offsets = np.where(self.outside[:, None], -1, self.indices * stride)
        if self.weights is None:
            table[:, 0, 0] = offsets[:, 0]
            return table
        table[:, :, :2] = offsets.reshape(self.size, -1, 2)
        bits = np.ascontiguousarray(self.weights, np.float32).view(np.int32)
        table[:, :, 2:] = bits.reshape(self.size, -1, 2)
        return table


def kept(axis: int, size: int, outside: Array | None = None) -> Taps:
    """Return the taps of an axis that keeps its elements, those `outside` excepted."""
    none = np.zeros(size, np.bool_)
    return Taps(axis, np.arange(size)[:, None], None, none if outside is None else outside)


def plan_steps(axes: Sequence[AxisResize], attrs: InterpAttrs) -> list[list[Taps]]:
    """Return the axes that each dispatch resizes: one, or two with few taps.

    Only the last of several dispatches extrapolate, so that nothing interpolates extrapolated
    values.
    """
    resized = []
    for number, axis in enumerate(axes):
        if not axis.is_identity:
            indices, weights, outside = axis_taps(axis, attrs)
            copied = attrs.mode == "nearest"
            resized.append(Taps(number, indices, None if copied else weights, outside))
    steps = list(_paired(resized))
    masked = [taps for taps in resized if taps.outside.any()]
    if len(steps) > 1 and masked:
        steps = list(_paired([replace(t, outside=np.zeros_like(t.outside)) for t in resized]))
        steps += _paired([kept(taps.axis, taps.size, taps.outside) for taps in masked])
    return steps


def _paired(resized: Sequence[Taps]) -> Iterator[list[Taps]]:
    """Combine two axes while the product of their taps is small."""
    step: list[Taps] = []
    for taps in resized:
        if step and (len(step) == 2 or step[0].count * taps.count > MAX_FUSED_TAPS):
            yield step
            step = []
        step.append(taps)
    if step:
        yield step


@vulkan_execution("Interp")
class InterpExecution(VulkanExecution[InterpAttrs]):
    """Separable: each dispatch resizes one or two axes of a tensor seen as five."""

    float_rule = FloatRule.FOLLOWS

    def prepare(self, info: DeviceInfo) -> None:
        """Reject interpolation of bool and wide integers, and sums with too many taps."""
        attrs, x = self.attrs, self.operand(0)
        words = kernel_dtype(x.dtype) == "i32" and x.dtype not in _INTERPOLATED_INTEGERS
        if words and attrs.mode != "nearest":
            raise Rejection(f"{attrs.mode} interpolation of {x.dtype.value}: sums are float32")
        values = [None if tensor is None else tensor.value for tensor in self.inputs]
        self._axes = resize_axes(self.op, x.shape, values)
        self._steps = [] if 0 in self.output.shape else plan_steps(self._axes, attrs)
        if attrs.ending and not self._steps and 0 not in x.shape:
            last = len(x.shape) - 1
            self._steps = [[kept(last, x.shape[last])]]
        taps = max((taps.count for step in self._steps for taps in step), default=0)
        if taps > MAX_TAPS:
            raise Rejection(f"{taps} taps along an axis, at most {MAX_TAPS} fit")

    @property
    def steps(self) -> Sequence[Sequence[Taps]]:
        """The axes that each dispatch resizes."""
        return self._steps

    def layouts(self) -> Layouts:
        """Keep channel blocks if batch and channels keep their size and zero tails stay zero."""
        attrs, x = self.attrs, self.operand(0)
        crops = attrs.coordinate_mode == "tf_crop_and_resize"
        blocked = (
            x.layout is Layout.NC4HW4
            and self._keeps_zeros()
            and all(axis.is_identity for axis in self._axes[:2])
            and (not crops or attrs.extrapolation_value == 0.0 or x.shape[1] % 4 == 0)
        )
        layout = Layout.NC4HW4 if blocked else Layout.NCHW
        return [layout, *[Layout.NCHW] * (len(self.inputs) - 1)], [layout]

    def _keeps_zeros(self) -> bool:
        """Return whether rounding leaves the lanes past the last channel unchanged."""
        ending = self.attrs.ending
        inside = ending is None or ending.low <= 0.0 <= ending.high
        return inside or self.operand(0).shape[1] % 4 == 0

    def code_inputs(self) -> dict[int, int | None]:
        """Copies of pixels by one dispatch read quantised values; so do sums that requantise."""
        pixels = all(taps.axis > 1 for step in self._steps for taps in step)
        crops = self.attrs.coordinate_mode == "tf_crop_and_resize"
        ends = self.attrs.mode == "nearest" or self.attrs.ending is not None
        fits = ends and not crops and len(self.operand(0).shape) > 2
        fits = fits and pixels and self._keeps_zeros()
        return {0: None} if fits and len(self._steps) == 1 else {}

    def keeps_codes(self) -> bool:
        """Copies of quantised values are quantised."""
        return self.attrs.ending is None and bool(self.code_inputs())

    def made_codes(self, wish: int | None = None) -> int | None:
        """Copies of quantised values, and results that are rounded and not dequantised."""
        ending, x = self.attrs.ending, self.operand(0)
        if ending is None or x.layout is not Layout.NC4HW4 or not self.code_inputs():
            return x.codes
        return code_shift(ending.low, ending.high, wish) if ending.scale == 1.0 else None

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the input, unless the value of elements outside does not fit."""
        attrs = self.attrs
        outside = np.array([attrs.extrapolation_value])
        follows = attrs.ending is None and fits(outside, element)
        rule = self.float_rule if follows else FloatRule.FULL
        wanted, made = apply_float_rule(rule, self.inputs[:1], self.outputs, element)
        return [*wanted, *[False] * (len(self.inputs) - 1)], made

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches, or a view if no axis is resized."""
        attrs, steps, source, output = self.attrs, self._steps, self.operand(0), self.output
        if 0 in output.shape:
            return
        if not steps:
            encoder.alias(output, source)
            return
        blocked = source.layout is Layout.NC4HW4
        integer = kernel_dtype(source.dtype) == "i32" and attrs.mode != "nearest"
        last_sum = max(
            (n for n, step in enumerate(steps) if step[0].weights is not None), default=0
        )
        sizes = list(source.shape)
        if blocked:
            sizes[:2] = [ceil_div(sizes[1], 4), sizes[0]]
        for number, step in enumerate(steps):
            target = output
            if number < len(steps) - 1:
                # Sums of integers stay floats until the last one.
                dtype = DType.FLOAT32 if integer and number < last_sum else output.dtype
                elements = _resized(sizes, step)
                target = encoder.scratch(prod(elements) * (4 if blocked else 1), dtype)
            rounding: dict[str, float | bool] = {
                "FROM_INTEGER": integer and number == 0,
                "TO_INTEGER": integer and number == last_sum,
                **self._ending_spec(number),
            }
            self._dispatch(step, sizes, blocked, source, target, rounding, encoder)
            sizes = _resized(sizes, step)
            source = target

    def _ending_spec(self, number: int) -> dict[str, float | bool]:
        """Return the rounding of a dispatch: the first rounds copies, the last one sums."""
        ending = self.attrs.ending
        if ending is None:
            return {}
        if self.attrs.mode == "nearest":
            return rounding_spec(ending) if number == 0 else {}
        spec: dict[str, float | bool] = {}
        if number == len(self._steps) - 1:
            spec |= rounding_spec(replace(ending, of_x=1.0))
        if number == 0:
            spec["OF_TAP"] = ending.of_x
        return spec

    def _dispatch(
        self,
        step: Sequence[Taps],
        sizes: Sequence[int],
        blocked: bool,
        source: Tensor,
        target: Tensor,
        rounding: dict[str, float | bool],
        encoder: VulkanEncoder,
    ) -> None:
        """Record the resizing of the axes of `step`; `sizes` are those before it."""
        columns = step[-1]
        last = columns.axis
        rows = step[0] if len(step) == 2 else kept(last, 1)
        first = rows.axis
        depth = sizes[first] if len(step) == 2 else 1
        inner = prod(sizes[last + 1 :])
        middle = prod(sizes[first + 1 : last])
        outer = prod(sizes[:first])
        wide = blocked or inner % 4 == 0
        if wide and not blocked:
            inner //= 4
        row_stride = middle * sizes[last] * inner
        count = outer * rows.size * middle * columns.size * inner
        low, high = _limits(target.dtype)
        coded = source.codes is not None or target.codes is not None
        encoder.dispatch_linear(
            kernels.interp(
                width=4 if wide else 1,
                element="c8" if coded else encoder.element,
                load=encoder.load,
            ),
            [
                source,
                encoder.literal(f"{self.op.name}:rows", rows.table(row_stride)),
                encoder.literal(f"{self.op.name}:columns", columns.table(inner)),
                target,
            ],
            kernels.InterpParams(
                count=count,
                rows=rows.size,
                middle=middle,
                columns=columns.size,
                inner=inner,
                outer_stride=row_stride * depth,
                middle_stride=sizes[last] * inner,
                outside=_outside(self.attrs, target.dtype),
                low=low,
                high=high,
            ),
            count,
            {
                "ROW_PAIRS": rows.pairs,
                "COLUMN_PAIRS": columns.pairs,
                "MIDDLE": middle > 1,
                "INNER": inner > 1,
                **rounding,
                **code_spec(x=source, y=target),
            },
        )


def _resized(sizes: Sequence[int], step: Sequence[Taps]) -> list[int]:
    after = {taps.axis: taps.size for taps in step}
    return [after.get(axis, size) for axis, size in enumerate(sizes)]


def _limits(dtype: DType) -> tuple[float, float]:
    """Return the smallest and largest number of an integer type; floats are unlimited here."""
    if kernel_dtype(dtype) == "f32" or dtype is DType.BOOL:
        return 0.0, 0.0
    limits = np.iinfo(dtype.value)
    return float(limits.min), float(limits.max)


def _outside(attrs: InterpAttrs, dtype: DType) -> int:
    """Return the stored bits of the extrapolation value."""
    value = np.array([attrs.extrapolation_value])
    if kernel_dtype(dtype) == "i32" and attrs.mode != "nearest":
        value = np.clip(np.rint(value), *_limits(dtype))
    stored = to_storage(value.astype(dtype.numpy), "extrapolation_value")
    return int(stored.view(np.int32)[0])
