"""Shared parts of ops along an axis: the axis as [outer, size, inner], workgroups, reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Literal

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.recorder import linear_groups
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import CPU_SUBGROUPS, SHUFFLES, cpu_lanes, is_gpu
from vkmnn.vulkan.encoder import Load, VulkanEncoder, ceil_div
from vkmnn.vulkan.storage import kernel_dtype, stored_element

Lanes = Literal[0, 8, 16, 32]
LANES: tuple[Lanes, ...] = (8, 16, 32, 0)
ReduceOp = Literal["SUM", "L1", "SUM_SQUARE", "SUM_EXP", "MAX", "MIN", "PROD"]

# Rows shorter than this are not worth a workgroup each.
MIN_ROW = 16
# Longer sums are split: more invocations work, and rounding errors do not add up.
ROW_PIECE = 16_384
COLUMN_PIECE = 4_096
MIN_COLUMN_PIECE = 64
# Maximum vec4s of a row that an invocation keeps in registers, by lanes; the templates agree.
MAX_HOLD: dict[Lanes, int] = {8: 32, 16: 16, 32: 8, 0: 8}
# Sizes of workgroups for rows on other devices.
LOCAL_SIZES = (32, 64, 128, 256)
# Invocations that keep a device busy if each walks its own column.
_BUSY_CPU = 32
_BUSY_GPU = 8_192
# How the results of pieces are combined, where it is not the op itself.
_JOINED: dict[ReduceOp, ReduceOp] = {"L1": "SUM", "SUM_SQUARE": "SUM", "SUM_EXP": "SUM"}


@dataclass(frozen=True, slots=True)
class Line:
    """A tensor seen as [outer, size, inner]: an op works along the middle axis."""

    outer: int
    size: int
    inner: int

    @property
    def columns(self) -> int:
        """Number of lines along the axis."""
        return self.outer * self.inner

    @property
    def width(self) -> Literal[1, 4]:
        """Neighbouring columns that an invocation can read at once."""
        return 4 if self.inner % 4 == 0 else 1


def line_of(shape: Sequence[int], first: int, last: int) -> Line:
    """Return the axes `first` to `last` (inclusive) of a plain tensor as one."""
    return Line(prod(shape[:first]), prod(shape[first : last + 1]), prod(shape[last + 1 :]))


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A workgroup per row: how it combines (include/group.glsl.j2), and its size."""

    lanes: Lanes
    local: int

    @property
    def load(self) -> Load:
        """How these kernels load."""
        return "texel" if self.lanes in CPU_SUBGROUPS else "buffer"


def row_group(
    rows: int, size: int, encoder: VulkanEncoder, taken: Sequence[Lanes] = LANES
) -> RowGroup:
    """Choose the workgroup for plain rows of `size` elements, which it reads as vec4s.

    Its lanes are among those `taken`.
    """
    vectors = ceil_div(size, 4) + (size % 4 != 0)
    # With many rows the device is busy anyway; then fewer invocations combine sooner.
    wanted = ceil_div(vectors, 4) if rows >= 1024 else vectors
    sizes = [
        local for local in LOCAL_SIZES if local <= encoder.info.limits.max_workgroup_invocations
    ]
    best = next((local for local in sizes if local >= wanted), sizes[-1])
    candidates = [
        RowGroup(lanes, local)
        for lanes in lanes_of(encoder)
        if lanes in taken
        for local in (
            (lanes, 32) if lanes in CPU_SUBGROUPS else (best, *(s for s in sizes if s != best))
        )
    ]
    return encoder.choose("row group", (rows, size), candidates)


def lanes_of(encoder: VulkanEncoder) -> list[Lanes]:
    """Return the ways to combine within a workgroup on a device, fastest first.

    Kernels for CPU devices load through texel buffers.
    """
    info = encoder.info
    lanes: list[Lanes] = [0]
    smallest, largest = info.limits.subgroup_size_range
    if info.features >= SHUFFLES:
        cpu = not is_gpu(info)
        if smallest <= 32 <= largest:
            lanes.insert(1 if cpu else 0, 32)
        for size in CPU_SUBGROUPS:
            if smallest <= size <= largest and "texel" in encoder.loads:
                first = cpu and encoder.load == "texel" and info.subgroup_size == size
                lanes.insert(0 if first else len(lanes), size)
    return lanes


def row_grid(rows: int, encoder: VulkanEncoder) -> tuple[int, int, int]:
    """Return the workgroup counts for one workgroup per row."""
    return linear_groups(rows, 1, encoder.info.limits)


def _busy(info: DeviceInfo) -> int:
    return _BUSY_GPU if is_gpu(info) else _BUSY_CPU


def is_busy(invocations: int, info: DeviceInfo) -> bool:
    """Return whether that many invocations keep the device busy."""
    return invocations >= _busy(info)


def column_local(count: int, encoder: VulkanEncoder) -> dict[str, int | float | bool]:
    """Return the workgroup size for invocations with much work: small on CPU devices."""
    small = not is_gpu(encoder.info) and count < 4096
    return {"local_size_x": cpu_lanes(encoder.info) if small else 64}


