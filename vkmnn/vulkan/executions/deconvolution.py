"""Deconvolution (transposed convolution) as ordinary convolutions: one per phase of the stride."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import gcd, prod

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.ir.ops import DeconvolutionAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shape.windows import Window, deconv_window
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import vulkan_execution
from vkmnn.vulkan.executions.convolution import ConvolutionBase
from vkmnn.vulkan.gemm.encode import encode, kernels_for
from vkmnn.vulkan.gemm.epilogue import Epilogue
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.weights import Weights
from vkmnn.vulkan.splitting.spatial import MAX_AXES, blocked, reject_wide, triple


@dataclass(frozen=True, slots=True)
class Phase:
    """The outputs `first`, `first + stride`, … of one axis as a convolution of stride 1.

    They use the kernel elements of `taps`, in the order of a convolution.
    """

    first: int
    count: int
    taps: slice
    tap_count: int
    dilation: int
    pad: int


Phases = tuple[Phase, ...]
"""One phase of each axis."""


def axis_phases(
    kernel: int, stride: int, dilation: int, begin: int, output: int
) -> Iterator[Phase]:
    """Yield the phases of one axis that have outputs.

    Output o uses input i through kernel element k where o + begin = i · stride + k · dilation (ONNX
    ConvTranspose). For o = first + stride · q, k runs over one residue class, and i = q + an offset
    that falls by dilation / gcd(stride, dilation) from one such k to the next.
    """
    common = gcd(stride, dilation)
    step = stride // common
    for first in range(min(stride, output)):
        reach = first + begin
        start = next(
            (k for k in range(min(step, kernel)) if (reach - k * dilation) % stride == 0), None
        )
        if start is None:
            yield Phase(first, ceil_div(output - first, stride), slice(0, 0), 0, 1, 0)
            continue
        count = ceil_div(kernel - start, step)
        last = start + (count - 1) * step
        # The last kernel element uses the earliest input: a convolution's tap 0.
        yield Phase(
            first,
            ceil_div(output - first, stride),
            slice(last, start - step if start >= step else None, -step),
            count,
            dilation // common,
            -((reach - last * dilation) // stride),
        )


@vulkan_execution("Deconvolution")
class DeconvolutionExecution(ConvolutionBase[DeconvolutionAttrs]):
    """One dispatch for all phases of the same sizes, or one per phase."""

    def prepare(self, info: DeviceInfo) -> None:
        """Also reject huge steps."""
        super().prepare(info)
        reject_wide(self.attrs.strides, self.attrs.dilations, self.attrs.pads)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the phases: on GPUs those of equal sizes together, if a kernel can."""
        attrs, x, w, bias = self.attrs, self.operand(0), self.operand(1), self.optional(2)
        window = deconv_window(attrs, x.shape[2:], w.shape[2:])
        source = blocked(x, encoder)
        target = Target.of(encoder)
        for alike in _alike(product(*_phases(window))):
            apart = [_problem(attrs.group, x.shape, w.shape, window, phases) for phases in alike]
            one = _joined(apart)
            ways = [list(zip(apart, ([phases] for phases in alike), strict=True))]
            if len(alike) > 1 and kernels_for(one, target, encoder):
                ways.append([(one, alike)])
            order = sorted(range(len(ways)), reverse=target.gpu)
            for problem, phases in ways[encoder.choose("phases", one, order)]:
                job = ConvJob(
                    problem,
                    _weights(w, attrs.group, phases),
                    source,
                    self.output,
                    Epilogue(bias, ending=attrs.activation),
                )
                encode(job, encoder)


def _alike(every: Iterable[Phases]) -> list[list[Phases]]:
    """Return the phases, those of equal sizes together."""
    groups: dict[object, list[Phases]] = {}
    for phases in every:
        sizes = tuple((phase.count, phase.tap_count, phase.dilation) for phase in phases)
        groups.setdefault(sizes, []).append(phases)
    return list(groups.values())


def _joined(problems: Sequence[ConvProblem]) -> ConvProblem:
    """Return phases of equal sizes as one problem."""
    pad = max(p.pad[0] for p in problems), max(p.pad[1] for p in problems)
    whole = (*pad, max(p.pad[2] for p in problems))
    phases = []
    for problem in problems:
        front, top, left = problem.pad
        less = whole[0] - front, whole[1] - top, whole[2] - left
        phases.append((less, problem.out_offset - problems[0].out_offset))
    return replace(problems[0], pad=whole, phases=tuple(phases))


def _phases(window: Window) -> list[list[Phase]]:
    """Return the phases of each axis; missing leading axes have one trivial phase."""
    given = list(
        zip(
            window.kernel,
            window.strides,
            window.dilations,
            window.begins,
            window.output,
            strict=True,
        )
    )
    padded = [(1, 1, 1, 0, 1)] * (MAX_AXES - len(given)) + given
    return [list(axis_phases(*axis)) for axis in padded]


def _problem(
    group: int,
    x: Sequence[int],
    w: Sequence[int],
    window: Window,
    phases: Sequence[Phase],
) -> ConvProblem:
    size = triple(window.output, 1)
    plane, row = size[1] * size[2], size[2]
    depth, height, width = triple(window.strides, 1)
    first = [phase.first for phase in phases]
    return ConvProblem(
        batch=x[0],
        group=group,
        inputs=w[0] // group,
        outputs=w[1],
        in_size=triple(tuple(x[2:]), 1),
        out_size=triple([phase.count for phase in phases], 1),
        kernel=triple([phase.tap_count for phase in phases], 1),
        stride=(1, 1, 1),
        dilation=triple([phase.dilation for phase in phases], 1),
        pad=triple([phase.pad for phase in phases], 0),
        out_strides=(prod(size), depth * plane, height * row, width),
        out_offset=first[0] * plane + first[1] * row + first[2],
        out_block=x[0] * prod(size),
    )


def _weights(w: Tensor, group: int, every: Sequence[Phases]) -> Weights:
    """Return the weights of some phases, with inputs and outputs of each group exchanged."""
    shape = (group, w.shape[0] // group, w.shape[1], *triple(w.shape[2:], 1))
    taps = [tuple(phase.taps for phase in phases) for phases in every]

    def view(plain: Array) -> Array:
        turned = plain.reshape(shape).swapaxes(1, 2)
        seen = [turned[:, :, :, depth, height, width] for depth, height, width in taps]
        # [group][phase][channel]
        stacked = np.stack(seen, axis=1) if len(seen) > 1 else seen[0]
        return stacked.reshape(group * len(seen) * shape[2], shape[1], *seen[0].shape[3:])

    return Weights(w, "transposed:" + ":".join(str(slices) for slices in taps), view)
