"""Preprocessing on the device: nodes before the network that resize, place and normalise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.converter.nodes.model import finish_model
from vkmnn.converter.nodes.scope import FLOAT, FLOAT16, INT64, UINT8, Scope
from vkmnn.ir import Graph
from vkmnn.opening import load_network
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.picture_input import PictureInput
from vkmnn.pipelines.placing import Placed
from vkmnn.pipelines.resampling import LINEAR

PICTURES = "vkmnn.pictures"
"""Name of the image input, uint8 [n, height, width, channels], in place of the network's own."""
SIZES, PADS, CUTS = "vkmnn.resized", "vkmnn.pads", "vkmnn.cuts"
"""Inputs with the placement of an image, if the device resizes it."""
_TAG = "vkmnn.front/"
_ALL = 1 << 30  # end indices of all axes
_MODES = {LINEAR: ("linear", 0), "nearest": ("nearest", 0), "bilinear": ("linear", 1),
          "bicubic": ("cubic", 1)}  # fmt: skip
_CUBIC = -0.5  # as in PIL; ONNX's default is -0.75


def can_resize(processor: ImageProcessor) -> bool:
    """Return whether the device can resize as the host does."""
    return processor.filter in _MODES and not processor.brighten


def with_front(
    graph: Graph, taken: PictureInput, processor: ImageProcessor, resizes: bool
) -> Graph:
    """Return a network that takes 8-bit images, channels last.

    Args:
        graph: the network.
        taken: its image input, of floats.
        processor: how images are resized and normalised.
        resizes: whether the device resizes and places images at their original size.
    """
    return put_before(_front(taken, processor, resizes), graph, taken.name)


def put_before(before: Graph, graph: Graph, name: str) -> Graph:
    """Return a network whose input `name` is computed by another graph."""
    inputs = [info for info in graph.inputs if info.name != name]
    return replace(
        graph,
        inputs=[*before.inputs, *inputs],
        ops=[*before.ops, *graph.ops],
        constants={**before.constants, **graph.constants},
        infos={**before.infos, **graph.infos},
        planned_sizes={},
    )


def _front(taken: PictureInput, processor: ImageProcessor, resizes: bool) -> Graph:
    """Return the graph whose only output is the network's input."""
    scope = Scope(_TAG)
    channels, batch = taken.channels, taken.batch or "vkmnn.n"
    size = (None, None) if resizes else (taken.height, taken.width)
    sides = [side or name for side, name in zip(size, ("vkmnn.h", "vkmnn.w"), strict=True)]
    inputs = {PICTURES: (UINT8, [batch, *sides, channels])}
    for name, number in ((PICTURES, UINT8), (SIZES, INT64), (PADS, INT64), (CUTS, INT64)):
        scope.types[name] = number
    value = _node(scope, "Cast", [PICTURES], FLOAT, to=FLOAT)
    if resizes:
        inputs |= {SIZES: (INT64, [4]), PADS: (INT64, [8]), CUTS: (INT64, [2, 4])}
        value = _placed(scope, value, processor)
    factor, summand = processor.factors
    if not np.all(factor == 1):
        value = _node(scope, "Mul", [value, scope.constant(_by_channel(factor, channels))])
    if np.any(summand):
        value = _node(scope, "Add", [value, scope.constant(_by_channel(summand, channels))])
    if "chw" in taken.layout:
        value = _node(scope, "Transpose", [value], perm=[0, 3, 1, 2])
    if taken.layout[0] != "n":
        value = _node(scope, "Squeeze", [value, scope.constant(np.array([0], np.int64))])
    if taken.dtype == "float16":
        value = _node(scope, "Cast", [value], FLOAT16, to=FLOAT16)
    scope.copy(value, taken.name)
    scope.types[taken.name] = scope.types[value]
    model = finish_model(scope, inputs, [taken.name], "front", "vkmnn")
    return load_network(model, optimised=False).source


def _node(
    scope: Scope, op: str, inputs: list[str], dtype: int | None = None, **attributes: Any
) -> str:
    name = scope.fresh(op.lower())
    scope.emit(op, inputs, [name], name, dtype, **attributes)
    return name


def _by_channel(values: Array, channels: int) -> Array:
    return np.ascontiguousarray(np.broadcast_to(values, (channels,)))


def _placed(scope: Scope, value: str, processor: ImageProcessor) -> str:
    """Resize to integers from 0 to 255, as on the host; crop or pad."""
    mode, smooth = _MODES[processor.filter]
    made = _node(scope, "Transpose", [value], perm=[0, 3, 1, 2])
    attributes: dict[str, Any] = {"cubic_coeff_a": _CUBIC} if mode == "cubic" else {}
    if mode == "nearest":
        attributes = {"nearest_mode": "round_prefer_ceil"}
    limits = [scope.constant(np.array(one, np.float32)) for one in (0, 255)]
    half = scope.constant(np.array(0.5, np.float32))
    for sizes in (_wide(scope, made), SIZES) if smooth else (SIZES,):
        made = _node(scope, "Resize", [made, "", "", sizes], mode=mode, antialias=smooth,
                     exclude_outside=smooth, **attributes)  # fmt: skip
        made = _node(scope, "Clip", [made, *limits])
        made = _node(scope, "Floor", [_node(scope, "Add", [made, half])])
    made = _node(scope, "Transpose", [made], perm=[0, 2, 3, 1])
    starts, ends = (
        _node(scope, "Gather", [CUTS, scope.constant(np.array(one, np.int64))], axis=0)
        for one in (0, 1)
    )
    made = _node(scope, "Slice", [made, starts, ends])
    if not any(processor.fill):
        return _node(scope, "Pad", [made, PADS])
    fill = scope.constant(np.array(processor.fill, np.float32))
    padded = _node(scope, "Pad", [_node(scope, "Sub", [made, fill]), PADS])
    return _node(scope, "Add", [padded, fill])


def _wide(scope: Scope, value: str) -> str:
    """Return the size of an image after a resize of its columns: PIL rounds between the passes."""
    shape = _node(scope, "Shape", [value], INT64)
    columns = scope.constant(np.array([False, False, False, True]))
    return _node(scope, "Where", [columns, SIZES, shape], INT64)


def placing_feeds(placed: Placed, channels: int) -> dict[str, Array]:
    """Return the values of the inputs with an image's placement."""
    rows, columns = placed.window
    top, left = placed.offset
    starts = [0, rows.start - top, columns.start - left, 0]
    ends = [_ALL, rows.stop - top, columns.stop - left, _ALL]
    after = placed.canvas[0] - rows.stop, placed.canvas[1] - columns.stop
    pads = [0, rows.start, columns.start, 0, 0, *after, 0]
    sizes = [1, channels, *placed.resized]
    return {
        name: np.array(values, np.int64)
        for name, values in ((SIZES, sizes), (PADS, pads), (CUTS, [starts, ends]))
    }
