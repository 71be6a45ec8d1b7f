"""Pictures and boxes as transformers and ultralytics have them; `oracle.py` wrote the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
from tests.pipelines.networks import Array, canned, model_of, stripes
from vkmnn.pipelines.description import describe
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.networks import PictureNetwork, load
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit
from vkmnn.pipelines.reading_processors import processor_of
from vkmnn.pipelines.resampling import LINEAR

DATA = Path(__file__).resolve().parents[1] / "data" / "pipelines"
SHAPES = ((120, 200), (75, 48))
CONFIGS: dict[str, dict[str, Any]] = json.loads((DATA / "processors.json").read_text())
SAVED = np.load(DATA / "processors.npz")


def processor(tmp_path: Path, config: dict[str, Any], props: dict[str, str]) -> ImageProcessor:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    found = processor_of(describe(tmp_path, props))
    assert found is not None
    return found[0]


def prepared(made: ImageProcessor, pixels: Array) -> Array:
    picture = Picture(pixels)
    values = made.normalised(made.pixels(picture, made.placed(picture)))
    return np.asarray(values.transpose(2, 0, 1))


@pytest.mark.parametrize("number", range(len(SHAPES)))
@pytest.mark.parametrize("name", CONFIGS)
def test_processors_of_transformers(tmp_path: Path, name: str, number: int) -> None:
    made = processor(tmp_path, CONFIGS[name], {})
    want = SAVED[f"{name}/{number}"].astype(np.float32)
    found = prepared(made, stripes(*SHAPES[number]))
    assert found.shape == want.shape
    step = float(np.max(made.factors[0]))  # of one level of 255
    assert np.abs(found - want).max() <= 2.5 * step + 2e-3
    assert np.abs(found - want).mean() <= 0.4 * step + 1e-3


@pytest.mark.parametrize("name", ["ViTImageProcessor", "CLIPImageProcessor", "DetrImageProcessor"])
def test_files_may_leave_out_what_is_usual(tmp_path: Path, name: str) -> None:
    """Older files hold little but the size; the class says the rest."""
    kept = ("image_processor_type", "size", "crop_size")
    config = {key: value for key, value in CONFIGS[name].items() if key in kept}
    whole = processor(tmp_path, CONFIGS[name], {})
    assert processor(tmp_path, config, {}) == whole


def same(path: Path) -> Path:
    """Save a network that returns its pictures."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    ends = [{name: (TensorProto.FLOAT, ["N", 3, "H", "W"])} for name in "xy"]
    onnx.save(model_of(nodes, ends[0], ends[1], {}), path)
    return path


def outputs_of(path: Path, made: ImageProcessor, place: str, device: str, pixels: Array) -> Array:
    options = Options(preprocess=place, device=device)
    network = PictureNetwork(load(path, options), made, options)
    picture = Picture(pixels)
    placed = network.processor.placed(picture)
    found = network.run(network.feeds([picture], [placed], {}))["y"][0]
    network.close()
    return found


DEVICE_RESIZES = ("ViTImageProcessor", "CLIPImageProcessor", "DetrImageProcessor",
                  "SamImageProcessor", "MobileViTImageProcessor")  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize("name", DEVICE_RESIZES)
def test_resizing_on_the_device(tmp_path: Path, name: str, device: str) -> None:
    made = processor(tmp_path, CONFIGS[name], {})
    path = same(tmp_path / "m.onnx")
    step = float(np.max(made.factors[0]))
    for shape in SHAPES:
        pixels = stripes(*shape)
        want = outputs_of(path, made, "host", device, pixels)
        normalised = outputs_of(path, made, "auto", device, pixels)
        np.testing.assert_allclose(normalised, want, atol=1e-5)
        resized = outputs_of(path, made, "device", device, pixels)
        assert resized.shape == want.shape
        assert np.abs(resized - want).max() <= 1.5 * step
        assert np.abs(resized - want).mean() <= 0.03 * step  # rounded between passes, as in PIL


