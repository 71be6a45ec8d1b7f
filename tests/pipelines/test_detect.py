"""Detection: boxes encoded by each exporter's conventions are decoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import vkmnn
from tests.pipelines.networks import Array, canned

SIZE = 64
# Left, top, right, bottom in pixels of the input, class, score; the first two overlap.
THINGS = ((10.0, 20.0, 40.0, 52.0, 2, 0.9), (11.0, 21.0, 41.0, 53.0, 2, 0.6),
          (36.0, 18.0, 60.0, 44.0, 1, 0.8))  # fmt: skip
KEPT = (0, 2)
CLASSES = 4
NAMES = ("cat", "dog", "cow", "hen")
LABELS = {"names": json.dumps(dict(enumerate(NAMES)))}
ULTRALYTICS = {**LABELS, "stride": "32", "task": "detect", "imgsz": "[64, 64]"}
Outputs = Mapping[str, Array]


def logit(p: Any) -> Any:
    return np.log(p) - np.log1p(-np.asarray(p))


def centred(box: Any) -> tuple[float, float, float, float]:
    left, top, right, bottom = box[:4]
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def table(rows: int, columns: int) -> Array:
    """Rows of YOLO's: boxes of one pixel at the corner, without any score."""
    made = np.zeros((1, rows, columns), np.float32)
    made[:, :, :4] = 2
    return made


def yolov8() -> Outputs:
    made = table(84, 4 + CLASSES)
    for n, thing in enumerate(THINGS):
        made[0, 7 * n + 3, :4] = centred(thing)
        made[0, 7 * n + 3, 4 + thing[4]] = thing[5]
    return {"output0": made.transpose(0, 2, 1)}


def yolov5() -> Outputs:
    made = table(252, 5 + CLASSES)
    for n, thing in enumerate(THINGS):
        made[0, 7 * n + 3, :5] = *centred(thing), thing[5] / 0.95
        made[0, 7 * n + 3, 5 + thing[4]] = 0.95
    return {"output0": made}


def yolov6() -> Outputs:
    made = table(84, 5 + CLASSES)
    y, x = np.mgrid[:8, :8]
    made[0, :64, 0], made[0, :64, 1] = x.ravel() * 8 + 4, y.ravel() * 8 + 4
    made[0, 64:80, 0], made[0, 64:80, 1] = 32, 32
    made[:, :, 4] = 1
    for n, thing in enumerate(THINGS):
        made[0, 7 * n + 3, :4] = centred(thing)
        made[0, 7 * n + 3, 5 + thing[4]] = thing[5]
    return {"outputs": made}


def yolox() -> Outputs:
    made = np.zeros((1, 84, 5 + CLASSES), np.float32)
    for thing, cell in zip(THINGS, (8 * 4 + 3, 8 * 4 + 4, 64 + 4 * 1 + 3), strict=True):
        stride, first, wide = (8, 0, 8) if cell < 64 else (16, 64, 4)
        x, y, width, height = centred(thing)
        column, row = (cell - first) % wide, (cell - first) // wide
        made[0, cell, :4] = (x / stride - column, y / stride - row,
                             np.log(width / stride), np.log(height / stride))  # fmt: skip
        made[0, cell, 4], made[0, cell, 5 + thing[4]] = thing[5] / 0.95, 0.95
    return {"output": made}


def end_to_end() -> Outputs:
    made = np.zeros((1, 300, 6), np.float32)
    for n, kept in enumerate(KEPT):
        thing = THINGS[kept]
        made[0, n] = (*thing[:4], thing[5], thing[4])
    return {"output0": made}


def yolov7_rows() -> Outputs:
    rows = [(0, *THINGS[n][:4], THINGS[n][4], THINGS[n][5]) for n in KEPT]
    return {"output": np.array(rows, np.float32)}


ANCHORS5 = (((10, 13), (16, 30), (33, 23)), ((30, 61), (62, 45), (59, 119)),
            ((116, 90), (156, 198), (373, 326)))  # fmt: skip
ANCHORS4 = (((12, 16), (19, 36), (40, 28)), ((36, 75), (76, 55), (72, 146)),
            ((142, 110), (192, 243), (459, 401)))  # fmt: skip


