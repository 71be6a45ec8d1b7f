"""What a job has written: parts, and a journal that says which of them count."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from vkmnn.base.cache_files import locked
from vkmnn.base.records import dataclass
from vkmnn.base.whole_files import replacing
from vkmnn.errors import InvalidInputError

_NAME = "journal.jsonl"
_LOCK = "lock"
Failure = Mapping[str, str]
"""Name (`input`), kind (`error`), text (`reason`) and `hint`, if any, of an item that failed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the journal: items whose results, or errors, are on the disk.

    Attributes:
        part: the file of the results; None if all failed.
        size: its size in bytes.
        done: keys of all items, those that failed too.
        failed: the items that failed.
    """

    part: str | None
    size: int
    done: Sequence[str]
    failed: Sequence[Failure]


class Journal:
    """The folder of a job in progress.

    A part counts once its line is in the journal, and lines are flushed to the disk after their
    part: a process that is killed at any point loses only parts that do not count yet.

    Args:
        folder: where the parts are.
        job: what the job is; a job that continues has to be the same.
        resume: continue a job, if there is one.

    Raises:
        InvalidInputError: there is one, and `resume` is false; or it is another job, damaged, or
            that of a process which is still running.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, job: Mapping[str, Any], *, resume: bool) -> None:
        self.folder = folder
        self._path = folder / _NAME
        self.entries: list[Entry] = []
        self.finished = False
        with contextlib.ExitStack() as held:
            self._lock(held)
            if self._path.exists() and not resume:
                raise InvalidInputError(
                    f"'{folder}' holds a job that was interrupted",
                    hint="continue it with --resume, or delete the folder",
                )
            if self._path.exists():
                self._read(job)
            self._rewrite(job)
            self._delete_others()
            self._file: IO[bytes] = held.enter_context(self._path.open("ab"))
            self._held = held.pop_all()
        self._number = 1 + max((_number(one.part) for one in self.entries if one.part), default=-1)
        synced(folder)

    def _lock(self, held: contextlib.ExitStack) -> None:
        """Keep other processes away from the folder, which is created if it does not exist."""
        try:
            held.enter_context(locked(self.folder / _LOCK, 0))
        except TimeoutError as error:
            raise InvalidInputError(
                f"another process is working on '{self.folder}'", hint="wait for it, or stop it"
            ) from error

    def _rewrite(self, job: Mapping[str, Any]) -> None:
        """Write the journal without lines that do not count."""
        with replacing(self._path) as file:
            file.write(_encoded({"job": job}))
            for entry in self.entries:
                file.write(_encoded(_values(entry)))
            if self.finished:
                file.write(_encoded({"finished": True}))

    @property
    def done(self) -> frozenset[str]:
        """The keys of all items that count."""
        return frozenset(key for entry in self.entries for key in entry.done)

    @property
    def parts(self) -> list[Path]:
        """The files of results, in the order in which they were written."""
        return [self.folder / entry.part for entry in self.entries if entry.part]

    @property
    def failed(self) -> Iterator[Failure]:
        """All items that failed."""
        return (one for entry in self.entries for one in entry.failed)

    def next_part(self, suffix: str) -> Path:
        """Return the path of a new part."""
        self._number += 1
        return self.folder / f"part-{self._number - 1:06d}{suffix}"

    def commit(self, part: Path | None, done: Sequence[str], failed: Sequence[Failure]) -> None:
        """Make a part count, which has been written; or items that failed."""
        if part is not None:
            synced(self.folder)
        size = 0 if part is None else part.stat().st_size
        entry = Entry(None if part is None else part.name, size, done, failed)
        self._append(_values(entry))
        self.entries.append(entry)

    def finish(self) -> None:
        """Delete the folder of a job whose results have been joined."""
        if not self.finished:
            self._append({"finished": True})
        self.close()
        for path in self.folder.iterdir():
            if path != self._path:
                path.unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Close the journal, and let other processes work on the folder."""
        self._held.close()

    def _append(self, values: Mapping[str, Any]) -> None:
        self._file.write(_encoded(values))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, job: Mapping[str, Any]) -> None:
        """Read the lines; one that was torn, or whose part is missing, does not count."""
        lines = self._path.read_bytes().split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
            try:
                values = json.loads(line)
                if number == 1:
                    self._check_same(values["job"], job)
                elif "finished" in values:
                    self.finished = True
                else:
                    entry = Entry(**values)
                    if self.finished or self._is_whole(entry):
                        self.entries.append(entry)
            except (ValueError, TypeError, KeyError) as error:
                if number < len(lines):
                    raise InvalidInputError(
                        f"'{self._path}' is damaged in line {number}",
                        hint="delete the folder, and start again",
                    ) from error

    def _check_same(self, found: Mapping[str, Any], job: Mapping[str, Any]) -> None:
        wanted = json.loads(json.dumps(job))
        for name in sorted({*found, *wanted}):
            if found.get(name) != wanted.get(name):
                raise InvalidInputError(
                    f"'{self.folder}' holds another job: its {name} is {found.get(name)!r}, not "
                    f"{wanted.get(name)!r}",
                    hint="repeat the command of that job, or delete the folder",
                )

    def _is_whole(self, entry: Entry) -> bool:
        if entry.part is None:
            return True
        try:
            return (self.folder / entry.part).stat().st_size == entry.size
        except OSError:
            return False

    def _delete_others(self) -> None:
        """Delete parts that do not count, and files that were being written."""
        kept = {_NAME, *(entry.part for entry in self.entries)}
        for path in self.folder.iterdir():
            if path.name not in kept and path.name.startswith(("part-", ".part-", f".{_NAME}")):
                path.unlink()


def _values(entry: Entry) -> dict[str, Any]:
    return {
        "part": entry.part,
        "size": entry.size,
        "done": list(entry.done),
        "failed": list(entry.failed),
    }


def _number(part: str) -> int:
    return int(Path(part).stem.partition("-")[2])


def _encoded(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values) + "\n").encode()


def synced(folder: Path) -> None:
    """Flush the names in a folder to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
