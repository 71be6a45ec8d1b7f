"""Messages for files that cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vkmnn.errors import InvalidInputError


@contextmanager
def saving(what: str, option: str, path: Path) -> Iterator[None]:
    """Explain errors of a block that writes a file, or checks whether it could.

    Args:
        what: what cannot be done: "page cannot be written".
        option: who named the path.
        path: the intended path.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    try:
        yield
    except FileExistsError as error:  # a folder is needed
        raise InvalidInputError(
            f"the {what} to '{path}': it is no folder", hint=f"give {option} another path"
        ) from error
    except OSError as error:
        raise InvalidInputError(
            f"the {what} to '{path}': {error.strerror or error}",
            hint=f"give {option} another path",
        ) from error
