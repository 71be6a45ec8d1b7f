"""Raw heads of single-shot detectors: offsets from prior boxes, and scores including background."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.heads.candidates import Candidates, best_of, corners_of, softmax
from vkmnn.pipelines.heads.signature import Output, Signature
from vkmnn.pipelines.heads.yolo import in_pixels

_CENTRE, _SIZE = 0.1, 0.2
"""Variances that scale the offsets of centres and of sizes."""


def _vgg(sides: tuple[int, ...], steps: tuple[int, ...], sizes: tuple[float, ...],
         ratios: tuple[tuple[int, ...], ...], pixels: int) -> Array:  # fmt: skip
    """Return centre and size of the priors of SSD on VGG, as fractions of the image."""
    made = []
    for level, side in enumerate(sides):
        least, most = sizes[level] / pixels, sizes[level + 1] / pixels
        shapes = [(least, least), (float(np.sqrt(least * most)),) * 2]
        for ratio in ratios[level]:
            root = float(np.sqrt(ratio))
            shapes += [(least * root, least / root), (least / root, least * root)]
        step = pixels / steps[level]
        made += [
            ((column + 0.5) / step, (row + 0.5) / step, width, height)
            for row, column in product(range(side), range(side))
            for width, height in shapes
        ]
    return np.clip(np.array(made, np.float32), 0, 1)


def _ssd300() -> Array:
    return _vgg((38, 19, 10, 5, 3, 1), (8, 16, 32, 64, 100, 300),
                (30, 60, 111, 162, 213, 264, 315), ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,)),
                300)  # fmt: skip


def _ssd512() -> Array:
    return _vgg((64, 32, 16, 8, 4, 2, 1), (8, 16, 32, 64, 128, 256, 512),
                (35.84, 76.8, 153.6, 230.4, 307.2, 384, 460.8, 537.6),
                ((2,), (2, 3), (2, 3), (2, 3), (2, 3), (2,), (2,)), 512)  # fmt: skip


def _mobilenet() -> Array:
    """Return the priors of TensorFlow's SSD on MobileNet, 300 pixels: scales from 0.2 to 0.95."""
    sides = (19, 10, 5, 3, 2, 1)
    scales = [0.2 + 0.15 * level for level in range(6)] + [1.0]
    made = []
    for level, side in enumerate(sides):
        scale, between = scales[level], float(np.sqrt(scales[level] * scales[level + 1]))
        shapes = [(scale, ratio) for ratio in (1.0, 2.0, 0.5, 3.0, 1 / 3)] + [(between, 1.0)]
        if level == 0:
            shapes = [(0.1, 1.0), (scale, 2.0), (scale, 0.5)]
        made += [
            ((column + 0.5) / side, (row + 0.5) / side, size * ratio**0.5, size / ratio**0.5)
            for row, column in product(range(side), range(side))
            for size, ratio in shapes
        ]
    return np.array(made, np.float32)


PRIORS: Mapping[int, Callable[[], Array]] = {8732: _ssd300, 24564: _ssd512, 1917: _mobilenet}
"""Prior boxes by the number of them."""


def _pair(signature: Signature) -> tuple[Output, Output] | None:
    if len(signature.outputs) != 2 or any(one.integer for one in signature.outputs):
        return None
    first, second = signature.outputs
    for boxes, scores in ((first, second), (second, first)):
        turned = boxes.shape[1:2] == (4,) and boxes.rank == 3 and boxes.shape[2] in PRIORS
        if turned and scores.rank == 3:
            return boxes, scores
        if boxes.rank == 3 and boxes.shape[2] == 4 and boxes.shape[1] in PRIORS:
            return boxes, scores
    return None


def is_raw(signature: Signature) -> bool:
    """Offsets [n, priors, 4] or [n, 4, priors], scores likewise, for a known number of priors."""
    return _pair(signature) is not None


def raw(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode offsets of centres and of the logarithm of sizes; class 0 is the background."""
    found = _pair(signature)
    assert found is not None
    offsets, scores = (outputs[one.name].astype(np.float32) for one in found)
    offsets, scores = (_upright(one) for one in (offsets, scores))
    priors = PRIORS[offsets.shape[1]]()
    centres = priors[:, :2] + offsets[:, :, :2] * _CENTRE * priors[:, 2:]
    sizes = priors[:, 2:] * np.exp(np.minimum(offsets[:, :, 2:] * _SIZE, 20))
    boxes = corners_of(np.concatenate([centres, sizes], 2))
    sums = scores.sum(2)
    chances = scores if np.allclose(sums, 1, atol=1e-2) else softmax(scores)
    made = []
    for box, chance in zip(boxes, chances, strict=True):
        best = best_of(in_pixels(np.clip(box, 0, 1), signature), chance[:, 1:])
        made.append(replace(best, classes=best.classes + 1))
    return made


def is_ultraface(signature: Signature) -> bool:
    """Decoded boxes [n, priors, 4], and two scores each: background and face."""
    if len(signature.outputs) != 2:
        return False
    return any(
        signature.find(None, count, 4) is not None and signature.find(None, count, 2) is not None
        for count in _ULTRAFACE
    )


_ULTRAFACE = (4420, 17640)
"""The priors of UltraFace for 320×240 and 640×480 pixels."""


def ultraface(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode corners as fractions of the input; class 1 is the face."""
    boxes = next(one for one in outputs.values() if one.shape[2] == 4).astype(np.float32)
    scores = next(one for one in outputs.values() if one.shape[2] == 2).astype(np.float32)
    return [
        replace(
            best_of(in_pixels(box, signature), score[:, 1:]),
            classes=np.ones(len(box), int),
            count=0,
        )
        for box, score in zip(boxes, scores, strict=True)
    ]


def _upright(values: Array) -> Array:
    return values.transpose(0, 2, 1) if values.shape[2] in PRIORS else values
