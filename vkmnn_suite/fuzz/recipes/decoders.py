"""Parts of a decoder's layer: rows that are normalised for products, and columns that gate."""

from __future__ import annotations

import numpy as np

from vkmnn_suite.fuzz.recipes.quantized import SCALES
from vkmnn_suite.fuzz.recipes.table import pattern
from vkmnn_suite.fuzz.schemas import Skip
from vkmnn_suite.fuzz.sketch import MICROSOFT, Sketch, Value
from vkmnn_suite.fuzz.values import FINITE

_BLOCK = 32


def _fixed(s: Sketch, shape: list[int]) -> Value:
    """Return a weight that no run changes: only these are joined and scaled."""
    return s.source(s.weight("float32", shape, FINITE).array, None, 1.0)


def _normed(s: Sketch, x: Value) -> Value:
    """Normalise rows: by the root of their mean square, or without their mean."""
    scale = _fixed(s, [x.shape[-1]])
    if s.since(17) and s.chance(0.4):
        bias = _fixed(s, [x.shape[-1]]) if s.chance(0.5) else None
        return s.one("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-3)
    return s.one("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-3)


def _product(s: Sketch, x: Value, columns: int, bits: int, biased: bool) -> Value:
    """Multiply by a matrix of floats, or of values quantised to `bits` bits."""
    depth = x.shape[-1]
    if bits == 32:
        y = s.one("MatMul", x, _fixed(s, [depth, columns]))
        return s.one("Add", y, _fixed(s, [columns])) if biased else y
    blocks = -(-depth // _BLOCK)
    drawn = s.draws.integers(0, 256, (columns, blocks, _BLOCK * bits // 8), dtype=np.uint8)
    scales = s.source(s.weight("float32", [columns, blocks], SCALES).array, None, 1.0)
    bias = _fixed(s, [columns]) if biased else None
    codes = s.source(drawn, None, 1.0)
    return s.one("MatMulNBits", x, codes, scales, None, None, bias, domain=MICROSOFT,
                 K=depth, N=columns, bits=bits, block_size=_BLOCK)  # fmt: skip


def _few_rows(s: Sketch) -> Value:
    x = s.pick("float32", min_rank=2, max_rank=3, spread=FINITE)
    if 0 in x.shape:
        raise Skip
    return x


@pattern
def gated_product(s: Sketch) -> None:
    """A feed-forward net's first half: rows normalised, act(gate) · up, at times with biases."""
    x = _few_rows(s)
    rows = _normed(s, x) if s.chance(0.7) else x
    columns = 2 * s.size(17) - (1 if s.chance(0.1) else 0)
    bits, biased = s.choose(32, 32, 4, 8), s.chance(0.3)
    gate, up = (_product(s, rows, columns, bits, biased) for _ in range(2))
    act = s.one("Mul", gate, s.one("Sigmoid", gate)) if s.chance(0.7) else s.one("Relu", gate)
    s.one("Mul", *s.rng.sample([act, up], 2))


@pattern
def normed_product(s: Sketch) -> None:
    """Rows normalised for one product or two, with an addition before or after."""
    x = _few_rows(s)
    rows = _normed(s, x)
    bits = s.choose(32, 32, 4, 8)
    y = _product(s, rows, x.shape[-1], bits, s.chance(0.4))
    if s.chance(0.5):
        s.one("Add", x, y)
    if s.chance(0.3):
        _product(s, rows, s.size(33), bits, False)