def yolov5_grids() -> Outputs:
    """σ is applied by whoever reads them: x = (2σ - 0.5 + column) · stride, w = (2σ)² · anchor."""
    made = [np.full((1, 3, side, side, 5 + CLASSES), -12, np.float32) for side in (8, 4, 2)]
    for level, thing, anchor in zip((0, 0, 1), THINGS, (2, 1, 0), strict=True):
        stride = (8, 16, 32)[level]
        x, y, width, height = centred(thing)
        column, row = int(x / stride), int(y / stride)
        aw, ah = ANCHORS5[level][anchor]
        parts = ((x / stride - column + 0.5) / 2, (y / stride - row + 0.5) / 2,
                 np.sqrt(width / aw) / 2, np.sqrt(height / ah) / 2)  # fmt: skip
        own = made[level][0, anchor, row, column]
        own[:5] = logit([*parts, thing[5] / 0.95])
        own[5 + thing[4]] = logit(0.95)
    return {"stride_8": made[0], "stride_16": made[1], "stride_32": made[2]}


def flat_grids() -> Outputs:
    grids = yolov5_grids()
    return {
        name: g.transpose(0, 1, 4, 2, 3).reshape(1, -1, *g.shape[2:4]) for name, g in grids.items()
    }


def yolov4_grids() -> Outputs:
    """x = (σ · reach - (reach - 1) / 2 + column) · stride, w = exp · anchor."""
    made = [np.full((1, side, side, 3, 5 + CLASSES), -12, np.float32) for side in (8, 4, 2)]
    for level, thing, anchor in zip((0, 0, 1), THINGS, (2, 1, 0), strict=True):
        stride, reach = (8, 16, 32)[level], (1.2, 1.1, 1.05)[level]
        x, y, width, height = centred(thing)
        column, row = int(x / stride), int(y / stride)
        aw, ah = ANCHORS4[level][anchor]
        own = made[level][0, row, column, anchor]
        own[:2] = logit(
            (np.array([x / stride - column, y / stride - row]) + (reach - 1) / 2) / reach
        )
        own[2:4] = np.log([width / aw, height / ah])
        own[4], own[5 + thing[4]] = logit(thing[5] / 0.95), logit(0.95)
    return {f"Identity_{n}:0": each for n, each in enumerate(made)}


def yolov4_pair() -> Outputs:
    boxes = np.zeros((1, 252, 1, 4), np.float32)
    scores = np.zeros((1, 252, CLASSES), np.float32)
    for n, thing in enumerate(THINGS):
        boxes[0, n, 0], scores[0, n, thing[4]] = np.array(thing[:4]) / SIZE, thing[5]
    return {"boxes": boxes, "confs": scores}


def yolo_nas() -> Outputs:
    pair = yolov4_pair()
    return {"913": pair["boxes"][:, :, 0] * SIZE, "904": pair["confs"]}


def detr(extra: int) -> Outputs:
    logits = np.full((1, 20, CLASSES + extra), -8, np.float32)
    boxes = np.full((1, 20, 4), 0.5, np.float32)
    if extra:
        logits[:, :, -1] = 4
    for n, kept in enumerate(KEPT):
        thing = THINGS[kept]
        boxes[0, n] = np.array(centred(thing)) / SIZE
        if extra:
            logits[0, n] = -30
            logits[0, n, -1], logits[0, n, thing[4]] = np.log(1 - thing[5]), np.log(thing[5])
        else:
            logits[0, n, thing[4]] = logit(thing[5])
    return {"logits": logits, "pred_boxes": boxes}


def kept_arrays(first: int) -> tuple[Array, Array, Array]:
    things = np.array([THINGS[n] for n in KEPT], np.float32)
    return things[None, :, :4], things[None, :, 4] + first, things[None, :, 5]


def tensorflow() -> Outputs:
    boxes, classes, scores = kept_arrays(1)
    pad = ((0, 0), (0, 3))
    return {
        "detection_boxes": np.pad(boxes[:, :, [1, 0, 3, 2]] / SIZE, (*pad, (0, 0))),
        "detection_classes": np.pad(classes, pad, constant_values=1),
        "detection_scores": np.pad(scores, pad),
        "num_detections": np.array([2], np.float32),
    }


def tflite() -> Outputs:
    boxes, classes, scores = kept_arrays(0)
    return {"a": boxes[:, :, [1, 0, 3, 2]] / SIZE, "b": classes, "c": scores,
            "d": np.array([2], np.float32)}  # fmt: skip


def ssd_zoo() -> Outputs:
    boxes, classes, scores = kept_arrays(1)
    return {"bboxes": boxes / SIZE, "labels": classes.astype(np.int64), "scores": scores}


