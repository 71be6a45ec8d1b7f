"""The Open Inference Protocol by gRPC: the same models, queues and limits as over HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from vkmnn._version import __version__
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array
from vkmnn.serve.access import Access
from vkmnn.serve.crowd import Crowd
from vkmnn.serve.grpc_messages import MESSAGE, SERVICE
from vkmnn.serve.inference_api import EXTENSIONS, InferenceApi, config_of, timeout_of
from vkmnn.serve.limits import Bodies, HttpError, Limits, as_http
from vkmnn.serve.models import Models
from vkmnn.serve.networks import Network
from vkmnn.serve.observer import REQUEST_ID, Observer, Seen
from vkmnn.serve.repository_api import RepositoryApi, refuse_overrides
from vkmnn.serve.tensors import (
    Output,
    array_of,
    checked_classes,
    datatype_of,
    dtype_of,
    from_bytes,
    put,
    refuse_shared,
    tensor,
    to_bytes,
)

_log = logging.getLogger(__name__)
_Code = grpc.StatusCode

_CODES = {
    400: _Code.INVALID_ARGUMENT, 401: _Code.UNAUTHENTICATED, 403: _Code.PERMISSION_DENIED,
    404: _Code.NOT_FOUND, 409: _Code.FAILED_PRECONDITION, 413: _Code.RESOURCE_EXHAUSTED,
    429: _Code.RESOURCE_EXHAUSTED, 499: _Code.CANCELLED, 503: _Code.UNAVAILABLE,
    504: _Code.DEADLINE_EXCEEDED, 507: _Code.RESOURCE_EXHAUSTED,
}  # fmt: skip
"""HTTP status -> gRPC's code; others are internal errors."""

