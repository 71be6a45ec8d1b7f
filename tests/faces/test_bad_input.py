"""Bad models, bad arrays and bad arguments: a typed error with a hint, and the session lives on."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
import vkmnn.onnxruntime as ort
from vkmnn import llm
from vkmnn.arguments import check_array
from vkmnn.base.closing import OneProcess
from vkmnn.batch import SessionPool
from vkmnn.errors import (
    ConversionError,
    DeviceNotFoundError,
    InvalidInputError,
    ModelError,
    OutOfHostMemoryError,
    PlacementError,
    ShapeError,
    UnsupportedOpError,
    VkmnnError,
)
from vkmnn.ir import DType, TensorInfo
from vkmnn.llm.language_model import TextSession
from vkmnn.onnxruntime.errors import OnnxruntimeError
from vkmnn.pipelines.base import Pipeline

TABLE = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
WEIGHT = np.linspace(1, -2, 12, dtype=np.float32).reshape(3, 4)


def make_model(nodes: list[onnx.NodeProto] | None = None) -> onnx.ModelProto:
    """y = relu(x · WEIGHT) + TABLE[ids], z = count + count; N is symbolic."""
    graph = helper.make_graph(
        nodes
        if nodes is not None
        else [
            helper.make_node("MatMul", ["x", "weight"], ["product"], name="product"),
            helper.make_node("Relu", ["product"], ["positive"], name="rectify"),
            helper.make_node("Gather", ["table", "ids"], ["rows"], name="look_up"),
            helper.make_node("Add", ["positive", "rows"], ["y"], name="add"),
            helper.make_node("Add", ["count", "count"], ["z"], name="double"),
        ],
        "small",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"]),
            helper.make_tensor_value_info("count", TensorProto.INT64, [2]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("z", TensorProto.INT64, [2]),
        ],
        [numpy_helper.from_array(WEIGHT, "weight"), numpy_helper.from_array(TABLE, "table")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def good_feeds(count: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {
        "x": rng.standard_normal((count, 3)).astype(np.float32),
        "ids": rng.integers(-5, 5, count),
        "count": np.array([-3, 2**30 - 1], np.int64),
    }


def check_works(session: vkmnn.InferenceSession, count: int = 7) -> None:
    feeds = good_feeds(count)
    y, z = session.run(None, feeds)
    np.testing.assert_allclose(
        y, np.maximum(feeds["x"] @ WEIGHT, 0) + TABLE[feeds["ids"]], rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(z, feeds["count"] * 2)


@pytest.fixture(params=["vulkan", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "vulkan" and not vkmnn.devices():
        pytest.skip("no Vulkan device")
    return "0" if request.param == "vulkan" else "cpu"


@pytest.fixture
def session(device: str) -> Iterator[vkmnn.InferenceSession]:
    with vkmnn.InferenceSession(make_model(), device=device) as opened:
        check_works(opened)
        yield opened
        check_works(opened)  # whatever the test did
        check_works(opened, count=11)


def refuse(kind: type[VkmnnError], call: Callable[[], object], *words: str) -> VkmnnError:
    """The call must fail with this error, with a hint and these words in its text."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "hint: " in text, text
    for word in words:
        assert word in text, text
    return caught.value


# --- models ------------------------------------------------------------------------------------


def test_no_such_file(device: str, tmp_path: Path) -> None:
    path = tmp_path / "none.onnx"
    refuse(ModelError, lambda: vkmnn.InferenceSession(path, device), "no such file", "none.onnx")


