"""The choice of a front end for a model, and when each is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
from vkmnn.base.registry import Snapshot
from vkmnn.converter.front_end import FRONT_ENDS, Conversion, FrontEnd, find_front_end, front_end
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.errors import ModelFileError, PluginError
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.opening import load_network


def model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_onnx_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "net").write_bytes(model().SerializeToString())
    (tmp_path / "empty.onnx").touch()
    for given in (
        *(model(), model().SerializeToString(), tmp_path / "net", str(tmp_path / "net")),
        *(tmp_path / "empty.onnx", "missing.onnx"),
    ):
        assert isinstance(find_front_end(given), OnnxFrontEnd)
    for given in (b"", b"{}", 5, None, tmp_path, "missing", "nul\0"):
        assert find_front_end(given) is None


def test_fields_in_another_order() -> None:
    """A file that does not begin as others do is still an ONNX model."""
    data = model().SerializeToString()
    moved = data[2:] + data[:2]  # the field ir_version, of two bytes, at the end
    assert find_front_end(moved) is None
    np.testing.assert_array_equal(
        vkmnn.load(moved, "cpu")(np.array([-1, 1], np.float32)), np.array([0, 1])
    )


class Words(FrontEnd):
    """A list of names of unary functions is a network here."""

    def recognises(self, model: object, start: bytes) -> bool:
        return start.startswith(b"words:")

    def read(self, model: Any) -> list[str]:
        return str(model.decode()).split(":")[1].split()

    def convert(self, source: list[str], conversion: Conversion) -> Graph:
        names = ["x", *(f"t{number}" for number in range(len(source)))]
        ops = [
            Op("UnaryOp", after, [before], [after], UnaryAttrs(kind))  # type: ignore[arg-type]
            for kind, before, after in zip(source, names, names[1:], strict=False)
        ]
        conversion.meter.weigh(0, len(ops))
        info = TensorInfo("x", DType.FLOAT32, ("N",))
        graph = Graph("words", [info], [TensorInfo(names[-1], DType.FLOAT32, ("N",))], ops)
        graph.validate()
        return graph


def test_a_second_format(registrations: Snapshot) -> None:
    front_end("words")(Words)
    x = np.array([0.25, 4.0], np.float32)
    net = vkmnn.load(b"words: SQRT NEG", "cpu")  # type: ignore[arg-type]
    np.testing.assert_allclose(net(x), -np.sqrt(x))
    assert load_network(b"words: SQRT NEG").source.name == "words"
    with pytest.raises(PluginError, match="front end for words is already registered"):
        front_end("words")(Words)


def test_a_plugin_is_asked_after_it_is_loaded(
    registrations: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkmnn.opening.front_ends.load_plugins", lambda: front_end("words")(Words))
    assert load_network(b"words: ABS").source.name == "words"


def test_what_nobody_recognises_is_refused_by_the_reader_of_onnx() -> None:
    assert "words" not in FRONT_ENDS
    with pytest.raises(ModelFileError, match="not an ONNX model"):
        load_network(b"words: SQRT")
