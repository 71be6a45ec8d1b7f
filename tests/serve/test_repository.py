"""A folder of models: configurations, versions, loading and unloading while requests arrive."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import httpx
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.llm import tiny
from tests.llm.served import Served, served, until
from vkmnn import InvalidInputError, ModelFileError
from vkmnn.serve import Batching, Models, Options, Repository, Running, Shelf
from vkmnn.serve.limits import HttpError
from vkmnn.serve.model_config import config_of, parse_text, read_config

OPTIONS: Options = {"precision": "high", "on_device_lost": "rebuild", "on_overflow": "warn"}


def multiplier(path: Path, factor: float, first: int | str = "n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    node = helper.make_node("Mul", ["x", "k"], ["y"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [first, 2]) for n in "xy")
    weights = [numpy_helper.from_array(np.float32([factor]), "k")]
    graph = helper.make_graph([node], "multiplier", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    scratch = path.with_suffix(".tmp")
    onnx.save(model, str(scratch))
    scratch.replace(path)
    return path


def repository(folder: Path, models: Models | None = None, **rules: Any) -> Repository:
    shelf = Shelf(folder, **rules)
    made = Repository(shelf, models or Models(), "cpu", Running(), OPTIONS)
    made.load_at_start()
    return made


@contextmanager
def serving(folder: Path, **rules: Any) -> Iterator[Served]:
    models = Models()
    try:
        with served(models, repository=repository(folder, models, **rules)) as server:
            yield server
    finally:
        models.close()


def infer(server: Served, model: str, value: float = 1.0) -> Any:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [value, value]}]
    return server.http.post(f"/v2/models/{model}/infer", json={"inputs": inputs})


def result(server: Served, model: str) -> float:
    answer = infer(server, model)
    assert answer.status_code == 200, answer.text
    return float(answer.json()["outputs"][0]["data"][0])


def control(server: Served, model: str, what: str, **body: Any) -> Any:
    return server.http.post(f"/v2/repository/models/{model}/{what}", json=body)


def test_versions_and_configurations(tmp_path: Path) -> None:
    for version in (1, 2, 10):
        multiplier(tmp_path / "several" / str(version) / "model.onnx", version)
    (tmp_path / "several" / "config.pbtxt").write_text(
        "version_policy { latest { num_versions: 2}}"
    )
    multiplier(tmp_path / "plain" / "anything.onnx", 5, first=1)
    (tmp_path / ".hidden").mkdir()
    with serving(tmp_path) as server:
        assert result(server, "several") == 10
        assert result(server, "several/versions/2") == 2
        assert infer(server, "several/versions/1").status_code == 404
        assert "2, 10" in infer(server, "several/versions/1").json()["error"]
        assert server.http.get("/v2/models/several").json()["versions"] == ["2", "10"]
        assert server.http.get("/v2/models/several/versions/2/ready").status_code == 200
        assert server.http.get("/v2/models/several/versions/1/ready").status_code == 404
        assert result(server, "plain") == 5
        told = server.http.get("/v2/models/plain/config").json()
        assert "fixed to 1" in told["parameters"]["batching"]["string_value"]
        assert told["max_batch_size"] == 0
        told = server.http.get("/v2/models/several/config").json()
        assert (told["max_batch_size"], told["input"][0]["dims"]) == (32, [2])
        index = server.http.post("/v2/repository/index").json()
        assert [(one["name"], one["version"]) for one in index] == [
            ("plain", "1"), ("several", "2"), ("several", "10"),
        ]  # fmt: skip
        refused = control(server, "plain", "unload")
        assert refused.status_code == 403
        assert "--model-control explicit" in refused.json()["error"]


def test_without_a_repository_its_routes_say_so(tmp_path: Path) -> None:
    with served(Models()) as server:
        for answer in (server.http.post("/v2/repository/index"), control(server, "m", "load")):
            assert answer.status_code == 403
            assert "--repository" in answer.json()["error"]


def test_models_are_loaded_and_unloaded_on_request(tmp_path: Path) -> None:
    multiplier(tmp_path / "m" / "1" / "model.onnx", 3)
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"nonsense")
    with serving(tmp_path, control="explicit") as server:
        assert server.http.get("/v2/models/m/ready").status_code == 404
        assert server.http.get("/v2/health/ready").status_code == 200
        assert control(server, "m", "load").status_code == 200
        assert result(server, "m") == 3
        assert control(server, "m", "load", parameters={"config": "{}"}).status_code == 400
        assert control(server, "nosuch", "load").status_code == 404
        assert control(server, "..%2Fm", "load").status_code == 404
        assert control(server, "broken", "load").status_code == 500
        (ready,) = server.http.post("/v2/repository/index", json={"ready": True}).json()
        assert ready["state"] == "READY"
        (broken,) = [
            one
            for one in server.http.post("/v2/repository/index").json()
            if one["name"] == "broken"
        ]
        assert broken["state"] == "UNAVAILABLE"
        assert broken["reason"]
        assert control(server, "m", "unload").status_code == 200
        assert infer(server, "m").status_code == 404
        assert control(server, "m", "unload").status_code == 404


def test_a_reload_loses_no_accepted_request(tmp_path: Path) -> None:
    path = multiplier(tmp_path / "m" / "1" / "model.onnx", 1)
    with serving(tmp_path, control="explicit") as server:
        control(server, "m", "load")
        results: list[float] = []
        failures: list[str] = []
        done = threading.Event()

        def ask() -> None:
            while not done.is_set():
                answer = infer(server, "m")
                if answer.status_code != 200:
                    failures.append(answer.text)
                else:
                    results.append(answer.json()["outputs"][0]["data"][0])

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for factor in range(2, 8):
            multiplier(path, factor)
            assert control(server, "m", "load").status_code == 200
            assert result(server, "m") == factor
        path.write_bytes(b"nonsense")  # the previous version stays
        assert control(server, "m", "load").status_code == 500
        assert result(server, "m") == 7
        done.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert set(results) <= set(range(1, 8))
    assert results


def test_polling_follows_the_folder(tmp_path: Path) -> None:
    path = multiplier(tmp_path / "m" / "model.onnx", 1)
    with serving(tmp_path, control="poll", poll_s=0.05) as server:
        assert result(server, "m") == 1
        multiplier(path, 4)
        until(lambda: result(server, "m") == 4)
        multiplier(tmp_path / "late" / "1" / "model.onnx", 6)
        until(lambda: infer(server, "late").status_code == 200)
        shutil.rmtree(tmp_path / "m")
        until(lambda: infer(server, "m").status_code == 404)
        path = tmp_path / "late" / "1" / "model.onnx"
        path.write_bytes(b"nonsense")
        until(lambda: server.http.post("/v2/repository/index").json()[0]["reason"])
        assert result(server, "late") == 6


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    outside = multiplier(tmp_path / "outside" / "model.onnx", 1)
    folder = tmp_path / "repository"
    (folder / "file" / "1").mkdir(parents=True)
    (folder / "file" / "1" / "model.onnx").symlink_to(outside)
    (folder / "whole").symlink_to(outside.parent)
    (folder / "version").mkdir()
    (folder / "version" / "1").symlink_to(outside.parent)
    (folder / "round" / "1").mkdir(parents=True)
    (folder / "round" / "1" / "model.onnx").symlink_to("model.onnx")
    for name in ("file", "whole", "version", "round"):
        with pytest.raises((ModelFileError, HttpError)):
            repository(folder, control="explicit")._opened(name)


def test_the_sum_of_the_models_is_limited(tmp_path: Path) -> None:
    size = multiplier(tmp_path / "a" / "model.onnx", 1).stat().st_size
    multiplier(tmp_path / "b" / "model.onnx", 2)
    with serving(tmp_path, control="explicit", most_bytes=size + 10) as server:
        assert control(server, "a", "load").status_code == 200
        refused = control(server, "b", "load")
        assert refused.status_code == 507
        assert "unload a model" in refused.json()["error"]
        assert control(server, "a", "unload").status_code == 200
        assert control(server, "b", "load").status_code == 200


def test_a_model_that_fails_at_the_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(Exception, match="'broken' of the repository"):
        repository(tmp_path)
    assert repository(tmp_path, control="poll").index()[0]["state"] == "UNAVAILABLE"
    with pytest.raises(InvalidInputError, match="not a folder"):
        repository(tmp_path / "none")


def test_names_of_the_command_line_cannot_be_replaced(tmp_path: Path) -> None:
    multiplier(tmp_path / "m" / "model.onnx", 1)
    models = Models()
    repository(tmp_path, models)
    try:
        with pytest.raises(HttpError, match="command line"):
            repository(tmp_path, models)
    finally:
        models.close()


# --- models of other kinds ------------------------------------------------------------------------


def ask(server: Served, **more: Any) -> Any:
    body = {"model": "chat", "prompt": "the quick", "max_tokens": 5, "temperature": 0, **more}
    return server.http.post("/v1/completions", json=body)


@pytest.fixture
def spoken(tmp_path: Path) -> Path:
    """A repository with a language model, an encoder and a network."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    (tmp_path / "chat").mkdir()
    tiny.optimum_folder(tmp_path / "chat" / "1")
    tiny.embedding_folder(tmp_path / "vectors")
    multiplier(tmp_path / "net" / "1" / "model.onnx", 3)
    return tmp_path


