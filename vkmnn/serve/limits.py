"""Limits of a server, its error responses, and request bodies."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from vkmnn.errors import InvalidInputError, ShapeError, VkmnnError
from vkmnn.llm.text import TextTooLongError
from vkmnn.serve.compression import COMPRESSIONS, decompressed

Made = TypeVar("Made")

KEEP_ALIVE_S = 75
"""Seconds for which idle connections stay open: longer than clients keep them (httpx and curl: 5 s
to a minute), so that no client sends a request just as the server closes the connection."""

SLOWEST = 1 << 16
"""Bytes per second at which a body, or a response, never exceeds its deadline."""

_SMALL = 1 << 16
"""Bytes of a body that are accepted however many others are held."""

_CONTAINER = 8
"""Weight of a JSON array or object in values, by its parsing time."""

_MESSAGE = 2000
"""Characters of an error's message, which may quote the request."""

MAX_DEPTH = 128
"""Maximum depth of arrays and objects in the bodies of OpenAI's API, which parts are written of."""

_UNCOUNTED = bytes(set(range(256)) - set(b'",[{'))
_TEXT = re.compile(rb'"[^"]*"')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server.

    Attributes:
        body_bytes: maximum size of a request's body.
        held_bytes: maximum sum of the bodies held at a time.
        body_values: maximum values in the JSON of a body.
        header_s: seconds within which the head of a request has to arrive.
        body_s: seconds within which its body has to arrive, plus one for each 64 KiB; and within
            which the client has to read as much of a response as that.
        connections: maximum open connections; beyond, the one idle longest is closed.
        max_tokens: maximum tokens per request; None for as many as fit.
        queue: maximum requests that wait for each of: a text, a run, tokenising, embeddings.
        per_client: maximum concurrent requests of one address.
        per_key: maximum concurrent requests with one API key; None for no limit.
        stop_texts: maximum stop texts of a request.
        stop_characters: maximum characters of a stop text.
        texts: maximum texts of a request for embeddings or a ranking.
        choices: maximum texts that a request generates.
        tools: maximum functions of a request.
        sound_s: maximum seconds of a sound.
        kept_bytes: maximum bytes of responses that are kept for `previous_response_id`, and of
            images that are kept for their addresses.
        prefix_bytes: maximum bytes of rows of caches that texts with the same beginning share.
        lost_s: seconds after which the server ends if no model can answer.
    """

    body_bytes: int = 16 << 20
    held_bytes: int = 256 << 20
    body_values: int = 1 << 18
    header_s: float = 10.0
    body_s: float = 30.0
    connections: int = 4096
    max_tokens: int | None = None
    queue: int = 128
    per_client: int = 128
    per_key: int | None = None
    stop_texts: int = 16
    stop_characters: int = 1024
    texts: int = 2048
    choices: int = 16
    tools: int = 128
    sound_s: float = 7200.0
    kept_bytes: int = 64 << 20
    prefix_bytes: int = 256 << 20
    lost_s: float = 30.0


class HttpError(VkmnnError):
    """An error response: a status, a code for programs, and a message for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: dict[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers or ({"Retry-After": "1"} if status in (429, 503) else {})

    def told(self, path: str) -> dict[str, Any]:
        """Return the response's JSON: the inference protocol's form under /v2, else OpenAI's."""
        message = self.message[:_MESSAGE].encode("utf-8", "replace").decode()
        if is_under(path, "/v2"):
            return {"error": message}
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "code": self.code, "param": self.param}}

    def response(self, path: str) -> JSONResponse:
        """Return the response to a request for this path."""
        return JSONResponse(self.told(path), self.status, self.headers)


