"""Folders of models: local ones, and those on a hub."""

from __future__ import annotations

import re
from pathlib import Path

from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError, ModelFileError

_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
GGUF = ".gguf"
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model")


def find_folder(model: str | Path, revision: str | None = None, variant: str | None = None) -> Path:
    """Return the folder of a model, or its GGUF file if it needs no others.

    Args:
        model: a folder, a model's file in one, or `owner/name`, optionally after `hf://`, which is
            downloaded unless the hub's cache has it. `HF_HUB_OFFLINE`, `HF_HOME` and `HF_TOKEN`
            hold, as for all programs that use the hub.
        revision: a commit, tag or branch of the hub's model.
        variant: which files are wanted, `q4` for example; all of them by default.

    Raises:
        ModelFileError: there is no such folder, or the hub does not have it.
        InvalidInputError: a revision of a folder on this machine.
        MissingExtraError: `huggingface_hub` is needed and not installed.
    """
    text = str(model)
    path = Path(model)
    if not text.startswith("hf://") and _is_there(path):
        if revision is not None:
            raise InvalidInputError(
                f"'{path}' is a folder on this machine, which has no revisions",
                hint="leave out the revision",
            )
        return path if path.is_dir() or path.suffix.lower() == GGUF else path.parent
    name = text.removeprefix("hf://")
    name, _, tag = name.partition("@")
    if not _ID.fullmatch(name):
        raise ModelFileError(
            f"there is no folder '{text}'",
            hint="name a folder, or a model of the hub: owner/name",
        )
    return _downloaded(name, revision or tag or None, variant)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"'{path}' cannot be read: {error}", hint="check the path and its permissions"
        ) from error


def _downloaded(name: str, revision: str | None, variant: str | None) -> Path:
    hub = need("huggingface_hub", "loading a model from the hub")
    errors = need("huggingface_hub.errors", "loading a model from the hub")
    patterns = None if variant is None else [*_SMALL, *_files_of(variant)]
    try:
        found = hub.snapshot_download(name, revision=revision, allow_patterns=patterns)
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, ValueError, OSError) as error:
        first = str(error).strip().split("\n")[0]
        raise ModelFileError(
            f"'{name}'{f' at {revision}' if revision else ''} cannot be downloaded from the hub: "
            f"{first}",
            hint="check the name, the network and HF_HUB_OFFLINE, or pass a folder",
        ) from error
    return Path(found)


def _files_of(variant: str) -> list[str]:
    """Return patterns of the files that belong to a variant."""
    suffix = "" if variant in ("", "fp32") else f"_{variant}"
    return [f"*{suffix}.onnx", f"*{suffix}.onnx_data*", f"*{suffix}.onnx.data*",
            *([] if suffix else ["*.onnx.data"]), f"*{variant}*.gguf"]  # fmt: skip
