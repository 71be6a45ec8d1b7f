"""The metrics of a server, in Prometheus's format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vkmnn.serve.networks import Asked
from vkmnn.serve.turns import Turns
from vkmnn.serve.work import Work

_SECONDS = (1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one server."""

    def __init__(self, work: Work) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "vkmnn_requests", "Requests by route and status.", ["route", "status"],
            registry=self._registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "vkmnn_request_seconds",
            "Seconds until a response begins.",
            ["route"],
            registry=self._registry,
        )
        self.prompt_tokens = Counter(
            "vkmnn_prompt_tokens", "Tokens of prompts.", registry=self._registry
        )
        self.generated_tokens = Counter(
            "vkmnn_generated_tokens", "Generated tokens.", registry=self._registry
        )
        for name, turns, what in (
            ("", work.texts, "Texts being generated"),
            ("_tokenising", work.tokenising, "Long prompts being tokenised"),
            ("_compiling", work.compiling, "Grammars being compiled"),
            ("_embedding", work.embedding, "Requests for embeddings being computed"),
            ("_ranking", work.ranking, "Requests for rankings being computed"),
            ("_sounds", work.sounds, "Sounds being transcribed"),
            ("_images", work.images, "Requests for images being painted"),
        ):
            self._watch(f"vkmnn{name}", turns, what)

        model = ["model"]
        self._queued = self._seconds("queue", "Seconds for which requests for networks waited.")
        self._computed = self._seconds("compute", "Seconds that their runs took.")
        self._total = self._seconds("inference", "Seconds from their arrival to their results.")
        self._together = Histogram(
            "vkmnn_batch_rows", "Rows of the run that a request for a network was part of.", model,
            buckets=_ROWS, registry=self._registry,
        )  # fmt: skip

    def _seconds(self, what: str, about: str) -> Histogram:
        name = f"vkmnn_{what}_seconds"
        return Histogram(name, about, ["model"], buckets=_SECONDS, registry=self._registry)

    def ran(self, model: str, asked: Asked) -> None:
        """Count a request for a network."""
        self._queued.labels(model).observe(asked.began - asked.arrived)
        self._computed.labels(model).observe(asked.ended - asked.began)
        self._total.labels(model).observe(asked.ended - asked.arrived)
        self._together.labels(model).observe(asked.together)

    def _watch(self, name: str, turns: Turns, what: str) -> None:
        active = Gauge(f"{name}_active", f"{what}.", registry=self._registry)
        active.set_function(lambda: turns.active)
        waiting = Gauge(f"{name}_waiting", f"{what}: how many wait.", registry=self._registry)
        waiting.set_function(lambda: turns.waiting)

    def page(self) -> bytes:
        """Return the page /metrics."""
        return generate_latest(self._registry)
