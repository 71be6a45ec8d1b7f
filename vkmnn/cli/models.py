"""Models that commands take: paths, addresses and names of the hub; `vkmnn pull`."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from vkmnn.cli.console import bytes_text, document, heading, note, out, progress, show, table
from vkmnn.errors import VkmnnError
from vkmnn.sources.hub import Repository, open_repository
from vkmnn.sources.locate import model_file, pull, task_model
from vkmnn.sources.names import HubName, is_download, read_name


def local_file(text: str) -> Path:
    """Return the path of a model's file, after a download where the name asks for one.

    Raises:
        VkmnnError: as `vkmnn.sources.model_file`.
    """
    if not is_download(text):
        return Path(model_file(text))
    with progress(f"downloading {text}") as report:
        return Path(model_file(text, report))


def local_model(text: str) -> Path:
    """Return the path of a model for a task: its file, or the folder of several networks.

    Raises:
        VkmnnError: as `vkmnn.sources.locate.task_model`.
    """
    if not is_download(text):
        return Path(task_model(text))
    with progress(f"downloading {text}") as report:
        return Path(task_model(text, report))


def pull_model(text: str, variant: str | None) -> None:
    """Download a model and print where it is."""
    with progress(f"downloading {text}") as report:
        found = pull(text, variant, report)
    files = [found.path] if found.path.is_file() else list(found.path.rglob("*"))
    total = sum(path.stat().st_size for path in files if path.is_file())
    at = f" at {found.commit[:12]}" if found.commit else ""
    note(f"{text}{at}: {bytes_text(total)}")
    if found.commit and "@" not in text:
        note(f"pin it: {text}@{found.commit}")
    out.print(Text(str(found.path)))
    facts = {"model": text, "path": str(found.path), "commit": found.commit or None}
    document("pull", facts | {"bytes": total})


def is_repository(text: str) -> bool:
    """Return whether a name is that of a whole repository of the hub."""
    name = read_name(text) if is_download(text) else None
    return isinstance(name, HubName) and not name.file


def list_repository(text: str) -> None:
    """Print the models of a repository, and which one is taken."""
    name = read_name(text)
    assert isinstance(name, HubName)
    repository = open_repository(name)
    taken, reason = _taken(repository)
    heading(f"{name.repository} at {repository.commit[:12]}")
    rows = table("model", "size", "", right=("size",))
    models = []
    for file in repository.networks():
        size = repository.size(file)
        mark = "the default" if file in taken else ""
        rows.add_row(Text(file), "?" if size is None else bytes_text(size), mark)
        models.append({"file": file, "bytes": size, "default": file in taken})
    show(rows)
    if repository.cached is not None:
        note("offline: only what the cache has is listed")
    if reason:
        note(reason)
    other = next((one["file"] for one in models if not one["default"]), None)
    if other:
        named = HubName(name.repository, str(other), name.revision)
        note(f"another one: vkmnn run {named}")
    facts = {"model": text, "repository": name.repository, "commit": repository.commit}
    document("info", facts | {"models": models})


def _taken(repository: Repository) -> tuple[list[str], str]:
    """Return the files that the bare name stands for, or none and why."""
    try:
        if repository.is_language_model() or repository.is_pipeline():
            what = "vkmnn generate" if repository.is_language_model() else "vkmnn pull"
            return repository.parts(None), f"all of it: {what} {repository.name}"
        return [repository.network()], ""
    except VkmnnError as error:
        return [], error.message
