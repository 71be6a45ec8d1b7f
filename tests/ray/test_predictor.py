"""Actors of Ray without Ray: batches in and out, devices of nodes, errors that travel."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import vkmnn
from tests.faces.conftest import dense_model
from tests.pipelines.networks import classifier, stripes
from vkmnn import errors
from vkmnn.ray import RESOURCE, Predictor, devices, node_resources, on_devices, serving
from vkmnn.runtime.device_info import DeviceType

CPU, CARD, SHARED = DeviceType.CPU, DeviceType.DISCRETE, DeviceType.INTEGRATED


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    onnx.save(dense_model(), tmp_path / "dense.onnx")
    return tmp_path / "dense.onnx"


def sums(path: Path, rows: Any, sizes: Any = ("N", "M")) -> Path:
    """Save total = a + b, product = a * b, with a and b [rows, 2]; and m rows of their own."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, sizes]) for n in "ab"]
    nodes = [helper.make_node("Add", ["a", "b"], ["total"]),
             helper.make_node("Mul", ["a", "b"], ["product"])]  # fmt: skip
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("total", "product")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "sums", infos, outs)), path)
    return path


def values(count: int) -> Any:
    return np.random.default_rng(0).standard_normal((count, 4)).astype(np.float32)


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_columns_in_and_out(dense: Path, device: str) -> None:
    x = values(11)
    with Predictor(dense, inputs="features", outputs={"y": "score"}, batch=4, device=device) as one:
        made = one({"features": x.astype(np.float64), "id": np.arange(11)})
    assert list(made) == ["features", "id", "score"]
    np.testing.assert_array_equal(made["id"], np.arange(11))
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    np.testing.assert_allclose(made["score"], x @ weights + 1, atol=1e-4)


