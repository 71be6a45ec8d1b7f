"""Requests that nobody should send: refused with a reason, in bounded time and memory."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import re
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import onnx
from onnx import TensorProto, helper

from tests.llm.served import Served, served, until
from vkmnn.serve import Limits, Models, load_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    path = tmp_path_factory.mktemp("models") / "neg.onnx"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", "m"]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "neg", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    made = load_models([str(path)], "cpu")
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(models: Models) -> Iterator[Served]:
    with served(models) as made:
        yield made
        assert post(made, GOOD).status_code == 200
        assert made.app.bodies.held == 0


INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
GOOD = json.dumps({"inputs": [INPUT]}).encode()
HEAD = b"POST /v2/models/neg/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def given(**fields: Any) -> bytes:
    return json.dumps({"inputs": [{**INPUT, **fields}]}).encode()


def also(**fields: Any) -> bytes:
    return json.dumps({"inputs": [INPUT], **fields}).encode()


def post(server: Served, body: bytes, **headers: str) -> Any:
    return server.http.post("/v2/models/neg/infer", content=body, headers=headers)


OUTPUT = {"name": "y"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        # Parsers of Python 3.14 and later take any depth.
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "not JSON|is missing"),
        (GOOD + b"garbage", "Extra data"),
        ('{"a": 1}'.encode("utf-16"), "not Unicode"),
        (b'{"inputs": [{"data": [' + b"9" * 5000 + b"]}]}", "not JSON"),
        (given(datatype="INT64", data=[1 << 70, 1]), "does not fit"),
        (given(shape=[-1, 2]), "other than sizes"),
        (given(shape=[True, 2]), "other than sizes"),
        (given(shape=[1.0, 2]), "other than sizes"),
        (given(shape=[1 << 62, 1 << 62]), "does not fit"),
        (given(shape=[0, 1 << 62], data=[]), "does not fit"),
        (given(shape=[1] * 100_000, data=[1]), "does not fit"),
        (given(data=[[1, 2], [3]]), "does not fit"),
        (given(data={"a": 1}), "does not fit"),
        (given(data="abc"), "does not fit"),
        (given(data=None), "null"),
        (given(name=3), "needs a name"),
        (given(name="a" * 100_000), "no input"),
        (given(datatype=["FP32"]), "not supported"),
        (given(parameters=[1]), "not of the type"),
        (given(parameters={"binary_data_size": 1 << 62}), "left of the body"),
        (given(parameters={"binary_data_size": True}), "not of the type"),
        (given(parameters={"shared_memory_region": "r"}), "shared memory"),
        (b'{"inputs": {}}', "not of the type"),
        (json.dumps({"inputs": [INPUT, INPUT]}).encode(), "given twice"),
        (also(outputs=[{"name": "z"}]), "no output 'z'"),
        (also(outputs=[OUTPUT] * 1000), "requested twice"),
        (also(outputs=[{**OUTPUT, "parameters": {"classification": -1}}]), "from 1"),
        (also(outputs=[{**OUTPUT, "parameters": {"classification": True}}]), "from 1"),
        (also(outputs=[{**OUTPUT, "parameters": {"shared_memory_region": "r"}}]), "shared memory"),
        (also(parameters={"timeout": "x"}), "microseconds"),
        (also(parameters={"timeout": 1 << 200}), "microseconds"),
    ],
)  # fmt: skip
def test_bodies(body: bytes, reason: str, server: Served) -> None:
    answer = post(server, body)
    assert answer.status_code == 400
    assert re.search(reason, answer.json()["error"])
    assert len(answer.content) < 5000


@pytest.mark.parametrize("left", [4, 80])
def test_bytes_that_do_not_fit(left: int, server: Served) -> None:
    head = given(parameters={"binary_data_size": 8})
    length = {"Inference-Header-Content-Length": str(len(head))}
    assert post(server, head + bytes(8), **length).status_code == 200
    answer = post(server, head + bytes(left), **length)
    assert (answer.status_code, "bytes" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    "path",
    [
        *("..%2f..%2fetc%2fpasswd", "%00", "neg%00", "neg/versions/%d9%a1", "neg/versions/-1"),
        *("neg/versions/1%00", "neg/versions/" + "9" * 5000, "%ff%fe", "neg/versions/01", "."),
        *("neg%20", "NEG", "%F0%9F%92%A9", "a" * 50_000),
    ],
)
def test_names_of_models(path: str, server: Served) -> None:
    for end in ("", "/ready", "/config"):
        told = server.raw(
            f"GET /v2/models/{path}{end} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            .encode()
        )  # fmt: skip
        head, _, body = told.partition(b"\r\n\r\n")
        assert head.split()[1] == b"404"
        assert json.loads(body)["error"]


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED + b"zz\r\n",
        CHUNKED + b"-5\r\nhello\r\n",
        CHUNKED + b"F" * 30 + b"\r\n",
        CHUNKED + b"5\r\nhelloXX\r\n0\r\n\r\n",
        CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n") + b"0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\nabc",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        *(HEAD + b"Content-Length: " + n + b"\r\n\r\n" for n in (b"-1", b"+5", b"0x5", b"9" * 30)),
        b"GET /v2\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10,
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 300_000 + b"\r\n\r\n",
    ],
    ids=lambda data: str(data[-24:]),
)
def test_what_is_not_http(data: bytes, server: Served) -> None:
    head, _, body = server.raw(data).partition(b"\r\n\r\n")
    assert head.split()[1] == b"400"
    assert json.loads(body)["error"]


def test_the_response_to_a_large_body_can_be_read(server: Served) -> None:
    """The rest of the body is read and dropped: otherwise a reset would replace the response."""
    size = 40 << 20
    told = server.raw(HEAD + b"Content-Length: %d\r\n\r\n" % size + bytes(size))
    assert told.split()[1] == b"413"


# --- compressed bodies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "body", "status"),
    [
        ("gzip", gzip.compress(GOOD), 200),
        ("deflate", zlib.compress(GOOD), 200),
        ("identity", GOOD, 200),
        ("gzip", gzip.compress(bytes(100 << 20), 1), 413),
        ("deflate", zlib.compress(bytes(100 << 20), 1), 413),
        ("gzip", gzip.compress(gzip.compress(GOOD)), 400),
        ("gzip", gzip.compress(GOOD)[:-3], 400),
        ("gzip", gzip.compress(GOOD) * 2, 400),
        ("gzip", GOOD, 400),
        ("gzip", b"", 400),
        ("gzip, gzip", gzip.compress(gzip.compress(GOOD)), 415),
        ("br", GOOD, 415),
    ],
    ids=lambda value: "body" if isinstance(value, bytes) else str(value),
)  # fmt: skip
def test_compressed_bodies(how: str, body: bytes, status: int, server: Served) -> None:
    answer = post(server, body, **{"Content-Encoding": how})
    assert answer.status_code == status
    assert ("error" in answer.json()) == (status != 200)


def test_decompressed_bytes_count(models: Models) -> None:
    limits = Limits(body_bytes=300_000, held_bytes=200_000)
    with served(models, limits) as server:
        body = gzip.compress(b" " * 250_000)
        answer = post(server, body, **{"Content-Encoding": "gzip"})
        assert (answer.status_code, answer.json()["error"]) == (
            503, "too many concurrent request bodies",
        )  # fmt: skip
        assert server.app.bodies.held == 0
        assert post(server, GOOD).status_code == 200


# --- connections ----------------------------------------------------------------------------------


def test_resting_connections_make_room_for_others(models: Models) -> None:
    with served(models, Limits(connections=20)) as server:
        idle = [socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(60)]
        try:
            assert post(server, GOOD).status_code == 200
            assert len(server.server.server_state.connections) <= 20
            idle[0].settimeout(60)
            with suppress(ConnectionResetError):
                assert idle[0].recv(1) == b""  # the oldest
        finally:
            for one in idle:
                one.close()


def test_clients_that_do_not_read_are_disconnected(models: Models) -> None:
    values = np.zeros((1, 4 << 20), np.float32)
    described = {**INPUT, "shape": list(values.shape)}
    del described["data"]
    described["parameters"] = {"binary_data_size": values.nbytes}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    size = len(head) + values.nbytes
    with served(models, Limits(body_s=0.5, body_bytes=32 << 20)) as server:
        with socket.create_connection(("127.0.0.1", server.port), 20) as plug:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lengths = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
            plug.sendall(HEAD + lengths % (len(head), size) + head + values.tobytes())
            until(lambda: server.app.bodies.held)
            until(lambda: not server.server.server_state.connections)
            until(lambda: not server.app.bodies.held)
        assert post(server, GOOD).status_code == 200


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The errors that uvicorn logs: clients could fill the log with them."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, loggers = Handler(), [logging.getLogger(name) for name in ("uvicorn", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    yield lines
    for logger in loggers:
        logger.removeHandler(handler)


def test_a_body_that_breaks_off_is_answered_once(server: Served, logged: list[str]) -> None:
    told = server.raw(CHUNKED.replace(b"/v2/models/neg/infer", b"/nowhere") + b"zz\r\n")
    assert told.count(b"HTTP/1.1 ") == 1
    assert told.split()[1] == b"400"
    assert server.http.get("/health").status_code == 200  # the application has ended meanwhile
    assert logged == []


def test_a_reset_that_shows_when_the_connection_closes() -> None:
    """Nothing is read while a request is answered: only the end of writing fails."""
    from vkmnn.serve.listening import _Gathered

    transport = Mock()
    transport.is_closing.return_value = False
    transport.write_eof.side_effect = OSError(errno.ENOTCONN, "not connected")
    _Gathered(transport, Mock(), lambda: True).close()
    transport.abort.assert_called_once()


def test_disconnects_at_any_point(server: Served) -> None:
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
    for cut in range(1, len(whole) + 1, 7):
        with socket.create_connection(("127.0.0.1", server.port), 5) as plug:
            plug.sendall(whole[:cut])
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert post(server, GOOD).status_code == 200
    until(lambda: not server.app.bodies.held)
