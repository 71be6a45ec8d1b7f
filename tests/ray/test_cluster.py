"""Ray Data and Ray Serve on a local cluster of two nodes, with a device each."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.faces.conftest import dense_model
from tests.llm import tiny
from tests.pipelines.networks import classifier, stripes
from vkmnn import errors
from vkmnn.ray import RESOURCE, Predictor, deployment, node_resources, on_devices
from vkmnn.runtime.device import enumerate_devices

ray = pytest.importorskip("ray", reason="Ray is not installed: python3 tasks.py test-ray")
utils = pytest.importorskip("ray.cluster_utils")
pytestmark = [pytest.mark.slow, pytest.mark.ray]

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two nodes, with few processors and little memory, and a device each."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    before = dict(os.environ)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ.update(QUIET, PYTHONPATH=os.pathsep.join(filter(None, paths)))
    nodes = utils.Cluster()
    try:
        resources = {**node_resources(), RESOURCE: 1}
        for _ in range(2):
            nodes.add_node(num_cpus=3, object_store_memory=80 << 20, include_dashboard=False,
                           resources=resources)  # fmt: skip
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        yield
    finally:
        with contextlib.suppress(Exception):
            ray.serve.shutdown()
        ray.shutdown()
        nodes.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def dense(tmp_path: Path) -> str:
    onnx.save(dense_model(), tmp_path / "dense.onnx")
    return str(tmp_path / "dense.onnx")


def rows(count: int, blocks: int) -> Any:
    """Return a data set with a number and an input for each row."""
    made = ray.data.range(count, override_num_blocks=blocks)

    def with_inputs(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "x": batch["id"][:, None] * np.ones(4, np.float32) / 7}

    return made.map_batches(with_inputs, batch_size=None)


def check(table: dict[str, Any], count: int) -> None:
    """Every row is there once, in order, with its own result."""
    assert table["id"].tolist() == list(range(count))
    x = table["id"][:, None] * np.ones(4) / 7
    np.testing.assert_allclose(np.stack(table["y"]), x @ WEIGHTS + 1, atol=1e-3)


def whole(dataset: Any) -> dict[str, Any]:
    batches = list(dataset.iter_batches(batch_size=None, batch_format="numpy"))
    return {name: np.concatenate([one[name] for one in batches]) for name in batches[0]}


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_loses_and_repeats_nothing(tmp_path: Path, dense: str) -> None:
    killed, nodes = tmp_path / "killed", tmp_path / "nodes"
    nodes.mkdir()

    class Fragile(Predictor):
        """Dies in the middle, once; both nodes have to take part."""

        def __call__(self, batch: Any) -> Any:
            (nodes / ray.get_runtime_context().get_node_id()).touch()
            end = time.monotonic() + 60
            while len(list(nodes.iterdir())) < 2 and time.monotonic() < end:
                time.sleep(0.05)
            if batch["id"][0] >= 100 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(batch)

    made = rows(200, 10).map_batches(
        Fragile,
        fn_constructor_args=[dense],
        fn_constructor_kwargs={"outputs": ["y"]},
        batch_size=10,
        num_cpus=1,
        **on_devices(),
    )
    check(whole(made), 200)
    assert killed.exists()
    assert len(list(nodes.iterdir())) == 2


@pytest.mark.usefixtures("cluster")
def test_errors_and_tables_cross_processes(dense: str) -> None:
    made = rows(4, 1).map_batches(
        Predictor, fn_constructor_args=[dense], fn_constructor_kwargs={"inputs": "X"},
        num_cpus=1, **on_devices(1),
    )  # fmt: skip
    with pytest.raises(Exception, match=r"errors.InvalidInputError: there is no column 'X'"):
        made.take_all()
    actor = ray.remote(Predictor).options(num_cpus=1, resources={RESOURCE: 1}).remote(dense)
    with pytest.raises(errors.InvalidInputError, match="there is no column 'x'"):
        ray.get(actor.__call__.remote({"X": np.zeros((1, 4), np.float32)}))
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    block = ray.data.block.BlockAccessor.batch_to_arrow_block({"x": x, "id": np.arange(6)})
    table = ray.get(actor.__call__.remote(block))
    made = ray.data.block.BlockAccessor.for_block(table).to_numpy()
    assert table.column_names == ["x", "id", "y", "z"]
    np.testing.assert_allclose(made["y"], x @ WEIGHTS + 1)
    ray.kill(actor)
    actor = ray.remote(Predictor).options(num_cpus=1).remote(dense)
    with pytest.raises(ray.exceptions.RayActorError, match="given this process no Vulkan device"):
        ray.get(actor.__call__.remote({}))


@pytest.mark.usefixtures("cluster")
def test_the_examples_of_the_page_run(tmp_path: Path, dense: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    text = (ROOT / "docs" / "ray.md").read_text("utf-8")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        Image.fromarray(stripes(32, 40 + number)).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"none")
    here = {
        "ray.init(resources=vkmnn.ray.node_resources())\n": "",
        '"model.onnx"': repr(dense),
        '"classifier.onnx"': repr(str(classifier(tmp_path / "m.onnx"))),
        "s3://bucket/pictures": str(folder),
        "s3://bucket/labels": str(tmp_path / "labels"),
    }
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        for name, value in here.items():
            block = block.replace(name, value)
        exec(block, {})  # noqa: S102 - the page's own
    ray.serve.shutdown()
    rows = parquet.read_table(tmp_path / "labels").to_pylist()
    assert sorted(Path(row["path"]).name for row in rows) == [f"{one}.png" for one in range(4)]
    assert all((row["error"] is None) == (row["result"] is not None) for row in rows)
    assert sum(row["error"] is not None for row in rows) == 1


def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def post(where: int, path: str, body: bytes | dict[str, Any]) -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", where, timeout=60)
    link.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
    answer = link.getresponse()
    return answer.status, answer.read()


@pytest.mark.usefixtures("cluster")
def test_deployments_answer_and_stream(tmp_path: Path, dense: str) -> None:
    pytest.importorskip("tokenizers")
    serve, where = pytest.importorskip("ray.serve"), port()
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": where})
    half = {"ray_actor_options": {"num_cpus": 0.5, "resources": {RESOURCE: 0.5}}}
    network = serve.run(
        deployment(dense, wait_s=0.2, serve_options=half), name="net", route_prefix="/net"
    )
    picture = classifier(tmp_path / "m.onnx")
    serve.run(deployment(str(picture), "classify", serve_options=half), name="picture",
              route_prefix="/picture")  # fmt: skip
    folder = tiny.optimum_folder(tmp_path / "llm")
    text = serve.run(
        deployment(str(folder), "text-generation", serve_options=half),
        name="text", route_prefix="/text",
    )  # fmt: skip

    answers = [network.infer.remote({"x": [number, 0, 0, 0]}) for number in range(6)]
    for number, answer in enumerate(answers):
        np.testing.assert_allclose(answer.result()["y"], number * WEIGHTS[0] + 1)
    status, body = post(where, "/net", {"x": [[1, 2, 3, 4]], "b": 3})
    assert status == 200
    np.testing.assert_allclose(json.loads(body)["y"], [np.arange(1, 5) @ WEIGHTS + 1])
    status, body = post(where, "/net", {"X": [1]})
    assert status == 400
    assert json.loads(body)["error"]["type"] == "InvalidInputError"
    assert post(where, "/net", b"[")[0] == 400

    Image.fromarray(stripes(32, 40)).save(tmp_path / "p.png")
    status, body = post(where, "/picture", (tmp_path / "p.png").read_bytes())
    assert status == 200
    assert json.loads(body)[0]["score"] > 0
    assert post(where, "/picture", b"none")[0] == 400

    asked = {"prompt": "the quick brown", "max_tokens": 12}
    status, body = post(where, "/text", asked)
    want = json.loads(body)["text"]
    assert status == 200
    assert want
    status, body = post(where, "/text", {**asked, "stream": True})
    events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    assert len(events) > 2
    assert "".join(json.loads(one)["text"] for one in events) == want
    pieces = list(text.options(stream=True).stream.remote("the quick brown", max_tokens=12))
    assert "".join(pieces) == want
    for wrong in ({"prompt": "a", "temprature": 1}, {}, {"prompt": "a", "max_tokens": -1}):
        assert post(where, "/text", wrong)[0] == 400
