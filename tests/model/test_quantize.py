"""`vkmnn quantize`: models for which onnxruntime agrees, honest reports, typed errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.onnxruntime_oracle import open_oracle
from vkmnn.cli.app import run_cli
from vkmnn.errors import InvalidInputError, MissingExtraError, ModelError, VkmnnError
from vkmnn.quantization.accuracy import _accuracy
from vkmnn.quantization.blocks import pack

Array = np.ndarray[Any, Any]
DOCS = Path(__file__).resolve().parents[2] / "docs"
FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
RANDOM = np.random.default_rng(11)


def weight(*shape: int, dtype: str = "float32") -> Array:
    depth = max(1, int(np.prod(shape[1:])))
    return (RANDOM.standard_normal(shape) / np.sqrt(depth)).astype(dtype)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    constants: dict[str, Array],
    x: tuple[int, list[Any]],
    external: bool = False,
    opset: int = 17,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", *x)],
        [helper.make_tensor_value_info("y", HALF if x[0] == HALF else FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(
        model, path, save_as_external_data=external, location=f"{path.name}.data", size_threshold=64
    )
    return path


def node(op: str, inputs: str, output: str, **more: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=f"{op}_{output}", **more)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small classifier: convolutions, a batch normalisation, a Gemm, an Erf, a MatMul."""
    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[1] * 4),
        node("BatchNormalization", "c1 one b1 b1 one", "n1"),
        node("Relu", "n1", "r1"),
        node("Conv", "r1 w2", "c2", pads=[1] * 4, strides=[2, 2]),
        node("Relu", "c2", "r2"),
        node("GlobalAveragePool", "r2", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f w3 b3", "g", transB=1),
        node("Erf", "g", "e"),
        node("MatMul", "e w4", "y"),
    ]
    constants = {
        "w1": weight(16, 3, 3, 3),
        "b1": weight(16),
        "one": np.ones(16, np.float32),
        "w2": weight(32, 16, 3, 3),
        "w3": weight(64, 32),
        "b3": weight(64),
        "w4": weight(64, 10),
    }
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    return save(path, nodes, constants, (FLOAT, ["N", 3, 16, 16]))


@pytest.fixture(scope="module")
def samples() -> Array:
    return RANDOM.standard_normal((6, 3, 16, 16)).astype(np.float32)


def ort(path: Path, x: Array) -> Array:
    result: Array = open_oracle(path).run(None, {"x": x})[0]
    return result


def types(path: Path) -> list[str]:
    return [one.op_type for one in onnx.load(path).graph.node]


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"weights": "int8"}, 0.02),
        ({"weights": "int8", "symmetric": False, "block": 16}, 0.02),
        ({"weights": "int4"}, 0.3),
        ({"weights": "int4", "symmetric": False}, 0.3),
        ({"weights": "int8", "activations": "uint8"}, 0.1),
        ({"weights": "int8", "activations": "int8", "per_channel": False}, 0.1),
        ({"weights": "int8", "activations": "uint8", "method": "percentile"}, 0.3),
        ({"weights": "int4", "activations": "int8"}, 0.5),
    ],
)
def test_results_are_those_of_onnxruntime(
    net: Path, samples: Array, tmp_path: Path, options: dict[str, Any], allowed: float
) -> None:
    data = {"x": samples}
    made = vkmnn.quantize(net, tmp_path / "q.onnx", calibration=data, **options)
    wanted = ort(made.path, samples)
    plain = ort(net, samples)
    with vkmnn.InferenceSession(made.path) as session:
        result = session.run(None, {"x": samples})[0]
    scale = float(np.ptp(plain))
    # A quantum of the output: where sums of floats differ, a value may round to the other side.
    quantum = scale / 100 if "activations" in options else 1e-5 * scale
    np.testing.assert_allclose(result, wanted, rtol=0, atol=quantum)
    (accuracy,) = made.accuracy
    assert made.samples == len(samples)
    assert not made.made_up
    assert 0 < accuracy.relative < allowed
    lost = float(np.abs(wanted - plain).max())
    assert accuracy.largest == pytest.approx(lost, abs=2 * quantum)
    assert accuracy.relative == pytest.approx(accuracy.largest / scale, rel=1e-3)
    assert accuracy.top1 == pytest.approx(np.mean(result.argmax(1) == plain.argmax(1)), abs=1e-6)
    total = [sum(size.nbytes for size in side.values()) for side in (made.before, made.after)]
    assert made.before == {"float32": (7824, 31296)}
    assert total[1] < total[0] * (0.75 if options == {"weights": "int4"} else 0.76)
    assert made.path.stat().st_size < net.stat().st_size