@pytest.mark.parametrize("content", [b"", b"\0", b"no model at all\n", bytes(range(256))])
def test_file_that_is_no_model(device: str, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    refuse(ModelError, lambda: vkmnn.InferenceSession(path, device))


UNREADABLE = ("a" * 300, "nul\0byte")


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("suffix", [".onnx", ".vkmnn", ".mnn"])
def test_names_that_no_file_can_have(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / (name + suffix)
    calls: list[Callable[[], object]] = [
        lambda: vkmnn.InferenceSession(path, "cpu"),
        lambda: vkmnn.Interpreter.from_file(path),
        lambda: llm.load(path),
        lambda: vkmnn.convert(make_model(), path.with_suffix(".vkmnn")),
    ]
    for call in calls:
        refuse(VkmnnError, call)
    with pytest.raises(OnnxruntimeError, match=r"cannot be read|is unread|exist"):
        ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_truncated_file(device: str, tmp_path: Path) -> None:
    data = make_model().SerializeToString()
    path = tmp_path / "cut.onnx"
    for size in (1, 17, len(data) // 3, len(data) // 2, len(data) - 40, len(data) - 3):
        path.write_bytes(data[:size])
        refuse(VkmnnError, lambda: vkmnn.InferenceSession(path, device))


def test_random_bytes(device: str) -> None:
    generator = random.Random(11)
    for _ in range(50):
        data = generator.randbytes(generator.randrange(1, 300))
        refuse(VkmnnError, lambda data=data: vkmnn.InferenceSession(data, device))


def test_damaged_bytes_never_raise_anything_else(device: str) -> None:
    data = make_model().SerializeToString()
    generator = random.Random(13)
    for _ in range(60):
        damaged = bytearray(data)
        damaged[generator.randrange(len(data))] = generator.randrange(256)
        try:
            with vkmnn.InferenceSession(bytes(damaged), device) as opened:
                opened.run(None, good_feeds())
        except VkmnnError:
            pass


def test_node_with_a_missing_input(device: str) -> None:
    nodes = [helper.make_node("Relu", ["nothing"], ["y"], name="lonely")]
    refuse(ModelError, lambda: vkmnn.InferenceSession(make_model(nodes), device), "nothing")


def test_node_without_a_required_input(device: str) -> None:
    nodes = [helper.make_node("MatMul", ["x"], ["y"], name="lonely")]
    refuse(VkmnnError, lambda: vkmnn.InferenceSession(make_model(nodes), device), "lonely")


def test_a_constant_of_too_many_axes(device: str) -> None:
    many = helper.make_tensor("weight", TensorProto.FLOAT, [1] * 74, [1.0])
    model = make_model()
    model.graph.initializer[0].CopyFrom(many)
    refuse(ModelError, lambda: vkmnn.InferenceSession(model, device), "'weight' has 74 axes")
    del model.graph.initializer[0]
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("weight", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("places", TensorProto.INT64, [1], [0]),
        [1] * 74,
    )
    model.graph.sparse_initializer.append(sparse)
    refuse(ModelError, lambda: vkmnn.InferenceSession(model, device), "'weight' has 74 axes")


def test_cycle(device: str) -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["y"], name="third"),
    ]
    refuse(ModelError, lambda: vkmnn.InferenceSession(make_model(nodes), device), "cycle")


def test_unknown_operators_are_all_listed(device: str) -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="one"),
        helper.make_node("RandomNormalLike", ["x"], ["b"], name="two"),
        helper.make_node("Relu", ["x"], ["y"], name="fine"),
    ]
    model = make_model(nodes)
    model.graph.output.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, None))
    model.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, None))
    error = refuse(
        UnsupportedOpError,
        lambda: vkmnn.InferenceSession(model, device, unsupported="raise"),
        *("Frobnicate", "one", "RandomNormalLike", "two"),
    )
    assert isinstance(error, ConversionError)
    assert [node.node for node in getattr(error, "nodes", ())] == ["one", "two"]
    error = refuse(
        UnsupportedOpError,
        lambda: vkmnn.InferenceSession(model, device),
        *("Frobnicate", "one", "onnxruntime"),
    )
    assert [node.node for node in getattr(error, "nodes", ())] == ["one"]


