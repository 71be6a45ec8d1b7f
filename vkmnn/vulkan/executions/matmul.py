"""MatMul: batched matrix products with scale, bias, residual and activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, DType
from vkmnn.ir.ops import MatMulAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import epilogue_of, residual_spec
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, cpu_lanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.gemm.coop_tiles import LEAST_PACKED_WORK, CoopKernel, rank_coop
from vkmnn.vulkan.gemm.families import coop
from vkmnn.vulkan.gemm.shared_tiles import GemvKernel, Product, SharedKernel, rank_gemv, rank_shared
from vkmnn.vulkan.gemm.split import buffer_storage, dispatch_shared
from vkmnn.vulkan.half import HalfRule
from vkmnn.vulkan.storage import kernel_dtype

MAX_BATCH_AXES = 3
PANEL = 32  # columns of b that lie together when packed, except for rotation kernels
# Time of a rotation tile by its rows, on llvmpipe with subgroups of eight and of sixteen.
ROTATE_COST = {
    8: {32: 32.0, 40: 40.0, 16: 18.0, 8: 14.0},
    16: {64: 64.0, 32: 33.0, 16: 19.0},
}
# Rewriting the left operand in blocks of k takes a dispatch, and then makes a product 1.1 to 1.4
# times faster: a tile's rows share cache lines, and do not fall on the same lines of the cache.
PACKING_COLUMNS = 256
PACKING_WORK = 6_000_000
# Every kernel goes round its loop at most once per four k.
MAX_K = 4 * MAX_LOOP_ROUNDS


@dataclass(frozen=True, slots=True)
class _Operand:
    """A matrix operand as the kernels read it; all strides count vec4s."""

    tensor: Tensor
    row: int
    batch: int
    step: int = 0  # left: from four elements along k to the next four
    panel: int = 0  # right: from one panel to the next


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel: its family, and the rows that an invocation (rotate: a workgroup) computes.

    `by_blocks`: the left operand lies in blocks of four along k, the rows of a block side by side.
    `lanes`: the vec4s of b that lie together when it is packed; rotate: the size of the subgroup.
    """

    family: Literal["rotate", "tile"]
    rows: int
    by_blocks: bool = False
    lanes: int = PANEL // 4


@dataclass(frozen=True, slots=True)
class _Product:
    """Sizes of a product: batch axes with each operand's presence, rows, columns, inner size."""

    batch: tuple[int, ...]
    a_batch: tuple[bool, ...]
    b_batch: tuple[bool, ...]
    m: int
    n: int
    k: int

    @property
    def gemm(self) -> Product:
        """The product as the rules for GPUs see it."""
        return Product(self.m, self.n, self.k, prod(self.batch))


