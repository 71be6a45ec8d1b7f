"""Large responses."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vkmnn.serve.limits import Bodies

_BYTES = 1 << 18


class Pieces(Response):
    """A response whose body is sent in pieces, as fast as the client reads them.

    Its bytes count as held, like those of a request's body, until they are sent.

    Args:
        body: the body.
        bodies: counts the bytes.
        kind: its media type.
        headers: further headers.
    """

    def __init__(self, body: bytes, bodies: Bodies, kind: str, headers: Mapping[str, str]) -> None:
        super().__init__(body, media_type=kind, headers=dict(headers))
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        body = bytes(self.body)
        if len(body) <= _BYTES:
            await super().__call__(scope, receive, send)
            return
        with self._bodies.holding(len(body)):
            start = {"type": "http.response.start", "status": self.status_code,
                     "headers": self.raw_headers}  # fmt: skip
            await send(start)
            for place in range(0, len(body), _BYTES):
                more = place + _BYTES < len(body)
                piece = body[place : place + _BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": more})
