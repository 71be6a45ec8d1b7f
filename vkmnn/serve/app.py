"""The ASGI application: routes, access, error responses and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from vkmnn._version import __version__
from vkmnn.base.extras import need
from vkmnn.serve.access import Access
from vkmnn.serve.crowd import Crowd
from vkmnn.serve.docs_api import DocsApi
from vkmnn.serve.images_api import IMAGE
from vkmnn.serve.inference_api import InferenceApi
from vkmnn.serve.limits import Bodies, HttpError, Limits, as_http
from vkmnn.serve.metrics import Metrics
from vkmnn.serve.models import Models
from vkmnn.serve.networks import Asked
from vkmnn.serve.observer import REQUEST_ID, Observer, Seen
from vkmnn.serve.openai_api import OpenAiApi
from vkmnn.serve.repository import Repository
from vkmnn.serve.repository_api import RepositoryApi
from vkmnn.serve.routes import Row
from vkmnn.serve.work import Work

if TYPE_CHECKING:
    from vkmnn.serve.grpc_api import GrpcApi

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
        on_lost: called when no model has been able to answer for `limits.lost_s` seconds.
        repository: the source of further models.
        observer: logs and traces requests.
        grpc: host and port for gRPC; None for none.
    """

    def __init__(
        self,
        models: Models,
        limits: Limits | None = None,
        access: Access | None = None,
        on_lost: Callable[[], None] = lambda: None,
        repository: Repository | None = None,
        observer: Observer | None = None,
        grpc: tuple[str, int] | None = None,
    ) -> None:
        self._models = models
        self._repository = repository
        self._observer = observer or Observer()
        self.limits = limits or Limits()
        self._access = access or Access()
        self._on_lost = on_lost
        self._crowd = Crowd(self.limits)
        self._work = Work(self.limits.queue, lambda: models.texts_at_once)
        self._metrics = Metrics(self._work)
        if repository is not None:
            repository.settled = self._work.settled
        self.bodies = Bodies(self.limits)
        self._inference = InferenceApi(models, self.limits, self.bodies, self._ran)
        stock = RepositoryApi(repository, self.bodies)
        self._grpc = self._grpc_of(stock) if grpc is not None else None
        self._grpc_place = grpc or ("", 0)
        text = OpenAiApi(models, self.limits, self.bodies, self._work, self._metrics)
        documented = DocsApi(lambda: self._rows, bool(self._access.keys))
        self._rows = [
            Row("/", self._about, "GET", "names of the models and the routes"),
            Row("/metrics", self._page, "GET", "counters and histograms in Prometheus' format"),
            *text.routes(),
            *self._inference.routes(),
            *stock.routes(),
            *documented.routes(),
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
        headers, (route, found) = Headers(scope=scope), self._route_of(scope)
        client = scope["client"][0] if scope.get("client") else ""
        with self._observer.request(scope["method"], route, client, headers) as seen:
            sent = self._sending(send, route, headers.get("origin"), seen)
            try:
                place = self._admitted(scope, headers, route, client)
                with place, self._models.leases.request():
                    if self._is_preflight(scope, headers):
                        await Response(status_code=204)(scope, receive, sent)
                    else:
                        await (found.handle if found else self._router)(scope, receive, sent)
            except Exception as error:
                told = as_http(error)
                if told is not error and told.code == "internal":
                    _log.exception("a request to %s failed", route)
                if seen.status:  # the response has begun: the client sees that its end is missing
                    raise
                await told.response(scope["path"])(scope, receive, sent)

    def _admitted(
        self, scope: Scope, headers: Headers, route: str, client: str
    ) -> AbstractContextManager[None]:
        """Return the place of a request among those in progress.

        Raises:
            HttpError: the server does not accept it.
        """
        if "content-length" in headers and "transfer-encoding" in headers:  # proxies may disagree
            text = "a request has a Content-Length or a Transfer-Encoding, not both"
            raise HttpError(400, "invalid_http", text, {"Connection": "close"})
        self._access.check_place(headers)
        if route in HEALTH or self._is_preflight(scope, headers):
            return nullcontext()
        key = None if route == IMAGE else self._access.check_key(headers)
        return self._crowd.place(client, key) if route not in _UNLIMITED else nullcontext()

    def _is_preflight(self, scope: Scope, headers: Headers) -> bool:
        return scope["method"] == "OPTIONS" and self._access.is_origin(headers.get("origin"))

    def _sending(self, send: Send, route: str, origin: str | None, seen: Seen) -> Send:
        """Return a function that sends a response, with headers of the server, and counts it."""
        start = time.perf_counter()

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and not seen.status:
                seen.status = message["status"]
                mine = [(REQUEST_ID.encode(), seen.request_id.encode("latin-1"))]
                if self._inference.stopping:
                    mine.append((b"connection", b"close"))
                message["headers"] = [
                    *message.get("headers", ()),
                    *mine,
                    *self._readable_by(origin),
                ]
                self._count(route, seen.status, time.perf_counter() - start)
            await send(message)

        return sent

    def _ran(self, model: str, asked: Asked) -> None:
        self._metrics.ran(model, asked)
        self._observer.ran(model, asked)

    def _grpc_of(self, stock: RepositoryApi) -> GrpcApi:
        need("grpc", "gRPC", "grpc")
        from vkmnn.serve.grpc_api import GrpcApi

        return GrpcApi(
            self._models, self._inference, stock, self.limits, self.bodies, self._access,
            self._crowd, self._observer, self._count,
        )  # fmt: skip

    @property
    def grpc_port(self) -> int | None:
        """The port of gRPC; None without it, or before the server has started."""
        return self._grpc.port if self._grpc is not None else None

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
            "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Request-Id",
            "Access-Control-Expose-Headers": "X-Request-Id",
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
        watches = [asyncio.ensure_future(self._watch())]
        repository = self._repository
        if repository is not None and repository.shelf.control == "poll":
            watches.append(asyncio.ensure_future(repository.watch()))
        if self._grpc is not None:
            await self._grpc.start(*self._grpc_place)
        try:
            yield
        finally:
            self.begin_stop()
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            if repository is not None:
                await repository.close()
            self._work.close()
            self.bodies.close()

    def begin_stop(self) -> None:
        """Report that the server is not ready: balancers send their requests elsewhere."""
        self._inference.stopping = True

    async def drain(self, seconds: float) -> None:
        """Accept no further calls by gRPC, and finish those in progress."""
        if self._grpc is not None:
            await self._grpc.stop(seconds)

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
    repository: Repository | None = None,
    observer: Observer | None = None,
    grpc: tuple[str, int] | None = None,
) -> App:
    """Return a server's application; arguments are those of `App`."""
    return App(models, limits, access, on_lost, repository, observer, grpc)
