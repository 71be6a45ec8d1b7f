"""The Open Inference Protocol v2, as in KServe and Triton, for networks that are not text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vkmnn._version import __version__
from vkmnn.inference_session import InferenceSession, NodeArg
from vkmnn.ir import Array
from vkmnn.serve.limits import Bodies, HttpError, Limits, field, length_of
from vkmnn.serve.models import Models
from vkmnn.serve.routes import Row

_TYPES: Mapping[str, str] = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16",
    "float32": "FP32", "float64": "FP64",
}  # fmt: skip
_NUMPY = {theirs: ours for ours, theirs in _TYPES.items()}
_VALUES = 2 << 20
"""Maximum values in a body, which may be a tensor as JSON."""

_MANY_BYTES = 1 << 20
"""Larger bodies are parsed one at a time: as a Python object, a number takes 32 bytes."""

_RUNS = 8
"""Concurrent runs of all networks; those of one network take turns."""

_MAX_EXACT = 1 << 53
"""Integers below this are exact in float64."""

_HEADER = "inference-header-content-length"


class InferenceApi:
    """The routes under /v2."""

    def __init__(self, models: Models, limits: Limits, bodies: Bodies) -> None:
        self._models = models
        self._limits = limits
        self._bodies = bodies
        self._running = 0
        # Runs may wait long: in the threads that read bodies, they would delay every request.
        self._runs = ThreadPoolExecutor(_RUNS, "vkmnn-serve-runs")
        self._large = asyncio.Lock()
        self.stopping = False

    def close(self) -> None:
        """Report that the server is not ready, and accept no further runs."""
        self.stopping = True
        self._runs.shutdown(wait=False)

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
            Row("/v2/models/{name}", self.metadata, "GET", "inputs and outputs of a network"),
            Row("/v2/models/{name}/ready", self.ready, "GET", "whether a model can answer"),
            Row("/v2/models/{name}/infer", self.infer, "POST", "outputs of a network", example),
        ]

    async def server(self, request: Request) -> Response:
        """GET /v2."""
        return JSONResponse({"name": "vkmnn", "version": __version__,
                             "extensions": ["binary_tensor_data"]})  # fmt: skip

    async def live(self, request: Request) -> Response:
        """GET /v2/health/live."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """GET /v2/health/ready, and of a model."""
        if self.stopping:
            raise HttpError(503, "stopping", "the server is stopping")
        name, lost = request.path_params.get("name"), self._models.lost
        if name is not None and name not in self._models.names:
            raise HttpError(404, "model_not_found", "there is no such model")
        if lost and name in (None, *lost):
            raise HttpError(503, "device_lost", f"the device of {', '.join(lost)} is lost")
        return JSONResponse({"ready": True, **({"name": name} if name else {})})

    async def metadata(self, request: Request) -> Response:
        """GET /v2/models/NAME."""
        name = request.path_params["name"]
        session = self._models.network(name)
        return JSONResponse({
            "name": name, "versions": ["1"], "platform": "onnx_vkmnn",
            "inputs": [_described(info) for info in session.get_inputs()],
            "outputs": [_described(info) for info in session.get_outputs()],
        })  # fmt: skip

    async def infer(self, request: Request) -> Response:
        """POST /v2/models/NAME/infer."""
        name = request.path_params["name"]
        session = self._models.network(name)
        async with self._bodies.received(request) as whole:
            return await self._infer(request, name, session, whole)

    async def _infer(
        self, request: Request, name: str, session: InferenceSession, whole: bytes
    ) -> Response:
        header = request.headers.get(_HEADER)
        size = len(whole) if header is None else length_of(header)
        if not 0 <= size <= len(whole):
            raise HttpError(400, "invalid_header", f"{_HEADER} is not a length within the body")
        async with self._large if size > _MANY_BYTES else nullcontext():
            body = await self._bodies.read(memoryview(whole)[:size].tobytes(), _VALUES)
            feeds = await run_in_threadpool(_feeds, body, memoryview(whole)[size:])
        wanted, binary = _wanted(body, session)
        about = {"id": body["id"]} if isinstance(body.get("id"), str) else {}
        del body

        def run() -> Response:
            results = session.run(wanted, feeds)
            return _answer(name, dict(zip(wanted, results, strict=True)), binary, about)

        return await self._run(run)

    async def _run(self, run: Callable[[], Response]) -> Response:
        if self._running >= self._limits.queue:
            raise HttpError(503, "queue_full", f"{self._running} requests are waiting already")
        self._running += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._runs, run)
        finally:
            self._running -= 1


def _described(info: NodeArg) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in info.shape or [-1]]
    return {"name": info.name, "datatype": _TYPES.get(info.dtype, "BYTES"), "shape": shape}


def _feeds(body: Any, binary: memoryview) -> dict[str, Array]:
    """Return the input tensors, whose values are in the JSON or in the bytes after it."""
    feeds: dict[str, Array] = {}
    place = 0
    for one in field(body, "inputs", (list,), []):
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise HttpError(400, "invalid_input", "an input needs a name, a datatype and a shape")
        name, dtype = one["name"], _NUMPY.get(str(one.get("datatype")))
        if dtype is None:
            raise HttpError(400, "invalid_input", f"the datatype of '{name}' is not supported")
        shape = field(one, "shape", (list,), [])
        if not all(type(size) is int and size >= 0 for size in shape):
            raise HttpError(
                400, "invalid_input", f"the shape of '{name}' holds something other than sizes"
            )
        size = field(field(one, "parameters", (dict,), {}), "binary_data_size", (int,))
        if size is not None and size < 0:
            raise HttpError(400, "invalid_input", f"the binary_data_size of '{name}' is negative")
        try:
            if size is None:
                values = _array(one["data"], np.dtype(dtype))
            else:
                values = np.frombuffer(
                    binary[place : place + size], np.dtype(dtype).newbyteorder("<")
                )
                place += size
            feeds[name] = values.astype(dtype, copy=False).reshape(shape)
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            text = f"the data of '{name}' does not fit its datatype and shape: {error}"
            raise HttpError(400, "invalid_input", text[:300]) from error
    return feeds


def _array(data: Any, dtype: np.dtype[Any]) -> Array:
    """Return values of JSON as an array; raise if the type cannot represent one of them."""
    given = np.array(data)
    if given.dtype.kind == "U" and dtype.kind != "f":  # strings stand for NaN and infinities
        raise TypeError("it contains strings")
    if given.dtype.kind == "O" and None in given.reshape(-1).tolist():  # numpy turns it into NaN
        raise TypeError("it contains a null")
    if given.dtype.kind == "f" and dtype.kind in "iu" and (np.abs(given) >= _MAX_EXACT).any():
        raise ValueError("integers mixed with fractions must be below 2^53")
    with np.errstate(over="raise", invalid="raise"):
        made: Array = given.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(made, given):
        raise ValueError(f"a value cannot be represented as {dtype}")
    return made


def _wanted(body: Any, session: InferenceSession) -> tuple[list[str], set[str]]:
    """Return the requested outputs, and which of them are requested as bytes."""
    every = field(body, "parameters", (dict,), {}).get("binary_data_output", False)
    asked = field(body, "outputs", (list,), [])
    if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in asked):
        raise HttpError(400, "invalid_output", "an output needs a name")
    names = [one["name"] for one in asked] or [info.name for info in session.get_outputs()]
    binary = {
        one["name"]
        for one in asked
        if field(one, "parameters", (dict,), {}).get("binary_data", every)
    }
    return names, set(names) if every and not asked else binary


def _numbers(array: Array) -> list[Any]:
    """Return values for JSON: NaN and infinities as strings, as in protobuf's JSON."""
    values: list[Any] = array.tolist()
    if array.dtype.kind == "f":
        for place in np.flatnonzero(~np.isfinite(array)).tolist():
            value = values[place]
            values[place] = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return values


def _bytes(array: Array) -> bytes:
    """Return values in the binary extension: strings, each after its length in 4 bytes."""
    if array.dtype.kind != "O":
        return np.ascontiguousarray(array).tobytes()
    texts = [str(text).encode() for text in array.reshape(-1)]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _answer(
    name: str, results: dict[str, Array], binary: set[str], about: dict[str, str]
) -> Response:
    outputs, parts = [], []
    for output, array in results.items():
        described: dict[str, Any] = {
            "name": output,
            "datatype": _TYPES.get(str(array.dtype), "BYTES"),
            "shape": list(array.shape),
        }
        if output in binary:
            parts.append(_bytes(array))
            described["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            described["data"] = _numbers(array.reshape(-1))
        outputs.append(described)
    made = {"model_name": name, "model_version": "1", "outputs": outputs, **about}
    head = json.dumps(made, allow_nan=False).encode()
    if not binary:
        return Response(head, media_type="application/json")
    headers = {_HEADER: str(len(head))}
    return Response(head + b"".join(parts), media_type="application/octet-stream", headers=headers)
