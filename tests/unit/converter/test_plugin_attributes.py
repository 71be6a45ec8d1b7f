"""Attributes that converters of plug-ins read from a node, and the fate of those never read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn.converter.onnx import load_model
from vkmnn.errors import ModelError
from vkmnn.plugin import NodeContext, OpAttrs, converter

pytestmark = pytest.mark.usefixtures("registrations")

DOMAIN = "test.attributes"


def load(read, **attributes: Any) -> list[Any]:
    """Convert a model with one node of this domain; return the values that `read` returned."""
    found: list[Any] = []

    def convert(node: NodeContext) -> None:
        found.append(read(node))
        node.finish("Identity", node.inputs)

    convert.__module__ = "someone"
    converter("Thing", domain=DOMAIN)(convert)
    node = helper.make_node("Thing", ["x"], ["y"], "thing", domain=DOMAIN, **attributes)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    load_model(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    return found


def sparse() -> Any:
    values = numpy_helper.from_array(np.float32([5, 7]), "v")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.int64([1, 3]), "i"), [4])


def body(name: str) -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    return helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], name, [x], [])


def test_every_kind() -> None:
    def read(node: NodeContext) -> dict[str, Any]:
        return {
            "kinds": node.attribute_kinds,
            "blob": node.bytes("blob"),
            "words": node.strings("words"),
            "blobs": node.byte_strings("blobs"),
            "body": node.graph("body").name,
            "bodies": [one.name for one in node.graphs("bodies")],
            "sparse": node.sparse_tensor("sparse").tolist(),
            "tensors": [one.tolist() for one in node.tensors("tensors")],
            "absent": node.bytes("absent", b"-"),
        }

    one = numpy_helper.from_array(np.int64([1, 2]))
    (found,) = load(
        read,
        blob=b"\xff\x00",
        words=["a", "ü"],
        blobs=[b"\xfe", b""],
        body=body("b"),
        bodies=[body("c"), body("d")],
        sparse=sparse(),
        tensors=[one, one],
    )
    kinds = found.pop("kinds")
    assert kinds == {
        "blob": "a string",
        "words": "strings",
        "blobs": "strings",
        "body": "a graph",
        "bodies": "graphs",
        "sparse": "a sparse tensor",
        "tensors": "tensors",
    }
    assert found == {
        "blob": b"\xff\x00",
        "words": ("a", "ü"),
        "blobs": (b"\xfe", b""),
        "body": "b",
        "bodies": ["c", "d"],
        "sparse": [0, 5, 0, 7],
        "tensors": [[1, 2], [1, 2]],
        "absent": b"-",
    }


@dataclass(frozen=True, slots=True)
class Attrs(OpAttrs):
    """One field of each kind."""

    size: int
    alpha: float = 1.0
    key: bytes = b""
    names: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()


def test_into_a_dataclass() -> None:
    found = load(lambda node: node.attributes(Attrs), size=3, key=b"\xff", names=["a"], keys=[b"b"])
    assert found == [Attrs(3, 1.0, b"\xff", ("a",), (b"b",))]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 1, "alhpa": 2.0}, "attribute 'alhpa' is not known.*\n.*did you mean 'alpha'"),
        ({"sise": 1}, "required attribute 'size' is missing.*\n.*there is 'sise'"),
        ({"size": 1.5}, "attribute 'size' is not an int"),
        ({"size": 1, "names": [b"\xff"]}, "not text in UTF-8.*\n.*node.byte_strings"),
        ({"alpha": 1.0}, "required attribute 'size' is missing.*\n.*not valid ONNX"),
    ],
)
def test_what_does_not_fit(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load(lambda node: node.attributes(Attrs), **given)
    assert (caught.value.op, caught.value.node) == ("Thing", "thing")


def test_what_is_like_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    load(lambda node: node.attributes(Attrs), size=1, exported_by="a tool")
    (record,) = caplog.records
    assert "attribute 'exported_by' is ignored" in record.getMessage()
