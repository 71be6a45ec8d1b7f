"""Convolutions, products with a constant matrix, and poolings of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation, Array
from vkmnn.shaders import kernels
from vkmnn.shape.windows import conv_window, pool_window
from vkmnn.vulkan.activation import activation_spec, residual_spec
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.gemm.weights import bias_tensor
from vkmnn.vulkan.images.forms import image_form
from vkmnn.vulkan.images.place import Place, place_of

MAX_TAPS = 1024
"""Larger windows are divided among the axes, which is done in buffers."""

Pair = tuple[int, int]


def _pair(values: Sequence[int], fill: int) -> Pair:
    first, second = (*(fill,) * (2 - len(values)), *values)
    return first, second


def _place(tensor: Tensor, encoder: VulkanEncoder) -> Place:
    place = place_of(tensor.shape, encoder.info.limits.max_image_dimension)
    assert place is not None, f"{tensor.name} is in no image"
    return place


@dataclass(frozen=True, slots=True)
class _Dense:
    """A convolution over two axes; a product is one of single pixels.

    `view` sees the constant `w` as [O, C/group, taps].
    """

    w: Tensor
    view: Callable[[Array], Array]
    key: str
    group: int
    inputs: int
    kernel: Pair
    stride: Pair
    dilation: Pair
    pad: Pair
    activation: Activation
    join: str

    @property
    def taps(self) -> int:
        return prod(self.kernel)


def _conv_takes(
    execution: VulkanExecution[Any], inputs: Sequence[Tensor | None]
) -> set[int] | None:
    """Accept one or two axes, constant weights, and groups of whole blocks or single channels."""
    attrs, x, w = execution.attrs, inputs[0], inputs[1]
    if x is None or w is None or w.value is None or x.value is not None:
        return None
    if not 3 <= len(x.shape) <= 4 or 0 in w.shape:
        return None
    residual = inputs[3] if len(inputs) > 3 else None
    if residual is not None and (
        residual.value is not None or residual.shape != execution.outputs[0].shape
    ):
        return None
    inner, outer = w.shape[1], w.shape[0] // attrs.group
    whole = attrs.group == 1 or (inner % 4 == 0 and outer % 4 == 0)
    if not whole and not (inner == outer == 1):
        return None
    if prod(w.shape[2:]) * (ceil_div(inner, 4) + 1) > MAX_LOOP_ROUNDS:
        return None
    return {0, 3} if residual is not None else {0}


@image_form("Convolution", _conv_takes)
def record_convolution(execution: VulkanExecution[Any], encoder: VulkanEncoder) -> None:
    """Record one dispatch."""
    attrs, x, w = execution.attrs, execution.operand(0), execution.operand(1)
    window = conv_window(attrs, x.shape[2:], w.shape[2:])
    taps = prod(w.shape[2:])
    problem = _Dense(
        w,
        lambda plain: plain.reshape(*plain.shape[:2], taps),
        "conv",
        attrs.group,
        w.shape[1],
        _pair(window.kernel, 1),
        _pair(window.strides, 1),
        _pair(window.dilations, 1),
        _pair(window.begins, 0),
        attrs.activation,
        attrs.residual,
    )
    _record_dense(problem, execution, encoder)


def _product_takes(
    execution: VulkanExecution[Any], inputs: Sequence[Tensor | None]
) -> set[int] | None:
    """Accept rows by a constant matrix, with a bias of one element per column."""
    attrs, a, b = execution.attrs, inputs[0], inputs[1]
    if a is None or b is None or b.value is None or a.value is not None:
        return None
    y = execution.outputs[0]
    if len(a.shape) != 2 or len(b.shape) != 2 or attrs.transpose_a or attrs.alpha != 1.0:
        return None
    bias = inputs[2] if len(inputs) > 2 else None
    if 0 in b.shape or (bias is not None and bias.shape != (y.shape[1],)):
        return None
    residual = inputs[3] if len(inputs) > 3 else None
    if residual is not None and (residual.value is not None or residual.shape != y.shape):
        return None
    if ceil_div(a.shape[1], 4) + 1 > MAX_LOOP_ROUNDS:
        return None
    return {0, 3} if residual is not None else {0}


@image_form("MatMul", _product_takes)
def record_product(execution: VulkanExecution[Any], encoder: VulkanEncoder) -> None:
    """Record one dispatch: every row is a pixel."""
    attrs, a, b = execution.attrs, execution.operand(0), execution.operand(1)
    turned = attrs.transpose_b
    problem = _Dense(
        b,
        lambda plain: (plain if turned else plain.T)[:, :, None],
        f"product:{turned}",
        1,
        a.shape[1],
        *((1, 1),) * 3,
        (0, 0),
        attrs.activation,
        attrs.residual,
    )
    _record_dense(problem, execution, encoder)


def _record_dense(problem: _Dense, execution: VulkanExecution[Any], encoder: VulkanEncoder) -> None:
    x, y = execution.operand(0), execution.output
    before, after = _place(x, encoder), _place(y, encoder)
    channels = y.shape[1]
    depthwise = problem.inputs == 1 and problem.group == channels > 1
    in_blocks = ceil_div(problem.inputs, 4)
    width = after.blocks if depthwise else 4 * in_blocks
    height = problem.taps * (1 if depthwise else after.blocks)
    in_image = max(width, height) <= encoder.info.limits.max_image_dimension
    loads: tuple[Literal["image", "buffer"], ...] = ("image", "buffer") if in_image else ("buffer",)
    sizes = (depthwise, problem.taps, in_blocks, after.blocks, after.texels)
    load = encoder.choose("image weights", sizes, loads)

    def pack(plain: Array) -> Array:
        seen = problem.view(plain)
        return _pack_depthwise(seen) if depthwise else _pack_dense(seen)

    keep = encoder.image_constant if load == "image" else encoder.constant
    weights = keep(problem.w, f"texels:{problem.key}:{depthwise}", pack)
    bias = bias_tensor(execution.optional(2), channels, encoder)
    residual = execution.optional(3)
    shader = kernels.image_conv(
        form="depthwise" if depthwise else "dense", element=encoder.element, load=load
    )
    count = ceil_div(after.columns, 4) * after.batch * after.rows * after.blocks
    params = kernels.ImageConvParams(
        count=count,
        rows=after.batch * after.rows,
        out_size=(after.rows, after.columns),
        in_size=(before.rows, before.columns),
        kernel=problem.kernel,
        stride=problem.stride,
        dilation=problem.dilation,
        pad=problem.pad,
        in_blocks=in_blocks,
        group_blocks=ceil_div(channels // problem.group, 4),
        w_row=width,
        channels=channels,
        act_alpha=problem.activation.alpha,
        act_beta=problem.activation.beta,
    )
    spec = {
        "X_FOLDED": before.folded,
        "Y_FOLDED": after.folded,
        **activation_spec(problem.activation),
        **residual_spec(residual, problem.join),
    }
    encoder.dispatch_linear(shader, [x, weights, bias, residual or x, y], params, count, spec)


def _pack_dense(w: Array) -> Array:
    """Pack weights [O, C, taps] as rows [O/4][tap] of texels [C]: four outputs each."""
    outputs, inputs, taps = w.shape
    blocks, depth = ceil_div(outputs, 4), 4 * ceil_div(inputs, 4)
    padded = np.zeros((4 * blocks, depth, taps), w.dtype)
    padded[:outputs, :inputs] = w
    turned = padded.reshape(blocks, 4, depth, taps).transpose(0, 3, 2, 1)
    return np.ascontiguousarray(turned).reshape(blocks * taps, depth, 4)


def _pack_depthwise(w: Array) -> Array:
    """Pack weights [C, 1, taps] as rows [tap] of texels [C/4]."""
    channels, _, taps = w.shape
    padded = np.zeros((4 * ceil_div(channels, 4), taps), w.dtype)
    padded[:channels] = w[:, 0]
    return np.ascontiguousarray(padded.reshape(-1, 4, taps).transpose(2, 0, 1))


def _pool_takes(
    execution: VulkanExecution[Any], inputs: Sequence[Tensor | None]
) -> set[int] | None:
    """Accept maxima and averages over windows of one or two axes that are not too large."""
    attrs, x = execution.attrs, inputs[0]
    if x is None or x.value is not None or attrs.kind == "LP" or not 3 <= len(x.shape) <= 4:
        return None
    if attrs.ending is not None:
        return None
    window = pool_window(attrs, x.shape[2:])
    return {0} if prod(window.kernel) <= MAX_TAPS else None


@image_form("Pooling", _pool_takes)
def record_pooling(execution: VulkanExecution[Any], encoder: VulkanEncoder) -> None:
    """Record one dispatch."""
    attrs, x, y = execution.attrs, execution.operand(0), execution.output
    window = pool_window(attrs, x.shape[2:])
    before, after = _place(x, encoder), _place(y, encoder)
    params = kernels.ImagePoolParams(
        count=after.texels,
        rows=after.batch * after.rows,
        out_size=(after.rows, after.columns),
        in_size=(before.rows, before.columns),
        kernel=_pair(window.kernel, 1),
        stride=_pair(window.strides, 1),
        dilation=_pair(window.dilations, 1),
        begin=_pair(window.begins, 0),
        end=_pair(window.ends, 0),
        channels=x.shape[1],
    )
    spec = {
        "KIND": kernels.Pool[attrs.kind].value,
        "COUNT_PADS": attrs.count_include_pad,
        "X_FOLDED": before.folded,
        "Y_FOLDED": after.folded,
    }
    shader = kernels.image_pool(element=encoder.element)
    encoder.dispatch_linear(shader, [x, y], params, after.texels, spec)