@dataclass(frozen=True, slots=True)
class Reduction:
    """The reduction that `encode_reduction` computes: finish(op of x - center).

    `center` has one value per line, subtracted from every element if `subtract`; `divisor` and
    `epsilon` belong to the finishing steps DIVIDE and INVERSE_STD. All but `op` is for floats only.
    """

    op: ReduceOp
    finish: kernels.ReduceFinish = kernels.ReduceFinish.NONE
    divisor: float = 1.0
    epsilon: float = 0.0
    center: Tensor | None = None
    subtract: bool = False


def encode_reduction(
    reduction: Reduction,
    source: Tensor,
    output: Tensor,
    line: Line,
    encoder: VulkanEncoder,
    *,
    vectors: bool = False,
) -> None:
    """Record a reduction of [outer, size, inner] to [outer, inner], in stages when lines are long.

    Args:
        reduction: the reduction to compute.
        source: float32 or int32 words.
        output: words of the same type.
        line: `size` at least 1.
        encoder: records the dispatches.
        vectors: the elements of `line` are vec4s, each component is reduced on its own.
    """
    while True:
        ways = _ways(line, vectors)
        by_rows = encoder.choose("reduction", (line, vectors), ways) == "rows"
        piece = _row_piece(line) if by_rows else _column_piece(line, encoder.info)
        pieces = ceil_div(line.size, piece)
        stage = reduction
        target = output
        if pieces > 1:
            stage = replace(reduction, finish=kernels.ReduceFinish.NONE)
            words = line.columns * pieces * (4 if vectors else 1)
            target = encoder.scratch(words, word_type(source), full=True)
        if by_rows:
            _encode_rows(stage, source, target, line, piece, encoder)
        else:
            encode_pieces(stage, source, target, line, piece, encoder, vectors=vectors)
        if pieces == 1:
            return
        reduction = replace(reduction, op=_JOINED.get(reduction.op, reduction.op), subtract=False)
        source, line = target, replace(line, size=pieces)


def _ways(line: Line, vectors: bool) -> tuple[str, ...]:
    """Return the kernels that can reduce such lines, the fastest first."""
    if line.inner > 1 or vectors:
        return ("columns",)
    return ("rows", "columns") if line.size >= MIN_ROW else ("columns", "rows")


def word_type(tensor: Tensor) -> DType:
    """Return the type of scratch that holds words of the same kind."""
    return DType.FLOAT32 if kernel_dtype(tensor.dtype) == "f32" else DType.INT32


def _row_piece(line: Line) -> int:
    return min(line.size, ROW_PIECE)


def _column_piece(line: Line, info: DeviceInfo) -> int:
    """Return the length of a piece: the whole line unless it is long or the device would idle."""
    busy = _busy(info)
    pieces = max(1, min(busy // max(1, line.columns), line.size // MIN_COLUMN_PIECE))
    return min(ceil_div(line.size, pieces), COLUMN_PIECE)


def _spec(reduction: Reduction) -> dict[str, int | float | bool]:
    return {
        "REDUCE": kernels.Reduce[reduction.op].value,
        "FINISH": reduction.finish.value,
        "CENTER": reduction.subtract,
    }


def _bindings(reduction: Reduction, source: Tensor, output: Tensor) -> list[Tensor]:
    if kernel_dtype(source.dtype) == "i32":
        return [source, output]
    # If the specialization leaves `center` out, the binding still needs a buffer; any will do.
    return [source, reduction.center or source, output]


def _encode_rows(
    reduction: Reduction,
    source: Tensor,
    output: Tensor,
    line: Line,
    piece: int,
    encoder: VulkanEncoder,
) -> None:
    chunks = ceil_div(line.size, piece)
    rows = line.outer * chunks
    group = row_group(rows, piece, encoder)
    shader = kernels.reduce_rows(
        lanes=group.lanes,
        element=stored_element(source),
    )
    params = kernels.ReduceRowsParams(
        pieces=rows,
        size=line.size,
        chunk=piece,
        chunks=chunks,
        divisor=reduction.divisor,
        epsilon=reduction.epsilon,
    )
    spec = _spec(reduction)
    spec |= {"local_size_x": group.local, "ALIGNED": line.size % 4 == 0 and piece % 4 == 0}
    tensors = _bindings(reduction, source, output)
    encoder.dispatch(shader, tensors, params, row_grid(rows, encoder), spec)


def encode_pieces(
    reduction: Reduction,
    source: Tensor,
    output: Tensor,
    line: Line,
    piece: int,
    encoder: VulkanEncoder,
    *,
    vectors: bool = False,
) -> None:
    """Record the reduction of every line in pieces of `piece` elements (the last may be shorter).

    The output is [outer, pieces, inner], and an invocation computes one element of it; see
    `encode_reduction` for the rest.
    """
    width = 4 if vectors else line.width
    inner = line.inner if vectors else line.inner // width
    chunks = ceil_div(line.size, piece)
    count = line.outer * chunks * inner
    shader = kernels.reduce_columns(
        width=width,
        element=stored_element(source),
        load=encoder.load,
    )
    params = kernels.ReduceColumnsParams(
        count=count,
        size=line.size,
        inner=inner,
        chunk=piece,
        chunks=chunks,
        divisor=reduction.divisor,
        epsilon=reduction.epsilon,
    )
    spec = _spec(reduction) | column_local(count, encoder)
    encoder.dispatch_linear(shader, _bindings(reduction, source, output), params, count, spec)