def test_rows_of_lists_are_the_same_as_arrays(dense: Path) -> None:
    x = values(5)
    rows = np.empty(5, object)
    rows[:] = list(x)
    with Predictor(dense, device="cpu", keep=[]) as one:
        want, got = one({"x": x}), one({"x": rows})
    assert list(want) == list(got) == ["y", "z"]
    for name in want:
        np.testing.assert_allclose(got[name], want[name], atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_networks_of_a_fixed_batch_run_row_by_row(tmp_path: Path, rows: int) -> None:
    path = sums(tmp_path / "m.onnx", rows, 2)
    shape = (4, 2) if rows == 1 else (4, 3, 2)
    left, right = np.arange(np.prod(shape) * 2, dtype=np.float32).reshape(2, *shape)
    with Predictor(path, inputs={"a": "l", "b": "r"}, outputs=["product"], device="cpu") as one:
        made = one({"l": left, "r": right})
    np.testing.assert_allclose(made["product"], left * right)


def test_rows_of_different_sizes(tmp_path: Path) -> None:
    path = sums(tmp_path / "m.onnx", "N", "M")
    left = np.empty(3, object)
    left[:] = [np.ones(size, np.float32) for size in (2, 3, 2)]
    with Predictor(path, outputs=["total"], keep=[], device="cpu") as one:
        made = one({"a": left, "b": left})["total"]
    assert [row.tolist() for row in made] == [[2, 2], [2, 2, 2], [2, 2]]


def test_rows_that_fail_are_raised_or_kept(dense: Path) -> None:
    rows = np.empty(3, object)
    rows[:] = [values(1)[0], np.ones(5, np.float32), values(1)[0]]
    with Predictor(dense, device="cpu") as one, pytest.raises(errors.InvalidInputError):
        one({"x": rows})
    with Predictor(dense, device="cpu", on_error="keep", outputs=["y"]) as one:
        made = one({"x": rows})
        assert one({"x": values(2)})["error"].tolist() == [None, None]
    assert made["y"][1] is None
    assert made["y"][0].shape == (3,)
    assert [text is None for text in made["error"]] == [True, False, True]


def test_pictures_of_all_kinds(tmp_path: Path) -> None:
    path = classifier(tmp_path / "m.onnx")
    pixels = [stripes(32 + number, 40) for number in range(3)]
    Image.fromarray(pixels[0]).save(tmp_path / "0.png")
    column = np.empty(4, object)
    column[:] = [str(tmp_path / "0.png"), (tmp_path / "0.png").read_bytes(), pixels[0], b"none"]
    given: dict[str, Any] = {"inputs": "file", "keep": [], "on_error": "keep", "tell": print}
    with Predictor(path, "classify", device="cpu", **given) as one:
        made = one({"file": column})
    said = [text and json.loads(text) for text in made["result"]]
    assert said[0] == said[1] == said[2]
    assert said[0][0]["label"]
    assert said[3] is None
    assert "cannot be read" in made["error"][3]


def test_a_picture_that_fails_is_raised(tmp_path: Path) -> None:
    with (
        Predictor(classifier(tmp_path / "m.onnx"), "classify", device="cpu", tell=print) as one,
        pytest.raises(errors.InvalidInputError, match="cannot be read"),
    ):
        one({"image": np.array([b"none"], object)})


def test_columns_of_tables(dense: Path) -> None:
    """What Arrow's columns become: arrays, however they are stored and divided."""
    arrow = pytest.importorskip("pyarrow")
    from vkmnn.ray import predictor

    x = values(6)
    fixed = arrow.FixedShapeTensorArray.from_numpy_ndarray(x)
    table = arrow.table({"fixed": fixed, "list": list(x), "n": range(6), "text": ["a"] * 6})
    table = arrow.concat_tables([table, table])
    made = predictor._columns(table)
    np.testing.assert_array_equal(made["fixed"], np.concatenate([x, x]))
    np.testing.assert_array_equal(np.stack(made["list"]), np.concatenate([x, x]))
    assert made["n"].tolist() == [*range(6)] * 2
    assert made["text"].tolist() == ["a"] * 12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"inputs": {"nope": "c"}}, "there is no input 'nope'"),
        ({"outputs": ["nope"]}, "there is no output 'nope'"),
        ({"outputs": "y"}, "are lists"),
        ({"on_error": "hide"}, "not known"),
        ({"batch": 0}, "batch=0"),
        ({"task": "classify", "inputs": {"x": "c"}}, "one column"),
    ],
)
def test_bad_arguments(tmp_path: Path, dense: Path, arguments: dict[str, Any], words: str) -> None:
    model = classifier(tmp_path / "m.onnx") if "task" in arguments else dense
    with pytest.raises(errors.InvalidInputError, match=words):
        Predictor(model, device="cpu", **arguments)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"X": values(2)}, "(?s)there is no column 'x'.*mean X"),
        ([1, 2], "not list"),
        ({"x": np.array(["a", "b"])}, "no array"),
    ],
)
def test_bad_batches(dense: Path, batch: Any, words: str) -> None:
    with (
        Predictor(dense, device="cpu") as one,
        pytest.raises(errors.InvalidInputError, match=words),
    ):
        one(batch)


# --- devices --------------------------------------------------------------------------------------


def machine(monkeypatch: pytest.MonkeyPatch, *types: DeviceType) -> None:
    infos = [SimpleNamespace(index=n, type=one) for n, one in enumerate(types)]
    monkeypatch.setattr(devices, "enumerate_devices", lambda driver: infos)


def cluster(
    monkeypatch: pytest.MonkeyPatch, folder: Path, assigned: float = 1, total: float = 2
) -> None:
    """Let `import ray` find a node with devices."""
    context = SimpleNamespace(
        get_assigned_resources=lambda: {RESOURCE: assigned}, get_node_id=lambda: "n1"
    )
    nodes = [{"NodeID": "n0", "Resources": {}}, {"NodeID": "n1", "Resources": {RESOURCE: total}}]
    fake = SimpleNamespace(
        is_initialized=lambda: True,
        get_runtime_context=lambda: context,
        nodes=lambda: nodes,
        cluster_resources=lambda: {RESOURCE: total} if total else {},
        data=SimpleNamespace(ActorPoolStrategy=lambda size: ("pool", size)),
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.data", fake.data)
    monkeypatch.setattr(devices.tempfile, "gettempdir", lambda: str(folder))


def test_devices_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, CPU, CARD, SHARED)
    assert node_resources() == {RESOURCE: 2.0}
    assert node_resources(software=True) == {RESOURCE: 3.0}
    machine(monkeypatch, CPU, CPU)
    assert node_resources() == {RESOURCE: 1.0}
    machine(monkeypatch)
    with pytest.raises(errors.DeviceNotFoundError):
        node_resources()


