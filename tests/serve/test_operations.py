"""Running a server: request ids, logs, traces, metrics, keys, draining, and the page of routes."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import httpx

from tests.llm.served import Served, network, served, until
from vkmnn.serve import Access, JsonLines, Limits, Models, Observer, Traces, load_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    path = network(tmp_path_factory.mktemp("models") / "adder.onnx")
    made = load_models([str(path)], "cpu")
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(models: Models) -> Iterator[Served]:
    with served(models, observer=Observer(logs=True)) as made:
        yield made


INPUTS = [{"name": n, "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]} for n in "ab"]


def infer(server: Served, **how: Any) -> Any:
    return server.http.post("/v2/models/adder/infer", json={"inputs": INPUTS}, **how)


# --- what is told ---------------------------------------------------------------------------------


def test_request_ids(server: Served) -> None:
    assert infer(server, headers={"X-Request-Id": "a-1"}).headers["x-request-id"] == "a-1"
    made = {server.http.get(path).headers["x-request-id"] for path in ("/health", "/none", "/v2")}
    assert len(made) == 3
    for odd in ("a b", "x" * 129, "é", ""):
        answer = server.http.get("/health", headers={"X-Request-Id": odd.encode()})
        assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])


def test_a_line_for_each_request(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vkmnn.serve.requests"):
        infer(server, headers={"X-Request-Id": "one"})
        server.http.get("/v2/models/no%0Asuch", headers={"X-Request-Id": "two"})
    first, second = (json.loads(JsonLines().format(one)) for one in caplog.records)
    assert first.items() >= {
        "level": "info", "request_id": "one", "method": "POST", "status": 200, "batch_rows": 1,
        "route": "/v2/models/{name}/infer", "model": "adder", "client": "127.0.0.1",
    }.items()  # fmt: skip
    assert first["seconds"] >= first["queue_seconds"] + first["compute_seconds"]
    assert second.items() >= {"request_id": "two", "status": 404}.items()


def test_lines_of_json_are_single_lines() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "f", 1, "x\ny %s", (1,), sys.exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "x\ny 1"
    assert "ValueError" in json.loads(line)["exception"]


def test_traces(models: Models) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with served(models, observer=Observer(traces=Traces(provider))) as server:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        infer(server, headers={"traceparent": parent})
        server.http.get("/v2/models/nosuch")
    queue, compute, request, other = kept.get_finished_spans()
    assert [queue.name, compute.name] == ["queue", "compute"]
    assert request.name == "POST /v2/models/{name}/infer"
    assert f"{request.context.trace_id:032x}" == parent.split("-")[1]
    assert {queue.parent.span_id, compute.parent.span_id} == {request.context.span_id}
    assert queue.end_time == compute.start_time
    assert compute.attributes["vkmnn.batch_rows"] == 1
    assert request.attributes["http.response.status_code"] == 200
    assert other.attributes["http.response.status_code"] == 404


def test_histograms(server: Served) -> None:
    before = server.metric('vkmnn_batch_rows_count{model="adder"}')
    infer(server)
    for name in ("queue_seconds", "compute_seconds", "inference_seconds", "batch_rows"):
        assert server.metric(f'vkmnn_{name}_bucket{{le="+Inf",model="adder"}}') >= 1
    assert server.metric('vkmnn_batch_rows_count{model="adder"}') == before + 1


def test_the_page_of_the_routes(server: Served, models: Models) -> None:
    page = server.http.get("/docs")
    assert "/v2/models/{name}/infer" in page.text
    assert not re.search(r"(src|href)=['\"]?(https?:)?//", page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    told = server.http.get("/openapi.json").json()
    routes = set(server.http.get("/").json()["routes"])
    assert set(told["paths"]) == {re.sub(r":\w+}", "}", path) for path in routes}
    assert told["openapi"].startswith("3.")
    ids = [one["operationId"] for path in told["paths"].values() for one in path.values()]
    assert len(set(ids)) == len(ids)
    with served(models, access=Access(frozenset({"k"}))) as keyed:
        assert keyed.http.get("/docs").status_code == 401
        told = keyed.http.get("/openapi.json", headers={"Authorization": "Bearer k"}).json()
        assert told["components"]["securitySchemes"]


# --- limits and the end ---------------------------------------------------------------------------


def blocked(models: Models, patch: pytest.MonkeyPatch) -> threading.Event:
    """Make runs of the adder wait for an event."""
    go, (session,) = threading.Event(), models.networks["adder"].sessions
    run = session.run

    def wait(*given: Any) -> Any:
        assert go.wait(60)
        return run(*given)

    patch.setattr(session, "run", wait)
    return go


def test_a_limit_for_each_key(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    go, adder = blocked(models, monkeypatch), models.networks["adder"]
    access = Access(frozenset({"one", "two"}))
    with served(models, Limits(per_key=2), access) as server:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        threads = [threading.Thread(target=infer, args=(server,), kwargs={"headers": one})
                   for _ in range(2)]  # fmt: skip
        for thread in threads:
            thread.start()
        until(lambda: adder.waiting + adder.running == 2)
        refused = infer(server, headers=one)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert server.http.get("/health", headers=one).status_code == 200
        assert server.http.get("/v2", headers=two).status_code == 200
        go.set()
        for thread in threads:
            thread.join()
        assert infer(server, headers=one).status_code == 200


def test_a_waiting_request_leaves_with_its_client(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, adder = blocked(models, monkeypatch), models.networks["adder"]
    with served(models) as server:
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.append(infer(server).status_code))
        thread.start()
        until(lambda: bool(adder.running))
        with server.waiting_client("/v2/models/adder/infer", {"inputs": INPUTS}):
            until(lambda: adder.waiting == 1)
        until(lambda: not adder.waiting)
        go.set()
        thread.join(30)
    assert answers == [200]


def test_the_server_is_unready_before_it_stops(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, adder = blocked(models, monkeypatch), models.networks["adder"]
    with served(models, delay_s=1.5, grpc=True) as server:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(infer(server)))
        thread.start()
        until(lambda: bool(adder.running))
        server.server.should_exit = True
        with httpx.Client(base_url=server.url) as http:
            while (ready := http.get("/health")).status_code == 200:
                time.sleep(0.02)
            assert ready.status_code == 503
            assert "stopping" in ready.text
            assert http.get("/v2/health/live").status_code == 200
            assert http.get("/v2").headers["connection"] == "close"  # still answered
        go.set()
        thread.join(30)
        server.thread.join(30)
        assert answers[0].status_code == 200
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", server.port), 5).close()


@pytest.mark.parametrize("delay_s", [0, 0.3])
def test_no_client_is_reset_at_the_end(delay_s: float, models: Models) -> None:
    """Clients that connect again and again are answered, or find the port closed."""
    body = json.dumps({"inputs": INPUTS}).encode()
    head = b"POST /v2/models/adder/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    ends: list[str] = []
    with served(models, delay_s=delay_s) as server:

        def ask() -> None:
            while True:
                try:
                    plug = socket.create_connection(("127.0.0.1", server.port), 20)
                except ConnectionRefusedError:
                    ends.append("refused")
                    return
                with plug:
                    plug.sendall(whole)
                    if not plug.recv(1 << 16).startswith(b"HTTP/1.1 200"):
                        ends.append("lost")

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        server.server.should_exit = True
        for thread in threads:
            thread.join(30)
    assert ends == ["refused"] * 16


def test_the_command_drains_on_sigterm(tmp_path: Path) -> None:
    path = network(tmp_path / "adder.onnx")
    with socket.create_server(("127.0.0.1", 0)) as plug:
        port = plug.getsockname()[1]
    command = [sys.executable, "-m", "vkmnn", "serve", f"m={path}", "--device", "cpu",
               "--port", str(port), "--log-format", "json", "--drain-delay", "0.5"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = []
            while "listening" not in "".join(lines):
                lines.append(process.stderr.readline())
                assert lines[-1]
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
                while True:
                    try:
                        assert http.get("/health").status_code == 200
                        break
                    except httpx.ConnectError:
                        time.sleep(0.05)
                process.terminate()
                answer = http.post("/v2/models/m/infer", json={"inputs": INPUTS})
                assert answer.status_code == 200
            rest = process.stderr.read()
            assert process.wait(30) == 0
        finally:
            process.kill()
    told = [json.loads(line) for line in (*lines, *rest.splitlines()) if line.strip()]
    assert any(one.get("route") == "/v2/models/{name}/infer" for one in told)


def test_import_vkmnn_needs_nothing_of_this() -> None:
    text = (
        "import sys, vkmnn, vkmnn.serve\n"
        "print([n for n in ('grpc', 'opentelemetry', 'tritonclient') if n in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
