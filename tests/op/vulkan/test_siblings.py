"""Settings of a backend reach every backend that replaces it: none is passed on by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.op.vulkan.harness import device
from vkmnn.core.overflow import OverflowWatch
from vkmnn.runtime.device import open_device
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.choice import Preferences
from vkmnn.vulkan.settings import BackendSettings

OTHER: dict[str, Any] = {
    "progress": print,
    "timestamps": True,
    "apart": True,
    "element": "f16",
    "arithmetic": "f16",
    "narrow_inputs": True,
    "full": frozenset({"an op"}),
    "overflows": OverflowWatch("raise"),
    "tuning": "on",
    "storage": "buffer",
    "spacious": True,
    "stored_bytes": 5,
    "replays": False,
    "eager": True,
    "flags": True,
}
"""A value of every setting that is not its default."""

SIBLINGS: dict[str, tuple[Callable[[VulkanBackend], VulkanBackend], set[str]]] = {
    "profile": (VulkanBackend.timed, {"timestamps"}),
    "trial": (lambda one: one.with_preferences({}).timed_apart(), {"timestamps", "apart"}),
    "preferences": (lambda one: one.with_preferences({}), set()),
    "rebuilt": (VulkanBackend.reopened, set()),
    "profile of a rebuilt one": (lambda one: one.reopened().timed(), {"timestamps"}),
}
"""The replacements of a backend, and their own settings."""


@pytest.fixture(autouse=True)
def _timestamps() -> None:
    if not {"timestamps", "storage16"} <= device().info.features:
        pytest.skip("no timestamps, or no 16-bit storage")


@pytest.mark.parametrize("field", [one.name for one in fields(BackendSettings)])
@pytest.mark.parametrize("kind", SIBLINGS)
def test_every_setting_reaches_every_sibling(kind: str, field: str) -> None:
    make, own = SIBLINGS[kind]
    backend = VulkanBackend(device(), **{field: OTHER[field]})
    assert getattr(backend.settings, field) != getattr(BackendSettings(), field)
    made = make(backend)
    for one in fields(BackendSettings):
        if one.name in own:
            assert getattr(made.settings, one.name) is True
        else:
            assert getattr(made.settings, one.name) == getattr(backend.settings, one.name)


def test_what_is_kept_in_float32_reaches_every_sibling() -> None:
    backend = VulkanBackend(device(), element="f16", overflows=OverflowWatch("high"))
    error = vkmnn.Float16OverflowError("for the test", frozenset({"a", "b"}))
    wider = backend.widened(error)
    assert wider is not None
    for make, _ in SIBLINGS.values():
        made = make(wider)
        assert (made.settings.element, made.settings.full) == ("f16", {"a", "b"})
    whole = wider.widened(error)
    assert whole is not None
    assert whole.settings.element == "f32"


def network(staged: bool) -> bytes:
    """Return two products; `staged`: the ops between them depend on data."""
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"])]
    if staged:
        nodes += [
            helper.make_node("NonZero", ["a"], ["where"]),
            helper.make_node("Transpose", ["where"], ["places"]),
            helper.make_node("GatherND", ["a", "places"], ["flat"]),
            helper.make_node("Reshape", ["flat", "shape"], ["b"]),
        ]
    nodes.append(helper.make_node("MatMul", ["b" if staged else "a", "w"], ["y"]))
    shape = numpy_helper.from_array(np.array([-1, 16], np.int64), "shape")
    graph = helper.make_graph(
        nodes,
        "siblings",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w"), *([shape] if staged else [])],
    )
    opsets = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return model


@pytest.fixture
def planned_by(monkeypatch: pytest.MonkeyPatch) -> list[BackendSettings]:
    """The settings of all backends that plan."""
    seen: list[BackendSettings] = []
    real = VulkanBackend.encode_in_order

    def encode(self: VulkanBackend, *arguments: Any) -> Any:
        seen.append(self.settings)
        return real(self, *arguments)

    monkeypatch.setattr(VulkanBackend, "encode_in_order", encode)
    return seen


@pytest.mark.parametrize("staged", [False, True], ids=["whole", "staged"])
@pytest.mark.parametrize("precision", ["normal", "low"])
def test_sessions_plan_with_their_settings_in_every_way(
    planned_by: list[BackendSettings],
    monkeypatch: pytest.MonkeyPatch,
    precision: Literal["normal", "low"],
    staged: bool,
) -> None:
    if precision == "low":
        monkeypatch.setattr("vkmnn.opening.device.possible_precision", lambda wanted, info: "low")
    feeds = {"x": np.ones((3, 16), np.float32)}
    ways: dict[str, Callable[[vkmnn.InferenceSession], object]] = {
        "run": lambda one: one.run(None, feeds),
        "submit": lambda one: one.submit(feeds).result(),
        "run_on_device": lambda one: one.run_on_device(None, feeds),
        "bind": lambda one: one.bind(feeds)(),
        "profile": lambda one: one.profile(feeds, 1),
        "tune": lambda one: one.tune(feeds, 1),
        "rebuild": lambda one: (open_device().mark_lost("for the test"), one.run(None, feeds)),
        "profile of a rebuilt one": lambda one: one.profile(feeds, 1),
    }
    with vkmnn.InferenceSession(
        network(staged), precision=precision, on_device_lost="rebuild", on_overflow="raise"
    ) as session:
        for way in ways.values():
            way(session)
        with session.another() as another:
            another.run(None, feeds)
    assert len(planned_by) > 6
    for settings in planned_by:
        assert settings.element == "f16"
        assert settings.arithmetic == ("f16" if precision == "low" else "f32")
        assert settings.overflows is not None
        assert settings.overflows.action == "raise"


def test_a_tuned_backend_prefers_what_it_is_told() -> None:
    made = VulkanBackend(device()).with_preferences({"choice": "kernel"})
    assert isinstance(made._chooser, Preferences)
    assert made.preferences == {"choice": "kernel"}
