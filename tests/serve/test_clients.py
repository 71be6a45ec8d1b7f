"""Triton's clients, over HTTP and gRPC, and what gRPC refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
pytest.importorskip("grpc")
pytest.importorskip("tritonclient.grpc")
pytest.importorskip("tritonclient.http")

import grpc
import onnx
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

from tests.llm.served import Served, network, served
from tests.serve.test_repository import multiplier, repository
from vkmnn import InvalidInputError
from vkmnn.serve import Access, Limits, Models, load_models, make_app
from vkmnn.serve.grpc_messages import MESSAGE, SERVICE
from vkmnn.serve.networks import Asked, Network


def words(path: Path) -> Path:
    """A network that returns its texts, half of its halves, and the opposite of its truths."""
    kinds = {"text": TensorProto.STRING, "half": TensorProto.FLOAT16, "truth": TensorProto.BOOL}
    nodes = [
        helper.make_node("Identity", ["text"], ["text_out"]),
        helper.make_node("Neg", ["half"], ["half_out"]),
        helper.make_node("Not", ["truth"], ["truth_out"]),
    ]
    inputs = [helper.make_tensor_value_info(n, kind, ["n"]) for n, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info(f"{n}_out", kind, ["n"]) for n, kind in kinds.items()]
    graph = helper.make_graph(nodes, "words", inputs, outputs)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    specs = [str(network(folder / "adder.onnx")), str(words(folder / "words.onnx"))]
    models = load_models(specs, "cpu")
    multiplier(folder / "shelf" / "m" / "3" / "model.onnx", 4)
    shelf = repository(folder / "shelf", models, control="explicit")
    with served(models, Limits(body_bytes=1 << 20), repository=shelf, grpc=True) as made:
        yield made
    models.close()


KINDS = {"http": triton_http, "grpc": triton_grpc}


@pytest.fixture(params=list(KINDS))
def client(request: Any, server: Served) -> Iterator[Any]:
    port = server.port if request.param == "http" else server.app.grpc_port
    with KINDS[request.param].InferenceServerClient(f"127.0.0.1:{port}") as made:
        made.kind = KINDS[request.param]
        yield made


def fed(kind: Any, **arrays: Any) -> list[Any]:
    made = []
    for name, array in arrays.items():
        datatype = {"O": "BYTES", "f": f"FP{array.itemsize * 8}", "b": "BOOL"}[array.dtype.kind]
        made.append(kind.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array)
    return made


A, B = (np.arange(6, dtype=np.float32).reshape(2, 3) * k for k in (1, 10))


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("adder")
    assert not client.is_model_ready("nosuch")
    assert not client.is_model_ready("adder", "7")
    is_grpc = client.kind is triton_grpc
    as_json = {"as_json": True} if is_grpc else {}
    assert client.get_server_metadata(**as_json)["name"] == "vkmnn"
    about = client.get_model_metadata("adder", **as_json)
    assert [int(size) for size in about["inputs"][0]["shape"]] == [-1, 3]
    config = client.get_model_config("adder", **as_json)
    config = config["config"] if is_grpc else config
    assert config["max_batch_size"] == 32
    assert config["input"][0]["data_type"] == "TYPE_FP32"


def test_tensors(client: Any) -> None:
    made = client.infer("adder", fed(client.kind, a=A, b=B), request_id="7")
    np.testing.assert_array_equal(made.as_numpy("sum"), A + B)
    np.testing.assert_array_equal(made.as_numpy("less"), -A)
    told = made.get_response()
    assert (told["id"] if client.kind is triton_http else told.id) == "7"
    wanted = [client.kind.InferRequestedOutput("less")]
    made = client.infer("adder", fed(client.kind, a=A, b=B), outputs=wanted, model_version="1")
    assert made.as_numpy("sum") is None
    texts = np.array([b"a", "é".encode(), b""], object)
    halves, truths = np.float16([1, 2.5, -3]), np.array([True, False, True])
    made = client.infer("words", fed(client.kind, text=texts, half=halves, truth=truths))
    assert made.as_numpy("text_out").tolist() == texts.tolist()
    np.testing.assert_array_equal(made.as_numpy("half_out"), -halves)
    np.testing.assert_array_equal(made.as_numpy("truth_out"), ~truths)


def test_classes(client: Any) -> None:
    wanted = [client.kind.InferRequestedOutput("sum", class_count=2)]
    made = client.infer("adder", fed(client.kind, a=A, b=B), outputs=wanted).as_numpy("sum")
    assert made.tolist() == [[b"22.000000:2", b"11.000000:1"], [b"55.000000:2", b"44.000000:1"]]


@pytest.mark.parametrize("there", [None, "gzip", "deflate"])
@pytest.mark.parametrize("back", [None, "gzip", "deflate"])
def test_compression(there: str | None, back: str | None, server: Served) -> None:
    with triton_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        for binary in (True, False):
            inputs = fed(triton_http, a=A, b=B)
            for one, array in zip(inputs, (A, B), strict=True):
                one.set_data_from_numpy(array, binary_data=binary)
            outputs = [triton_http.InferRequestedOutput("sum", binary_data=binary)]
            made = client.infer(
                "adder", inputs, outputs=outputs, request_compression_algorithm=there,
                response_compression_algorithm=back,
            )  # fmt: skip
            np.testing.assert_array_equal(made.as_numpy("sum"), A + B)


def test_models_of_the_repository(client: Any) -> None:
    if client.is_model_ready("m"):
        client.unload_model("m")
    is_grpc = client.kind is triton_grpc
    index = client.get_model_repository_index()
    index = [one.state for one in index.models] if is_grpc else [one["state"] for one in index]
    assert index == ["UNAVAILABLE"]
    client.load_model("m")
    x = np.float32([[1, 2]])
    made = client.infer("m", fed(client.kind, x=x))
    np.testing.assert_array_equal(made.as_numpy("y"), x * 4)
    client.unload_model("m")
    assert not client.is_model_ready("m")
    for call in (
        lambda: client.load_model("../m"),
        lambda: client.load_model("m", config="{}"),
        lambda: client.unload_model("m"),
        lambda: client.unload_model("adder"),
        lambda: client.infer("m", fed(client.kind, x=x)),
    ):
        with pytest.raises(InferenceServerException):
            call()


def test_shared_memory_is_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException):
        client.register_system_shared_memory("region", "/region", 64)
    (one, other) = fed(client.kind, a=A, b=B)
    one.set_shared_memory("region", A.nbytes)
    with pytest.raises(InferenceServerException, match="shared memory"):
        client.infer("adder", [one, other])


def test_a_timeout_in_the_queue(
    client: Any, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(self: Network, feeds: Any, wanted: Any, queue: int) -> Asked:
        return Asked(feeds, wanted, asyncio.get_running_loop().create_future())  # never runs

    monkeypatch.setattr(Network, "add", add)
    monkeypatch.setattr(Network, "cancel", lambda *_: True)
    with pytest.raises(InferenceServerException, match="longer than its timeout"):
        client.infer("adder", fed(client.kind, a=A, b=B), timeout=20000)


# --- gRPC alone -----------------------------------------------------------------------------------


def test_the_messages_are_those_of_the_protocol() -> None:
    modules = (service_pb2, model_config_pb2)
    known = {n: one for m in modules for n, one in m.DESCRIPTOR.message_types_by_name.items()}
    enums = {14: 5}  # the numbers of an enumeration are read as integers
    for name, made in MESSAGE.items():
        outer, _, inner = name.partition(".")
        theirs = known[outer].nested_types_by_name[inner] if inner else known[outer]
        for field in made.DESCRIPTOR.fields:
            other = theirs.fields_by_name[field.name]
            assert (field.number, field.type) == (other.number, enums.get(other.type, other.type))
            assert field.containing_oneof is None or other.containing_oneof is not None
    assert service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name == SERVICE


def call(server: Served, name: str, request: Any, **how: Any) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{server.app.grpc_port}") as channel:
        ask = channel.unary_unary(
            f"/{SERVICE}/{name}", type(request).SerializeToString,
            getattr(service_pb2, f"{name}Response").FromString,
        )  # fmt: skip
        return ask(request, timeout=30, **how)


def asked(**inputs: Any) -> Any:
    made = service_pb2.ModelInferRequest(model_name="adder")
    for name, (datatype, shape, contents) in inputs.items():
        one = made.inputs.add(name=name, datatype=datatype, shape=shape)
        for field, values in contents.items():
            getattr(one.contents, field).extend(values)
    return made


def test_typed_contents(server: Served) -> None:
    values = {"fp32_contents": [1, 2, 3]}
    made = call(server, "ModelInfer", asked(a=("FP32", [1, 3], values), b=("FP32", [1, 3], values)))
    got = dict(zip([one.name for one in made.outputs], made.raw_output_contents, strict=True))
    np.testing.assert_array_equal(np.frombuffer(got["sum"], np.float32), [2, 4, 6])


@pytest.mark.parametrize(
    ("inputs", "raw", "reason"),
    [
        ({"a": ("FP32", [1, 3], {"fp32_contents": [1]})}, [], "does not fit"),
        ({"a": ("FP32", [1, 3], {"int_contents": [1, 2, 3]})}, [], "instead of fp32_contents"),
        ({"a": ("FP16", [1, 3], {"fp32_contents": [1, 2, 3]})}, [], "raw_input_contents"),
        ({"a": ("FP32", [-1, 3], {})}, [], "other than sizes"),
        ({"a": ("FP32", [1 << 62, 1 << 62], {})}, [], "does not fit"),
        ({"a": ("BF16", [1], {})}, [], "not supported"),
        ({"a": ("INT8", [1], {"int_contents": [300]})}, [], "cannot be represented"),
        ({"a": ("BYTES", [1], {})}, [b"\xff\xff\xff\xff"], "longer than the data"),
        ({"a": ("BYTES", [1], {"bytes_contents": [b"\xff"]})}, [], "does not fit"),
        ({"a": ("FP32", [1], {})}, [b"1234", b"1"], "2 raw_input_contents"),
        ({"a": ("FP32", [1], {"fp32_contents": [1]})}, [b"1234"], "besides"),
        ({"a": ("FP32", [1, 3], {"fp32_contents": [1, 2, 3]})}, [], "missing"),
        ({}, [], "missing"),
    ],
)
def test_refused_tensors(inputs: Any, raw: list[bytes], reason: str, server: Served) -> None:
    request = asked(**inputs)
    request.raw_input_contents.extend(raw)
    with pytest.raises(grpc.RpcError) as raised:
        call(server, "ModelInfer", request)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT, raised.value.details()
    assert reason in raised.value.details()


def test_kserves_clients_send_the_name_as_the_first_field(server: Served) -> None:
    for name in ("RepositoryModelLoad", "RepositoryModelUnload"):
        call(server, name, getattr(service_pb2, f"{name}Request")(repository_name="m"))


def test_streams(server: Served) -> None:
    results: list[Any] = []
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.app.grpc_port}") as client:
        client.start_stream(lambda result, error: results.append(error or result))
        for number in range(5):
            client.async_stream_infer("adder", fed(triton_grpc, a=A + number, b=B))
        client.async_stream_infer("nosuch", fed(triton_grpc, a=A))
        client.async_stream_infer("adder", fed(triton_grpc, a=A, b=B))
        client.stop_stream()
    assert len(results) == 7
    for number, one in enumerate(results[:5]):
        np.testing.assert_array_equal(one.as_numpy("sum"), A + number + B)
    assert "nosuch" in str(results[5])
    np.testing.assert_array_equal(results[6].as_numpy("sum"), A + B)


def test_keys_limits_and_ids(server: Served) -> None:
    models = server.app._models
    limits, access = Limits(body_bytes=1000), Access(frozenset({"secret"}))
    with served(models, limits, access, grpc=True) as other:
        live = MESSAGE["ServerLiveRequest"]
        assert call(other, "ServerLive", live()).live
        about = service_pb2.ServerMetadataRequest()
        for given in ((), (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.RpcError) as raised:
                call(other, "ServerMetadata", about, metadata=given)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        key = (("authorization", "Bearer secret"), ("x-request-id", "mine"))
        assert call(other, "ServerMetadata", about, metadata=key).name == "vkmnn"
        large = service_pb2.ModelInferRequest(raw_input_contents=[b"x" * 2000])
        with pytest.raises(grpc.RpcError) as raised:
            call(other, "ModelInfer", large, metadata=key)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with grpc.insecure_channel(f"127.0.0.1:{other.app.grpc_port}") as channel:
            ask = channel.unary_unary(f"/{SERVICE}/ServerMetadata", lambda _: b"\xff\xff")
            with pytest.raises(grpc.RpcError) as raised:  # not a message
                ask(b"", timeout=30, metadata=key)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            ask = channel.unary_unary(f"/{SERVICE}/ServerMetadata", lambda _: b"")
            _, told = ask.with_call(b"", timeout=30, metadata=key)
            assert ("x-request-id", "mine") in told.trailing_metadata()
        page = other.http.get("/metrics", headers={"Authorization": "Bearer secret"}).text
        assert 'route="/inference.GRPCInferenceService/ServerMetadata",status="401"' in page


def test_a_port_that_is_taken(server: Served) -> None:
    other = make_app(Models(), grpc=("127.0.0.1", server.app.grpc_port or 0))
    with pytest.raises(InvalidInputError, match="cannot listen"):
        asyncio.run(other._grpc.start(*other._grpc_place))  # type: ignore[union-attr]
