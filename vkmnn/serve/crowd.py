"""How many requests of a client, or with a key, are in progress."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import TypeVar

from vkmnn.serve.limits import HttpError, Limits

T = TypeVar("T")


class Crowd:
    """Requests in progress by the address of their client and by their key.

    Args:
        limits: the limits on both.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.clients: Counter[str] = Counter()
        self.keys: Counter[bytes] = Counter()

    def place(self, client: str, key: bytes | None = None) -> Place:
        """Return the place of a request, which it has until the end of the block.

        Raises:
            HttpError: the client has too many requests in progress, or there are too many with
                the key.
        """
        limits = self.limits
        if self.clients[client] >= limits.per_client:
            text = f"this address has {limits.per_client} requests in progress already"
            raise HttpError(429, "too_many_requests", text)
        if key is not None and limits.per_key is not None and self.keys[key] >= limits.per_key:
            text = f"{limits.per_key} requests with this key are in progress already"
            raise HttpError(429, "too_many_requests", text)
        return Place(self, client, key)


class Place:
    """A request in progress."""

    def __init__(self, crowd: Crowd, client: str, key: bytes | None) -> None:
        self._crowd = crowd
        self._client = client
        self._key = key

    def __enter__(self) -> None:
        self._crowd.clients[self._client] += 1
        if self._key is not None:
            self._crowd.keys[self._key] += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _leave(self._crowd.clients, self._client)
        if self._key is not None:
            _leave(self._crowd.keys, self._key)


def _leave(counts: Counter[T], name: T) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
