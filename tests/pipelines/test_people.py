"""Poses and faces: points that are encoded as exporters write them come back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from PIL import Image

import vkmnn
from tests.pipelines.networks import Array, canned, stripes
from vkmnn.pipelines.vision.faces import TEMPLATE, aligned
from vkmnn.pipelines.warping import similarity

POINTS = np.stack([np.linspace(14, 50, 17), 20 + 3 * np.sqrt(np.arange(17))], 1)


def test_people_and_their_points(tmp_path: Path, street: Path) -> None:
    """YOLO-pose: x, y and how visible each point is, behind box and score."""
    table = np.zeros((1, 84, 4 + 1 + 51), np.float32)
    table[:, :, :4] = 2
    table[0, 9, :5] = 32, 30, 40, 24, 0.8
    table[0, 9, 5:] = np.concatenate([POINTS, np.full((17, 1), 0.7)], 1).ravel()
    props = {"names": "{0: 'person'}", "stride": "32", "task": "pose", "imgsz": "[64, 64]",
             "kpt_shape": "[17, 3]"}  # fmt: skip
    path = canned(tmp_path / "m.onnx", {"output0": table.transpose(0, 2, 1)}, props=props)
    with vkmnn.pipeline(None, path, device="cpu") as pipe:
        (found,) = result = pipe(street)
    want = (POINTS - [0, 13]) * [200 / 64, 120 / 38]
    np.testing.assert_allclose(found.points, want, atol=0.01)
    assert found.names[0] == "nose"
    assert found.score == pytest.approx(0.8)
    assert list(result.to_dict()[0]["keypoints"]) == list(found.names)
    assert result.draw().size == (200, 120)


def simcc(size: tuple[int, int]) -> dict[str, Array]:
    x, y = (np.zeros((1, 17, side * 2), np.float32) for side in size[::-1])
    x[0, np.arange(17), np.rint(POINTS[:, 0] * 2).astype(int)] = 0.9
    y[0, np.arange(17), np.rint(POINTS[:, 1] * 2).astype(int)] = 0.8
    return {"simcc_x": x, "simcc_y": y}


def heat(size: tuple[int, int]) -> dict[str, Array]:
    """Bells around the points, a quarter of the size."""
    y, x = np.mgrid[: size[0] // 4, : size[1] // 4]
    maps = [np.exp(-((x - px / 4) ** 2 + (y - py / 4) ** 2) / 2) for px, py in POINTS]
    return {"heatmaps": np.array(maps, np.float32)[None]}


@pytest.mark.parametrize(("kind", "bar"), [(simcc, 1.0), (heat, 5.0)])
def test_points_of_one_person(tmp_path: Path, kind: object, bar: float) -> None:
    path = canned(tmp_path / "m.onnx", kind((96, 64)), (1, 3, 96, 64))  # type: ignore[operator]
    picture = stripes(192, 128)
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        assert pipe.task == "pose-estimation"
        (found,) = pipe(picture)
        np.testing.assert_allclose(found.points, POINTS * 2, atol=bar)
        (boxed,) = pipe(picture, boxes=[(20, 40, 84, 136)])
    # The region is the box in the input's shape, a quarter larger: 80×120 around (52, 88).
    np.testing.assert_allclose(boxed.points, POINTS * 1.25 + [12, 28], atol=bar)
    assert boxed.box is not None
    assert boxed.box.corners == (20, 40, 84, 136)


FACE = np.array([[24.0, 24], [40, 25], [32, 34], [26, 42], [39, 43]])
CORNERS = (16.0, 12.0, 48.0, 52.0)


def scrfd() -> dict[str, Array]:
    """Distances to the sides and points from the centre of a cell, in strides; two anchors."""
    made: dict[str, Array] = {}
    for columns, name in ((1, "score"), (4, "bbox"), (10, "kps")):
        for stride in (8, 16, 32):
            count = (64 // stride) ** 2 * 2
            made[f"{name}_{stride}"] = np.zeros((count, columns), np.float32)
    row = (2 * 4 + 2) * 2  # the cell (32, 32) of stride 16
    made["score_16"][row] = 0.9
    made["bbox_16"][row] = np.array([32 - CORNERS[0], 32 - CORNERS[1], CORNERS[2] - 32,
                                     CORNERS[3] - 32]) / 16  # fmt: skip
    made["kps_16"][row] = ((FACE - 32) / 16).ravel()
    return made


def yunet() -> dict[str, Array]:
    made: dict[str, Array] = {}
    for columns, name in ((1, "cls"), (1, "obj"), (4, "bbox"), (10, "kps")):
        for stride in (8, 16, 32):
            made[f"{name}_{stride}"] = np.zeros((1, (64 // stride) ** 2, columns), np.float32)
    row = 2 * 4 + 2
    made["cls_16"][0, row], made["obj_16"][0, row] = 0.9, 0.9
    made["bbox_16"][0, row] = 0, 0, np.log(32 / 16), np.log(40 / 16)
    made["kps_16"][0, row] = ((FACE - 32) / 16).ravel()
    return made


def retinaface() -> dict[str, Array]:
    """Offsets from the first anchor, of 16 pixels, in the cell (32 to 40, 32 to 40)."""
    made = {"loc": np.zeros((1, 168, 4), np.float32), "conf": np.zeros((1, 168, 2), np.float32),
            "landms": np.zeros((1, 168, 10), np.float32)}  # fmt: skip
    made["conf"][..., 0] = 1
    row = (4 * 8 + 4) * 2
    made["conf"][0, row] = 0.1, 0.9
    made["loc"][0, row] = (-4 / 1.6, -4 / 1.6, np.log(32 / 16) / 0.2, np.log(40 / 16) / 0.2)
    made["landms"][0, row] = ((FACE - 36) / 1.6).ravel()
    return made


@pytest.mark.parametrize("kind", [scrfd, yunet, retinaface])
def test_faces(tmp_path: Path, street: Path, kind: object) -> None:
    path = canned(tmp_path / "m.onnx", kind())  # type: ignore[operator]
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        assert pipe.task == "face-detection"
        (found,) = pipe(street)
    scale = np.array([200 / 64, 120 / 38])
    np.testing.assert_allclose(found.points, FACE * scale, atol=0.01)
    want = (np.array(CORNERS).reshape(2, 2) * scale).ravel()
    np.testing.assert_allclose(found.box.corners, np.minimum(want, (200, 120) * 2), atol=0.01)
    assert found.score == pytest.approx(0.9)


def test_faces_by_blazeface(tmp_path: Path, street: Path) -> None:
    """Pixels from the middle of a cell of 8×8, at 128×128; six points, and scores as logits."""
    values, scores = np.zeros((1, 896, 16), np.float32), np.full((1, 896, 1), -9, np.float32)
    row = (4 * 16 + 5) * 2
    points = np.array([[40.0, 40], [60, 40], [50, 50], [50, 60], [30, 44], [70, 44]])
    values[0, row, :4] = 50 - 44, 50 - 36, 40, 48
    values[0, row, 4:] = (points - [44, 36]).ravel()
    scores[0, row] = np.log(9)
    outputs = {"regressors": values, "classificators": scores}
    path = canned(tmp_path / "m.onnx", outputs, (1, 128, 128, 3))
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        assert pipe.task == "face-detection"
        (found,) = pipe(street)
    back = np.array([200 / 128, 120 / 77])
    np.testing.assert_allclose(found.points, (points - [0, 25]) * back, atol=0.01)
    np.testing.assert_allclose(found.box.corners, np.array([30, 1, 70, 49]) * np.tile(back, 2),
                               atol=0.01)  # fmt: skip
    assert found.score == pytest.approx(0.9)


def ssd_anchors(size: int, strides: Sequence[int]) -> Array:
    """Return the anchors of MediaPipe's calculator: two per layer, layers of a stride together."""
    made, layer = [], 0
    while layer < len(strides):
        alike = sum(one == strides[layer] for one in strides)
        cells = -(-size // strides[layer])
        for y in range(cells):
            for x in range(cells):
                made += [((x + 0.5) / cells, (y + 0.5) / cells)] * 2 * alike
        layer += alike
    return np.array(made) * size


@pytest.mark.parametrize(
    ("size", "strides", "columns", "task", "name"),
    [
        (256, (16, 32, 32, 32), 16, "face-detection", "face"),
        (192, (8, 16, 16, 16), 18, "pose-estimation", "palm"),
        (256, (8, 16, 32, 32, 32), 18, "pose-estimation", "palm"),
        (224, (8, 16, 32, 32, 32), 12, "pose-estimation", "person"),
        (128, (8, 16, 16, 16), 12, "pose-estimation", "person"),
    ],
)
def test_detectors_of_mediapipe(
    tmp_path: Path, street: Path, size: int, strides: Sequence[int], columns: int, task: str,
    name: str,
) -> None:  # fmt: skip
    """A row of each grid: offsets from the anchor in pixels; the second is a weaker duplicate."""
    anchors = ssd_anchors(size, strides)
    values = np.zeros((1, len(anchors), columns), np.float32)
    scores = np.full((1, len(anchors), 1), -9, np.float32)
    corners = np.array([0.2, 0.35, 0.5, 0.6]) * size
    points = np.linspace(0.25, 0.55, columns - 4).reshape(-1, 2) * size
    for row, logit in ((7, np.log(9)), (len(anchors) - 5, 0.5)):
        values[0, row, :2] = (corners[:2] + corners[2:]) / 2 - anchors[row]
        values[0, row, 2:4] = corners[2:] - corners[:2]
        values[0, row, 4:] = (points - anchors[row]).ravel()
        scores[0, row] = logit
    path = canned(tmp_path / "m.onnx", {"Identity": values, "Identity_1": scores},
                  (1, size, size, 3))  # fmt: skip
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        assert pipe.task == task
        (found,) = pipe(street)
    scale, top = 200 / size, (size - round(size * 0.6)) // 2
    np.testing.assert_allclose(found.points, (points - [0, top]) * scale, atol=0.6)
    want = (corners - [0, top, 0, top]) * scale
    np.testing.assert_allclose(found.box.corners, want, atol=0.6)
    assert found.score == pytest.approx(0.9)
    assert found.box.label.name == name


@pytest.mark.parametrize(("count", "numbers"), [(33, 5), (21, 3), (468, 3)])
def test_landmarks(tmp_path: Path, street: Path, count: int, numbers: int) -> None:
    """BlazePose has six more points; presence and visibility are logits or probabilities."""
    table = np.full((39 if numbers == 5 else count, numbers), 0.7, np.float32)
    points = np.stack([np.linspace(14, 50, count), 20 + np.sqrt(np.arange(count))], 1)
    table[:count, :2] = points
    logit = count == 468
    presence = np.array([[np.log(9) if logit else 0.9]], np.float32)
    outputs = {"Identity": table.reshape(1, -1), "Identity_1": presence}
    if count == 33:
        outputs["Identity_2"] = np.zeros((1, 64, 64, 1), np.float32)
        outputs["world"] = np.zeros((1, 117), np.float32)
    path = canned(tmp_path / "m.onnx", outputs, (1, 64, 64, 3))
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        assert pipe.task == "pose-estimation"
        (found,) = pipe(street)
        np.testing.assert_allclose(found.points, (points - [0, 13]) * [200 / 64, 120 / 38],
                                   atol=0.01)  # fmt: skip
        want = 1 / (1 + np.exp(-0.7)) if numbers == 5 else 0.9
        np.testing.assert_allclose(found.scores, want, rtol=1e-5)
        assert len(pipe(street, threshold=0.95)) == 0
        (one,) = pipe(street, boxes=[(20, 10, 84, 74)])  # in a square around the box
        assert one.box.corners == (20, 10, 84, 74)
        assert np.ptp(one.points[:, 0]) == pytest.approx(36 * 80 / 64, rel=0.01)


@pytest.mark.parametrize("kind", ["RTMO", "Keypoint R-CNN"])
def test_people_with_points_of_their_own_output(tmp_path: Path, street: Path, kind: str) -> None:
    """Two rows, of which one is below the threshold."""
    boxes = np.array([[10, 10, 50, 40], [0, 0, 9, 9]], np.float32)
    scores = np.array([0.8, 0.1], np.float32)
    points = np.zeros((2, 17, 3), np.float32)
    points[0] = np.concatenate([POINTS, np.full((17, 1), 0.7)], 1)
    if kind == "RTMO":
        dets = np.concatenate([boxes, scores[:, None]], 1)
        outputs = {"dets": dets[None], "keypoints": points[None]}
    else:
        outputs = {"boxes": boxes, "labels": np.array([1, 1]), "scores": scores,
                   "keypoints": points, "keypoints_scores": points[..., 2]}  # fmt: skip
    path = canned(tmp_path / "m.onnx", outputs)
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        assert pipe.task == "pose-estimation"
        (found,) = pipe(street)
        assert len(pipe(street, threshold=0.9)) == 0
    scale = [200 / 64, 120 / 38]  # RTMO's image is in the corner; the other network's is padded
    np.testing.assert_allclose(found.points, POINTS * scale, atol=0.01)
    np.testing.assert_allclose(found.scores, 0.7)
    assert (found.box.label.name, found.score) == ("person", pytest.approx(0.8))


def test_movenet(tmp_path: Path, street: Path) -> None:
    """Row, column and score as fractions; pixels are int32 from 0 to 255."""
    rows = np.concatenate([POINTS[:, ::-1] / 64, np.full((17, 1), 0.8)], 1).astype(np.float32)
    path = canned(tmp_path / "m.onnx", {"output_0": rows[None, None]}, (1, 64, 64, 3),
                  kind=TensorProto.INT32)  # fmt: skip
    want = (POINTS - [0, 13]) * [200 / 64, 120 / 38]
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        (found,) = pipe(street)
        np.testing.assert_allclose(found.points, want, atol=0.01)
        assert len(pipe(street, threshold=0.9)) == 0
    people = np.zeros((1, 6, 56), np.float32)
    people[0, 0, :51], people[0, 0, 51:] = rows.ravel(), (0.3, 0.2, 0.6, 0.7, 0.9)
    path = canned(tmp_path / "six.onnx", {"output_0": people}, (1, 64, 64, 3),
                  kind=TensorProto.INT32)  # fmt: skip
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        (found,) = pipe(street)
    np.testing.assert_allclose(found.points, want, atol=0.01)
    corners = np.array([12.8, 6.2, 44.8, 25.4]) * np.tile([200 / 64, 120 / 38], 2)
    np.testing.assert_allclose(found.box.corners, corners, atol=0.01)


def test_people_without_metadata(tmp_path: Path, street: Path) -> None:
    """YOLO-pose is told by its 56 values a box."""
    table = np.zeros((1, 84, 56), np.float32)
    table[:, :, :4] = 2
    table[0, 9, :5] = 32, 30, 40, 24, 0.8
    table[0, 9, 5:] = np.concatenate([POINTS, np.full((17, 1), 0.7)], 1).ravel()
    path = canned(tmp_path / "m.onnx", {"output0": table.transpose(0, 2, 1)})
    for task in (None, "pose"):
        with vkmnn.pipeline(task, path, device="cpu", tell=list) as pipe:
            assert pipe.task == "pose-estimation"
            (found,) = pipe(street)
        np.testing.assert_allclose(found.points, (POINTS - [0, 13]) * [200 / 64, 120 / 38],
                                   atol=0.01)  # fmt: skip


def test_embeddings_of_faces(tmp_path: Path, street: Path) -> None:
    detector = canned(tmp_path / "det.onnx", scrfd())
    vector = np.arange(1, 9, dtype=np.float32)[None]
    embedder = canned(tmp_path / "arcface.onnx", {"683": vector}, (1, 3, 112, 112))
    parts = {"detector": detector, "embedder": embedder}
    for model in (parts, tmp_path):
        with vkmnn.pipeline("face", model, device="cpu", tell=list) as pipe:
            (found,) = pipe(street)
        np.testing.assert_allclose(found.embedding, vector[0] / np.linalg.norm(vector), atol=1e-6)
        assert found.similarity(found) == pytest.approx(1)
    with pytest.raises(vkmnn.InvalidInputError, match="no network 'embeder'"):
        vkmnn.pipeline("face", {"embeder": embedder})


def test_alignment() -> None:
    """A face that is turned and enlarged comes upright to ArcFace's places."""
    angle = np.deg2rad(20)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points = TEMPLATE @ turn.T * 1.7 + [60, 20]
    matrix = similarity(points, TEMPLATE)
    np.testing.assert_allclose(points @ matrix[:, :2].T + matrix[:, 2], TEMPLATE, atol=1e-9)
    picture = np.zeros((300, 300, 3), np.uint8)
    x, y = np.rint(points[0]).astype(int)
    picture[y - 6 : y + 7, x - 6 : x + 7] = 255
    found = aligned(picture, points)
    weights = found[..., 0].astype(float)
    rows, columns = np.indices(weights.shape)
    centre = (weights * columns).sum() / weights.sum(), (weights * rows).sum() / weights.sum()
    assert centre == pytest.approx(tuple(TEMPLATE[0]), abs=0.6)


def test_pictures_as_vectors(tmp_path: Path, street: Path) -> None:
    states = np.zeros((1, 5, 4), np.float32)
    states[0, 0] = 3, 0, 4, 0
    path = canned(tmp_path / "m.onnx", {"last_hidden_state": states}, (1, 3, 32, 32))
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        assert pipe.task == "image-feature-extraction"
        one, other = pipe([street, Image.open(street)])
    np.testing.assert_allclose(one.vector, [0.6, 0, 0.8, 0])
    assert one.similarity(other) == pytest.approx(1)
    assert len(json.loads(one.to_json())) == 4
