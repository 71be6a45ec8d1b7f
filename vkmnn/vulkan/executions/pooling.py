"""Pooling: maximum, average and Lp norm, sliding and global, over any number of spatial axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isqrt, prod
from typing import Literal, TypeVar

from vkmnn.base.elements import FloatElement
from vkmnn.base.records import dataclass
from vkmnn.core.execution import Layouts, Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout
from vkmnn.ir.ops import PoolingAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.shape.windows import Window, pool_window
from vkmnn.vulkan.cost.passes import Loop, loop_cost
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.quantized.byte_codes import code_shift, code_spec, rounding_spec
from vkmnn.vulkan.rows.reduction import row_grid, row_group
from vkmnn.vulkan.splitting.spatial import MAX_AXES, Triple, blocked, reject_wide, triple
from vkmnn.vulkan.storage import FLOAT_BYTES, kernel_dtype

_E = TypeVar("_E", bound=str)

# From this many taps, one axis after the other is less work and more parallel.
SEPARABLE_TAPS = 256
# Larger planes are not one workgroup's work.
MAX_WHOLE = 1 << 16
# Loads in flight at once, and invocations of a workgroup.
TAPS_A_WAIT = 4
POOL_LOCAL = 64
# Windows with an unrolled kernel, three to five times as fast on CPU devices.
STRIP_SIZES = (2, 3, 5)
STRIP_STRIDES = (1, 2)


@dataclass(frozen=True, slots=True)
class Pass:
    """One dispatch over [images, depth, height, width]; `divisor` 0 counts the window's taps."""

    in_size: Triple
    out_size: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    begin: Triple
    end: Triple
    divisor: float = 0.0

    @property
    def is_identity(self) -> bool:
        """True if every window holds the element at its own position."""
        return self.kernel == self.stride == (1, 1, 1) and self.in_size == self.out_size


def whole_pass(spatial: Sequence[int], window: Window) -> Pass:
    """Return the pooling of at most three axes in one dispatch."""
    return Pass(
        triple(tuple(spatial), 1),
        triple(window.output, 1),
        triple(window.kernel, 1),
        triple(window.strides, 1),
        triple(window.dilations, 1),
        triple(window.begins, 0),
        triple(window.ends, 0),
    )


def plan_passes(spatial: Sequence[int], window: Window, kind: str) -> list[Pass]:
    """Return the dispatches of a pooling: one, or one per axis if windows are large.

    Maximum, average and norm of a box are those of its lines' maxima, averages and norms. An axis
    that is pooled as a whole and still too long is first split into chunks.

    Args:
        spatial: the input's spatial shape.
        window: the sliding window.
        kind: MAX, AVERAGE or LP.
    """
    if len(spatial) <= MAX_AXES and prod(window.kernel) < SEPARABLE_TAPS:
        return [whole_pass(spatial, window)]
    passes: list[Pass] = []
    sizes = list(spatial)
    for axis in reversed(range(len(spatial))):
        outer, inner = prod(sizes[:axis]), prod(sizes[axis + 1 :])
        line = Pass(
            (outer, sizes[axis], inner),
            (outer, window.output[axis], inner),
            (1, window.kernel[axis], 1),
            (1, window.strides[axis], 1),
            (1, window.dilations[axis], 1),
            (0, window.begins[axis], 0),
            (0, window.ends[axis], 0),
        )
        sizes[axis] = window.output[axis]
        if not line.is_identity:
            passes += _chunked(line, kind)
    # Windows of single elements still need absolute values for a norm.
    return passes or [line]


def _chunked(line: Pass, kind: str) -> Iterator[Pass]:
    """Split the pooling of a whole long axis in two: chunks, then the chunks' results."""
    size = line.in_size[1]
    if line.kernel[1] != size or line.out_size[1] != 1 or size < SEPARABLE_TAPS:
        yield line
        return
    chunk = isqrt(size - 1) + 1
    count = ceil_div(size, chunk)
    outer, _, inner = line.in_size
    average = kind == "AVERAGE"
    yield replace(
        line,
        out_size=(outer, count, inner),
        kernel=(1, chunk, 1),
        stride=(1, chunk, 1),
        divisor=float(chunk) if average else 0.0,
    )
    yield replace(
        line,
        in_size=(outer, count, inner),
        kernel=(1, count, 1),
        divisor=size / chunk if average else 0.0,
    )


