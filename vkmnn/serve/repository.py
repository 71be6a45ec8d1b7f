"""A folder of models, which a server loads, reloads and unloads while it runs."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from starlette.concurrency import run_in_threadpool

from vkmnn.errors import InvalidInputError, ModelFileError, VkmnnError
from vkmnn.serve.limits import HttpError
from vkmnn.serve.model_config import ModelConfig, read_config
from vkmnn.serve.models import (
    Caches,
    Model,
    Models,
    Options,
    Running,
    is_spoken,
    open_sessions,
    open_spoken,
)
from vkmnn.serve.networks import Network

Control = Literal["none", "explicit", "poll"]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_IDLE_S = 0.1
_log = logging.getLogger(__name__)

Signature = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of each file."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Folder of models, and rules for loading them.

    Attributes:
        folder: the folder of the repository.
        control: "none" loads every model at the start; "explicit" loads and unloads models on
            request; "poll" checks the folder for changes.
        poll_s: seconds between two checks.
        most_bytes: maximum sum of the files of the loaded models; None for no limit.
    """

    folder: Path
    control: Control = "none"
    poll_s: float = 15.0
    most_bytes: int | None = None


@dataclass(slots=True)
class _Entry:
    """A loaded model, or why it is not loaded."""

    signature: Signature = ()
    bytes: int = 0
    versions: dict[str, Model] = field(default_factory=dict)
    state: str = "UNAVAILABLE"
    reason: str = ""


