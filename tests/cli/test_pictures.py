"""`vkmnn run` on pictures, films and folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.cli.conftest import Cli
from tests.pipelines.networks import canned, classifier, stripes, trimap
from tests.pipelines.test_detect import ULTRALYTICS, yolov8
from tests.pipelines.test_matting import FRAMES, LOW, averaged, rvm, vitmatte
from tests.pipelines.test_people import heat, scrfd, yunet
from tests.pipelines.test_pixels import SEGMENT, enlarger, half_maps


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    return canned(tmp_path / "yolo.onnx", yolov8(), props=ULTRALYTICS)


def test_boxes_in_a_picture(cli: Cli, tmp_path: Path, detector: Path, street: Path) -> None:
    out = tmp_path / "out.png"
    result = cli("run", detector, "-i", street, "-o", out, "-d", "cpu")
    assert result.status == 0
    assert "object-detection" in result.out
    assert "cow" in result.out
    assert "dog" in result.out
    assert f"saved {out}" in result.out.replace("\n", "")
    assert np.any(np.asarray(Image.open(out)) != stripes(120, 200))


def test_json(cli: Cli, tmp_path: Path, detector: Path, street: Path) -> None:
    result = cli("run", detector, "-i", street, "-d", "cpu", "--threshold", "0.85", "--json")
    made = json.loads(result.out)
    assert made["task"] == "object-detection"
    assert made["notes"] == []
    assert [one["label"] for one in made["results"][0]["result"]] == ["cow"]
    assert made["runs_s"] == []
    timed = cli("run", detector, "-i", street, "-d", "cpu", "-n", "3", "--json")
    assert len(json.loads(timed.out)["runs_s"]) == 3
    saved = tmp_path / "out.json"
    cli("run", detector, "-i", f"images={street}", "-o", saved, "-d", "cpu")
    assert [one["label"] for one in json.loads(saved.read_text())] == ["cow", "dog"]


def test_folders_and_patterns(cli: Cli, tmp_path: Path, detector: Path, street: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "ab":
        Image.fromarray(stripes(50, 60)).save(folder / f"{name}.jpg")
    for given in (folder, f"{folder}/*.jpg"):
        out = tmp_path / f"out{len(str(given))}"
        assert cli("run", detector, "-i", given, "-o", out, "-d", "cpu").status == 0
        assert sorted(path.name for path in out.iterdir()) == ["a.png", "b.png"]
    result = cli("run", detector, "-i", folder, "-o", tmp_path / "all.json", "-d", "cpu")
    assert result.status == 0
    assert sorted(json.loads((tmp_path / "all.json").read_text())) == ["a.jpg", "b.jpg"]
    result = cli("run", detector, "-i", folder, "-o", tmp_path / "one.png", "-d", "cpu")
    assert result.status == 1
    assert "there are several" in result.err
    result = cli("run", detector, "-i", f"{folder}/*.bmp", "-d", "cpu")
    assert "matches no images" in result.err


def test_films(cli: Cli, tmp_path: Path, detector: Path) -> None:
    av = pytest.importorskip("av")
    film = tmp_path / "a.gif"
    frames = [Image.fromarray(stripes(48, 64 + n)).resize((64, 48)) for n in range(3)]
    frames[0].save(film, save_all=True, append_images=frames[1:])
    out = tmp_path / "out.mp4"
    assert cli("run", detector, "-i", film, "-o", out, "-d", "cpu").status == 0
    with av.open(str(out)) as container:
        assert len(list(container.decode(video=0))) == 3


NETWORKS = {
    "image-classification": lambda path: classifier(path),
    "object-detection": lambda path: canned(path, yolov8(), props=ULTRALYTICS),
    "image-segmentation": lambda path: canned(path, {"logits": half_maps()}),
    "instance-segmentation": lambda path: canned(
        path,
        {"output0": np.zeros((1, 38, 84), np.float32), "output1": np.zeros((1, 32, 16, 16))},
        props=SEGMENT,
    ),
    "depth-estimation": lambda path: canned(path, {"predicted_depth": np.ones((1, 64, 64))}),
    "image-matting": lambda path: canned(path, {"alpha": np.ones((1, 1, 64, 64))}),
    "pose-estimation": lambda path: canned(path, heat((96, 64)), (1, 3, 96, 64)),
    "image-to-image": lambda path: enlarger(path),
    "face-detection": lambda path: canned(path, scrfd()),
    "face-detection by YuNet": lambda path: canned(path, yunet()),
    "image-feature-extraction": lambda path: canned(path, {"embedding": np.ones((1, 8))}),
    "optical-character-recognition": lambda path: canned(
        path, {"t": np.ones((1, 5, 4)) / 4}, (1, 3, 48, 96), props={"character": "a\nb"}
    ),
}


@pytest.mark.parametrize("task", NETWORKS)
def test_the_task_is_told_from_the_network(
    cli: Cli, tmp_path: Path, street: Path, task: str
) -> None:
    result = cli("run", NETWORKS[task](tmp_path / "m.onnx"), "-i", street, "-d", "cpu", "--json")
    assert result.status == 0, result.err
    made = json.loads(result.out)
    assert made["task"] == task.partition(" ")[0]


def test_a_question_with_the_line_to_type(cli: Cli, tmp_path: Path, street: Path) -> None:
    """A single map of numbers may be a depth, a matte, a heat map: nobody can tell."""
    path = canned(tmp_path / "m.onnx", {"y": np.ones((1, 1, 64, 64))})
    result = cli("run", path, "-i", street, "-d", "cpu")
    assert result.status == 1
    assert "cannot determine the task of 'm.onnx'" in result.err
    assert f"vkmnn run {path} -i {street} --task" in result.err.replace("\n", "")
    for task in ("matte", "depth", "segment"):
        assert cli("run", path, "-i", street, "-d", "cpu", "--task", task).status == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--task", "detekt"], "did you mean detect"),
        (["--size", "big"], "is not a size"),
        (["--mean", "a,b"], "is not a list of numbers"),
        (["--set", "top"], "has no value"),
        (["--set", "topp=3"], "has no option 'topp'"),
        (["--labels", "none.txt"], "no such file"),
        (["-o", "out.doc"], "not saved as"),
        (["-o", "nowhere/out.png"], "does not exist"),
        (["-o", "/dev/null"], "the results cannot be saved to '/dev/null': it is no folder"),
        (["-i", "other=3"], "neither an image"),
        (["--compare", "cpu"], "--compare"),
    ],
)
def test_wrong_options(
    cli: Cli, tmp_path: Path, street: Path, options: list[str], words: str
) -> None:
    path = classifier(tmp_path / "m.onnx")
    result = cli("run", path, "-i", street, "-d", "cpu", *options)
    assert result.status == 1
    assert words in result.err.replace("\n", " ")


def test_options_of_pictures_need_one(cli: Cli, tmp_path: Path) -> None:
    result = cli("run", classifier(tmp_path / "m.onnx"), "-d", "cpu", "--labels", "l.txt")
    assert result.status == 1
    assert "--labels is for images" in result.err


def test_trimaps_on_the_command_line(cli: Cli, tmp_path: Path, street: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(vitmatte(), path)
    (tmp_path / "trimaps").mkdir()
    given = tmp_path / "trimaps" / "street.png"
    Image.fromarray(trimap(120, 200)).save(given)
    out = tmp_path / "cut.png"
    assert "--trimap FILE" in cli("run", path, "-i", street, "-d", "cpu").err
    for value in (given, given.parent):
        result = cli("run", path, "-i", street, "--trimap", value, "-o", out, "-d", "cpu")
        assert result.status == 0, result.err
    made = np.asarray(Image.open(out))
    assert made.shape == (120, 200, 4)
    assert made[:, 5:60, 3].mean() < made[:, 160:, 3].mean() - 80
    plain = canned(tmp_path / "plain.onnx", {"alpha": LOW})
    result = cli("run", plain, "-i", street, "--trimap", given, "-d", "cpu")
    assert "no option 'trimap'" in result.err


def test_videos_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rvm.onnx"
    onnx.save(rvm(), path)
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, frame in enumerate(FRAMES):
        Image.fromarray(frame).save(folder / f"{number}.png")
    film = tmp_path / "film.png"  # animated
    first, *others = (Image.fromarray(one) for one in FRAMES)
    first.save(film, save_all=True, append_images=others)
    for given in (folder, film):
        out = tmp_path / f"out of {given.name}"
        result = cli("run", path, "-i", given, "-o", out, "-d", "cpu")
        assert result.status == 0, result.err
        saved = sorted(out.iterdir())
        assert len(saved) == 3
        alpha = np.asarray(Image.open(saved[2]))[..., 3] / 255
        np.testing.assert_allclose(alpha, averaged(FRAMES, 1)[2], atol=4e-3)


def test_films_of_mattes_are_on_white(cli: Cli, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = canned(tmp_path / "m.onnx", {"alpha": np.zeros((1, 1, 64, 64))})
    film, out = tmp_path / "film.png", tmp_path / "out.mp4"
    Image.fromarray(FRAMES[0]).save(film, save_all=True, append_images=[Image.fromarray(FRAMES[1])])
    assert cli("run", path, "-i", film, "-o", out, "-d", "cpu").status == 0
    with av.open(str(out)) as container:
        assert min(one.to_ndarray(format="rgb24").min() for one in container.decode(video=0)) > 240
