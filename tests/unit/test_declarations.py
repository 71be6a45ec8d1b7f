"""Every op type of vkmnn is declared completely, and in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.unit.shape.test_axes import UNKNOWN
from vkmnn.base.records import dataclass
from vkmnn.base.registry import Snapshot
from vkmnn.cli.declared import aspects, fuzzing
from vkmnn.cli.ops import vocabulary
from vkmnn.converter.onnx import supported_ops
from vkmnn.converter.onnx.registry import find_converter
from vkmnn.cpu_fallback.registry import EXECUTIONS
from vkmnn.ir import OP_TYPES, OpAttrs
from vkmnn.ir.op_type import op_type
from vkmnn.shape.axes import AXES
from vkmnn.shape.registry import COMPUTERS
from vkmnn.vulkan.executions import execution_of
from vkmnn_suite.fuzz import recipes  # noqa: F401 - before a test takes back what it registers

PACKAGE = Path(__file__).resolve().parents[2] / "vkmnn"
VOCABULARY = "ir/ops.py"


def declared(source: str) -> list[str]:
    """Return the names in all calls of `op_type`, in whatever way it was imported."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        argument.value
        for call in calls
        if ast.unparse(call.func).split(".")[-1] == "op_type"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    ]


def test_all_declarations_stand_in_one_file():
    places = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if (names := declared(path.read_text("utf-8")))
    }
    assert set(places) == {VOCABULARY}
    names = places[VOCABULARY]
    assert len(names) == len(set(names))
    assert set(names) <= set(OP_TYPES)
    assert len(names) > 50


def test_nothing_else_fills_the_registry():
    here = [path for path in PACKAGE.rglob("*.py") if "OP_TYPES.register" in path.read_text()]
    assert [path.relative_to(PACKAGE).as_posix() for path in here] == ["ir/op_type.py"]


def test_every_op_can_be_computed():
    names = declared((PACKAGE / VOCABULARY).read_text("utf-8"))
    assert not [name for name in names if name not in EXECUTIONS]
    # Whoever makes one of these knows its output.
    without = {"Raster", "StridedAttention", "ConvertTensor"}
    assert {name for name in names if name not in COMPUTERS} <= without


# Aspect -> the op types that declare nothing there, and why that is right for them.
ONE_EACH = "one operation, and one call of numpy, for each element are what it takes"
LEFT = {
    "shape": ("whoever makes one knows its output", ["HostGraph", "Raster", "StridedAttention"]),
    "open sizes": (
        "nothing is known before a plan, or probing finds all",
        ["Custom", "Einsum", "HostGraph", "Raster", "StridedAttention"],
    ),
    "axes": ("tests/unit/shape/test_axes.py says why for each", list(UNKNOWN)),
    "cost": (
        ONE_EACH,
        [
            *("BinaryOp", "Cast", "CumProd", "CumSum", "Elementwise", "Range", "ScatterElements"),
            *("ScatterND", "Select", "TopK", "UnaryOp"),
        ],
    ),
    "host cost": (
        ONE_EACH,
        [
            *("BinaryOp", "Cast", "Col2Im", "Custom", "Elementwise", "HostGraph", "ImageToTensor"),
            *("MelWeightMatrix", "Pad", "Scale", "Select", "Tile", "Trilu", "UnaryOp"),
        ],
    ),
    "numpy": ("an evaluator of ONNX runs it", ["HostGraph"]),
    "device": ("for the host, or a plug-in's", ["Custom", "HostGraph", "MelWeightMatrix"]),
    "alike": (
        "contents or names decide what is recorded, or networks seldom have two that are equal",
        [
            *("Append", "ArgMax", "ArgMin", "BitCast", "CachedAttention", "Cast", "Col2Im"),
            *("CumProd", "CumSum", "DFT", "Deconvolution", "DeformColumns", "Det"),
            *(
                "DynamicQuantizeConvolution",
                "DynamicQuantizeMatMul",
                "DynamicRange",
                "ExpertMatMul",
            ),
            *("Gather",),
            *("GatherElements", "GatherNBits", "GatherND", "GridSample", "Interp", "LRN"),
            *("LinearAttention", "MatMulNBits", "NonMaxSuppression", "OneHot"),
            *("QuantizedConvolution", "QuantizedMatMul", "Raster", "Recurrent", "Reduction"),
            *("RoiAlign", "RoiPool", "SampleToken", "ScatterElements", "ScatterND", "Select"),
            *("TopK", "UnpackRows"),
        ],
    ),
    "float16": (
        "results are indices, or need the range of float32",
        [
            *("Append", "Col2Im", "ConvertTensor", "CumProd", "CumSum", "DFT"),
            *("DeformColumns", "Det", "LinearAttention", "NonMaxSuppression", "OneHot"),
            *("RoiAlign", "RoiPool", "ScatterElements", "ScatterND", "TopK", "UnpackRows"),
        ],
    ),
}


def test_an_op_says_what_it_leaves_open():
    """A new op type declares every aspect, or is listed in the table above with a reason."""
    names = [name for name in OP_TYPES if OP_TYPES[name].attrs.__module__.startswith("vkmnn.")]
    left: dict[str, set[str]] = {}
    for name in names:
        for aspect in aspects(name):
            assert aspect.text, (name, aspect.name)
            if aspect.left:
                left.setdefault(aspect.name, set()).add(name)
    assert left == {aspect: set(ops) for aspect, (_, ops) in LEFT.items()}


def test_nothing_of_an_op_is_silent(registrations: Snapshot):
    @op_type("BareOp")
    @dataclass(frozen=True, slots=True)
    class BareAttrs(OpAttrs):
        pass

    found = {aspect.name: aspect.left for aspect in aspects("BareOp")}
    needless = ("attributes", "alike", "float16")  # the last two are an execution's
    assert found == {name: name not in needless for name in found}
    assert set(LEFT) | {"attributes"} == set(found)
    (missing,) = fuzzing("BareOp")
    assert missing.left


def test_an_operator_is_written_in_six_places():
    """Vocabulary, shape, axes, numpy, device, converter: other mentions do not count."""
    for operator in supported_ops():
        for name in vocabulary(operator) if operator.domain == "" else ():
            places = {
                OP_TYPES[name].attrs.__module__,
                *(table[name].__module__ for table in (COMPUTERS, EXECUTIONS) if name in table),
                *([AXES[name].make.__module__] if name in AXES else ()),
                *([execution.__module__] if (execution := execution_of(name)) else ()),
                *([made.__module__] if (made := find_converter(operator.name, "", 99)) else ()),
            }
            assert len(places) <= 6, (name, sorted(places))


@pytest.mark.parametrize(("operator", "left"), [("Det", False), ("com.acme::Odd", True)])
def test_the_fuzzer_is_asked_too(operator: str, left: bool):
    assert [one.left for one in fuzzing(operator)] == [left]
    (excused,) = fuzzing("com.microsoft::BiasAdd")
    assert not excused.left
    assert "no kernel" in excused.text
