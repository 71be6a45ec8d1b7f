"""`with` for objects that have a `close`."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Closing:
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
