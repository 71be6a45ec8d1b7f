"""`vkmnn run X -i picture` without any other option: right, or a question with a line to type.

The networks have the inputs, outputs and files that the field's tools write, and return fixed
values.
"""

from __future__ import annotations

import json
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from PIL import Image

from tests.cli.conftest import Cli
from tests.pipelines import test_detect as boxes
from tests.pipelines.networks import Array, canned
from tests.pipelines.test_detect import LABELS, ULTRALYTICS
from tests.pipelines.test_people import heat, retinaface, scrfd, simcc, yunet
from tests.pipelines.test_pixels import SEGMENT, half_maps
from tests.tflite_files import Writer

FLOAT, INT32, INT64, UINT8 = (
    TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8,
)  # fmt: skip


@dataclass
class Net:
    """A network: outputs, the image input, files beside it, metadata and other inputs."""

    outputs: Mapping[str, Array]
    shape: Any = (1, 3, 64, 64)
    name: str = "input"
    kind: int = FLOAT
    files: Mapping[str, Any] = field(default_factory=dict)
    props: Mapping[str, str] | None = None
    more: Mapping[str, Any] | None = None
    open_shapes: bool = False

    def save(self, folder: Path) -> Path:
        for name, content in self.files.items():
            (folder / name).write_text(json.dumps(content))
        return canned(
            folder / "model.onnx", self.outputs, self.shape, name=self.name, kind=self.kind,
            props=self.props, more=self.more, open_shapes=self.open_shapes,
        )  # fmt: skip


def one_of(count: int, index: int, *rest: int, value: float = 9) -> Array:
    made = np.zeros((1, count, *rest), np.float32)
    made[0, index] = value
    return made