_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""Datatype -> the field of its values; FP16 has none, and is sent as bytes."""

_CONFIG_TYPES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "STRING", "BF16",
)  # fmt: skip
"""The numbers of the types of configurations."""

_OPEN = ("ServerLive", "ServerReady")
"""Calls that need no key and have no limit."""

_FEW_BYTES = 1 << 16
_MOST_CALLS = 256
"""Calls at a time: gRPC receives the message of each before the sum of all can be checked."""

_HEADS = 1 << 14
"""Bytes of the metadata of a call."""


class GrpcApi:
    """The service.

    Args:
        models: the models.
        inference: runs networks.
        repository: changes what is served.
        limits: the limits of the server.
        bodies: counts the bytes of requests.
        access: which requests are accepted.
        crowd: counts requests by client and key.
        observer: tells about calls.
        count: called with the name, the status and the seconds of each call.
    """

    def __init__(
        self,
        models: Models,
        inference: InferenceApi,
        repository: RepositoryApi,
        limits: Limits,
        bodies: Bodies,
        access: Access,
        crowd: Crowd,
        observer: Observer,
        count: Callable[[str, int, float], None],
    ) -> None:
        self._models = models
        self._inference = inference
        self._repository = repository
        self._limits = limits
        self._bodies = bodies
        self._access = access
        self._crowd = crowd
        self._observer = observer
        self._count = count
        self._server: Any = None
        self.port = 0

    async def start(self, host: str, port: int) -> int:
        """Listen on a port; return it, if 0 was given.

        Raises:
            InvalidInputError: the port is in use.
        """
        options = [
            ("grpc.max_receive_message_length", self._limits.body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", _HEADS),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MOST_CALLS)
        calls = {
            "ServerLive": self.server_live, "ServerReady": self.server_ready,
            "ModelReady": self.model_ready, "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata, "ModelConfig": self.model_config,
            "ModelInfer": self.model_infer, "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.repository_load,
            "RepositoryModelUnload": self.repository_unload,
        }  # fmt: skip
        handlers = {name: self._handler(name, call) for name, call in calls.items()}
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream, None, _serialized
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise InvalidInputError(
                f"the server cannot listen on {address} for gRPC",
                hint="give a free port as --grpc-port",
            ) from error
        await self._server.start()
        return self.port

    async def stop(self, seconds: float) -> None:
        """Accept no further calls, and give those in progress some seconds."""
        if self._server is not None:
            await self._server.stop(seconds)

    def _handler(self, name: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
        async def answer(data: bytes, context: Any) -> Any:
            with self._seen(name, context) as seen:
                try:
                    if name in _OPEN:
                        return await call(_read(f"{name}Request", data))
                    with self._admitted(context), self._bodies.holding(len(data)):
                        return await call(_read(f"{name}Request", data))
                except Exception as error:  # noqa: BLE001 - the call ends with its status
                    told = self._told(error, name)
                    seen.status = told.status
                    code = _CODES.get(told.status, _Code.INTERNAL)
                return await context.abort(code, told.message[:2000])

        return grpc.unary_unary_rpc_method_handler(answer, None, _serialized)

    @contextmanager
    def _seen(self, name: str, context: Any) -> Iterator[Seen]:
        """Tell about a call at the end of the block."""
        start, route = time.perf_counter(), f"/{SERVICE}/{name}"
        headers = _texts(context)
        with self._observer.request("gRPC", route, _client(context), headers) as seen:
            seen.status = 200
            context.set_trailing_metadata(((REQUEST_ID, seen.request_id),))
            try:
                yield seen
            finally:
                self._count(route, seen.status, time.perf_counter() - start)

    def _admitted(self, context: Any) -> Any:
        """Check the key of a call, and return its place among those of its client."""
        return self._crowd.place(_client(context), self._access.check_key(_texts(context)))

    def _told(self, error: Exception, name: str) -> HttpError:
        told = as_http(error)
        if told is not error and told.code == "internal":
            _log.error("a call of %s failed", name, exc_info=error)
        return told

    # --- calls ------------------------------------------------------------------------------------

    async def server_live(self, request: Any) -> Any:
        """ServerLive."""
        return MESSAGE["ServerLiveResponse"](live=True)

    async def server_ready(self, request: Any) -> Any:
        """ServerReady."""
        return MESSAGE["ServerReadyResponse"](ready=self._inference.why_not_ready(None) is None)

    async def model_ready(self, request: Any) -> Any:
        """ModelReady: false for unknown models too."""
        why = self._inference.why_not_ready(request.name, request.version or None)
        return MESSAGE["ModelReadyResponse"](ready=why is None)

    async def server_metadata(self, request: Any) -> Any:
        """ServerMetadata."""
        made = MESSAGE["ServerMetadataResponse"](name="vkmnn", version=__version__)
        made.extensions.extend(EXTENSIONS)
        return made

    def _network(self, request: Any) -> Network:
        return self._models.network(request.name, request.version or None)

    async def model_metadata(self, request: Any) -> Any:
        """ModelMetadata."""
        return MESSAGE["ModelMetadataResponse"](**self._inference.about(self._network(request)))

    async def model_config(self, request: Any) -> Any:
        """ModelConfig."""
        told = config_of(self._network(request))
        for one in (*told["input"], *told["output"]):
            one["data_type"] = _CONFIG_TYPES.index(one["data_type"].removeprefix("TYPE_"))
        told["instance_group"] = [{"count": one["count"]} for one in told["instance_group"]]
        parameters = told.pop("parameters")
        config = MESSAGE["ModelConfig"](**told)
        for name, value in parameters.items():
            config.parameters[name].string_value = value["string_value"]
        return MESSAGE["ModelConfigResponse"](config=config)

    async def model_infer(self, request: Any) -> Any:
        """ModelInfer."""
        network = self._models.network(request.model_name, request.model_version or None)
        if request.ByteSize() <= _FEW_BYTES:
            feeds = _feeds(request)
        else:
            feeds = await self._bodies.aside(_feeds, request)
        outputs = [_output(one) for one in request.outputs]
        if len({one.name for one in outputs}) < len(outputs):
            raise HttpError(400, "invalid_output", "an output is requested twice")
        outputs = outputs or [Output(info.name) for info in network.outputs]
        wait_s = timeout_of(_parameters(request.parameters))
        which = (request.model_name, request.model_version or None)
        network, results = await self._inference.run(which, feeds, outputs, wait_s)
        made = MESSAGE["ModelInferResponse"](
            model_name=network.name, model_version=network.version, id=request.id
        )
        for output, array in results:
            made.outputs.add(name=output.name, datatype=datatype_of(array), shape=array.shape)
            made.raw_output_contents.append(to_bytes(array))
        return made

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """ModelStreamInfer: a response for each request, in their order."""
        with self._seen("ModelStreamInfer", context) as seen:
            try:
                admitted = self._admitted(context)
            except HttpError as error:
                seen.status = error.status
                await context.abort(_CODES.get(error.status, _Code.INTERNAL), error.message)
            async for made in self._answers(requests, admitted):
                yield made

    async def _answers(self, requests: AsyncIterator[bytes], admitted: Any) -> AsyncIterator[Any]:
        response = MESSAGE["ModelStreamInferResponse"]
        with admitted:
            async for data in requests:
                number = ""
                try:
                    with self._bodies.holding(len(data)):
                        request = _read("ModelInferRequest", data)
                        number = request.id
                        made = response(infer_response=await self.model_infer(request))
                except Exception as error:  # noqa: BLE001 - the stream goes on
                    made = response(error_message=self._told(error, "ModelStreamInfer").message)
                    made.infer_response.id = number
                yield made

    async def repository_index(self, request: Any) -> Any:
        """RepositoryIndex."""
        made = MESSAGE["RepositoryIndexResponse"]()
        for one in self._repository.shelved().index(request.ready):
            made.models.add(**one)
        return made

    async def repository_load(self, request: Any) -> Any:
        """RepositoryModelLoad."""
        refuse_overrides(request.parameters)
        await self._repository.controlled().load(_named(request))
        return MESSAGE["RepositoryModelLoadResponse"]()

    async def repository_unload(self, request: Any) -> Any:
        """RepositoryModelUnload."""
        await self._repository.controlled().unload(_named(request))
        return MESSAGE["RepositoryModelUnloadResponse"]()


def _texts(context: Any) -> dict[str, str]:
    """Return the metadata of a call; binary values are left out."""
    given = context.invocation_metadata() or ()
    return {name: value for name, value in given if isinstance(value, str)}


def _client(context: Any) -> str:
    """Return the address of a call's client, without the port."""
    return unquote(str(context.peer()).partition(":")[2].rpartition(":")[0]).strip("[]")