@vulkan_execution("MatMul")
class MatMulExecution(VulkanExecution[MatMulAttrs]):
    """Packs operands that the kernels cannot read as they are, then one dispatch."""

    half_rule = HalfRule.TAKES

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse what the kernels have no loop or axis for."""
        attrs, a, b = self.attrs, self.operand(0), self.operand(1)
        self._product = product = _product(attrs, a.shape, b.shape)
        if product.k > MAX_K:
            raise Rejection(f"inner size {product.k} exceeds {MAX_K}")
        if len(product.batch) > MAX_BATCH_AXES:
            axes = len(product.batch)
            raise Rejection(f"batches alternate over {axes} axes, at most {MAX_BATCH_AXES} fit")
        plain = attrs.activation.kind == "NONE" and attrs.alpha == 1.0
        if kernel_dtype(a.dtype) == "i32" and not plain:
            raise Rejection("scale or activation of an integer product")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the packing of operands and the product."""
        attrs, product, output = self.attrs, self._product, self.output
        a, b, bias, residual = self.operand(0), self.operand(1), self.optional(2), self.optional(3)
        if 0 in output.shape:
            return
        transposed = attrs.transpose_a and len(a.shape) > 1
        epilogue = epilogue_of(attrs.activation)
        aligned: Literal[1, 4] = 4 if product.n % 4 == 0 else 1
        dtype = kernel_dtype(a.dtype)
        plain = a.value is None and not transposed and product.k % 4 == 0
        transposed_b = attrs.transpose_b and len(b.shape) > 1
        by_rows = coop.lies_by_rows(a, product.m, product.k, transposed) and coop.lies_by_rows(
            b, product.n, product.k, not transposed_b
        )
        candidates = _kernels(product, dtype, plain, by_rows, encoder)
        kernel = encoder.choose("matmul", (product, dtype, plain, by_rows), candidates)
        by_blocks = isinstance(kernel, _Kernel) and kernel.by_blocks
        lanes = kernel.lanes if isinstance(kernel, _Kernel) else PANEL // 4
        if isinstance(kernel, CoopKernel):
            left, right = _rows(a, b, product, transposed, transposed_b, encoder)
        else:
            left = _left(a, product, transposed, by_blocks, encoder)
            right = _right(b, product, transposed_b, lanes, encoder)
        sizes: dict[str, Any] = {
            "rows": product.m,
            "columns": product.n,
            "k4": ceil_div(product.k, 4),
            "a_row": left.row,
            "a_step": left.step,
            "b_panel": right.panel,
            "b_row": right.row,
            "batch_size": _padded(product.batch, 1)[1:],
            "a_batch": _batch_strides(product.batch, product.a_batch, left.batch),
            "b_batch": _batch_strides(product.batch, product.b_batch, right.batch),
            "alpha": attrs.alpha,
            "act_alpha": epilogue.alpha,
            "act_beta": epilogue.beta,
        }
        spec: dict[str, int | bool] = {
            "HAS_BIAS": bias is not None,
            **residual_spec(residual, attrs.residual),
        }
        if dtype == "f32":  # integer products have no activation
            spec |= epilogue.spec
        # Bindings that the specialization leaves out still need a buffer; any will do.
        tensors = [
            left.tensor,
            right.tensor,
            bias or right.tensor,
            residual or right.tensor,
            output,
        ]
        if isinstance(kernel, CoopKernel):
            coop.dispatch_product(product.gemm, kernel, sizes, tensors, spec, encoder)
            return
        if isinstance(kernel, SharedKernel):
            shader = kernels.matmul_shared(
                tile=kernel.tile.name,  # type: ignore[arg-type]
                split=kernel.split,
                aligned=aligned,
                storage=buffer_storage(encoder),
            )
            walk = kernel.walk(product.gemm)
            params = kernels.MatmulSharedParams(**sizes, **walk)
            dispatch_shared(kernel, walk["tiles"], shader, tensors, params, spec, encoder)
            return
        batches = prod(product.batch)
        rows = ceil_div(product.m, kernel.rows)
        if isinstance(kernel, GemvKernel):
            shader = kernels.matmul_gemv(
                rows=kernel.rows,  # type: ignore[arg-type]
                aligned=aligned,
                storage=buffer_storage(encoder),
            )
            spec |= {"WIDTH": kernel.width, "local_size_x": kernel.local}
            groups = (ceil_div(product.n, 4 * kernel.width), rows, batches)
            encoder.dispatch(shader, tensors, kernels.MatmulGemvParams(**sizes), groups, spec)
            return
        if kernel.family == "rotate":
            shader = kernels.matmul_rotate(
                rows=kernel.rows,  # type: ignore[arg-type]
                lanes=kernel.lanes,  # type: ignore[arg-type]
                aligned=aligned,
                storage=encoder.texel_storage,
            )
            groups = (rows, ceil_div(product.n, 4 * lanes), batches)
            encoder.dispatch(shader, tensors, kernels.MatmulRotateParams(**sizes), groups, spec)
            return
        shader = kernels.matmul_tile(
            tile=kernel.rows,  # type: ignore[arg-type]
            aligned=aligned,
            dtype=dtype,  # type: ignore[arg-type]
            storage=encoder.load_storage,
        )
        local = cpu_lanes(encoder.info) if encoder.prefers_texel_loads else 32
        groups = (ceil_div(product.n, 8 * local), rows, batches)
        spec["local_size_x"] = local
        encoder.dispatch(shader, tensors, kernels.MatmulTileParams(**sizes), groups, spec)


def _kernels(
    product: _Product, dtype: str | None, plain: bool, by_rows: bool, encoder: VulkanEncoder
) -> list[_Kernel | SharedKernel | GemvKernel | CoopKernel]:
    """Return the kernels that can do a product, the likely fastest first.

    plain: as below. by_rows: matrices could read both operands where they lie.
    """
    registers = _register_kernels(product, dtype, plain, encoder)
    if dtype != "f32":
        return [*registers]
    gemm = product.gemm
    shared, gemv = rank_shared(gemm, encoder.info), rank_gemv(gemm, encoder.info)
    matrices = rank_coop(gemm, encoder.info, encoder.weight_bytes) if encoder.half else []
    # CPU devices emulate shared memory and barriers: there these are for tests and the tuner.
    if not is_gpu(encoder.info):
        return [*registers, *shared, *gemv, *matrices]
    if by_rows or gemm.rows * gemm.columns * gemm.k * gemm.batches >= LEAST_PACKED_WORK:
        return [*gemv, *matrices, *shared, *registers]
    return [*gemv, *shared, *matrices, *registers]