def test_what_stays_in_float_is_listed_with_reasons(net: Path, tmp_path: Path) -> None:
    made = vkmnn.quantize(
        net, tmp_path / "q.onnx", weights="int4", exclude=["Gemm_g"], device="cpu"
    )
    assert made.quantized == ("MatMul_y",)
    assert {one.name: one.reason for one in made.in_float} == {
        "Conv_c1": "convolutions are stored in 8 bits, not in 4",
        "Conv_c2": "convolutions are stored in 8 bits, not in 4",
        "Gemm_g": "excluded",
    }
    assert made.made_up
    assert made.samples == 4


def test_nodes_that_static_quantisation_leaves(net: Path, samples: Array, tmp_path: Path) -> None:
    made = vkmnn.quantize(
        net,
        tmp_path / "q.onnx",
        weights="int8",
        activations="int8",
        calibration={"x": samples},
        exclude=["Conv_c2", "BatchNormalization_n1"],
        device="cpu",
    )
    reasons = {one.op: one.reason for one in made.in_float}
    assert reasons["Conv"] == "excluded"
    assert sum(one.op == "Conv" for one in made.in_float) == 2  # one is the normalisation's, too
    assert reasons["Erf"] == "onnxruntime's tools have no quantised form of Erf"
    assert reasons["Relu"] == "its input comes in float from Conv"
    assert {"Gemm_g", "MatMul_y"} <= set(made.quantized)


@pytest.mark.parametrize("lowest", [-1e4, float(np.finfo(np.float32).min), -np.inf])
@pytest.mark.parametrize("activations", ["int8", "uint8"])
def test_masks_do_not_take_the_range(tmp_path: Path, activations: Any, lowest: float) -> None:
    nodes = [
        node("MatMul", "x w", "s"),
        node("Trilu", "all upper", "upper_part", upper=1),
        node("Cast", "upper_part", "hidden", to=TensorProto.BOOL),
        node("Where", "hidden lowest s", "masked"),
        node("Softmax", "masked", "p"),
        node("MatMul", "p v", "y"),
    ]
    constants = {
        "w": 4 * weight(16, 16),
        "all": np.ones((16, 16), np.float32),
        "upper": np.array(1),
        "lowest": np.array(lowest, np.float32),
        "v": weight(16, 16),
    }
    path = save(tmp_path / "m.onnx", nodes, constants, (FLOAT, [16, 16]))
    x = RANDOM.standard_normal((5, 16, 16)).astype(np.float32)
    made = vkmnn.quantize(
        path,
        tmp_path / "q.onnx",
        weights="int8",
        activations=activations,
        calibration={"x": x},
        device="cpu",
    )
    assert made.accuracy[0].relative < 0.05
    reasons = {one.op: one.reason for one in made.in_float}
    assert "masks" in reasons["Where"]
    assert "masks" in reasons["Softmax"]
    assert {"MatMul_s", "MatMul_y"} <= set(made.quantized)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_tables_and_what_shares_them(tmp_path: Path, weights: Any, dtype: str) -> None:
    """An embedding, the same matrix transposed as the last product, and one after an Identity."""
    nodes = [
        node("Gather", "table x", "h"),
        node("Identity", "w", "same"),
        node("MatMul", "h same", "m"),
        node("Add", "m h", "s"),
        node("MatMul", "s w", "t"),
        node("Transpose", "table", "turned", perm=[1, 0]),
        node("MatMul", "t turned", "logits"),
        node("Cast", "logits", "y", to=FLOAT),
    ]
    constants = {"table": weight(101, 64, dtype=dtype), "w": weight(64, 64, dtype=dtype)}
    path = save(tmp_path / "m.onnx", nodes, constants, (INT64, ["N"]))
    made = vkmnn.quantize(path, tmp_path / "q.onnx", weights=weights)
    assert made.in_float == ()
    assert types(made.path) == [
        *("GatherBlockQuantized", "MatMulNBits", "Add", "MatMulNBits", "MatMulNBits", "Cast"),
    ]
    assert len(onnx.load(made.path).graph.initializer) == 6  # w once, the table in two forms
    ids = np.arange(17)
    plain, wanted = ort(path, ids), ort(made.path, ids)
    assert np.abs(wanted - plain).max() < np.ptp(plain) * (0.02 if weights == "int8" else 0.2)
    with vkmnn.InferenceSession(made.path) as session:
        result = session.run(None, {"x": ids})[0]
    scale = np.ptp(plain)
    np.testing.assert_allclose(result, wanted, atol=scale * (1e-5 if dtype == "float32" else 5e-3))


