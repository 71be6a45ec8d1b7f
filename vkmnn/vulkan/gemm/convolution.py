"""What Convolution and Deconvolution share: problem, choice of a kernel, weights, dispatches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

import numpy as np

from vkmnn.core.execution import Layouts, Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation, Array, AttrsT, DType, Layout
from vkmnn.ir.ops import ConvolutionAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.shader import Shader
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import epilogue_of, residual_spec
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, cpu_lanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import Params, VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.gemm.coop_tiles import CoopKernel
from vkmnn.vulkan.gemm.families import coop
from vkmnn.vulkan.gemm.families.gemv import (
    PANEL_VECTORS,
    dispatch_conv_gemv,
    pack_gemv_weights,
    rank_conv_gemv,
)
from vkmnn.vulkan.gemm.families.shared import (
    dispatch_conv_shared,
    gemm_of,
    rank_conv_shared,
)
from vkmnn.vulkan.gemm.shared_tiles import GemvKernel, SharedKernel, workgroups
from vkmnn.vulkan.half import HalfRule
from vkmnn.vulkan.storage import pack_nc4hw4

_log = logging.getLogger(__name__)

Triple = tuple[int, int, int]
MAX_AXES = 3


def triple(values: tuple[int, ...], fill: int) -> Triple:
    """Return spatial values as (depth, height, width); missing leading axes get `fill`."""
    padded = (fill,) * (MAX_AXES - len(values)) + values
    return padded[0], padded[1], padded[2]


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """A convolution of channel-blocked tensors; spatial triples are (depth, height, width).

    inputs and outputs are channels of one group. `out_size` is the grid of pixels to compute; pixel
    (n, z, y, x) goes to texel `out_offset + (n, z, y, x) · out_strides` of a channel block of
    `out_block` texels: so a transposed convolution writes one of its phases. `pad` may be negative.
    """

    batch: int
    group: int
    inputs: int
    outputs: int
    in_size: Triple
    out_size: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    pad: Triple
    out_strides: tuple[int, int, int, int]
    out_offset: int
    out_block: int

    @property
    def pixels(self) -> int:
        """Number of pixels to compute, over all images."""
        return self.batch * prod(self.out_size)

    @property
    def channels(self) -> int:
        """Output channels of all groups."""
        return self.group * self.outputs

    @property
    def padded(self) -> bool:
        """True when some tap of some pixel lies outside the input."""
        return any(
            pad > 0 or (out - 1) * stride - pad + (kernel - 1) * dilation >= size
            for size, out, kernel, stride, dilation, pad in zip(
                self.in_size,
                self.out_size,
                self.kernel,
                self.stride,
                self.dilation,
                self.pad,
                strict=True,
            )
        )


Family = Literal[
    "rotate", "tile", "channels", "strip", "depthwise", "gather", "shared", "gemv", "coop"
]
# Families that take all groups at once and input channels one by one.
SINGLE = frozenset({"strip", "depthwise", "gather"})


@dataclass(frozen=True, slots=True)
class ConvKernel:
    """A kernel for a problem.

    `pixels` per invocation (rotate: per workgroup), `lanes` channel blocks that lie side by side in
    the packed weights, `local` invocations per workgroup; `why` goes to the log. `shared` has the
    tiles of the families shared and coop, whose `pixels` and `lanes` are those of a workgroup, and
    the workgroups of gemv.
    """

    family: Family
    pixels: int
    lanes: int
    local: int
    why: str = field(compare=False, repr=False)
    shared: SharedKernel | CoopKernel | GemvKernel | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """A shape of the implicit GEMM, and the GFLOP/s of one core that it reaches when it is full."""

    family: Family
    pixels: int
    lanes: int
    speed: float


# By the invocations that run at once, measured on lavapipe (Mesa 22.3, Sapphire Rapids); only the
# ratios matter.
CPU_TILES = {
    8: (
        Tile("rotate", 32, 8, 42.0),
        Tile("rotate", 16, 8, 37.0),
        Tile("rotate", 8, 8, 30.0),
        Tile("tile", 8, 2, 20.0),
        Tile("tile", 8, 1, 17.0),
        Tile("tile", 4, 2, 19.5),
        Tile("tile", 4, 1, 16.0),
        Tile("tile", 1, 1, 7.5),
        Tile("channels", 4, 8, 17.5),
        Tile("channels", 1, 8, 8.0),
    ),
    16: (
        Tile("rotate", 64, 16, 52.0),
        Tile("rotate", 32, 16, 50.0),
        Tile("rotate", 16, 16, 44.0),
        Tile("tile", 8, 2, 23.5),
        Tile("tile", 8, 1, 18.5),
        Tile("tile", 4, 2, 19.5),
        Tile("tile", 4, 1, 14.5),
        Tile("tile", 1, 1, 7.5),
        Tile("channels", 4, 16, 17.5),
        Tile("channels", 1, 16, 8.0),
    ),
}
# What storing a result costs, in rounds of the loop over channel blocks: sixteen lanes are stored
# one by one like eight, out of registers that take longer to reach.
STORE_ROUNDS = {8: 6, 16: 22}

# (pixels, channel blocks) per invocation, largest first: reuse in registers against invocations.
GPU_TILES = ((8, 2), (4, 2), (4, 1), (1, 1))
GPU_LOCAL = 64
# Enough to keep a large GPU busy: 128 multiprocessors with 128 lanes.
GPU_INVOCATIONS = 16_384


def rank_kernels(
    problem: ConvProblem,
    info: DeviceInfo,
    texels: bool,
    half: bool = False,
    weight_bytes: int = 0,
) -> list[ConvKernel]:
    """Return the kernels that can do a problem, the likely fastest first.

    Args:
        problem: what to compute.
        info: the device.
        texels: loads go through texel buffers.
        half: floats take 16 bits.
        weight_bytes: of all constants of the network.
    """
    cpu = not is_gpu(info)
    local = cpu_lanes(info) if cpu else GPU_LOCAL
    if problem.inputs == problem.outputs == 1:
        return _rank_depthwise(problem, local, cpu, texels)
    if not on_blocks(problem):
        return [ConvKernel("gather", 1, 1, local, "groups do not fall on channel blocks")]
    rotations = rotate_lanes(info) if texels else []
    shared = _rank_shared(problem, info)
    gemv = _rank_gemv(problem, info)
    matrices = _rank_coop(problem, info, weight_bytes) if half else []
    if cpu:
        # Shared memory and barriers are emulated there: for tests and the tuner.
        return [*_rank_cpu_tiles(problem, local, rotations), *shared, *gemv, *matrices]
    return [*gemv, *matrices, *shared, *_rank_gpu_tiles(problem, rotations)]


def _rank_shared(problem: ConvProblem, info: DeviceInfo) -> list[ConvKernel]:
    return [
        ConvKernel(
            "shared",
            kernel.tile.rows,
            kernel.tile.columns // 4,
            kernel.tile.invocations,
            f"{workgroups(kernel.tile, gemm_of(problem))} tiles, {kernel.parts} parts of K",
            kernel,
        )
        for kernel in rank_conv_shared(problem, info)
    ]


def _rank_gemv(problem: ConvProblem, info: DeviceInfo) -> list[ConvKernel]:
    return [
        ConvKernel("gemv", 1, PANEL_VECTORS, kernel.local, "one pixel", kernel)
        for kernel in rank_conv_gemv(problem, info)
    ]


def _rank_coop(problem: ConvProblem, info: DeviceInfo, weight_bytes: int) -> list[ConvKernel]:
    product = coop.gemm_of(problem)
    return [
        ConvKernel(
            "coop",
            kernel.tile.rows,
            kernel.tile.columns // 4,
            kernel.tile.invocations,
            f"{kernel.tile.workgroups(product)} tiles of matrices, {kernel.parts} parts of K",
            kernel,
        )
        for kernel in coop.rank_conv_coop(problem, info, weight_bytes)
    ]


def _rank_depthwise(problem: ConvProblem, local: int, cpu: bool, texels: bool) -> list[ConvKernel]:
    large = cpu or problem.pixels * problem.channels >= 16 * GPU_INVOCATIONS
    pixels = 8 if texels else 4
    strip = ConvKernel("strip", pixels, 1, local, "depthwise, a usual window")
    strips = [strip] if _has_strips(problem) else []
    plain = [
        ConvKernel("depthwise", pixels, 1, local, "every channel is a group")
        for pixels in ((4, 1) if large else (1, 4))
    ]
    return [*strips, *plain] if large else [*plain, *strips]


def _has_strips(problem: ConvProblem) -> bool:
    """Return whether there is an unrolled depthwise kernel for the window."""
    depth, height, width = problem.kernel
    flat = depth == problem.in_size[0] == problem.out_size[0] == 1 and problem.pad[0] == 0
    square = height == width in (3, 5) and problem.stride[1] == problem.stride[2] in (1, 2)
    return flat and square and problem.dilation[1:] == (1, 1) and 0 not in problem.in_size


def on_blocks(problem: ConvProblem) -> bool:
    """Return whether groups, if there are any, begin with a channel block."""
    return problem.group == 1 or (problem.inputs % 4 == 0 and problem.outputs % 4 == 0)


def rank_tiles(
    problem: ConvProblem, lanes: int, rotations: Sequence[int]
) -> list[tuple[float, Tile]]:
    """Return the tiles for a CPU device with the nanoseconds that one core takes, fastest first.

    Args:
        problem: sizes.
        lanes: the invocations that run at once.
        rotations: subgroup sizes with which the rotation kernel runs.
    """
    blocks = ceil_div(problem.outputs, 4)
    # On lavapipe the loop over channel blocks takes one round more than there are.
    rounds = prod(problem.kernel) * (ceil_div(problem.inputs, 4) + 1) + STORE_ROUNDS[lanes]

    def cost(tile: Tile) -> float:
        across = lanes if tile.family == "tile" else 1
        rows = ceil_div(problem.pixels, tile.pixels * across) * tile.pixels * across
        columns = ceil_div(blocks, tile.lanes) * tile.lanes * 4
        return 8 * rows * columns * rounds * problem.group / tile.speed

    fitting = [
        tile for tile in CPU_TILES[lanes] if tile.family != "rotate" or tile.lanes in rotations
    ]
    return sorted(((cost(tile), tile) for tile in fitting), key=lambda ranked: ranked[0])


def _rank_cpu_tiles(problem: ConvProblem, lanes: int, rotations: Sequence[int]) -> list[ConvKernel]:
    why = f"least work for {problem.pixels} pixels of {problem.outputs} channels"
    return [
        ConvKernel(tile.family, tile.pixels, tile.lanes, lanes, why)
        for _, tile in rank_tiles(problem, lanes, rotations)
    ]


def _rank_gpu_tiles(problem: ConvProblem, rotations: Sequence[int]) -> list[ConvKernel]:
    blocks = ceil_div(problem.outputs, 4)
    few = [
        ConvKernel("channels", pixels, GPU_LOCAL, GPU_LOCAL, "few pixels")
        for pixels in ((1, 4) if problem.pixels == 1 else (4, 1))
    ]
    full: list[ConvKernel] = []
    small: list[ConvKernel] = []
    for pixels, lanes in GPU_TILES:
        invocations = ceil_div(problem.pixels, pixels) * ceil_div(blocks, lanes) * problem.group
        if invocations >= GPU_INVOCATIONS:
            full.append(ConvKernel("tile", pixels, lanes, GPU_LOCAL, "fills the device"))
        else:
            kernel = ConvKernel("tile", pixels, lanes, GPU_LOCAL, "too small to fill the device")
            small.insert(0, kernel)
    tiles = [*full, *small]
    ranked = [*few, *tiles] if problem.pixels <= 4 else [*tiles, *few]
    rotating = [tile for lanes in rotations for tile in CPU_TILES[lanes] if tile.family == "rotate"]
    why = "for CPU devices"
    return [
        *ranked,
        ConvKernel("tile", 8, 1, GPU_LOCAL, why),
        *[ConvKernel("rotate", tile.pixels, tile.lanes, tile.lanes, why) for tile in rotating],
    ]


def pack_weights(w: Array, kernel: ConvKernel, group: int) -> Array:
    """Pack weights [O, C/group, taps] as [group][panel][tap][C/group][lanes][4].

    Output channels fill whole panels of `lanes` blocks of four in every group, and input channels
    whole blocks of four, both with zeros; families that do not work in blocks of input channels
    take all groups as one and leave the input channels alone.
    """
    blocked = kernel.family not in SINGLE
    groups = group if blocked else 1
    _, inputs, taps = w.shape
    outputs = w.shape[0] // groups
    depth = ceil_div(inputs, 4) * 4 if blocked else inputs
    width = kernel.lanes * 4
    panels = ceil_div(outputs, width)
    padded = w.reshape(groups, outputs, inputs, taps)
    if (outputs, inputs) != (panels * width, depth):
        padded = np.zeros((groups, panels * width, depth, taps), w.dtype)
        padded[:, :outputs, :inputs] = w.reshape(groups, outputs, inputs, taps)
    # A view: the copy to the device's memory puts the elements in order.
    split = padded.reshape(groups, panels, width, depth, taps)
    ordered: Array = split.transpose(0, 1, 4, 3, 2)
    return ordered


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a convolution: a tensor, and how to see it as [O, C/group, kd, kh, kw].

    `key` names the view; `view` must only move elements.
    """

    tensor: Tensor
    key: str
    view: Callable[[Array], Array]

    def packed(self, kernel: ConvKernel, group: int, encoder: VulkanEncoder) -> Tensor:
        """Return the weights as the kernel wants them, packed once, or in every run if computed."""

        def pack(plain: Array) -> Array:
            seen = self.view(plain)
            flat = seen.reshape(*seen.shape[:2], prod(seen.shape[2:]))
            if kernel.family == "coop":
                return coop.pack_conv_weights(flat, group)
            if kernel.family == "gemv":
                return pack_gemv_weights(flat)
            return pack_weights(flat, kernel, group)

        form = f"blocked:{kernel.lanes}"
        if kernel.family in SINGLE:
            form = f"single:{kernel.lanes}"
        elif kernel.family in ("coop", "gemv"):
            form = kernel.family
        key = f"conv:{self.key}:{form}:{group}"
        if self.tensor.value is not None:
            return encoder.constant(self.tensor, key, pack)
        # Packing the numbers of the elements shows where each of them goes.
        count = prod(self.tensor.shape)
        numbers = np.arange(1, count + 1, dtype=np.int32).reshape(self.tensor.shape)
        table = pack(numbers) - 1
        packed = encoder.scratch(table.size)
        storage = encoder.load_storage
        encoder.dispatch_linear(
            kernels.conv_weight(storage=storage),
            [self.tensor, encoder.literal(f"{self.tensor.name}:{key}", table), packed],
            kernels.ConvWeightParams(count=table.size),
            table.size,
        )
        return packed


