"""The packages of the extra `keras`, and how they export a model."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from vkmnn.errors import MissingExtraError, ModelError, ModelFileError

_INSTALL = "pip install 'vkmnn[keras]'"
_OLDEST = (3, 11, 3)
"""Older ones run code that .h5 files bring, whatever they are told (CVE-2025-9905)."""


def need_keras(what: str) -> Any:
    """Return the package `keras`, after a check that it can export SavedModels.

    Args:
        what: what it is needed for, as the error says it.

    Raises:
        MissingExtraError: `keras` or `tensorflow` is not installed, too old, or Keras runs on
            another backend.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is first imported
    try:
        keras = importlib.import_module("keras")
        importlib.import_module("tensorflow")
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs the packages 'keras' and 'tensorflow': {error}", hint=_INSTALL
        ) from error
    version = str(keras.__version__)
    numbers = tuple(int(one) for one in version.split(".")[:3] if one.isdecimal())
    if numbers < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise MissingExtraError(
            f"{what} needs Keras {oldest} or newer, not {version}", hint=f"{_INSTALL} --upgrade"
        )
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise MissingExtraError(
            f"{what} needs Keras on TensorFlow, not on {backend}",
            hint="set KERAS_BACKEND=tensorflow before Keras is imported",
        )
    return keras


def load(path: Path) -> Any:
    """Return the model in a file. Code that the file brings is refused by Keras.

    Raises:
        MissingExtraError: as `need_keras`.
        ModelFileError: Keras cannot load it.
    """
    keras = need_keras(f"'{path}'")
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        raise ModelFileError(
            f"Keras cannot load '{path}': {_short(error)}",
            hint="register the classes of its own layers before (keras.saving."
            "register_keras_serializable); layers that bring code (Lambda) are never loaded",
        ) from error


def export(model: Any, folder: Path) -> None:
    """Write a model as a SavedModel.

    Raises:
        MissingExtraError: as `need_keras`.
        ModelError: Keras cannot export it.
    """
    need_keras("a Keras model")
    try:
        model.export(str(folder), format="tf_saved_model", verbose=False)
    except Exception as error:
        raise ModelError(
            f"Keras cannot export the model: {_short(error)}",
            hint="build it by calling it once, and see whether model.export(FOLDER) works",
        ) from error


def _short(error: Exception) -> str:
    lines = str(error).strip().split("\n")
    return f"{type(error).__name__}: {lines[0][:300]}"
