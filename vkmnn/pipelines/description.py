"""A model's description in its files: metadata, JSON files next to it, lists of labels."""

from __future__ import annotations

import ast
import json
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from vkmnn.base.config_file import Section, read_config, read_text
from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, ModelFileError

_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "image_processor.json")
_LABEL_FILES = ("labels.txt", "classes.txt", "imagenet_classes.txt", "class_names.txt",
                "synset.txt", "labels.json", "id2label.json")  # fmt: skip
_LABEL_KEYS = ("names", "labels", "classes", "class_names", "character", "id2label")
_MAX_LABELS = 1 << 20
_MAX_TEXT = 8 << 20


@dataclass(frozen=True, slots=True)
class Description:
    """Everything that a model's files say about its network.

    Attributes:
        name: the model's name, for messages.
        folder: the folder of the model's file; None for a model in memory.
        file: the model's file.
        properties: metadata of the model's file.
        config: config.json: transformers', timm's, diffusers'.
        processor: preprocessor_config.json, or its section on images.
    """

    name: str = "the model"
    folder: Path | None = None
    file: Path | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    config: Section = field(default_factory=lambda: Section(Path("config.json"), {}))
    processor: Section = field(default_factory=lambda: Section(Path(_PROCESSORS[0]), {}))

    def value(self, key: str) -> Any:
        """Return a metadata property as a Python value: numbers, lists, dictionaries, strings."""
        return parsed(self.properties.get(key))

    def labels(self) -> tuple[tuple[str, ...], str]:
        """Return the class names and their source; both empty if there are none."""
        for key in _LABEL_KEYS:
            names = label_names(self.value(key))
            if names:
                return names, f"'{key}' in the model's metadata"
        names = label_names(_mapping(self.config, "id2label")) or label_names(
            _mapping(self.config, "label_names")
        )
        if names:
            return names, str(self.config.path)
        if self.file is not None and self.file.suffix.lower() == ".tflite":
            names = _attached(self.file)
            if names:
                return names, str(self.file)
        for name in _LABEL_FILES if self.folder else ():
            path = self.folder / name if self.folder else Path()
            if path.is_file():
                return read_labels(path), str(path)
        return (), ""


def describe(
    path: Path | None, properties: Mapping[str, str], name: str = "the model"
) -> Description:
    """Collect the description of a model.

    Args:
        path: its file or folder; files next to it, or above a folder `onnx`, are read.
        properties: metadata of the file.
        name: its name if it has no file.

    Raises:
        ModelFileError: a file next to the model is damaged.
    """
    if path is None:
        return Description(name, properties=properties)
    folder = path if path.is_dir() else path.parent
    folders = [folder, *([folder.parent] if folder.name == "onnx" else [])]
    config = _first(folders, ("config.json",))
    processor = _first(folders, _PROCESSORS)
    if "image_processor" in processor:
        processor = processor.section("image_processor")
    home = folder if "onnx" not in folder.name else folders[-1]
    return Description(path.name, home, path, properties, config, processor)


def _first(folders: Sequence[Path], names: Sequence[str]) -> Section:
    paths = [folder / name for folder in folders for name in names]
    return read_config(next((path for path in paths if path.is_file()), paths[0]))


def _attached(path: Path) -> tuple[str, ...]:
    """Return the labels that TFLite's metadata attach to a model, in a zip archive at its end."""
    try:
        with zipfile.ZipFile(path) as attached:
            texts = [one for one in attached.infolist() if one.filename.endswith(".txt")]
            if not texts or texts[0].file_size > _MAX_TEXT:
                return ()
            return label_names(attached.read(texts[0]).decode("utf-8", "replace"))
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, zlib.error):
        return ()


def _mapping(section: Section, key: str) -> Any:
    """Return the list or object in a JSON file; None for other content."""
    if section.is_list(key):
        return section.texts(key)
    return section.section(key).names() if key in section else None


def parsed(text: str | None) -> Any:
    """Return a string parsed as JSON or as a Python literal, else unchanged; executes nothing."""
    if text is None or len(text) > _MAX_TEXT:
        return text
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
    return text


def label_names(value: Any) -> tuple[str, ...]:
    """Return names in order from a list, a dictionary by index, or lines of text."""
    if isinstance(value, str):
        lines = value.splitlines() if "\n" in value else value.split(",")
        return tuple(line.strip() for line in lines) if len(lines) > 1 else ()
    if isinstance(value, list | tuple):
        return tuple(str(one) for one in value[:_MAX_LABELS])
    if not isinstance(value, dict):
        return ()
    try:
        numbered = {int(key): str(one) for key, one in value.items()}
    except (TypeError, ValueError):
        try:  # label2id
            numbered = {int(one): str(key) for key, one in value.items()}
        except (TypeError, ValueError):
            return ()
    last = max(numbered, default=-1)
    if not -1 < last < _MAX_LABELS or min(numbered) < 0:
        return ()
    return tuple(numbered.get(number, str(number)) for number in range(last + 1))


_SYNSET = re.compile(r"n\d{8}\s+")


def read_labels(path: Path) -> tuple[str, ...]:
    """Return the names in a file: a JSON list or object, or one name per line.

    Raises:
        InvalidInputError: there is no such file, or it holds no names.
    """
    if not path.is_file():
        raise InvalidInputError(
            f"no such file: '{path}'", hint="a text file with one label per line"
        )
    try:
        text = read_text(path, _MAX_TEXT)
    except ModelFileError as error:
        raise InvalidInputError(
            error.message, hint="a text file with one label per line"
        ) from error
    found = parsed(text) if text.lstrip()[:1] in "[{" else text.splitlines()
    while isinstance(found, list) and found and not str(found[-1]).strip():
        found.pop()
    names = label_names(found)
    if not names:
        raise InvalidInputError(
            f"'{path}' holds no labels", hint="a text file with one label per line"
        )
    return tuple(_SYNSET.sub("", name).strip() for name in names)