def test_matrices_that_cannot_be_packed_say_why(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x three", "a"),
        node("Gemm", "flat half", "b", alpha=0.5),
        node("MatMul", "a a", "c"),
        node("MatMul", "c bad", "d"),
        node("MatMul", "d tiny", "e"),
        node("ReduceSum", "e", "s", keepdims=0),
        node("ReduceSum", "b", "q", keepdims=0),
        node("Add", "s q", "y"),
        node("Flatten", "d", "unused"),
    ]
    nodes.insert(0, node("Reshape", "x shape", "flat"))
    bad = weight(32, 32)
    bad[3, 4] = np.nan
    constants = {
        "three": weight(2, 32, 32),
        "half": weight(32, 16),
        "bad": bad,
        "tiny": weight(32, 1)[:, :1] * 0 + 1,
        "shape": np.array([-1, 32]),
    }
    path = save(tmp_path / "m.onnx", nodes, constants, (FLOAT, [2, 32, 32]))
    made = vkmnn.quantize(path, tmp_path / "q.onnx", weights="int8", block=256, compare=False)
    assert {one.name: one.reason for one in made.in_float} == {
        "MatMul_a": "its weights have 3 dimensions",
        "Gemm_b": "alpha or beta is not 1",
        "MatMul_c": "the operand that would be its weights is computed",
        "MatMul_d": "its weights hold NaN or infinity",
        "MatMul_e": "in blocks of 256 its weights would take more than they do",
    }
    assert made.accuracy == ()


def test_weights_inside_branches(tmp_path: Path) -> None:
    def branch(name: str) -> onnx.GraphProto:
        product = node("MatMul", f"x {name}", f"{name}_y")
        output = helper.make_tensor_value_info(f"{name}_y", FLOAT, None)
        return helper.make_graph([product], name, [], [output], [inner] if name == "left" else [])

    inner = numpy_helper.from_array(weight(32, 32), "left")
    nodes = [
        node("ReduceMax", "x", "top", keepdims=0),
        node("Greater", "top zero", "positive"),
        node("If", "positive", "y", then_branch=branch("left"), else_branch=branch("right")),
    ]
    constants = {"zero": np.float32(0)[()] * np.ones((), np.float32), "right": weight(32, 32)}
    path = save(tmp_path / "m.onnx", nodes, constants, (FLOAT, [4, 32]))
    made = vkmnn.quantize(path, tmp_path / "q.onnx", weights="int8", device="cpu")
    assert set(made.quantized) == {"MatMul_left_y", "MatMul_right_y"}
    assert set(made.after) == {"8-bit codes", "float32"}
    for sign in (1, -1):
        x = sign * np.abs(RANDOM.standard_normal((4, 32)).astype(np.float32))
        plain = ort(path, x)
        np.testing.assert_allclose(ort(made.path, x), plain, atol=0.02 * np.ptp(plain))