class Repository:
    """Models of a folder: NAME/VERSION/model.onnx, or NAME/model.onnx as version 1.

    In the place of a network there may be the files of a language model, an encoder or a pipeline.
    Loading happens in another thread; requests use the previous versions until the new ones are
    ready. These finish the requests that they have accepted.

    Args:
        shelf: the folder, and its rules.
        models: where loaded models are added.
        device: the default device.
        running: how networks are run, unless a model's configuration says otherwise.
        options: options of every session.
        caches: those of language models.
        variant: of language models and encoders.

    Attributes:
        settled: waits for the server's background work.
    """

    def __init__(
        self,
        shelf: Shelf,
        models: Models,
        device: str,
        running: Running,
        options: Options,
        caches: Caches = Caches(),  # noqa: B008 - immutable
        variant: str | None = None,
    ) -> None:
        if not shelf.folder.is_dir():
            raise InvalidInputError(
                f"'{shelf.folder}' is not a folder", hint="give a folder with a folder per model"
            )
        self.shelf = shelf
        self._root = shelf.folder.resolve()
        self._models = models
        self._device = device
        self._running = running
        self._options = options
        self._caches = caches
        self._variant = variant
        self.settled: Callable[[], Awaitable[None]] | None = None
        self._entries: dict[str, _Entry] = {}
        self._own = set(models.names)
        self._changing = asyncio.Lock()
        self._ending: set[asyncio.Future[None]] = set()

    # --- the folder -------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of the models in the folder."""
        return sorted(
            path.name
            for path in self._root.iterdir()
            if path.is_dir() and _NAME.fullmatch(path.name)
        )

    def _folder(self, name: str) -> Path:
        """Return the folder of a model.

        Raises:
            HttpError: there is none.
        """
        path = self._root / name
        if not _NAME.fullmatch(name) or not path.is_dir():
            text = f"the repository has no model '{name[:100]}'"
            raise HttpError(404, "model_not_found", text)
        return path

    def _versions(self, folder: Path) -> dict[str, Path]:
        """Return the folders of the versions of a model, in ascending order."""
        found = [path for path in folder.iterdir() if _VERSION.fullmatch(path.name)]
        there = {path.name: path for path in found if path.is_dir()}
        if not there:
            return {"1": folder}
        return dict(sorted(there.items(), key=lambda item: int(item[0])))

    def _signature(self, folder: Path) -> Signature:
        return tuple(
            (path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        )

    # --- loading: in any thread -------------------------------------------------------------------

    def _opened(self, name: str) -> _Entry:
        """Open the selected versions of a model."""
        folder = self._folder(name)
        _check_inside(folder, self._root)
        config = read_config(folder, self._running.batching)
        if config.ignored:
            _log.warning("'%s': these fields have no effect: %s", name, ", ".join(config.ignored))
        there = self._versions(folder)
        chosen = list(config.versions(list(there)))
        if not chosen:
            raise ModelFileError(f"'{name}' has no version that its version_policy selects")
        entry = _Entry(self._signature(folder), state="READY")
        entry.bytes = sum(_bytes(there[version]) for version in chosen)
        self._check_room(name, entry.bytes)
        try:
            for version in chosen:
                path = _model_in(there[version], config.file)
                if not is_spoken(path):
                    made: Model = self._network(name, version, path, config)
                elif len(chosen) > 1:
                    raise InvalidInputError(
                        f"'{name}' is not a network: one version of it can be served",
                        hint="choose one by version_policy; without it, the latest is served",
                    )
                else:
                    device = config.only_device(self._device)
                    made = open_spoken(path, self._variant, device, self._caches, self._options)
                entry.versions[version] = made
        except BaseException:
            for made in entry.versions.values():
                made.close()
            raise
        return entry

    def _check_room(self, name: str, size: int) -> None:
        most = self.shelf.most_bytes
        held = sum(entry.bytes for entry in self._entries.values())  # also the version to replace
        if most is not None and held + size > most:
            text = f"'{name}' has {size} bytes, and {held} of {most} are taken: unload a model"
            raise HttpError(507, "out_of_memory", text)

    def _network(self, name: str, version: str, path: Path, config: ModelConfig) -> Network:
        running = self._running
        devices = config.devices or running.devices or [self._device]
        instances = config.instances or running.instances
        sessions = open_sessions(path, devices, instances, self._options)
        try:
            network = Network(name, version, sessions, config.batching, config.queue)
            config.check([*network.inputs, *network.outputs])
            network.timeout_s = config.timeout_s
            for output, file in config.labels:
                place = path if path.is_dir() else path.parent
                beside = self._folder(name) / file  # as Triton expects it
                text = (beside if beside.is_file() else place / file).read_text("utf-8")
                network.labels[output] = text.splitlines()
        except BaseException as error:
            for session in sessions:
                session.close()
            if isinstance(error, OSError | UnicodeError):
                raise ModelFileError(f"labels of '{name}' cannot be read: {error}") from error
            raise
        network.ignored = config.ignored
        return network

    def load_at_start(self) -> None:
        """Load every model, unless models are loaded on request.

        Raises:
            VkmnnError: one cannot be loaded; with "poll", the log reports it instead.
        """
        if self.shelf.control == "explicit":
            return
        for name in self.names():
            try:
                self._check_name(name)
                self._put(name, self._opened(name))
            except VkmnnError as error:
                if self.shelf.control == "none":
                    error.message = f"the model '{name}' of the repository: {error.message}"
                    raise
                self._failed(name, error)

    def _check_name(self, name: str) -> None:
        if name in self._own:
            text = f"'{name}' is a model of the command line, which cannot be replaced"
            raise HttpError(409, "name_taken", text)

    def _put(self, name: str, entry: _Entry) -> list[Model]:
        """Serve the versions of a model; return those that they replace."""
        old = self._entries.get(name, _Entry())
        self._entries[name] = entry
        self._models.replace(name, entry.versions)
        return list(old.versions.values())

    def _failed(self, name: str, error: BaseException) -> None:
        entry = self._entries.setdefault(name, _Entry())
        entry.reason = str(error)[:500]
        _log.error("the model '%s' cannot be loaded: %s", name, error)

    # --- changes: in the event loop ---------------------------------------------------------------

    async def load(self, name: str) -> None:
        """Load a model, or load it again if its files have changed.

        Raises:
            VkmnnError: it cannot be loaded; a previous version stays.
        """
        async with self._changing:
            await self._load(name)

    async def _load(self, name: str) -> None:
        self._check_name(name)
        folder = self._folder(name)
        old = self._entries.get(name)
        if old and old.versions and old.signature == await run_in_threadpool(
            self._signature, folder
        ):  # fmt: skip
            return
        try:
            entry = await run_in_threadpool(self._opened, name)
        except Exception as error:
            self._failed(name, error)
            raise
        self._end(self._put(name, entry))
        _log.info("the model '%s' is loaded: version %s", name, ", ".join(entry.versions))

    async def unload(self, name: str) -> None:
        """Unload a model once its accepted requests are finished.

        Raises:
            HttpError: it is not loaded.
        """
        async with self._changing:
            self._unload(name)

    def _unload(self, name: str) -> None:
        self._check_name(name)
        entry = self._entries.get(name)
        if entry is None or not entry.versions:
            raise HttpError(404, "model_not_found", f"the model '{name[:100]}' is not loaded")
        self._end(self._put(name, _Entry(reason="unloaded")))
        _log.info("the model '%s' is unloaded", name)

    def _end(self, models: Sequence[Model]) -> None:
        """Close models in threads, each after the requests that it has accepted."""
        for model in models:
            ending = asyncio.ensure_future(self._closed(model))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _closed(self, model: Model) -> None:
        """Close a model once no request uses it; networks know for themselves."""
        if not isinstance(model, Network):
            while self._models.leases.is_used(model):
                await asyncio.sleep(_IDLE_S)
            if self.settled is not None:
                await self.settled()
        await run_in_threadpool(model.close)

    async def watch(self) -> None:
        """Check the folder for changes, forever."""
        while True:
            await asyncio.sleep(self.shelf.poll_s)
            async with self._changing:
                await self._look()

    async def _look(self) -> None:
        there = await run_in_threadpool(self.names)
        for name in [name for name, entry in self._entries.items() if entry.versions]:
            if name not in there:
                self._unload(name)
        for name in there:
            old = self._entries.get(name)
            with suppress(Exception):  # the log and the index tell
                signature = await run_in_threadpool(self._signature, self._folder(name))
                if old and old.signature == signature:
                    continue
                await self._load(name)
            entry = self._entries.get(name)
            if entry is not None and entry is old:  # failed: not again until it changes
                entry.signature = signature

    async def close(self) -> None:
        """Wait for the models that are being closed."""
        if self._ending:
            await asyncio.wait(set(self._ending))

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """Return name, version, state and reason of every model in the folder."""
        made: list[dict[str, str]] = []
        for name in sorted({*self.names(), *self._entries}):
            entry = self._entries.get(name, _Entry())
            made += [
                {"name": name, "version": version, "state": "READY", "reason": entry.reason}
                for version in entry.versions
            ]
            if not entry.versions and not ready_only:
                made.append({"name": name, "state": entry.state, "reason": entry.reason})
        return made


def _check_inside(folder: Path, root: Path) -> None:
    """Raise ModelFileError if a folder, or a link in it, leads out of the repository."""
    for path in (folder, *(one for one in folder.rglob("*") if one.is_symlink())):
        try:
            target = path.resolve()
        except (OSError, RuntimeError) as error:  # links in a circle
            raise ModelFileError(f"'{path.name}' cannot be followed: {error}") from error
        if root not in target.parents:
            raise ModelFileError(
                f"'{path.name}' leads out of the repository",
                hint="copy it instead of linking to it",
            )


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _model_in(folder: Path, named: str) -> Path:
    """Return the model of a version: the named file, `model.*`, or the folder."""
    if named:
        if not (folder / named).exists():
            raise ModelFileError(f"'{folder.parent.name}' lacks the file '{named}' of version "
                                 f"{folder.name}")  # fmt: skip
        return folder / named
    if is_spoken(folder):
        return folder
    usual = [path for path in folder.iterdir() if path.stem == "model"]
    return usual[0] if len(usual) == 1 else folder
