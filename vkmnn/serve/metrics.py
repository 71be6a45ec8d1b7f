"""The metrics of a server, in Prometheus's format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vkmnn.serve.turns import Turns
from vkmnn.serve.work import Work


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
            ("_embedding", work.embedding, "Requests for embeddings being computed"),
        ):
            self._watch(f"vkmnn{name}", turns, what)

    def _watch(self, name: str, turns: Turns, what: str) -> None:
        active = Gauge(f"{name}_active", f"{what}.", registry=self._registry)
        active.set_function(lambda: turns.active)
        waiting = Gauge(f"{name}_waiting", f"{what}: how many wait.", registry=self._registry)
        waiting.set_function(lambda: turns.waiting)

    def page(self) -> bytes:
        """Return the page /metrics."""
        return generate_latest(self._registry)