@pytest.mark.parametrize("activations", [None, "uint8"])
def test_external_data(samples: Array, net: Path, tmp_path: Path, activations: Any) -> None:
    model = tmp_path / "big.onnx"
    onnx.save(
        onnx.load(net), model, save_as_external_data=True, location="big.bin", size_threshold=64
    )
    made = vkmnn.quantize(
        model,
        tmp_path / "q.onnx",
        weights="int8",
        activations=activations,
        calibration={"x": samples},
        device="cpu",
    )
    assert made.files == (tmp_path / "q.onnx", tmp_path / "q.onnx.data")
    assert made.files[1].stat().st_size > 0
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        *("big.bin", "big.onnx", "q.onnx", "q.onnx.data"),
    ]
    plain = ort(net, samples)
    assert np.abs(ort(made.path, samples) - plain).max() < 0.1 * np.ptp(plain)


def test_weights_of_the_float_model_are_not_overwritten(net: Path, tmp_path: Path) -> None:
    """A model that was renamed still reads the file of weights that it was saved with."""
    model, renamed = tmp_path / "net.onnx", tmp_path / "float.onnx"
    location = "net.onnx.data"
    proto = onnx.load(net)
    onnx.save(proto, model, save_as_external_data=True, location=location, size_threshold=64)
    model.rename(renamed)
    weights = (tmp_path / location).read_bytes()
    with pytest.raises(InvalidInputError, match=r"net\.onnx\.data' holds weights of the float"):
        vkmnn.quantize(renamed, model, device="cpu")
    assert (tmp_path / location).read_bytes() == weights
    assert not model.exists()
    vkmnn.quantize(renamed, model, external_data=False, compare=False)
    assert (tmp_path / location).read_bytes() == weights
    renamed.replace(model)
    vkmnn.quantize(model, model, compare=False)  # one that replaces itself takes its weights along
    assert (tmp_path / location).read_bytes() != weights


