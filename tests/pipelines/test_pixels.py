"""Tasks with a value for each pixel: segmentation, mattes, depth, enlarging."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import vkmnn
from tests.pipelines.networks import Array, canned, model_of, stripes

NAMES = {"names": json.dumps({"0": "cat", "1": "dog"})}
SEGMENT = {**NAMES, "stride": "32", "task": "segment", "imgsz": "[64, 64]"}


def half_maps(classes: int = 3) -> Array:
    """Scores of which class 1 wins on the left and class 2 on the right, [1, classes, 16, 16]."""
    made = np.full((1, classes, 16, 16), -4, np.float32)
    made[:, 1, :, :8] = made[:, 2, :, 8:] = 4
    return made


@pytest.mark.parametrize("integer", [False, True])
def test_classes_of_pixels(tmp_path: Path, street: Path, integer: bool) -> None:
    logits = half_maps()
    outputs = {"out": logits.argmax(1)} if integer else {"logits": logits}
    path = canned(tmp_path / "m.onnx", outputs, props={"labels": '["sky", "road", "tree"]'})
    with vkmnn.pipeline("auto", path, device="cpu", tell=list) as pipe:
        assert pipe.task == "image-segmentation"
        found = pipe(street)
    assert [one.label.name for one in found] == ["road", "tree"]
    want = np.ones((120, 200), int)
    want[:, 100:] = 2
    assert (found.classes == want).mean() > 0.99
    assert found[0].area == pytest.approx(12000, rel=0.02)
    listed = found.to_dict()[0]
    assert listed["mask"]["size"] == [120, 200]
    assert sum(listed["mask"]["counts"][1::2]) == listed["area"]
    drawn = np.asarray(found.draw())
    assert drawn.shape == (120, 200, 3)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(32, 24), (96, 128)])
def test_many_classes_of_images_that_are_not_square(
    tmp_path: Path, street: Path, rows: int, columns: int, last: bool
) -> None:
    logits = np.full((1, 150, rows, columns), -4, np.float32)
    logits[:, 140, : rows // 2] = logits[:, 7, rows // 2 :] = 4
    if last:
        logits = logits.transpose(0, 2, 3, 1)
    path = canned(tmp_path / "m.onnx", {"logits": logits}, (1, 3, rows * 2, columns * 2))
    with vkmnn.pipeline("segment", path, device="cpu", tell=list) as pipe:
        found = pipe(street).classes
    assert found.shape == (120, 200)
    assert (found[:58] == 140).all()
    assert (found[62:] == 7).all()


def test_masks_of_queries(tmp_path: Path, street: Path) -> None:
    classes = np.full((1, 4, 3), -9, np.float32)
    classes[0, :, 2] = 9  # no object
    classes[0, 0], classes[0, 2] = (9, -9, -9), (-9, 9, -9)
    masks = np.full((1, 4, 16, 16), -9, np.float32)
    masks[0, 0, :8], masks[0, 2, 8:] = 9, 9
    outputs = {"class_queries_logits": classes, "masks_queries_logits": masks}
    path = canned(tmp_path / "m.onnx", outputs, props={"labels": '["sky", "road"]'})
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        found = pipe(street)
    want = np.zeros((120, 200), int)
    want[60:] = 1
    assert (found.classes == want).mean() > 0.99


def test_pixels_of_things(tmp_path: Path, street: Path) -> None:
    """YOLO-seg: mask = σ(coefficients · prototypes), within the box."""
    table = np.zeros((1, 84, 4 + 2 + 32), np.float32)
    table[:, :, :4] = 2
    table[0, 5, :4] = 32, 32, 40, 30  # 12 to 52, 17 to 47
    table[0, 5, 5], table[0, 5, 6] = 0.9, 1
    prototypes = np.zeros((1, 32, 16, 16), np.float32)
    prototypes[0, 0] = -6
    prototypes[0, 0, :, :8] = 6  # the left half of the input
    outputs = {"output0": table.transpose(0, 2, 1), "output1": prototypes}
    path = canned(tmp_path / "m.onnx", outputs, props=SEGMENT)
    with vkmnn.pipeline("segment", path, device="cpu") as pipe:
        (found,) = pipe(street)
    assert found.label.name == "dog"
    want = np.zeros((120, 200), bool)
    scale, top = 200 / 64, 13  # 38 rows, 13 above
    want[round((17 - top) * scale) : round((47 - top) * scale), round(12 * scale) : 100] = True
    assert (found.pixels & want).sum() / (found.pixels | want).sum() > 0.95
    assert found.box is not None
    assert found.box.corners == pytest.approx((12 * scale, 12.6, 52 * scale, 107.4), abs=0.1)


def test_mattes(tmp_path: Path, street: Path) -> None:
    alpha = np.zeros((1, 1, 64, 64), np.float32)
    alpha[..., 32:] = 1
    path = canned(tmp_path / "m.onnx", {"alpha": alpha})
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        assert pipe.task == "image-matting"
        found = pipe(street)
    assert found.alpha[:, :98].max() == 0
    assert found.alpha[:, 104:].min() == 1
    image = Image.open(found.save(tmp_path / "cut.png"))
    assert image.mode == "RGBA"
    assert np.array_equal(np.asarray(image)[..., :3], np.asarray(Image.open(street)))


def test_depth(tmp_path: Path, street: Path) -> None:
    depth = np.tile(np.linspace(1, 5, 64, dtype=np.float32), (1, 64, 1))
    path = canned(tmp_path / "m.onnx", {"predicted_depth": depth})
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        assert pipe.task == "depth-estimation"
        found = pipe(street)
    assert found.depth.shape == (120, 200)
    np.testing.assert_allclose(
        found.depth[7, 10:190],
        np.interp((np.arange(10, 190) + 0.5) * 64 / 200 - 0.5, np.arange(64), depth[0, 0]),
        atol=1e-4,
    )
    assert found.draw().size == (200, 120)
    assert found.to_dict()["min"] == pytest.approx(1)
    np.testing.assert_array_equal(np.load(found.save(tmp_path / "d.npz"))["depth"], found.depth)


def enlarger(path: Path, channels: int = 3, size: int | str = "H") -> Path:
    """Save a network that doubles pictures by repeating pixels."""
    nodes = [
        helper.make_node(
            "Resize",
            ["x", "", "s"],
            ["y"],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
    ]
    sides = [size, "W" if size == "H" else size]
    out = [None, None] if size == "H" else [2 * int(size)] * 2
    model = model_of(
        nodes,
        {"x": (TensorProto.FLOAT, ["N", channels, *sides])},
        {"y": (TensorProto.FLOAT, ["N", channels, *out])},
        {"s": np.array([1, 1, 2, 2], np.float32)},
    )
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("size", ["H", 40, 64])
@pytest.mark.parametrize("shape", [(120, 200), (30, 33)])
def test_enlarging_in_tiles(tmp_path: Path, size: int | str, shape: tuple[int, int]) -> None:
    path = enlarger(tmp_path / "m.onnx", size=size)
    picture = stripes(*shape)
    with vkmnn.pipeline("upscale", path, device="cpu", tell=list, tile=48) as pipe:
        found = pipe(picture)
    np.testing.assert_array_equal(found.pixels, picture.repeat(2, 0).repeat(2, 1))


def test_tiles_overlap(tmp_path: Path) -> None:
    """A network whose edges are wrong: the blended picture is right far from the tiles' edges."""
    nodes = [
        helper.make_node(
            "AveragePool",
            ["x"],
            ["y"],
            kernel_shape=[3, 3],
            pads=[1] * 4,
            strides=[1, 1],
            count_include_pad=1,
        )
    ]
    shape = ["N", 3, 32, 32]
    model = model_of(
        nodes, {"x": (TensorProto.FLOAT, shape)}, {"y": (TensorProto.FLOAT, shape)}, {}
    )
    onnx.save(model, tmp_path / "m.onnx")
    flat = np.full((80, 80, 3), 200, np.uint8)
    with vkmnn.pipeline("upscale", tmp_path / "m.onnx", device="cpu", tell=list) as pipe:
        joined, cut = pipe(flat, overlap=16).pixels, pipe(flat, overlap=0).pixels
    inner = joined[4:-4, 4:-4].astype(int)
    assert inner.min() > 190
    assert cut[4:-4, 4:-4].min() < 140
    with pytest.raises(vkmnn.InvalidInputError, match="does not fit tiles"):
        pipe(flat, overlap=32)
    options: dict[str, Any] = {"device": "cpu", "tell": list, "overlap": 16}
    for task in ("upscale", None):
        with vkmnn.pipeline(task, tmp_path / "m.onnx", **options) as pipe:
            np.testing.assert_array_equal(pipe(flat).pixels, joined)


def test_brightness_alone(tmp_path: Path, street: Path) -> None:
    """Networks of one channel enlarge Y; Cb and Cr are interpolated."""
    path = enlarger(tmp_path / "m.onnx", channels=1)
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        found = pipe(street)
    assert found.pixels.shape == (240, 400, 3)
    y, cb, cr = Image.open(street).convert("YCbCr").split()
    want = Image.merge("YCbCr", (y.resize((400, 240), Image.Resampling.NEAREST),
                                 cb.resize((400, 240), Image.Resampling.BICUBIC),
                                 cr.resize((400, 240), Image.Resampling.BICUBIC)))  # fmt: skip
    assert np.abs(found.pixels.astype(int) - np.asarray(want.convert("RGB")).astype(int)).max() <= 5
