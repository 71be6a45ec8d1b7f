"""Networks whose plain rows between normalisations and products are quantised to a byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Op
from vkmnn.ir.ops import CodeMean, CodeSum, LayerNormAttrs, QuantizedMatMulAttrs
from vkmnn.testing.case import Case
from vkmnn.testing.shapes import whole
from vkmnn_suite.cases.coded import Arrays, chain_case

# Rows and width of products for which bytes pay: partial tiles, rows longer than registers hold.
ROWS = ((90, 260), (9, 1100))
# The same for normalisations: one vec4, rows that just fit registers, and as in products.
NORMED = ((3, 4), (5, 132), (2, 1024), *ROWS)
_LOW, _HIGH = -100.0, 155.0


def coded_rows() -> Iterator[Case]:
    """Yield quantised rows: normalised, multiplied, added to their old values, normalised again."""
    for number, (rows, width) in enumerate(ROWS):
        yield _network(rows, width, added=number == 0, decoded=False)
        yield _network(rows, width, added=number == 1, decoded=True)


def normed_rows() -> Iterator[Case]:
    """Yield rows that are normalised twice, the second time from quantised values."""
    for (rows, width), rms in product(NORMED, (False, True)):
        first = LayerNormAttrs(-1, 0.0, rms, 0.5, CodeMean(1.0, 1.0, -128.0, 127.0))
        second = LayerNormAttrs(-1, 1e-5, rms, 0.125)
        ops = [
            Op("LayerNorm", "before", ["x", "scale", "shift"], ["y"], first),
            Op("LayerNorm", "after", ["y"], ["z"], second),
        ]
        case = chain_case(ops, {"x": _signs(rows, width)}, _factors(width))
        yield replace(case, rtol=1e-5, atol=1e-5)


def _factors(width: int) -> Arrays:
    """Return factors of 1 and -1, which quantise the rows."""
    return {
        "scale": (np.arange(width) * 5 % 128).astype(np.float32),
        "shift": (np.arange(width) * 3 % 17).astype(np.float32),
    }


def _network(rows: int, width: int, *, added: bool, decoded: bool) -> Case:
    """Return a case; `decoded`: it ends with the product's floats, without a normalisation."""
    weights = whole(width, width, seed=1).astype(np.int8)
    weights.reshape(-1)[::7], weights.reshape(-1)[3::11] = 127, -128
    constants: Arrays = {
        # Every normalised number is 1 or -1: everything computed from them is exact.
        **_factors(width),
        "w": weights,
        "bias": whole(width, seed=2),
        "factor": np.resize(np.array([2.0**-10, 2.0**-9], np.float32), width),
    }
    normed = LayerNormAttrs(-1, 0.0, False, 0.5, CodeMean(1.0, 1.0, -128.0, 127.0))
    attrs = QuantizedMatMulAttrs(False, False, _LOW, _HIGH, taken=(-128.0, 127.0))
    if added:
        attrs = replace(attrs, add=CodeSum(0.5, 0.75, 1.25, -20.0, 31.0))
    if decoded:
        attrs = replace(attrs, scale=0.5)
    inputs = ["normed", "w", "bias", "normed" if added else "", "factor"]
    ops = [
        Op("LayerNorm", "before", ["x", "scale", "shift"], ["normed"], normed),
        Op("QuantizedMatMul", "product", inputs, ["y"], attrs),
    ]
    if not decoded:
        ops.append(Op("LayerNorm", "after", ["y"], ["z"], LayerNormAttrs(-1, 1e-5, False, 0.125)))
    case = chain_case(ops, {"x": _signs(rows, width)}, constants)
    return case if decoded else replace(case, rtol=1e-5, atol=1e-5)


def _signs(rows: int, width: int) -> AnyArray:
    """Return rows, one half of which is 2 and the other -2, each in a different order."""
    signs = np.resize(np.array([2, -2], np.float32), width)
    rng = np.random.default_rng(5)
    return np.stack([rng.permutation(signs) for _ in range(rows)])
