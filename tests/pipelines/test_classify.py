"""Image classification end to end, against numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from PIL import Image

import vkmnn
from tests.hub import cache_repository
from tests.pipelines.networks import canned, classifier, logits_of, stripes
from vkmnn.pipelines import read_picture

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def softmax(row: Any) -> Any:
    e = np.exp(row - row.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def prepared(path: Path, edge: int, crop: int) -> Any:
    """Resize the shortest edge, crop the centre, normalise as for ImageNet."""
    image = Image.open(path).convert("RGB")
    width, height = image.size
    size = (
        (edge, int(edge * height / width))
        if width <= height
        else (int(edge * width / height), edge)
    )
    values = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
    top, left = (values.shape[0] - crop) // 2, (values.shape[1] - crop) // 2
    values = values[top : top + crop, left : left + crop]
    return ((values / 255 - MEAN) / STD).transpose(2, 0, 1)[None]


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize("place", ["auto", "host", "device"])
def test_scores_are_those_of_the_reference(
    tmp_path: Path, street: Path, device: str, place: str
) -> None:
    path = classifier(tmp_path / "m.onnx")
    want = softmax(logits_of(path, prepared(street, 37, 32)))[0]
    with vkmnn.pipeline("classify", path, device=device, preprocess=place, tell=list) as pipe:
        found = pipe(street, top=10)
    assert [one.index for one in found] == np.argsort(-want, kind="stable").tolist()
    np.testing.assert_allclose(found.scores, want, atol=2e-3 if place == "device" else 1e-5)


def test_what_is_guessed_is_said_with_the_flag(tmp_path: Path, street: Path) -> None:
    said: list[str] = []
    path = classifier(tmp_path / "m.onnx")
    with vkmnn.pipeline(None, path, device="cpu", tell=said.append) as pipe:
        pipe(street)
        pipe(street)
        assert pipe.notes == said
    assert [note.partition("choose with ")[2].split()[0] for note in said] == [
        "--size,", "--task", "--labels",
    ]  # fmt: skip


def test_files_beside_the_model_say_it_all(tmp_path: Path, street: Path) -> None:
    path = classifier(tmp_path / "m.onnx", ("N", 3, "H", "W"))
    config = {"architectures": ["ViTForImageClassification"],
              "id2label": {str(n): f"kind {n}" for n in range(10)}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    processor = {"do_resize": True, "size": {"height": 48, "width": 40}, "resample": 3,
                 "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.25] * 3,
                 "image_processor_type": "ViTImageProcessor"}  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    said: list[str] = []
    with vkmnn.pipeline("auto", tmp_path, device="cpu", tell=said.append) as pipe:
        found = pipe(street, top=1)
    values = np.asarray(Image.open(street).resize((40, 48), Image.Resampling.BICUBIC))
    want = softmax(logits_of(path, ((values / 255 - 0.5) / 0.25).transpose(2, 0, 1)[None]))[0]
    assert said == []
    assert found[0].name == f"kind {want.argmax()}"
    assert found[0].score == pytest.approx(want.max(), abs=1e-5)


@pytest.mark.parametrize("classes", [1000, 1001])
def test_a_thousand_classes_are_those_of_imagenet(
    tmp_path: Path, street: Path, classes: int
) -> None:
    scores = np.zeros((1, classes), np.float32)
    scores[0, 281 + classes - 1000] = 9
    path = canned(tmp_path / "m.onnx", {"output": scores}, (1, 3, 224, 224))
    said: list[str] = []
    with vkmnn.pipeline("classify", path, device="cpu", tell=said.append) as pipe:
        assert pipe(street)[0].name == "tabby"
    assert "--labels" in said[-1]


def test_pixels_of_eight_bits_channels_last(tmp_path: Path, street: Path) -> None:
    path = classifier(tmp_path / "m.onnx", ("N", 32, 32, 3), kind=TensorProto.UINT8, softmax=True)
    with vkmnn.pipeline("classify", path, device="cpu", size=32, tell=list) as pipe:
        found = pipe(street, top=10)
    x = prepared(street, 37, 32)[0].transpose(1, 2, 0) * STD + MEAN
    want = softmax(logits_of(path, x.transpose(2, 0, 1)[None]))[0]
    np.testing.assert_allclose(found.scores, want, atol=1e-5)


def test_shapes_that_a_file_leaves_open(tmp_path: Path, street: Path) -> None:
    path = classifier(tmp_path / "m.onnx", ("N", 3, "H", "W"))
    shapes = {"x": (1, 3, 40, 48)}
    with vkmnn.pipeline("classify", path, device="cpu", input_shapes=shapes, tell=list) as pipe:
        pipe(street)
        assert pipe.network.processor.fit.size == (40, 48)


@pytest.mark.torch
def test_torchscript_takes_shapes_from_the_command(tmp_path: Path, street: Path) -> None:
    torch = pytest.importorskip("torch")
    from vkmnn.cli.app import run_cli

    parts = torch.nn.Conv2d(3, 5, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    traced = torch.jit.trace(torch.nn.Sequential(*parts).eval(), torch.zeros(1, 3, 32, 32))
    torch.jit.save(traced, tmp_path / "m.pt")
    line = ["run", str(tmp_path / "m.pt"), "-i", str(street), "-d", "cpu"]
    assert run_cli(line) == 1
    assert run_cli([*line, "--shape", "input=1,3,32,32"]) == 0


def test_options_of_normalisation(tmp_path: Path, street: Path) -> None:
    path = classifier(tmp_path / "m.onnx")
    scores = [
        vkmnn.pipeline("classify", path, device="cpu", mean=mean, std=std, tell=list)(street).scores
        for mean, std in (((0.5,), (0.25,)), ((127.5,) * 3, (63.75,) * 3))
    ]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-6)
    bgr = vkmnn.pipeline("classify", path, device="cpu", channels="bgr", tell=list)
    flipped = Image.fromarray(np.asarray(Image.open(street))[:, :, ::-1])
    rgb = vkmnn.pipeline("classify", path, device="cpu", tell=list)
    np.testing.assert_allclose(bgr(street).scores, rgb(flipped).scores, atol=1e-6)


def test_batches_and_fixed_batches(tmp_path: Path) -> None:
    pictures = [stripes(50 + 9 * n, 70) for n in range(3)]
    loose = vkmnn.pipeline("classify", classifier(tmp_path / "a.onnx"), device="cpu", batch=2,
                           tell=list)  # fmt: skip
    fixed = vkmnn.pipeline("classify", classifier(tmp_path / "b.onnx", (2, 3, 32, 32)),
                           device="cpu", tell=list)  # fmt: skip
    single = [loose(one).scores for one in pictures]
    for found in (loose(pictures), fixed(pictures), list(fixed.stream(pictures))):
        np.testing.assert_allclose([one.scores for one in found], single, atol=1e-6)


@pytest.mark.parametrize("shape", [("N", 3, 32, 32), (12, 3, 32, 32)])
def test_more_pictures_than_classes_in_a_run(tmp_path: Path, shape: tuple[Any, ...]) -> None:
    """The scores are found by their shape, [12, 3]: the longest axis is that of the pictures."""
    pictures = [read_picture(stripes(50 + 9 * n, 70)) for n in range(12)]
    path = classifier(tmp_path / "m.onnx", shape, classes=3)
    with vkmnn.pipeline("classify", path, device="cpu", tell=list) as pipe:
        single = [pipe(one).scores for one in pictures]
        np.testing.assert_allclose(
            [one.scores for one in pipe.together(pictures)], single, atol=1e-6
        )


def test_results_save_and_describe_themselves(tmp_path: Path, street: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"kind {n}" for n in range(10)))
    with vkmnn.pipeline("classify", classifier(tmp_path / "m.onnx"), device="cpu", labels=labels,
                        tell=list) as pipe:  # fmt: skip
        found = pipe(street)
    assert found[0].name.startswith("kind ")
    assert repr(found).startswith("<Labels: 5 items: kind ")
    listed = json.loads(found.save(tmp_path / "o.json").read_text())
    assert [one["label"] for one in listed] == [one.name for one in found]
    np.testing.assert_array_equal(np.load(found.save(tmp_path / "o.npz"))["scores"], found.scores)
    drawn = Image.open(found.save(tmp_path / "o.png"))
    assert drawn.size == (200, 120)
    assert np.any(np.asarray(drawn) != np.asarray(Image.open(street)))
    with pytest.raises(vkmnn.InvalidInputError, match=r"not saved as '\.doc'"):
        found.save(tmp_path / "o.doc")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"treshold": 0.5}, "did you mean threshold"),
        ({"size": -3}, "is not a size"),
        ({"threshold": 7}, "from 0 to 1"),
        ({"preprocess": "gpu"}, "is not known"),
        ({"std": (0, 1, 1)}, "is not a list of numbers"),
        ({"size": 48}, "takes only images of 32×32"),
        ({"activation": "soft"}, "did you mean softmax"),
        ({"top": "x"}, "is not an integer"),
        ({"labels": 5}, "neither a list of names nor a file"),
        ({"mean": (0.5, 0.5)}, "2 numbers for mean"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(vkmnn.InvalidInputError) as raised:
        vkmnn.pipeline("classify", classifier(tmp_path / "m.onnx"), device="cpu", **options)
    assert words in str(raised.value)


def test_unknown_tasks_and_networks_without_pictures(tmp_path: Path) -> None:
    with pytest.raises(vkmnn.InvalidInputError, match="did you mean classify"):
        vkmnn.pipeline("clasify", "m.onnx")
    with pytest.raises(vkmnn.ModelFileError, match="no such file"):
        vkmnn.pipeline("classify", tmp_path / "none.onnx")
    path = canned(tmp_path / "m.onnx", {"y": np.zeros((1, 5), np.float32)}, (1, 7))
    with pytest.raises(vkmnn.InvalidInputError, match="has no image input"):
        vkmnn.pipeline("classify", path, device="cpu")


def test_a_model_of_the_hub_with_its_files(
    tmp_path: Path, street: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setenv("VKMNN_OFFLINE", "1")
    config = {"architectures": ["ViTForImageClassification"],
              "id2label": {str(n): f"kind {n}" for n in range(10)}}  # fmt: skip
    files = {
        "onnx/model.onnx": classifier(tmp_path / "m.onnx").read_bytes(),
        "config.json": json.dumps(config).encode(),
        "preprocessor_config.json": b'{"image_processor_type": "ViTImageProcessor", "size": 32}',
    }
    cache_repository(tmp_path / "hf", "owner/vit", files)
    said: list[str] = []
    with vkmnn.pipeline(None, "owner/vit", device="cpu", tell=said.append) as pipe:
        assert pipe(street)[0].name.startswith("kind ")
    assert said == []


def test_wrong_settings_of_a_call(tmp_path: Path, street: Path) -> None:
    path = classifier(tmp_path / "m.onnx")
    with vkmnn.pipeline("classify", path, device="cpu", tell=list) as pipe:
        for settings in ({"top": 0}, {"threshold": "high"}, {"topp": 3}):
            with pytest.raises(vkmnn.InvalidInputError):
                pipe(street, **settings)
        assert len(pipe(street, top=2)) == 2


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"size": "big"}',
        '{"size": 0}',
        '{"size": {"height": -1, "width": 3}}',
        '{"size": {"height": 100000000, "width": 100000000}}',
        '{"size": 32, "image_mean": ["a"]}',
        '{"size": 32, "image_std": [0, 0, 0]}',
        '{"size": 32, "rescale_factor": 0}',
        '{"size": 32, "resample": 99}',
    ],
)
def test_damaged_descriptions_get_typed_errors(tmp_path: Path, text: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(text)
    path = classifier(tmp_path / "m.onnx", ("N", 3, "H", "W"))
    with pytest.raises(vkmnn.ModelFileError, match=r"preprocessor_config\.json"):
        vkmnn.pipeline("classify", path, device="cpu", tell=list)
