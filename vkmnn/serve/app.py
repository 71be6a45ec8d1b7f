"""The application: routes, errors, limits and what is counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from vkmnn.errors import InvalidInputError, ShapeError, VkmnnError
from vkmnn.serve.inference_api import InferenceApi
from vkmnn.serve.limits import HttpError, Limits
from vkmnn.serve.metrics import Metrics
from vkmnn.serve.models import Models
from vkmnn.serve.openai_api import OpenAiApi
from vkmnn.serve.streamed import Streamed
from vkmnn.serve.turns import Turns

Handler = Callable[[Request], Awaitable[Response]]


def make_app(models: Models, limits: Limits | None = None) -> Starlette:
    """Return a server's application.

    Args:
        models: what it has; they stay open when it stops.
        limits: what it takes on.
    """
    limits = limits or Limits()
    turns = Turns(limits.queue)
    metrics = Metrics(turns)
    text, inference = OpenAiApi(models, limits, turns, metrics), InferenceApi(models, limits)
    door = _Door(limits, metrics)

    async def page(request: Request) -> Response:
        return Response(metrics.page(), media_type="text/plain; version=0.0.4")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        inference.stopping = True
        turns.close()

    routes = [
        ("/v1/models", text.models, "GET"),
        ("/v1/models/{name}", text.models, "GET"),
        ("/v1/chat/completions", text.chat, "POST"),
        ("/v1/completions", text.completions, "POST"),
        ("/v1/embeddings", text.embeddings, "POST"),
        ("/v2", inference.server, "GET"),
        ("/v2/health/live", inference.live, "GET"),
        ("/v2/health/ready", inference.ready, "GET"),
        ("/v2/models/{name}", inference.metadata, "GET"),
        ("/v2/models/{name}/ready", inference.ready, "GET"),
        ("/v2/models/{name}/infer", inference.infer, "POST"),
        ("/metrics", page, "GET"),
    ]
    return Starlette(
        routes=[Route(path, door.guarded(path, do), methods=[how]) for path, do, how in routes],
        lifespan=lifespan,
    )


class _Door:
    """Lets requests in, counts them, and makes responses of errors."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._under_way: Counter[str] = Counter()

    def guarded(self, route: str, handler: Handler) -> Handler:
        """Return a handler whose errors are responses."""

        async def handle(request: Request) -> Response:
            start = time.perf_counter()
            response = await self._answered(request, handler)
            self._metrics.seconds.labels(route).observe(time.perf_counter() - start)
            self._metrics.requests.labels(route, response.status_code).inc()
            return response

        return handle

    async def _answered(self, request: Request, handler: Handler) -> Response:
        client = request.client.host if request.client else ""
        if self._under_way[client] >= self._limits.per_client:
            return HttpError(429, "too_many_requests", "one request after the other").response()
        self._under_way[client] += 1
        response = None
        try:
            response = await handler(request)
            return response
        except ClientDisconnect:  # nobody reads this
            return HttpError(499, "client_gone", "the client has gone").response()
        except HttpError as error:
            return error.response()
        except (InvalidInputError, ShapeError) as error:
            return HttpError(400, "invalid_value", error.message).response()
        except VkmnnError as error:
            return HttpError(500, type(error).__name__, error.message).response()
        finally:
            if isinstance(response, Streamed):  # under way until its text has been sent
                response.when_done(lambda: self._leave(client))
            else:
                self._leave(client)

    def _leave(self, client: str) -> None:
        self._under_way[client] -= 1
        if not self._under_way[client]:
            del self._under_way[client]
