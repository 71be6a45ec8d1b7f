"""Rows of the route table: each API of the server lists its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]


class Row(NamedTuple):
    """One route.

    Attributes:
        path: its path, with placeholders as `{name}`.
        handler: answers requests.
        method: GET or POST.
        about: its purpose in a few words, for the page /docs.
        example: an example of the JSON of a request.
    """

    path: str
    handler: Handler
    method: str
    about: str
    example: Any = None