def test_language_models_are_loaded_and_unloaded(spoken: Path) -> None:
    (spoken / "chat" / "config.pbtxt").write_text("instance_group { kind: KIND_CPU }")
    with serving(spoken, control="explicit") as server:
        assert ask(server).status_code == 404
        for name in ("chat", "vectors", "net"):
            assert control(server, name, "load").status_code == 200
        index = server.http.post("/v2/repository/index").json()
        assert [(one["name"], one["state"]) for one in index] == [
            ("chat", "READY"), ("net", "READY"), ("vectors", "READY"),
        ]  # fmt: skip
        text = ask(server).json()["choices"][0]["text"]
        vectors = server.http.post("/v1/embeddings", json={"input": "a"}).json()["data"]
        assert len(vectors[0]["embedding"]) == 12
        assert result(server, "net") == 3
        assert server.http.get("/v2/models/chat/ready").status_code == 200
        assert "/v1/models" in infer(server, "chat").json()["error"]
        listed = server.http.get("/v1/models").json()["data"]
        assert {one["id"] for one in listed} == {"chat", "vectors"}
        tiny.optimum_folder(spoken / "chat" / "2", seed=7)
        assert control(server, "chat", "load").status_code == 200
        assert ask(server).json()["choices"][0]["text"] != text
        assert control(server, "chat", "unload").status_code == 200
        assert ask(server).status_code == 404
        assert server.http.get("/v2/models/chat/ready").status_code == 404


