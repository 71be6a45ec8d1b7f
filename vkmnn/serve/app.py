"""The ASGI application: routes, access, error responses and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from vkmnn._version import __version__
from vkmnn.serve.access import Access
from vkmnn.serve.inference_api import InferenceApi
from vkmnn.serve.limits import Bodies, HttpError, Limits, as_http
from vkmnn.serve.metrics import Metrics
from vkmnn.serve.models import Models
from vkmnn.serve.openai_api import OpenAiApi
from vkmnn.serve.routes import Row
from vkmnn.serve.work import Work

HEALTH = ("/health", "/healthz", "/v2/health/live", "/v2/health/ready")
"""Routes that need no key and have no limit."""

_UNLIMITED = (*HEALTH, "/metrics")
_ELSEWHERE = "other"
_WATCH_S = 1.0
_log = logging.getLogger(__name__)


class App:
    """A server's application (ASGI).

    Args:
        models: the models that it serves; the caller closes them.
        limits: the limits on requests.
        access: which requests it accepts.
        on_lost: called once no model has been able to answer for `limits.lost_s` seconds.
    """

    def __init__(
        self,
        models: Models,
        limits: Limits | None = None,
        access: Access | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._models = models
        self.limits = limits or Limits()
        self._access = access or Access()
        self._on_lost = on_lost
        self._under_way: Counter[str] = Counter()
        self._work = Work(self.limits.queue)
        self._metrics = Metrics(self._work)
        self.bodies = Bodies(self.limits)
        self._inference = InferenceApi(models, self.limits, self.bodies, self._metrics)
        text = OpenAiApi(models, self.limits, self.bodies, self._work, self._metrics)
        self._rows = [
            Row("/", self._about, "GET", "names of the models and the routes"),
            Row("/metrics", self._page, "GET", "counters and histograms in Prometheus' format"),
            *text.routes(),
            *self._inference.routes(),
        ]
        self._routes = [Route(row.path, row.handler, methods=[row.method]) for row in self._rows]
        self._fixed = {route.path: route for route in self._routes if "{" not in route.path}
        self._open = [route for route in self._routes if "{" in route.path]
        self._router = Router(self._routes, redirect_slashes=False, lifespan=self._lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: with JSON, whatever fails."""
        scope["app"] = self  # makes the router raise for unknown routes and methods
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        headers, (route, found) = Headers(scope=scope), self._route_of(scope)
        readable = self._readable_by(headers.get("origin"))

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start" and not status:
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *readable]
                self._count(route, status, time.perf_counter() - start)
            await send(message)

        client = scope["client"][0] if scope.get("client") else ""
        self._under_way[client] += 1
        try:
            self._access.check_place(headers)
            if readable and scope["method"] == "OPTIONS":
                await Response(status_code=204)(scope, receive, sent)
                return
            if route not in HEALTH:
                self._access.check_key(headers)
            if route not in _UNLIMITED and self._under_way[client] > self.limits.per_client:
                text = f"this address has {self.limits.per_client} requests in progress already"
                raise HttpError(429, "too_many_requests", text)
            await (found.handle if found else self._router)(scope, receive, sent)
        except Exception as error:
            told = as_http(error)
            if told is not error and told.code == "internal":
                _log.exception("a request to %s failed", route)
            if status:  # the response has begun: the client sees that its end is missing
                raise
            await told.response(scope["path"])(scope, receive, sent)
        finally:
            self._under_way[client] -= 1
            if not self._under_way[client]:
                del self._under_way[client]

    def refuse(self, status: int, code: str, message: str) -> dict[str, Any]:
        """Count a request that is not HTTP or not complete; return the JSON of the response."""
        self._count(_ELSEWHERE, status, 0.0)
        return HttpError(status, code, message).told("/")

    def _count(self, route: str, status: int, seconds: float) -> None:
        self._metrics.seconds.labels(route).observe(seconds)
        self._metrics.requests.labels(route, status).inc()

    def _route_of(self, scope: Scope) -> tuple[str, Route | None]:
        """Return the path of a request's route, with placeholders for names, and the route.

        None if there is no route for the request's method: the router refuses the request.
        """
        fixed = self._fixed.get(scope["path"])
        path = _ELSEWHERE
        for route in self._open if fixed is None else (fixed,):
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return route.path, route
            if match is Match.PARTIAL:
                path = route.path
        return path, None

    def _readable_by(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """Return the CORS headers that let pages of an origin read a response."""
        if origin is None or not self._access.is_origin(origin):
            return []
        named: Mapping[str, str] = {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Allow-Methods": "GET, POST",
            "Vary": "Origin",
        }
        return [(name.lower().encode(), value.encode("latin-1")) for name, value in named.items()]

    async def _about(self, request: Request) -> Response:
        models = self._models
        return JSONResponse({
            "name": "vkmnn", "version": __version__,
            "models": {"language": list(models.language), "embedding": list(models.embedding),
                       "networks": list(models.networks)},
            "routes": [route.path for route in self._routes],
        })  # fmt: skip

    async def _page(self, request: Request) -> Response:
        return Response(self._metrics.page(), media_type="text/plain; version=0.0.4")

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        watch = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            self._inference.close()
            self._work.close()

    async def _watch(self) -> None:
        """Call `on_lost` once no model has been able to answer for long enough."""
        since: float | None = None
        while True:
            await asyncio.sleep(_WATCH_S)
            if not self._models.names or len(self._models.lost) < len(self._models.names):
                since = None
                continue
            now = time.monotonic()
            since = now if since is None else since
            if now - since >= self.limits.lost_s:
                self._on_lost()
                return


def make_app(
    models: Models,
    limits: Limits | None = None,
    access: Access | None = None,
    on_lost: Callable[[], None] = lambda: None,
) -> App:
    """Return a server's application; arguments are those of `App`."""
    return App(models, limits, access, on_lost)
