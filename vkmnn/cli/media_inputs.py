"""Inputs of `vkmnn run` that are pictures and films, and the options that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vkmnn.base.media import FILMS, PICTURES, has_suffix
from vkmnn.errors import InvalidInputError

_MEDIA = PICTURES | FILMS


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options of `vkmnn run` that only pipelines have, as typed."""

    task: str | None = None
    labels: Path | None = None
    threshold: float | None = None
    size: str | None = None
    mean: str | None = None
    std: str | None = None
    channels: str | None = None
    preprocess: str | None = None
    more: Sequence[str] = ()

    @property
    def given(self) -> list[str]:
        """The names of those that were given."""
        names = ("task", "labels", "threshold", "size", "mean", "std", "channels", "preprocess")
        return [f"--{name}" for name in names if getattr(self, name) is not None] + (
            ["--set"] if self.more else []
        )


@dataclass(slots=True)
class Inputs:
    """What the options `--input` name: files to work on, and arrays for further inputs."""

    files: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)


def read_inputs(texts: Sequence[str]) -> Inputs:
    """Tell pictures, films and folders from values of inputs; names before files are dropped."""
    found = Inputs()
    for text in texts:
        name, equals, value = text.partition("=")
        named = bool(equals) and not Path(text).exists()
        for one in (value,) if named else (text,):
            if _is_media(one):
                found.files.append(one)
                break
        else:
            found.values[name if equals else ""] = value if equals else text
    return found


def _is_media(text: str) -> bool:
    if has_suffix(text, _MEDIA):
        return True
    try:
        return any(has_suffix(one, PICTURES) for one in Path(text).iterdir())
    except (OSError, ValueError):
        return False


def is_for_pipeline(inputs: Sequence[str], tasks: TaskOptions) -> bool:
    """Tell whether a run is a pipeline's: files of media, or a task that is named.

    Raises:
        InvalidInputError: options of pipelines without anything that one could run on.
    """
    if read_inputs(inputs).files:
        return True
    if not tasks.given:
        return False
    raise InvalidInputError(
        f"{tasks.given[0]} is for pictures, and no input is one",
        hint="give a picture, a film or a folder: -i street.jpg",
    )