def test_shapes_that_never_fit(device: str) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "table"], ["y"], name="misfit"),  # [N, 3] · [5, 4]
        helper.make_node("Add", ["count", "count"], ["z"], name="double"),
    ]

    def load_and_run() -> None:
        with vkmnn.InferenceSession(make_model(nodes), device) as opened:
            opened.run(None, good_feeds())

    error = refuse(VkmnnError, load_and_run, "misfit")
    assert isinstance(error, (ShapeError, ModelError))


# --- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no such card", "97", 97, -1, ""])
def test_unknown_device(name: str | int) -> None:
    refuse(DeviceNotFoundError, lambda: vkmnn.InferenceSession(make_model(), name))


def test_unknown_device_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_DEVICE", "no such card")
    refuse(DeviceNotFoundError, lambda: vkmnn.InferenceSession(make_model()), "no such card")


def test_cpu_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_DEVICE", "cpu")
    with vkmnn.InferenceSession(make_model()) as opened:
        check_works(opened)
        assert opened.placement().main == "CPU"


def test_unknown_driver() -> None:
    model = make_model()
    refuse(InvalidInputError, lambda: vkmnn.InferenceSession(model, driver="metal"), "metal")


def test_unknown_precision(device: str) -> None:
    model = make_model()
    refuse(
        InvalidInputError,
        lambda: vkmnn.InferenceSession(model, device, precision="huge"),
        "precision",
    )


def test_names_of_precisions(device: str) -> None:
    for name, meant in (("fp32", "high"), ("float32", "high"), ("high", "high")):
        with vkmnn.InferenceSession(make_model(), device, precision=name) as opened:
            assert opened.precision == meant
    for name, meant in (("fp16", "normal"), ("float16", "normal"), ("low", "low")):
        with vkmnn.InferenceSession(make_model(), "cpu", precision=name) as opened:
            assert opened.precision == meant


def test_all_outputs_by_an_empty_list(session: vkmnn.InferenceSession) -> None:
    assert len(session.run([], good_feeds())) == len(session.get_outputs())


def test_outputs_by_a_text(session: vkmnn.InferenceSession) -> None:
    refuse(InvalidInputError, lambda: session.run("y", good_feeds()), "['y']")  # type: ignore[arg-type]


@pytest.mark.parametrize("feeds", [np.zeros((7, 3), np.float32), None, [1], "x"])
def test_feeds_that_are_no_dictionary(session: vkmnn.InferenceSession, feeds: object) -> None:
    refuse(InvalidInputError, lambda: session.run(None, feeds), "{'x': array}")  # type: ignore[arg-type]


def test_arguments_of_other_types(session: vkmnn.InferenceSession) -> None:
    odd: Any = session
    refuse(InvalidInputError, lambda: odd.run(3, good_feeds()), "list of names")
    refuse(InvalidInputError, lambda: odd.prepare({"x": (1, 3)}), "for each plan")
    refuse(InvalidInputError, lambda: odd.prepare([("x", (1, 3))]), "for each plan")
    for method in (odd.run, odd.run_on_device):
        refuse(
            InvalidInputError, lambda method=method: method(good_feeds()), "(None, {'x': array})"
        )
    refuse(InvalidInputError, lambda: odd.state(["x"]), "dictionary")


def test_objects_of_devices_are_not_copied(session: vkmnn.InferenceSession) -> None:
    with vkmnn.load(make_model(), "cpu") as model:
        for one in (session, model, session.upload(good_feeds()["x"])):
            for copied in (copy.copy, copy.deepcopy, ForkingPickler.dumps):
                refuse(InvalidInputError, lambda c=copied, o=one: c(o), "copied nor pickled")
    for kind in (Pipeline, SessionPool, llm.LanguageModel, TextSession, vkmnn.Interpreter):
        assert issubclass(kind, OneProcess)