def test_models_too_large_for_one_file(
    net: Path, samples: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file on the way, and the result, then has its weights beside it."""
    options: dict[str, Any] = {"activations": "int8", "calibration": {"x": samples}}
    small = vkmnn.quantize(net, tmp_path / "small.onnx", device="cpu", **options)
    monkeypatch.setattr("vkmnn.quantization.model._LARGE", 0)
    large = vkmnn.quantize(net, tmp_path / "large.onnx", device="cpu", **options)
    assert [one.name for one in small.files] == ["small.onnx"]
    assert [one.name for one in large.files] == ["large.onnx", "large.onnx.data"]
    assert (large.after, large.accuracy) == (small.after, small.accuracy)
    np.testing.assert_array_equal(ort(large.path, samples), ort(small.path, samples))


def test_only_progress_is_printed(
    net: Path, samples: Array, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tools print in the course of some methods, and what they log is not the user's."""
    vkmnn.quantize(
        net,
        tmp_path / "q.onnx",
        activations="uint8",
        calibration={"x": samples},
        method="entropy",
        device="cpu",
        progress=print,
    )
    shown = capsys.readouterr()
    stages = [
        *("preparing 0 1", *(f"calibrating {number} 6" for number in range(1, 7))),
        *("quantising 0 1", *(f"comparing {number} 12" for number in range(1, 13))),
    ]
    assert shown.out.splitlines() == stages
    assert shown.err == ""


def test_a_model_may_replace_itself(net: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(net.read_bytes())
    made = vkmnn.quantize(path, path, weights="int8", device="cpu")
    assert "DequantizeLinear" in types(path)
    assert made.accuracy[0].relative < 0.02


@pytest.mark.parametrize("source", ["bytes", "proto"])
def test_other_forms_of_a_model(net: Path, tmp_path: Path, source: str) -> None:
    model = net.read_bytes() if source == "bytes" else onnx.load(net)
    before = onnx.load(net)
    made = vkmnn.quantize(model, tmp_path / "q.onnx", weights="int4", device="cpu")
    assert len(made.quantized) == 2
    if source == "proto":
        assert model == before  # the caller's own


X = np.zeros((4, 3, 16, 16), np.float32)
MANY = np.where(np.arange(X.size).reshape(X.shape) == 5, np.nan, X)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "nothing for input 'x'"),
        ({"z": X}, "has 'z', and the model has no such input"),
        ({"x": X.astype(np.float64)}, "input 'x' is of float64, and the input of float32"),
        ({"x": X[:, :2]}, r"input 'x' has the shape \[4, 2, 16, 16\], and the input \[N, 3, 16"),
        ({"x": X[0, 0]}, r"input 'x' has the shape \[16, 16\]"),
        ({"x": np.zeros((), np.float32)}, "input 'x' has the shape"),
        ({"x": X[:0]}, "input 'x' is empty"),
        ({"x": X[None, :0]}, "input 'x' is empty"),
        ({"x": MANY}, "1 of the 3072 calibration values of input 'x' are NaN"),
        ({"x": np.full_like(X, np.inf)}, "3072 of the 3072 calibration values of input 'x'"),
        ("missing.npz", "no such file"),
        (__file__, "cannot be read"),
    ],
)
def test_bad_calibrations(net: Path, tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        vkmnn.quantize(
            net, tmp_path / "q.onnx", weights="int8", activations="uint8", calibration=data
        )
    assert not list(tmp_path.iterdir())


def test_calibrations_that_fit(net: Path, samples: Array, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=samples)
    np.save(tmp_path / "data.npy", samples)
    batches = samples.reshape(2, 3, 3, 16, 16)
    counts = []
    for data in (tmp_path / "data.npz", str(tmp_path / "data.npy"), {"x": samples}, {"x": batches}):
        made = vkmnn.quantize(
            net, tmp_path / "q.onnx", weights="int8", calibration=data, device="cpu"
        )
        counts.append(made.samples)
    assert counts == [6, 6, 6, 2]


def two_inputs(path: Path) -> Path:
    infos = [
        helper.make_tensor_value_info(name, FLOAT, dims)
        for name, dims in (("a", [2, "K"]), ("b", ["K", 8]))
    ]
    output = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph([node("MatMul", "a b", "y")], "two", infos, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_samples_of_several_inputs(tmp_path: Path) -> None:
    model = two_inputs(tmp_path / "m.onnx")
    a, b = weight(6, 5), weight(3, 5, 8)

    def run(**data: Array) -> int:
        made = vkmnn.quantize(
            model,
            tmp_path / "q.onnx",
            weights="int8",
            activations="uint8",
            calibration=data,
            device="cpu",
        )
        return made.samples

    assert run(a=a, b=b) == 3
    assert run(a=a, b=b[:1]) == 3  # one that serves all
    with pytest.raises(InvalidInputError, match="2 samples of input 'b', and 3"):
        run(a=a, b=b[:2])
    with pytest.raises(InvalidInputError, match=r"input 'a' has the shape \[5, 5\]"):
        run(a=a[:5], b=b)
    with pytest.raises(InvalidInputError, match=r"dimension 'K' is 4 in .* input 'b', and 5"):
        run(a=a, b=b[:, :4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int3"}, "weights cannot be 'int3'"),
        ({"block": 24}, "block cannot be 24"),
        ({"activations": "int16"}, "activations cannot be 'int16'"),
        ({"method": "guess"}, "method cannot be 'guess'"),
        ({"activations": "uint8"}, "need calibration data"),
        ({"exclude": ["Conv_c9"]}, "no node 'Conv_c9'"),
        ({"exclude": "Conv_c9"}, r"exclude is a list of names, not 'Conv_c9'\n.*\['Conv_c9'\]"),
        ({"sizes": {"M": 2}}, "no input has a dimension 'M'"),
    ],
)
def test_bad_options(net: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        vkmnn.quantize(net, tmp_path / "q.onnx", **options)
    with pytest.raises(InvalidInputError, match=r"does not end with \.onnx"):
        vkmnn.quantize(net, tmp_path / "q.vkmnn")
    for write in (vkmnn.quantize, vkmnn.convert):
        with pytest.raises(InvalidInputError, match=r"the path to write must be .*, not NoneType"):
            write(net, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="cannot be written"):
        vkmnn.quantize(net, tmp_path / "nowhere" / "q.onnx")
    with pytest.raises(ModelError):
        vkmnn.quantize(tmp_path / "missing.onnx", tmp_path / "q.onnx")


def test_a_vkmnn_file_is_named(net: Path, tmp_path: Path) -> None:
    vkmnn.convert(net, tmp_path / "net.vkmnn")
    with pytest.raises(ModelError, match=r"is a \.vkmnn file, not an ONNX model\n.*made from"):
        vkmnn.quantize(tmp_path / "net.vkmnn", tmp_path / "q.onnx")


@pytest.mark.parametrize("package", ["onnxruntime.quantization", "onnxruntime.capi._pybind_state"])
def test_without_onnxruntime(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vkmnn\[quantize\]'"):
        vkmnn.quantize(net, tmp_path / "q.onnx")


@pytest.mark.parametrize(
    "stage", ["preparing", "calibrating", "quantising", "comparing", "packing weights"]
)
def test_an_interruption_leaves_what_was_there(
    net: Path, samples: Array, tmp_path: Path, stage: str
) -> None:
    seen = []

    def progress(what: str, done: int, total: int) -> None:
        seen.append((what, done, total))
        if what == stage and done == min(1, total) * (what not in ("preparing", "quantising")):
            raise KeyboardInterrupt

    output = tmp_path / "q.onnx"
    output.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        vkmnn.quantize(
            net,
            output,
            activations=None if stage == "packing weights" else "uint8",
            calibration={"x": samples},
            device="cpu",
            progress=progress,
        )
    assert [one.name for one in tmp_path.iterdir()] == ["q.onnx"]
    assert output.read_bytes() == b"before"


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(1, 1), (37, 3), (64, 5), (16, 1)])
def test_codes_are_the_nearest(shape: tuple[int, int], bits: int, symmetric: bool) -> None:
    matrix = RANDOM.standard_normal(shape).astype(np.float32)
    codes, scales, zeros = pack(matrix, bits, 16, symmetric)
    flat = codes.reshape(shape[1], -1)
    numbers = np.stack([flat & 15, flat >> 4], -1).reshape(shape[1], -1) if bits == 4 else flat
    zero = np.stack([zeros & 15, zeros >> 4], -1).reshape(shape[1], -1) if bits == 4 else zeros
    blocks = scales.shape[1]
    middle = np.full_like(scales, 1 << (bits - 1)) if symmetric else zero[:, :blocks]
    wide = [np.repeat(one, 16, axis=1)[:, : shape[0]] for one in (middle, scales)]
    back = (numbers[:, : shape[0]].astype(np.float32) - wide[0]) * wide[1]
    # Symmetric codes reach one step further down than up, and zero points are rounded as well.
    assert (np.abs(back - matrix.T) <= 1.01 * np.abs(wide[1])).all()


def test_differences() -> None:
    want = np.array([[1.0, 3.0], [5.0, 2.0]], np.float32)
    same = _accuracy("y", [want], [want])
    assert (same.largest, same.relative, same.top1) == (0, 0, 1)
    other = _accuracy("y", [want, want], [want, want[::-1]])
    assert (other.largest, other.relative, other.top1) == (4, 1, 0.5)
    nothing = np.full_like(want, np.nan)
    assert _accuracy("y", [want], [nothing]).largest == np.inf
    assert _accuracy("y", [nothing], [nothing]).largest == 0
    assert _accuracy("y", [want], [want[:1]]).relative == np.inf
    assert _accuracy("y", [want[:0]], [want[:0]]).largest == 0
    assert _accuracy("y", [want.astype(np.int64)], [want.astype(np.int64)]).top1 is None


def test_the_command(net: Path, samples: Array, tmp_path: Path, capsys: Any) -> None:
    np.savez(tmp_path / "data.npz", x=samples)
    output = tmp_path / "q.onnx"
    arguments = ["quantize", net, output, "--weights", "int8", "-d", "cpu"]
    assert run_cli([*map(str, arguments)]) == 0
    shown = capsys.readouterr()
    assert re.search(r"all +30\.6 KiB +\d\.\d KiB \((\d+\.\d)%\)", shown.out)
    assert re.search(r"8-bit codes +– +2.6 KiB", shown.out)
    assert "4 nodes quantised, 0 in float" in shown.out
    assert "on 4 random inputs" in shown.out
    assert f"{output}: " in shown.err
    more = ["-a", "uint8", "--calibrate", tmp_path / "data.npz", "-x", "Conv_c2"]
    assert run_cli([*map(str, [*arguments, *more])]) == 0
    shown = capsys.readouterr()
    assert "on 6 calibration samples" in shown.out
    assert re.search(r"Conv +1 +excluded +Conv_c2", shown.out)
    assert re.search(r"\n +y +0\.\d+ +\d\.\de-0\d +\d+\.\d%", shown.out)
    assert run_cli([*map(str, [*arguments, "-a", "uint8"])]) == 1
    assert "--calibrate" in capsys.readouterr().err
    assert run_cli([*map(str, [*arguments, "--size", "N=many"])]) == 1
    assert "'many' is not a list of sizes" in capsys.readouterr().err


def test_info_names_what_is_packed(net: Path, tmp_path: Path, capsys: Any) -> None:
    for weights, shown in (("int8", "int8 5.0 KiB, 8-bit codes 2.6 KiB"), ("int4", "4-bit codes")):
        path = tmp_path / "q.onnx"
        vkmnn.quantize(net, path, weights=weights, compare=False)  # type: ignore[arg-type]
        vkmnn.convert(path, tmp_path / "q.vkmnn")
        assert run_cli(["info", str(path)]) == 0
        assert shown in capsys.readouterr().out
        assert run_cli(["info", str(tmp_path / "q.vkmnn")]) == 0
        assert f"{weights[3]}-bit codes" in capsys.readouterr().out


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "y")]
    constants = {"w": weight(3, 64), "v": weight(64, 10)}
    save(tmp_path / "model.onnx", nodes, constants, (FLOAT, ["N", 3]))
    page = (DOCS / "quantization.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "quantization.md", "exec"), names)  # noqa: S102 - the page is ours
    assert names["made"].accuracy[0].relative < 0.1
    options = set(re.findall(r"(?<![-\w])--[a-z][a-z-]+", page))
    help_text = " ".join(_options())
    assert {one for one in options if one not in help_text} == set()


def _options() -> list[str]:
    import typer

    from vkmnn.cli.app import app

    command: Any = typer.main.get_command(app)
    parameters = command.commands["quantize"].params
    return [text for one in parameters for text in (*one.opts, *one.secondary_opts)]


def test_errors_of_the_tools_are_typed(net: Path, tmp_path: Path) -> None:
    broken = onnx.load(net)
    broken.graph.node[3].input[0] = "nothing"
    with pytest.raises(VkmnnError):
        vkmnn.quantize(
            broken,
            tmp_path / "q.onnx",
            activations="uint8",
            calibration={"x": np.zeros((1, 3, 16, 16), np.float32)},
        )
    assert not list(tmp_path.iterdir())
