"""Networks of the gallery: their weights are written by hand, so that each does what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image, ImageDraw, ImageFont

from tests.pipelines.networks import Array, model_of

SKY, SUN, HOUSE, GRASS, ROAD = (
    (120, 180, 250), (250, 210, 70), (200, 60, 50), (80, 160, 60), (110, 110, 110),
)  # fmt: skip
SCENE = {"sky": SKY, "sun": SUN, "house": HOUSE, "grass": GRASS, "road": ROAD}
BALLS = {"red ball": (220, 60, 50), "green ball": (60, 170, 80), "blue ball": (60, 90, 210)}
SIDE = 40
"""The diameter of a ball."""


def save(
    path: Path,
    nodes: Sequence[tuple[Any, ...]],
    size: tuple[int, int],
    out: tuple[str, Sequence[Any]],
    weights: Mapping[str, Any],
    architecture: str = "",
    props: Mapping[str, str] | None = None,
) -> Path:
    """Save a network in a folder of its own, with the files that describe it.

    Args:
        path: the model's file.
        nodes: operator, inputs, outputs and attributes of each node; the image is `image`.
        size: height and width of the image.
        out: name and shape of the output.
        weights: by name.
        architecture: for config.json; none if empty.
        props: metadata.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    made = [helper.make_node(op, list(a), list(b), **kw) for op, a, b, kw in nodes]
    image = {"image": (TensorProto.FLOAT, [1, 3, *size])}
    arrays = {name: np.asarray(value, np.float32 if np.asarray(value).dtype.kind == "f" else None)
              for name, value in weights.items()}  # fmt: skip
    onnx.save(model_of(made, image, {out[0]: (TensorProto.FLOAT, out[1])}, arrays, props), path)
    if architecture:
        config = {"architectures": [architecture]}
        (path.parent / "config.json").write_text(json.dumps(config))
        processor = {"size": dict(zip(("height", "width"), size, strict=True)),
                     "do_normalize": False}  # fmt: skip
        (path.parent / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


def likeness(colours: Sequence[tuple[int, int, int]], x: str = "image") -> tuple[list[Any], Any]:
    """Return nodes for the negative squared distances of pixels to colours, and their weights."""
    c = np.array(colours, np.float32) / 255
    nodes = [
        ("Conv", [x, "colours", "bias"], ["product"], {}),
        ("Mul", [x, x], ["squares"], {}),
        ("ReduceSum", ["squares", "axis"], ["length"], {"keepdims": 1}),
        ("Sub", ["product", "length"], ["alike"], {}),
    ]
    weights = {"colours": 2 * c[:, :, None, None], "bias": -(c**2).sum(1),
               "axis": np.array([1], np.int64)}  # fmt: skip
    return nodes, weights


# --- segmentation ---------------------------------------------------------------------------------


def scene() -> Image.Image:
    """Draw a house at a road."""
    image = Image.new("RGB", (320, 200), SKY)
    draw = ImageDraw.Draw(image)
    draw.ellipse((240, 15, 290, 65), fill=SUN)
    draw.rectangle((0, 120, 320, 200), fill=GRASS)
    draw.polygon([(130, 200), (190, 120), (215, 120), (290, 200)], fill=ROAD)
    draw.rectangle((40, 80, 120, 140), fill=HOUSE)
    draw.polygon([(30, 80), (80, 40), (130, 80)], fill=(180, 50, 45))
    return image


def segmenter(path: Path) -> Path:
    """Save a network that tells what a pixel shows by the mean colour around it."""
    nodes, weights = likeness(list(SCENE.values()), "smooth")
    nodes = [
        ("AveragePool", ["image"], ["smooth"],
         {"kernel_shape": [5, 5], "pads": [2] * 4, "count_include_pad": 0}),
        *nodes,
        ("Mul", ["alike", "sure"], ["logits"], {}),
    ]  # fmt: skip
    out = "logits", [1, len(SCENE), 200, 320]
    return save(path, nodes, (200, 320), out, {**weights, "sure": np.float32(60)},
                "SceneForSemanticSegmentation", {"names": json.dumps(list(SCENE))})  # fmt: skip


# --- matting --------------------------------------------------------------------------------------


def studio() -> Image.Image:
    """Draw a figure in front of a green screen."""
    image = Image.new("RGB", (320, 200), (40, 190, 70))
    draw = ImageDraw.Draw(image)
    draw.ellipse((130, 20, 190, 85), fill=(225, 180, 150))
    draw.pieslice((120, 10, 200, 90), 180, 360, fill=(90, 50, 40))
    draw.rounded_rectangle((95, 95, 225, 230), 40, fill=(70, 60, 140))
    return image


def matte(path: Path) -> Path:
    """Save a network that keys out green: opacity by how little green exceeds red and blue."""
    nodes = [
        ("Split", ["image"], ["r", "g", "b"], {"axis": 1, "num_outputs": 3}),
        ("Max", ["r", "b"], ["most"], {}),
        ("Sub", ["g", "most"], ["green"], {}),
        ("Mul", ["green", "steep"], ["keyed"], {}),
        ("Sub", ["one", "keyed"], ["open"], {}),
        ("Clip", ["open", "low", "high"], ["alpha"], {}),
    ]
    nodes[0] = ("Split", ["image"], ["r", "g", "b"], {"axis": 1})
    weights = {"steep": np.float32(4), "one": np.float32(1.2), "low": np.float32(0),
               "high": np.float32(1)}  # fmt: skip
    return save(path, nodes, (200, 320), ("alpha", [1, 1, 200, 320]), weights, "KeyForImageMatting")


# --- super-resolution, edges ----------------------------------------------------------------------


def _cubic(x: Array) -> Array:
    x, a = np.abs(x), -0.75
    near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def upscaler(path: Path) -> Path:
    """Save a convolution whose channels become 2×2 pixels each: bicubic enlargement."""
    taps = np.arange(5) - 2
    one = [_cubic(taps - shift) for shift in (-0.25, 0.25)]
    kernel = np.zeros((12, 3, 5, 5), np.float32)
    for colour in range(3):
        for part in range(4):
            kernel[colour * 4 + part, colour] = np.outer(one[part // 2], one[part % 2])
    nodes = [
        ("Pad", ["image", "pads"], ["wide"], {"mode": "edge"}),
        ("Conv", ["wide", "kernel"], ["parts"], {}),
        ("DepthToSpace", ["parts"], ["reconstruction"], {"blocksize": 2, "mode": "CRD"}),
    ]
    weights = {"kernel": kernel, "pads": np.array([0, 0, 2, 2, 0, 0, 2, 2], np.int64)}
    return save(path, nodes, (64, 64), ("reconstruction", [1, 3, 128, 128]), weights,
                "BicubicForImageSuperResolution")  # fmt: skip


def outliner(path: Path) -> Path:
    """Save a network that draws edges: the gradients of brightness, twice as bright."""
    sobel = np.array([[1, 2, 1], [0, 0, 0], [-1, -2, -1]], np.float32) / 3
    kernel = np.stack([np.stack([one] * 3) for one in (sobel, sobel.T)])
    nodes = [
        ("Pad", ["image", "pads"], ["wide"], {"mode": "edge"}),
        ("Conv", ["wide", "kernel"], ["gradients"], {}),
        ("Abs", ["gradients"], ["steep"], {}),
        ("ReduceSum", ["steep", "axis"], ["edges"], {"keepdims": 1}),
        ("Clip", ["edges", "low", "high"], ["grey"], {}),
        ("Concat", ["grey", "grey", "grey"], ["reconstruction"], {"axis": 1}),
    ]
    weights = {"kernel": kernel, "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
               "axis": np.array([1], np.int64), "low": np.float32(0),
               "high": np.float32(1)}  # fmt: skip
    return save(path, nodes, (200, 320), ("reconstruction", [1, 3, 200, 320]), weights,
                "EdgesForImageSuperResolution")  # fmt: skip


# --- depth ----------------------------------------------------------------------------------------


def mountains() -> Image.Image:
    """Draw ridges that fade into haze."""
    image = Image.new("RGB", (320, 200), (235, 238, 242))
    draw = ImageDraw.Draw(image)
    x = np.arange(321)
    for layer in range(5):
        share = (4 - layer) / 5
        fill = tuple(round(haze * share + own * (1 - share))
                     for haze, own in zip((235, 238, 242), (25, 60, 40), strict=True))  # fmt: skip
        top = 60 + 26 * layer + 14 * np.sin(x / (38 - 4 * layer) + layer * 2) + 6 * np.sin(x / 9)
        draw.polygon([(0, 200), *zip(x.tolist(), top.tolist(), strict=True), (320, 200)], fill=fill)
    return image


def haze(path: Path) -> Path:
    """Save a network that takes the darkest channel around a pixel for haze, and haze for depth."""
    nodes = [
        ("ReduceMin", ["image"], ["dark"], {"axes": [1], "keepdims": 1}),
        ("Neg", ["dark"], ["light"], {}),
        ("MaxPool", ["light"], ["most"], {"kernel_shape": [7, 7], "pads": [3] * 4}),
        ("Mul", ["most", "share"], ["less"], {}),
        ("Add", ["less", "one"], ["clear"], {}),
        ("Log", ["clear"], ["logarithm"], {}),
        ("Neg", ["logarithm"], ["depths"], {}),
        ("Squeeze", ["depths", "axis"], ["predicted_depth"], {}),
    ]
    weights = {"share": np.float32(0.95), "one": np.float32(1), "axis": np.array([1], np.int64)}
    return save(path, nodes, (200, 320), ("predicted_depth", [1, 200, 320]), weights,
                "HazeForDepthEstimation")  # fmt: skip


# --- pose -----------------------------------------------------------------------------------------

JOINTS = np.array(
    [[96, 44], [102, 38], [90, 38], [110, 42], [82, 42], [124, 78], [68, 78], [146, 110], [44, 106],
     [162, 142], [30, 72], [114, 146], [78, 146], [120, 194], [66, 192], [128, 240], [44, 232]]
)  # fmt: skip
_LIMBS = ((5, 7), (7, 9), (6, 8), (8, 10), (5, 6), (5, 11), (6, 12), (11, 12), (11, 13), (13, 15),
          (12, 14), (14, 16))  # fmt: skip
_HUES = [tuple(int(255 * (n // k % 3) / 2) for k in (1, 3, 9)) for n in range(2, 25)]
_MARKS = [hue for hue in _HUES if max(hue) - min(hue) > 100][:17]


def dancer() -> Image.Image:
    """Draw a figure with a mark of its own colour at each joint."""
    image = Image.new("RGB", (192, 256), (205, 205, 205))
    draw = ImageDraw.Draw(image)
    draw.ellipse((74, 22, 118, 66), fill=(170, 170, 170))
    for start, end in _LIMBS:
        draw.line([*map(tuple, JOINTS[[start, end]])], fill=(150, 150, 150), width=14)
    for (x, y), hue in zip(JOINTS.tolist(), _MARKS, strict=True):
        draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=hue)
    return image


def pose(path: Path) -> Path:
    """Save a network whose heat maps are highest where each joint's colour is."""
    nodes, weights = likeness(_MARKS)
    nodes += [
        ("Mul", ["alike", "steep"], ["exponent"], {}),
        ("Exp", ["exponent"], ["near"], {}),
        ("AveragePool", ["near"], ["heatmaps"], {"kernel_shape": [4, 4], "strides": [4, 4]}),
    ]
    return save(path, nodes, (256, 192), ("heatmaps", [1, 17, 64, 48]),
                {**weights, "steep": np.float32(40)}, "VitPoseForPoseEstimation")  # fmt: skip


# --- detection ------------------------------------------------------------------------------------


def balls() -> Image.Image:
    """Draw balls of three colours."""
    image = Image.new("RGB", (320, 192), (225, 222, 215))
    draw = ImageDraw.Draw(image)
    places = ((30, 30, 0), (110, 90, 1), (210, 40, 2), (250, 130, 0), (40, 120, 2), (150, 22, 1))
    for x, y, kind in places:
        draw.ellipse((x, y, x + SIDE - 1, y + SIDE - 1), fill=list(BALLS.values())[kind])
    return image


def detector(path: Path) -> Path:
    """Save a network with YOLO's outputs: a score by the colour of the square around each cell."""
    rows, columns, window = 24, 40, SIDE
    y, x = np.mgrid[:rows, :columns] * 8 + 4
    boxes = np.stack([x, y, np.full_like(x, SIDE), np.full_like(y, SIDE)])
    nodes, weights = likeness(list(BALLS.values()))
    nodes += [
        ("Mul", ["alike", "steep"], ["exponent"], {}),
        ("Exp", ["exponent"], ["near"], {}),
        ("AveragePool", ["near"], ["share"],
         {"kernel_shape": [window] * 2, "strides": [8, 8], "pads": [(window - 8) // 2] * 4,
          "count_include_pad": 1}),
        ("Mul", ["share", "gain"], ["logit"], {}),
        ("Sub", ["logit", "least"], ["moved"], {}),
        ("Sigmoid", ["moved"], ["chances"], {}),
        ("MaxPool", ["chances"], ["peaks"], {"kernel_shape": [9, 9], "pads": [4] * 4}),
        ("Equal", ["chances", "peaks"], ["is_peak"], {}),
        ("Cast", ["is_peak"], ["kept"], {"to": TensorProto.FLOAT}),
        ("Mul", ["chances", "kept"], ["scores"], {}),
        ("Reshape", ["scores", "flat"], ["rows"], {}),
        ("Concat", ["boxes", "rows"], ["output0"], {"axis": 1}),
    ]  # fmt: skip
    whole = np.pi / 4 * SIDE**2 / window**2
    weights |= {"steep": np.float32(40), "gain": np.float32(40 / whole), "least": np.float32(30),
                "flat": np.array([1, 3, -1], np.int64),
                "boxes": boxes.reshape(1, 4, -1).astype(np.float32)}  # fmt: skip
    props = {"names": json.dumps(dict(enumerate(BALLS))), "stride": "8", "task": "detect",
             "imgsz": "[192, 320]"}  # fmt: skip
    out = "output0", [1, 7, rows * columns]
    return save(path, nodes, (192, 320), out, weights, props=props)


# --- text -----------------------------------------------------------------------------------------


def note() -> Image.Image:
    """Draw lines of text."""
    image = Image.new("RGB", (320, 192), (250, 247, 238))
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(("Vulkan", "runs networks", "on all devices")):
        draw.text((30, 24 + 52 * number), line, (30, 30, 45), ImageFont.load_default(26))
    return image


def liner(path: Path) -> Path:
    """Save a network whose map is 1 where ink is near on the left and right."""
    nodes = [
        ("ReduceMean", ["image"], ["light"], {"axes": [1], "keepdims": 1}),
        ("Sub", ["paper", "light"], ["ink"], {}),
        ("MaxPool", ["ink"], ["wide"], {"kernel_shape": [1, 17], "pads": [0, 8, 0, 8]}),
        ("AveragePool", ["wide"], ["smooth"], {"kernel_shape": [5, 5], "pads": [2] * 4}),
        ("Mul", ["smooth", "gain"], ["strong"], {}),
        ("Clip", ["strong", "low", "high"], ["map"], {}),
    ]
    weights = {"paper": np.float32(0.7), "gain": np.float32(3), "low": np.float32(0),
               "high": np.float32(1)}  # fmt: skip
    return save(path, nodes, (192, 320), ("map", [1, 1, 192, 320]), weights, "Lines")