def _named(request: Any) -> str:
    """Return the model of a request; KServe's clients send its name as the first field."""
    return str(request.model_name or request.repository_name)


def _read(name: str, data: bytes) -> Any:
    """Parse a message.

    Raises:
        HttpError: the bytes are none.
    """
    try:
        return MESSAGE[name].FromString(data)
    except DecodeError as error:
        raise HttpError(400, "invalid_message", f"the bytes are no {name}: {error}") from error


def _serialized(message: Any) -> bytes:
    made: bytes = message.SerializeToString()
    return made


def _parameters(given: Any) -> dict[str, Any]:
    made = {}
    for name, one in given.items():
        choice = one.WhichOneof("parameter_choice")
        if choice is not None:
            made[name] = getattr(one, choice)
    return made


def _output(one: Any) -> Output:
    parameters = _parameters(one.parameters)
    refuse_shared(one.name, parameters)
    return Output(one.name, True, checked_classes(one.name, parameters.get("classification")))


def _feeds(request: Any) -> dict[str, Array]:
    """Return the input tensors, whose values are typed or bytes.

    Raises:
        HttpError: an input is malformed, or does not fit its datatype and shape.
    """
    raw: Sequence[bytes] = request.raw_input_contents
    for one in request.inputs:
        refuse_shared(one.name, one.parameters)
    if raw and len(raw) != len(request.inputs):
        text = f"there are {len(request.inputs)} inputs, but {len(raw)} raw_input_contents"
        raise HttpError(400, "invalid_input", text)
    feeds: dict[str, Array] = {}
    for place, one in enumerate(request.inputs):
        name, dtype = one.name, dtype_of(one.name, one.datatype)
        if raw and one.HasField("contents"):
            text = f"the input '{name[:100]}' has contents besides raw_input_contents"
            raise HttpError(400, "invalid_input", text)

        def values(one: Any = one, dtype: Any = dtype, place: int = place) -> Array:
            if raw:
                return from_bytes(raw[place], dtype)
            return _typed(one, dtype)

        put(feeds, name, tensor(name, list(one.shape), values))
    return feeds


def _typed(one: Any, dtype: np.dtype[Any]) -> Array:
    """Return the typed values of an input; values in another field are refused."""
    field = _CONTENTS.get(one.datatype)
    if field is None:
        raise TypeError(f"values of {one.datatype} are sent as raw_input_contents")
    odd = [info.name for info, _ in one.contents.ListFields() if info.name != field]
    if odd:
        raise TypeError(f"its values are in {odd[0]} instead of {field}")
    given = list(getattr(one.contents, field))
    if dtype.kind == "O":
        return np.array([text.decode() for text in given], object)
    if dtype.kind == "f":
        return np.array(given, dtype)
    return array_of(given, dtype)
