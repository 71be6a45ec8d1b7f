"""A node's attributes as a dataclass."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from onnx import TensorProto, helper

from vkmnn.converter.onnx import NodeContext, converter, load_model
from vkmnn.errors import ModelError, PluginError
from vkmnn.ir import OpAttrs


@dataclass(frozen=True, slots=True)
class All(OpAttrs):
    scale: float
    count: int = 3
    flag: bool = True
    mode: str = "plain"
    sizes: tuple[int, ...] = (1, 2)
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Impossible(OpAttrs):
    table: dict[str, int] | None = None


def read(kind: type[OpAttrs], **attributes: object) -> OpAttrs:
    """Return the attributes that a converter reads from a node with these ones."""
    found: list[OpAttrs] = []

    @converter("Read", domain="test.attributes")
    def convert(node: NodeContext) -> None:
        found.append(node.attributes(kind))
        node.finish("Identity", node.inputs)

    node = helper.make_node("Read", ["x"], ["y"], domain="test.attributes", **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test.attributes", 1)]
    load_model(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    return found[0]


@pytest.mark.usefixtures("registrations")
def test_defaults():
    assert read(All, scale=0.5) == All(0.5)


@pytest.mark.usefixtures("registrations")
def test_every_type():
    given = {"count": -1, "flag": 0, "mode": "odd", "sizes": [5], "weights": [0.25, 2.0]}
    assert read(All, scale=2.0, **given) == All(2.0, -1, False, "odd", (5,), (0.25, 2.0))


@pytest.mark.usefixtures("registrations")
@pytest.mark.parametrize(
    ("attributes", "message"),
    [({}, "'scale' is missing"), ({"scale": 1}, "'scale' is not a float")],
)
def test_attributes_that_do_not_fit(attributes, message):
    with pytest.raises(ModelError, match=message):
        read(All, **attributes)


@pytest.mark.usefixtures("registrations")
def test_a_field_that_no_attribute_can_be():
    with pytest.raises(PluginError, match="table"):
        read(Impossible)
