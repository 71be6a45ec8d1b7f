"""Keras's files and models, with a stand-in for Keras where it is not installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.model.test_tensorflow_saved_models import agrees, unpacked
from vkmnn.converter.front_end import find_front_end
from vkmnn.errors import MissingExtraError, ModelError, ModelFileError

HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(99)
ZIP = b"PK\x03\x04" + bytes(99)


class Model:
    """A model as Keras has them, which exports a stored folder."""

    name = "stored"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def export(self, path: str, format: str, verbose: bool) -> None:
        assert (format, verbose) == ("tf_saved_model", False)
        shutil.copytree(self.folder, path)


Model.__module__ = "keras.src.models.model"


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a stand-in for Keras, whose files all hold one model."""
    stored = Model(unpacked("recurrent", tmp_path))

    def load_model(path: Path, compile: bool, safe_mode: bool) -> Model:
        assert safe_mode
        assert not compile
        if path.read_bytes().startswith(b"PK\x03\x04bad"):
            raise ValueError("Requested the deserialization of a `Lambda` layer")
        return stored

    made: Any = ModuleType("keras")
    made.__version__ = "3.12.0"
    made.backend = SimpleNamespace(backend=lambda: "tensorflow")
    made.saving = SimpleNamespace(load_model=load_model)
    made.stored = stored
    monkeypatch.setitem(sys.modules, "keras", made)
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    return made


@pytest.mark.parametrize(("name", "content"), [("m.keras", ZIP), ("m.h5", HDF5), ("M.HDF5", HDF5)])
def test_files(name: str, content: bytes, keras: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with vkmnn.InferenceSession(tmp_path / name, "cpu") as session:
        agrees("recurrent", session)


def test_models_in_memory(keras: Any) -> None:
    with vkmnn.InferenceSession(keras.stored, "cpu") as session:
        agrees("recurrent", session)
    keras.stored.folder = Path("none")
    with pytest.raises(ModelError, match="Keras cannot export the model: FileNotFoundError"):
        vkmnn.InferenceSession(keras.stored, "cpu")


def test_code_in_files_is_not_run(keras: Any, tmp_path: Path) -> None:
    (tmp_path / "m.keras").write_bytes(b"PK\x03\x04bad")
    with pytest.raises(ModelFileError, match=r"Keras cannot load .*Lambda") as caught:
        vkmnn.InferenceSession(tmp_path / "m.keras", "cpu")
    assert "never loaded" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("version", "backend", "words"),
    [
        ("3.11.2", "tensorflow", "Keras 3.11.3 or newer, not 3.11.2"),
        ("2.15.0", "tensorflow", "Keras 3.11.3 or newer"),
        ("3.12.0", "jax", "on TensorFlow, not on jax"),
    ],
)
def test_keras_that_cannot_export(
    version: str, backend: str, words: str, keras: Any, tmp_path: Path
) -> None:
    keras.__version__ = version
    keras.backend = SimpleNamespace(backend=lambda: backend)
    (tmp_path / "m.h5").write_bytes(HDF5)
    with pytest.raises(MissingExtraError, match=words):
        vkmnn.InferenceSession(tmp_path / "m.h5", "cpu")


def test_without_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    (tmp_path / "m.keras").write_bytes(ZIP)
    with pytest.raises(MissingExtraError, match=r"m\.keras' needs the packages") as caught:
        vkmnn.InferenceSession(tmp_path / "m.keras", "cpu")
    assert caught.value.hint == "pip install 'vkmnn[keras]'"


def test_files_of_weights_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "m.weights.h5"
    path.write_bytes(HDF5)
    assert type(find_front_end(path)).__name__ != "KerasFrontEnd"
    with pytest.raises(ModelFileError, match="weights of Keras") as caught:
        vkmnn.InferenceSession(path, "cpu")
    assert "load_weights" in (caught.value.hint or "")
    assert type(find_front_end(np.ones(3))).__name__ != "KerasFrontEnd"
