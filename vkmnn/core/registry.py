"""Named things that register themselves; a second registration under one name is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from vkmnn.errors import PluginError

T = TypeVar("T")


class Registry(Generic[T]):
    """A table that fills itself by decorator: `@registry.register("Concat")`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[str, T] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Return a decorator that files its object under each name.

        Raises:
            PluginError: one of the names is taken.
        """

        def add(entry: T) -> T:
            for name in names:
                if name in self._entries:
                    raise PluginError(
                        f"a {self._what} for '{name}' is there already: {self._entries[name]!r}",
                        op=name,
                        hint="unregister the first one or choose another name",
                    )
                self._entries[name] = entry
            return entry

        return add

    def get(self, name: str) -> T | None:
        """Return the entry, or None."""
        return self._entries.get(name)

    def __contains__(self, name: str) -> bool:
        """True when something is registered under the name."""
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, sorted."""
        return iter(sorted(self._entries))
