"""StridedAttention: products, masks and softmax in one dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType, Layout, View
from vkmnn.ir.ops import CachedAttentionAttrs, CodeAttention, StridedAttentionAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.attention.kernels import (
    COLUMNS,
    KEYS,
    ROTATE_CODES,
    Aligned,
    AttentionCodes,
    AttentionCoop,
    AttentionRotate,
    AttentionTile,
    kernels_of,
    time_of,
    unit_of,
)
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, rotate_lanes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.quantized.byte_codes import code_shift, code_spec, keeps_rows_of_codes
from vkmnn.vulkan.storage import FLOAT_BYTES

MAX_CODED_KEYS = 1024  # whose scores fit in shared memory
CODED_COLUMNS = 256  # columns of values that a workgroup sums at once
MASK, LENGTH, SINK = 3, 4, 5  # indices of inputs


@vulkan_execution("StridedAttention")
class StridedAttentionExecution(VulkanExecution[StridedAttentionAttrs]):
    """One dispatch; no score ever reaches memory."""

    float_rule = FloatRule.TAKES
    code_layout = Layout.NCHW
    repeatable = True

    def prepare(self, info: DeviceInfo) -> None:
        """Reject problems with too many iterations, and heads without elements."""
        attrs = self.attrs
        if attrs.depth == 0:
            raise Rejection("the queries have no elements")
        if attrs.codes is not None and attrs.keys > MAX_CODED_KEYS:
            raise Rejection(f"quantised values of {attrs.keys} keys")
        if attrs.codes and attrs.keys * ceil_div(attrs.width, CODED_COLUMNS) > MAX_LOOP_ROUNDS:
            raise Rejection(
                f"quantised values of {attrs.keys} keys, and values of {attrs.width} elements"
            )
        vectors = ceil_div(attrs.depth, 4)
        steps = max(vectors, 11 * ceil_div(vectors, 16)) + KEYS // 4 + 1
        steps *= ceil_div(attrs.keys, KEYS)
        if steps > MAX_LOOP_ROUNDS:
            raise Rejection(f"{attrs.keys} keys of {attrs.depth} elements take {steps} iterations")
        whole = _aligned(attrs.depth, attrs.width, (*attrs.views, attrs.result)) != 1
        takes = attrs.codes is not None and whole and ROTATE_CODES in rotate_lanes(info)
        self._rows_of_codes = takes and keeps_rows_of_codes(info)

    def begins_codes(self) -> bool:
        """Return whether results are quantised."""
        return self._rows_of_codes

    def made_codes(self, wish: int | None = None) -> int | None:
        """Results that are rounded and not dequantised are quantised."""
        codes = self.attrs.codes
        if not self._rows_of_codes or codes is None or codes.decoded != 1.0:
            return None
        return code_shift(*codes.made, wish)

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Read narrow floats, except for mask and sinks, whose values may exceed their range."""
        rule = FloatRule.FULL if self.attrs.codes else self.float_rule
        takes, gives = self.by_rule(rule, element, wide=MASK)
        return [narrow and place != SINK for place, narrow in enumerate(takes)], gives

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, output = self.attrs, self.output
        q, k, v = (self.operand(index) for index in range(3))
        mask, length, sink = (self.optional(place) for place in (MASK, LENGTH, SINK))
        if 0 in output.shape:
            return
        views = (*attrs.views, attrs.result)
        aligned = _aligned(attrs.depth, attrs.width, views)
        spec_of_codes = code_spec(y=output)
        candidates = kernels_of(attrs, aligned, encoder, in_bytes=bool(spec_of_codes))
        kernel = encoder.choose("attention", (attrs, min(aligned, 4)), candidates)
        shader, make_params = kernel.call(aligned, encoder)
        params = make_params(**self._sizes(unit_of(kernel, aligned)))
        seen = attrs.mask or View(0, (0, 0, 0, 0))
        spec: dict[str, int | bool | float] = {
            "MASK": 0 if mask is None else 2 if seen.strides[3] else 1,
            "CAUSAL": attrs.causal,
            "ZERO_FULLY_MASKED": attrs.zero_fully_masked,
            "COUNTED": length is not None,
            **spec_of_codes,
        }
        if attrs.codes:
            spec["LATER"] = bool(attrs.codes.later)
        else:
            spec |= {"SINK": sink is not None, **score_spec(attrs)}
        groups = (
            ceil_div(attrs.queries, kernel.rows),
            prod(attrs.batch),
            ceil_div(attrs.width, COLUMNS),
        )
        # A binding that the specialization leaves out still needs a buffer; any will do.
        seen_by = _rounding(attrs.codes, encoder) if attrs.codes else mask or q
        tensors = [q, k, v, seen_by, length or q, *([] if attrs.codes else [sink or q]), output]
        if isinstance(kernel, AttentionRotate) and attrs.codes:
            words = kernel.kept_words(attrs) if kernel.keeps else 4
            tensors.append(encoder.scratch(words, DType.INT32))
            spec["KEEPS"] = kernel.keeps
        if isinstance(kernel, AttentionCoop):
            spec["TAIL"] = attrs.depth % COLUMNS != 0
        if isinstance(kernel, AttentionCodes):
            groups = (*groups[:2], 1)
        encoder.dispatch(shader, tensors, params, groups, spec)
        if isinstance(kernel, AttentionTile | AttentionCoop):
            width = FLOAT_BYTES[encoder.element]
            info, made = encoder.info, kernel
            encoder.expect(lambda: Expected(time_of(made, attrs, info, aligned, width)))

    def _sizes(self, unit: int) -> dict[str, Any]:
        """Return the parameters of every kernel, in units of its loads."""
        attrs = self.attrs
        q_at, k_at, v_at, y_at = (_in_units(view, unit) for view in (*attrs.views, attrs.result))
        seen = attrs.mask or View(0, (0, 0, 0, 0))
        return {
            "batch_size": attrs.batch[1:],
            "queries": attrs.queries,
            "keys": attrs.keys,
            "depth": attrs.depth,
            "width": attrs.width,
            "scale": attrs.scale / (attrs.softcap or 1.0),
            "q_start": q_at.offset,
            "q_batch": q_at.strides[:3],
            "q_row": q_at.strides[3],
            "k_start": k_at.offset,
            "k_batch": k_at.strides[:3],
            "k_row": k_at.strides[3],
            "v_start": v_at.offset,
            "v_batch": v_at.strides[:3],
            "v_row": v_at.strides[3],
            "mask_batch": seen.strides[:3],
            "mask_row": seen.strides[3],
            "y_batch": y_at.strides[:3],
            "y_row": y_at.strides[3],
        }


def score_spec(attrs: StridedAttentionAttrs | CachedAttentionAttrs) -> dict[str, float]:
    """Return the constants that limit scores and mask keys in attention kernels."""
    return {"CAPPED": attrs.softcap != 0, "CAP": attrs.softcap, "WINDOW": attrs.window}


def _rounding(codes: CodeAttention, encoder: VulkanEncoder) -> Tensor:
    """Return what quantised kernels bind instead of a mask (`include/attention_codes.glsl.j2`)."""
    high = codes.low + len(codes.table) - 1
    numbers = (codes.low, high, codes.unit, *codes.weights, codes.factor, *codes.made)
    packed = np.array([*numbers, codes.decoded, *codes.table, *codes.later], np.float32)
    return encoder.literal(f"attention:{codes}", packed)


def _aligned(depth: int, width: int, views: Sequence[View]) -> Aligned:
    """Return the largest number of elements that every row consists of multiples of."""
    numbers = [depth, width]
    for view in views:
        numbers += [view.offset, *view.strides]
    common = gcd(*numbers)
    return 8 if common % 8 == 0 else 4 if common % 4 == 0 else 1


def _in_units(view: View, unit: int) -> View:
    return View(view.offset // unit, tuple(stride // unit for stride in view.strides))
