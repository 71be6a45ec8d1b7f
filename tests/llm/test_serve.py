"""The server, with OpenAI's client and raw HTTP: its answers, its refusals, and its robustness."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from vkmnn.cli.app import run_cli

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
pytest.importorskip("openai")

import httpx
import openai

from tests.llm.served import Served, served, small_models
from vkmnn.serve import Limits, Models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    made = small_models(tmp_path_factory.mktemp("models"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(models: Models) -> Iterator[Served]:
    with served(models) as made:
        yield made


@pytest.fixture
def client(server: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


MESSAGES = [{"role": "user", "content": "hello"}]


def test_chat_as_openais_client_asks(client: Any, models: Models) -> None:
    want = models.language["tiny"].generate(MESSAGES, 8)
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    made = client.chat.completions.create(**asked)
    assert made.choices[0].message.content == want.text
    assert made.choices[0].finish_reason == want.finish_reason
    assert made.usage.prompt_tokens == want.prompt_tokens
    assert made.usage.completion_tokens == len(want.tokens)
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == want.text
    assert sum(map(bool, texts)) > 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == want.finish_reason
    assert chunks[-1].usage.completion_tokens == len(want.tokens)


def test_completions_and_models(client: Any, models: Models) -> None:
    want = models.language["tiny"].generate("the quick", 6)
    made = client.completions.create(model="tiny", prompt="the quick", max_tokens=6, temperature=0)
    assert made.choices[0].text == want.text
    tokens = models.language["tiny"].tokens_of("the quick")
    made = client.completions.create(model="tiny", prompt=tokens, max_tokens=6, temperature=0,
                                     stop=[want.text[2:4]])  # fmt: skip
    assert made.choices[0].text == want.text[: want.text.index(want.text[2:4])]
    drawn = [client.completions.create(model="tiny", prompt="a", max_tokens=9, seed=4).choices[0]
             for _ in range(2)]  # fmt: skip
    assert drawn[0].text == drawn[1].text
    assert [one.id for one in client.models.list()] == ["tiny", "vectors"]
    assert client.models.retrieve("tiny").owned_by == "vkmnn"


def test_embeddings(client: Any, models: Models) -> None:
    made = client.embeddings.create(model="vectors", input=["hello", "the lazy dog"])
    want = models.embedding["vectors"].embed(["hello", "the lazy dog"])
    np.testing.assert_allclose([one.embedding for one in made.data], want, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(want, axis=1), 1, rtol=1e-5)
    assert made.usage.prompt_tokens > 2


def test_the_inference_protocol(server: Served) -> None:
    http = server.http
    assert http.get("/v2/health/ready").json()["ready"]
    assert http.get("/v2/models/adder/ready").status_code == 200
    about = http.get("/v2/models/adder").json()
    assert about["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, 3]}
    a, b = (np.arange(6, dtype=np.float32).reshape(2, 3) * k for k in (1, 10))
    inputs = [{"name": n, "datatype": "FP32", "shape": [2, 3], "data": x.tolist()}
              for n, x in (("a", a), ("b", b))]  # fmt: skip
    made = http.post("/v2/models/adder/infer", json={"id": "7", "inputs": inputs}).json()
    assert made["id"] == "7"
    got = {one["name"]: np.reshape(one["data"], one["shape"]) for one in made["outputs"]}
    np.testing.assert_allclose(got["sum"], a + b)
    np.testing.assert_allclose(got["less"], -a)

    described = [{"name": n, "datatype": "FP32", "shape": [2, 3],
                  "parameters": {"binary_data_size": 24}} for n in "ab"]  # fmt: skip
    head = json.dumps({"inputs": described, "outputs": [
        {"name": "sum", "parameters": {"binary_data": True}}]}).encode()  # fmt: skip
    answer = http.post("/v2/models/adder/infer", content=head + a.tobytes() + b.tobytes(),
                       headers={"Inference-Header-Content-Length": str(len(head))})  # fmt: skip
    size = int(answer.headers["Inference-Header-Content-Length"])
    assert [one["name"] for one in json.loads(answer.content[:size])["outputs"]] == ["sum"]
    np.testing.assert_allclose(np.frombuffer(answer.content[size:], np.float32), (a + b).ravel())


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/chat/completions", b"{", 400, "invalid_json"),
        ("/v1/chat/completions", b"[" * 20000, 400, "invalid_json"),
        ("/v1/chat/completions", b"[]", 400, "invalid_json"),
        ("/v1/chat/completions", {"model": "../../etc"}, 404, "model_not_found"),
        ("/v1/chat/completions", {"model": "tiny"}, 400, "invalid_messages"),
        ("/v1/chat/completions", {"model": "tiny", "messages": [1]}, 400, "invalid_messages"),
        ("/v1/completions", {"model": "tiny", "prompt": [1] * 900}, 400, "context_length_exceeded"),
        ("/v1/completions", {"model": "tiny", "prompt": [-1]}, 400, "invalid_value"),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "n": 99}, 400, "invalid_value"),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "top_p": 3}, 400, "invalid_value"),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "top_k": "3"}, 400, "invalid_type"),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 0}, 400,
         "invalid_max_tokens"),
        ("/v1/embeddings", {"model": "tiny", "input": "x"}, 404, "model_not_found"),
        ("/v1/embeddings", {"model": "vectors", "input": [3]}, 400, "invalid_input"),
        ("/v2/models/tiny/infer", {}, 404, "model_not_found"),
        ("/v2/models/adder/infer", {"inputs": [{"name": "a"}]}, 400, "invalid_input"),
        ("/v2/models/adder/infer", {"inputs": [{"name": "a", "datatype": "FP32", "shape": [9, 9],
                                                "data": [1]}]}, 400, "invalid_input"),
        ("/v2/models/adder/infer", {"inputs": []}, 400, "invalid_value"),
    ],
)  # fmt: skip
def test_refusals_are_typed(path: str, body: Any, status: int, code: str, server: Served) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = server.http.post(path, content=data)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    if path.startswith("/v2"):  # the inference protocol's errors are texts
        assert isinstance(error, str)
        assert error
    else:
        assert error["code"] == code
        assert error["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "x", "max_tokens": 0}, "max_tokens is 1 or more"),
        ({"max_tokens": 3}, "'prompt' is missing"),
        ({"prompt": "", "max_tokens": 3}, "the prompt is empty"),
    ],
)
def test_refusals_say_what_is_wrong(body: Any, message: str, server: Served) -> None:
    answer = server.http.post("/v1/completions", json={"model": "tiny", **body})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


def test_wrong_methods_and_paths(server: Served) -> None:
    assert server.http.get("/v1/completions").status_code == 405
    assert server.http.get("/v1/nothing").status_code == 404
    assert server.http.get("/v2/models/..%2Fadder").status_code == 404


def test_sixty_four_clients(server: Served, models: Models) -> None:
    prompts = ["the quick", "one token", "hello", "lazy"]
    want = {p: models.language["tiny"].generate(p, 4).text for p in prompts}
    before = server.metric("vkmnn_generated_tokens_total")

    async def ask(http: Any, number: int) -> tuple[str, str]:
        prompt = prompts[number % len(prompts)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        answer = await http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return prompt, answer.json()["choices"][0]["text"]

    async def all_of_them() -> list[tuple[str, str]]:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
            return await asyncio.gather(*(ask(http, number) for number in range(64)))

    for prompt, text in asyncio.run(all_of_them()):
        assert text == want[prompt]
    assert server.metric("vkmnn_generated_tokens_total") - before == 64 * 4
    assert server.idle()


def test_clients_that_go_leave_nothing(server: Served) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 150, "temperature": 0}
    with server.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        assert next(answer.iter_lines()).startswith("data: ")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=httpx.Timeout(5, read=0.02))
    assert server.idle()


def test_a_full_queue_says_so_and_a_large_body_too(models: Models) -> None:
    limits = Limits(queue=2, body_bytes=1000, max_tokens=120, per_client=30)
    with served(models, limits) as server:
        large = server.http.post("/v1/completions", content=b" " * 1001)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")

        def pieces() -> Iterator[bytes]:
            yield from [b" " * 600] * 2

        assert server.http.post("/v1/completions", content=pieces()).status_code == 413
        body = {"model": "tiny", "prompt": "x", "max_tokens": 121}
        assert server.http.post("/v1/completions", json=body).status_code == 400
        body |= {"max_tokens": 60, "temperature": 0}
        statuses: list[int] = []

        def ask() -> None:
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
            statuses.append(answer.status_code)
            if answer.status_code in (429, 503):
                assert answer.headers["Retry-After"]

        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(statuses) == 40
        assert {200, 503} <= set(statuses) <= {200, 429, 503}
        assert server.idle()


STORMS = [4, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.elsewhere("test: 4 s of it")])]


@pytest.mark.parametrize("seconds", STORMS)
def test_a_storm_of_clients(seconds: int, models: Models) -> None:
    """Sixty-four clients that ask, leave, send nonsense and send too much; nobody waits in vain."""
    text = {"model": "tiny", "prompt": "the quick", "max_tokens": 6, "temperature": 0}
    want = models.language["tiny"].generate("the quick", 6).text
    told: list[tuple[str, int]] = []

    async def ask(http: Any) -> None:
        answer = await http.post("/v1/completions", json=text)
        told.append(("ask", answer.status_code))
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["text"] == want

    async def stream(http: Any) -> None:
        pieces, ended = "", False
        async with http.stream("POST", "/v1/completions", json=text | {"stream": True}) as answer:
            told.append(("stream", answer.status_code))
            async for line in answer.aiter_lines():
                ended = ended or line == "data: [DONE]"
                if answer.status_code == 200 and line.startswith("data: {"):
                    pieces += json.loads(line[6:])["choices"][0]["text"]
        if answer.status_code == 200:
            assert (pieces, ended) == (want, True)

    async def leave(http: Any) -> None:
        body = text | {"stream": True, "max_tokens": 100}
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            told.append(("leave", answer.status_code))
            async for _ in answer.aiter_lines():
                break

    async def vanish(http: Any) -> None:
        """Break off in the middle of a body."""
        host, port = http.base_url.host, http.base_url.port
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
        await writer.drain()
        writer.transport.abort()

    async def nonsense(http: Any) -> None:
        for data in (b"\xff\x00{", b"[" * 5000, b'{"model": "tiny", "prompt": {"a": 1}}'):
            answer = await http.post("/v1/completions", content=data)
            told.append(("nonsense", answer.status_code))
            assert answer.json()["error"]["code"]

    async def too_much(http: Any) -> None:
        answer = await http.post("/v1/completions", content=b"x" * 9000)
        told.append(("too much", answer.status_code))

    kinds = (ask, stream, leave, ask, vanish, nonsense, stream, too_much)

    async def client(number: int, end: float, http: Any) -> None:
        turn = number
        while time.monotonic() < end:
            await kinds[turn % len(kinds)](http)
            turn += 1

    async def storm(url: str) -> None:
        end = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=url, timeout=90, limits=limits) as http:
            await asyncio.wait_for(
                asyncio.gather(*(client(number, end, http) for number in range(64))), seconds + 90
            )

    def turning() -> int:
        return sum(thread.name == "vkmnn-serve" for thread in threading.enumerate())

    before = turning()
    with served(models, Limits(queue=12, body_bytes=8000)) as server:
        asyncio.run(storm(server.url))
        assert server.idle()
        assert server.http.post("/v1/completions", json=text).json()["choices"][0]["text"] == want
    may = {"ask": {200, 503}, "stream": {200, 503}, "leave": {200, 503}, "nonsense": {400},
           "too much": {413}}  # fmt: skip
    for kind, statuses in may.items():
        seen = {status for one, status in told if one == kind}
        assert seen, kind
        assert seen <= statuses, (kind, seen)
    assert ("ask", 200) in told
    assert ("ask", 503) in told or ("stream", 503) in told
    assert turning() == before


def test_what_has_begun_is_finished_at_the_end(models: Models) -> None:
    answers: list[Any] = []
    with served(models) as server:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 60, "temperature": 0}

        def ask() -> None:
            answers.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=60))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        # If threads start slowly, the first may have its answer before the last starts.
        while server.metric("vkmnn_active") + len(answers) < 3:
            time.sleep(0.01)
    for thread in threads:
        thread.join(30)
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [60] * 3


def test_the_command_names_a_missing_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["serve", "no folder"]) == 1
    assert "no such file or folder" in capsys.readouterr().err
