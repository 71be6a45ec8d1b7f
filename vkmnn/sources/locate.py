"""Resolution of a caller's model argument to local files.

Resolving an existing path costs one file system access and no further import.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, ModelFileError

if TYPE_CHECKING:
    from vkmnn.sources.names import HubName, Url

T = TypeVar("T")
GGUF = ".gguf"
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Located:
    """A local model.

    Attributes:
        path: its file or folder.
        commit: the commit of a model from the Hub, or "".
        variant: the requested variant; None for the preferred one.
    """

    path: Path
    commit: str = ""
    variant: str | None = None


def model_file(model: T, report: Any = None) -> T | Path:
    """Return the file of the network that a caller passes, or the input for other readers.

    Args:
        model: a path; a URL or a name on the Hub, which is downloaded once; a zip archive; a folder
            with one network, or with one and its variants. Anything else is returned unchanged:
            protobufs, bytes, and values that their reader will refuse with a reason.
        report: called with the bytes received from a URL, and the total.

    Raises:
        ModelFileError: it cannot be downloaded or unpacked, or holds several networks.
        BudgetError: it exceeds `VKMNN_MAX_DOWNLOAD`.
        MissingExtraError: huggingface_hub is needed and not installed.
    """
    if not isinstance(model, str | os.PathLike):
        return model
    given = path = Path(os.fspath(model))  # type: ignore[arg-type]
    if not _exists(path):
        from vkmnn.sources.names import read_name

        name = read_name(model) if isinstance(model, str) else None
        if name is None:
            return model
        path = _network_of(name, report)
    found = _opened(path)
    return model if found == given else found


def _exists(path: Path) -> bool:
    """Return whether a path exists; impossible file names are left for their reader to refuse."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return True


def _network_of(name: HubName | Url, report: Any) -> Path:
    from vkmnn.sources.names import Url

    if isinstance(name, Url):
        from vkmnn.sources.urls import fetch

        return fetch(name, report)
    from vkmnn.sources.hub import download_network, open_repository

    repository = open_repository(name)
    if repository.is_described():
        return _folder_of(name, None).path
    return download_network(repository, repository.network())


def _opened(path: Path) -> Path:
    """Return the only network of a folder or archive; other files and folders unchanged."""
    folder = _unpacked(path)
    return folder if not _is_folder(folder) else _only(folder) or folder


def _unpacked(path: Path) -> Path:
    if path.suffix.lower() != ".zip":
        return path
    from vkmnn.sources.zips import is_archive, unpacked

    return unpacked(path) if is_archive(path) else path


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _only(folder: Path) -> Path | None:
    """Return the only network of a folder; None if the folder holds another kind of model."""
    from vkmnn.converter.foreign import MODELS, READ, kind_of_folder
    from vkmnn.sources.variants import plain_of

    kind = kind_of_folder(folder)
    if kind is None or kind.name != MODELS:
        return None
    places = [folder, folder / "onnx"]
    files = [
        path.relative_to(folder).as_posix()
        for place in places
        if place.is_dir()
        for path in sorted(place.iterdir())
        if path.suffix.lower() in READ and path.is_file()
    ]
    plain = plain_of(files)
    if plain is None:
        more = f" and {len(files) - _LISTED} more" if len(files) > _LISTED else ""
        raise ModelFileError(
            f"'{folder}' is a folder of {len(files)} models",
            hint=f"give one of them: {', '.join(files[:_LISTED])}{more}",
        )
    return folder / plain


def model_folder(
    model: str | os.PathLike[str], revision: str | None = None, variant: str | None = None
) -> Located:
    """Return the folder of a model with several files, or a self-contained GGUF file.

    Args:
        model: a folder, a model's file in one, the URL of a GGUF file or a zip archive, or a name
            on the Hub, `owner/name`, which is downloaded unless it is in the Hub's cache.
            `HF_HUB_OFFLINE`, `HF_HOME` and `HF_TOKEN` apply, as in all programs that use the Hub.
        revision: a commit, tag or branch on the Hub.
        variant: the variant of the files, "q4" for example; the preferred one by default.

    Raises:
        ModelFileError: the folder does not exist, here or on the Hub.
        InvalidInputError: a revision of a folder on this machine, or the variant does not exist.
        BudgetError: it exceeds `VKMNN_MAX_DOWNLOAD`.
        MissingExtraError: huggingface_hub is needed and not installed.
    """
    from vkmnn.sources.names import HUB, HubName, is_there, read_name, with_revision

    if not isinstance(model, str | os.PathLike):
        raise InvalidInputError(
            f"a model of several files is a path or a name, not {type(model).__name__}",
            hint="give a folder, a GGUF file, or a model on the Hub: owner/name",
        )
    path = Path(os.fspath(model))
    name: HubName | Url | None = None
    if not is_there(path):
        name = read_name(model) if isinstance(model, str) else None
        if name is None:
            raise ModelFileError(
                f"there is no folder '{model}'",
                hint="give a folder, or a model on the Hub: owner/name",
            )
    if isinstance(name, HubName):
        return _folder_of(with_revision(name, revision), variant)
    if revision is not None:
        raise InvalidInputError(
            f"'{model}' is not a model on the Hub, so it has no revisions",
            hint=f"leave out the revision, or write {HUB}owner/name",
        )
    path = _unpacked(_network_of(name, None) if name is not None else path)
    alone = path.is_dir() or path.suffix.lower() == GGUF
    return Located(path if alone else path.parent, variant=variant)


