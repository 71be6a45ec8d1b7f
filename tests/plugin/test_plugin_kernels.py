"""Kernels of plug-ins: which one runs, and its description in `placement` and the lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkmnn
from vkmnn.base.registry import Snapshot
from vkmnn.cli.app import run_cli
from vkmnn.errors import PluginError
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.plugin import CpuKernel, Rejection, VulkanExecution, kernel

pytestmark = pytest.mark.usefixtures("registrations")


def model(dtype: int = TensorProto.FLOAT) -> bytes:
    x, y = (helper.make_tensor_value_info(name, dtype, ["n", 3]) for name in "xy")
    node = helper.make_node("Abs", ["x"], ["y"], "magnitude")
    graph = helper.make_graph([node], "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto.SerializeToString()


X = np.float32([[1, -2, 3], [-4, 5, -6]])


def run(x=X, device: str = "cpu", dtype: int = TensorProto.FLOAT):
    with vkmnn.InferenceSession(model(dtype), device=device) as session:
        (y,) = session.run(None, {"x": x})
        (placed,) = session.placement()
        return y, placed, str(session.placement())


def answer(number: float):
    """Return a kernel that can be identified by its results."""
    return lambda op, inputs: [np.full_like(inputs[0], number)]


def test_one_without_a_rival_is_vkmnns_own() -> None:
    y, placed, text = run()
    np.testing.assert_array_equal(y, abs(X))
    assert (placed.provider, placed.passed_over) == ("vkmnn", ())
    assert "[" not in text


def test_the_highest_priority_runs_and_is_shown() -> None:
    kernel("UnaryOp", backend="CPU", provider="low", priority=-5)(answer(1))
    assert run()[1].provider == "vkmnn"
    kernel("UnaryOp", backend="CPU", provider="acme")(answer(2))
    y, placed, text = run()
    assert (y.max(), placed.provider) == (2, "acme")
    assert "magnitude  [acme]" in text
    kernel("UnaryOp", backend="CPU", provider="best", priority=11)(answer(3))
    assert run()[1].provider == "best"


def test_between_equals_the_element_type_and_then_the_name_decide() -> None:
    for provider, dtype in (("b", None), ("a", None), ("z", DType.FLOAT32), ("y", DType.INT32)):
        kernel("UnaryOp", backend="CPU", provider=provider, dtype=dtype)(answer(1))
    assert run()[1].provider == "z"
    assert run(X.astype(np.int32), dtype=TensorProto.INT32)[1].provider == "y"
    assert run(X.astype(np.float64), dtype=TensorProto.DOUBLE)[1].provider == "a"


def test_one_that_rejects_leaves_the_op_to_the_next() -> None:
    @kernel("UnaryOp", backend="CPU", provider="picky")
    class Picky(CpuKernel):
        def prepare(self) -> None:
            if self.operand(0).shape[0] > 1:
                raise Rejection("more than one row")
            self.runs = 0

        def compute(self, inputs):
            self.runs += 1
            return [np.full_like(inputs[0], self.runs)]

    with vkmnn.InferenceSession(model(), device="cpu") as session:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], abs(X))
        (placed,) = session.placement()
        assert (placed.provider, placed.passed_over) == ("vkmnn", ("picky: more than one row",))
        assert "(picky: more than one row)" in str(session.placement())
        for runs in (1, 2):  # made once for the shape; what it keeps is there in the next run
            assert session.run(None, {"x": X[:1]})[0].max() == runs


def test_what_a_kernel_raises_names_the_op() -> None:
    kernel("UnaryOp", backend="CPU", provider="acme")(lambda op, inputs: 1 / 0)
    with pytest.raises(vkmnn.VkmnnError, match="magnitude"):
        run()


def test_a_kernel_on_the_device() -> None:
    from vkmnn.vulkan.execution import EXECUTIONS

    own = EXECUTIONS["UnaryOp"]

    @kernel("UnaryOp", provider="acme", dtype=DType.FLOAT32)
    class Copy(own):
        """Returns a square instead of the requested result, which shows that it ran."""

        def __init__(self, op, inputs, outputs, info):
            other = Op(op.type, op.name, op.inputs, op.outputs, UnaryAttrs("SQUARE"))
            super().__init__(other, inputs, outputs, info)

    y, placed, _ = run(device="auto")
    np.testing.assert_array_equal(y, X * X)
    assert (placed.backend, placed.provider) == ("VULKAN", "acme")
    y, placed, _ = run(X.astype(np.int32), "auto", TensorProto.INT32)
    np.testing.assert_array_equal(y, abs(X))
    assert placed.provider == "vkmnn"


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda: kernel()(VulkanExecution), "names no op type"),
        (lambda: kernel("UnaryOp")(VulkanExecution), "cannot execute on VULKAN"),
        (lambda: kernel("UnaryOp")(answer(1)), "cannot execute on VULKAN"),
        (lambda: kernel("UnaryOp", backend="CPU")(CpuKernel), "cannot execute on CPU"),
        (lambda: kernel("UnaryOp", backend="OTHER")(int), "cannot execute on OTHER"),
        (lambda: kernel("UnaryOp", dtype="float32")(answer(1)), "dtype 'float32'"),
    ],
)
def test_what_is_no_kernel(register, message: str) -> None:
    before = Snapshot()
    with pytest.raises(PluginError, match=message):
        register()
    assert before.added() == []


def test_the_same_twice() -> None:
    kernel("UnaryOp", backend="CPU", provider="acme")(answer(1))
    kernel("UnaryOp", backend="CPU", provider="acme", dtype=DType.INT8)(answer(1))
    with pytest.raises(
        PluginError, match="UnaryOp on CPU for any type by acme is already registered"
    ):
        kernel("UnaryOp", backend="CPU", provider="acme", priority=3)(answer(1))


FILE = """
from vkmnn.plugin import *

@kernel("{op}", backend="{backend}", dtype=DType.FLOAT32)
{what}
"""
FUNCTION = "def abs_(op, inputs):\n    return [abs(required(inputs, 0))]"
CLASS = "class K(VulkanExecution):\n    def on_encode(self, encoder): ...\n"


@pytest.mark.parametrize(
    ("op", "backend", "what", "message"),
    [
        ("UnaryOpp", "CPU", FUNCTION, "there is no such op type.*\n.*did you mean UnaryOp"),
        ("Concat", "VULKAN", CLASS, "devices get Raster instead of Concat"),
    ],
)
def test_kernels_that_would_never_run(tmp_path: Path, op, backend, what, message) -> None:
    path = tmp_path / "plug_never.py"
    path.write_text(FILE.format(op=op, backend=backend, what=what), "utf-8")
    before = Snapshot()
    with pytest.raises(PluginError, match=message):
        vkmnn.load_plugin(path)
    assert before.added() == []


def test_lists_say_what_shadows_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plug_shade.py"
    path.write_text(FILE.format(op="UnaryOp", backend="CPU", what=FUNCTION), "utf-8")
    kernel("UnaryOp", backend="CPU", provider="a_rival", priority=5)(answer(1))
    vkmnn.load_plugin(path)
    assert run()[1].provider == "plug_shade"
    assert run_cli(["ops", "--plugins"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "UnaryOp on CPU for float32 by plug_shade" in text
    assert "before a_rival's, vkmnn's own" in text
