"""Bounded tables of results by key, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Results by key. When full, it discards all of them and starts again.

    Results must not be modified: all users of a key share them.

    Args:
        limit: maximum number of results.

    Attributes:
        get: returns the result for a key, or None.
    """

    __slots__ = ("_known", "_limit", "get")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[K, V] = {}
        self.get = self._known.get  # the dictionary's own method, as planning calls it for every op

    def __len__(self) -> int:
        """Return the number of results."""
        return len(self._known)

    def __contains__(self, key: K) -> bool:
        """Return whether the key has a result, which may be None."""
        return key in self._known

    def keep(self, key: K, value: V) -> V:
        """Store and return a result; if another thread was faster, return that thread's result."""
        if len(self._known) >= self._limit and key not in self._known:
            self._known.clear()
        return self._known.setdefault(key, value)

    def once(self, key: K, find: Callable[[], V]) -> V:
        """Return the result for a key; on first use, `find` computes it (never as None)."""
        known = self.get(key)
        return self.keep(key, find()) if known is None else known

    def replace(self, key: K, value: V) -> None:
        """Store a result, replacing the existing one."""
        self._known.pop(key, None)
        self.keep(key, value)
