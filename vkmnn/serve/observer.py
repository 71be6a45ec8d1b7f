"""What a server tells about each request: its id, a line of the log, and spans of a trace."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from vkmnn._version import __version__
from vkmnn.base.extras import need
from vkmnn.serve.networks import Asked

REQUEST_ID = "x-request-id"
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_log = logging.getLogger("vkmnn.serve.requests")
_current: ContextVar[Seen | None] = ContextVar("vkmnn_request", default=None)

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@dataclass(slots=True, eq=False)
class Seen:
    """A request in progress.

    Attributes:
        request_id: the client's id, or a new one.
        status: the status of the response; 0 before it begins.
        fields: further fields of the log.
        span: its span, if there are traces.
    """

    request_id: str
    status: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    span: Any = None


class Observer:
    """Logs and traces requests.

    Args:
        logs: whether each request is a line of the log.
        traces: sends spans; None for no traces.
    """

    def __init__(self, logs: bool = False, traces: Traces | None = None) -> None:
        self._logs = logs
        self._traces = traces

    @contextmanager
    def request(
        self, method: str, route: str, client: str, headers: Mapping[str, str]
    ) -> Iterator[Seen]:
        """Report a request at the end of the block.

        Args:
            method: its method; "gRPC" for calls.
            route: the path of its route.
            client: its address.
            headers: its headers.
        """
        given = headers.get(REQUEST_ID, "")
        seen = Seen(given if _ID.fullmatch(given) else secrets.token_hex(8))
        if not self._logs and self._traces is None:
            yield seen
            return
        start = time.perf_counter()
        token = _current.set(seen)
        try:
            if self._traces is None:
                yield seen
            else:
                with self._traces.request(method, route, headers, seen):
                    yield seen
        finally:
            _current.reset(token)
            if self._logs:
                seconds = round(time.perf_counter() - start, 6)
                fields = {
                    "request_id": seen.request_id, "method": method, "route": route,
                    "status": seen.status, "client": client, "seconds": seconds, **seen.fields,
                }  # fmt: skip
                _log.info("%s %s %d", method, route, seen.status, extra=fields)

    def ran(self, model: str, asked: Asked) -> None:
        """Add a run to the request in progress."""
        seen = _current.get()
        if seen is None:
            return
        seen.fields |= {
            "model": model,
            "queue_seconds": round(asked.began - asked.arrived, 6),
            "compute_seconds": round(asked.ended - asked.began, 6),
            "batch_rows": asked.together,
        }
        if self._traces is not None:
            self._traces.ran(model, asked, seen)


class JsonLines(logging.Formatter):
    """Formats each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        made: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        made |= {name: one for name, one in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            made["exception"] = self.formatException(record.exc_info)
        return json.dumps(made, default=str)


class Traces:
    """Sends a span for each request, and spans for its waiting and its run, by OpenTelemetry.

    Args:
        provider: a TracerProvider; None for one that exports by OTLP over HTTP, as the variables
            OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, … say.

    Raises:
        MissingExtraError: OpenTelemetry is not installed.
    """

    def __init__(self, provider: Any = None) -> None:
        self._api = need("opentelemetry.trace", "traces", "telemetry")
        self._propagate = need("opentelemetry.propagate", "traces", "telemetry")
        self._provider = provider or _exporting()
        self._tracer = self._provider.get_tracer(__name__, __version__)

    @contextmanager
    def request(
        self, method: str, route: str, headers: Mapping[str, str], seen: Seen
    ) -> Iterator[None]:
        """Trace a request until the end of the block."""
        api = self._api
        attributes = {"http.request.method": method, "http.route": route,
                      "vkmnn.request_id": seen.request_id}  # fmt: skip
        context = self._propagate.extract({name.lower(): one for name, one in headers.items()})
        with self._tracer.start_as_current_span(
            f"{method} {route}", context=context, kind=api.SpanKind.SERVER, attributes=attributes
        ) as span:
            seen.span = span
            try:
                yield
            finally:
                span.set_attribute("http.response.status_code", seen.status)
                if seen.status >= 500:
                    span.set_status(api.StatusCode.ERROR)

    def ran(self, model: str, asked: Asked, seen: Seen) -> None:
        """Add the spans of a run to that of its request."""
        parent = self._api.set_span_in_context(seen.span)
        shift = time.time_ns() - int(time.perf_counter() * 1e9)
        times = [shift + int(one * 1e9) for one in (asked.arrived, asked.began, asked.ended)]
        attributes = {"vkmnn.network": model, "vkmnn.batch_rows": asked.together}
        for name, start, end in (("queue", *times[:2]), ("compute", *times[1:])):
            span = self._tracer.start_span(
                name, context=parent, start_time=start, attributes=attributes
            )
            span.end(end)

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()


def _exporting() -> Any:
    sdk = need("opentelemetry.sdk.trace", "traces", "telemetry")
    export = need("opentelemetry.sdk.trace.export", "traces", "telemetry")
    resources = need("opentelemetry.sdk.resources", "traces", "telemetry")
    otlp = need("opentelemetry.exporter.otlp.proto.http.trace_exporter", "traces", "telemetry")
    resource = resources.Resource.create({"service.version": __version__})
    if resource.attributes.get("service.name", "unknown").startswith("unknown"):
        resource = resource.merge(resources.Resource({"service.name": "vkmnn"}))
    provider = sdk.TracerProvider(resource=resource)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return provider