@pytest.mark.parametrize("limits", [{"bytes": -1}, {"nodes": None}, {"seconds": np.nan}])
def test_limits_that_are_none(limits: dict[str, Any]) -> None:
    refuse(InvalidInputError, lambda: vkmnn.Budget(**limits), next(iter(limits)))


def test_a_view_that_is_too_large_to_copy(session: vkmnn.InferenceSession) -> None:
    feeds = {**good_feeds(), "x": np.broadcast_to(np.float32(1), (2**40, 3))}
    refuse(OutOfHostMemoryError, lambda: session.run(None, feeds), "'x'")


@pytest.mark.parametrize(
    ("declared", "given", "said"),
    [
        (["N", 3, 8, 8], (2, 8, 8, 3), "this looks like NHWC: x.transpose(0, 3, 1, 2)"),
        (["N", 8, 8, 3], (2, 3, 8, 8), "this looks like NCHW: x.transpose(0, 2, 3, 1)"),
        (["N", 3, 8], (2, 8, 3), "another order: x.transpose(0, 2, 1)"),
        (["N", 3, 8, 8], (2, 5, 8, 8), "dynamic axes"),
        ([1, 3, 8, 8], (8, 8, 3), "channels stand last: x.transpose(2, 0, 1)[None]"),
        ([1, 3, 8, 8], (3, 8, 8), "the batch axis is missing: x[None]"),
        ([1, 8, 8, 3], (8, 8, 3), "the batch axis is missing: x[None]"),
        ([1, 3, 8, 8], (9, 7, 3), "resize the image to 8 x 8, then x.transpose(2, 0, 1)[None]"),
        ([1, 3, 8, 8], (1, 9, 7, 3), "resize the image to 8 x 8, then x.transpose(0, 3, 1, 2)"),
        ([1, 3, 8, 8], (1, 3, 9, 7), "resize the image to 8 x 8"),
        (["N", 3, "h", 8], (3, 9, 7), "resize the image to"),
        ([1, 3, 8, 8], (8, 8, 4), "drop the alpha channel, x[..., :3]"),
        ([1, 3, 8, 8], (8, 8), "repeat the channel of the grey image"),
        ([1, 1, 8, 8], (8, 8), "2 axes are missing: x[None, None]"),
        ([1, 1, 8, 8], (64,), "x.reshape(1, 1, 8, 8)"),
        ([1, 3, 8, 8], (2, 3, 8, 8), "batches of 1"),
        (["N", 5], (5,), "the batch axis is missing: x[None]"),
        ([5], (1, 5), "dynamic axes"),
    ],
)
def test_channels_in_the_wrong_place(declared: list[object], given: tuple[int, ...], said: str):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "images",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, declared)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with vkmnn.InferenceSession(model, "cpu") as opened:
        feeds = {"x": np.zeros(given, np.float32)}
        refuse(InvalidInputError, lambda: opened.run(None, feeds), said)


def test_unknown_output(session: vkmnn.InferenceSession) -> None:
    refuse(InvalidInputError, lambda: session.run(["nope"], good_feeds()), "nope", "y, z")


def test_profile_of_no_runs(session: vkmnn.InferenceSession) -> None:
    refuse(InvalidInputError, lambda: session.profile(good_feeds(), runs=0))


def test_placement_before_the_shapes_are_known(device: str) -> None:
    with vkmnn.InferenceSession(make_model(), device) as opened:
        refuse(InvalidInputError, opened.placement)
        refuse(InvalidInputError, opened.memory)
        check_works(opened)


def test_an_op_off_the_device(session: vkmnn.InferenceSession) -> None:
    """float64 cannot be stored on the device."""
    if session.placement().main == "CPU":
        pytest.skip("nothing is off the numpy backend")
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="wide")],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [3])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    refuse(
        PlacementError,
        lambda: vkmnn.InferenceSession(model, "0", require_device=True),
        "float64",
    )


# --- arrays ------------------------------------------------------------------------------------