def torchvision() -> Outputs:
    boxes, classes, scores = kept_arrays(1)
    return {"3076": boxes[0], "3077": classes[0].astype(np.int64), "3078": scores[0]}


def efficientdet() -> Outputs:
    boxes, classes, scores = kept_arrays(1)
    zeros = np.zeros_like(classes)
    rows = np.concatenate(
        [zeros[..., None], boxes[..., [1, 0, 3, 2]], scores[..., None], classes[..., None]], 2
    )
    return {"detections:0": rows}


def efficientdet_raw(axis: int) -> Outputs:
    """Nine anchors a cell: 4 strides wide, scaled by cube roots of 2, 1:1, 1.4:0.7, 0.7:1.4."""
    scores = [np.full((1, s, s, 9 * CLASSES), -12, np.float32) for s in (8, 4, 2, 1, 1)]
    boxes = [np.zeros((1, s, s, 36), np.float32) for s in (8, 4, 2, 1, 1)]
    for thing, level, anchor in zip(THINGS, (0, 0, 1), (4, 0, 2), strict=True):
        stride = 8 * 2**level
        octave, ratio = divmod(anchor, 3)
        side = 4 * stride * 2 ** (octave / 3)
        aw, ah = np.array(((1, 1), (1.4, 0.7), (0.7, 1.4))[ratio]) * side
        x, y, width, height = centred(thing)
        column, row = int(x / stride), int(y / stride)
        cx, cy = (column + 0.5) * stride, (row + 0.5) * stride
        own = boxes[level][0, row, column, anchor * 4 : anchor * 4 + 4]
        own[:] = (y - cy) / ah, (x - cx) / aw, np.log(height / ah), np.log(width / aw)
        scores[level][0, row, column, anchor * CLASSES + thing[4]] = logit(thing[5])
    order = (0, 1, 2, 3) if axis == 3 else (0, 3, 1, 2)
    # Two levels of one cell have the same shape: those of the last level come last.
    names = [f"{kind}_{n}" for kind in ("class", "box") for n in range(5)]
    return {n: a.transpose(order) for n, a in zip(names, [*scores, *boxes], strict=True)}


def rtdetr_decoded() -> Outputs:
    boxes, classes, scores = kept_arrays(0)
    # In pixels of the picture, of 120 rows and 200 columns.
    whole = np.array([200, 120, 200, 120]) / SIZE
    return {"labels": classes.astype(np.int64), "boxes": boxes * whole, "scores": scores}


def counted() -> Outputs:
    boxes, classes, scores = kept_arrays(0)
    return {"num_dets": np.array([[2]]), "det_boxes": boxes, "det_scores": scores,
            "det_classes": classes.astype(np.int64)}  # fmt: skip


def yolov3_zoo() -> Outputs:
    """Boxes (top, left, bottom, right) of the picture, scores by class, and chosen indices."""
    boxes = np.zeros((1, 9, 4), np.float32)
    scores = np.zeros((1, CLASSES, 9), np.float32)
    for n, thing in enumerate(THINGS):
        whole = np.array([120, 200, 120, 200]) / SIZE
        boxes[0, n] = np.array(thing[:4])[[1, 0, 3, 2]] * whole
        scores[0, thing[4], n] = thing[5]
    rows = np.array([[0, THINGS[n][4], n] for n in KEPT])
    return {"yolonms_layer_1": boxes, "yolonms_layer_1:1": scores, "yolonms_layer_1:2": rows}


def paddle() -> Outputs:
    """Rows (class, score, left, top, right, bottom) of the picture, and how many there are."""
    boxes, classes, scores = kept_arrays(0)
    whole = boxes[0] * np.array([200, 120, 200, 120], np.float32) / SIZE
    rows = np.concatenate([classes[0][:, None], scores[0][:, None], whole], 1)
    return {"multiclass_nms3_0.tmp_0": rows, "multiclass_nms3_0.tmp_2": np.array([2])}


def yolov2() -> Outputs:
    """x = (σ + column) · 32, w = exp · anchor · 32, classes by softmax."""
    made = np.full((1, 5, 5 + CLASSES, 2, 2), -12, np.float32)
    for thing, anchor in zip(THINGS, (0, 1, 2), strict=True):
        x, y, width, height = centred(thing)
        column, row = int(x / 32), int(y / 32)
        aw, ah = ((1.08, 1.19), (3.42, 4.41), (6.63, 11.38))[anchor]
        own = made[0, anchor, :, row, column]
        own[:2] = logit([x / 32 - column, y / 32 - row])
        own[2:4] = np.log([width / 32 / aw, height / 32 / ah])
        own[4] = logit(thing[5])
        own[5:] = -30
        own[5 + thing[4]] = 30
    return {"grid": made.reshape(1, -1, 2, 2)}


