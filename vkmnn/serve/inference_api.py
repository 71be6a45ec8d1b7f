"""The Open Inference Protocol v2, as in KServe and Triton, for networks that are not text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vkmnn._version import __version__
from vkmnn.inference_session import NodeArg
from vkmnn.ir import Array
from vkmnn.serve.compression import COMPRESSIONS, compressed
from vkmnn.serve.limits import Bodies, HttpError, Limits, field, length_of, object_of
from vkmnn.serve.models import Models
from vkmnn.serve.networks import Asked, Network
from vkmnn.serve.pieces import Pieces
from vkmnn.serve.routes import Row
from vkmnn.serve.tensors import Output, described, encoded, feeds_of, largest, outputs_of

_VALUES = 2 << 20
"""Maximum values in a body, which may be a tensor as JSON."""

_FEW_BYTES = 1 << 16
"""Less is parsed or written in the event loop: faster than a change of threads."""

_POLL_S = 0.25
_CONFIG_TYPES = {"BYTES": "STRING"}
EXTENSIONS = [
    "binary_tensor_data", "classification", "model_configuration", "model_repository",
]  # fmt: skip
"""The protocol's extensions that the server supports."""

_HEADER = "inference-header-content-length"


class InferenceApi:
    """The routes under /v2.

    Args:
        models: the models.
        limits: the limits of the server.
        bodies: receives bodies.
        ran: called with the name of the network and the request after each run.
    """

    def __init__(
        self, models: Models, limits: Limits, bodies: Bodies, ran: Callable[[str, Asked], None]
    ) -> None:
        self._models = models
        self._limits = limits
        self._bodies = bodies
        self._ran = ran
        self.stopping = False

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        ready = "whether every model can answer"
        example = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0, 1]}]}
        return [
            Row("/health", self.ready, "GET", ready),
            Row("/healthz", self.ready, "GET", ready),
            Row("/v2", self.server, "GET", "name, version and extensions of the server"),
            Row("/v2/health/live", self.live, "GET", "whether the process answers"),
            Row("/v2/health/ready", self.ready, "GET", ready),
            *(
                row
                for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
                for row in (
                    Row(path, self.metadata, "GET", "inputs and outputs of a network"),
                    Row(f"{path}/config", self.config, "GET", "how a network is run"),
                    Row(f"{path}/ready", self.ready, "GET", "whether a model can answer"),
                    Row(f"{path}/infer", self.infer, "POST", "outputs of a network", example),
                )
            ),
        ]

    async def server(self, request: Request) -> Response:
        """GET /v2."""
        return JSONResponse({"name": "vkmnn", "version": __version__,
                             "extensions": EXTENSIONS})  # fmt: skip

    async def live(self, request: Request) -> Response:
        """GET /v2/health/live."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """GET /v2/health/ready, and of a model."""
        name, version = (request.path_params.get(key) for key in ("name", "version"))
        why = self.why_not_ready(name, version)
        if why is not None:
            raise why
        return JSONResponse({"ready": True, **({"name": name} if name else {})})

    def why_not_ready(self, name: str | None, version: str | None = None) -> HttpError | None:
        """Return why the server, or a model, cannot answer; None if it can."""
        if self.stopping:
            return HttpError(503, "stopping", "the server is stopping")
        if name is not None and (version or name not in self._models.names):
            try:
                self._models.network(name, version)
            except HttpError as error:
                return error
        lost = self._models.lost
        if lost and name in (None, *lost):
            return HttpError(503, "device_lost", f"the device of {', '.join(lost)} is lost")
        return None

    async def metadata(self, request: Request) -> Response:
        """GET /v2/models/NAME."""
        network = self._network_of(request)
        return JSONResponse(self.about(network))

    async def config(self, request: Request) -> Response:
        """GET /v2/models/NAME/config."""
        return JSONResponse(config_of(self._network_of(request)))

    def about(self, network: Network) -> dict[str, Any]:
        """Return the metadata of a network."""
        return {
            "name": network.name, "versions": self._models.versions_of(network.name),
            "platform": "onnx_vkmnn",
            "inputs": [described(info) for info in network.inputs],
            "outputs": [described(info) for info in network.outputs],
        }  # fmt: skip

    def _network_of(self, request: Request) -> Network:
        given = request.path_params
        return self._models.network(given["name"], given.get("version"))

    async def infer(self, request: Request) -> Response:
        """POST /v2/models/NAME/infer."""
        network = self._network_of(request)
        async with self._bodies.received(request) as whole:
            body, feeds = await self._read(request, whole)
            outputs = outputs_of(body, network.outputs)
            about = {"id": body["id"]} if isinstance(body.get("id"), str) else {}
            wait_s = timeout_of(field(body, "parameters", (dict,), {}))
            del body
            network, results = await self.run(
                (network.name, request.path_params.get("version")), feeds, outputs, wait_s,
                request.is_disconnected,
            )  # fmt: skip
        about |= {"model_name": network.name, "model_version": network.version}
        return await self._response(request, *await self._encoded(about, results))

    async def _encoded(
        self, about: dict[str, Any], results: list[tuple[Output, Array]]
    ) -> tuple[bytes, int]:
        """Return the body of a response and the length of its JSON."""
        if sum(array.nbytes for _, array in results) <= _FEW_BYTES:
            return encoded(about, results)
        return await self._bodies.aside(encoded, about, results)

    async def _response(self, request: Request, body: bytes, head: int) -> Response:
        """Return a response, compressed if the request asks for one way alone."""
        kind = "application/octet-stream" if head else "application/json"
        headers = {_HEADER: str(head)} if head else {}
        wish = request.headers.get("accept-encoding", "").strip().lower()
        if wish in COMPRESSIONS:  # clients that accept any way do not need one
            body = await self._bodies.aside(compressed, body, wish)
            headers["Content-Encoding"] = wish
        return Pieces(body, self._bodies, kind, headers)

    async def _read(self, request: Request, whole: bytes) -> tuple[Any, dict[str, Array]]:
        """Return the JSON of a body, and its tensors."""
        header = request.headers.get(_HEADER)
        size = len(whole) if header is None else length_of(header)
        if not 0 <= size <= len(whole):
            raise HttpError(400, "invalid_header", f"{_HEADER} is not a length within the body")
        rest = memoryview(whole)[size:]
        if size <= _FEW_BYTES:
            body = await self._bodies.read(whole[:size], _VALUES)
            return body, feeds_of(body, rest)
        return await self._bodies.aside(_parsed, whole, size)

    async def run(
        self,
        which: tuple[str, str | None],
        feeds: dict[str, Array],
        outputs: Sequence[Output],
        wait_s: float | None,
        is_gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> tuple[Network, list[tuple[Output, Array]]]:
        """Run a network; return it, and the values of the outputs.

        Args:
            which: name and version; None for the latest.
            feeds: values by input.
            outputs: the requested outputs.
            wait_s: seconds after which a request that still waits is refused; None for any time.
            is_gone: whether the client has disconnected; the request is then dropped.

        Raises:
            VkmnnError: the run fails, or cannot be started.
        """
        # Looked up again: while the body arrived, the model may have been reloaded.
        network = self._models.network(*which)
        asked = network.add(feeds, [one.name for one in outputs], self._limits.queue)
        try:
            arrays = await self._outcome(network, asked, wait_s, is_gone)
        finally:
            network.cancel(asked)
            asked.future.cancel()
        self._ran(network.name, asked)
        made = [
            largest(one.name, array, one.classes, network.labels.get(one.name, ()))
            if one.classes else array
            for one, array in zip(outputs, arrays, strict=True)
        ]  # fmt: skip
        return network, list(zip(outputs, made, strict=True))

    async def _outcome(
        self,
        network: Network,
        asked: Asked,
        wait_s: float | None,
        is_gone: Callable[[], Awaitable[bool]] | None,
    ) -> list[Array]:
        wait_s = network.timeout_s if wait_s is None else wait_s
        end = None if wait_s is None else asked.arrived + wait_s
        while True:
            left = _POLL_S if end is None else max(min(_POLL_S, end - time.perf_counter()), 0)
            done, _ = await asyncio.wait({asked.future}, timeout=left)
            if done:
                return asked.future.result()
            if end is not None and time.perf_counter() >= end:
                if network.cancel(asked):
                    text = f"the request has waited for {wait_s:g} s, longer than its timeout"
                    raise HttpError(504, "deadline_exceeded", text)
                end = None  # its run has begun
            if is_gone is not None and await is_gone():
                raise HttpError(499, "client_gone", "the client has disconnected")


def _parsed(whole: bytes, size: int) -> tuple[Any, dict[str, Array]]:
    body = object_of(whole[:size], _VALUES)
    return body, feeds_of(body, memoryview(whole)[size:])


def timeout_of(parameters: Any) -> float | None:
    """Return the seconds that a request may wait, from its parameter in microseconds.

    Raises:
        HttpError: it is no positive number.
    """
    given = parameters.get("timeout")
    if given is None or given == 0:
        return None
    if type(given) is not int or not 0 < given < 1 << 63:
        text = f"'timeout' is a number of microseconds, not {str(given)[:40]}"
        raise HttpError(400, "invalid_value", text)
    return given / 1e6


def config_of(network: Network) -> dict[str, Any]:
    """Return the configuration of a network in Triton's form."""
    batching, why = network.batching, network.why_alone
    first = 0 if why else 1  # the axis of the batch is not among the dimensions

    def listed(infos: Sequence[NodeArg]) -> list[dict[str, Any]]:
        made = []
        for one in map(described, infos):
            kind = _CONFIG_TYPES.get(one["datatype"], one["datatype"])
            dims = one["shape"][first:]
            made.append({"name": one["name"], "data_type": f"TYPE_{kind}", "dims": dims})
        return made

    made: dict[str, Any] = {
        "name": network.name, "platform": "onnx_vkmnn", "backend": "vkmnn",
        "max_batch_size": 0 if why else batching.most,
        "input": listed(network.inputs), "output": listed(network.outputs),
        "instance_group": [{"count": len(network.sessions), "kind": "KIND_AUTO"}],
        "parameters": {"batching": {"string_value": f"off: {why}" if why else "on"}},
    }  # fmt: skip
    if network.ignored:
        made["parameters"]["ignored_fields"] = {"string_value": ", ".join(network.ignored)}
    if not why:
        made["dynamic_batching"] = {
            "preferred_batch_size": list(batching.preferred),
            "max_queue_delay_microseconds": round(batching.delay_s * 1e6),
        }
    return made
