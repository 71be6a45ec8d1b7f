"""Inputs with default values: initialisers that are also graph inputs (ONNX, "Graphs")."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.base.budget import Budget
from vkmnn.core.session import Session
from vkmnn.errors import InvalidInputError, ModelError
from vkmnn.ir import TensorInfo
from vkmnn.opening.network import Network
from vkmnn.opening.session import OpenSession, open_model
from vkmnn.schedule_config import ScheduleConfig
from vkmnn.sources.locate import model_file

if TYPE_CHECKING:
    from vkmnn.opening.network import Model

Reopen = Callable[[frozenset[str]], Session]

MAX_SESSIONS = 8
"""Maximum sessions of one model, each for other overridden inputs."""


class OverridableInputs:
    """The sessions of one model: one for each set of default values that runs override.

    Default values are constants, which passes fold and kernels pack. So the first run that feeds
    another value converts the model again, with that input as an ordinary one.

    Args:
        infos: the inputs that have a default value.
        main: the session that uses all default values.
        reopen: opens the model with the named inputs as ordinary ones.
        model: the model that was opened; a file must not have changed when it is opened again.

    Attributes:
        infos: the inputs by name.
        latest: the session of the latest run.
    """

    def __init__(
        self, infos: Iterable[TensorInfo], main: Session, reopen: Reopen, model: object
    ) -> None:
        self.infos: Mapping[str, TensorInfo] = {info.name: info for info in infos}
        self.latest = main
        self._main = main
        self._reopen = reopen if self.infos else None  # it keeps the model
        self._path = Path(model) if self.infos and isinstance(model, str | os.PathLike) else None
        self._identity = self._identify()
        self._lock = threading.Lock()
        self._closed = False
        self._sessions: dict[frozenset[str], Session] = {frozenset(): main}

    @classmethod
    def open(
        cls,
        model: Model,
        config: ScheduleConfig,
        budget: Budget | None = None,
        **options: Any,
    ) -> tuple[Network, OpenSession, OverridableInputs]:
        """Open a model as `open_model` does, and its inputs with default values."""
        model = model_file(model)
        network, opened = open_model(model, config, budget, **options)

        def reopen(names: frozenset[str]) -> Session:
            return open_model(model, config, budget, as_inputs=names, **options)[1].core

        return network, opened, cls(network.graph.overridable, opened.core, reopen, model)

    def beside(self, main: Session) -> OverridableInputs:
        """Return a copy for another session of the model."""
        assert self._reopen is not None or not self.infos
        made = copy(self)
        made._main = made.latest = main
        made._lock = threading.Lock()
        made._sessions = {frozenset(): main}
        return made

    def fed(self, feeds: object) -> Mapping[str, TensorInfo]:
        """Return the inputs with default values that the feeds contain."""
        if not self.infos or not isinstance(feeds, Mapping):
            return {}
        return {name: info for name, info in self.infos.items() if name in feeds}

    def session(self, names: Iterable[str]) -> Session:
        """Return the session with these as inputs; after `close`, a closed one.

        Raises:
            InvalidInputError: the session has released its model.
            ModelError: the model's file has changed.
            VkmnnError: the model cannot be opened with these as ordinary inputs.
        """
        if not self.infos:
            return self._main
        with self._lock:
            key = frozenset(names)
            if self._closed:
                return self._main
            session = self._sessions.pop(key, None) or self._opened(key)
            self._sessions[key] = self.latest = session
            if len(self._sessions) > MAX_SESSIONS:
                # Not closed, as a run may use it; its memory is freed with the last reference.
                del self._sessions[next(k for k in self._sessions if k)]
            return session

    def _opened(self, names: frozenset[str]) -> Session:
        if self._reopen is None:
            raise InvalidInputError(
                f"'{min(names)}' cannot be fed: the session has released its model",
                hint="feed it once before release_model",
            )
        if self._identity != self._identify():
            raise ModelError(
                f"'{min(names)}' cannot be fed: {self._path} has changed since it was opened",
                hint="open a new session",
            )
        return self._reopen(names)

    def _identify(self) -> tuple[int, ...]:
        """Return the inode, size and time of the model's file, which change with it."""
        if self._path is None:
            return ()
        try:
            status = self._path.stat()
        except OSError:
            return (-1,)
        return (status.st_ino, status.st_size, status.st_mtime_ns)

    def open_sessions(self) -> tuple[Session, ...]:
        """Return all sessions that are open."""
        with self._lock:
            return tuple(self._sessions.values())

    def release_model(self) -> None:
        """Release the model; sessions keep running at their planned shapes."""
        self._reopen = None
        for session in self.open_sessions():
            session.forget_model()

    def close(self) -> None:
        """Close all sessions."""
        with self._lock:
            self._closed = True
        for session in self.open_sessions():
            session.close()