def _exact(passes: Sequence[Pass], spatial: Sequence[int], window: Window | None) -> list[Pass]:
    """Return passes that divide quantised sums once, at the end; `window` None: whole planes."""
    if window is None:
        sums = [replace(step, divisor=1.0) for step in passes[:-1]]
        return [*sums, replace(passes[-1], divisor=float(prod(spatial)))]
    if len(spatial) > MAX_AXES:
        raise Rejection(
            f"means of quantised values over {len(spatial)} axes, at most {MAX_AXES} fit"
        )
    return [whole_pass(spatial, window)]


@vulkan_execution("Pooling")
class PoolingExecution(VulkanExecution[PoolingAttrs]):
    """One dispatch, or one per axis for large windows."""

    float_rule = FloatRule.FOLLOWS
    repeatable = True

    def prepare(self, info: DeviceInfo) -> None:
        """Reject averages of integers, huge steps, and windows with too many iterations."""
        attrs, x = self.attrs, self.operand(0)
        if attrs.kind != "MAX" and kernel_dtype(x.dtype) != "f32":
            raise Rejection(f"{attrs.kind} pooling of {x.dtype.value} tensors")
        reject_wide(attrs.strides, attrs.dilations, attrs.pads)
        spatial = x.shape[2:]
        window = pool_window(attrs, spatial)
        if len(self.outputs) == 1:
            self._passes = plan_passes(spatial, window, attrs.kind)
            planes = (
                window.kernel == tuple(spatial) != ()
                and set(window.output) == {1}
                and not any((*window.begins, *window.ends))
            )
            if attrs.ending and len(self._passes) > 1:
                self._passes = _exact(self._passes, spatial, None if planes else window)
            self._is_whole = (
                attrs.kind in ("MAX", "AVERAGE")
                and kernel_dtype(x.dtype) == "f32"
                and planes
                and prod(spatial) <= MAX_WHOLE
            )
        elif len(spatial) > MAX_AXES:
            raise Rejection(f"{len(spatial)} spatial axes with indices, at most {MAX_AXES} fit")
        else:
            self._passes = [whole_pass(spatial, window)]
        if any(prod(step.kernel) > MAX_LOOP_ROUNDS for step in self._passes):
            raise Rejection(f"a window of {prod(window.kernel)} elements")

    def layouts(self) -> Layouts:
        """Channel-blocked; plain if indices are wanted or there is no spatial axis."""
        plain = len(self.outputs) > 1 or len(self.operand(0).shape) < 3
        layout = Layout.NCHW if plain else Layout.NC4HW4
        return [layout], [layout] * len(self.outputs)

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the input; norms may exceed the range, and quantised means are exact."""
        full = self.attrs.kind == "LP" or self.attrs.ending
        return self.by_rule(FloatRule.FULL if full else self.float_rule, element)

    def code_inputs(self) -> dict[int, int | None]:
        """Maxima and averages over pixels read quantised values."""
        takes = len(self.outputs) == 1 and len(self.operand(0).shape) >= 3
        return {0: None} if takes and self.attrs.kind in ("MAX", "AVERAGE") else {}

    def begins_codes(self) -> bool:
        """Return whether means are quantised."""
        return self.attrs.ending is not None

    def keeps_codes(self) -> bool:
        """Maxima of quantised values are quantised."""
        return self.attrs.kind == "MAX" and self.attrs.ending is None

    def made_codes(self, wish: int | None = None) -> int | None:
        """Maxima of quantised values, and results that are rounded and not dequantised."""
        ending = self.attrs.ending
        if ending is not None:
            return code_shift(ending.low, ending.high, wish) if ending.scale == 1.0 else None
        return self.operand(0).codes if self.attrs.kind == "MAX" else None

    @property
    def window3(self) -> Pass | None:
        """The window of a plain 3 x 3 max pooling of planes; None for other poolings."""
        step = self._passes[0]
        alone = (len(self.outputs), len(self._passes), self.attrs.kind) == (1, 1, "MAX")
        square = step.kernel == (1, 3, 3) and step.dilation == (1, 1, 1)
        return step if alone and square and not self.attrs.ending else None

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        x = self.operand(0)
        if 0 in self.output.shape:
            return
        if len(self.outputs) > 1:
            _encode_indices(self.attrs, self._passes[0], x, self.outputs, encoder)
        elif self._is_whole and x.shape[0] and _takes_whole(x, encoder):
            _encode_whole(self.attrs, x, self.output, encoder)
        else:
            _encode_passes(self.attrs, self._passes, x, self.output, encoder)


def _takes_whole(x: Tensor, encoder: VulkanEncoder) -> bool:
    """Choose whether a workgroup processes a whole plane, rather than an invocation."""
    ways = (True, False) if is_gpu(encoder.info) else (False, True)
    return encoder.choose("global pooling", x.shape, ways)


def _element(attrs: PoolingAttrs, source: Tensor, target: Tensor, others: _E) -> _E | Literal["c8"]:
    """Return the element of kernels: bytes if either tensor is quantised."""
    plain = source.codes is None and target.codes is None and attrs.ending is None
    return others if plain else "c8"


def _encode_whole(attrs: PoolingAttrs, x: Tensor, y: Tensor, encoder: VulkanEncoder) -> None:
    batch, channels = x.shape[:2]
    images, size = batch * ceil_div(channels, 4), prod(x.shape[2:])
    group = row_group(images, size, encoder)
    shader = kernels.pool_whole(lanes=group.lanes, element=_element(attrs, x, y, encoder.element))
    params = kernels.PoolWholeParams(images=images, size=size, batch=batch, channels=channels)
    spec = {
        "AVERAGE": attrs.kind == "AVERAGE",
        "local_size_x": group.local,
        **code_spec(x=x, y=y),
        **rounding_spec(attrs.ending),
    }
    tensors = [blocked(x, encoder), y]
    encoder.dispatch(shader, tensors, params, row_grid(images, encoder), spec)
    loop = Loop(
        workgroups=images,
        invocations=group.local,
        rounds=ceil_div(size, TAPS_A_WAIT * group.local),
        round_bytes=min(size, TAPS_A_WAIT * group.local) * 4 * FLOAT_BYTES[encoder.element],
        results=4,
        shared_bytes=2 * 16 * group.local,
    )
    info = encoder.info
    encoder.expect(lambda: Expected(loop_cost(loop, info)))


def _encode_passes(
    attrs: PoolingAttrs, passes: Sequence[Pass], x: Tensor, y: Tensor, encoder: VulkanEncoder
) -> None:
    spatial = x.shape[2:]
    batch, channels = x.shape[:2]
    if spatial:
        images = batch * ceil_div(channels, 4)
        source = blocked(x, encoder)
    else:
        # Plain rows: each vector of four is a separate image, without lanes to clear.
        images = batch = ceil_div(batch * channels, 4)
        channels = 4
        source = x
    for number, step in enumerate(passes):
        last = number == len(passes) - 1
        target = y if last else encoder.scratch(images * prod(step.out_size) * 4, y.dtype)
        job = _Job(attrs if last else replace(attrs, ending=None), step, batch, channels, images)
        pixels = encoder.choose("pooling", job, _strips(job, kernel_dtype(x.dtype), encoder))
        if pixels:
            _encode_strips(job, pixels, source, target, encoder)
        else:
            _encode_pass(job, source, target, encoder)
        source = target


@dataclass(frozen=True, slots=True)
class _Job:
    """One pass over channel-blocked images."""

    attrs: PoolingAttrs
    step: Pass
    batch: int
    channels: int
    images: int


def _strips(job: _Job, dtype: str | None, encoder: VulkanEncoder) -> tuple[int, ...]:
    """Return the pixels of a row per invocation, best first; 0: the general kernel."""
    step = job.step
    flat = step.in_size[0] == step.out_size[0] == step.kernel[0] == 1
    square = step.kernel[1] == step.kernel[2] and step.stride[1] == step.stride[2]
    if (
        dtype != "f32"
        or job.attrs.kind not in ("MAX", "AVERAGE")
        or not (flat and square)
        or step.kernel[2] not in STRIP_SIZES
        or step.stride[2] not in STRIP_STRIDES
        or step.dilation[1:] != (1, 1)
        or step.divisor
        or 0 in step.in_size
    ):
        return (0,)
    return (8, 0) if encoder.load == "texel" else (2, 0)


def _encode_strips(
    job: _Job, pixels: int, source: Tensor, target: Tensor, encoder: VulkanEncoder
) -> None:
    step = job.step
    _, height, width = step.out_size
    count = job.images * height * ceil_div(width, pixels)
    shader = kernels.pool_strip(
        size=step.kernel[2],  # type: ignore[arg-type]
        stride=step.stride[2],  # type: ignore[arg-type]
        pixels=pixels,  # type: ignore[arg-type]
        element=_element(job.attrs, source, target, encoder.element),
    )
    params = kernels.PoolStripParams(
        count=count,
        in_height=step.in_size[1],
        in_width=step.in_size[2],
        out_height=height,
        out_width=width,
        top=step.begin[1],
        left=step.begin[2],
        bottom=step.end[1],
        right=step.end[2],
        batch=job.batch,
        channels=job.channels,
    )
    attrs = job.attrs
    spec = {
        "AVERAGE": attrs.kind == "AVERAGE",
        "COUNT_PADS": attrs.count_include_pad,
        **code_spec(x=source, y=target),
        **rounding_spec(attrs.ending),
    }
    encoder.dispatch_linear(shader, [source, target], params, count, spec)


def _encode_pass(job: _Job, source: Tensor, target: Tensor, encoder: VulkanEncoder) -> None:
    attrs, step = job.attrs, job.step
    count = job.images * prod(step.out_size)
    encoder.dispatch_linear(
        kernels.pool(
            element=_element(attrs, source, target, encoder.element_of(source)), load=encoder.load
        ),
        [source, target],
        kernels.PoolParams(
            count=count,
            in_size=step.in_size,
            out_size=step.out_size,
            kernel=step.kernel,
            stride=step.stride,
            dilation=step.dilation,
            begin=step.begin,
            end=step.end,
            batch=job.batch,
            channels=job.channels,
            norm=float(attrs.p),
            divisor=step.divisor,
        ),
        count,
        {
            "KIND": kernels.Pool[attrs.kind],
            "COUNT_PADS": attrs.count_include_pad,
            **code_spec(x=source, y=target),
            **rounding_spec(attrs.ending),
        },
    )
    taps = prod(step.kernel)
    loop = Loop(
        workgroups=ceil_div(count, POOL_LOCAL),
        invocations=POOL_LOCAL,
        rounds=ceil_div(taps, TAPS_A_WAIT),
        round_bytes=TAPS_A_WAIT * POOL_LOCAL * 4 * FLOAT_BYTES[encoder.element],
        results=4 * POOL_LOCAL,
    )
    info = encoder.info
    encoder.expect(lambda: Expected(loop_cost(loop, info)))


def _encode_indices(
    attrs: PoolingAttrs,
    step: Pass,
    x: Tensor,
    outputs: Sequence[Tensor],
    encoder: VulkanEncoder,
) -> None:
    depth, height, width = step.in_size
    columns = attrs.storage_order == 1
    count = prod(outputs[0].shape)
    encoder.dispatch_linear(
        kernels.pool_index(element=encoder.element_of(x), load=encoder.load),
        [x, *outputs],
        kernels.PoolIndexParams(
            count=count,
            in_size=step.in_size,
            out_size=step.out_size,
            kernel=step.kernel,
            stride=step.stride,
            dilation=step.dilation,
            begin=step.begin,
            pitch=(1, depth, depth * height) if columns else (height * width, width, 1),
        ),
        count,
    )
