"""Random models agree with onnxruntime, and earlier failures stay fixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from vkmnn.converter.onnx import supported_ops
from vkmnn.discovery import load_plugins
from vkmnn.errors import DeviceNotFoundError, ModelError
from vkmnn.runtime.device import open_device

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from vkmnn_suite.fuzz.campaign import campaign
from vkmnn_suite.fuzz.case import Case
from vkmnn_suite.fuzz.check import AGREES, DISPUTED, UNEXCUSED, WRONG, check
from vkmnn_suite.fuzz.defined import undefined
from vkmnn_suite.fuzz.models import make_case
from vkmnn_suite.fuzz.options import Options, default_seed, precision_of
from vkmnn_suite.fuzz.oracle import Oracle
from vkmnn_suite.fuzz.recipes import EXCUSED, RECIPES
from vkmnn_suite.fuzz.recipes.table import full_name
from vkmnn_suite.fuzz.shrink import shrink
from vkmnn_suite.fuzz.sketch import LARGE_ELEMENTS, MAX_ELEMENTS

CORPUS = Path(__file__).resolve().parents[1] / "data" / "fuzz"
MODELS = 300


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def device() -> None:
    try:
        open_device("auto")
    except DeviceNotFoundError as error:
        pytest.skip(f"no Vulkan device: {error.message}")


def test_every_operator_has_a_recipe_or_an_excuse():
    load_plugins()
    known = {full_name(entry.name, entry.domain) for entry in supported_ops()}
    own = {name for name in known if "::" not in name or name.startswith("com.microsoft")}
    assert own - set(RECIPES) == set(EXCUSED)
    assert set(RECIPES) <= known


def test_the_same_seed_gives_the_same_model(oracle: Oracle):
    first, second = (make_case(3, 7, oracle) for _ in range(2))
    assert first.model == second.model
    for one, other in zip(first.runs, second.runs, strict=True):
        assert {name: array.tobytes() for name, array in one.items()} == {
            name: array.tobytes() for name, array in other.items()
        }


def test_large_models_are_large(oracle: Oracle):
    made = [make_case(0, number, oracle, ("MatMul", "Add"), large=1.0) for number in range(6)]
    for case in made:
        tensors = oracle.evaluate(case.model, case.runs[0])
        assert MAX_ELEMENTS < max(array.size for array in tensors.values()) <= LARGE_ELEMENTS
        assert {"MatMul", "Add"} & {node.op_type for node in case.model.graph.node}


def test_other_sizes_of_symbolic_axes_stay_small(oracle: Oracle):
    """Several axes of one element next to a long one would all grow."""
    case = make_case(112, 602, oracle, (), large=0.03)
    assert all(array.size <= LARGE_ELEMENTS for feeds in case.runs for array in feeds.values())


def test_a_case_survives_its_file(tmp_path: Path, oracle: Oracle):
    for number in range(20):
        case = make_case(5, number, oracle)
        case.save(tmp_path / "case.onnx")
        read = Case.load(tmp_path / "case.onnx")
        assert read.model.graph == case.model.graph
        assert read.origin == case.origin
        assert len(read.runs) == len(case.runs)
        for one, other in zip(read.runs, case.runs, strict=True):
            assert list(one) == list(other)
            for name, array in one.items():
                assert array.dtype == other[name].dtype
                assert array.shape == other[name].shape
                assert array.tobytes() == other[name].tobytes()


def test_a_model_without_feeds_is_no_case(tmp_path: Path):
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString())
    with pytest.raises(ModelError, match="holds no feeds"):
        Case.load(path)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.onnx")), ids=lambda path: path.stem)
def test_what_once_failed(path: Path, oracle: Oracle, device: None):
    case = Case.load(path)
    verdict = check(case, Options(precision=case.precision), oracle)
    assert not verdict.failed, f"{verdict.kind} {verdict.op} {verdict.detail}"


@pytest.mark.soak
def test_new_models(tmp_path: Path, device: None):
    options = Options(seed=default_seed(), graphs=MODELS, folder=tmp_path)
    report = campaign(options)
    print(report.text())  # noqa: T201 - shown when the test fails
    assert not report.failures
    assert report.kinds[AGREES] > 0.95 * MODELS


@pytest.mark.parametrize(
    ("where", "graphs"),
    [
        ("auto", 18),
        ("cpu", 18),
        pytest.param("auto", MODELS, marks=pytest.mark.soak),
        pytest.param("cpu", MODELS, marks=pytest.mark.soak),
    ],
)
def test_models_at_all_precisions(tmp_path: Path, device: None, where: str, graphs: int):
    options = Options(seed=902, graphs=graphs, folder=tmp_path, device=where, precision="mixed")
    report = campaign(options)
    print(report.text())  # noqa: T201 - shown when the test fails
    assert report.kinds[AGREES] + report.kinds[DISPUTED] > 0.97 * graphs


def test_precisions_take_turns():
    options = Options(precision="mixed")
    assert {precision_of(options, number) for number in range(3)} == {"high", "normal", "low"}
    assert precision_of(Options(precision="low"), 1) == "low"


def test_models_built_on_a_disputed_shape_are_no_failures(oracle: Oracle):
    """onnxruntime rounds a pooling with VALID padding up to 3 elements, which the sum takes."""
    pool = {"kernel_shape": [2], "strides": [2], "auto_pad": "VALID", "ceil_mode": 1}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], **pool),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    for size, fits in ((5, DISPUTED), (4, UNEXCUSED)):
        feeds = {"x": np.ones((1, 1, size), np.float32), "b": np.ones((1, 1, 3), np.float32)}
        graph = helper.make_graph(
            nodes,
            "g",
            [
                helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape)
                for name, array in feeds.items()
            ],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
        assert check(Case(model, (feeds,)), Options(device="cpu"), oracle).kind == fits


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        ("MatMulInteger", "xw", 255 * 127 * 4),
        ("ConvInteger", "xw", 255 * 127 * 4),
        ("QLinearConv", "x10w10t0", 130),
        ("DynamicQuantizeMatMul", "fw1", 255 * 127 * 4),
    ],
)
def test_sums_of_large_codes_do_not_saturate(op: str, inputs: str, expected: float, oracle: Oracle):
    """Without VNNI, onnxruntime adds pairs of products of uint8 and int8 in 16 bits."""
    shape = (1, 4, 1, 1) if "Conv" in op else (1, 4)
    x = np.full(shape, 255, np.uint8)
    arrays = {
        "x": x,
        "f": x.astype(np.float32),
        "w": np.full(shape if "Conv" in op else (4, 1), 127, np.int8),
        "1": np.float32(1),
        "t": np.float32(1000),
    }
    given = [
        np.zeros((), np.int8 if i == 5 else np.uint8) if c == "0" else np.asarray(arrays[c])
        for i, c in enumerate(inputs)
    ]
    domain = "com.microsoft" if op.startswith("Dynamic") else ""
    node = helper.make_node(op, [f"x{i}" for i in range(len(given))], ["y"], domain=domain)
    found = oracle.node(node, {"": 21, "com.microsoft": 1}, given)[0]
    assert found.ravel().tolist() == pytest.approx([expected])


def _open(op: str, *shapes: tuple[int, ...], **attributes: object) -> bool:
    node = helper.make_node(op, [f"x{i}" for i in range(len(shapes))], ["y"], **attributes)
    return undefined(node, [np.zeros(shape, np.float32) for shape in shapes])


def test_what_onnx_leaves_open():
    same = {"auto_pad": "SAME_UPPER", "strides": [3]}
    assert _open("MaxPool", (1, 1, 3), kernel_shape=[1], **same)
    assert not _open("MaxPool", (1, 1, 4), kernel_shape=[1], **same)
    assert _open("GatherND", (1, 3), (2, 1), batch_dims=1)
    assert not _open("GatherND", (2, 3), (2, 1), batch_dims=1)
    assert _open("RotaryEmbedding", (1, 1, 3), (2, 1), (2, 1), num_heads=1)
    assert not _open("RotaryEmbedding", (1, 1, 4), (2, 1), (2, 1), num_heads=2)
    assert _open("DynamicQuantizeMatMul", (2, 0), (0, 3), (), ())
    assert not _open("ReduceMean", (0, 3))
    assert undefined(helper.make_node("ReduceMean", ["x"], ["y"]), [np.zeros((0, 3), np.int32)])
    assert _open("Attention", (1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 2, 4))
    assert not _open("Attention", (1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 3, 4))


@pytest.mark.parametrize(("op", "value"), [("ReduceLogSumExp", 89.0), ("LSTM", np.nan)])
def test_values_that_oracles_compute_otherwise(op: str, value: float):
    node = helper.make_node(op, ["x"], ["y"])
    assert undefined(node, [np.array([value], np.float32)])
    assert not undefined(node, [np.array([80.0], np.float32)])


@pytest.mark.parametrize(("scale", "is_open"), [(0.6, True), (0.625, False), (1.5, False)])
def test_ties_of_nearest_elements(scale: float, is_open: bool):
    """1.5 / 0.6 is 2.5 in float32 and a little less in float64."""
    mode = {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **mode)
    inputs = [np.zeros(4, np.float32), None, np.array([scale], np.float32)]
    assert undefined(node, inputs) is is_open


# --- that it would notice ------------------------------------------------------------------------


def _case(op: str, **attributes: float) -> Case:
    """Return a model of three nodes, the middle one of this operator."""
    names = ["x", "a", "b", "y"]
    ops = ["Transpose", op, "Neg"]
    nodes = [
        helper.make_node(kind, [source], [target], **(attributes if kind == op else {}))
        for kind, source, target in zip(ops, names, names[1:], strict=False)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [5, 7])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    x = np.random.default_rng(0).uniform(-4, 4, (5, 7)).astype(np.float32)
    return Case(model, ({"x": x},))


def test_a_wrong_operator_is_noticed_and_shrunk(monkeypatch: pytest.MonkeyPatch):
    """The oracle is told another slope; what is left is the one node, on one element."""
    oracle = Oracle()
    told = oracle.node

    def other(node: onnx.NodeProto, *rest: object, **named: object) -> list[np.ndarray]:
        if node.op_type == "LeakyRelu":
            changed = onnx.NodeProto()
            changed.CopyFrom(node)
            for attribute in changed.attribute:
                attribute.f += 0.001
            node = changed
        return told(node, *rest, **named)

    monkeypatch.setattr(oracle, "node", other)
    case = _case("LeakyRelu", alpha=0.2)
    options = Options(device="cpu")
    verdict = check(case, options, oracle)
    assert (verdict.kind, verdict.op) == (WRONG, "Neg")

    small = shrink(case, lambda c: check(c, options, oracle).kind == WRONG, oracle)
    assert [node.op_type for node in small.model.graph.node] == ["LeakyRelu"]
    (array,) = small.runs[0].values()
    assert array.size <= 5


@pytest.mark.parametrize("op", ["Sigmoid", "Softplus", "Elu", "Floor"])
def test_right_operators_agree(op: str, oracle: Oracle):
    assert check(_case(op), Options(device="cpu"), oracle).kind == AGREES
