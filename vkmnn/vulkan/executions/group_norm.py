"""GroupNorm: normalisation of channel groups, and of single channels (InstanceNormalization)."""

from __future__ import annotations

from math import prod
from typing import Literal

from vkmnn.base.records import dataclass
from vkmnn.core.execution import Layouts
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout
from vkmnn.ir.ops import GroupNormAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import activation_spec
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatRule
from vkmnn.vulkan.rows.norm import Channels, Factor, RowNorm, encode_row_norm
from vkmnn.vulkan.rows.reduction import row_grid, row_group

# Longer groups are normalised as plain rows, which are reduced in pieces: with eight invocations
# per group, loops would get too long (see MAX_LOOP_ROUNDS), and sums would lose digits.
MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class _Groups:
    """Shape of the problem: `width` channels in each of `count` groups of an image."""

    batch: int
    channels: int
    pixels: int
    count: int

    @property
    def width(self) -> int:
        return self.channels // self.count

    @property
    def mode(self) -> Literal["own", "joint"] | None:
        """How a kernel for channel-blocked images treats the groups; None if none does."""
        blocks = ceil_div(self.width, 4)
        if blocks * (ceil_div(self.pixels, 8) + 2) > MAX_STEPS:
            return None
        if self.width == 1:
            return "own"
        return "joint" if self.width % 4 == 0 else None


@vulkan_execution("GroupNorm")
class GroupNormExecution(VulkanExecution[GroupNormAttrs]):
    """One dispatch with a workgroup per group; long groups take several."""

    float_rule = FloatRule.FOLLOWS
    repeatable = True

    def layouts(self) -> Layouts:
        """Stay channel-blocked if groups are whole channel blocks or single channels."""
        x = self.operand(0)
        blocked = x.layout is Layout.NC4HW4 and 0 not in x.shape and self._groups(x).mode
        layout = Layout.NC4HW4 if blocked else Layout.NCHW
        return [layout, *[Layout.NCHW] * (len(self.inputs) - 1)], [layout]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        x, scale, bias = self.operand(0), self.optional(1), self.optional(2)
        if 0 in x.shape:
            return
        groups = self._groups(x)
        if x.layout is Layout.NC4HW4:
            self._encode_blocks(groups, encoder)
            return
        norm = RowNorm(
            rows=groups.batch * groups.count,
            size=groups.width * groups.pixels,
            epsilon=self.attrs.epsilon,
            scale=None if scale is None else Factor(scale),
            bias=None if bias is None else Factor(bias),
            channels=Channels(groups.count, groups.width, groups.pixels),
            activation=self.attrs.activation,
        )
        encode_row_norm(norm, x, self.output, encoder)

    def _encode_blocks(self, groups: _Groups, encoder: VulkanEncoder) -> None:
        x, scale, bias = self.operand(0), self.optional(1), self.optional(2)
        attrs, mode = self.attrs, groups.mode
        assert mode is not None  # otherwise `layouts` had asked for plain order
        blocks = ceil_div(groups.width, 4)
        rows = ceil_div(groups.channels, 4) // blocks * groups.batch
        group = row_group(rows, groups.pixels * 4, encoder)
        elements = groups.pixels * (1 if mode == "own" else groups.width)
        params = kernels.GroupNormParams(
            rows=rows,
            blocks=blocks,
            batch=groups.batch,
            channels=groups.channels,
            pixels=groups.pixels,
            divisor=elements,
            epsilon=attrs.epsilon,
            act_alpha=attrs.activation.alpha,
            act_beta=attrs.activation.beta,
        )
        spec: dict[str, int | float | bool] = {
            "local_size_x": group.local,
            "HAS_SCALE": scale is not None,
            "HAS_BIAS": bias is not None,
            **activation_spec(attrs.activation),
        }
        shader = kernels.group_norm(lanes=group.lanes, mode=mode, element=x.element)
        # What the specialization leaves out still needs a buffer; any will do.
        bindings = [x, scale or x, bias or x, self.output]
        encoder.dispatch(shader, bindings, params, row_grid(rows, encoder), spec)

    def _groups(self, x: Tensor) -> _Groups:
        batch, channels = x.shape[:2]
        return _Groups(batch, channels, prod(x.shape[2:]), self.attrs.groups or channels)