def _register_kernels(
    product: _Product, dtype: str | None, plain: bool, encoder: VulkanEncoder
) -> list[_Kernel]:
    """Return the kernels that work in registers alone, the likely fastest first.

    plain: the left operand could be read where it lies.
    """
    tiles = [_Kernel("tile", 1), _Kernel("tile", 8)]
    if product.m > 1:
        tiles.reverse()
    # Last, since no device is known that gains: for the tuner, and for tests of the packing.
    tiles.append(_Kernel("tile", 8, True))
    info = encoder.info
    lanes = rotate_lanes(info)
    if dtype != "f32" or not lanes or not encoder.has_texel_loads:
        return tiles
    sizes = [(rows, width) for width in lanes for rows in _by_cost(product.m, ROTATE_COST[width])]
    by_blocks = [_Kernel("rotate", rows, True, width) for rows, width in sizes]
    as_it_lies = [_Kernel("rotate", rows, False, width) for rows, width in sizes] if plain else []
    work = prod(product.batch) * product.m * product.n * product.k
    worth = product.m > 8 and product.n >= PACKING_COLUMNS and work >= PACKING_WORK
    rotations = [*by_blocks, *as_it_lies] if worth else [*as_it_lies, *by_blocks]
    pays = product.m > 1 and not is_gpu(info) and info.subgroup_size in lanes
    return [*rotations, *tiles] if pays else [*tiles, *rotations]


def _by_cost(m: int, cost: Mapping[int, float]) -> list[int]:
    """Return the rows of the tiles for m rows, those first that take the least time in all."""
    return sorted(cost, key=lambda rows: ceil_div(m, rows) * cost[rows])


def _product(attrs: MatMulAttrs, a: Sequence[int], b: Sequence[int]) -> _Product:
    """Return the sizes of a product with numpy's rules for 1-D operands and broadcast batches."""
    a2 = (1, *a) if len(a) == 1 else tuple(a)
    b2 = (*b, 1) if len(b) == 1 else tuple(b)
    m, k = (a2[-1], a2[-2]) if attrs.transpose_a and len(a) > 1 else a2[-2:]
    n = b2[-2] if attrs.transpose_b and len(b) > 1 else b2[-1]
    rank = max(len(a2), len(b2)) - 2
    a_axes = (1,) * (rank - len(a2) + 2) + a2[:-2]
    b_axes = (1,) * (rank - len(b2) + 2) + b2[:-2]
    if all(size == 1 for size in b_axes) and not attrs.transpose_a:
        # One matrix for the whole batch: its rows are simply more rows.
        return _Product((), (), (), m * prod(a_axes), n, k)
    batch: list[int] = []
    present: list[tuple[bool, bool]] = []
    for size_a, size_b in zip(a_axes, b_axes, strict=True):
        size = max(size_a, size_b) if 0 not in (size_a, size_b) else 0
        if size == 1:
            continue
        here = (size_a != 1, size_b != 1)
        if present and present[-1] == here:
            batch[-1] *= size
        else:
            batch.append(size)
            present.append(here)
    return _Product(
        tuple(batch), tuple(h[0] for h in present), tuple(h[1] for h in present), m, n, k
    )


def _rows(
    a: Tensor,
    b: Tensor,
    product: _Product,
    transposed_a: bool,
    transposed_b: bool,
    encoder: VulkanEncoder,
) -> tuple[_Operand, _Operand]:
    """Return both operands as the kernels for cooperative matrices read them."""
    batches_a, batches_b = (
        prod(size for size, here in zip(product.batch, present, strict=True) if here)
        for present in (product.a_batch, product.b_batch)
    )
    left = coop.rows_of(a, product.m, product.k, transposed_a, batches_a, encoder)
    right = coop.rows_of(b, product.n, product.k, not transposed_b, batches_b, encoder)
    return _Operand(*left), _Operand(*right)


def _left(
    a: Tensor, product: _Product, transposed: bool, by_blocks: bool, encoder: VulkanEncoder
) -> _Operand:
    """Return a as vec4s along k, row by row or block by block of k; packed unless it lies so."""
    k4 = ceil_div(product.k, 4)
    batch = product.m * k4
    row, step = (1, product.m) if by_blocks else (k4, 1)
    plain = not transposed and product.k % 4 == 0
    batches = prod(size for size, here in zip(product.batch, product.a_batch, strict=True) if here)
    if a.value is not None:
        # Not the operand's own matrices: those of a batch that shares b are one with more rows.
        sizes = (product.k, product.m) if transposed else (product.m, product.k)
        packed = encoder.constant(
            a,
            f"matmul_a:{transposed}:{by_blocks}:{product.m}",
            lambda array: _pack_left(array.reshape(batches, *sizes), transposed, by_blocks),
        )
        return _Operand(packed, row, batch, step)
    if plain and not by_blocks:
        return _Operand(a, row, batch, step)
    packed = encoder.scratch(batches * batch * 4, _scratch_dtype(a))
    params = kernels.MatmulPackParams(
        count=batches * product.m * ceil_div(k4, 4),
        rows=product.m,
        vectors=k4,
        k=product.k,
        columns=product.k,
        row_stride=1 if transposed else product.k,
        column_stride=product.m if transposed else 1,
        batch_stride=product.m * product.k,
        out_row=row,
        out_step=step,
    )
    _pack("a4" if plain else "a", a, packed, params, encoder)
    return _Operand(packed, row, batch, step)


