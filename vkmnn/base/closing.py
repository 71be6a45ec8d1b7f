"""`with` for objects that have a `close`, and a refusal to copy them."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from vkmnn.errors import InvalidInputError

if TYPE_CHECKING:
    from typing_extensions import Self


class OneProcess:
    """Base class of objects that hold objects of a device, which belong to one process."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            InvalidInputError: always.
        """
        raise InvalidInputError(
            f"objects of the type {type(self).__name__} can be neither copied nor pickled",
            hint="open one in each process, on the same file; threads may share one",
        )


class Closing(OneProcess):
    """Base class of objects that a `with` statement closes at its end."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what the object holds; safe to call twice."""

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()
