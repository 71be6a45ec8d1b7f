"""The server among strangers: access, limits, and the effects on everybody else."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import httpx
import onnx
from onnx import TensorProto, helper

import vkmnn
from tests.llm.served import Served, network, served, small_models, until
from vkmnn import InvalidInputError, ModelFileError
from vkmnn.cli.app import run_cli
from vkmnn.llm import LanguageModel
from vkmnn.llm.text import PIECE, Tokenizer
from vkmnn.serve import Access, Limits, Models, access_of, bound, load_models, proxies_of, read_keys

COMPLETION = {"prompt": "x", "max_tokens": 2, "temperature": 0}
HALF = (
    b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{"prompt": "'
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    made = small_models(tmp_path_factory.mktemp("models"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(models: Models) -> Iterator[Served]:
    with served(models) as made:
        yield made


def strictly(text: str | bytes) -> Any:
    """Read JSON as others do, who have no NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


# --- too much ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("completions", {"stop": "a" * 1_000_000}, 400, "invalid_stop"),
        ("completions", {"stop": ["a"] * 1000}, 400, "invalid_stop"),
        ("completions", {"stop": ["a", 1]}, 400, "invalid_type"),
        ("completions", {"stop": ["a" * 1024] * 16}, 200, None),
        ("completions", {"prompt": "the quick brown " * 200_000}, 400, "context_length_exceeded"),
        ("completions", {"prompt": "," * 1_000_000}, 400, "context_length_exceeded"),
        ("completions", {"prompt": [1] * 200_000}, 400, "context_length_exceeded"),
        ("completions", {"prompt": [2**63]}, 400, "invalid_value"),
        ("completions", {"prompt": [2**31]}, 400, "invalid_value"),
        ("completions", {"top_k": 10**400}, 400, "invalid_value"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a " * 900_000}]}, 400,
         "context_length_exceeded"),
        ("chat/completions", {"messages": [{"role": "user", "content": ""}] * 5000}, 400,
         "context_length_exceeded"),
        ("chat/completions", {"messages": [{"role": "user", "more": [[]] * 40000}]}, 413,
         "too_many_values"),
        ("embeddings", {"input": ["a"] * 3000}, 400, "too_many_texts"),
        ("embeddings", {"input": ["a"] * 400_000}, 413, "too_many_values"),
        ("embeddings", {"input": ["a", "b " * 900_000]}, 400, "context_length_exceeded"),
        ("embeddings", {"input": "a", "dimensions": 300}, 400, "invalid_value"),
        ("embeddings", {"input": "a", "encoding_format": "hex"}, 400, "unsupported_field"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_too_much_is_refused_before_any_work(
    path: str, body: dict[str, Any], status: int, code: str | None, server: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cut: list[int] = []
    encode = Tokenizer._ids

    def counted(self: Tokenizer, text: str, special: bool) -> list[int]:
        cut.append(len(text))
        return encode(self, text, special)

    monkeypatch.setattr(Tokenizer, "_ids", counted)
    usual = {"max_tokens": 1} if path == "embeddings" else COMPLETION
    answer = server.http.post(f"/v1/{path}", json={**usual, **body})
    assert answer.status_code == status, answer.text
    if code is not None:
        assert answer.json()["error"]["code"] == code
    assert max(cut, default=0) <= PIECE


def test_long_prompts_are_counted_in_pieces(models: Models, monkeypatch: Any) -> None:
    model = models.language["tiny"]
    monkeypatch.setattr(model.tokenizer, "_longest", 1000)  # characters alone do not refuse it
    steps = model.token_steps("one token " * 4000, model.capacity)
    with pytest.raises(InvalidInputError, match="the first 16384 of 40000 characters"):
        next(steps)
    text = "the quick brown fox jumps over the lazy dog" * 1000
    *between, tokens = model.token_steps(text, 10**6)
    assert between == [[]] * (len(text) // PIECE + 1)
    assert tokens == model.tokens_of(text)


def test_others_are_served_while_a_long_prompt_is_cut(models: Models, monkeypatch: Any) -> None:
    """Only one is tokenized at a time, few wait, and clients that leave make room."""
    started, go_on = threading.Event(), threading.Event()
    token_steps = LanguageModel.token_steps

    def slow(self: LanguageModel, prompt: Any, most: int | None = None) -> Iterator[list[int]]:
        if len(prompt) > PIECE:
            started.set()
            while not go_on.wait(0.01):
                yield []
        yield from token_steps(self, prompt, most)

    monkeypatch.setattr(LanguageModel, "token_steps", slow)
    monkeypatch.setattr(models.language["tiny"].tokenizer, "_longest", 1000)
    long = {**COMPLETION, "prompt": "a b " * 5000}
    with served(models, Limits(queue=1)) as server:
        url = f"{server.url}/v1/completions"
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(httpx.post(url, json=long, timeout=60).status_code)

        first = threading.Thread(target=ask)
        first.start()
        assert started.wait(20)
        with server.waiting_client("/v1/completions", long):
            until(lambda: server.metric("vkmnn_tokenising_waiting") == 1)
        until(lambda: server.metric("vkmnn_tokenising_waiting") == 0)
        second = threading.Thread(target=ask)
        second.start()
        until(lambda: server.metric("vkmnn_tokenising_waiting") == 1)
        full = httpx.post(url, json=long, timeout=20)
        assert (full.status_code, full.json()["error"]["code"]) == (503, "queue_full")
        assert server.http.get("/health").status_code == 200
        assert server.http.post("/v1/completions", json=COMPLETION).status_code == 200
        go_on.set()
        first.join(30)
        second.join(30)
        assert statuses == [400, 400]


def test_embeddings_end_with_their_client(models: Models, monkeypatch: Any) -> None:
    model = models.embedding["vectors"]
    done: list[str] = []
    vector = type(model)._vector

    def slow(self: Any, tokens: list[int]) -> Any:
        done.append("a text")
        time.sleep(0.02)
        return vector(self, tokens)

    monkeypatch.setattr(type(model), "_vector", slow)
    with served(models) as server:
        with server.waiting_client("/v1/embeddings", {"input": ["x"] * 2000}):
            until(lambda: bool(done))
        until(lambda: server.metric("vkmnn_embedding_active") == 0)
    assert 0 < len(done) < 2000


def test_many_texts_become_vectors(server: Served, models: Models) -> None:
    answer = server.http.post("/v1/embeddings", json={"input": ["hello", "the lazy dog"]})
    made = strictly(answer.content)
    assert made["model"] == "vectors"
    assert made["usage"]["prompt_tokens"] == made["usage"]["total_tokens"] > 2
    got = [one["embedding"] for one in made["data"]]
    np.testing.assert_allclose(got, models.embedding["vectors"].embed(["hello", "the lazy dog"]),
                               rtol=1e-5)  # fmt: skip


# --- too slow ------------------------------------------------------------------------------------


def test_heads_and_bodies_have_to_come_in_time(models: Models) -> None:
    with served(models, Limits(header_s=0.3, body_s=0.6)) as server:
        head, _, body = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: lo").partition(
            b"\r\n\r\n"
        )
        assert b" 408 " in head
        assert strictly(body)["error"]["code"] == "head_too_slow"
        assert server.raw(b"") == b""
        head, _, body = server.raw(HALF).partition(b"\r\n\r\n")
        assert b" 408 " in head
        assert strictly(body)["error"]["code"] == "body_too_slow"
        assert b" 400 " in server.raw(b"nonsense\r\n\r\n")
        time.sleep(0.4)  # a connection that is idle between requests stays open
        assert server.http.post("/v1/completions", json=COMPLETION).status_code == 200
        time.sleep(0.4)
        assert server.http.post("/v1/completions", json=COMPLETION).status_code == 200
        assert server.metric('vkmnn_requests_total{route="other",status="408"}') == 1
        assert server.metric('vkmnn_requests_total{route="/v1/completions",status="408"}') == 1


def test_the_limit_of_an_address_leaves_health_and_metrics(models: Models) -> None:
    with served(models, Limits(per_client=2)) as server, server_of_halves(server, 2):
        ask = {"url": "/v1/completions", "json": COMPLETION}
        until(lambda: server.http.post(**ask).status_code == 429)
        assert server.http.post(**ask).json()["error"]["code"] == "too_many_requests"
        for path in ("/health", "/healthz", "/v2/health/live", "/v2/health/ready", "/metrics"):
            assert server.http.get(path).status_code == 200
        forged = server.http.post(**ask, headers={"X-Forwarded-For": "9.9.9.9"})
        assert forged.status_code == 429


def test_named_proxies_tell_who_asks(models: Models) -> None:
    limits = Limits(per_client=2)
    with served(models, limits, proxies=["127.0.0.1"]) as server, server_of_halves(server, 2):
        until(lambda: server.http.post("/v1/completions", json=COMPLETION).status_code == 429)
        answer = server.http.post("/v1/completions", json=COMPLETION,
                                  headers={"X-Forwarded-For": "9.9.9.9"})  # fmt: skip
        assert answer.status_code == 200


class server_of_halves:  # noqa: N801 - a context manager
    """Requests of which half has arrived."""

    def __init__(self, server: Served, count: int) -> None:
        self._address, self._count = ("127.0.0.1", server.port), count

    def __enter__(self) -> None:
        self._plugs = [socket.create_connection(self._address) for _ in range(self._count)]
        for plug in self._plugs:
            plug.sendall(HALF)

    def __exit__(self, *error: object) -> None:
        for plug in self._plugs:
            plug.close()


def test_bodies_that_come_at_once_have_a_sum(models: Models) -> None:
    limits = Limits(held_bytes=300_000, body_bytes=250_000)
    with served(models, limits) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 240000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as plug:
            plug.sendall(head + b" " * 239_000)
            until(lambda: server.app.bodies.held == 239_000)
            large = json.dumps({**COMPLETION, "user": "x" * 200_000})

            answer = server.http.post("/v1/completions", content=large)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_bytes")
            assert server.http.post("/v1/completions", json=COMPLETION).status_code == 200
        until(lambda: server.app.bodies.held == 0)
        assert server.http.post("/v1/completions", content=large).status_code == 200


# --- who may ask ---------------------------------------------------------------------------------


def test_keys(models: Models) -> None:
    access = Access(keys=frozenset({"one", "two"}))
    with served(models, access=access) as server:
        for key, status in (("one", 200), ("two", 200), ("on", 401), ("x", 401),
                            ("onetwo", 401), ("\xff", 401)):  # fmt: skip
            header = {"Authorization": f"Bearer {key}".encode("latin-1")}
            answer = server.http.get("/v1/models", headers=header)
            assert answer.status_code == status, key
        refused = server.http.post("/v1/completions", json=COMPLETION)
        assert refused.status_code == 401
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        assert refused.json()["error"]["code"] == "invalid_api_key"
        for path in ("/v2/models/adder", "/metrics", "/", "/nothing"):
            assert server.http.get(path).status_code == 401
        for path in ("/health", "/healthz", "/v2/health/live", "/v2/health/ready"):
            assert server.http.get(path).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:1"}, 200),
        ({"Host": "127.0.0.1:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:8000"}, 403),
        ({"Host": "friend.example:8000"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example", "Content-Type": "text/plain"}, 403),
        ({"Host": "localhost:7", "Origin": "http://localhost:7"}, 200),
        ({"Host": "localhost:7", "Origin": "http://localhost:8"}, 403),
        ({"Origin": "https://page.example"}, 200),
    ],
    ids=str,
)
def test_a_server_of_this_machine_checks_who_leads_to_it(
    headers: dict[str, str], status: int, models: Models
) -> None:
    access = access_of("127.0.0.1", ["127.0.0.1"], [], ["friend.example"], ["https://page.example"])
    with served(models, access=access) as server:
        answer = server.http.post("/v1/completions", json=COMPLETION, headers=headers)
        assert answer.status_code == status
        assert (answer.headers.get("Access-Control-Allow-Origin") is not None) == (
            headers.get("Origin") == "https://page.example"
        )


def test_pages_of_named_sites_may_ask_first(models: Models) -> None:
    access = Access(keys=frozenset("k"), origins=frozenset({"https://page.example"}))
    with served(models, access=access) as server:
        asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
        answer = server.http.options("/v1/chat/completions", headers=asked)
        assert answer.status_code == 204
        assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
        assert server.http.options("/v1/chat/completions").status_code == 401


def test_other_addresses_ask_by_any_name() -> None:
    open_to_all = access_of("0.0.0.0", ["0.0.0.0"], [], [], [])
    assert not open_to_all.local
    assert access_of("localhost", ["127.0.0.1", "::1"], [], [], []).local
    assert not access_of("here", ["127.0.0.1", "10.0.0.1"], [], [], []).local


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: access_of("::1", ["::1"], [" "], [], []),
        lambda: access_of("::1", ["::1"], ["é"], [], []),
        lambda: access_of("::1", ["::1"], [], ["http://a"], []),
        lambda: access_of("::1", ["::1"], [], [], ["page.example"]),
        lambda: access_of("::1", ["::1"], [], [], ["https://page.example/path"]),
        lambda: proxies_of(["10.0.0.1", "proxy"]),
        lambda: read_keys(Path("/nowhere/keys")),
        lambda: bound("256.1.1.1", 0),
        lambda: bound("a" * 300, 0),
    ],
)
def test_options_that_cannot_be(wrong: Callable[[], object]) -> None:
    with pytest.raises(InvalidInputError):
        wrong()


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\n first \n\nsecond\n", "utf-8")
    assert read_keys(path) == ["first", "second"]
    assert proxies_of(["10.0.0.0/8,::1", "*"]) == ["10.0.0.0/8", "::1", "*"]
    path.write_text("# none\n", "utf-8")
    with pytest.raises(InvalidInputError, match="holds no key"):
        read_keys(path)


