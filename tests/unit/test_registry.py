"""The registry behind every decorator."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from vkmnn.base.registry import Registry, Snapshot
from vkmnn.converter.onnx import converter
from vkmnn.converter.onnx.registry import find_converter
from vkmnn.cpu_fallback import cpu_execution, placed_execution
from vkmnn.errors import PluginError
from vkmnn.geometry import geometry
from vkmnn.ir import OP_TYPES, OpAttrs, op_type
from vkmnn.shape import size_computer
from vkmnn.vulkan.execution import EXECUTIONS as VULKAN_EXECUTIONS
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution


class Nothing(VulkanExecution):
    """Does nothing, on a device."""

    def on_encode(self, encoder) -> None:
        pass


@pytest.mark.parametrize(
    ("decorator", "name", "what"),
    [
        (size_computer, "Concat", "shape computer of Concat"),
        (geometry, "Concat", "geometry computer of Concat"),
        (cpu_execution, "Concat", "numpy execution of Concat"),
        (placed_execution, "Concat", "numpy execution of Concat"),
        (cpu_execution, "Raster", "numpy execution of Raster"),
        (vulkan_execution, "Raster", "Vulkan execution of Raster"),
        (converter, "Relu", "converter of ai.onnx::Relu since opset 1"),
        (op_type, "Identity", "op type Identity"),
    ],
)
@pytest.mark.usefixtures("registrations")
def test_a_name_is_taken_once(decorator, name, what):
    with pytest.raises(PluginError, match=f"the {what} is already registered: (vkmnn|OpType)"):
        decorator(name)(Nothing if decorator is vulkan_execution else OpAttrs)


@pytest.mark.parametrize("decorator", [size_computer, geometry, vulkan_execution])
def test_a_decorator_without_a_name(decorator):
    with pytest.raises(PluginError, match="has no name: "):
        decorator(Nothing)
    with pytest.raises(PluginError, match="has no name: "):
        decorator("")


@pytest.mark.parametrize("wrong", [OpAttrs, VulkanExecution, print])
def test_what_cannot_execute_on_a_device(wrong):
    with pytest.raises(PluginError, match="cannot execute on a device"):
        vulkan_execution("Thing")(wrong)


@pytest.mark.usefixtures("registrations")
def test_one_execution_of_several_op_types():
    op_type("One")(OpAttrs)
    op_type("Other")(OpAttrs)
    vulkan_execution("One", "Other")(Nothing)
    assert VULKAN_EXECUTIONS["One"] is VULKAN_EXECUTIONS["Other"] is Nothing


@pytest.mark.usefixtures("registrations")
def test_entries_are_found_and_removed():
    table: Registry[str, int] = Registry("number of")
    table.register("one", "uno")(1)
    assert (table.get("uno"), table.get("two")) == (1, None)
    assert table.remove("uno") == 1
    assert list(table) == ["one"]
    table.register("uno")(11)  # the name is free again
    assert table["uno"] == 11
    with pytest.raises(PluginError, match="there is no number of two"):
        table.remove("two")


@pytest.mark.usefixtures("registrations")
def test_a_converter_of_several_operators():
    @converter("acme::3::Gate", "acme::7::Gate", "ai.onnx::30::Gate")
    @converter("Door", "Window", domain="acme", since=2)
    def convert(node):
        pass

    for op, domain, opset, found in (
        *(("Gate", "acme", 2, False), ("Gate", "acme", 3, True), ("Gate", "acme", 9, True)),
        *(("Gate", "", 29, False), ("Gate", "", 30, True), ("Door", "acme", 2, True)),
        *(("Window", "acme", 2, True), ("Window", "", 2, False)),
    ):
        assert (find_converter(op, domain, opset) is convert) == found, (op, domain, opset)
    with pytest.raises(PluginError, match="acme::Gate since opset 7 is already registered"):
        converter("acme::7::Gate")(convert)
    for wrong in ("acme::Gate", "acme::x::Gate", "", "acme::1::"):
        with pytest.raises(PluginError, match="a converter needs an operator's name"):
            converter(wrong)


def test_restoring_takes_registrations_back(registrations: Snapshot):
    table: Registry[str, int] = Registry("number of")
    table.register("one", "uno")(1)
    size_computer("Twice")(lambda op, inputs, values: [])
    converter("Twice", domain="my", since=3)(lambda node: None)
    expected = ["number of one", "number of uno", "shape computer of Twice"]
    assert {*expected, "converter of my::Twice since opset 3"} == set(registrations.added())
    registrations.restore()
    assert registrations.added() == []
    assert list(table) == []
    size_computer("Twice")(lambda op, inputs, values: [])


@pytest.mark.usefixtures("registrations")
def test_a_new_op_type():
    @op_type("Thing", inputs=(1, 3), content=(2,))
    @dataclass(frozen=True, slots=True)
    class ThingAttrs(OpAttrs):
        alpha: float = 1.0

    entry = OP_TYPES["Thing"]
    assert (entry.attrs, entry.min_inputs, entry.max_inputs) == (ThingAttrs, 1, 3)
    assert entry.content == (2,)


@pytest.mark.usefixtures("registrations")
def test_attributes_that_are_no_frozen_dataclass():
    @dataclass
    class NoBase:
        alpha: float = 1.0

    with pytest.raises(PluginError, match="NoBase cannot hold attributes"):
        op_type("Thing")(NoBase)
    with pytest.raises(PluginError, match="frozen=True"):

        @dataclass(frozen=True, slots=True)
        @op_type("Thing")
        class WrongOrder(OpAttrs):
            alpha: float = 1.0

    assert "Thing" not in OP_TYPES


@pytest.mark.parametrize(
    ("inputs", "content"), [(-1, ()), ((3, 1), ()), (1, (1,)), ((1, 2), (-1,))]
)
def test_numbers_of_inputs_that_make_no_sense(inputs, content):
    with pytest.raises(PluginError, match="make no sense"):
        op_type("Thing", inputs=inputs, content=content)


def test_entries_by_name_follow_the_registrations():
    registry: Registry[str, int] = Registry("number of")
    registry.register("b")(2)
    assert registry.by_name() == (2,)
    registry.register("a")(1)
    assert registry.by_name() == (1, 2)
    registry.remove("b")
    assert registry.by_name() == (1,)