@pytest.mark.parametrize("leaves", [False, True])
def test_a_text_ends_before_its_model_is_unloaded(
    leaves: bool, spoken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model stays open for a text, and for the last step of one that nobody waits for."""
    from vkmnn.llm import LanguageModel

    begun, unloaded, go = (threading.Event() for _ in range(3))
    events: list[str] = []
    pieces, close = LanguageModel.pieces, LanguageModel.close

    def held(self: Any, *given: Any, **how: Any) -> Any:
        for one in pieces(self, *given, **how):
            begun.set()
            assert go.wait(60)
            yield one
        events.append("ended")

    def closed(self: Any) -> None:
        events.append("closed")
        close(self)

    monkeypatch.setattr(LanguageModel, "pieces", held)
    monkeypatch.setattr(LanguageModel, "close", closed)
    with serving(spoken, control="explicit") as server:
        assert control(server, "chat", "load").status_code == 200
        statuses: list[int] = []

        def get() -> None:
            body = {"model": "chat", "prompt": "the quick", "max_tokens": 5}
            if leaves:
                with server.waiting_client("/v1/completions", body):
                    assert unloaded.wait(60)
                statuses.append(0)
            else:
                answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
                statuses.append(answer.status_code)

        thread = threading.Thread(target=get)
        thread.start()
        assert begun.wait(60)
        assert control(server, "chat", "unload").status_code == 200
        unloaded.set()
        if leaves:
            thread.join(60)
        time.sleep(0.8)  # a model that is closed too early is closed soon
        assert events == []
        go.set()
        thread.join(60)
        assert statuses == [0 if leaves else 200]
        until(lambda: "closed" in events)
    assert events == (["closed"] if leaves else ["ended", "closed"])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("instance_group { count: 2 }", "several instances"),
        ("instance_group { gpus: [0, 1] }", "several instances"),
        ("version_policy { all { } }", "one version of it"),
    ],
)
def test_what_language_models_cannot_do(config: str, reason: str, spoken: Path) -> None:
    tiny.optimum_folder(spoken / "chat" / "2")
    (spoken / "chat" / "config.pbtxt").write_text(config)
    with serving(spoken, control="explicit") as server:
        refused = control(server, "chat", "load")
        assert (refused.status_code, reason in refused.json()["error"]) == (400, True), refused.text


CONFIG = """
# a comment
name: "m"
platform: 'onnxruntime_onnx'
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32, dims: [ 2 ] } ]
output { name: "y" data_type: TYPE_FP32 dims: 2 label_filename: "names.txt" }
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching < preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 500
  default_queue_policy { default_timeout_microseconds: 20000000 max_queue_size: 7 } >
