"""Networks of the tests: small ones, and some that return given arrays as a trained one would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
Props = Mapping[str, str]

_KINDS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "u": TensorProto.UINT8}


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[Any]]],
    outputs: Mapping[str, tuple[int, Sequence[Any] | None]],
    weights: Mapping[str, Array],
    props: Props | None = None,
) -> onnx.ModelProto:
    """Return a checked model."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, *about) for name, about in inputs.items()],
        [helper.make_tensor_value_info(name, *about) for name, about in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if props:
        helper.set_model_props(model, dict(props))
    onnx.checker.check_model(model, full_check=True)
    return model


def canned(
    path: Path,
    outputs: Mapping[str, Array],
    shape: Sequence[Any] = (1, 3, 64, 64),
    *,
    name: str = "images",
    kind: int = TensorProto.FLOAT,
    props: Props | None = None,
    more: Mapping[str, tuple[int, Sequence[Any]]] | None = None,
    open_shapes: bool = False,
) -> Path:
    """Save a network that returns given arrays, whatever the image is.

    Args:
        path: the file.
        outputs: the arrays, by name of output, in a layout that an exporter writes.
        shape: of the pictures.
        name: of the input.
        kind: element type of the pictures.
        props: metadata.
        more: further inputs, which it ignores.
        open_shapes: leave the outputs' shapes open.
    """
    zeros = "zero"
    nodes = [
        helper.make_node("Cast", [name], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["real"], ["mean"], keepdims=0),
        helper.make_node("Clip", ["mean", "low", "high"], [zeros]),
    ]
    weights: dict[str, Array] = {"low": np.zeros((), np.float32), "high": np.zeros((), np.float32)}
    declared: dict[str, tuple[int, Sequence[Any] | None]] = {}
    for number, (one, array) in enumerate(outputs.items()):
        weights[f"c{number}"] = array.astype(np.float32)
        nodes.append(helper.make_node("Add", [f"c{number}", zeros], [f"sum{number}"]))
        to = _KINDS[array.dtype.kind]
        nodes.append(helper.make_node("Cast", [f"sum{number}"], [one], to=to))
        declared[one] = to, [None] * array.ndim if open_shapes else array.shape
    inputs = {name: (kind, shape), **(more or {})}
    onnx.save(model_of(nodes, inputs, declared, weights, props), path)
    return path


def classifier(
    path: Path,
    shape: Sequence[Any] = ("N", 3, 32, 32),
    *,
    classes: int = 10,
    kind: int = TensorProto.FLOAT,
    softmax: bool = False,
    props: Props | None = None,
) -> Path:
    """Save a convolution of random weights, pooled to a score for each class."""
    rng = np.random.default_rng(0)
    channels = shape[1] if shape[1] in (1, 3) else shape[3]
    weights = {"w": rng.standard_normal((classes, channels, 3, 3)).astype(np.float32)}
    nodes = [helper.make_node("Cast", ["x"], ["real"], to=TensorProto.FLOAT)]
    pictures = "real"
    if shape[1] not in (1, 3):
        nodes.append(helper.make_node("Transpose", ["real"], ["turned"], perm=[0, 3, 1, 2]))
        pictures = "turned"
    if kind == TensorProto.UINT8:
        weights["scale"] = np.array(1 / 255, np.float32)
        nodes.append(helper.make_node("Mul", [pictures, "scale"], ["scaled"]))
        pictures = "scaled"
    nodes += [
        helper.make_node("Conv", [pictures, "w"], ["map"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["map"], ["positive"]),
        helper.make_node("GlobalAveragePool", ["positive"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["logits"]),
    ]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["logits"], ["probabilities"]))
    out = "probabilities" if softmax else "logits"
    outputs = {out: (TensorProto.FLOAT, [shape[0], classes])}
    onnx.save(model_of(nodes, {"x": (kind, shape)}, outputs, weights, props), path)
    return path


def logits_of(path: Path, x: Array) -> Array:
    """Return the results of `classifier`, by numpy."""
    weights = {one.name: numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    maps = np.einsum("nchwij,ocij->nohw", windows, weights["w"])
    return np.asarray(np.maximum(maps, 0).mean((2, 3)))


def stripes(height: int, width: int) -> Array:
    """Return an image of waves and edges, uint8 [height, width, 3]."""
    y, x = np.mgrid[:height, :width]
    red = 127 + 120 * np.sin(x / 9 + y / 17)
    green = np.where((x // 24 + y // 16) % 2, 40, 220) + 20 * np.cos(y / 5)
    blue = 255 * x / max(width - 1, 1)
    return np.clip(np.stack([red, green, blue], -1), 0, 255).astype(np.uint8)


def trimap(height: int, width: int) -> Array:
    """Return a trimap: background on the left, foreground on the right, unknown between."""
    made = np.full((height, width), 128, np.uint8)
    made[:, : width // 3], made[:, -(width // 4) :] = 0, 255
    return made
