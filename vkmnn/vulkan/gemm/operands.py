"""Operands of matrix products, packed unless kernels can read them in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, DType
from vkmnn.shader_files.tiles import CoopTileSize
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.dynamic import Tiles, code_tiles
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.weights import words_of
from vkmnn.vulkan.storage import CodeElement, WeightElement, kernel_dtype

PANEL = 8
"""Adjacent vec4s of columns in the packed right operand, unless a kernel differs."""
EIGHT = 8
"""Elements of the uvec4s along k that cooperative matrix kernels read."""


def weight_element(job: ConvJob | MatMulJob, encoder: VulkanEncoder) -> WeightElement:
    """Return the element of kernels whose weights, or right operand, may be bytes."""
    return "w8" if job.int8_weights else encoder.element


def product_element(job: MatMulJob, encoder: VulkanEncoder) -> CodeElement:
    """Return the element of a product's kernels; quantised if any tensor is."""
    return "c8" if job.int8.activations is not None else weight_element(job, encoder)


def conv_element(job: ConvJob, encoder: VulkanEncoder) -> CodeElement:
    """Return the element of a convolution's kernels; quantised if any tensor is."""
    coded = [
        t for t in (job.x, job.epilogue.residual, job.y) if t is not None and t.codes is not None
    ]
    return "c8" if job.int8_weights and coded else weight_element(job, encoder)


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix operand in a kernel's form; all strides count vec4s, or uvec4s of float16.

    Attributes:
        tensor: the operand's tensor.
        row: stride from one row to the next.
        batch: stride from one matrix to the next.
        step: left: stride between groups of four along k.
        panel: right: stride from one panel to the next.
    """

    tensor: Tensor
    row: int
    batch: int
    step: int = 0
    panel: int = 0


def left_operand(job: MatMulJob, encoder: VulkanEncoder, *, by_blocks: bool = False) -> Operand:
    """Return the left operand as vec4s along k, row by row.

    Args:
        job: the product.
        encoder: records the packing.
        by_blocks: blocks of four along k, with the rows of a block adjacent.
    """
    a, problem, transposed = job.a, job.problem, job.transposed_a
    m, k = problem.m, problem.k
    k4 = ceil_div(k, 4)
    batch = m * k4
    row, step = (1, m) if by_blocks else (k4, 1)
    matrices = problem.matrices[0]
    if a.value is not None:
        # A batch that shares b counts as one matrix with more rows.
        sizes = (k, m) if transposed else (m, k)
        packed = encoder.constant(
            a,
            f"matmul_a:{transposed}:{by_blocks}:{m}",
            lambda array: _pack_left(array.reshape(matrices, *sizes), transposed, by_blocks),
        )
        return Operand(packed, row, batch, step)
    plain = not transposed and k % 4 == 0
    if plain and not by_blocks:
        return Operand(a, row, batch, step)
    packed = encoder.scratch(matrices * batch * 4, _scratch_dtype(a))
    params = kernels.MatmulPackParams(
        count=matrices * m * ceil_div(k4, 4),
        rows=m,
        vectors=k4,
        k=k,
        columns=k,
        row_stride=1 if transposed else k,
        column_stride=m if transposed else 1,
        batch_stride=m * k,
        out_row=row,
        out_step=step,
    )
    _pack("a4" if plain else "a", a, packed, params, encoder)
    return Operand(packed, row, batch, step)


def right_operand(job: MatMulJob, encoder: VulkanEncoder, panel: int) -> Operand:
    """Return the right operand in panels of `panel` vec4s along the columns, or its plain rows.

    A constant that multiplies normalised rows is scaled by their gain.
    """
    b, problem, transposed, shift = job.b, job.problem, job.transposed_b, job.int8.weights
    gain = job.norms.gain if job.norms else None
    k, n = problem.k, problem.n
    padded_k = ceil_div(k, 4) * 4
    panels = ceil_div(n, 4 * panel)
    stride, batch = padded_k * panel, panels * padded_k * panel
    if b.value is not None and gain is not None:  # not in files: see `rows_of`
        assert gain.value is not None
        factors: Array = gain.value.reshape((1, k) if transposed else (k, 1)).astype(np.float32)
        packed = encoder.constant(
            b,
            f"matmul_b:{transposed}:{panel}:{gain.name}",
            lambda array: pack_right(np.multiply(array, factors), transposed, 4 * panel),
        )
        return Operand(packed, panel, batch, panel=stride)
    if b.value is not None:
        packed = encoder.constant(
            b,
            f"matmul_b:{transposed}:{panel}:{shift}",
            lambda array: _right_constant(array, transposed, 4 * panel, shift),
            words=problem.matrices[1] * batch * (4 if shift is None else 1),
        )
        return Operand(packed, panel, batch, panel=stride)
    if not transposed and k % 4 == 0 and n % 4 == 0:
        return Operand(b, n // 4, k * n // 4, panel=panel)
    count = problem.matrices[1] * batch
    packed = encoder.scratch(count * 4, _scratch_dtype(b))
    params = kernels.MatmulPackParams(
        count=count,
        rows=padded_k,
        vectors=panels,
        k=k,
        columns=n,
        row_stride=1 if transposed else n,
        column_stride=k if transposed else 1,
        batch_stride=k * n,
    )
    _pack("b", b, packed, params, encoder, {"WIDTH": panel})
    return Operand(packed, panel, batch, panel=stride)


def left_tiles(job: MatMulJob, rows: int, lanes: int, encoder: VulkanEncoder) -> Operand:
    """Return the quantised left operand as words of four along k, in tiles of `rows` rows.

    Strides count ivec4s, whose words belong to rows `lanes` apart; `row` is the stride between
    tiles.
    """
    a, problem = job.a, job.problem
    assert job.int8.activations is not None
    vectors = ceil_div(rows, 4 * lanes)
    k4, step = problem.k // 4, vectors * lanes
    count = ceil_div(problem.m, rows) * k4 * step
    spec = {"WIDTH": vectors, "ROWS": rows, "LANES": lanes}
    if job.epilogue.dynamic:
        coded = code_tiles(a, job.epilogue.dynamic, Tiles(count, problem.m, k4, spec), encoder)
        return Operand(coded, k4 * step, 0, step)
    packed = encoder.scratch(4 * count, DType.INT32)
    params = kernels.MatmulPackParams(
        count=count,
        rows=problem.m,
        vectors=k4,
        k=problem.k,
        columns=problem.k,
        row_stride=problem.k,
        column_stride=1,
        batch_stride=0,
    )
    shader = kernels.matmul_pack(operand="tile", element="c8", load="texel")
    spec |= {"Y_SHIFT": job.int8.activations, "X_CODES": a.codes is not None}
    encoder.dispatch_linear(shader, [a, packed], params, count, spec)
    return Operand(packed, k4 * step, 0, step)


def right_fours(job: MatMulJob, panel: int, encoder: VulkanEncoder) -> Operand:
    """Return a constant right operand of bytes as ivec4s: words of four columns, four along k.

    Strides count ivec4s: a panel has `panel` for every four along k.
    """
    problem, shift = job.problem, job.int8.weights
    assert shift is not None
    k4, panels = ceil_div(problem.k, 4), ceil_div(problem.n, 4 * panel)
    batch = panels * k4 * panel

    def words(array: Array) -> Array:
        packed = pack_right(array, job.transposed_b, 4 * panel)
        fours = packed.reshape(*packed.shape[:2], k4, 4, panel, 4).swapaxes(-2, -3)
        return words_of(fours, shift)

    packed = encoder.constant(
        job.b,
        f"matmul_fours:{job.transposed_b}:{panel}:{shift}",
        words,
        words=problem.matrices[1] * batch * 4,
    )
    return Operand(packed, panel, batch, panel=k4 * panel)


def right_words(job: MatMulJob, encoder: VulkanEncoder) -> Operand:
    """Return a constant right operand of bytes as words of four along k, panel by panel.

    Strides count ivec4s with the words of four columns: a panel has eight for every four along k.
    """
    problem, shift = job.problem, job.int8.weights
    assert shift is not None
    k4, panels = ceil_div(problem.k, 4), ceil_div(problem.n, 4 * PANEL)
    batch = panels * k4 * PANEL

    def words(array: Array) -> Array:
        packed = pack_right(array, job.transposed_b, 4 * PANEL)
        fours = packed.reshape(*packed.shape[:2], k4, 4, 4 * PANEL).swapaxes(-1, -2)
        return words_of(fours, shift)

    packed = encoder.constant(
        job.b,
        f"matmul_dot:{job.transposed_b}:{shift}",
        words,
        words=problem.matrices[1] * batch * 4,
    )
    return Operand(packed, PANEL, batch, panel=k4 * PANEL)


def lies_by_rows(tensor: Tensor, rows: int, k: int, across: bool) -> bool:
    """Return whether `rows_of` needs no dispatch; arguments as there."""
    return tensor.value is not None or (k % EIGHT == 0 and not (across and rows > 1))


def rows_of(
    tensor: Tensor,
    rows: int,
    k: int,
    across: bool,
    matrices: int,
    encoder: VulkanEncoder,
    gain: Tensor | None = None,
) -> Operand:
    """Return matrices as rows along k of whole float16 uvec4s, packed unless already in this form.

    Args:
        tensor: the matrices.
        rows: rows per matrix, as the kernel sees it.
        k: elements per row.
        across: whether elements adjacent in k are `rows` apart rather than contiguous.
        matrices: number of matrices in the tensor.
        encoder: records the packing.
        gain: `k` constant numbers that a constant is multiplied by.
    """
    k8 = ceil_div(k, EIGHT)

    def pack(array: Array) -> Array:
        ordered = _rows_along_k(array, (matrices, rows, k), across, gain)
        return np.pad(ordered, ((0, 0), (0, 0), (0, -k % EIGHT))) if k % EIGHT else ordered

    if tensor.value is not None:
        key = f"coop:{rows}:{k}:{across}"
        if gain is None:
            words = matrices * rows * k8 * EIGHT
            packed = encoder.constant(tensor, key, pack, words=words)
        else:  # not in files: the key would depend on the gain
            packed = encoder.constant(tensor, f"{key}:{gain.name}", pack)
    elif lies_by_rows(tensor, rows, k, across):
        packed = tensor
    else:
        packed = encoder.scratch(matrices * rows * k8 * EIGHT)
        vectors = k8 * EIGHT // 4
        params = kernels.MatmulPackParams(
            count=matrices * rows * ceil_div(vectors, 4),
            rows=rows,
            vectors=vectors,
            k=k,
            columns=k,
            row_stride=1 if across else k,
            column_stride=rows if across else 1,
            batch_stride=rows * k,
            out_row=vectors,
            out_step=1,
        )
        _pack("a", tensor, packed, params, encoder)
    return Operand(packed, k8, rows * k8)


def _rows_along_k(
    array: Array, shape: tuple[int, int, int], across: bool, gain: Tensor | None
) -> Array:
    """Return matrices of `shape` (matrices, rows, k), each column times its gain."""
    matrices, rows, k = shape
    plain = array.reshape(matrices, *((k, rows) if across else (rows, k)))
    ordered = plain.swapaxes(1, 2) if across else plain
    if gain is None:
        return ordered
    assert gain.value is not None
    scaled: Array = ordered * gain.value.reshape(k).astype(np.float32)
    return scaled


def fragments_of(job: MatMulJob, tile: CoopTileSize, encoder: VulkanEncoder) -> Operand:
    """Return a constant right operand as [batch][N / n][K / k][n][k] of a device's matrices.

    K is padded to whole steps of the tile, N to whole matrices, with zeros. `row` is the stride
    between columns of matrices, in uvec4s of float16.
    """
    problem, across, matrix = job.problem, not job.transposed_b, tile.matrix
    n, k, matrices = problem.n, problem.k, problem.matrices[1]
    gain = job.norms.gain if job.norms else None
    lines, depth = ceil_div(n, matrix.n) * matrix.n, ceil_div(k, tile.step) * tile.step

    def pack(array: Array) -> Array:
        rows = _rows_along_k(array, (matrices, n, k), across, gain)
        if (lines, depth) != (n, k):
            rows = _padded(rows, ((0, 0), (0, lines - n), (0, depth - k)))
        blocks = rows.reshape(matrices, lines // matrix.n, matrix.n, depth // matrix.k, matrix.k)
        # A view: the copy to device memory reorders the elements.
        ordered: Array = blocks.swapaxes(2, 3)
        return ordered

    key = f"fragments:{matrix.n}x{matrix.k}:{lines}:{depth}:{across}"
    if gain is None:
        packed = encoder.constant(job.b, key, pack, words=matrices * lines * depth)
    else:  # not in files: see `rows_of`
        packed = encoder.constant(job.b, f"{key}:{gain.name}", pack)
    return Operand(packed, matrix.n * depth // EIGHT, lines * depth // EIGHT)


def _pack(
    operand: kernels.MatmulPackOperand,
    source: Tensor,
    packed: Tensor,
    params: kernels.MatmulPackParams,
    encoder: VulkanEncoder,
    spec: Mapping[str, int] | None = None,
) -> None:
    shader = kernels.matmul_pack(operand=operand, element=encoder.element, load=encoder.load)
    encoder.dispatch_linear(shader, [source, packed], params, params.count, spec)


def _scratch_dtype(tensor: Tensor) -> DType:
    return DType.FLOAT32 if kernel_dtype(tensor.dtype) == "f32" else DType.INT32


def right_matrices(array: Array, transposed: bool) -> Array:
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


def _right_constant(array: Array, transposed: bool, width: int, shift: int | None) -> Array:
    packed = pack_right(array, transposed, width)
    return packed if shift is None else words_of(packed, shift)


def _padded(matrices: Array, padding: Sequence[tuple[int, int]]) -> Array:
    """Return matrices padded with zeros in memory order, which copies whole rows."""
    if matrices.flags.c_contiguous:
        return np.pad(matrices, padding)
    rows = np.pad(matrices.swapaxes(1, 2), [padding[axis] for axis in (0, 2, 1)])
    turned: Array = rows.swapaxes(1, 2)
    return turned


def pack_right(array: Array, transposed: bool, width: int) -> Array:
    """Return a right operand as [batch, panels, k, columns of a panel], padded with zeros."""
    matrices = right_matrices(array, transposed)
    padding = ((0, 0), (0, -matrices.shape[1] % 4), (0, -matrices.shape[2] % width))
    padded = _padded(matrices, padding) if any(map(any, padding)) else matrices
    batch, k, n = padded.shape
    panels: Array = padded.reshape(batch, k, n // width, width).swapaxes(1, 2)
    return panels