def blocked(tensor: Tensor, encoder: VulkanEncoder) -> Tensor:
    """Return a tensor in NC4HW4: constants, which arrive in plain order, are packed."""
    if tensor.value is None:
        return tensor
    return encoder.constant(tensor, "nc4hw4", pack_nc4hw4)


def bias_tensor(bias: Tensor | None, channels: int, encoder: VulkanEncoder) -> Tensor:
    """Return the bias; zeros where there is none."""
    if bias is not None:
        return bias
    return encoder.literal(f"zeros:{channels}", np.zeros(channels, np.float32))


def iterations(kernel: Triple, inner: int) -> int:
    """Return how often an invocation goes round its loops: once per tap, and `inner` times in it.

    A loop of lavapipe counts the round in which it finds out that it is done.
    """
    return prod(kernel) * (1 + (inner + 1 if inner else 0)) + 1


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the taps: `[first, first + count)` on each axis."""

    first: Triple
    count: Triple


def split_taps(kernel: Triple, inner: int) -> list[Part]:
    """Cut a kernel so that the loops over each part stay under MAX_LOOP_ROUNDS.

    Args:
        kernel: taps per axis.
        inner: iterations of the loop inside the taps.
    """

    def cut(part: Part) -> Iterator[Part]:
        if iterations(part.count, inner) <= MAX_LOOP_ROUNDS or max(part.count) == 1:
            yield part
            return
        axis = next(i for i, count in enumerate(part.count) if count > 1)
        half = part.count[axis] // 2
        yield from cut(replace(part, count=_set(part.count, axis, half)))
        rest = _set(part.count, axis, part.count[axis] - half)
        yield from cut(Part(_set(part.first, axis, part.first[axis] + half), rest))

    return list(cut(Part((0, 0, 0), kernel)))


def _set(values: Triple, axis: int, value: int) -> Triple:
    changed = list(values)
    changed[axis] = value
    return changed[0], changed[1], changed[2]


def encode_convolution(
    problem: ConvProblem,
    weights: Weights,
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    y: Tensor,
    activation: Activation,
    encoder: VulkanEncoder,
    join: str = "ADD_BEFORE",
) -> None:
    """Record a convolution: one dispatch, or several that add up where loops would grow too long.

    Args:
        problem: sizes.
        weights: a constant or a plain tensor.
        x: NC4HW4.
        bias: plain, one element per output channel.
        residual: NC4HW4 of y's shape.
        y: NC4HW4.
        activation: applied at the end.
        encoder: takes the dispatches.
        join: how the residual is taken in, of RESIDUAL_KINDS; before the activation when the
            convolution is computed in parts.
    """
    if 0 in (problem.pixels, problem.channels):
        return
    candidates = rank_kernels(
        problem, encoder.info, encoder.prefers_texel_loads, encoder.half, encoder.weight_bytes
    )
    kernel = encoder.choose("convolution", problem, candidates)
    _log.debug(
        "%s: %s kernel, %d pixels, %d lanes: %s",
        encoder.label,
        kernel.family,
        kernel.pixels,
        kernel.lanes,
        kernel.why,
    )
    whole = [Part((0, 0, 0), problem.kernel)]
    inner = _inner_iterations(problem, kernel)
    parts = whole if kernel.shared else split_taps(problem.kernel, inner)
    assert len(parts) == 1 or join == "ADD_BEFORE"
    total = residual
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        target = (
            y if last else encoder.scratch(ceil_div(problem.channels, 4) * problem.out_block * 4)
        )
        dispatch_convolution(
            _part_problem(problem, part),
            kernel,
            [
                x,
                _part_weights(weights, part, len(parts)).packed(kernel, problem.group, encoder),
                bias_tensor(bias if number == 0 else None, problem.channels, encoder),
            ],
            total,
            target,
            activation if last else Activation(),
            encoder,
            join,
        )
        total = target


def _inner_iterations(problem: ConvProblem, kernel: ConvKernel) -> int:
    if kernel.shared or kernel.family in ("strip", "depthwise"):
        return 0
    return problem.inputs if kernel.family == "gather" else ceil_div(problem.inputs, 4)


def _part_problem(problem: ConvProblem, part: Part) -> ConvProblem:
    pad = tuple(
        pad - first * dilation
        for pad, first, dilation in zip(problem.pad, part.first, problem.dilation, strict=True)
    )
    return replace(problem, kernel=part.count, pad=(pad[0], pad[1], pad[2]))


def _part_weights(weights: Weights, part: Part, parts: int) -> Weights:
    if parts == 1:
        return weights
    depth, height, width = (
        slice(first, first + count) for first, count in zip(part.first, part.count, strict=True)
    )
    return Weights(
        weights.tensor,
        f"{weights.key}:{part.first}:{part.count}",
        lambda plain: weights.view(plain)[:, :, depth, height, width],
    )


def dispatch_convolution(
    problem: ConvProblem,
    kernel: ConvKernel,
    operands: list[Tensor],
    residual: Tensor | None,
    y: Tensor,
    activation: Activation,
    encoder: VulkanEncoder,
    join: str,
) -> None:
    """Record one dispatch; `operands` are x, packed weights and bias."""
    single = kernel.family in SINGLE
    group_blocks = problem.outputs if single else ceil_div(problem.outputs, 4)
    panels = ceil_div(group_blocks, kernel.lanes)
    epilogue = epilogue_of(activation)
    sizes: dict[str, Any] = {
        "pixels": problem.pixels,
        "in_size": problem.in_size,
        "out_size": problem.out_size,
        "stride": problem.stride,
        "pad": problem.pad,
        "in_block": problem.batch * prod(problem.in_size),
        "in_blocks": problem.inputs if single else ceil_div(problem.inputs, 4),
        "out_block": problem.out_block,
        "out_stride": problem.out_strides,
        "out_offset": problem.out_offset,
        "group_blocks": group_blocks,
        "group_panels": panels,
        "channels": problem.channels,
        "act_alpha": epilogue.alpha,
        "act_beta": epilogue.beta,
    }
    tensors = [*operands, residual or operands[2], y]
    spec: dict[str, int | bool] = {**epilogue.spec, **residual_spec(residual, join)}
    if isinstance(kernel.shared, CoopKernel):
        coop.dispatch_convolution(problem, kernel.shared, sizes, tensors, spec, encoder)
        return
    if isinstance(kernel.shared, GemvKernel):
        dispatch_conv_gemv(problem, kernel.shared, epilogue, tensors, spec, encoder)
        return
    if kernel.shared:
        dispatch_conv_shared(problem, kernel.shared, sizes, tensors, spec, encoder)
        return
    shader, params_type = _shader(problem, kernel, encoder)
    params = params_type(kernel=problem.kernel, dilation=problem.dilation, **sizes)
    tiles = _tiles(problem, kernel)
    folds = ceil_div(tiles, encoder.info.limits.max_workgroup_count[0])
    rows = ceil_div(problem.channels, 4) if single else problem.group * panels
    spec |= {
        "PADDED": problem.padded,
        **index_spec(shader, problem.pixels),
        "ONE_TAP": problem.kernel == (1, 1, 1),
        "ONE_BLOCK": problem.inputs <= 4,
    }
    if kernel.family != "rotate":
        spec["local_size_x"] = kernel.local
    encoder.dispatch(shader, tensors, params, (ceil_div(tiles, folds), rows, folds), spec)


def _tiles(problem: ConvProblem, kernel: ConvKernel) -> int:
    """Return the number of workgroups that the pixels take."""
    if kernel.family == "strip":
        width = problem.out_size[2]
        strips = problem.pixels // width * ceil_div(width, kernel.pixels)
        return ceil_div(strips, kernel.local)
    across = 1 if kernel.family in ("rotate", "channels") else kernel.local
    return ceil_div(problem.pixels, kernel.pixels * across)


def _shader(
    problem: ConvProblem,
    kernel: ConvKernel,
    encoder: VulkanEncoder,
) -> tuple[Shader, Callable[..., Params]]:
    storage = encoder.load_storage
    if kernel.family == "rotate":
        shader = kernels.conv_rotate(
            rows=kernel.pixels,  # type: ignore[arg-type]
            lanes=kernel.lanes,  # type: ignore[arg-type]
            storage=encoder.texel_storage,
        )
        return shader, kernels.ConvRotateParams
    if kernel.family == "strip":
        shader = kernels.conv_strip(
            size=problem.kernel[2],  # type: ignore[arg-type]
            stride=problem.stride[2],  # type: ignore[arg-type]
            pixels=kernel.pixels,  # type: ignore[arg-type]
            storage=storage,
        )
        return shader, kernels.ConvStripParams
    if kernel.family == "depthwise":
        shader = kernels.conv_depthwise(pixels=kernel.pixels, storage=storage)  # type: ignore[arg-type]
        return shader, kernels.ConvDepthwiseParams
    if kernel.family == "gather":
        return kernels.conv_gather(storage=storage), kernels.ConvGatherParams
    wide = kernel.family == "tile"
    shader = kernels.conv_tile(
        across="pixels" if wide else "channels",
        pixels=kernel.pixels,  # type: ignore[arg-type]
        blocks=kernel.lanes if wide else 1,  # type: ignore[arg-type]
        storage=storage,
    )
    return shader, kernels.ConvTileParams


class ConvolutionBase(VulkanExecution[AttrsT]):
    """What convolutions in both directions refuse, and the layouts they want."""

    half_rule = HalfRule.TAKES

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse element types without kernel and more than three spatial axes."""
        axes = len(self.output.shape) - 2
        if axes > MAX_AXES:
            raise Rejection(f"{axes} spatial axes, at most {MAX_AXES} fit")
        for tensor in self.operands:
            if tensor.dtype not in (DType.FLOAT32, DType.FLOAT16):
                raise Rejection(f"convolution of {tensor.dtype.value} tensors")
        joins = isinstance(self.attrs, ConvolutionAttrs) and self.attrs.residual != "ADD_BEFORE"
        w = self.operand(1)
        if joins and prod(w.shape[1:]) > MAX_LOOP_ROUNDS:
            raise Rejection(f"{prod(w.shape[1:])} products per element before a late residual")

    def layouts(self) -> Layouts:
        """Activations are channel-blocked; weights and bias stay plain."""
        wanted = [Layout.NC4HW4, Layout.NCHW, Layout.NCHW, Layout.NC4HW4]
        return wanted[: len(self.inputs)], [Layout.NC4HW4]