def _right(
    b: Tensor, product: _Product, transposed: bool, lanes: int, encoder: VulkanEncoder
) -> _Operand:
    """Return b as panels of `lanes` vec4s along the columns, packed unless rows of b will do."""
    padded_k = ceil_div(product.k, 4) * 4
    panels = ceil_div(product.n, 4 * lanes)
    row, panel, batch = lanes, padded_k * lanes, panels * padded_k * lanes
    if b.value is not None:
        packed = encoder.constant(
            b,
            f"matmul_b:{transposed}:{lanes}",
            lambda array: _pack_right(array, transposed, 4 * lanes),
        )
        return _Operand(packed, row, batch, panel=panel)
    if not transposed and product.k % 4 == 0 and product.n % 4 == 0:
        return _Operand(b, product.n // 4, product.k * product.n // 4, panel=lanes)
    batches = prod(size for size, here in zip(product.batch, product.b_batch, strict=True) if here)
    count = batches * batch
    packed = encoder.scratch(count * 4, _scratch_dtype(b))
    params = kernels.MatmulPackParams(
        count=count,
        rows=padded_k,
        vectors=panels,
        k=product.k,
        columns=product.n,
        row_stride=1 if transposed else product.n,
        column_stride=product.k if transposed else 1,
        batch_stride=product.k * product.n,
    )
    _pack("b", b, packed, params, encoder, {"WIDTH": lanes})
    return _Operand(packed, row, batch, panel=panel)


def _pack(
    operand: str,
    source: Tensor,
    packed: Tensor,
    params: kernels.MatmulPackParams,
    encoder: VulkanEncoder,
    spec: Mapping[str, int] | None = None,
) -> None:
    shader = kernels.matmul_pack(
        operand=operand,  # type: ignore[arg-type]
        storage=encoder.load_storage,
    )
    encoder.dispatch_linear(shader, [source, packed], params, params.count, spec)


def _scratch_dtype(tensor: Tensor) -> DType:
    return DType.FLOAT32 if kernel_dtype(tensor.dtype) == "f32" else DType.INT32


def _matrices(array: Array, transposed: bool) -> Array:
    """Return the right operand as [batch, rows, columns]."""
    if array.ndim == 1:
        array = array[:, None]
    array = array.reshape(prod(array.shape[:-2]), *array.shape[-2:])
    return array.swapaxes(1, 2) if transposed else array


def _pack_left(array: Array, transposed: bool, by_blocks: bool) -> Array:
    matrices = array.swapaxes(1, 2) if transposed else array
    padded = np.pad(matrices, ((0, 0), (0, 0), (0, -matrices.shape[2] % 4)))
    if not by_blocks:
        return padded
    blocks: Array = padded.reshape(*padded.shape[:2], padded.shape[2] // 4, 4).swapaxes(1, 2)
    return blocks


def _pack_right(array: Array, transposed: bool, width: int) -> Array:
    matrices = _matrices(array, transposed)
    padding = ((0, 0), (0, -matrices.shape[1] % 4), (0, -matrices.shape[2] % width))
    # Padding copies; most weights need none.
    padded = np.pad(matrices, padding) if any(map(any, padding)) else matrices
    batch, k, n = padded.shape
    panels: Array = padded.reshape(batch, k, n // width, width).swapaxes(1, 2)
    return panels


def _padded(values: Sequence[int], fill: int) -> tuple[int, ...]:
    return (*[fill] * (MAX_BATCH_AXES - len(values)), *values)


def _batch_strides(sizes: Sequence[int], present: Sequence[bool], step: int) -> tuple[int, ...]:
    """Return an operand's stride along each batch axis, outermost first, 0 where it broadcasts."""
    strides = []
    for size, here in zip(reversed(sizes), reversed(present), strict=True):
        strides.append(step if here else 0)
        step *= size if here else 1
    return _padded(tuple(reversed(strides)), 0)
