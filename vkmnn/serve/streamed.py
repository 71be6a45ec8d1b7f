"""Streamed responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class Streamed(StreamingResponse):
    """Server-sent events; `when_done` is always called at the end.

    A client may disconnect before the first event: then the events' own `finally` never runs.

    Args:
        events: the events to send.
    """

    def __init__(self, events: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-cache"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._done: list[Callable[[], None]] = []

    def when_done(self, call: Callable[[], None]) -> None:
        """Called once the response has been sent, or cannot be."""
        self._done.append(call)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            for call in self._done:
                call()


def events_of(data: Any, name: str | None = None) -> str:
    """Return a server-sent event with JSON; `name` is its type."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data)}\n\n"