def test_actors_take_a_device_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch, CPU, CARD, SHARED)
    cluster(monkeypatch, tmp_path)
    first, second = devices.AssignedDevice(), devices.AssignedDevice()
    assert (first.device, second.device) == (1, 2)
    first.close()
    with devices.AssignedDevice() as again, devices.AssignedDevice() as shared:
        assert again.device == 1
        assert shared.device == 1  # more actors than devices: where the fewest are
    second.close()
    cluster(monkeypatch, tmp_path, total=3)  # the software device was asked for
    taken = [devices.AssignedDevice() for _ in range(3)]
    assert [one.device for one in taken] == [1, 2, 0]
    for one in taken:
        one.close()


def test_a_killed_actor_gives_its_device_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine(monkeypatch, CARD, CARD)
    cluster(monkeypatch, tmp_path)
    folder = tmp_path / f"vkmnn-ray-{devices._user()}" / "n1"
    code = (
        "import sys; from contextlib import ExitStack; from pathlib import Path\n"
        "from vkmnn.ray import devices; held = ExitStack()\n"
        "print(devices._claimed(Path(sys.argv[1]), [0, 1], held), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"0"
        with devices.AssignedDevice() as one:
            assert one.device == 1
        other.kill()
        other.wait()
    with devices.AssignedDevice() as one:
        assert one.device == 0


def test_actors_without_a_device_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dense: Path
) -> None:
    machine(monkeypatch, CARD)
    cluster(monkeypatch, tmp_path, assigned=0)
    with pytest.raises(errors.DeviceNotFoundError, match="resources="):
        Predictor(dense)


def test_a_model_that_fails_gives_its_device_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine(monkeypatch, CARD)
    cluster(monkeypatch, tmp_path, total=1)
    for _ in range(2):
        with pytest.raises(errors.ModelFileError):
            Predictor(tmp_path / "none.onnx")
    with devices.AssignedDevice():
        names = {path.name for path in tmp_path.rglob("device-*")}
    assert names == {"device-0.0"}


def test_arguments_of_map_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster(monkeypatch, tmp_path, total=3)
    assert on_devices() == {"resources": {RESOURCE: 1.0}, "compute": ("pool", 3)}
    assert on_devices(share=0.5)["compute"] == ("pool", 6)
    assert on_devices(2)["compute"] == ("pool", 2)
    with pytest.raises(errors.InvalidInputError, match="share"):
        on_devices(share=0)
    cluster(monkeypatch, tmp_path, total=0)
    with pytest.raises(errors.DeviceNotFoundError, match="ray start"):
        on_devices()


# --- deployments ----------------------------------------------------------------------------------