def ssd_raw() -> Outputs:
    """Offsets from priors, variances 0.1 and 0.2; SSD300's first grid is 38×38, 4 a cell."""
    offsets = np.zeros((1, 8732, 4), np.float32)
    scores = np.zeros((1, 8732, CLASSES + 1), np.float32)
    scores[:, :, 0] = 1
    for n, thing in enumerate(THINGS):
        row, column = 10 + n, 20
        cx, cy, side = (column + 0.5) * 8 / 300, (row + 0.5) * 8 / 300, 30 / 300
        x, y, width, height = np.array(centred(thing)) / SIZE
        at = (row * 38 + column) * 4
        offsets[0, at, :2] = (x - cx) / side / 0.1, (y - cy) / side / 0.1
        offsets[0, at, 2:] = np.log([width / side, height / side]) / 0.2
        scores[0, at] = 0
        scores[0, at, [0, 1 + thing[4]]] = 1 - thing[5], thing[5]
    return {"boxes": offsets, "scores": scores}


def rf_detr() -> Outputs:
    made = detr(0)
    return {"dets": made["pred_boxes"], "labels": made["logits"]}


def yolo_nas_flat() -> Outputs:
    rows = [(0, *THINGS[n][:4], THINGS[n][5], THINGS[n][4]) for n in KEPT]
    return {"graph2_flat_predictions": np.array(rows, np.float32)}


def nanodet() -> Outputs:
    """Mean distances from a cell's corner, in strides: two neighbouring bins share them."""
    made = np.zeros((1, 85, CLASSES + 32), np.float32)
    for thing, (stride, first, wide) in zip(THINGS, ((8, 0, 8), (16, 64, 4), (8, 0, 8)),
                                            strict=True):  # fmt: skip
        column, row = round((thing[0] + thing[2]) / 2 / stride), round((thing[1] + thing[3]) / 2
                                                                        / stride)  # fmt: skip
        own = made[0, first + row * wide + column]
        own[thing[4]] = thing[5]
        x, y = column * stride, row * stride
        sides = np.array([x - thing[0], y - thing[1], thing[2] - x, thing[3] - y]) / stride
        bins = np.full((4, 8), 1e-9)
        low = np.floor(sides).astype(int)
        bins[np.arange(4), low], bins[np.arange(4), low + 1] = 1 - sides + low, sides - low + 1e-9
        own[CLASSES:] = np.log(bins).ravel()
    return {"output": made}


def letterboxed(x: float, y: float) -> tuple[float, float]:
    """200×120 becomes 64×38 in the middle of 64×64 (ultralytics: 13 rows above)."""
    return x * 200 / 64, (y - 13) * 120 / 38


def cornered(x: float, y: float) -> tuple[float, float]:
    return x * 200 / 64, y * 120 / 38


def stretched(x: float, y: float) -> tuple[float, float]:
    return x * 200 / 64, y * 120 / 64


