"""Cases of the kernels that read weights quantised to few bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation
from vkmnn.ir.ops import RESIDUAL_KINDS, GatherNBitsAttrs, MatMulNBitsAttrs
from vkmnn.testing.case import Case, Variant, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import whole
from vkmnn.vulkan.gemm.coded import CodedCoop
from vkmnn.vulkan.gemm.split import used_parts
from vkmnn_suite.cases.normed import coop_tile_of

Shape = tuple[int, ...]

# Rows (a shape), depth, columns and block: single numbers, blocks of half a chunk in odd numbers,
# tails of K aligned with vec4s and not, several panels, several blocks, rows longer than kernels
# hold in shared memory, and longer than invocations process at a time.
_PRODUCTS: tuple[tuple[Shape, int, int, int], ...] = (
    ((1,), 64, 33, 32),
    ((2, 5), 100, 37, 16),
    ((1,), 1, 1, 32),
    ((9,), 131, 70, 64),
    ((10,), 69, 33, 32),
    ((), 96, 32, 96),
    ((3, 11), 256, 41, 128),
    ((0,), 32, 8, 32),
    ((1,), 4196, 37, 64),
    ((1,), 2204, 37, 16),
    ((2,), 80, 35, 16),
    ((3,), 72, 33, 16),
)
_CLAMP = Activation("CLIP", -40.0, 50.0)


def _weights(
    columns: int, depth: int, block: int, bits: int, *, zeros: bool
) -> tuple[AnyArray, AnyArray, AnyArray | None]:
    """Return quantised values, scales (powers of two) and zeros: small products stay exact."""
    rng = np.random.default_rng(columns * depth + bits)
    blocks = -(-depth // block)
    codes = rng.integers(0, 256, (columns, blocks, block * bits // 8), dtype=np.uint8)
    scales = np.float32(2.0) ** rng.integers(-2, 2, (columns, blocks))
    middle = 1 << bits - 1
    offsets = rng.integers(middle - 5, middle + 5, (columns, blocks)).astype(np.uint8)
    return codes, scales.astype(np.float32), offsets if zeros else None


def products(bits: int) -> Iterator[Case]:
    """Yield products of small whole numbers, which are exact, with all that an epilogue can do."""
    for number, (rows, depth, columns, block) in enumerate(_PRODUCTS):
        codes, scales, zeros = _weights(columns, depth, block, bits, zeros=number % 2 == 1)
        x = whole(*rows, depth)
        y = (*rows, columns)
        added: list[AnyArray | None] = [None, None]
        if number % 3 != 2:
            added = [whole(columns, seed=2), whole(*y, seed=3)]
        attrs = MatMulNBitsAttrs(
            bits,
            block,
            depth,
            columns,
            _CLAMP if number % 2 else Activation(),
            RESIDUAL_KINDS[number % len(RESIDUAL_KINDS)],
        )
        inputs = [x, codes, *added, scales, zeros]
        yield op_case("MatMulNBits", attrs, inputs, constant=(1, 2, 4, 5), rtol=1e-5, atol=1e-4)
    smooth = MatMulNBitsAttrs(bits, 32, 40, 33, Activation("SILU"))
    codes, scales, zeros = _weights(33, 40, 32, bits, zeros=True)
    inputs = [whole(5, 40) / 8, codes, None, None, scales, zeros]
    yield op_case("MatMulNBits", smooth, inputs, constant=(1, 4, 5), rtol=1e-4, atol=1e-3)
    yield from _normed_and_gated(bits)


# Rows, depth, columns, block, and whether rows are normalised and columns gated: two columns only,
# whole panels, a broken one, a depth that is not whole vec4s.
_FUSED: tuple[tuple[Shape, int, int, int, bool, bool], ...] = (
    ((1,), 64, 4, 32, True, True),
    ((2, 3), 98, 64, 16, True, False),
    ((9,), 131, 76, 64, False, True),
    ((2, 5), 96, 76, 32, False, True),
    ((1,), 256, 132, 64, True, True),
    ((0,), 32, 8, 32, True, True),
    ((1,), 2310, 40, 32, True, True),
)


def _normed_and_gated(bits: int) -> Iterator[Case]:
    """Yield products of normalised rows, and of gates with the values they gate."""
    for number, (rows, depth, columns, block, normed, gated) in enumerate(_FUSED):
        codes, scales, zeros = _weights(columns, depth, block, bits, zeros=number % 2 == 1)
        scales = scales * np.float32(2.0 ** (4 - bits))  # weights as large as those of 4 bits
        bias = whole(columns, seed=2) if number % 2 else None
        gain = whole(depth, seed=4, low=1, high=4) / 4 if normed else None
        activation = Activation("SILU") if gated else Activation()
        attrs = MatMulNBitsAttrs(
            bits, block, depth, columns, activation, epsilon=0.25 * normed, gated=gated
        )
        x = whole(*rows, depth) / 8
        inputs = [x, codes, bias, None, scales, zeros, gain]
        yield op_case("MatMulNBits", attrs, inputs, constant=(1, 4, 5, 6), rtol=1e-4, atol=1e-3)


_HALVES = {"scales": "halves"}
"""What keeps float16 scales so on every device."""

# How scales and zeros are stored: float32 with arbitrary float zeros, and float16 with or without
# such zeros.
_NUMBERS = (
    (np.float32, True),
    (np.float16, True),
    (np.float16, False),
)


def _with_numbers(case: Sequence[AnyArray | None], half: type, floats: bool) -> list[Any]:
    """Return quantised values, scales of a type, and zeros that are not quantised values."""
    codes, scales, zeros = case
    assert codes is not None
    assert scales is not None
    rng = np.random.default_rng(scales.size)
    if floats:
        zeros = (rng.integers(-50, 50, scales.shape) / 4).astype(half)
    return [codes, scales.astype(half), zeros if floats else None]


def _float_numbers(bits: int) -> Iterator[Case]:
    """Yield products whose zeros are floats, and whose scales are float16."""
    shapes = ((1,), 64, 33, 32), ((2, 5), 100, 37, 16), ((9,), 131, 70, 64), ((1,), 2204, 37, 16)
    for (rows, depth, columns, block), (half, floats) in product(shapes, _NUMBERS):
        plain = _weights(columns, depth, block, bits, zeros=False)
        codes, scales, zeros = _with_numbers(plain, half, floats)
        attrs = MatMulNBitsAttrs(bits, block, depth, columns)
        if half is np.float16 and not floats and len(rows) == 1:
            zeros = _weights(columns, depth, block, bits, zeros=True)[2]
        inputs = [whole(*rows, depth) / 8, codes, None, None, scales, zeros]
        case = op_case("MatMulNBits", attrs, inputs, constant=(1, 4, 5), rtol=1e-5, atol=1e-3)
        yield replace(case, takes=_HALVES)


@shader_cases("matmul_codes")
@shader_cases("matmul_codes_row")
@shader_cases("matmul_codes_dot")
def matmul_codes(variant: Variant) -> Iterator[Case]:
    """Broken panels and chunks, blocks of one and two chunks and of half a one, epilogues."""
    bits = int(variant.axes["bits"])
    yield from products(bits)
    yield from _float_numbers(bits)


@dataclass(frozen=True)
class _Coded:
    """A product; of whole numbers, and so exact, unless it is `normed` or `gated`.

    Args:
        rows: of the left operand, a shape.
        depth: elements of a row.
        columns: of the weights.
        block: weights that share a scale.
        zeros: "whole" or "floats"; "": none.
        half: scales, and zero points that are floats, are float16.
        added: with a bias and, unless `gated`, a residual.
        normed: rows are normalised.
        gated: columns gate others.
    """

    rows: Shape
    depth: int
    columns: int
    block: int = 32
    zeros: str = ""
    half: bool = False
    added: bool = False
    normed: bool = False
    gated: bool = False

    def case(self, bits: int) -> Case:
        """Return the product with weights of so many bits."""
        floats = self.zeros == "floats"
        weights = self.columns, self.depth, self.block, bits
        codes, scales, zeros = _weights(*weights, zeros=self.zeros == "whole")
        scales = scales * np.float32(2.0 ** (4 - bits))  # weights as large as those of 4 bits
        if self.half or floats:
            dtype = np.float16 if self.half else np.float32
            codes, scales, other = _with_numbers((codes, scales, None), dtype, floats)
            zeros = other if floats else zeros
        bias = whole(self.columns, seed=2) if self.added else None
        extra = self.added and not self.gated
        residual = whole(*self.rows, self.columns, seed=3) if extra else None
        gain = whole(self.depth, seed=4, low=1, high=4) / 4 if self.normed else None
        activation = Activation("SILU") if self.gated else _CLAMP if extra else Activation()
        attrs = MatMulNBitsAttrs(
            bits,
            self.block,
            self.depth,
            self.columns,
            activation,
            epsilon=0.25 * self.normed,
            gated=self.gated,
        )
        inputs = [whole(*self.rows, self.depth) / 4, codes, bias, residual, scales, zeros, gain]
        rtol, atol = (1e-3, 1e-2) if self.normed or self.gated else (0.0, 1e-4)
        constant = 1, 4, 5, 6
        return op_case("MatMulNBits", attrs, inputs, constant=constant, rtol=rtol, atol=atol)


def coded_tiles(variant: Variant) -> Iterator[Case]:
    """Yield products for a tile of matrices: broken tiles, steps, panels and blocks."""
    tile, bits = coop_tile_of(variant), int(variant.axes["bits"])
    rows, n, step = tile.rows, tile.columns + 4, tile.step
    split = variant.axes["split"] == 1
    long = (6 if split else 3) * step - 8
    cases = [
        _Coded((rows + 1,), long, n, half=True, zeros="whole", added=True),
        _Coded((2, rows - 3), long + 5, 2 * n, 16, zeros="whole"),
        _Coded((rows,), long - 40, n, 96, "floats", half=True, normed=True, gated=True),
    ]
    if not split:
        cases += [
            _Coded((1,), 8, 4, zeros="whole", gated=True, added=True),
            _Coded((0,), 8, 8),
            _Coded((5,), step, n, 64, "floats"),
            _Coded((3,), step + 11, n, 16, half=True, normed=True),
            _Coded((2,), step, 8, zeros="whole", normed=True, added=True),
        ]
    for each in cases:
        parts = used_parts(tile.steps(each.depth), 3) if split else 1
        kernel = CodedCoop(tile, parts, each.normed and not split)
        yield replace(each.case(bits), takes={"codes": kernel, **_HALVES})


_TABLES: tuple[tuple[int, int, int, Shape], ...] = (
    (5, 64, 32, (3,)),
    (1, 1, 32, ()),
    (37, 100, 16, (2, 3)),
    (70, 131, 64, (11,)),
    (33, 40, 128, (0, 2)),
)


def tables(bits: int) -> Iterator[Case]:
    """Yield rows of tables: negative indices, and some that are out of range."""
    for number, (rows, depth, block, shape) in enumerate(_TABLES):
        codes, scales, zeros = _weights(rows, depth, block, bits, zeros=number % 2 == 1)
        rng = np.random.default_rng(number)
        index = np.asarray(rng.integers(-rows - 1, rows + 1, shape), np.int64)
        attrs = GatherNBitsAttrs(bits, block, depth, rows)
        inputs = [codes, index, scales, zeros]
        yield op_case("GatherNBits", attrs, inputs, constant=(0, 2, 3), rtol=0, atol=0)
        half, floats = _NUMBERS[number % len(_NUMBERS)]
        codes, scales, zeros = _with_numbers((codes, scales, None), half, floats)
        wide = replace(attrs, wide=True)
        inputs = [codes, index, scales, zeros]
        case = op_case("GatherNBits", wide, inputs, constant=(0, 2, 3), rtol=0, atol=0)
        yield replace(case, takes=_HALVES)


@shader_cases("gate_columns")
def gate_columns(variant: Variant) -> Iterator[Case]:
    """Products whose weights are written out first."""
    return _normed_and_gated(4)


@shader_cases("unpack_codes")
def unpack_codes(variant: Variant) -> Iterator[Case]:
    """Rows of a table, or the whole matrix of a product."""
    bits = int(variant.axes["bits"])
    if variant.axes["form"] == "rows":
        return tables(bits)
    return chain(products(bits), _float_numbers(bits))


@op_cases
def products_of_codes() -> Iterator[Case]:
    """Long rows, many rows, a wide matrix: the kernels that the rules choose for them."""
    for bits, (rows, depth, columns) in product(
        (4, 8), ((1, 2048, 65), (70, 96, 131), (4, 32, 2000))
    ):
        codes, scales, zeros = _weights(columns, depth, 32, bits, zeros=bits == 8)
        attrs = MatMulNBitsAttrs(bits, 32, depth, columns)
        inputs = [whole(rows, depth), codes, None, None, scales, zeros]
        yield op_case("MatMulNBits", attrs, inputs, constant=(1, 4, 5), rtol=1e-5, atol=1e-2)
