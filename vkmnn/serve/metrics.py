"""What /metrics tells."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vkmnn.serve.turns import Turns


class Metrics:
    """Counters of one server."""

    def __init__(self, turns: Turns) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "vkmnn_requests", "Requests by route and status.", ["route", "status"],
            registry=self._registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "vkmnn_request_seconds", "Until a response begins.", ["route"], registry=self._registry
        )
        self.prompt_tokens = Counter(
            "vkmnn_prompt_tokens", "Tokens of prompts.", registry=self._registry
        )
        self.generated_tokens = Counter(
            "vkmnn_generated_tokens", "Tokens that were generated.", registry=self._registry
        )
        active = Gauge("vkmnn_active", "Texts that are being generated.", registry=self._registry)
        active.set_function(lambda: turns.active)
        waiting = Gauge("vkmnn_waiting", "Texts that wait.", registry=self._registry)
        waiting.set_function(lambda: turns.waiting)

    def page(self) -> bytes:
        """Return what Prometheus reads."""
        return generate_latest(self._registry)