def test_letterboxes_on_the_device(tmp_path: Path) -> None:
    path = same(tmp_path / "m.onnx")
    made = ImageProcessor(Fit("letterbox", (64, 96)), LINEAR, fill=(114,))
    for shape in (*SHAPES, (300, 20)):
        want = outputs_of(path, made, "host", "auto", stripes(*shape))
        found = outputs_of(path, made, "device", "auto", stripes(*shape))
        assert np.abs(found - want).max() <= 1.5 / 255


def test_letterboxes_of_ultralytics(tmp_path: Path) -> None:
    props = {"stride": "32", "names": "{0: 'a'}", "imgsz": "[64, 96]", "task": "detect"}
    found = processor_of(describe(None, props))
    assert found is not None
    made = found[0]
    saved = np.load(DATA / "letterboxes.npz")
    for number, shape in enumerate((*SHAPES, (33, 47), (64, 64), (300, 20))):
        picture = Picture(stripes(*shape))
        pixels = made.pixels(picture, made.placed(picture)).astype(int)
        want = saved[f"letterbox/{number}"].astype(int)
        assert pixels.shape == want.shape
        assert np.abs(pixels - want).max() <= 1


@pytest.mark.parametrize("number", range(4))
def test_boxes_of_ultralytics(tmp_path: Path, street: Path, number: int) -> None:
    saved = np.load(DATA / "boxes.npz")
    props = {"stride": "32", "names": str([*"abcde"]), "imgsz": "[64, 64]", "task": "detect"}
    path = canned(tmp_path / "m.onnx", {"output0": saved[f"table/{number}"]}, props=props)
    overlap = 0.45 if number % 2 else 0.7
    with vkmnn.pipeline("detect", path, device="cpu", overlap=overlap) as pipe:
        found = pipe(street).arrays()
    want = saved[f"boxes/{number}"]
    assert len(found["boxes"]) == len(want) > 10
    order = np.argsort(-want[:, 4], kind="stable")
    np.testing.assert_allclose(found["scores"], want[order, 4], atol=1e-5)
    np.testing.assert_array_equal(found["classes"], want[order, 5])
    np.testing.assert_allclose(found["boxes"], want[order, :4], atol=0.01)


@pytest.mark.parametrize("name", ["DetrImageProcessor", "RTDetrImageProcessor"])
def test_boxes_of_transformers(tmp_path: Path, street: Path, name: str) -> None:
    saved = np.load(DATA / "detr.npz")
    outputs = {key: saved[f"{name}/{key}"] for key in ("logits", "pred_boxes")}
    props = {"names": str([*"abcd"])}
    path = canned(tmp_path / "m.onnx", outputs, props=props)
    config = {"image_processor_type": "RTDetrImageProcessor", "size": {"height": 64, "width": 64},
              "do_normalize": False}  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    with vkmnn.pipeline("detect", path, device="cpu", threshold=0.5) as pipe:
        found = pipe(street).arrays()
    order = np.argsort(-saved[f"{name}/scores"], kind="stable")
    limits = np.array([200, 120, 200, 120])
    # RT-DETR's may return a box once for each class; ours has each box once.
    scores, boxes = saved[f"{name}/scores"][order], saved[f"{name}/boxes"][order]
    first = np.unique(np.round(boxes, 2), axis=0, return_index=True)[1]
    kept = np.sort(first)
    np.testing.assert_allclose(found["scores"], scores[kept], atol=1e-5)
    np.testing.assert_array_equal(found["classes"], saved[f"{name}/labels"][order][kept])
    np.testing.assert_allclose(found["boxes"], np.clip(boxes[kept], 0, limits), atol=0.01)


def test_classes_of_pixels_of_transformers(tmp_path: Path) -> None:
    saved = np.load(DATA / "maps.npz")
    path = canned(tmp_path / "m.onnx", {"logits": saved["logits"]})
    with vkmnn.pipeline("segment", path, device="cpu", tell=list) as pipe:
        found = pipe(stripes(60, 100))
    assert (found.classes == saved["classes"]).mean() > 0.998
