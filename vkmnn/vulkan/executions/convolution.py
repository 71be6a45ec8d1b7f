"""Convolution in one to three dimensions."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np

from vkmnn.core.execution import Layouts, Rejection
from vkmnn.ir import Array, AttrsT, DType, Layout
from vkmnn.ir.ops import (
    NO_ACTIVATION,
    ConvolutionAttrs,
    DynamicQuantizeConvolutionAttrs,
    QuantizedConvolutionAttrs,
)
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shape.windows import conv_window
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatRule
from vkmnn.vulkan.gemm.dynamic import Dynamic, code_numbers, code_words
from vkmnn.vulkan.gemm.encode import encode, plain_end_us
from vkmnn.vulkan.gemm.epilogue import Ending, Epilogue
from vkmnn.vulkan.gemm.job import ConvJob, Spread
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.requantize import Requantize
from vkmnn.vulkan.gemm.rewrites import rewrite
from vkmnn.vulkan.gemm.weights import Weights, shift_of
from vkmnn.vulkan.gemm.wide import encode_wide
from vkmnn.vulkan.quantized.byte_codes import code_shift, shift_of_codes
from vkmnn.vulkan.splitting.spatial import MAX_AXES, blocked, reject_wide, triple

# Channels of a block.
BLOCK = 4
FLOATS = (DType.FLOAT32, DType.FLOAT16)

_Direct = TypeVar(
    "_Direct", ConvolutionAttrs, QuantizedConvolutionAttrs, DynamicQuantizeConvolutionAttrs
)


class ConvolutionBase(VulkanExecution[AttrsT]):
    """Conditions and layouts shared by convolutions in both directions."""

    float_rule = FloatRule.TAKES
    weights: tuple[DType, ...] = ()
    """Integer types of weights, in addition to floats."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject element types without kernels and more than three spatial axes."""
        axes = len(self.output.shape) - 2
        if axes > MAX_AXES:
            raise Rejection(f"{axes} spatial axes, at most {MAX_AXES} fit")
        for number, tensor in enumerate(self.inputs):
            if tensor is None or tensor.dtype in FLOATS:
                continue
            if number != 1 or tensor.dtype not in self.weights:
                raise Rejection(f"convolution of {tensor.dtype.value} tensors")

    def layouts(self) -> Layouts:
        """Activations are channel-blocked; weights and bias stay plain."""
        wanted = [Layout.NC4HW4, Layout.NCHW, Layout.NCHW, Layout.NC4HW4]
        return wanted[: len(self.inputs)], [Layout.NC4HW4]