def as_http(error: BaseException) -> HttpError:
    """Return the error response for an exception."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, ClientDisconnect):  # nothing reads this
        return HttpError(499, "client_gone", "the client has disconnected")
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
    """Return whether a path is a folder, or inside it."""
    return path == folder or path.startswith(f"{folder}/")


class _Deadline:
    """Ends the block, in a task, at a time of the event loop: as asyncio.timeout_at (3.11)."""

    def __init__(self, end: float) -> None:
        self._end = end
        self.passed = False

    def __enter__(self) -> _Deadline:  # noqa: PYI034 - Self is of Python 3.11
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._task = task
        self._timer = loop.call_at(self._end, self._stop)
        return self

    def _stop(self) -> None:
        self.passed = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        """Stop the timer; swallow the end of the task that it has asked for."""
        self._timer.cancel()
        if not self.passed or kind is not asyncio.CancelledError:
            return False
        others = self._task.uncancel() if hasattr(self._task, "uncancel") else 0
        return not others  # somebody else has ended the task too


def _attempt(
    do: Callable[..., Made], args: tuple[Any, ...]
) -> tuple[Made | None, VkmnnError | None]:
    """Call a function; return its result, or its error without the frames that hold the body."""
    try:
        return do(*args), None
    except VkmnnError as error:
        error.__cause__ = error.__context__ = None
        return None, error.with_traceback(None)


class Bodies:
    """Receives the bodies of requests, within limits on the size, the time and the sum of all."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # One thread: only one body takes the memory of its parsed values at a time, and the memory
        # that the allocator keeps for each thread is kept once.
        self._reader = ThreadPoolExecutor(1, "vkmnn-serve-bodies")
        self.held = 0

    def close(self) -> None:
        """End the thread that reads large bodies."""
        self._reader.shutdown(wait=False)

    async def aside(self, do: Callable[..., Made], *args: Any) -> Made:
        """Call a function in the thread for large bodies, one at a time."""
        loop = asyncio.get_running_loop()
        made, refused = await loop.run_in_executor(self._reader, _attempt, do, args)
        if refused is not None:
            try:
                raise refused
            finally:
                del refused  # which would hold on to this frame, and so to the body
        return made  # type: ignore[return-value]

    @asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[bytes]:
        """Receive the body of a request, which counts as held until the end of the block.

        Raises:
            HttpError: the body is too large or too slow, or too many bytes are held already.
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
                    raise HttpError(503, "too_many_bytes", "too many concurrent request bodies")
                parts.append(part)
                self.held += len(part)
                size += len(part)
            whole = b"".join(parts)
            parts.clear()
            if (how := request.headers.get("content-encoding", "identity").lower()) != "identity":
                whole = await self._decompressed(whole, how)
                size += len(whole)
            yield whole
        finally:
            self.held -= size

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count the bytes of a message that has been received until the end of the block.

        Raises:
            HttpError: too many bytes are held already.
        """
        if size > _SMALL and self.held + size > self._limits.held_bytes:
            raise HttpError(503, "too_many_bytes", "too many concurrent request bodies")
        self.held += size
        try:
            yield
        finally:
            self.held -= size

    async def _decompressed(self, body: bytes, how: str) -> bytes:
        """Decompress a body, whose bytes count as held from then on."""
        if how not in COMPRESSIONS:
            text = f"the Content-Encoding '{how[:40]}' is not one of {', '.join(COMPRESSIONS)}"
            raise HttpError(415, "unsupported_encoding", text)
        limits = self._limits

        def read() -> bytes:
            room = max(limits.held_bytes - self.held, _SMALL)
            made = decompressed(body, how, min(limits.body_bytes, room))
            if len(made) > limits.body_bytes:
                raise self._too_large()
            if len(made) > room:
                raise HttpError(503, "too_many_bytes", "too many concurrent request bodies")
            self.held += len(made)
            return made

        try:
            return await self.aside(read)
        except ValueError as error:
            text = f"the body is not {how}: {error}"
            raise HttpError(400, "invalid_encoding", text) from error

    async def _in_time(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the parts of a body; raise HttpError once it exceeds its deadline."""
        loop = asyncio.get_running_loop()
        end, more = loop.time() + self._limits.body_s, True
        while more:
            with _Deadline(end) as deadline:
                message = await request.receive()
            if deadline.passed:
                text = f"the body did not arrive within {self._limits.body_s:g} s"
                raise HttpError(408, "body_too_slow", text)
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part, more = message.get("body", b""), message.get("more_body", False)
            end += len(part) / SLOWEST
            if part:
                yield part

    def _too_large(self) -> HttpError:
        text = f"a body has {self._limits.body_bytes} bytes at most"
        return HttpError(413, "body_too_large", text)

    async def object_of(self, request: Request) -> dict[str, Any]:
        """Receive and parse the body of a request; raises as `received` and `read`.

        Raises:
            HttpError: also if arrays and objects are nested too deeply to be written again.
        """
        async with self.received(request) as body:
            made = await self.read(body)
            if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
                await self.aside(_check_depth, made)
            return made

    async def read(self, body: bytes, values: int | None = None) -> dict[str, Any]:
        """Parse a body that has to be a JSON object.

        Large bodies are parsed one after the other, in another thread.

        Args:
            body: the bytes.
            values: its maximum number of values; `Limits.body_values` by default.

        Raises:
            HttpError: the body is not a JSON object with Unicode strings, or has too many values.
        """
        most = self._limits.body_values if values is None else values
        if len(body) <= _SMALL:
            return object_of(body, most, values is None)
        return await self.aside(object_of, body, most, values is None)


def object_of(body: bytes, most: int, finite: bool = False) -> dict[str, Any]:
    """Parse a body that must be a JSON object of at most `most` values.

    Args:
        body: the bytes.
        most: maximum values.
        finite: whether all numbers have to be finite: responses may repeat them, and JSON has no
            others.
    """
    if _values(body) > most and _values(_without_texts(body, most)) > most:
        raise HttpError(413, "too_many_values", f"a body has {most} values at most")
    try:
        text = body.decode("utf-8-sig")
        made = _finite_json(text) if finite else json.loads(text)
        if "\\u" in text and _SURROGATE.search(text):  # half of a surrogate pair is not Unicode
            json.dumps(made, ensure_ascii=False).encode()
        reason = None
    except (ValueError, RecursionError) as error:
        reason = "it is not Unicode" if isinstance(error, UnicodeError) else str(error)
    if reason is not None:  # raised here, where no error holds on to the text
        raise HttpError(400, "invalid_json", f"the body is not JSON: {reason}")
    if not isinstance(made, dict):
        raise HttpError(400, "invalid_json", "the body is not a JSON object")
    return made


def _finite_json(text: str) -> Any:
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:40]} is not finite")
    return number


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    text = f"arrays and objects in the body are nested more than {MAX_DEPTH} deep"
    raise HttpError(400, "too_deep", text)


def _values(body: bytes) -> int:
    """Estimate the number of values in JSON without parsing it."""
    return body.count(b",") + _CONTAINER * (body.count(b"[") + body.count(b"{"))


def _without_texts(body: bytes, most: int) -> bytes:
    """Return the counted punctuation, without that inside strings if these are few."""
    kept = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _UNCOUNTED)
    return kept if kept.count(b'"') > 4 * most else _TEXT.sub(b"", kept)


def length_of(text: str) -> int:
    """Return the length in a header; -1 if it is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def field(body: Any, name: str, kinds: tuple[type, ...], default: Any = None) -> Any:
    """Return a field of a JSON object; null means the default.

    Raises:
        HttpError: it is of another type.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        text = f"'{name}' is not of the type {wanted}"
        raise HttpError(400, "invalid_type", text, param=name)
    return value
