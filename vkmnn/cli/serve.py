"""`vkmnn serve`: models over HTTP."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from vkmnn.cli.console import note
from vkmnn.llm.extras import need
from vkmnn.schedule_config import PrecisionName


def serve_models(
    specs: Sequence[str],
    device: str,
    precision: PrecisionName,
    capacity: int | None,
    variant: str | None,
    address: tuple[str, int],
    limits: dict[str, int | None],
    drain_s: int,
) -> None:
    """Load models and answer requests until a signal comes; what has been started is finished.

    Raises:
        VkmnnError: a model cannot be loaded, or a package of the extra `serve` is missing.
    """
    for package in ("starlette", "prometheus_client"):
        need(package, "serving", "serve")
    uvicorn = need("uvicorn", "serving", "serve")
    serve = importlib.import_module("vkmnn.serve")
    models = importlib.import_module("vkmnn.serve.models").load_models(
        specs, device, precision, capacity, variant
    )
    given = {name: value for name, value in limits.items() if value is not None}
    app = serve.make_app(models, serve.Limits(**given))
    host, port = address
    for name in models.names:
        note(f"{name} is ready")
    note(f"listening on http://{host}:{port}: /v1, /v2 and /metrics")
    try:
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_level="warning",
            timeout_graceful_shutdown=drain_s,
            timeout_keep_alive=serve.KEEP_ALIVE_S,
        )
    finally:
        models.close()