BAD_FEEDS: dict[str, tuple[dict[str, object], str]] = {
    "another dtype": ({"x": np.zeros((7, 3))}, "float64"),
    "integers for floats": ({"x": np.zeros((7, 3), np.int32)}, "int32"),
    "narrow integers": ({"ids": np.zeros(7, np.int32)}, "int32"),
    "a dtype of numpy's alone": ({"x": np.zeros((7, 3), np.complex64)}, "complex64"),
    "strings": ({"x": np.full((7, 3), "a")}, "<U1"),
    "objects": ({"x": np.full((7, 3), None)}, "object"),
    "another fixed dimension": ({"x": np.zeros((7, 5), np.float32)}, "[N, 3]"),
    "lower rank": ({"x": np.zeros(3, np.float32)}, "[3]"),
    "higher rank": ({"x": np.zeros((7, 3, 1), np.float32)}, "[7, 3, 1]"),
    "rank 0": ({"x": np.zeros((), np.float32)}, "[]"),
    "a list": ({"x": [[1.0, 2.0, 3.0]]}, "list"),
    "None": ({"x": None}, "NoneType"),
    "an unknown name": ({"image": np.zeros(1, np.float32)}, "image"),
    "an index that is too large": ({"ids": np.array([0, 1, 2, 3, 4, 5, 0])}, "5"),
    "an index that is too small": ({"ids": np.array([0, 1, -6, 3, 4, 2, 0])}, "-6"),
    "an index beyond 32 bits": ({"ids": np.array([0, 1, 2**32, 3, 4, 2, 0])}, str(2**32)),
}


@pytest.mark.parametrize("case", BAD_FEEDS)
def test_bad_feeds(session: vkmnn.InferenceSession, case: str) -> None:
    change, word = BAD_FEEDS[case]
    feeds = {**good_feeds(), **change}
    for _ in range(2):
        refuse(VkmnnError, lambda: session.run(None, feeds), word)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x", "ids", "count"])
def test_missing_feed(session: vkmnn.InferenceSession, name: str) -> None:
    feeds = {key: value for key, value in good_feeds().items() if key != name}
    refuse(InvalidInputError, lambda: session.run(None, feeds), f"'{name}' is missing")


def test_bad_index_names_the_node(session: vkmnn.InferenceSession) -> None:
    feeds = {**good_feeds(), "ids": np.full(7, 5)}
    error = refuse(InvalidInputError, lambda: session.run(None, feeds))
    assert error.op == "Gather"
    assert "look_up" in str(error)


def test_integers_beyond_32_bits(session: vkmnn.InferenceSession) -> None:
    """The device computes in 32 bits; such runs go to numpy, which keeps 64."""
    for value in (2**31, -(2**31) - 1, 2**62):
        feeds = {**good_feeds(), "count": np.array([0, value])}
        np.testing.assert_array_equal(session.run(["z"], feeds)[0], feeds["count"] * 2)
        if session.placement().main != "CPU":
            assert "32 bits" in session.placement().off_device[0].reason


def test_odd_but_right_feeds(session: vkmnn.InferenceSession) -> None:
    """Strides, byte order of the machine, read-only arrays, and no rows at all."""
    feeds = good_feeds()
    want = session.run(None, feeds)
    strided = np.asfortranarray(np.repeat(feeds["x"], 2, axis=0))[::2]
    strided.flags.writeable = False
    for result, expected in zip(session.run(None, {**feeds, "x": strided}), want, strict=True):
        np.testing.assert_array_equal(result, expected)
    y, _ = session.run(None, {**good_feeds(0)})
    assert y.shape == (0, 4)


def test_other_byte_order(session: vkmnn.InferenceSession) -> None:
    feeds = good_feeds()
    swapped = feeds["x"].astype(feeds["x"].dtype.newbyteorder())
    refuse(InvalidInputError, lambda: session.run(None, {**feeds, "x": swapped}), "x")


