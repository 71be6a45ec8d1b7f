"""Inputs of `vkmnn run` for pipelines: images, videos, sounds and texts; and their options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vkmnn.base.config_file import read_text
from vkmnn.base.media import FILMS, PICTURES, SOUNDS, has_suffix
from vkmnn.cli.literals import FILLERS
from vkmnn.errors import InvalidInputError, ModelFileError

_MEDIA = PICTURES | FILMS | SOUNDS
_ARRAYS = frozenset({".npy", ".npz", ".json"})
_NAMED = re.compile(r"[\w.:/-]+=")


PAINTING = ("negative", "steps", "guidance", "strength")
"""Options of text-to-image with the names of its settings."""


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Pipeline-only options of `vkmnn run`, as typed."""

    task: str | None = None
    labels: Path | None = None
    threshold: float | None = None
    size: str | None = None
    mean: str | None = None
    std: str | None = None
    channels: str | None = None
    preprocess: str | None = None
    more: Sequence[str] = ()
    prompt: str | None = None
    negative: str | None = None
    steps: int | None = None
    guidance: float | None = None
    strength: float | None = None
    trimap: Path | None = None

    @property
    def given(self) -> list[str]:
        """The names of the given options."""
        names = ("task", "labels", "threshold", "size", "mean", "std", "channels", "preprocess",
                 "trimap", *PAINTING, "prompt")  # fmt: skip
        return [f"--{name}" for name in names if getattr(self, name) is not None] + (
            ["--set"] if self.more else []
        )


@dataclass(slots=True)
class Inputs:
    """Values of `--input`: files to process, texts, and values of other inputs."""

    files: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)


def read_inputs(texts: Sequence[str], on: str = "picture") -> Inputs:
    """Separate images, videos, sounds and folders from values; names before files are dropped.

    Args:
        texts: as typed.
        on: "text" if the task takes text: all inputs are texts, or files that contain one.
    """
    if on == "text":
        return Inputs(texts=[_text_of(text) for text in texts])
    found = Inputs()
    for text in texts:
        name, equals, value = text.partition("=")
        named = bool(equals) and not _exists(text)
        for one in (value,) if named else (text,):
            if _is_media(one):
                found.files.append(one)
                break
        else:
            found.values[name if equals else ""] = value if equals else text
    return found


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # no file can have this name
        return False


def _text_of(text: str) -> str:
    """Return a text as typed, or the content of a file."""
    path = Path(text.removeprefix("@"))
    if not text.startswith("@") and not (path.suffix == ".txt" and _exists(text)):
        return text
    try:
        return read_text(path)
    except ModelFileError as error:
        raise InvalidInputError(error.message, hint="a text in UTF-8") from error


def _is_media(text: str) -> bool:
    if has_suffix(text, _MEDIA):
        return True
    try:
        return any(has_suffix(one, PICTURES | SOUNDS) for one in Path(text).iterdir())
    except (OSError, ValueError):
        return False


def _is_words(text: str) -> bool:
    """Distinguish texts from input values: names before "=", fillers, JSON and array files."""
    if _NAMED.match(text) or text in FILLERS or not any(map(str.isalpha, text)):
        return False
    return text.lstrip()[:1] not in "[{" and not has_suffix(text, _ARRAYS)


def said_on(model: str, task: str | None) -> str | None:
    """Return the input kind of a task: "text", "sound" or "picture"; None without a task."""
    from vkmnn.cli.models import local_model
    from vkmnn.pipelines.guessing import said_by_folder
    from vkmnn.pipelines.tasks import task_of

    if task is None:
        path = local_model(model)
        said = said_by_folder(path) or said_by_folder(path.parent)
        task = said.task if said is not None else None
    return None if task in (None, "auto") else task_of(str(task)).on


def is_for_pipeline(inputs: Sequence[str], tasks: TaskOptions, model: str) -> bool:
    """Return whether to run a pipeline: on media files, or on texts for a text task.

    Args:
        inputs: as typed.
        tasks: the options of pipelines.
        model: the model, as typed.

    Raises:
        InvalidInputError: pipeline options without an input for a pipeline.
    """
    if tasks.prompt is not None or read_inputs(inputs).files:
        return True
    words = bool(inputs) and (bool(tasks.task) or all(map(_is_words, inputs)))
    if words and said_on(model, tasks.task) == "text":
        return True
    if not tasks.given:
        return False
    raise InvalidInputError(
        f"{tasks.given[0]} is for images, sounds and texts, and no input is one",
        hint="give an image, a video or a folder: -i street.jpg",
    )
