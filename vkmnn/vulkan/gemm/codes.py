"""Packed weights in kernel order, 32 columns by 32 values at a time (`codes.glsl.j2`)."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.float_range import to_element
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, DType
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div

PANEL = 32
"""Columns per panel."""
CHUNK = 32
"""Values of a column per chunk."""
HALF = 16
"""Values of a block if a chunk holds two."""
LANES = 8
DIRECT_LANES: Literal[64] = 64
"""Invocations of a workgroup that stages nothing in shared memory."""
Numbers = Literal["halves", "floats"]
"""How float16 scales are kept on the device."""
FLOAT_BITS = {DType.FLOAT16: 16, DType.FLOAT32: 32}
"""Bits of scales and of zero points that are floats."""
_WORD = np.dtype("<u4")


@dataclass(frozen=True, slots=True)
class CodeForm:
    """Format of packed weights for kernels.

    Attributes:
        bits: per value; 16 and 32 are floats.
        block: values that share a scale.
        depth: values per column.
        columns: number of columns per expert.
        experts: number of consecutive matrices, each with its own panels.
    """

    bits: int
    block: int
    depth: int
    columns: int
    experts: int = field(default=1, repr=False)

    @property
    def key(self) -> str:
        """The name of the form in model files."""
        return f"{self!r}:{self.experts}" if self.experts > 1 else f"{self!r}"

    @property
    def half(self) -> bool:
        """Whether a chunk holds two blocks."""
        return self.block == HALF

    @property
    def chunks(self) -> int:
        """Chunks that share a scale; 1 if a chunk holds two blocks."""
        return max(1, self.block // CHUNK)

    @property
    def blocks(self) -> int:
        """Iterations of the loop over blocks."""
        return ceil_div(self.depth, self.chunks * CHUNK)

    @property
    def panels(self) -> int:
        """Panels of columns per expert, rounded up."""
        return ceil_div(self.columns, PANEL)

    @property
    def vectors(self) -> int:
        """Groups of four words that hold the values of all panels."""
        return self.panels * self.blocks * self.chunks * self.bits * PANEL // 4

    @property
    def fits(self) -> bool:
        """Whether kernels support this block size."""
        return self.half or self.block % CHUNK == 0


@dataclass(frozen=True, slots=True)
class PackedCodes:
    """Weights on the device; the values buffer stands in for absent scales or zeros."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    spec: dict[str, int | bool]


def bits_per_weight(form: CodeForm, scales: Tensor, zeros: Tensor | None) -> float:
    """Return the bits of a weight in memory, with its share of scales and zero points."""
    numbers = FLOAT_BITS[scales.dtype]
    if zeros is not None:
        numbers += FLOAT_BITS.get(zeros.dtype, form.bits)
    return form.bits + numbers / form.block


def pack_codes(
    form: CodeForm, codes: Tensor, scales: Tensor, zeros: Tensor | None, encoder: VulkanEncoder
) -> PackedCodes:
    """Return weights in kernel order, shared by tables and products.

    Args:
        form: sizes and format.
        codes: constant uint8 [columns, blocks, bytes].
        scales: constant [columns, blocks].
        zeros: constant uint8 [columns, blocks], or None.
        encoder: uploads the constants.
    """
    key = f"codes:{form.key}"
    packed = _packed(form, codes, key, encoder)
    floats = zeros is not None and zeros.dtype is not DType.UINT8
    spec: dict[str, int | bool] = {"HALF": form.half}
    if scales.dtype is DType.FLOAT16 and _keeps_halves(form, zeros, encoder):
        numbers = _half_numbers(form, scales, zeros, encoder)
        spec |= {"HAS_ZEROS": zeros is not None and not floats, "NUMBERS": 3 if floats else 2}
        return PackedCodes(packed, packed, numbers, spec)
    factors = encoder.constant(scales, key, lambda array: _scales(array, form), full=True)
    offsets = packed
    if zeros is not None:
        read = _float_zeros if floats else _zeros
        offsets = encoder.constant(zeros, key, lambda array: read(array, form), full=True)
    spec |= {"HAS_ZEROS": zeros is not None and not floats, "NUMBERS": 1 if floats else 0}
    return PackedCodes(packed, factors, offsets, spec)


def _keeps_halves(form: CodeForm, zeros: Tensor | None, encoder: VulkanEncoder) -> bool:
    """Return whether float16 scales stay so in memory.

    Measured on llvmpipe, one row: 3 to 11 % slower than with float32, unless there are many.
    """
    if zeros.dtype is not DType.UINT8 if zeros is not None else form.half:
        return True
    ways: tuple[Numbers, ...] = "halves", "floats"
    return encoder.choose("scales", form, ways if is_gpu(encoder.info) else ways[::-1]) == "halves"


