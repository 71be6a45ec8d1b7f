"""Fourier transforms, weights of the mel scale, blocks of images."""

from __future__ import annotations

import numpy as np

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.sketch import Sketch
from vkmnn_suite.fuzz.values import FINITE, UNIT


@recipe("DFT")
def _dft(s: Sketch, op: str) -> None:
    length, parts = s.size(23), s.choose(1, 2)
    shape = [*s.shape(min_rank=1, max_rank=2), length, parts]
    axis = len(shape) - 2
    x = s.pick("float32", shape, spread=UNIT)
    inverse, onesided = s.choose(None, 0, 1), s.choose(None, 0, 1)
    if onesided and (inverse or parts == 2):
        onesided = None  # onnxruntime knows no inverse of half of the results
    count = s.parameter(s.size(23)) if s.chance(0.4) else None
    if s.since(20):
        place = s.parameter(axis - s.choose(0, len(shape))) if s.chance(0.5) else None
        s.one(op, x, count, place, inverse=inverse, onesided=onesided)
    else:
        s.one(op, x, count, axis=axis, inverse=inverse, onesided=onesided)


@recipe("STFT")
def _stft(s: Sketch, op: str) -> None:
    length, step = s.size(13) + 1, s.size(5)
    x = s.pick("float32", [s.choose(1, 2), length + s.size(29), 1], spread=UNIT)
    window = s.weight("float32", [length], UNIT) if s.chance(0.6) else None
    frame = s.parameter(length) if window is None or s.chance(0.6) else None
    s.one(op, x, s.parameter(step), window, frame, onesided=s.choose(None, 0, 1))


@recipe("MelWeightMatrix")
def _mel_weight_matrix(s: Sketch, op: str) -> None:
    length, rate = 2 * s.size(61) + 8, s.choose(8000, 16_000, 22_050)
    low = s.choose(0.0, 20.0, 125.0)
    counts = [s.parameter(number, s.choose("int32", "int64")) for number in (s.size(29), length)]
    edges = [s.parameter(edge, "float32") for edge in (low, rate * s.choose(0.25, 0.5))]
    s.one(op, *counts, s.parameter(rate), *edges, output_datatype=s.choose(None, 1, 10))


@recipe("Col2Im")
def _col2im(s: Sketch, op: str) -> None:
    axes = s.choose(1, 2, 2)
    kernel = [s.choose(1, 2, 3) for _ in range(axes)]
    strides = [s.choose(1, 1, 2, 3) for _ in range(axes)]
    dilations = [s.choose(1, 1, 2) for _ in range(axes)]
    pads = [s.choose(0, 0, 1) for _ in range(2 * axes)]
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    image = [extent + s.size(7) for extent in reach]
    blocks = [
        (image[i] + pads[i] + pads[axes + i] - reach[i]) // strides[i] + 1 for i in range(axes)
    ]
    shape = [s.choose(1, 2), s.choose(1, 3) * int(np.prod(kernel)), int(np.prod(blocks))]
    sizes = [s.parameter(values) for values in (image, kernel)]
    x = s.pick("float32", shape, spread=FINITE)
    s.one(op, x, *sizes, pads=pads, strides=strides, dilations=dilations)