Case = tuple[Callable[[], Outputs], Mapping[str, str], Callable[[float, float], Any]]
CASES: Mapping[str, Case] = {
    "yolov8": (yolov8, ULTRALYTICS, letterboxed),
    "yolov8, names only": (yolov8, LABELS, letterboxed),
    "yolov8 in parts of the size": (
        lambda: {"o": np.concatenate([(a := yolov8()["output0"])[:, :4] / SIZE, a[:, 4:]], 1)},
        ULTRALYTICS, letterboxed,
    ),
    "yolov5": (yolov5, {**LABELS, "stride": "32"}, letterboxed),
    "yolov6": (yolov6, LABELS, cornered),
    "yolox": (yolox, LABELS, cornered),
    "yolov10": (end_to_end, ULTRALYTICS, letterboxed),
    "yolov7 with suppression": (yolov7_rows, LABELS, letterboxed),
    "yolov5 grids": (yolov5_grids, LABELS, letterboxed),
    "yolov5 grids of channels": (flat_grids, LABELS, letterboxed),
    "yolov4 grids": (yolov4_grids, LABELS, letterboxed),
    "yolov4 boxes and scores": (yolov4_pair, LABELS, letterboxed),
    "yolo-nas": (yolo_nas, LABELS, letterboxed),
    "detr": (lambda: detr(1), LABELS, cornered),
    "rt-detr": (lambda: detr(0), LABELS, cornered),
    "rt-detr, decoded": (rtdetr_decoded, LABELS, stretched),
    "tensorflow": (tensorflow, LABELS, stretched),
    "tflite": (tflite, LABELS, stretched),
    "ssd": (ssd_zoo, LABELS, stretched),
    "torchvision": (torchvision, LABELS, cornered),
    "efficientdet": (efficientdet, LABELS, stretched),
    "efficientdet, raw": (lambda: efficientdet_raw(1), LABELS, stretched),
    "efficientdet, raw, channels last": (lambda: efficientdet_raw(3), LABELS, stretched),
    "yolov3 with suppression": (yolov3_zoo, LABELS, stretched),
    "paddle": (paddle, LABELS, stretched),
    "yolov2": (yolov2, LABELS, stretched),
    "ssd, raw": (ssd_raw, LABELS, stretched),
    "suppression by plug-in": (counted, LABELS, letterboxed),
    "rf-detr": (rf_detr, LABELS, stretched),
    "yolo-nas, one table": (yolo_nas_flat, LABELS, letterboxed),
    "nanodet": (nanodet, LABELS, stretched),
}  # fmt: skip
_MORE: dict[str, dict[str, tuple[int, list[int]]]] = {
    "rt-detr, decoded": {"orig_target_sizes": (TensorProto.INT64, [1, 2])},
    "yolov3 with suppression": {"image_shape": (TensorProto.FLOAT, [1, 2])},
    "paddle": {
        "scale_factor": (TensorProto.FLOAT, [1, 2]),
        "im_shape": (TensorProto.FLOAT, [1, 2]),
    },
    "detr": {"pixel_mask": (TensorProto.INT64, [1, 64, 64])},
}


