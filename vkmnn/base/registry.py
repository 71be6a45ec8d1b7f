"""Named things that register themselves; a second registration under one name is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from vkmnn.errors import PluginError

K = TypeVar("K", str, int)
T = TypeVar("T")

_REGISTRIES: list[Registry[Any, Any]] = []


class Registry(Generic[K, T]):
    """A table that fills itself by decorator: `@registry.register("Concat")`.

    Args:
        what: the relation of an entry to its name, for messages: `"shape computer of"`.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._entries: dict[K, T] = {}
        self._by_name: tuple[T, ...] | None = None
        _REGISTRIES.append(self)

    def register(self, *names: K) -> Callable[[T], T]:
        """Return a decorator that files its object under each name.

        Raises:
            PluginError: one of the names is in use, or not a valid name.
        """
        given: tuple[object, ...] = names
        if not given or not all(isinstance(name, (str, int)) and name for name in given):
            raise PluginError(
                f"the {self.what} has no name: {given}",
                hint='give the decorator a name: @size_computer("SwiGLU")',
            )

        def add(entry: T) -> T:
            for name in names:
                if name in self._entries:
                    raise self._taken(name)
                self._entries[name] = entry
            self._by_name = None
            return entry

        return add

    def _taken(self, name: object) -> PluginError:
        first = next(entry for key, entry in self._entries.items() if key == name)
        return PluginError(
            f"the {self.what} {name} is already registered: {_place(first)}",
            op=name if isinstance(name, str) else None,
            hint="choose another name, or load only one of the two plug-ins",
        )

    def get(self, name: K) -> T | None:
        """Return the entry, or None."""
        return self._entries.get(name)

    def __getitem__(self, name: K) -> T:
        """Return the entry; KeyError if there is none."""
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        """True when something is registered under the name."""
        return name in self._entries

    def __iter__(self) -> Iterator[K]:
        """Iterate over the names, sorted."""
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def values(self) -> list[T]:
        """Return the entries in the order of registration."""
        return list(self._entries.values())

    def by_name(self) -> tuple[T, ...]:
        """Return the entries in the order of their names."""
        if self._by_name is None:
            self._by_name = tuple(self._entries[name] for name in self)
        return self._by_name

    def remove(self, name: K) -> T:
        """Remove an entry and return it.

        Raises:
            PluginError: there is none.
        """
        if name not in self._entries:
            raise PluginError(
                f"there is no {self.what} {name}",
                hint="`vkmnn ops --plugins` lists what plug-ins registered",
            )
        self._by_name = None
        return self._entries.pop(name)


class Snapshot:
    """The current content of all registries: to list additions, and to undo them."""

    def __init__(self) -> None:
        self._entries = {registry: dict(registry._entries) for registry in _REGISTRIES}

    def names_added(self, registry: Registry[K, Any]) -> list[K]:
        """Return the names that have been registered since."""
        before = self._entries.get(registry, {})
        return [name for name in registry if name not in before]

    def added(self) -> list[str]:
        """Return the additions, as text such as "shape computer of Concat"."""
        return [
            f"{registry.what} {name}"
            for registry in _REGISTRIES
            for name in self.names_added(registry)
        ]

    def modules_added(self) -> set[str]:
        """Return the modules whose objects were registered since."""
        found: set[str] = set()
        for registry in _REGISTRIES:
            found.update(module_of(registry[name]) for name in self.names_added(registry))
        return found - {""}

    def restore(self) -> None:
        """Undo every registration since."""
        for registry in _REGISTRIES:
            registry._entries = dict(self._entries.get(registry, {}))
            registry._by_name = None


def module_of(entry: object) -> str:
    """Return the module of a registered object; for a record, that of its first object."""
    for name in ("attrs", "make"):
        entry = getattr(entry, name, entry)
    named = getattr(entry, "__qualname__", "")
    return str(getattr(entry, "__module__", "")) if named else ""


def _place(entry: object) -> str:
    """Return the source of an entry."""
    name = getattr(entry, "__qualname__", None)
    return f"{getattr(entry, '__module__', '')}.{name}" if name else repr(entry)
