"""`vkmnn serve`: models over HTTP."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vkmnn.base.extras import need
from vkmnn.cli.console import note
from vkmnn.errors import DeviceLostError
from vkmnn.schedule_config import OnDeviceLost, OnOverflow, PrecisionName


@dataclass(frozen=True, slots=True)
class Served:
    """Models, and how they are loaded."""

    specs: Sequence[str]
    device: str
    precision: PrecisionName
    capacity: int | None
    variant: str | None
    on_device_lost: OnDeviceLost
    on_overflow: OnOverflow = "warn"


@dataclass(frozen=True, slots=True)
class Door:
    """Address of a server, and who may use it."""

    host: str
    port: int
    keys: Sequence[str]
    key_file: Path | None
    hosts: Sequence[str]
    origins: Sequence[str]
    proxies: Sequence[str]


def serve_models(served: Served, door: Door, limits: dict[str, int | None], drain_s: int) -> None:
    """Load models and answer requests until a signal arrives; running requests are finished.

    Raises:
        VkmnnError: a model cannot be loaded, the server cannot listen, or a package of the extra
            `serve` is missing; DeviceLostError, no model has been able to answer for a while.
    """
    for package in ("starlette", "prometheus_client", "uvicorn"):
        need(package, "serving", "serve")
    serve = importlib.import_module("vkmnn.serve")
    keys = [*door.keys, *(serve.read_keys(door.key_file) if door.key_file else ())]
    proxies = serve.proxies_of(door.proxies)
    sockets = serve.bound(door.host, door.port)  # before models are loaded, which takes a while
    try:
        addresses = [one.getsockname()[0] for one in sockets]
        access = serve.access_of(door.host, addresses, keys, door.hosts, door.origins)
        models = serve.load_models(
            served.specs, served.device, served.precision, served.capacity, served.variant,
            served.on_device_lost, served.on_overflow,
        )  # fmt: skip
        lost = False

        def give_up() -> None:
            nonlocal lost
            lost = server.should_exit = True

        given = {name: value for name, value in limits.items() if value is not None}
        app = serve.make_app(models, serve.Limits(**given), access, give_up)
        server = serve.server_of(app, drain_s, proxies)
        try:
            for name in models.names:
                note(f"{name} is ready")
            port = sockets[0].getsockname()[1]
            shown = f"[{door.host}]" if ":" in door.host else door.host
            note(f"listening on http://{shown}:{port}: /v1, /v2 and /metrics")
            if not access.local and not access.keys:
                note(
                    "anyone who can reach this address can use the models: --api-key-file "
                    "requires a key"
                )
            gc.collect()
            gc.freeze()  # requests with many values would have all of this looked through
            server.run(sockets)
        finally:
            models.close()
    finally:
        for one in sockets:
            one.close()
    if lost:
        raise DeviceLostError(
            f"no model could answer for {app.limits.lost_s:g} s: the device is lost",
            hint="start the server again",
        )