optimization { priority: PRIORITY_MAX }
default_model_filename: "net.onnx"
"""


def test_tritons_configuration_is_understood(tmp_path: Path) -> None:
    made = config_of(parse_text(CONFIG), "m", Batching())
    assert made.batching == Batching(16, (4, 8), 0.0005, 16)
    assert (made.devices, made.instances, made.queue, made.timeout_s) == (("cpu",), 2, 7, 20.0)
    assert (made.file, made.ignored) == ("net.onnx", ("optimization",))
    folder = tmp_path / "m"
    multiplier(folder / "1" / "net.onnx", 2)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "names.txt").write_text("cat\ndog\n")
    with serving(tmp_path) as server:
        inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 3]}]
        asked = {"name": "y", "parameters": {"classification": 1}}
        body = {"inputs": inputs, "outputs": [asked]}
        answer = server.http.post("/v2/models/m/infer", json=body).json()
        assert answer["outputs"][0]["data"] == ["6.000000:1:dog"]
        told = server.http.get("/v2/models/m/config").json()
        assert told["instance_group"][0]["count"] == 2
        assert told["parameters"]["ignored_fields"]["string_value"] == "optimization"
        inputs[0] |= {"shape": [17, 2], "data": [0] * 34}
        refused = server.http.post("/v2/models/m/infer", json={"inputs": inputs})
        assert refused.status_code == 400
        assert "16 rows at most" in refused.json()["error"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('name: "other"', "the folder is 'm'"),
        ("sequence_batching {}", "not supported"),
        ("max_batch_size: -1", "number from 0"),
        ("dynamic_batching { preferred_batch_size: 99 } max_batch_size: 8", "preferred"),
        ('default_model_filename: "../x.onnx"', "not the name of a file"),
        ("instance_group { count: 100000 }", "from 1 to 64"),
        ("input: 3", "list of objects"),
        ("input { name: ", "cannot be read"),
        ("a { b: [1, ", "cannot be read"),
        ("a: {" * 5000, "cannot be read"),
        ("a: [" * 5000, "cannot be read"),
        ("}", "cannot be read"),
        ("a: \x00", "cannot be read"),
    ],
)
def test_wrong_configurations_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.pbtxt").write_text(text)
    with pytest.raises(InvalidInputError, match=reason):
        read_config(folder, Batching())


def test_a_configuration_as_json_and_a_wrong_shape(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    multiplier(folder / "model.onnx", 2)
    fields = {"max_batch_size": 4, "input": [{"name": "x", "dims": [2, 2]}]}
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(InvalidInputError, match="2 dimensions, but the network has 1"):
        repository(tmp_path)
    fields["input"] = [{"name": "z", "dims": [2]}]
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(InvalidInputError, match="which the network lacks"):
        repository(tmp_path)
    (folder / "config.json").unlink()
    models = Models()
    repository(tmp_path, models)
    models.close()
