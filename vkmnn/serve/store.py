"""Results that later requests ask for, within a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from vkmnn.serve.limits import HttpError


class Store:
    """The latest results by their ids.

    Args:
        most: maximum bytes.
        kind: what a result is, in errors.
    """

    def __init__(self, most: int, kind: str) -> None:
        self._most = most
        self._kind = kind
        self._held = 0
        self._all: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()

    def put(self, identity: str, *parts: bytes) -> None:
        """Keep a result, unless it alone is too large; forget the oldest ones for it."""
        size = sum(map(len, parts))
        if size > self._most:
            return
        self._all[identity] = parts
        self._held += size
        while self._held > self._most:
            self._held -= sum(map(len, self._all.popitem(last=False)[1]))

    def parts(self, identity: Any, param: str | None = None) -> tuple[bytes, ...]:
        """Return a result.

        Raises:
            HttpError: there is none, or it is not kept any more.
        """
        parts = self._all.get(identity) if isinstance(identity, str) else None
        if parts is None:
            text = f"there is no {self._kind} '{str(identity)[:80]}', or it is not kept any more"
            raise HttpError(404, f"{self._kind}_not_found", text, param=param)
        return parts

    def remove(self, identity: str) -> None:
        """Forget a result; raises as `parts`."""
        self._held -= sum(map(len, self.parts(identity)))
        del self._all[identity]