def hf(
    architecture: str, processor: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """The files beside an export of transformers."""
    return {
        "config.json": {"architectures": [architecture], **more},
        **({} if processor is None else {"preprocessor_config.json": processor}),
    }


IDS = {"id2label": {str(n): name for n, name in enumerate(boxes.NAMES)}}
VIT = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
DETR = {"image_processor_type": "DetrImageProcessor",
        "size": {"shortest_edge": 64, "longest_edge": 96}}  # fmt: skip
OPEN = ("batch", "channels", "height", "width")
MAP = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(1, 1, 64, 64)

RIGHT: Mapping[str, tuple[Net, str, str]] = {
    "classifier of torchvision": (
        Net({"output": one_of(1000, 281)}, ("batch", 3, 224, 224)), "image-classification", "tabby"
    ),
    "classifier of TensorFlow": (
        Net({"predictions": one_of(1001, 282, value=1)}, ("n", 224, 224, 3)),
        "image-classification", "tabby",
    ),
    "classifier of transformers": (
        Net({"logits": one_of(4, 2)}, OPEN, "pixel_values",
            files=hf("ViTForImageClassification", VIT, **IDS), open_shapes=True),
        "image-classification", "cow",
    ),
    "classifier of digits": (
        Net({"Plus214_Output_0": one_of(10, 7)}, (1, 1, 28, 28), "Input3"),
        "image-classification", "7",
    ),
    "classifier of 8-bit pixels": (
        Net({"probs": one_of(4, 1, value=1)}, ("n", 32, 32, 3), kind=UINT8, props=LABELS),
        "image-classification", "dog",
    ),
    "ultralytics": (
        Net(boxes.yolov8(), name="images", props=ULTRALYTICS), "object-detection", "cow"
    ),
    "ultralytics, open sizes": (
        Net(boxes.yolov8(), ("batch", 3, "height", "width"), "images", props=ULTRALYTICS,
            open_shapes=True),
        "object-detection", "cow",
    ),
    "ultralytics with suppression": (
        Net(boxes.end_to_end(), name="images", props=ULTRALYTICS), "object-detection", "cow"
    ),
    "ultralytics, classes": (
        Net({"output0": one_of(4, 2, value=1)}, name="images",
            props={**ULTRALYTICS, "task": "classify"}),
        "image-classification", "cow",
    ),
    "ultralytics, masks": (
        Net({"output0": np.zeros((1, 38, 84), np.float32), "output1": np.zeros((1, 32, 16, 16))},
            name="images", props=SEGMENT),
        "instance-segmentation", "",
    ),
    "yolov5": (
        Net(boxes.yolov5(), name="images", props={**LABELS, "stride": "32"}),
        "object-detection", "cow",
    ),
    "TensorFlow's SSD": (
        Net(boxes.tensorflow(), ("n", "h", "w", 3), "image_tensor:0", UINT8), "object-detection",
        "car",
    ),
    "EfficientDet": (
        Net(boxes.efficientdet(), (1, 64, 64, 3), "image_arrays:0", UINT8), "object-detection",
        "car",
    ),
    "SSD of TFLite": (Net(boxes.tflite(), (1, 64, 64, 3)), "object-detection", "car"),
    "DETR of transformers": (
        Net(boxes.detr(1), OPEN, "pixel_values", files=hf("DetrForObjectDetection", DETR, **IDS),
            more={"pixel_mask": (INT64, ["batch", 64, 64])}, open_shapes=True),
        "object-detection", "cow",
    ),
    "RT-DETR of transformers": (
        Net(boxes.detr(0), (1, 3, 64, 64), "pixel_values",
            files=hf("RTDetrForObjectDetection",
                     {"image_processor_type": "RTDetrImageProcessor",
                      "size": {"height": 64, "width": 64}}, **IDS)),
        "object-detection", "cow",
    ),
    "D-FINE": (
        Net(boxes.rtdetr_decoded(), name="images",
            more={"orig_target_sizes": (INT64, [1, 2])}, props=LABELS),
        "object-detection", "cow",
    ),
    "SegFormer of transformers": (
        Net({"logits": half_maps()}, OPEN, "pixel_values", open_shapes=True,
            files=hf("SegformerForSemanticSegmentation",
                     {"image_processor_type": "SegformerImageProcessor", "size": 64}, **IDS)),
        "image-segmentation", "dog",
    ),
    "FCN of torchvision": (
        Net({"out": half_maps(21), "aux": half_maps(21)}, ("batch", 3, 64, 64)),
        "image-segmentation", "aeroplane",
    ),
    "DeepLab of TensorFlow": (
        Net({"SemanticPredictions:0": half_maps(21).argmax(1)}, (1, 64, 64, 3), kind=UINT8),
        "image-segmentation", "",
    ),
    "depth of transformers": (
        Net({"predicted_depth": MAP[0]}, OPEN, "pixel_values", open_shapes=True,
            files=hf("DepthAnythingForDepthEstimation",
                     {"image_processor_type": "DPTImageProcessor",
                      "size": {"height": 64, "width": 64}})),
        "depth-estimation", "",
    ),
    "MiDaS": (Net({"797": MAP[0]}, (1, 3, 64, 64), "0"), "depth-estimation", ""),
    "super-resolution": (
        Net({"output": np.ones((1, 3, 128, 128), np.float32) / 2}), "image-to-image", ""
    ),
    "super-resolution of luminance": (
        Net({"output": np.ones((1, 1, 128, 128), np.float32)}, ("b", 1, 64, 64)), "image-to-image",
        "",
    ),
    "RTMPose": (Net(simcc((96, 64)), ("b", 3, 96, 64)), "pose-estimation", ""),
    "ViTPose": (Net(heat((96, 64)), (1, 3, 96, 64)), "pose-estimation", ""),
    "heat maps of a square": (
        Net({"output": heat((64, 64))["heatmaps"]}), "pose-estimation", ""
    ),
    "MoveNet": (
        Net({"output_0": np.full((1, 1, 17, 3), 0.5, np.float32)}, (1, 64, 64, 3), kind=INT32),
        "pose-estimation", "",
    ),
    "YOLO-pose without metadata": (
        Net({"output0": np.zeros((1, 56, 84), np.float32)}, name="images"), "pose-estimation", ""
    ),
    "SCRFD": (Net(scrfd(), name="input.1"), "face-detection", "face"),
    "YuNet": (Net(yunet()), "face-detection", "face"),
    "RetinaFace": (Net(retinaface()), "face-detection", "face"),
    "a line of text": (
        Net({"softmax_0": np.ones((1, 5, 4), np.float32) / 4}, (1, 3, 48, 96), "x",
            props={"character": "a\nb"}),
        "optical-character-recognition", "",
    ),
    "matting": (Net({"alpha": MAP}), "image-matting", ""),
    "ArcFace": (
        Net({"683": one_of(512, 3)}, ("None", 3, 112, 112), "input.1"), "image-feature-extraction",
        "",
    ),
    "the vision network of CLIP": (
        Net({"last_hidden_state": np.ones((1, 5, 8), np.float32), "image_embeds": one_of(512, 3)},
            OPEN, "pixel_values", files=hf("CLIPModel", model_type="clip"), open_shapes=True),
        "image-feature-extraction", "",
    ),
    "DINOv2": (
        Net({"last_hidden_state": np.ones((1, 5, 8), np.float32), "pooler_output": one_of(8, 3)},
            OPEN, "pixel_values", files=hf("Dinov2Model"), open_shapes=True),
        "image-feature-extraction", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_without_options(cli: Cli, tmp_path: Path, street: Path, name: str) -> None:
    net, task, label = RIGHT[name]
    path = net.save(tmp_path)
    result = cli("run", path, "-i", street, "-d", "cpu", "--json")
    assert result.status == 0, result.err
    made = json.loads(result.out)
    assert made["task"] == task
    if label:
        assert made["results"][0]["result"][0]["label"] == label
    said = {"config.json", "preprocessor_config.json"} <= set(net.files) or net.props == ULTRALYTICS
    assert not (said and made["notes"])


QUESTIONS: Mapping[str, tuple[Net, tuple[str, ...]]] = {
    "a map: MODNet, RMBG": (Net({"output": MAP}), ("segment", "matte", "depth", "ocr")),
    "a map, channels last": (
        Net({"activation_10": MAP.reshape(1, 64, 64, 1)}, (1, 64, 64, 3)), ("segment", "matte")
    ),
    "seven maps: U²-Net": (Net({str(n): MAP for n in range(7)}), ("matte",)),
    "where text is": (
        Net({"sigmoid_0.tmp_0": MAP}, ("D0", 3, "D1", "D2"), "x", open_shapes=True), ("ocr",)
    ),
    "a line of text, no characters": (
        Net({"softmax_2.tmp_0": np.ones((1, 5, 4), np.float32) / 4}, ("D0", 3, 48, "D1"), "x",
            open_shapes=True),
        ("ocr --labels FILE",),
    ),
    "a vector": (Net({"output": one_of(512, 3)}), ("embed", "classify")),
    "one number": (Net({"output": one_of(1, 0, value=0.8)}), ("classify",)),
    "SAM's encoder": (
        Net({"image_embeddings": np.ones((1, 256, 4, 4), np.float32)}, name="pixel_values"),
        ("embed",),
    ),
    "a part of a network that writes": (
        Net({"last_hidden_state": np.ones((1, 5, 8), np.float32)}, OPEN, "pixel_values",
            files=hf("VisionEncoderDecoderModel"), open_shapes=True),
        ("embed",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_with_lines_to_type(
    cli: Cli, tmp_path: Path, street: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each line of the question runs as it stands."""
    net, tasks = QUESTIONS[name]
    net.save(tmp_path)
    (tmp_path / "FILE").write_text("a\nb\n")
    monkeypatch.chdir(tmp_path)
    result = cli("run", "model.onnx", "-i", street.name, "-d", "cpu")
    assert result.status == 1
    lines = [line.strip() for line in result.err.splitlines() if line.startswith("  vkmnn run ")]
    assert set(tasks) <= {line.partition(" --task ")[2].partition("  #")[0] for line in lines}
    for line in lines:
        words = shlex.split(line.partition("  #")[0])
        assert cli(*words[1:], "-d", "cpu").status == 0, line


UNKNOWN: Mapping[str, Net] = {
    "CenterNet": Net({"hm": half_maps(8), "wh": half_maps(), "reg": half_maps()}),
    "EAST": Net({"scores": MAP.reshape(1, 64, 64, 1), "geometry": np.ones((1, 64, 64, 5))}),
    "SuperPoint": Net({"keypoints": np.ones((1, 30, 2), np.int64), "scores": np.ones((1, 30))}),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_outputs(
    cli: Cli, tmp_path: Path, street: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No task fits; the line runs the network on an array."""
    UNKNOWN[name].save(tmp_path)
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 64, 64), np.float32))
    monkeypatch.chdir(tmp_path)
    result = cli("run", "model.onnx", "-i", street.name, "-d", "cpu")
    assert result.status == 1
    assert "no known network has these outputs" in result.err
    (line,) = [one.strip() for one in result.err.splitlines() if one.startswith("  vkmnn run ")]
    assert cli(*shlex.split(line)[1:], "-d", "cpu").status == 0
    assert Path("outputs.npz").is_file()


def test_other_inputs_are_asked_for(cli: Cli, tmp_path: Path, street: Path) -> None:
    """RobustVideoMatting: states of open shapes, and a ratio."""
    more = {"r1i": (FLOAT, ["b", "c", "h", "w"]), "downsample_ratio": (FLOAT, [1])}
    path = Net({"fgr": np.ones((1, 3, 64, 64)), "pha": MAP}, name="src", more=more).save(tmp_path)
    result = cli("run", path, "-i", street, "-d", "cpu")
    assert result.status == 1
    assert "add -i r1i=VALUE -i downsample_ratio=VALUE" in result.err.replace("\n", " ")
    values = ("-i", "r1i=zeros", "-i", "downsample_ratio=0.25")
    assert cli("run", path, "-i", street, *values, "-d", "cpu").status == 0


def test_grey_networks_scale_their_guesses(cli: Cli, tmp_path: Path, street: Path) -> None:
    net = RIGHT["classifier of digits"][0]
    result = cli("run", net.save(tmp_path), "-i", street, "-d", "cpu")
    assert "GREY, pixel / 255, mean 0.449, std 0.226" in " ".join(result.err.split())


@pytest.mark.parametrize(("kind", "zero"), [("UINT8", 0), ("INT8", -128)])
def test_tflite_with_metadata(cli: Cli, tmp_path: Path, street: Path, kind: str, zero: int) -> None:
    """Quantised pixels and scores, and labels in the archive at the end of the file."""
    made = Writer()
    image = made.tensor((1, 32, 32, 3), kind, scale=1 / 255, zero=zero, name="image")
    scores = made.tensor((1, 3), kind, scale=1 / 255, zero=zero, name="scores")
    axes = made.constant(np.array([1, 2], np.int32))
    made.op("MEAN", [image, axes], [scores], ("ReducerOptions", {"keep_dims": False}))
    made.faces([image], [scores])
    path = tmp_path / "model.tflite"
    path.write_bytes(made.finish())
    with zipfile.ZipFile(path, "a") as attached:
        attached.writestr("labels.txt", "red\ngreen\nblue\n")
    Image.fromarray(np.full((48, 48, 3), (20, 40, 250), np.uint8)).save(street)
    result = cli("run", path, "-i", street, "-d", "cpu", "--json")
    made_of = json.loads(result.out)
    assert made_of["task"] == "image-classification"
    found = made_of["results"][0]["result"]
    assert [one["label"] for one in found] == ["blue", "green", "red"]
    assert found[0]["score"] == pytest.approx(250 / 255, abs=0.01)