class DirectConvolution(ConvolutionBase[_Direct]):
    """Shared parts of both kinds: the problem, and its recording."""

    @property
    @abstractmethod
    def late(self) -> bool:
        """Whether a residual is added once the sum is complete."""

    def prepare(self, info: DeviceInfo) -> None:
        """Also reject huge steps, and late residuals whose window must be split."""
        super().prepare(info)
        reject_wide(self.attrs.strides, self.attrs.dilations, self.attrs.pads)
        products = prod(self.operand(1).shape[1:])
        if self.late and products > MAX_LOOP_ROUNDS:
            raise Rejection(f"{products} products per element before a late residual")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the convolution, rewritten if that is faster."""
        self._encode(self.job(encoder), encoder)

    def _encode(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        rest = job if job.plain_io else rewrite(job, encoder)
        if rest:
            encode(rest, encoder)

    @abstractmethod
    def job(self, encoder: VulkanEncoder) -> ConvJob:
        """Return the job; tensors have their final layouts."""

    def _direct(
        self,
        encoder: VulkanEncoder,
        mode: str = "ADD_BEFORE",
        ending: Ending = NO_ACTIVATION,
    ) -> ConvJob:
        attrs, residual = self.attrs, self.optional(3)
        x, w = self.operand(0), self.operand(1)
        window = conv_window(attrs, x.shape[2:], w.shape[2:])
        size, kernel = triple(window.output, 1), triple(window.kernel, 1)

        def view(plain: Array) -> Array:
            return plain.reshape(*plain.shape[:2], *kernel)

        return ConvJob(
            ConvProblem(
                batch=x.shape[0],
                group=attrs.group,
                inputs=w.shape[1],
                outputs=w.shape[0] // attrs.group,
                in_size=triple(x.shape[2:], 1),
                out_size=size,
                kernel=kernel,
                stride=triple(window.strides, 1),
                dilation=triple(window.dilations, 1),
                pad=triple(window.begins, 0),
                out_strides=(prod(size), size[1] * size[2], size[2], 1),
                out_offset=0,
                out_block=x.shape[0] * prod(size),
            ),
            Weights(w, "plain", view),
            blocked(x, encoder),
            self.output,
            Epilogue(
                self.optional(2),
                blocked(residual, encoder) if residual is not None else None,
                mode,
                ending,
            ),
            plain_x=x.layout is Layout.NCHW and x.value is None,
            plain_y=self.output.layout is Layout.NCHW,
        )


@vulkan_execution("Convolution")
class ConvolutionExecution(DirectConvolution[ConvolutionAttrs]):
    """One dispatch with bias, residual and activation in its epilogue; three for Winograd."""

    repeatable = True
    spread: Spread | None = None
    """How channels become pixels of the plain result."""

    @property
    def late(self) -> bool:
        """Whether a residual is added once the sum is complete."""
        return self.attrs.residual != "ADD_BEFORE"

    def job(self, encoder: VulkanEncoder) -> ConvJob:
        """Return the job; tensors have their final layouts."""
        job = self._direct(encoder, self.attrs.residual, self.attrs.activation)
        return replace(job, spread=self.spread) if self.spread else job

    def spread_by(self, spread: Spread) -> ConvolutionExecution:
        """Return an execution whose result is spread; its own stays as it is."""
        made = copy(self)
        made.spread, made.prepared = spread, None  # unlike equal ops
        return made

    def plain_end_us(self, end: int, encoder: VulkanEncoder) -> float | None:
        """Plain input is supported for at most four channels, and never with a residual."""
        job = self.job(encoder)
        few = job.problem.group == 1 and job.problem.inputs <= BLOCK
        fits = few if end == 0 else job.problem.grouping == "blocks" and self.optional(3) is None
        return plain_end_us(job.problem, encoder) if fits else None


@vulkan_execution("QuantizedConvolution")
class QuantizedConvolutionExecution(DirectConvolution[QuantizedConvolutionAttrs]):
    """A convolution of quantised values, in bytes or as float32: one dispatch of exact sums."""

    float_rule = FloatRule.FULL
    weights = (DType.INT8, DType.INT16, DType.INT32)

    @property
    def late(self) -> bool:
        """Whether a residual is added once the sum is complete."""
        return self.attrs.add is not None

    def prepare(self, info: DeviceInfo) -> None:
        """Also reject computed biases and factors."""
        super().prepare(info)
        for tensor in (self.operand(2), self.operand(4), self.optional(5)):
            if tensor is not None and tensor.value is None:
                raise Rejection(f"'{tensor.name}' is not constant")

    def layouts(self) -> Layouts:
        """The factors stay plain too."""
        (wanted, made) = super().layouts()
        return [*wanted, Layout.NCHW, Layout.NCHW][: len(self.inputs)], made

    def code_inputs(self) -> dict[int, int | None]:
        """Kernels with 8-bit weights read quantised inputs and residuals.

        Not for a single pixel: nothing is saved, and products of vectors have no such kernel.
        """
        shape = self.output.shape
        if shift_of(self.operand(1)) is None or shape[0] * prod(shape[2:]) <= 1:
            return {}
        return {0: code_shift(*self.attrs.taken), 3: None}

    def begins_codes(self) -> bool:
        """Return whether its weights have kernels."""
        return bool(self.code_inputs())

    def made_codes(self, wish: int | None = None) -> int | None:
        """Results that are rounded and not dequantised are quantised."""
        attrs = self.attrs
        if not self.code_inputs() or attrs.scale != 1.0:
            return None
        table = self.optional(5)
        if table is not None and attrs.add is None:
            return shift_of_codes(table.value, wish)
        ends = attrs.add or attrs
        return code_shift(ends.low, ends.high, wish)

    def _encode(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        if self.attrs.wide:
            encode_wide(job, encoder)
        else:
            super()._encode(job, encoder)

    def job(self, encoder: VulkanEncoder) -> ConvJob:
        """Return the job; tensors have their final layouts."""
        requantize = Requantize.of(self.attrs, self.operand(4), self.optional(5))
        job = self._direct(encoder, requantize.residual_mode, requantize)
        weights, view = job.weights, job.weights.view
        shift = shift_of(weights.tensor)
        if weights.tensor.value is None:
            return job
        if shift is None:
            weights = replace(weights, key="codes", view=lambda w: view(w.astype(np.float32)))
        else:
            weights = replace(weights, key="bytes", shift=shift)
        return replace(job, weights=weights)


@vulkan_execution("DynamicQuantizeConvolution")
class DynamicQuantizeConvolutionExecution(DirectConvolution[DynamicQuantizeConvolutionAttrs]):
    """Quantises the input for an 8-bit convolution, whose epilogue applies both scales."""

    float_rule = FloatRule.FULL
    weights = (DType.INT8, DType.INT16)

    @property
    def late(self) -> bool:
        """True: sums are scaled when they are complete."""
        return True

    def prepare(self, info: DeviceInfo) -> None:
        """Also reject computed weights, biases and factors."""
        super().prepare(info)
        weights = self.operand(1)
        if shift_of(weights) is None:
            raise Rejection(f"'{weights.name}' is not constant, or its values do not fit 8 bits")
        for tensor in (self.optional(2), self.operand(4)):
            if tensor is not None and tensor.value is None:
                raise Rejection(f"'{tensor.name}' is not constant")

    def layouts(self) -> Layouts:
        """The factors stay plain too."""
        (wanted, made) = super().layouts()
        return [*wanted, *[Layout.NCHW] * 3], made

    def job(self, encoder: VulkanEncoder) -> ConvJob:
        """Return the job; tensors have their final layouts."""
        attrs = self.attrs
        job = self._direct(encoder, attrs.residual)
        channels, shift = job.problem.channels, shift_of(job.weights.tensor)
        by = self.operand(5), self.operand(6)
        bias, factor = self.optional(2), self.operand(4)
        dynamic = Dynamic.of(by, factor, bias, channels, attrs.activation, encoder)
        # Products of vectors have no kernel that reads 8-bit quantised values.
        several = job.problem.pixels > 1
        x = (code_words if several else code_numbers)(job.x, dynamic, encoder)
        weights = replace(job.weights, key="bytes", shift=shift)
        epilogue = replace(job.epilogue, ending=dynamic)
        return replace(job, x=x, weights=weights, epilogue=epilogue)
