"""Models with several networks: a folder or a dictionary, each network by its role."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vkmnn.errors import InvalidInputError, ModelFileError, nearest
from vkmnn.pipelines.networks import Loaded, Model, load
from vkmnn.pipelines.options import Options

OCR = {"detection": r"det", "recognition": r"rec", "direction": r"cls|direction|angle"}
FACES = {"detector": r"det|scrfd|yunet|retina|face_detection",
         "embedder": r"rec|arcface|embed|w600k|sface|glint"}  # fmt: skip
SAM = {"encoder": r"encoder(?!.*decoder)", "decoder": r"decoder"}
CLIP = {"pictures": r"vision|visual|image", "texts": r"text"}
FOLDERS: Sequence[tuple[str, Mapping[str, str], Sequence[str]]] = (
    ("optical-character-recognition", OCR, ("detection", "recognition")),
    ("zero-shot-image-classification", CLIP, ("pictures", "texts")),
    ("mask-generation", SAM, ("encoder", "decoder")),
)
"""Tasks of folders: file patterns by role, and the roles that identify the task."""

_SUFFIXES = (".onnx", ".vkmnn", ".mnn", ".tflite")
Roles = Mapping[str, str]
"""File patterns by role."""


def find_parts(model: Model, roles: Roles, task: str) -> dict[str, Model]:
    """Return the networks of a model by their roles.

    Args:
        model: a dictionary of networks by role, or a folder; other models yield no roles.
        roles: patterns of the folder's files by role.
        task: its name, for messages.

    Raises:
        InvalidInputError: a role is unknown.
        ModelFileError: the folder holds none of these files, or several for a role.
    """
    if isinstance(model, Mapping):
        for role in model:
            if role not in roles:
                hint = nearest(str(role), roles, "networks")
                raise InvalidInputError(f"'{task}' has no network '{role}'", hint=hint)
        return dict(model)
    if not isinstance(model, str | Path) or not Path(model).is_dir():
        return {}
    folder = Path(model)
    files = sorted(
        path
        for place in (folder, folder / "onnx")
        if place.is_dir()
        for path in place.iterdir()
        if path.suffix in _SUFFIXES
    )
    found: dict[str, Any] = {}
    for role, pattern in roles.items():
        fitting = [path for path in files if re.search(pattern, path.stem, re.IGNORECASE)]
        if len(fitting) > 1:
            names = ", ".join(path.name for path in fitting)
            raise ModelFileError(
                f"'{folder}' has several networks for '{role}': {names}",
                hint=f"name one: {{'{role}': 'path'}}",
            )
        if fitting:
            found[role] = fitting[0]
    return found


def load_parts(
    model: Model, roles: Roles, needed: Sequence[str], options: Options, task: str
) -> dict[str, Loaded]:
    """Load the networks of a model by their roles.

    Raises:
        ModelFileError: a required one is missing.
        ModelError: as `load`.
    """
    found = find_parts(model, roles, task)
    missing = [role for role in needed if role not in found]
    if missing:
        names = ", ".join(f"'{role}'" for role in needed)
        raise ModelFileError(
            f"'{task}' needs the networks {names}; '{missing[0]}' is missing",
            hint="pass a dictionary of paths, or a folder whose file names contain them",
        )
    return {role: load(each, options) for role, each in found.items()}


def task_of_parts(model: Model) -> str | None:
    """Return the task of a folder or dictionary by its networks' roles; None for other models."""
    for task, roles, telling in FOLDERS:
        if isinstance(model, Mapping):
            known = set(model) <= set(roles) and set(telling) <= set(model)
        else:
            known = set(telling) <= set(find_parts(model, roles, task))
        if known:
            return task
    if isinstance(model, Mapping):
        return "face-detection" if set(model) <= set(FACES) else None
    return None
