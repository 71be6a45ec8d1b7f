"""Which requests use a model, so that it is closed after the last of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_HELD: ContextVar[list[object] | None] = ContextVar("models of the request", default=None)


class Leases:
    """Requests in progress by the models that they have looked up."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Give back, at the end of the block, the models that it takes."""
        held: list[object] = []
        token = _HELD.set(held)
        try:
            yield
        finally:
            _HELD.reset(token)
            for model in held:
                self._counts[id(model)] -= 1
                if not self._counts[id(model)]:
                    del self._counts[id(model)]

    def take(self, model: object) -> None:
        """Count a model as used by the request that runs; outside of requests, do nothing."""
        held = _HELD.get()
        if held is not None:
            held.append(model)
            self._counts[id(model)] += 1

    def is_used(self, model: object) -> bool:
        """Return whether a request uses a model."""
        return id(model) in self._counts