def _folder_of(name: HubName, variant: str | None) -> Located:
    from vkmnn.sources.hub import download, open_repository

    repository = open_repository(name)
    variant = variant or repository.variant()
    folder = download(repository, repository.parts(variant))
    inner = folder / name.file if name.file else folder
    named = inner.is_dir() or (inner.is_file() and inner.suffix.lower() == GGUF)
    return Located(inner if named else folder, repository.commit, variant)


def locate(model: str, variant: str | None = None, report: Any = None) -> Located:
    """Resolve a name to the file of a network, or to the folder of a model with several files.

    Args:
        model: a path, a URL, or a name on the Hub.
        variant: variant of a language model's files; the preferred one by default.
        report: as for `model_file`.

    Raises:
        ModelFileError: the file does not exist.
        VkmnnError: as `model_file` and `model_folder`.
    """
    from vkmnn.converter.foreign import has_model_suffix
    from vkmnn.sources.names import is_there, read_name

    if not is_there(Path(os.fspath(model))):
        name = read_name(model)
        if name is None:
            kind = "file" if has_model_suffix(model) else "file or folder"
            raise ModelFileError(
                f"no such {kind}: '{model[:200]}'",
                hint="check the path; it is relative to this folder",
            )
        return _located(name, variant, report)
    return Located(_opened(Path(os.fspath(model))), variant=variant)


def _located(
    name: HubName | Url, variant: str | None, report: Any, *, again: bool = False
) -> Located:
    from vkmnn.sources.names import Url

    if isinstance(name, Url):
        from vkmnn.sources.urls import fetch

        return Located(_opened(fetch(name, report, again=again)), variant=variant)
    from vkmnn.sources.hub import download_network, open_repository

    repository = open_repository(name)
    several = repository.is_language_model() or repository.is_pipeline()
    if variant is not None or (several and not repository.names_network()):
        return _folder_of(name, variant)
    return Located(download_network(repository, repository.network()), repository.commit)


def task_model(model: T, report: Any = None) -> T | Path:
    """Return the file or folder of a model for a task, which may need several networks.

    Args:
        model: as for `model_file`; folders are returned unchanged, and for a repository with
            several networks, a folder with one variant of each.
        report: as for `model_file`.

    Raises:
        VkmnnError: as `model_file`.
    """
    if not isinstance(model, str | os.PathLike):
        return model
    path = Path(os.fspath(model))  # type: ignore[arg-type]
    if _exists(path):
        return _unpacked(path) if path.suffix.lower() == ".zip" else model
    from vkmnn.sources.names import HubName, read_name

    name = read_name(model) if isinstance(model, str) else None
    if not isinstance(name, HubName):
        return model if name is None else _unpacked(_network_of(name, report))
    from vkmnn.sources.hub import download, download_network, open_repository

    repository = open_repository(name)
    if repository.is_one_network():
        return download_network(repository, repository.network(of_task=True))
    return download(repository, repository.parts(repository.variant() or repository.plain()))


def pull(model: str, variant: str | None = None, report: Any = None) -> Located:
    """Download a model and return its location; URLs are always downloaded again.

    Args:
        model: a URL, or a name on the Hub.
        variant: variant of a language model's files.
        report: as for `model_file`.

    Raises:
        InvalidInputError: it is a path.
        VkmnnError: as `model_file` and `model_folder`.
    """
    from vkmnn.sources.names import HUB, is_there, read_name

    name = None if is_there(Path(os.fspath(model))) else read_name(model)
    if name is None:
        raise InvalidInputError(
            f"'{model}' is a path, not a URL or a name on the Hub",
            hint=f"write https://…, owner/name, or {HUB}owner/name",
        )
    return _located(name, variant, report, again=True)
