"""Convolution in one to three dimensions."""

from __future__ import annotations

from math import prod

from vkmnn.ir import Array
from vkmnn.ir.ops import ConvolutionAttrs
from vkmnn.shape.windows import conv_window
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import vulkan_execution
from vkmnn.vulkan.gemm.convolution import (
    ConvolutionBase,
    ConvProblem,
    Weights,
    blocked,
    encode_convolution,
    triple,
)
from vkmnn.vulkan.gemm.dense import as_dense, choose_dense
from vkmnn.vulkan.gemm.fold import choose_fold, encode_fold
from vkmnn.vulkan.gemm.winograd import choose_winograd, encode_winograd


@vulkan_execution("Convolution")
class ConvolutionExecution(ConvolutionBase[ConvolutionAttrs]):
    """One dispatch with bias, residual and activation in its epilogue; three by Winograd's way."""

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, output = self.attrs, self.output
        x, w, bias, residual = self.operand(0), self.operand(1), self.optional(2), self.optional(3)
        window = conv_window(attrs, x.shape[2:], w.shape[2:])
        size, kernel = triple(window.output, 1), triple(window.kernel, 1)
        problem = ConvProblem(
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
        )

        def view(plain: Array) -> Array:
            return plain.reshape(*plain.shape[:2], *kernel)

        weights = Weights(w, "plain", view)
        source = blocked(x, encoder)
        added = blocked(residual, encoder) if residual is not None else None
        activation, join = attrs.activation, attrs.residual
        if choose_dense(problem, weights, encoder):
            problem, weights = as_dense(problem, weights)
        if choose_fold(problem, encoder):
            problem, weights, source = encode_fold(problem, weights, source, encoder)
        m = choose_winograd(problem, weights, encoder)
        if m:
            encode_winograd(
                problem, m, weights, source, bias, added, output, activation, encoder, join
            )
        else:
            encode_convolution(
                problem, weights, source, bias, added, output, activation, encoder, join
            )
