"""What a server takes on, and how it says no."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from vkmnn.errors import InvalidInputError, ShapeError, VkmnnError
from vkmnn.llm.text import TextTooLongError

KEEP_ALIVE_S = 75
"""How long connections stay open between requests: longer than clients keep theirs (httpx and curl
5 s to a minute), so that none sends a request into a connection that is being closed."""

_SLOWEST = 1 << 16
"""Bytes a second: a body that comes as fast as this is never late."""

_SMALL = 1 << 16
"""Bytes of a body that there is always room for."""

_CONTAINER = 8
"""How many numbers take as long to read as an array or object of JSON."""

_UNCOUNTED = bytes(set(range(256)) - set(b'",[{'))
_TEXT = re.compile(rb'"[^"]*"')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes on.

    Attributes:
        body_bytes: the largest body of a request.
        held_bytes: the largest sum of the bodies that are being received and read.
        body_values: how many values the JSON of a body may have.
        header_s: seconds in which the head of a request has to come.
        body_s: seconds in which its body has to come, and one more for each 64 KiB.
        max_tokens: the most tokens that a request may ask for; None for what there is room for.
        queue: how many requests may wait for their first token, for a run, to be cut into tokens or
            to become vectors.
        per_client: how many requests of one address may be under way.
        stop_texts: how many stop texts a request may have.
        stop_characters: how long each of them may be.
        texts: how many texts a request for embeddings may have.
        lost_s: seconds after which a server ends whose models cannot answer.
    """

    body_bytes: int = 16 << 20
    held_bytes: int = 256 << 20
    body_values: int = 1 << 18
    header_s: float = 10.0
    body_s: float = 30.0
    max_tokens: int | None = None
    queue: int = 128
    per_client: int = 128
    stop_texts: int = 16
    stop_characters: int = 1024
    texts: int = 2048
    lost_s: float = 30.0


class HttpError(VkmnnError):
    """A request that is refused: a status, a word for programs, and a text for people."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or ({"Retry-After": "1"} if status in (429, 503) else {})

    def told(self, path: str) -> dict[str, Any]:
        """Return what the client gets: the inference protocol's form under /v2, else OpenAI's."""
        message = self.message.encode("utf-8", "replace").decode()
        if is_under(path, "/v2"):
            return {"error": message}
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "code": self.code, "param": None}}

    def response(self, path: str) -> JSONResponse:
        """Return the response to a request for this path."""
        return JSONResponse(self.told(path), self.status, self.headers)


def as_http(error: BaseException) -> HttpError:
    """Return what a client is told of an error."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, ClientDisconnect):  # nobody reads this
        return HttpError(499, "client_gone", "the client has gone")
    if isinstance(error, HTTPException):  # of starlette: no such route, or not by this method
        word = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
        return HttpError(error.status_code, word, error.detail, dict(error.headers or {}))
    if isinstance(error, TextTooLongError):
        return HttpError(400, "context_length_exceeded", error.message)
    if isinstance(error, InvalidInputError | ShapeError):
        return HttpError(400, "invalid_value", error.message)
    if isinstance(error, VkmnnError):
        return HttpError(500, type(error).__name__, error.message)
    return HttpError(500, "internal", f"the server has failed: {type(error).__name__}")


def is_under(path: str, folder: str) -> bool:
    """Tell whether a path is a folder's, or lies in it."""
    return path == folder or path.startswith(f"{folder}/")


class Bodies:
    """Receives the bodies of a server's requests: within a size, a time and a sum."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._reading = asyncio.Lock()
        self.held = 0

    @asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[bytes]:
        """Receive a request's body; it counts until the end of the block.

        Raises:
            HttpError: it is too large, or comes too slowly; or too many are there at once.
        """
        limits = self._limits
        if length_of(request.headers.get("content-length", "0")) > limits.body_bytes:
            raise self._too_large()
        parts, size = list[bytes](), 0
        try:
            async for part in self._in_time(request):
                if size + len(part) > limits.body_bytes:
                    raise self._too_large()
                if size > _SMALL and self.held + len(part) > limits.held_bytes:
                    raise HttpError(503, "too_many_bytes", "too many bodies come at once")
                parts.append(part)
                self.held += len(part)
                size += len(part)
            whole = b"".join(parts)
            parts.clear()
            yield whole
        finally:
            self.held -= size

    async def _in_time(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the parts of a body; HttpError if they come too slowly."""
        stream, loop = request.stream(), asyncio.get_running_loop()
        end = loop.time() + self._limits.body_s
        while True:
            try:
                part = await asyncio.wait_for(anext(stream), max(end - loop.time(), 0))
            except StopAsyncIteration:
                return
            except (asyncio.TimeoutError, TimeoutError):
                text = f"the body did not come within {self._limits.body_s:g} s"
                raise HttpError(408, "body_too_slow", text) from None
            end += len(part) / _SLOWEST
            yield part

    def _too_large(self) -> HttpError:
        text = f"a body has {self._limits.body_bytes} bytes at most"
        return HttpError(413, "body_too_large", text)

    async def read(self, body: bytes, values: int | None = None) -> dict[str, Any]:
        """Return the JSON object that a body is.

        Large ones are read one after the other, between the steps of other requests.

        Args:
            body: what was received.
            values: how many values it may have; `Limits.body_values` by default.

        Raises:
            HttpError: it is not, or holds what is no Unicode, or too many values.
        """
        most = self._limits.body_values if values is None else values
        if len(body) <= _SMALL:
            return _object_of(body, most)
        async with self._reading:
            return await run_in_threadpool(_object_of, body, most)


def _object_of(body: bytes, most: int) -> dict[str, Any]:
    """Return the JSON object that a body is; it has `most` values at most."""
    if _values(body) > most and _values(_without_texts(body, most)) > most:
        raise HttpError(413, "too_many_values", f"a body has {most} values at most")
    try:
        text = body.decode("utf-8-sig")
        made = json.loads(text)
        if "\\u" in text and _SURROGATE.search(text):  # half of a pair is not Unicode
            json.dumps(made, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "it is not Unicode" if isinstance(error, UnicodeError) else str(error)
        raise HttpError(400, "invalid_json", f"the body is not JSON: {reason}") from error
    if not isinstance(made, dict):
        raise HttpError(400, "invalid_json", "the body is not a JSON object")
    return made


def _values(body: bytes) -> int:
    """Return how many values JSON has, in the time that they take, without reading it."""
    return body.count(b",") + _CONTAINER * (body.count(b"[") + body.count(b"{"))


def _without_texts(body: bytes, most: int) -> bytes:
    """Return the characters of JSON that count, without those in texts, unless these are many."""
    kept = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _UNCOUNTED)
    return kept if kept.count(b'"') > 4 * most else _TEXT.sub(b"", kept)


def length_of(text: str) -> int:
    """Return the length that a header gives; -1 where it gives none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


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
