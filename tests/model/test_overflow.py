"""Numbers that fit float32 but not float16 are detected, and fixed on request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.onnxruntime_oracle import open_oracle
from vkmnn.runtime.device import enumerate_devices, open_device
from vkmnn.shaders.library import BUILTIN

Feeds = Mapping[str, np.ndarray]
LOG = "vkmnn.core.overflow"
RNG = np.random.default_rng(5)


def _has_half_storage() -> bool:
    return bool(enumerate_devices()) and "storage16" in open_device("auto").info.features


@pytest.fixture(params=["vulkan", "cpu"])
def where(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Where sessions run: the corresponding options."""
    if request.param == "cpu":
        return {"device": "cpu"}
    if not _has_half_storage():
        pytest.skip("no 16-bit storage")
    return {"validation": True, "require_device": True}


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    constants: Mapping[str, np.ndarray],
    output: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """Return a network of one input and output."""
    graph = helper.make_graph(
        list(nodes),
        "overflow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], f"the {output}", **attributes)


def decoder() -> onnx.ModelProto:
    """Return convolutions with activations of a million inside, and small results."""
    return model(
        [
            node("Conv", "x w", "a", pads=[1] * 4),
            node("Mul", "a big", "b"),
            node("Conv", "b w", "c", pads=[1] * 4),
            node("InstanceNormalization", "c one zero", "d"),
            node("Conv", "d w", "y", pads=[1] * 4),
        ],
        [1, 8, "h", "w"],
        {
            "w": floats(8, 8, 3, 3) / 8,
            "big": np.array(1e6, np.float32),
            "one": np.ones(8, np.float32),
            "zero": np.zeros(8, np.float32),
        },
    )


def projected(*after: onnx.NodeProto, output: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Return x · w, which is 16 times the sum of a row of x, followed by other ops."""
    constants = {
        "w": np.full((16, 16), 16, np.float32),
        "high": np.array(6, np.float32),
    }
    return model([node("MatMul", "x w", "a"), *after], ["n", 16], constants, output)


HIDDEN = {
    "min": (node("Min", "a high", "b"), node("MatMul", "b w", "y")),
    "sigmoid": (node("Neg", "a", "b"), node("Sigmoid", "b", "c"), node("MatMul", "c w", "y")),
    "pooling": (node("Neg", "a", "b"), node("Relu", "b", "y")),
    "argmax": (node("ArgMax", "a", "y"),),
}
"""Ops that turn infinite values into finite results."""


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOG]


@pytest.mark.parametrize("precision", ["normal", "low"])
def test_a_warning_names_the_op_once(
    where: dict[str, Any], caplog: pytest.LogCaptureFixture, precision: Any
) -> None:
    x = floats(1, 8, 6, 5)
    with vkmnn.InferenceSession(decoder(), precision=precision, **where) as session:
        for size in (5, 5, 4):
            session.run(None, {"x": x[..., :size]})
    (text,) = told(caplog)
    assert "Convolution 'the c (Conv)'" in text
    assert "65504" in text
    assert 'on_overflow="high"' in text


@pytest.mark.parametrize("precision", ["normal", "low"])
def test_ops_that_overflow_run_in_float32_from_then_on(
    where: dict[str, Any], caplog: pytest.LogCaptureFixture, precision: Any
) -> None:
    network = decoder()
    with vkmnn.InferenceSession(
        network, precision=precision, on_overflow="high", **where
    ) as session:
        for size in (5, 4, 5):
            x = floats(1, 8, 6, size)
            (want,) = open_oracle(network).run(None, {"x": x})
            (got,) = session.run(None, {"x": x})
            assert np.abs(got - want).max() < 5e-3 * np.abs(want).max()
        plans = session.counters()["plans"]
        assert session.precision != "high"
    assert plans <= 4  # one that overflowed, and one for each size; the first was dropped
    (text,) = told(caplog)
    assert "float32 from now on" in text


def test_an_error_names_the_op(where: dict[str, Any]) -> None:
    with vkmnn.InferenceSession(
        decoder(), precision="normal", on_overflow="raise", **where
    ) as session:
        with pytest.raises(vkmnn.Float16OverflowError, match="'b' holds a number") as caught:
            session.run(None, {"x": floats(1, 8, 6, 5)})
        assert caught.value.node == "the c (Conv)"
        assert np.isfinite(session.run(None, {"x": np.zeros((1, 8, 6, 5), np.float32)})[0]).all()


def test_nothing_is_said_where_nobody_asks(
    where: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with vkmnn.InferenceSession(
        decoder(), precision="normal", on_overflow="ignore", **where
    ) as session:
        session.run(None, {"x": floats(1, 8, 6, 5)})
    assert told(caplog) == []


@pytest.mark.parametrize("kind", HIDDEN)
def test_infinities_that_later_ops_hide_are_noticed(where: dict[str, Any], kind: str) -> None:
    output = TensorProto.INT64 if kind == "argmax" else TensorProto.FLOAT
    network = projected(*HIDDEN[kind], output=output)
    small, large = (np.full((3, 16), size, np.float32) for size in (1, 1000))
    with vkmnn.InferenceSession(
        network, precision="normal", on_overflow="raise", **where
    ) as session:
        session.run(None, {"x": small})
        with pytest.raises(vkmnn.Float16OverflowError) as caught:
            session.run(None, {"x": large})
        assert str(caught.value.node).startswith(("the a", "the b", "the y"))
        session.run(None, {"x": small})


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 65504.0, 65519.0, 1e-30])
def test_what_float32_has_too_is_no_overflow(
    where: dict[str, Any], caplog: pytest.LogCaptureFixture, value: float
) -> None:
    network = projected(node("Relu", "a", "y"))
    x = np.zeros((3, 16), np.float32)
    x[1, 4] = value / 16 if abs(value) < 1e5 else value
    with vkmnn.InferenceSession(network, precision="normal", **where) as session:
        session.run(None, {"x": x})
    assert told(caplog) == []


@pytest.mark.parametrize("value", [65520.0, -65520.0, 1e6, 3e38])
def test_the_least_number_that_overflows(where: dict[str, Any], value: float) -> None:
    x = np.zeros((3, 16), np.float32)
    x[1, 4] = value
    with (
        vkmnn.InferenceSession(
            projected(node("Relu", "a", "y")), precision="normal", on_overflow="raise", **where
        ) as session,
        pytest.raises(vkmnn.Float16OverflowError),
    ):
        session.run(None, {"x": x})


@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min])
def test_masks_raise_no_alarm(
    where: dict[str, Any], caplog: pytest.LogCaptureFixture, lowest: float
) -> None:
    mask = np.where(np.tri(6, dtype=np.bool_), 0, lowest).astype(np.float32)
    network = model(
        [
            node("MatMul", "x w", "q"),
            node("Transpose", "x", "k", perm=[1, 0]),
            node("MatMul", "q k", "s"),
            node("Add", "s mask", "m"),
            node("Softmax", "m", "p"),
            node("Where", "seen p hidden", "z"),
            node("MatMul", "z x", "y"),
        ],
        [6, 16],
        {
            "w": floats(16, 16),
            "mask": mask,
            "seen": np.tri(6, dtype=np.bool_),
            "hidden": np.array(0, np.float32),
        },
    )
    with vkmnn.InferenceSession(network, precision="normal", **where) as session:
        x = floats(6, 16)
        (want,) = open_oracle(network).run(None, {"x": x})
        np.testing.assert_allclose(session.run(None, {"x": x})[0], want, rtol=0, atol=0.02)
    assert told(caplog) == []


WAYS: dict[str, Callable[[vkmnn.InferenceSession, Feeds], Any]] = {
    "run": lambda one, feeds: one.run(None, feeds)[0],
    "submit": lambda one, feeds: one.submit(feeds).result()[0],
    "several": lambda one, feeds: [one.submit(feeds) for _ in range(3)][-1].result()[0],
    "run_on_device": lambda one, feeds: one.run_on_device(None, feeds)[0].numpy(),
    "profile": lambda one, feeds: (one.profile(feeds, 1), one.run(None, feeds)[0])[1],
    "tune": lambda one, feeds: (one.tune(feeds, 1), one.run(None, feeds)[0])[1],
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_run_notices_and_mends(where: dict[str, Any], way: str) -> None:
    network, feeds = decoder(), {"x": floats(1, 8, 6, 5)}
    (want,) = open_oracle(network).run(None, feeds)
    with (
        vkmnn.InferenceSession(
            network, precision="normal", on_overflow="raise", **where
        ) as session,
        pytest.raises(vkmnn.Float16OverflowError),
    ):
        WAYS[way](session, feeds)
    with vkmnn.InferenceSession(
        network, precision="normal", on_overflow="high", **where
    ) as session:
        for _ in range(2):
            got = WAYS[way](session, feeds)
            assert np.abs(got - want).max() < 5e-3 * np.abs(want).max()


def test_plans_of_a_released_model_are_kept(where: dict[str, Any]) -> None:
    network = projected(node("Softmax", "a", "y"))
    with vkmnn.InferenceSession(
        network, precision="normal", on_overflow="high", **where
    ) as session:
        small, large = ({"x": np.full((3, 16), size, np.float32)} for size in (1, 1e4))
        session.run(None, small)
        session.release_model()
        with pytest.raises(vkmnn.Float16OverflowError, match="released"):
            session.run(None, large)
        np.testing.assert_allclose(session.run(None, small)[0], 1 / 16, rtol=1e-3)


def test_bound_runs_take_the_new_plan(where: dict[str, Any]) -> None:
    network = projected(node("Softmax", "a", "y"))
    with vkmnn.InferenceSession(
        network, precision="normal", on_overflow="high", **where
    ) as session:
        bound = session.bind({"x": np.ones((3, 16), np.float32)})
        other = session.bind({"x": np.ones((3, 16), np.float32)})
        bound()
        bound.inputs["x"].copy_from(np.full((3, 16), 1e4, np.float32))
        for run in (bound, other, bound):
            run()
            np.testing.assert_allclose(run.outputs["y"].numpy(), 1 / 16, rtol=1e-3)


def test_states_keep_what_they_hold(where: dict[str, Any]) -> None:
    """A cache of rows that grows, read by a product that overflows at the third step."""
    nodes = [
        node("Concat", "past new", "rows", axis=1),
        node("MatMul", "rows w", "a"),
        node("ReduceMax", "a", "y", axes=[1], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "state",
        [
            helper.make_tensor_value_info("past", TensorProto.FLOAT, [1, "t", 16]),
            helper.make_tensor_value_info("new", TensorProto.FLOAT, [1, 1, 16]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16]),
            helper.make_tensor_value_info("rows", TensorProto.FLOAT, [1, "s", 16]),
        ],
        [numpy_helper.from_array(np.full((16, 16), 16, np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    network = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with vkmnn.InferenceSession(
        network, precision="normal", on_overflow="high", **{**where, "require_device": False}
    ) as session:
        state = session.state({"past": "rows"})
        for size, want in ((1, 256), (2, 512), (1000, 256_000), (3, 256_000)):
            got = state.run(None, {"new": np.full((1, 1, 16), size, np.float32)})
            np.testing.assert_allclose(got[0] if isinstance(got, list) else got["y"], want)


def test_a_network_that_overflows_everywhere_runs_in_float32(
    where: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Each product overflows only when the one before no longer does."""
    names = ["x", *(f"t{n}" for n in range(12)), "y"]
    nodes = []
    for before, after in pairwise(names):
        nodes += [node("MatMul", f"{before} w", f"{after}_a")]
        nodes += [
            node("Mul", f"{after}_a small", f"{after}_b"),
            node("MatMul", f"{after}_b v", after),
        ]
    constants = {
        "w": np.eye(16, dtype=np.float32) * 60_000,
        "small": np.array(2e-3, np.float32),
        "v": np.eye(16, dtype=np.float32) / 120,
    }
    with vkmnn.InferenceSession(
        model(nodes, [2, 16], constants), precision="normal", on_overflow="high", **where
    ) as session:
        x = np.full((2, 16), 2, np.float32)
        for _ in range(2):
            np.testing.assert_allclose(session.run(None, {"x": x})[0], 2, rtol=0.05)
        assert session.counters()["plans"] <= 7
    assert 1 <= len(told(caplog)) <= 6


def test_profiles_say_what_overflows(where: dict[str, Any]) -> None:
    with vkmnn.InferenceSession(decoder(), precision="normal", **where) as session:
        profile = session.profile({"x": floats(1, 8, 6, 5)}, 1)
        assert any(entry.overflowed for entry in profile)
        assert "overflows in float16" in str(profile)
        calm = session.profile({"x": np.zeros((1, 8, 6, 5), np.float32)}, 1)
        assert not any(entry.overflowed for entry in calm)


Action = Literal["warn", "high", "raise", "ignore"]


def test_every_face_takes_the_option(where: dict[str, Any], tmp_path: Path) -> None:
    import vkmnn.onnxruntime as ort
    from vkmnn.cli.app import run_cli

    device = where.get("device", "auto")
    path, feeds = tmp_path / "m.onnx", {"x": np.full((1, 16), 1e4, np.float32)}
    onnx.save(projected(node("Softmax", "a", "y")), path)

    def by_interpreter(action: Action) -> np.ndarray:
        with vkmnn.Interpreter(path) as net:
            session = net.create_session(
                {"device": device, "precision": "normal", "on_overflow": action}
            )
            return session.run(feeds)["y"]

    def by_onnxruntime(action: Action) -> np.ndarray:
        options = {"device": device, "precision": "normal", "on_overflow": action}
        session = ort.InferenceSession(str(path), providers=[("VulkanExecutionProvider", options)])
        return session.run(None, feeds)[0]

    def by_function(action: Action) -> np.ndarray:
        return vkmnn.load(path, device, precision="normal", on_overflow=action)(feeds["x"])

    for run in (by_interpreter, by_onnxruntime, by_function):
        np.testing.assert_allclose(run("high"), 1 / 16, rtol=1e-3)
        with pytest.raises(Exception, match="65504"):
            run("raise")
    np.save(tmp_path / "x.npy", feeds["x"])
    for command in ("run", "profile", "tune"):
        arguments = [command, str(path), "-i", f"x={tmp_path / 'x.npy'}", "-d", device]
        for action, status in (("high", 0), ("raise", 1), ("warn", 0), ("perhaps", 1)):
            given = [*arguments, "-p", "normal", "--on-overflow", action]
            assert run_cli(given) == status, (command, action)


@pytest.mark.parametrize("value", ["perhaps", None, 3])
def test_unknown_actions_are_refused(where: dict[str, Any], value: Any) -> None:
    with pytest.raises(vkmnn.errors.InvalidInputError, match="on_overflow"):
        vkmnn.InferenceSession(decoder(), on_overflow=value, **where)


def test_modules_of_float32_stay_as_they_are() -> None:
    from vkmnn.runtime.device_info import Limits
    from vkmnn.vulkan.overflow import watching

    limits = open_device("auto").info.limits if enumerate_devices() else None
    if limits is None:
        pytest.skip("no Vulkan device")
    assert isinstance(limits, Limits)
    wide, narrow = (BUILTIN.load(f"scale_4_{element}_buffer") for element in ("f32", "f16"))
    assert watching(wide, limits) is wide
    made = watching(narrow, limits)
    assert made.watched
    assert made.digest == narrow.digest
    assert made != narrow
    assert len(made.bindings) == len(narrow.bindings) + 1


def test_logging_is_at_the_level_of_warnings(
    where: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with vkmnn.InferenceSession(decoder(), precision="normal", **where) as session:
        session.run(None, {"x": floats(1, 8, 6, 5)})
    levels = {record.levelno for record in caplog.records if record.name == LOG}
    assert levels == {logging.WARNING}