def batching(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let `ray.serve.batch` join what is called at the same time; return the sizes of its runs."""
    sizes: list[int] = []

    def batch(max_batch_size: int, batch_wait_timeout_s: float) -> Any:
        def decorated(together: Any) -> Any:
            waiting: list[tuple[Any, asyncio.Future[Any]]] = []

            async def one(row: Any) -> Any:
                future = asyncio.get_running_loop().create_future()
                waiting.append((row, future))
                await asyncio.sleep(batch_wait_timeout_s)
                if waiting:
                    group, waiting[:] = waiting[:max_batch_size], waiting[max_batch_size:]
                    sizes.append(len(group))
                    made = await together([value for value, _ in group])
                    for (_, other), outcome in zip(group, made, strict=True):
                        other.set_result(outcome)
                return await future

            return one

        return decorated

    monkeypatch.setitem(sys.modules, "ray.serve", SimpleNamespace(batch=batch))
    return sizes


def test_requests_share_runs_and_fail_alone(monkeypatch: pytest.MonkeyPatch, dense: Path) -> None:
    sizes = batching(monkeypatch)
    replica = serving.RowReplica(dense, None, (4, 0.01), "cpu", {})
    x = values(6)

    async def ask() -> list[Any]:
        rows: list[Any] = [{"x": one} for one in x]
        rows[2] = {"x": [1.0]}
        asked = [replica.infer(row) for row in rows]
        return await asyncio.gather(*asked, replica.infer([1]), return_exceptions=True)

    made = asyncio.run(ask())
    assert sizes == [4, 2]
    assert isinstance(made[2], errors.InvalidInputError)
    assert isinstance(made[6], errors.InvalidInputError)
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    for number in (0, 1, 3, 4, 5):
        np.testing.assert_allclose(made[number]["y"], x[number] @ weights + 1, atol=1e-4)
    replica.check_health()
    monkeypatch.setattr(type(replica._model), "lost", True)
    with pytest.raises(errors.DeviceLostError):
        replica.check_health()


def test_options_of_deployments(monkeypatch: pytest.MonkeyPatch) -> None:
    def deployed(**options: Any) -> Any:
        return lambda kind: SimpleNamespace(bind=lambda *args: (kind, options, args))

    monkeypatch.setitem(sys.modules, "ray.serve", SimpleNamespace(deployment=deployed))
    actor = {"ray_actor_options": {"num_cpus": 2}, "num_replicas": 3}
    kind, options, _ = vkmnn.ray.deployment("m.onnx", batch=8, serve_options=actor)
    assert kind is serving.RowReplica
    assert options["ray_actor_options"] == {"num_cpus": 2, "resources": {RESOURCE: 1}}
    assert options["num_replicas"] == 3
    assert options["max_ongoing_requests"] == 16
    kind, options, _ = vkmnn.ray.deployment("folder", "text-generation", device="cpu")
    assert kind is serving.TextReplica
    assert "ray_actor_options" not in options
    with pytest.raises(errors.InvalidInputError):
        vkmnn.ray.deployment("m.onnx", wait_s=-1)


# --- imports and errors ---------------------------------------------------------------------------


def test_the_package_does_not_hide_ray(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("mark = 7\n")
    code = (
        "import sys, vkmnn\n"
        "assert 'vkmnn.ray' not in sys.modules\n"
        "vkmnn.ray.Predictor\n"
        "assert 'ray' not in sys.modules\n"
        "from vkmnn.base.extras import need\n"
        "import ray; assert ray.mark == need('ray', '').mark == 7 and ray is not vkmnn.ray\n"
    )
    root = str(Path(vkmnn.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{code}"],
        cwd=tmp_path, check=True,
    )  # fmt: skip


def test_without_ray(monkeypatch: pytest.MonkeyPatch, dense: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    for call in (on_devices, lambda: Predictor(dense), lambda: vkmnn.ray.deployment(dense)):
        with pytest.raises(errors.MissingExtraError, match=r"vkmnn\[ray\]"):
            call()


def test_every_error_can_be_pickled() -> None:
    """Actors send them to the driver."""
    node = errors.UnsupportedNode("Conv", "", 13, "n", "no kernel")
    made = [
        errors.UnsupportedOpError([node]),
        errors.DeviceLimitError("too large", "max_size", op="Conv"),
        errors.Float16OverflowError("overflow", frozenset({"a"}), node="n"),
        errors.ShaderError("wrong", template="t", line=3, hint="h"),
        errors.MissingExtraError("missing", hint="pip"),
        errors.InvalidInputError("bad", op="Conv", node="n", hint="h"),
    ]
    for error in made:
        again = copy.copy(error)  # by the same protocol
        assert type(again) is type(error)
        assert (str(again), vars(again), again.args) == (str(error), vars(error), error.args)
