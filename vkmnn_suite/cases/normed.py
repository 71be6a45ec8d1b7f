"""Cases of products that normalise their rows: a normalisation, a product, and other readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.cpu_fallback import run_op
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation, Graph, Op
from vkmnn.ir.ops import RESIDUAL_KINDS, LayerNormAttrs, MatMulAttrs, UnaryAttrs
from vkmnn.testing.case import Case, Variant, tensor_info
from vkmnn.testing.shapes import floats, whole
from vkmnn.vulkan.gemm.coop_tiles import FRAGMENT_TILES, TILES_OF, CoopTile, product_tiles
from vkmnn.vulkan.gemm.normed import NormedCoop, NormedFragments, NormedShared
from vkmnn.vulkan.gemm.shared_tiles import Tile


def normed_case(
    shape: tuple[int, ...],
    columns: int,
    *,
    rms: bool = False,
    gain: bool = True,
    shift: bool = True,
    keeps: bool = True,
    extra: bool = True,
    mean: float = 0.5,
    number: int = 0,
) -> Case:
    """Return a normalisation with a product after it.

    Args:
        shape: the shape of x, whose last axis is normalised.
        columns: columns of the product.
        rms: the mean is not subtracted.
        gain: multiply by factors.
        shift: add summands.
        keeps: another op reads the normalised rows as well.
        extra: the product has a bias and a residual.
        mean: the mean of the numbers of a row, which deviate by 1.
        number: selects the other properties.
    """
    *rows, depth = shape
    constants: dict[str, AnyArray] = {}
    transposed = number % 2 == 1
    weights = (columns, depth) if transposed else (depth, columns)
    constants["w"] = whole(*weights, seed=1) / 8
    constants |= {"gain": floats(depth, seed=2) + 1} if gain else {}
    constants |= {"shift": floats(depth, seed=3)} if shift else {}
    feeds = {"x": floats(*rows, depth) + np.float32(mean)}
    if extra:
        constants["bias"] = whole(columns, seed=4)
        feeds["residual"] = whole(*rows, columns, seed=5)
    kind = RESIDUAL_KINDS[number % len(RESIDUAL_KINDS)]
    product = MatMulAttrs(transpose_b=transposed, activation=Activation("RELU"), residual=kind)
    factors = ["gain" if gain else "", "shift" if shift else ""]
    more = ["bias", "residual"] if extra else []
    ops = [
        Op("LayerNorm", "norm", ["x", *factors], ["normed"], LayerNormAttrs(-1, 0.25, rms)),
        Op("MatMul", "product", ["normed", "w", *more], ["out"], product),
    ]
    if keeps:
        ops.append(Op("UnaryOp", "reader", ["normed"], ["rows"], UnaryAttrs("NEG")))
    known = {**feeds, **constants}
    for op in ops:
        known[op.outputs[0]] = run_op(op, [known.get(name) for name in op.inputs])[0]
    results = ["out", "rows"] if keeps else ["out"]
    graph = Graph(
        "normed product",
        [tensor_info(name, array) for name, array in feeds.items()],
        [tensor_info(name, known[name]) for name in results],
        ops,
        constants,
    )
    return Case(graph, feeds, rtol=1e-3, atol=1e-3)


def normed_tiles(tile: CoopTile, columns: int) -> Iterator[Case]:
    """Yield cases for a tile of matrices: broken tiles and steps in every direction."""
    rows, step = tile.rows, tile.step
    cases = (
        normed_case((2, rows - 3, 2 * step + 8), 2 * columns + columns % 8),
        normed_case((rows + 1, 2 * step + 8), columns, rms=True, shift=False, number=1, mean=3),
        normed_case((1, 8), columns, gain=False, keeps=False, extra=False),
        normed_case((5, step), columns, keeps=False, number=2, mean=-7),
        # Fewer columns than a row has vectors, and more workgroups than a row has vectors.
        normed_case((rows, 8), 3 * columns, gain=False, shift=False, number=3),
    )
    kernel = NormedFragments(tile) if tile.fragments else NormedCoop(tile)
    for case in cases:
        yield replace(case, takes={"normed": kernel})


def coop_tile_of(variant: Variant) -> CoopTile:
    """Return the tile of a variant of products by cooperative matrices."""
    wanted = variant.axes["tile"], variant.axes["step"]
    tiles = chain.from_iterable((*map(product_tiles, TILES_OF), *FRAGMENT_TILES.values()))
    return next(tile for tile in tiles if (tile.name, tile.step) == wanted)


def staged_norms(tile: Tile, columns: int, *, floats: FloatElement) -> Iterator[Case]:
    """Yield cases for a tile in shared memory, which does not store the rows."""
    rows, step, far = tile.rows, tile.depth, 300.0 if floats == "f32" else 20.0
    cases = (
        normed_case((2, rows - 3, 2 * step + 4), 2 * columns, keeps=False, mean=far),
        normed_case(
            (rows + 1, 2 * step), columns, rms=True, shift=False, keeps=False, number=1, mean=3
        ),
        normed_case((1, 4), columns, gain=False, keeps=False, extra=False),
        normed_case((rows, step), columns, gain=False, keeps=False, number=2, mean=-7),
    )
    for case in cases:
        yield replace(case, takes={"normed": NormedShared(tile)})
