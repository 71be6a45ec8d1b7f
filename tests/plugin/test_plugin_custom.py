"""The generic Custom op: a type, bytes under names, and kernels by type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn.base.registry import Snapshot
from vkmnn.converter.onnx import load_model
from vkmnn.errors import ModelError, PluginError, ShapeError, UnsupportedOpError, VkmnnError
from vkmnn.ir.custom import CustomAttrs
from vkmnn.plugin import custom_execution, custom_op, kernel, like_first_input, required
from vkmnn.shape import flops

pytestmark = pytest.mark.usefixtures("registrations")


def model(type_: str = "test.Scale", **attributes: Any) -> bytes:
    node = helper.make_node("Custom", ["x"], ["y"], "c", domain="vkmnn", type=type_, **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("vkmnn", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def register() -> None:
    custom_op("test.Scale", flops=3)(like_first_input)

    @custom_execution("test.Scale")
    def compute(op, inputs):
        (alpha,) = op.attrs.floats("alpha", [2.0])
        return [required(inputs, 0) * np.float32(alpha)]


X = np.float32([[1, -2, 3], [4, 5, 6]])


@pytest.mark.parametrize("rows", [2, 1, 0])
@pytest.mark.parametrize("given", [{}, {"alpha": 0.5}])
def test_it_runs(given: dict[str, float], rows: int) -> None:
    register()
    with vkmnn.InferenceSession(model(**given)) as session:
        (y,) = session.run(None, {"x": X[:rows]})
    np.testing.assert_array_equal(y, X[:rows] * np.float32(given.get("alpha", 2)))


def test_what_the_author_says_of_it() -> None:
    register()
    graph = load_model(model())
    (op,) = graph.ops
    assert op.kernel == "Custom:test.Scale"
    assert graph.infos["y"].shape == ("n", 3)
    info = vkmnn.ir.TensorInfo("x", graph.infos["y"].dtype, (2, 3))
    assert flops(op, [info], [info]) == 18


def test_kernels_by_type() -> None:
    register()
    kernel("Custom:test.Scale", backend="CPU", provider="acme")(lambda op, inputs: [-inputs[0]])
    kernel("Custom:test.Else", backend="CPU", provider="acme")(lambda op, inputs: [inputs[0]])
    with vkmnn.InferenceSession(model(), device="cpu") as session:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], -X)
        assert session.placement().ops[0].provider == "acme"


def test_attributes_become_bytes() -> None:
    tensor = numpy_helper.from_array(np.uint16([1, 513]))
    node = model(a=1, b=[1, 2], c=0.5, d=b"\xff", e=tensor, f=[1.5, 2.0])
    attrs = load_model(node).ops[0].attrs
    assert isinstance(attrs, CustomAttrs)
    assert attrs.ints("a") == (1,)
    assert attrs.ints("b") == (1, 2)
    assert attrs.floats("c") == (0.5,)
    assert attrs.floats("f") == (1.5, 2.0)
    assert attrs.get("d") == b"\xff"
    assert attrs.array("e", "<u2").tolist() == [1, 513]
    assert attrs.text("g", "none") == "none"
    assert [name for name, _ in attrs.attributes] == list("abcdef")
    for read, message in (
        (lambda: attrs.get("h"), "no attribute 'h'"),
        (lambda: attrs.text("d"), "not text in UTF-8"),
        (lambda: attrs.ints("d"), "not a multiple of 8 bytes: it has 1 bytes"),
    ):
        with pytest.raises(ModelError, match=message):
            read()


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    register()
    path = tmp_path / "custom.onnx"
    path.write_bytes(model(alpha=0.25, key=b"\xff"))
    vkmnn.convert(path, tmp_path / "custom.vkmnn")
    with vkmnn.InferenceSession(tmp_path / "custom.vkmnn", device="cpu") as session:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X / 4)


def test_what_cannot_be() -> None:
    register()
    node = helper.make_node("Custom", ["x"], ["y"], domain="vkmnn")
    graph = helper.make_graph([node], "g", [_value("x")], [_value("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("vkmnn", 1)]
    with pytest.raises(VkmnnError, match="required attribute 'type'"):
        load_model(helper.make_model(graph, opset_imports=opsets))
    with pytest.raises(UnsupportedOpError, match="attribute 'words' is strings"):
        load_model(model(words=["a"]))
    session = vkmnn.InferenceSession(model("test.Scal"), device="cpu")
    with pytest.raises(ShapeError, match=r"no Custom op of type 'test.Scal'") as caught:
        session.run(None, {"x": X})
    session.close()
    assert "test.Scale" in str(caught.value.hint)
    with pytest.raises(PluginError, match="Scale is already registered"):
        register()


def _value(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('@custom_op("test.Half")\ndef f(op, inputs, values): ...', "@custom_execution"),
        ('@custom_execution("test.Half")\ndef f(op, inputs): ...', "@custom_op"),
        ('@kernel("Custom:test.No", backend="CPU")\ndef f(op, inputs): ...', "no such op type"),
    ],
)
def test_registrations_have_to_match(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / f"plug_custom_{len(text)}.py"
    path.write_text(f"from vkmnn.plugin import *\n\n{text}\n", "utf-8")
    before = Snapshot()
    with pytest.raises(PluginError, match=message):
        vkmnn.load_plugin(path)
    assert before.added() == []
