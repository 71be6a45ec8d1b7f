"""The lines typed in earlier chats."""

from __future__ import annotations

import logging
from pathlib import Path

from vkmnn.base.cache_files import read_file, write_file
from vkmnn.base.user_folders import data_folder

MAX_LINES = 1000
"""Number of lines that the file keeps; older ones are dropped."""

MAX_CHARACTERS = 4096
"""Longer lines are not kept."""

_MAX_BYTES = MAX_LINES * (MAX_CHARACTERS + 1) * 4

_log = logging.getLogger(__name__)


def history_file() -> Path | None:
    """Return the file of the user's history; None for a user without a home."""
    try:
        return data_folder() / "chat_history"
    except RuntimeError:
        return None


class History:
    """A file of lines that only the user can read.

    A file that cannot be used is reported once; the chat goes on without it.

    Args:
        path: the file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def lines(self) -> list[str]:
        """Return the lines, oldest first."""
        if self._path is None:
            return []
        try:
            data = read_file(self._path, _MAX_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._give_up(error)
            return []
        return data.decode("utf-8", "replace").split("\n")[:-1][-MAX_LINES:]

    def add(self, line: str) -> None:
        """Append a line to those of the file, which other chats may extend meanwhile."""
        if not line.strip() or len(line) > MAX_CHARACTERS:
            return
        lines = self.lines()
        if self._path is None or lines[-1:] == [line]:
            return
        whole = "".join(f"{one}\n" for one in [*lines, line][-MAX_LINES:])
        try:
            write_file(self._path, whole.encode("utf-8", "replace"))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning("the history of chats is off: '%s': %s", self._path, error)
        self._path = None
