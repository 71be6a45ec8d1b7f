"""A job of `vkmnn map`: items become rows, which are committed in parts and joined at the end."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.base.whole_files import replacing
from vkmnn.batch.flow import Failed, Flow, Work
from vkmnn.batch.items import Item
from vkmnn.batch.journal import Journal, synced
from vkmnn.batch.outputs import Output, Row, output_of
from vkmnn.errors import InvalidInputError, VkmnnError

PART_BYTES = 32 << 20
"""Rows that are held before they are written, in bytes."""
PART_SECONDS = 10.0
"""Time after which they are written, however few they are."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a job has done.

    Attributes:
        written: items with a result.
        failed: items without one.
        skipped: items of both kinds that an earlier run had finished.
        repeated: runs of several items that failed, and were repeated item by item.
    """

    written: int
    failed: int
    skipped: int
    repeated: int


def parts_folder(target: Path) -> Path:
    """Return the folder of a job in progress, next to its output."""
    return target.with_name(f"{target.name}.parts")


def error_file(target: Path) -> Path:
    """Return the file that lists the items without a result."""
    return target.with_name(f"{target.name}.errors.jsonl")


class Job:
    """A job in progress: what it has written, and where.

    Args:
        target: the output.
        about: what determines the results; a job that continues has to agree.
        resume: continue the job, if there is one.
        part: items that are written at a time, at most.

    Raises:
        InvalidInputError: as `output_of` and `Journal`.
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(
        self, target: Path, about: Mapping[str, Any], *, resume: bool = False, part: int = 1000
    ) -> None:
        self._output: Output = output_of(target)
        self._target, self._part = target, part
        try:
            self._journal = Journal(parts_folder(target), about, resume=resume)
        except OSError as error:
            raise _unwritable(target, error) from error
        self.done = self._journal.done
        self._rows: list[Row] = []
        self._failed: list[tuple[str, dict[str, str]]] = []
        self._held = 0
        self._repeated = 0
        self._since = time.monotonic()

    @property
    def is_finished(self) -> bool:
        """Whether only the removal of the parts is left."""
        return self._journal.finished

    def run(
        self, work: Work, items: Iterable[Item], ordered: bool, report: Callable[[int, int], Any]
    ) -> None:
        """Compute and write the items.

        Args:
            work: how items become rows.
            items: those that are not done.
            ordered: whether rows keep the order of the items.
            report: called with the numbers of items that are done, and that failed.
        """
        flow = Flow(work, ordered)
        outcomes = flow.outcomes(items)
        done = failed = 0
        try:
            for item, outcome in outcomes:
                done += 1
                failed += self.add(item, outcome)
                report(done, failed)
        finally:
            outcomes.close()  # type: ignore[attr-defined]
            self._repeated += flow.repeated
            self.commit()

    def add(self, item: Item, outcome: Row | Failed) -> bool:
        """Take a result; tell whether the item failed."""
        if isinstance(outcome, Failed):
            self._failed.append((item.key, failure(item.name, outcome.error)))
        else:
            self._rows.append(outcome)
            self._held += outcome.nbytes
        held = len(self._rows) + len(self._failed)
        late = time.monotonic() - self._since > PART_SECONDS
        if held >= self._part or self._held >= PART_BYTES or late:
            self.commit()
        return isinstance(outcome, Failed)

    def commit(self) -> None:
        """Write what is held; from then on it survives a kill."""
        rows, failed = self._rows, self._failed
        self._rows, self._failed, self._held = [], [], 0
        self._since = time.monotonic()
        if not rows and not failed:
            return
        try:
            part = self._journal.next_part(self._output.suffix or ".txt") if rows else None
            if part is not None:
                self._output.write(part, rows)
            done = [*(row.key for row in rows), *(key for key, _ in failed)]
            self._journal.commit(part, done, [one for _, one in failed])
        except OSError as error:
            raise _unwritable(self._target, error) from error

    def finish(self) -> Summary:
        """Join the parts, list the errors and delete the folder of parts."""
        journal = self._journal
        failures = list(journal.failed)
        try:
            if not journal.finished:
                self._output.join(journal.parts)
                _write_errors(error_file(self._target), failures)
                synced(self._target.absolute().parent)
            written = sum(len(entry.done) for entry in journal.entries) - len(failures)
            journal.finish()
        except OSError as error:
            raise _unwritable(self._target, error) from error
        return Summary(written, len(failures), len(self.done), self._repeated)

    def close(self) -> None:
        """Leave the job as it is, to be continued."""
        self._journal.close()


def failure(name: str, error: Exception) -> dict[str, str]:
    """Return the line of the error file for an item."""
    made = {"input": name, "error": type(error).__name__}
    if not isinstance(error, VkmnnError):
        return {**made, "reason": str(error) or type(error).__name__}
    return {**made, "reason": error.message, **({"hint": error.hint} if error.hint else {})}


def _write_errors(path: Path, failures: Iterable[Mapping[str, str]]) -> None:
    """Write the error file; without errors there is none."""
    lines = [json.dumps(one, ensure_ascii=False) + "\n" for one in failures]
    if not lines:
        path.unlink(missing_ok=True)
        return
    with replacing(path) as file:
        file.writelines(line.encode("utf-8", "backslashreplace") for line in lines)


def _unwritable(target: Path, error: OSError) -> InvalidInputError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "make room, and repeat the command with --resume" if full else "check the folder"
    return InvalidInputError(f"'{target}' cannot be written: {error}", hint=hint)