# --- what everybody sees -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "route"),
    [
        ("GET", "/nothing", 404, "other"),
        ("GET", "/v1/nothing", 404, "other"),
        ("GET", "/v1/models/", 404, "other"),
        ("GET", "/v1/models/zz", 404, "/v1/models/{name}"),
        ("GET", "/v1/completions", 405, "/v1/completions"),
        ("DELETE", "/v1/models", 405, "/v1/models"),
        ("OPTIONS", "/v1/models", 405, "/v1/models"),
        ("GET", "/v2/nothing", 404, "other"),
        ("GET", "/v2/models/zz", 404, "/v2/models/{name}"),
        ("GET", "/v2/models/zz/ready", 404, "/v2/models/{name}/ready"),
        ("GET", "/v2/models/adder/infer", 405, "/v2/models/{name}/infer"),
        ("POST", "/v2/models/adder/infer", 400, "/v2/models/{name}/infer"),
        ("POST", "/v1/completions", 400, "/v1/completions"),
        ("POST", "/health", 405, "/health"),
    ],
)
def test_every_answer_is_json_and_counted(
    method: str, path: str, status: int, route: str, server: Served
) -> None:
    name = f'vkmnn_requests_total{{route="{route}",status="{status}"}}'
    before = server.metric(name)
    answer = server.http.request(method, path)
    assert answer.status_code == status
    error = strictly(answer.content)["error"]
    assert isinstance(error, str) if path.startswith("/v2") else error["message"]
    assert server.metric(name) == before + 1
    assert (status == 405) == ("Allow" in answer.headers)


