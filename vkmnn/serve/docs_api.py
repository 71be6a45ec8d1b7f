"""The page /docs and the description of the routes, /openapi.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from json import dumps
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from vkmnn._version import __version__
from vkmnn.serve.routes import Row

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;"
    "color:#222;background:#fff}code,pre{font:14px/1.4 ui-monospace,monospace;background:#f3f3f5;"
    "border-radius:4px;padding:.1em .3em}pre{padding:.6em;overflow:auto}summary{cursor:pointer;"
    "padding:.3em 0}b{display:inline-block;width:3.5em}@media(prefers-color-scheme:dark){"
    "body{color:#ddd;background:#16161a}code,pre{background:#26262c}}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class DocsApi:
    """The routes that describe all routes.

    Args:
        rows: returns the rows of the route table.
        keyed: whether requests need a key.
    """

    def __init__(self, rows: Callable[[], Sequence[Row]], keyed: bool) -> None:
        self._rows = rows
        self._keyed = keyed

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        return [
            Row("/docs", self.page, "GET", "this page"),
            Row("/openapi.json", self.openapi, "GET", "the routes in OpenAPI's form"),
        ]

    async def page(self, request: Request) -> Response:
        """GET /docs."""
        text = page_of(self._rows(), self._keyed)
        return HTMLResponse(text, headers={"Content-Security-Policy": _POLICY})

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        return JSONResponse(openapi_of(self._rows(), self._keyed))


def openapi_of(rows: Sequence[Row], keyed: bool) -> dict[str, Any]:
    """Return the description of routes in OpenAPI's form."""
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        about = row.about[:1].upper() + row.about[1:]
        one: dict[str, Any] = {
            "summary": about,
            "operationId": re.sub(r"\W+", "_", f"{row.method.lower()}{row.path}").strip("_"),
            "responses": {
                "200": {"description": about},
                "default": {"description": "An error, with its reason in the field `error`."},
            },
        }
        names = re.findall(r"\{(\w+)", row.path)
        if names:
            one["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in names
            ]
        if row.method == "POST":
            content = {"application/json": {"schema": {"type": "object"}, "example": row.example}}
            one["requestBody"] = {"content": content}
        paths.setdefault(re.sub(r":\w+\}", "}", row.path), {})[row.method.lower()] = one
    made: dict[str, Any] = {
        "openapi": "3.1.0", "info": {"title": "vkmnn", "version": __version__}, "paths": paths,
    }  # fmt: skip
    if keyed:
        made["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        made["security"] = [{"key": []}]
    return made


def page_of(rows: Sequence[Row], keyed: bool) -> str:
    """Return the page, which loads nothing else."""
    head = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>vkmnn {__version__}</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>vkmnn {__version__}</h1><p>The routes of this server, also as "
        "<a href=openapi.json>openapi.json</a>."
    )
    parts = [head]
    if keyed:
        parts.append("<p>Requests need the header <code>Authorization: Bearer KEY</code>.")
    for row in rows:
        head = f"<b>{row.method}</b> <code>{escape(row.path)}</code> {escape(row.about)}"
        if row.method == "POST":
            example = escape(dumps(row.example, indent=1))
            parts.append(f"<details><summary>{head}</summary><pre>{example}</pre></details>")
        else:
            parts.append(f"<p>{head}")
    return "\n".join(parts)
