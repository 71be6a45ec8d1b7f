"""What a server takes on, and how it says no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from vkmnn.errors import VkmnnError

KEEP_ALIVE_S = 75
"""How long connections stay open between requests: longer than clients keep theirs (httpx and curl
5 s to a minute), so that none sends a request into a connection that is being closed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes on.

    Attributes:
        body_bytes: the largest body of a request.
        max_tokens: the most tokens that a request may ask for; None for what there is room for.
        queue: how many requests may wait for their first token, or for a run.
        per_client: how many requests of one address may be under way.
    """

    body_bytes: int = 16 << 20
    max_tokens: int | None = None
    queue: int = 128
    per_client: int = 128


class HttpError(VkmnnError):
    """A request that is refused: a status, a word for programs, and a text for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def response(self) -> JSONResponse:
        """Return what the client gets, as OpenAI's clients read it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "code": self.code, "param": None}
        headers = {"Retry-After": "1"} if self.status in (429, 503) else None
        return JSONResponse({"error": error}, self.status, headers)


async def body_of(request: Request, limits: Limits) -> bytes:
    """Return a request's body.

    Raises:
        HttpError: it is too large.
    """
    too_large = HttpError(413, "body_too_large", f"a body has {limits.body_bytes} bytes at most")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limits.body_bytes:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limits.body_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def field(body: Any, name: str, kinds: tuple[type, ...], default: Any = None) -> Any:
    """Return a field of a JSON object; null stands for the default.

    Raises:
        HttpError: it is of another type.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise HttpError(400, "invalid_type", f"'{name}' is not of the type {wanted}")
    return value