@pytest.mark.parametrize("path", ["/v1/completions", "/v2/models/adder/infer", "/v2/models/adder"])
def test_what_nobody_foresaw_is_json_and_counted(
    path: str, server: Served, monkeypatch: Any
) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(Models, "language_model", fail)
    monkeypatch.setattr(Models, "network", fail)
    before = server.metric('vkmnn_requests_total{route="' + path.replace("adder", "{name}"))
    how = "GET" if path.endswith("adder") else "POST"
    answer = server.http.request(how, path, json=COMPLETION if how == "POST" else None)
    assert answer.status_code == 500
    error = strictly(answer.content)["error"]
    assert "RuntimeError" in (error if path.startswith("/v2") else error["message"])
    assert "secret" not in answer.text
    name = 'vkmnn_requests_total{route="' + path.replace("adder", "{name}")
    assert server.metric(name) == before + 1


def test_what_is_served_is_told(server: Served) -> None:
    made = server.http.get("/").json()
    assert made["models"] == {"language": ["tiny"], "embedding": ["vectors"], "networks": ["adder"]}
    assert "/v1/chat/completions" in made["routes"]
    for path in ("/health", "/healthz", "/v2/health/ready"):
        assert server.http.get(path).json() == {"ready": True}


def test_the_only_model_needs_no_name(server: Served, models: Models) -> None:
    made = server.http.post("/v1/completions", json=COMPLETION).json()
    assert made["model"] == "tiny"
    two = Models({"a": models.language["tiny"], "b": models.language["tiny"]})
    with served(two) as other:
        answer = other.http.post("/v1/completions", json=COMPLETION)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "missing_model")
        answer = other.http.post("/v1/embeddings", json={"input": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


HALF_A_CHARACTER = "\ud800"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": HALF_A_CHARACTER}),
        ("/v1/completions", {"prompt": "x", "stop": HALF_A_CHARACTER}),
        ("/v1/completions", {"prompt": "x", HALF_A_CHARACTER: 1}),
        ("/v1/completions", {"prompt": "x", "model": HALF_A_CHARACTER}),
        ("/v1/chat/completions", {"messages": [{"role": HALF_A_CHARACTER, "content": "x"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": HALF_A_CHARACTER}]}),
        ("/v1/embeddings", {"input": [HALF_A_CHARACTER]}),
        ("/v2/models/adder/infer", {"inputs": [{"name": HALF_A_CHARACTER}]}),
        ("/v2/models/adder/infer", {"inputs": [], "id": HALF_A_CHARACTER}),
    ],
)  # fmt: skip
def test_half_a_character_is_no_text(path: str, body: dict[str, Any], server: Served) -> None:
    answer = server.http.post(path, content=json.dumps(body))
    assert answer.status_code == 400
    assert "not Unicode" in answer.text
    whole = json.dumps(body).replace("\\ud800", "\\ud83d\\ude00")  # a pair is one character
    assert "not Unicode" not in server.http.post(path, content=whole).text


def infer(server: Served, a: list[Any], **more: Any) -> httpx.Response:
    shape = [len(a) // 3, 3]
    inputs = [{"name": n, "datatype": "FP32", "shape": shape, "data": x}
              for n, x in (("a", a), ("b", [0] * len(a)))]  # fmt: skip
    return server.http.post("/v2/models/adder/infer", json={"inputs": inputs}, **more)


def test_what_json_has_no_numbers_for(server: Served) -> None:
    answer = infer(server, ["NaN", "Infinity", "-Infinity", 1, 2, 3])
    outputs = {one["name"]: one["data"] for one in strictly(answer.content)["outputs"]}
    assert outputs["sum"] == ["NaN", "Infinity", "-Infinity", 1.0, 2.0, 3.0]
    assert outputs["less"][1:] == ["-Infinity", "Infinity", -1.0, -2.0, -3.0]


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("INT32", 1.5), ("UINT8", 300), ("INT8", -129), ("UINT64", -1), ("INT64", 2**63),
     ("BOOL", 2), ("FP16", 1e6), ("FP32", 1e39), ("INT32", "1"), ("FP32", "x"), ("FP32", {}),
     ("FP32", None), ("FP32", "1"), ("FP32", "nan"), ("FP32", "\uff11"), ("INT32", "NaN"),
     ("INT64", 2**53 + 1)],
)  # fmt: skip
def test_values_fit_their_datatype(datatype: str, value: Any, server: Served) -> None:
    inputs = [{"name": "a", "datatype": datatype, "shape": [2], "data": [value, 1.0]}]
    answer = server.http.post("/v2/models/adder/infer", json={"inputs": inputs})
    assert answer.status_code == 400
    assert "does not fit its datatype" in answer.json()["error"]


def test_bytes_of_a_negative_number(server: Served) -> None:
    """A slice would count from the end."""
    inputs = [{"name": "a", "datatype": "FP32", "shape": [1],
               "parameters": {"binary_data_size": -4}}]  # fmt: skip
    head = json.dumps({"inputs": inputs}).encode()
    answer = server.http.post(
        "/v2/models/adder/infer", content=head + bytes(8),
        headers={"Inference-Header-Content-Length": str(len(head))},
    )  # fmt: skip
    assert answer.status_code == 400
    assert "binary_data_size" in answer.json()["error"]


def test_texts_as_bytes(tmp_path: Path) -> None:
    """Each after its length in four bytes; numpy uses pointers instead."""
    kind = TensorProto.STRING
    graph = helper.make_graph(
        [helper.make_node("Gather", ["words", "at"], ["word"])], "words",
        [helper.make_tensor_value_info("at", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("word", kind, [2])],
        [helper.make_tensor("words", kind, [3], [b"a", b"bc", "é".encode()])],
    )  # fmt: skip
    path = tmp_path / "words.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              str(path))  # fmt: skip
    models = load_models([str(path)], "auto")
    body = {
        "inputs": [{"name": "at", "datatype": "INT64", "shape": [2], "data": [2, 1]}],
        "outputs": [{"name": "word", "parameters": {"binary_data": True}}],
    }
    with served(models) as server:
        answer = server.http.post("/v2/models/words/infer", json=body)
    models.close()
    head = int(answer.headers["Inference-Header-Content-Length"])
    assert answer.content[head:] == b"\2\0\0\0\xc3\xa9" + b"\2\0\0\0bc"


def test_runs_leave_threads_to_others(
    models: Models, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many runs wait for a network, prompts are tokenized."""
    go = threading.Event()

    def run(*_: object) -> list[np.ndarray]:
        assert go.wait(60)
        return [np.zeros((1, 3), np.float32)] * 2

    adder = models.networks["adder"]
    monkeypatch.setattr(models.networks["adder"].sessions[0], "run", run)
    runs = [threading.Thread(target=infer, args=(server, [1, 2, 3])) for _ in range(60)]
    for thread in runs:
        thread.start()
    try:
        until(lambda: adder.waiting + adder.running == len(runs))
        assert server.http.post("/v1/completions", json=COMPLETION).status_code == 200
    finally:
        go.set()
        for thread in runs:
            thread.join()


@pytest.mark.parametrize("length", [b"\xb2", b"-1", b"1_0", b"9" * 40, b"99999", b"x", b""])
def test_lengths_in_headers(length: bytes, server: Served) -> None:
    answer = infer(server, [1, 2, 3], headers={"Inference-Header-Content-Length": length})
    assert answer.status_code == 400
    assert "not a length" in answer.json()["error"]


# --- lost devices --------------------------------------------------------------------------------


def test_a_server_that_cannot_answer_is_not_ready_and_ends(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr("vkmnn.serve.app._WATCH_S", 0.02)
    with served(models, Limits(lost_s=0.1), on_lost=ended.set) as server:
        for name, model in models.all.items():
            assert server.http.get("/health").status_code == (200 if name == "tiny" else 503)
            monkeypatch.setattr(type(model), "lost", True)
            assert not ended.is_set()
            for path in ("/health", "/v2/health/ready", f"/v2/models/{name}/ready"):
                answer = server.http.get(path)
                assert answer.status_code == 503
                assert name in answer.text
            assert server.http.get("/v2/health/live").status_code == 200
        assert ended.wait(20)


def test_lost_devices_are_opened_anew_by_default(tmp_path: Path, models: Models) -> None:
    (adder,) = models.networks["adder"].sessions
    cores = [adder._session.core, models.language["tiny"]._decoder.open.core,
             models.embedding["vectors"]._open.core]  # fmt: skip
    assert all(core.rebuilds for core in cores)
    path = network(tmp_path / "adder.onnx")
    given_up = load_models([str(path)], "cpu", on_device_lost="raise")
    assert not given_up.networks["adder"].sessions[0]._session.core.rebuilds
    given_up.close()


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, BaseException])
def test_a_text_that_fails_leaves_others(
    error: type[BaseException], server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **how: object) -> None:
        raise error("a secret")

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "pieces", fail)
        answer = server.http.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 500
        assert error.__name__ in answer.json()["error"]["message"]
        assert "secret" not in answer.text
    assert server.http.post("/v1/completions", json=COMPLETION).status_code == 200


# --- the command ---------------------------------------------------------------------------------


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for args, text in (
        (["nosuch.onnx"], "no such file: 'nosuch.onnx'"),
        (["x=sub/nosuch.vkmnn"], "no such file"),
        (["n" * 5000], "cannot be read"),
        (["m.onnx", "--host", "256.1.1.1"], "cannot listen on 256.1.1.1:8000"),
        (["m.onnx", "--api-key-file", str(tmp_path / "none")], "cannot be read"),
        (["m.onnx", "--api-key", "  "], "a key is"),
        (["m.onnx", "--forwarded-allow-ips", "proxy"], "not the address of a proxy"),
    ):
        assert run_cli(["serve", *args]) == 1
        told = capsys.readouterr().err
        assert text in told.replace("\n", " ")
        assert "listening" not in told
        assert "Traceback" not in told


def test_the_command_ends_with_a_status_once_nothing_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = network(tmp_path / "adder.onnx")
    monkeypatch.setattr("vkmnn.serve.app._WATCH_S", 0.02)
    monkeypatch.setattr("vkmnn.serve.Limits", partial(Limits, lost_s=0.1))
    monkeypatch.setattr(vkmnn.InferenceSession, "lost", True)
    assert run_cli(["serve", str(path), "--port", "0", "--on-device-lost", "raise"]) == 1
    told = capsys.readouterr().err
    assert "listening on http://127.0.0.1:" in told
    assert "no model could answer for 0.1 s" in told


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    (plug,) = bound("127.0.0.1", 0)
    with plug:
        plug.listen()
        port = plug.getsockname()[1]
        assert run_cli(["serve", "m.onnx", "--port", str(port)]) == 1
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_missing_files_are_typed() -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        load_models(["nosuch.onnx"], "auto")


def test_models_are_closed_when_a_later_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Models] = []
    path = tmp_path / "adder.onnx"
    network(path)
    close = Models.close
    monkeypatch.setattr(Models, "close", lambda self: (opened.append(self), close(self)))
    with pytest.raises(ModelFileError, match="no such file"):
        load_models([str(path), "nosuch.onnx"], "cpu")
    with pytest.raises(InvalidInputError, match="closed"):
        opened[0].networks["adder"].sessions[0].run(
            None, {n: np.zeros((1, 3), np.float32) for n in "ab"}
        )
