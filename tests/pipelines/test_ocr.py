"""Text in pictures: the shapes around it, the decoding, and published networks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

import vkmnn
from tests.pipelines.networks import Array, canned
from vkmnn.pipelines.heads.regions import (
    grown,
    least_rectangle,
    mean_within,
    regions_of,
    spelt,
    text_boxes,
)


def flooded(mask: Array) -> list[set[tuple[int, int]]]:
    """Return regions of 8-connected pixels (x, y), by flooding."""
    left = {(int(x), int(y)) for y, x in np.argwhere(mask)}
    found = []
    while left:
        todo = [left.pop()]
        region = set(todo)
        while todo:
            x, y = todo.pop()
            near = {(x + dx, y + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)} & left
            left -= near
            region |= near
            todo += near
        found.append(region)
    return found


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6])
@pytest.mark.parametrize("seed", range(6))
def test_regions_are_those_of_flooding(seed: int, share: float) -> None:
    mask = np.random.default_rng(seed).random((23, 31)) < share
    found, want = regions_of(mask), flooded(mask)
    assert len(found) == len(want)
    for points in found:
        (region,) = [one for one in want if tuple(points[0]) in one]
        assert {tuple(point) for point in points} <= region
        low, high = points.min(0), points.max(0)
        assert low.tolist() == np.min(list(region), 0).tolist()
        assert high.tolist() == np.max(list(region), 0).tolist()


@pytest.mark.parametrize("degrees", [0, 7, 30, 45, 80, -20])
def test_least_rectangles(degrees: float) -> None:
    angle = np.deg2rad(degrees)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    inside = np.random.default_rng(0).random((400, 2)) * [80, 20]
    points = np.concatenate([inside, [[0, 0], [80, 0], [80, 20], [0, 20]]]) @ turn.T + 100
    corners, width, height = least_rectangle(points)
    assert sorted((width, height)) == pytest.approx([20, 80])
    want = np.array([[0, 0], [80, 0], [80, 20], [0, 20]]) @ turn.T + 100
    distances = np.linalg.norm(corners[:, None] - want[None], axis=2).min(1)
    np.testing.assert_allclose(distances, 0, atol=1e-6)
    sides = np.linalg.norm(grown(corners, 3) - np.roll(grown(corners, 3), -1, 0), axis=1)
    assert sorted(sides) == pytest.approx([26, 26, 86, 86])


def test_means_within_polygons() -> None:
    values = np.arange(200, dtype=np.float32).reshape(10, 20)
    corners = np.array([[3.0, 2], [8, 2], [8, 5], [3, 5]])
    assert mean_within(values, corners) == pytest.approx(values[2:6, 3:9].mean())


def test_boxes_of_text_grow_by_area_over_perimeter() -> None:
    chances = np.zeros((60, 120), np.float32)
    chances[20:31, 30:91] = 0.9
    ((corners, score),) = text_boxes(chances, 0.3, 0.5, 1.6)
    by = 61 * 11 * 1.6 / (2 * 72)  # one pixel more on the right and below: the map is dilated
    want = [[30 - by, 20 - by], [91 + by, 20 - by], [91 + by, 31 + by], [30 - by, 31 + by]]
    np.testing.assert_allclose(corners, want, atol=1e-5)
    assert score == pytest.approx(0.9 * 61 * 11 / (62 * 12))
    assert text_boxes(chances, 0.3, 0.95, 1.6) == []


def test_spelling() -> None:
    columns = [0, 1, 1, 0, 1, 2, 2, 3, 0]
    chances = np.full((len(columns), 4), 0.1)
    chances[np.arange(len(columns)), columns] = 0.7
    assert spelt(chances, ["", "a", "b", " "]) == ("aab ", pytest.approx(0.7))
    assert spelt(chances[:1], ["", "a"]) == ("", 0.0)


def letters(path: Path, upside_down: float = 0) -> dict[str, Path]:
    """Save networks that find two lines and read "ab" in each."""
    chances = np.zeros((1, 1, 64, 128), np.float32)
    chances[0, 0, 40:50, 10:100] = 0.9
    chances[0, 0, 8:18, 20:110] = 0.8
    table = np.zeros((1, 6, 4), np.float32)
    table[0, np.arange(6), [0, 1, 1, 0, 2, 3]] = 1
    direction = np.array([[1 - upside_down, upside_down]], np.float32)
    return {
        "detection": canned(path / "det.onnx", {"map": chances}, (1, 3, 64, 128)),
        "recognition": canned(path / "rec.onnx", {"table": table}, (1, 3, 32, 96),
                              props={"character": "a\nb"}),
        "direction": canned(path / "cls.onnx", {"turned": direction}, (1, 3, 48, 192)),
    }  # fmt: skip


def test_lines_are_found_and_read(tmp_path: Path, street: Path) -> None:
    parts = letters(tmp_path)
    for model in (tmp_path, parts, {**parts, "direction": parts["direction"]}):
        with vkmnn.pipeline(None, model, device="cpu", tell=list) as pipe:
            assert pipe.task == "optical-character-recognition"
            found = pipe(street)
        assert found.text() == "ab \nab "
        assert found[0].corners[0, 1] < found[1].corners[0, 1]
    assert found.save(tmp_path / "o.txt").read_text() == "ab \nab \n"
    assert found.draw().size == (200, 120)


def test_dictionaries_have_to_fit(tmp_path: Path, street: Path) -> None:
    table = np.zeros((1, 6, 9), np.float32)
    path = canned(tmp_path / "rec.onnx", {"t": table}, (1, 3, 32, 96), props={"character": "a\nb"})
    with (
        vkmnn.pipeline("ocr", path, device="cpu", tell=list) as pipe,
        pytest.raises(vkmnn.InvalidInputError, match="9 characters, but 2 are named"),
    ):
        pipe(street)


# --- published networks ---------------------------------------------------------------------------

LINES = ("Vulkan runs it", "on any device", "2026-11-28")


@pytest.fixture(scope="module")
def page() -> Array:
    image = Image.new("RGB", (480, 200), (250, 248, 240))
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(LINES):
        draw.text((40, 20 + 60 * number), line, (20, 20, 30), ImageFont.load_default(34))
    return np.asarray(image)


def published() -> Path | None:
    for name in ("rapidocr_onnxruntime", "rapidocr"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent / "models"
            if list(folder.glob("*rec*.onnx")):
                return folder
    return None


@pytest.mark.slow
@pytest.mark.skipif(published() is None, reason="no wheel with OCR's networks is installed")
def test_published_networks_read_a_page(page: Array) -> None:
    with vkmnn.pipeline("ocr", published(), tell=list) as pipe:
        found = pipe(page)
    assert [one.text for one in found] == list(LINES)
    assert min(one.score for one in found) > 0.9
