"""Pipelines needed last time are built immediately, and no content of a note does any harm."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from vkmnn.runtime.device import Device, enumerate_devices, open_device
from vkmnn.runtime.pipeline import complete_spec
from vkmnn.runtime.shader import flagged
from vkmnn.shaders import load_shader
from vkmnn.vulkan.plan import foreseen
from vkmnn.vulkan.plan.foreseen import Foreseen, Note

NEEDED = [
    (load_shader(name), complete_spec(load_shader(name), spec))
    for name, spec in (
        ("unary_map_f32_buffer", {}),
        ("softmax_rows_0_1_f32", {"HIGH": float("inf"), "LOG": True}),
        ("append_buffer", {}),
    )
]
NEEDED.append((flagged(NEEDED[0][0], frozenset({1})), NEEDED[0][1]))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all caches."""
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "caches"))
    return tmp_path / "caches"


@pytest.fixture
def device() -> Iterator[Device]:
    """A device on which nothing has been built."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    open_device("auto", validation=False).close()
    device = open_device("auto", validation=False)
    yield device
    device.close()


@pytest.fixture
def note(folder: Path, device: Device) -> Note:
    note = Note(folder, device.info, "a model")
    note.store(NEEDED)
    return note


def run(path: Path, size: Any = None) -> tuple[list[Any], Device]:
    """Open a model on a device that has built nothing; return the outputs and the device."""
    open_device("auto", validation=False).close()
    with vkmnn.InferenceSession(path, validation=False) as session:
        model = onnx.load(path)
        outputs = session.run(None, make_feeds(model, size or NETWORKS[path.stem].sizes[0]))
        return outputs, open_device("auto", validation=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "resnet.onnx"
    onnx.save(NETWORKS["resnet"].build(), path)
    return path


def notes(folder: Path) -> list[Path]:
    return sorted((folder / "foreseen").glob("*"))


# --- sessions ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("device")
def test_a_session_builds_what_it_needs_and_nothing_twice(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, opened = run(model)
    (path,) = notes(folder)
    noted = json.loads(path.read_text())
    assert len(noted) == opened.counts["pipelines"] > 3
    kept = path.stat().st_mtime_ns
    begun: list[int] = []
    settle = Foreseen.settle
    monkeypatch.setattr(
        Foreseen,
        "settle",
        lambda self, needed: (begun.append(len(self._noted)), settle(self, needed)),
    )
    again, opened = run(model)
    assert begun == [len(noted)]
    assert opened.counts["pipelines"] == len(noted)
    assert [item.stat().st_mtime_ns for item in notes(folder)] == [kept], "it was right"
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("wrong", [slice(0, 2), slice(0, 0), "other"])
def test_a_note_that_was_wrong_is_written_anew(folder: Path, model: Path, wrong: Any) -> None:
    first, _ = run(model)
    (path,) = notes(folder)
    right = path.read_bytes()
    noted = json.loads(right)
    other = [["append_buffer", {}], *noted[1:]]
    path.write_text(json.dumps(other if wrong == "other" else noted[wrong]))
    again, _ = run(model)
    assert path.read_bytes() == right
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.usefixtures("device")
def test_a_file_that_changes_is_another_model(folder: Path, model: Path) -> None:
    run(model)
    os.utime(model, ns=(1, 1))
    run(model)
    vkmnn.InferenceSession(model, validation=False, precision="normal").close()
    assert len(notes(folder)) >= 2
    vkmnn.InferenceSession(model.read_bytes(), validation=False).close()


@pytest.mark.usefixtures("device")
def test_a_folder_that_cannot_be_written_is_no_error(folder: Path, model: Path) -> None:
    folder.mkdir()
    (folder / "foreseen").write_text("in the way")
    first, _ = run(model)
    again, _ = run(model)
    assert first[0].shape == again[0].shape


def test_a_session_that_never_plans_leaves_nothing_running(
    folder: Path, model: Path, device: Device
) -> None:
    run(model)
    noted = json.loads(notes(folder)[0].read_text())
    device = open_device("auto", validation=False)
    device.close()
    session = vkmnn.InferenceSession(model, validation=False)
    session.close()
    device = open_device("auto", validation=False)
    assert device.gate.empty
    assert device.counts["pipelines"] <= len(noted)


# --- notes ---------------------------------------------------------------------------------------


def test_what_is_stored_is_loaded(note: Note, folder: Path, device: Device) -> None:
    assert note.load() == NEEDED
    assert Note(folder, device.info, "another").load() == []
    info = dataclasses.replace(device.info, driver_version="0.0")
    assert Note(folder, info, "a model").load() == []


def test_damage_costs_no_more_than_time(note: Note, device: Device) -> None:
    good = note.path.read_bytes()
    for position in range(len(good)):
        for data in (good[:position], good[:position] + b"7" + good[position + 1 :]):
            note.path.write_bytes(data)
            for shader, spec in note.load():
                assert complete_spec(shader, spec) == spec


@pytest.mark.parametrize(
    "text",
    [
        *(
            "[" * 100_000,
            "{}",
            "7",
            "null",
            '"text"',
            "[7]",
            "[[]]",
            "[[7, 8]]",
            '[["append_buffer"]]',
        ),
        *(
            '[["append_buffer", 7]]',
            '[["append_buffer", [1]]]',
            '[["no_such", {}]]',
            '[["append_buffer", {"N": 1}]]',
        ),
        '[["unary_map_f32_buffer", {"local_size_x": 1e400}]]',
        '[["unary_map_f32_buffer", {"local_size_x": NaN}]]',
        '[["unary_map_f32_buffer", {"local_size_x": "8"}]]',
        '[["unary_map_f32_buffer", {"local_size_x": null}]]',
    ],
)
def test_other_content_is_ignored(note: Note, text: str, caplog: pytest.LogCaptureFixture) -> None:
    note.path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert note.load() == []
    assert caplog.messages or text == "{}"


def test_a_note_of_others_is_ignored(note: Note) -> None:
    note.path.chmod(0o666)
    assert note.load() == []


def test_old_notes_make_room(folder: Path, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreseen, "MAX_NOTES", 3)
    made = [Note(folder, device.info, f"model {number}") for number in range(5)]
    for number, note in enumerate(made):
        note.store(NEEDED)
        os.utime(note.path, ns=(number, number))
    assert {note.path for note in made[2:]} == set(notes(folder))


def test_what_cannot_be_built_is_left_to_those_who_need_it(
    note: Note, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    shader, spec = NEEDED[0]
    huge = {**spec, "local_size_x": 1 << 30}
    note.store([(shader, huge), *NEEDED])
    begun = Foreseen(device, "a model")
    begun.settle(NEEDED)
    assert note.load() == NEEDED
    assert device.counts["pipelines"] <= len(NEEDED)
    begun.close()
    assert device.gate.empty


def test_a_device_that_is_closed_meanwhile(note: Note, device: Device) -> None:
    begun = Foreseen(device, "a model")
    device.close()
    begun.close()
    assert not device.stats()
