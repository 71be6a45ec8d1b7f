"""Tables of results by key: each is computed once, and their number is bounded."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Results by key. A full one forgets all of them, and begins anew.

    Nobody may change a result: all users of a key share it.

    Args:
        limit: the most results that it holds.

    Attributes:
        get: returns the result for a key; None where there is none.
    """

    __slots__ = ("_known", "_limit", "get")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[K, V] = {}
        self.get = self._known.get  # the dictionary's own, as planning asks for every op

    def __len__(self) -> int:
        """Return how many results there are."""
        return len(self._known)

    def __contains__(self, key: K) -> bool:
        """Return whether there is a result for a key; it may be None."""
        return key in self._known

    def keep(self, key: K, value: V) -> V:
        """Keep a result, and return it; where another thread was faster, return that one's."""
        if len(self._known) >= self._limit and key not in self._known:
            self._known.clear()
        return self._known.setdefault(key, value)

    def once(self, key: K, find: Callable[[], V]) -> V:
        """Return the result for a key; `find` computes the first, which must not be None."""
        known = self.get(key)
        return self.keep(key, find()) if known is None else known

    def replace(self, key: K, value: V) -> None:
        """Keep a result in place of the one that there is."""
        self._known.pop(key, None)
        self.keep(key, value)
