"""`vkmnn serve`: models over HTTP."""

from __future__ import annotations

import gc
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vkmnn.base.extras import need
from vkmnn.batch.pool import selected_devices
from vkmnn.cli.console import note
from vkmnn.errors import DeviceLostError, InvalidInputError
from vkmnn.schedule_config import OnDeviceLost, OnOverflow, PrecisionName

if TYPE_CHECKING:
    from vkmnn.llm import KvCacheDtype


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
    kv_cache_dtype: KvCacheDtype = "f32"


@dataclass(frozen=True, slots=True)
class Networks:
    """How networks are run, and the folder that they come from."""

    devices: Sequence[str]
    instances: int
    max_batch: int
    batch_delay_ms: float
    repository: Path | None
    control: Literal["none", "explicit", "poll"]
    poll_s: float
    max_model_bytes: int | None


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
    grpc_port: int | None


@dataclass(frozen=True, slots=True)
class Told:
    """What the server tells: the log as JSON, and traces."""

    as_json: bool = False
    traces: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """What happens at the end: seconds of being unready, and for requests in progress."""

    delay_s: float
    drain_s: int


def serve_models(
    served: Served,
    networks: Networks,
    door: Door,
    limits: dict[str, int | None],
    ending: Ending,
    told: Told,
) -> None:
    """Load models and answer requests until a signal arrives; running requests are finished.

    Raises:
        VkmnnError: a model cannot be loaded, the server cannot listen, or a package of the extra
            `serve` is missing; DeviceLostError, no model has been able to answer for a while.
    """
    for package in ("starlette", "prometheus_client", "uvicorn"):
        need(package, "serving", "serve")
    serve = importlib.import_module("vkmnn.serve")
    say = _log_as_json(serve) if told.as_json else note
    traces = serve.Traces() if told.traces else None
    keys = [*door.keys, *(serve.read_keys(door.key_file) if door.key_file else ())]
    proxies = serve.proxies_of(door.proxies)
    sockets = serve.bound(door.host, door.port)  # before models are loaded, which takes a while
    try:
        addresses = [one.getsockname()[0] for one in sockets]
        access = serve.access_of(door.host, addresses, keys, door.hosts, door.origins)
        grpc = None if door.grpc_port is None else (addresses[0], door.grpc_port)
        models, repository = _loaded(serve, served, networks)
        lost = False

        def give_up() -> None:
            nonlocal lost
            lost = server.should_exit = True

        given = {name: value for name, value in limits.items() if value is not None}
        try:
            observer = serve.Observer(told.as_json, traces)
            app = serve.make_app(
                models, serve.Limits(**given), access, give_up, repository, observer, grpc
            )
            server = serve.server_of(app, ending.drain_s, proxies, ending.delay_s)
            for name in models.names:
                say(f"{name} is ready")
            port = sockets[0].getsockname()[1]
            shown = f"[{door.host}]" if ":" in door.host else door.host
            also = f"; gRPC on port {door.grpc_port}" if door.grpc_port else ""
            say(f"listening on http://{shown}:{port}: /v1, /v2, /docs and /metrics{also}")
            if not access.local and not access.keys:
                say(
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
        if traces is not None:
            traces.close()
    if lost:
        raise DeviceLostError(
            f"no model could answer for {app.limits.lost_s:g} s: the device is lost",
            hint="start the server again",
        )


def _log_as_json(serve: Any) -> Callable[[str], None]:
    """Write the log as lines of JSON; return a function that adds one."""
    handler = logging.StreamHandler()
    handler.setFormatter(serve.JsonLines())
    for name in ("vkmnn", "uvicorn"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)
    return logging.getLogger("vkmnn.serve").info


def _loaded(serve: Any, served: Served, networks: Networks) -> tuple[Any, Any]:
    """Return the models of the command line, and the repository, whose models are among them."""
    if not served.specs and networks.repository is None:
        raise InvalidInputError(
            "there is nothing to serve", hint="name models, or a folder: --repository FOLDER"
        )
    devices = networks.devices
    running = serve.Running(
        selected_devices("all" if list(devices) == ["all"] else devices) if devices else (),
        networks.instances,
        serve.Batching(networks.max_batch, delay_s=networks.batch_delay_ms / 1000),
    )
    models = serve.load_models(
        served.specs, served.device, served.precision, served.capacity, served.variant,
        served.on_device_lost, served.on_overflow, running, served.kv_cache_dtype,
    )  # fmt: skip
    if networks.repository is None:
        return models, None
    options = serve.Options(
        precision=served.precision,
        on_device_lost=served.on_device_lost,
        on_overflow=served.on_overflow,
    )
    try:
        shelf = serve.Shelf(
            networks.repository, networks.control, networks.poll_s, networks.max_model_bytes
        )
        repository = serve.Repository(
            shelf, models, served.device, running, options,
            serve.Caches(served.capacity, served.kv_cache_dtype), served.variant,
        )  # fmt: skip
        repository.load_at_start()
    except BaseException:
        models.close()
        raise
    return models, repository