# --- the Interpreter's face --------------------------------------------------------------------


def test_the_steps_of_the_interpreter_in_the_wrong_order(device: str) -> None:
    net = vkmnn.Interpreter.from_model(make_model())
    session = net.create_session(vkmnn.ScheduleConfig(device=device))
    x = net.get_session_input(session, "x")
    output = net.get_session_output(session, "y")
    feeds = good_feeds()
    refuse(InvalidInputError, lambda: net.get_session_input(session, "nope"), "nope", "x")
    refuse(InvalidInputError, lambda: net.get_session_output(session, "nope"), "nope", "y")
    refuse(InvalidInputError, lambda: net.resize_session(session), "'x'")
    refuse(InvalidInputError, lambda: net.run_session(session))
    refuse(InvalidInputError, output.copy_to)
    refuse(InvalidInputError, lambda: net.resize_tensor(session, x, (-7, 3)), "-7")
    refuse(InvalidInputError, lambda: net.resize_tensor(session, x, (7.5, 3)), "7.5")
    net.resize_tensor(session, net.get_session_input(session, "ids"), (7,))
    net.resize_tensor(session, x, (7, 4))
    refuse(ShapeError, lambda: net.resize_session(session), "MatMul", "4")
    net.resize_tensor(session, x, (7, 3))
    refuse(InvalidInputError, lambda: net.run_session(session), "resize_session")
    net.resize_session(session)
    refuse(InvalidInputError, lambda: net.run_session(session), "no data")
    refuse(InvalidInputError, lambda: x.copy_from(feeds["x"][:5]), "(5, 3)")
    refuse(InvalidInputError, lambda: x.copy_from(feeds["x"].astype(np.float64)), "float64")
    for name, array in feeds.items():
        net.get_session_input(session, name).copy_from(array)
    net.run_session(session)
    want = np.maximum(feeds["x"] @ WEIGHT, 0) + TABLE[feeds["ids"]]
    np.testing.assert_allclose(output.copy_to(), want, rtol=1e-5, atol=1e-5)
    session.close()


def test_a_tensor_that_is_not_there_cannot_be_saved(device: str) -> None:
    net = vkmnn.Interpreter.from_model(make_model())
    config = vkmnn.ScheduleConfig(device=device, save_tensors=("gone",))
    refuse(InvalidInputError, lambda: net.create_session(config), "gone")


@pytest.mark.parametrize("op", ["ReduceMean", "Softmax", "Concat", "Split"])
def test_an_axis_that_is_not_there_between_transposes(op: str) -> None:
    """The axis may not be looked up before its size is checked."""
    axis: dict[str, object] = {"axes": [7]} if op == "ReduceMean" else {"axis": 7}
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
        helper.make_node(op, ["b", "b"][: 1 + (op == "Concat")], ["c"], name="off", **axis),
        helper.make_node("Transpose", ["c"], ["d"], perm=[0, 2, 1]),
        helper.make_node("Abs", ["d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(VkmnnError, match="off") as caught, vkmnn.InferenceSession(model) as session:
        session.run(None, {"x": np.zeros((2, 3, 4), np.float32)})
    assert not caught.value.unexpected


def test_a_picture_of_bytes() -> None:
    """Arrays from PIL: bytes, rows first, channels last, of any size."""
    info = TensorInfo("x", DType.FLOAT32, (1, 3, 8, 8))
    with pytest.raises(InvalidInputError) as caught:
        check_array(info, np.zeros((16, 16, 3), np.uint8))
    assert caught.value.hint is not None
    for words in (".astype('float32')", "/ 255", "resize the image to 8 x 8", "[None]"):
        assert words in caught.value.hint


def test_near_names_are_offered(session: vkmnn.InferenceSession) -> None:
    feeds = good_feeds()
    feeds["idz"] = feeds.pop("ids")
    refuse(InvalidInputError, lambda: session.run(None, feeds), "did you mean ids?")
