"""Normalisation of plain rows, for LayerNorm and GroupNorm."""

from __future__ import annotations

from typing import Literal

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation
from vkmnn.ir.ops import NO_ACTIVATION, CodeMean
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import activation_spec
from vkmnn.vulkan.copies.fill import encode_fill
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.quantized.byte_codes import code_spec, rounding_spec
from vkmnn.vulkan.rows.reduction import (
    LANES,
    MAX_HOLD,
    Lanes,
    Line,
    Reduction,
    encode_reduction,
    row_grid,
    row_group,
)

# Workgroups of kernels that read and write 8-bit quantised values: those of CPU devices, and of
# any.
LANES_OF_CODES: tuple[Lanes, ...] = (8, 16, 0)
# Longer rows are reduced in pieces first.
MAX_ROW = 65_536


@dataclass(frozen=True, slots=True)
class Factor:
    """Scale or bias: element j of row r is word `row` · r + `step` · j of the tensor."""

    tensor: Tensor
    row: int = 0
    step: int = 1

    def is_aligned(self, size: int) -> bool:
        """True when rows of `size` words may be read as vec4s."""
        return size % 4 == 0 and self.row % 4 == 0 and self.step == 1


@dataclass(frozen=True, slots=True)
class Channels:
    """Factors per channel: `groups` rows an image, `channels` in a row, `pixels` elements each."""

    groups: int
    channels: int
    pixels: int


@dataclass(frozen=True, slots=True)
class RowNorm:
    """y = act((x - mean) / sqrt(variance + epsilon) · scale + bias) over rows of `size` elements.

    With `rms` nothing is subtracted. `mean` and `deviation` (the inverse of the standard deviation)
    take one word per row. `activation` needs `channels`. x is first multiplied by `of_input`, and
    `ending` quantises y: both are for rows of up to `MAX_ROW`.
    """

    rows: int
    size: int
    epsilon: float
    rms: bool = False
    scale: Factor | None = None
    bias: Factor | None = None
    channels: Channels | None = None
    mean: Tensor | None = None
    deviation: Tensor | None = None
    activation: Activation = NO_ACTIVATION
    of_input: float = 1.0
    ending: CodeMean | None = None

    @property
    def form(self) -> Literal["rows", "channels"]:
        """The form of the kernel for these factors."""
        return "rows" if self.channels is None else "channels"


def encode_row_norm(norm: RowNorm, x: Tensor, y: Tensor, encoder: VulkanEncoder) -> None:
    """Record one dispatch; for long rows, the statistics in stages and then the result."""
    ways = ["rows", "stages"] if norm.size <= MAX_ROW else ["stages"]
    if norm.of_input != 1.0 or norm.ending:
        ways = ["rows"]
    way = encoder.choose("row norm", (norm.rows, norm.size, norm.form), ways)
    (_encode_rows if way == "rows" else _encode_stages)(norm, x, y, encoder)


def _encode_rows(norm: RowNorm, x: Tensor, y: Tensor, encoder: VulkanEncoder) -> None:
    spec_of_codes = code_spec(x=x, y=y)
    taken = LANES_OF_CODES if spec_of_codes else LANES
    group = row_group(norm.rows, norm.size, encoder, taken)
    factors = [factor for factor in (norm.scale, norm.bias) if factor is not None]
    whole = norm.size % 4 == 0 and all(factor.is_aligned(norm.size) for factor in factors)
    form: Literal["aligned", "rows", "channels"] = norm.form
    if form == "rows" and whole:
        form = "aligned"
    aligned = form == "aligned"
    vectors = norm.size // 4 if aligned else (norm.size + 2) // 4 + 1
    hold = ceil_div(vectors, group.local)
    element = "c8" if spec_of_codes else x.element
    shader = kernels.norm_rows(lanes=group.lanes, form=form, element=element)
    scale, bias = norm.scale or Factor(x), norm.bias or Factor(x)
    channels = norm.channels or Channels(1, 1, 1)
    params = kernels.NormRowsParams(
        rows=norm.rows,
        size=norm.size,
        scale_row=scale.row // (4 if aligned else 1),
        scale_step=scale.step,
        bias_row=bias.row // (4 if aligned else 1),
        bias_step=bias.step,
        groups=channels.groups,
        channels=channels.channels,
        pixels=channels.pixels,
        epsilon=norm.epsilon,
        act_alpha=norm.activation.alpha,
        act_beta=norm.activation.beta,
    )
    most = 0 if form == "channels" else MAX_HOLD[group.lanes]
    spec: dict[str, int | float | bool] = {
        "local_size_x": group.local,
        "HOLD": hold if hold <= most else 0,
        "RMS": norm.rms,
        "STATISTICS": norm.mean is not None or norm.deviation is not None,
        "HAS_SCALE": norm.scale is not None,
        "HAS_BIAS": norm.bias is not None,
        "OF_INPUT": norm.of_input,
        **rounding_spec(norm.ending),
        **spec_of_codes,
    }
    if form == "channels":
        spec |= activation_spec(norm.activation)
    mean, deviation = norm.mean, norm.deviation
    if spec["STATISTICS"]:
        mean = mean or encoder.scratch(norm.rows, full=True)
        deviation = deviation or encoder.scratch(norm.rows, full=True)
    # A binding that the specialization leaves out still needs a buffer; any will do.
    outputs = [y] if aligned else [y, y]
    tensors = [x, scale.tensor, bias.tensor, *outputs, mean or y, deviation or y]
    encoder.dispatch(shader, tensors, params, row_grid(norm.rows, encoder), spec)


def _encode_stages(norm: RowNorm, x: Tensor, y: Tensor, encoder: VulkanEncoder) -> None:
    line = Line(norm.rows, norm.size, 1)
    mean = norm.mean or encoder.scratch(norm.rows, full=True)
    deviation = norm.deviation or encoder.scratch(norm.rows, full=True)
    divide, inverse = kernels.ReduceFinish.DIVIDE, kernels.ReduceFinish.INVERSE_STD
    if norm.rms:
        encode_fill(mean, 0.0, encoder)
    else:
        average = Reduction("SUM", divide, divisor=norm.size)
        encode_reduction(average, x, mean, line, encoder)
    variance = Reduction(
        "SUM_SQUARE",
        inverse,
        divisor=norm.size,
        epsilon=norm.epsilon,
        center=mean,
        subtract=not norm.rms,
    )
    encode_reduction(variance, x, deviation, line, encoder)
    scale, bias = norm.scale or Factor(x), norm.bias or Factor(x)
    channels = norm.channels or Channels(1, 1, 1)
    count = norm.rows * norm.size
    apply = kernels.NormApplyParams(
        count=count,
        size=norm.size,
        scale_row=scale.row,
        scale_step=scale.step,
        bias_row=bias.row,
        bias_step=bias.step,
        groups=channels.groups,
        channels=channels.channels,
        pixels=channels.pixels,
        act_alpha=norm.activation.alpha,
        act_beta=norm.activation.beta,
    )
    spec: dict[str, int | float | bool] = {
        "RMS": norm.rms,
        "HAS_SCALE": norm.scale is not None,
        "HAS_BIAS": norm.bias is not None,
    }
    if norm.form == "channels":
        spec |= activation_spec(norm.activation)
    tensors = [x, scale.tensor, bias.tensor, mean, deviation, y]
    shader = kernels.norm_apply(form=norm.form, element=encoder.element, load=encoder.load)
    encoder.dispatch_linear(shader, tensors, apply, count, spec)