def pack_floats(form: CodeForm, weights: Tensor, encoder: VulkanEncoder) -> PackedCodes:
    """Return float weights [experts, columns, depth] in kernel order."""
    key = f"floats:{form.key}"
    packed = _packed(form, weights, key, encoder)
    return PackedCodes(packed, packed, packed, {})


def _packed(form: CodeForm, weights: Tensor, key: str, encoder: VulkanEncoder) -> Tensor:
    chunks = form.experts * form.panels * form.blocks * form.chunks
    return encoder.constant(
        weights,
        key,
        lambda array: _codes(array, form),
        full=True,
        words=chunks * PANEL * CHUNK * form.bits // 32,
    )


def _half_numbers(
    form: CodeForm, scales: Tensor, zeros: Tensor | None, encoder: VulkanEncoder
) -> Tensor:
    """Return words of two float16 each: scales of two columns, or scale and zero of one.

    Zero points that are quantised values follow the scales of their panel.
    """
    key = f"halves:{form.key}"
    if zeros is None:
        return encoder.constant(scales, key, lambda array: _pairs(array, form), full=True)
    assert zeros.value is not None
    offsets = zeros.value

    def joined(array: Array) -> Array:
        if offsets.dtype == np.uint8:
            parts = [_pairs(array, form), _zeros(offsets, form)]
            panels = form.experts * form.panels
            return np.concatenate([part.reshape(panels, -1) for part in parts], axis=1)
        both = [_by_lane(one.astype(np.float16), form) for one in (array, offsets)]
        return np.stack(both, -1).view(_WORD).view(np.int32)

    name = f"{key}:{zeros.name}"
    return encoder.constant(scales, name, joined, full=True, others=(offsets,))


def _padded(array: Array, form: CodeForm, width: int) -> Array:
    """Return rows [panels · 32, width], padded to whole panels."""
    rows = array.reshape(form.experts, form.columns, -1)
    whole = form.panels * PANEL
    if rows.shape[1:] != (whole, width):
        filled = np.zeros((form.experts, whole, width), array.dtype)
        filled[:, : form.columns, : rows.shape[2]] = rows
        rows = filled
    return rows.reshape(-1, width)


def _codes(array: Array, form: CodeForm) -> Array:
    """Return [panel][chunk][uvec4][4][8 lanes] uvec4s."""
    if array.dtype.kind == "f":
        array = (
            to_element(array, "f16") if form.bits == 16 else array.astype(np.float32, copy=False)
        )
        array = np.ascontiguousarray(array).view(np.uint8)
    row_bytes = form.blocks * form.chunks * CHUNK * form.bits // 8
    plain = _padded(array, form, row_bytes)
    # Sixteen bytes at a time, whatever their type: copying single bytes takes three times as long.
    sixteens = np.ascontiguousarray(plain).view(np.complex128)
    split = sixteens.reshape(-1, LANES, 4, row_bytes // (4 * form.bits), form.bits // 4)
    moved: Array = np.ascontiguousarray(split.transpose(0, 3, 4, 2, 1))
    return moved.view(_WORD).view(np.int32)


def _by_lane(array: Array, form: CodeForm) -> Array:
    """Return values of [columns, blocks] as [panel][block][8 lanes][4]."""
    blocks = form.blocks * (2 if form.half else 1)
    plain = _padded(array, form, blocks)
    values: Array = plain.reshape(-1, LANES, 4, blocks).transpose(0, 3, 1, 2)
    return values


def _scales(array: Array, form: CodeForm) -> Array:
    return np.ascontiguousarray(_by_lane(array, form), np.float32)


def _pairs(array: Array, form: CodeForm) -> Array:
    return np.ascontiguousarray(_by_lane(array, form)).view(_WORD).view(np.int32)


def _float_zeros(array: Array, form: CodeForm) -> Array:
    return np.ascontiguousarray(_by_lane(array, form), np.float32).view(np.int32)


def _zeros(array: Array, form: CodeForm) -> Array:
    """Return one word for a lane's four columns; for two blocks if zeros have 4 bits."""
    values = _by_lane(array, form).astype(np.uint32)
    shifts = np.arange(4, dtype=np.uint32) * form.bits
    words = np.bitwise_or.reduce(values << shifts, axis=-1)
    if form.bits == 4:
        if words.shape[1] % 2:
            words = np.pad(words, ((0, 0), (0, 1), (0, 0)))
        words = words[:, ::2] | words[:, 1::2] << np.uint32(16)
    return np.ascontiguousarray(words, np.uint32).view(np.int32)