@pytest.mark.parametrize("open_shapes", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_boxes_come_back(tmp_path: Path, street: Path, name: str, open_shapes: bool) -> None:
    outputs, props, back = CASES[name][0](), CASES[name][1], CASES[name][2]
    path = canned(
        tmp_path / "m.onnx", outputs, props=props, more=_MORE.get(name), open_shapes=open_shapes
    )
    with vkmnn.pipeline("detect", path, device="cpu", tell=list) as pipe:
        found = pipe(street)
    want = [THINGS[n] for n in KEPT]
    assert [(one.label.name, one.label.index % 5) for one in found] == [
        (NAMES[thing[4]], found[n].label.index) for n, thing in enumerate(want)
    ]
    for one, thing in zip(found, want, strict=True):
        corners = [*back(*thing[:2]), *back(*thing[2:4])]
        limited = np.clip(corners, 0, (200, 120, 200, 120))
        np.testing.assert_allclose(one.corners, limited, atol=0.05)
        assert one.score == pytest.approx(thing[5], abs=1e-3)


@pytest.mark.parametrize("side", [SIZE, 28])
def test_masks_of_boxes(tmp_path: Path, street: Path, side: int) -> None:
    """Mask R-CNN: masks of the canvas as torchvision exports them, or of the box in 28 rows."""
    masks = np.zeros((len(KEPT), 1, side, side), np.float32)
    masks[..., : side // 2] = 0.9  # the left half of the canvas, or of each box
    path = canned(tmp_path / "m.onnx", {**torchvision(), "3079": masks}, props=LABELS)
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        assert pipe.task == "instance-segmentation"
        found = pipe(street)
    rows, columns = np.mgrid[:120, :200]
    boxes = [(one, np.array(one.box.corners)) for one in found if one.box]
    assert [one.label.name for one, _ in boxes][:1] == [NAMES[THINGS[KEPT[0]][4]]]
    for one, (left, top, right, bottom) in boxes:
        middle = 100 if side == SIZE else (np.floor(left) + np.ceil(right)) / 2
        want = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        want &= columns < middle
        wrong = np.count_nonzero(one.pixels != want)
        assert wrong <= (bottom - top + right - left + 8) * 2, one


def test_keypoints_that_are_not_shown_are_named(tmp_path: Path, street: Path) -> None:
    """Keypoint R-CNN as torchvision exports it."""
    points = np.zeros((len(KEPT), 17, 3), np.float32)
    path = canned(tmp_path / "m.onnx", {**torchvision(), "3079": points}, props=LABELS)
    told: list[str] = []
    with vkmnn.pipeline("detect", path, device="cpu", tell=told.append) as pipe:
        assert len(pipe(street)) == len(KEPT)
        pipe(street)
    assert len([text for text in told if "keypoints" in text]) == 1


def test_turned_boxes(tmp_path: Path, street: Path) -> None:
    """Ultralytics' obb: the angle follows the scores."""
    made = table(84, 4 + CLASSES + 1)
    made[0, 3, :4], made[0, 3, 4 + 1], made[0, 3, -1] = (32, 32, 30, 10), 0.9, np.pi / 6
    path = canned(tmp_path / "m.onnx", {"output0": made.transpose(0, 2, 1)},
                  props={**ULTRALYTICS, "task": "obb"})  # fmt: skip
    with vkmnn.pipeline(None, path, device="cpu") as pipe:
        (found,) = pipe(street)
    turn = np.array([[np.cos(np.pi / 6), -0.5], [0.5, np.cos(np.pi / 6)]])
    corners = np.array([[-15, -5], [15, -5], [15, 5], [-15, 5]]) @ turn.T + 32
    want = [letterboxed(*corner) for corner in corners]
    np.testing.assert_allclose(found.outline, want, atol=0.01)
    np.testing.assert_allclose(found.corners, [*np.min(want, 0), *np.max(want, 0)], atol=0.01)


def test_classes_without_names_are_those_of_coco(tmp_path: Path, street: Path) -> None:
    made = table(189, 84)
    made[0, 3, :4], made[0, 3, 4 + 16] = (32, 32, 30, 10), 0.9
    said: list[str] = []
    path = canned(tmp_path / "m.onnx", {"output0": made.transpose(0, 2, 1)}, (1, 3, 96, 96))
    with vkmnn.pipeline("detect", path, device="cpu", tell=said.append) as pipe:
        assert pipe(street)[0].label.name == "dog"
    assert any("person, bicycle, … are assumed; choose with --labels" in note for note in said)
    with vkmnn.pipeline("detect", path, device="cpu", tell=list,
                        labels=[f"kind {n}" for n in range(80)]) as pipe:  # fmt: skip
        assert pipe(street)[0].label.name == "kind 16"


def test_settings_of_a_call(tmp_path: Path, street: Path) -> None:
    path = canned(tmp_path / "m.onnx", yolov8(), props=ULTRALYTICS)
    with vkmnn.pipeline("detect", path, device="cpu") as pipe:
        assert len(pipe(street)) == 2
        assert len(pipe(street, threshold=0.85)) == 1
        assert len(pipe(street, overlap=0.99)) == 3
        assert len(pipe(street, most=1)) == 1
        assert pipe(street, threshold=0.95).draw().size == (200, 120)
        with pytest.raises(vkmnn.InvalidInputError, match="did you mean threshold"):
            pipe(street, treshold=0.5)


def test_ultraface_has_one_class_besides_the_background(tmp_path: Path, street: Path) -> None:
    boxes = np.zeros((1, 4420, 4), np.float32)
    scores = np.tile(np.array([0.9, 0.1], np.float32), (1, 4420, 1))
    boxes[0, 7], scores[0, 7] = (0.25, 0.25, 0.5, 0.75), (0.2, 0.8)
    path = canned(tmp_path / "m.onnx", {"scores": scores, "boxes": boxes}, (1, 3, 240, 320))
    with vkmnn.pipeline(None, path, device="cpu", tell=list) as pipe:
        (found,) = pipe(street)
    assert found.label.name == "face"
    np.testing.assert_allclose(found.corners, [50, 30, 100, 90], atol=0.01)


def test_scores_that_are_no_probabilities_are_reported(tmp_path: Path, street: Path) -> None:
    made = table(84, 4 + CLASSES)
    made[0, 3, 4] = 7
    said: list[str] = []
    path = canned(tmp_path / "m.onnx", {"output0": made.transpose(0, 2, 1)}, props=LABELS)
    with vkmnn.pipeline("detect", path, device="cpu", tell=said.append) as pipe:
        pipe(street)
        pipe(street)
    assert [note for note in said if "from 0 to 7 are no probabilities" in note] == said[-1:]


def test_outputs_that_are_no_detectors(tmp_path: Path, street: Path) -> None:
    path = canned(tmp_path / "m.onnx", {"y": np.zeros((1, 5), np.float32)})
    with pytest.raises(vkmnn.InvalidInputError, match="no known detector matches"):
        vkmnn.pipeline("detect", path, device="cpu", tell=list)
