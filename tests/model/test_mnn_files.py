"""MNN's files match onnxruntime's results for the models from which they were converted."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
from tests.model.mnn_models import OPS, converted, fed
from tests.model.networks import NETWORKS, Net, make_feeds
from tests.model.test_any_model import merged_decoder, search_with_beams, voice_activity
from tests.onnxruntime_oracle import open_oracle
from tests.unit.converter.test_native import mutated
from vkmnn.cli.app import run_cli
from vkmnn.errors import ModelError, UnsupportedOpError, VkmnnError
from vkmnn.opening import load_network
from vkmnn.schema import Buffer, Table, load_schema, write

Case = tuple[onnx.ModelProto, list[dict[str, Any]]]


def one_sample(name: str) -> Case:
    """Return a network with inputs of a batch of one, to which MNN's converter fixes it."""
    network = NETWORKS[name]
    model = network.build()
    sizes = [(1, *size[1:]) for size in network.sizes[:2]]
    return model, [make_feeds(model, size) for size in sizes]


def recurrent(kind: str, gates: int) -> Case:
    net = Net(kind)
    x = net.input("x", (5, 1, 6))
    weights = net.weight(1, gates * 4, 6), net.weight(1, gates * 4, 4), net.weight(1, gates * 8)
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    # With fewer outputs than the operator has, MNN's converter may crash.
    y, h, *_ = net.ops(kind, 3 if kind == "LSTM" else 2, x, *weights, hidden_size=4, **more)
    y = net.op("Squeeze", y, net.ints(1))
    feeds = {"x": np.random.default_rng(3).random((5, 1, 6), "f4")}
    return net.finish({y: (5, 1, 4), h: (1, 1, 4)}), [feeds]


def lstm() -> Case:
    return recurrent("LSTM", 4)


def gru() -> Case:
    return recurrent("GRU", 3)


def autoencoder() -> Case:
    net = Net("autoencoder")
    x = net.input("x", (1, 3, 16, 20))
    y = net.op("PRelu", net.conv(x, 3, 6, 3, 2), net.near_one(6, 1, 1))
    y = net.op("Pad", y, net.ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect")
    y = net.op("InstanceNormalization", y, net.near_one(6), net.near_zero(6), epsilon=1e-5)
    y = net.op("ConvTranspose", y, net.weight(6, 3, 4, 4), strides=[2, 2], pads=[3, 3, 3, 3])
    return net.finish({net.op("Tanh", y): (1, 3, 16, 20)}), [
        {"x": np.random.default_rng(4).random((1, 3, 16, 20), "f4")}
    ]


def classic() -> Case:
    net = Net("classic")
    x = net.input("x", (1, 3, 19, 19))
    y = net.op("LRN", net.relu(net.conv(x, 3, 8, 5, 2)), size=3, alpha=1e-2, beta=0.75)
    y = net.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    y = net.op("AveragePool", y, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    y = net.classifier(y, 8)
    return net.finish({y: (1, 10)}), [{"x": np.random.default_rng(5).random((1, 3, 19, 19), "f4")}]


def of(case: Callable[[], Any]) -> Callable[[], Case]:
    """Return a case without the inputs of another batch."""

    def build() -> Case:
        model, sets = case()
        first = next(iter(sets[0].values()))
        kept = [feeds for feeds in sets if next(iter(feeds.values())).shape[:1] == first.shape[:1]]
        return model, [dict(feeds) for feeds in kept]

    return build


# Wholly, as they do from ONNX.
ON_DEVICE: dict[str, Callable[[], Case]] = {
    **{name: lambda name=name: one_sample(name) for name in NETWORKS},  # type: ignore[misc]
    "autoencoder": autoencoder,
    "classic": classic,
    "lstm": lstm,
    "gru": gru,
}
# Loops whose bodies are no cells of recurrent layers run iteration by iteration.
WITH_CONTROL = {
    "voice_activity": of(voice_activity),
    "merged_decoder": of(merged_decoder),
    "search_with_beams": of(search_with_beams),
}


def agrees(case: Case, path: Path, limit: float = 1e-3, **options: Any) -> None:
    model, sets = case
    oracle = open_oracle(model)
    with vkmnn.InferenceSession(path, **options) as session:
        names = [arg.name for arg in session.get_outputs()]
        for feeds in sets:
            found = dict(zip(names, session.run(None, fed(session, feeds)), strict=True))
            for arg, expected in zip(oracle.get_outputs(), oracle.run(None, feeds), strict=True):
                result = found[arg.name]
                assert result.shape == expected.shape
                if expected.dtype.kind == "f":
                    allowed = limit * max(float(np.ptp(expected)), float(np.abs(expected).max()))
                    np.testing.assert_allclose(result, expected, rtol=0, atol=allowed)
                else:
                    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ON_DEVICE)
def test_network(name: str, tmp_path: Path):
    case = ON_DEVICE[name]()
    agrees(case, converted(case[0], tmp_path), require_device=True)


@pytest.mark.parametrize("name", WITH_CONTROL)
def test_network_with_control_flow(name: str, tmp_path: Path):
    case = WITH_CONTROL[name]()
    agrees(case, converted(case[0], tmp_path))


# Of the range of results: what rounding the weights to so many bits costs these networks.
WEIGHTS = {
    ("--fp16",): 5e-3,
    ("--weightQuantBits", "8"): 3e-2,
    ("--weightQuantBits", "8", "--weightQuantAsymmetric"): 3e-2,
    ("--weightQuantBits", "4", "--weightQuantBlock", "32"): 0.3,
    ("--saveExternalData",): 1e-3,
    ("--saveExternalData", "--fp16"): 5e-3,
    ("--saveExternalData", "--weightQuantBits", "8"): 3e-2,
}


@pytest.mark.parametrize("options", WEIGHTS, ids=" ".join)
@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_weights(name: str, options: tuple[str, ...], tmp_path: Path):
    """In float16, quantised, or in a file of their own."""
    case = one_sample(name)
    agrees(case, converted(case[0], tmp_path, *options), WEIGHTS[options], device="cpu")


@pytest.mark.parametrize("name", OPS)
def test_op(name: str, tmp_path: Path):
    model = OPS[name]
    dims = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(7).standard_normal(dims).astype(np.float32)
    agrees((model, [{"x": x}]), converted(model, tmp_path), device="cpu")


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = converted(NETWORKS["espcn"].build(), tmp_path)
    assert run_cli(["info", str(path)]) == 0
    assert "MNN" in capsys.readouterr().out
    assert run_cli(["convert", str(path), str(tmp_path / "net.vkmnn")]) == 0
    model, (feeds, _) = one_sample("espcn")
    agrees((model, [feeds]), tmp_path / "net.vkmnn", device="cpu")


def test_what_is_not_read_is_named(tmp_path: Path):
    """All of it, by MNN's names."""
    path = converted(OPS["Conv"], tmp_path)
    data = path.read_bytes()
    from vkmnn.schema import Buffer, load_schema

    ops = Buffer(memoryview(data), load_schema("mnn"), "MNN").root().tables("oplists")
    damaged = bytearray(data)
    for op in ops:
        if op.integer("type") == 12:  # a Convolution becomes a Proposal
            place = op._place(5, 4)
            damaged[place : place + 4] = (51).to_bytes(4, "little")
    path.write_bytes(damaged)
    with pytest.raises(UnsupportedOpError, match="Proposal"):
        load_network(str(path))


@pytest.mark.parametrize(
    "content",
    [b"", b"MNN", bytes(64), b"\xff" * 64],
    ids=("empty", "short", "zeros", "ones"),
)
def test_not_a_model(content: bytes, tmp_path: Path):
    (tmp_path / "net.mnn").write_bytes(content)
    with pytest.raises(ModelError):
        load_network(str(tmp_path / "net.mnn"))
    with pytest.raises(ModelError):
        load_network(str(tmp_path / "missing.mnn"))


@pytest.mark.soak
@pytest.mark.parametrize("network", ["detector", "bert"])
def test_mutated(network: str, tmp_path: Path):
    path = converted(NETWORKS[network].build(), tmp_path)
    data, rng = path.read_bytes(), random.Random(network)
    refused = 0
    for _ in range(60):
        path.write_bytes(mutated(data, rng))
        try:
            load_network(str(path))
        except VkmnnError:
            refused += 1
    assert refused > 5


# --- what the converter writes seldom, and what only MNN's own functions write ------------------


def line(op: str, weight: tuple[int, ...], computed: bool = False, **more: Any) -> onnx.ModelProto:
    """A convolution of a line, with weights that are constants or computed."""
    net = Net(op)
    x, w, b = net.input("x", (1, 3, 8)), net.weight(*weight), net.near_zero(4)
    if computed:
        w = net.op("Mul", w, net.input("g", (1,)))
    return net.finish({net.op(op, x, w, b, **more): (1, 4, None)})


LINES = {
    "computed": line("ConvTranspose", (3, 4, 3), True, strides=[2]),
    "computed forward": line("Conv", (4, 3, 3), True, strides=[2], pads=[1, 1]),
    "with a bias": line("ConvTranspose", (3, 4, 4), strides=[2], pads=[1, 1]),
    "same": line("ConvTranspose", (3, 4, 3), strides=[2], auto_pad="SAME_UPPER"),
    "of a size": line("ConvTranspose", (3, 4, 3), strides=[2], output_shape=[17]),
    "with room": line("ConvTranspose", (3, 4, 3), strides=[3], output_padding=[1]),
}


@pytest.mark.parametrize("name", LINES)
def test_convolutions_of_lines(name: str, tmp_path: Path) -> None:
    model = LINES[name]
    session = vkmnn.InferenceSession(converted(model, tmp_path), "cpu")
    feeds = {"x": np.random.default_rng(8).random((1, 3, 8), "f4")}
    if name.startswith("computed"):
        feeds["g"] = np.array([1.5], "f4")
    (want,) = open_oracle(model).run(None, feeds)
    (found,) = session.run(None, feeds)
    np.testing.assert_allclose(found.reshape(want.shape), want, atol=1e-5)


@pytest.mark.parametrize("first", [0, 1])
def test_reversed_sequences(first: int, tmp_path: Path) -> None:
    net = Net("reversed")
    x = net.input("x", (2, 3, 4) if first == 0 else (3, 2, 4))
    axes = {"batch_axis": first, "time_axis": 1 - first}
    model = net.finish({net.op("ReverseSequence", x, net.ints(2, 3), **axes): (None, None, 4)})
    feeds = {"x": np.random.default_rng(8).random(tuple(net_shape(model)), "f4")}
    (want,) = open_oracle(model).run(None, feeds)
    (found,) = vkmnn.InferenceSession(converted(model, tmp_path), "cpu").run(None, feeds)
    np.testing.assert_array_equal(found, want)


def net_shape(model: onnx.ModelProto) -> list[int]:
    return [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]


BY_MNN = """
import sys
from MNN import expr as F
x = F.placeholder([2, 4], F.NCHW)
w, c = F.const([1., 2., 3., 4.], [4], F.NCHW), F.const([5.], [1], F.NCHW)
x.name, w.name, c.name = "x", "w", "c"
y = x * w + c if sys.argv[2] == "scaled" else F.reverse(x, F.const([1], [1], F.NCHW, F.int))
y.name = "y"
F.save([y], sys.argv[1])
"""


def by_mnn(folder: Path, what: str) -> bytes:
    """Return a file that MNN's own functions have written."""
    pytest.importorskip("MNN")
    path = folder / "expr.mnn"
    subprocess.run([sys.executable, "-c", BY_MNN, str(path), what], check=True)
    return path.read_bytes()


def test_reverse(tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    net = vkmnn.Interpreter.from_buffer(by_mnn(tmp_path, "reversed"))  # a buffer, as MNN's may be
    session = net.create_session({"backend": "CPU"})
    session.inputs["x"].copy_from(x)
    net.run_session(session)
    np.testing.assert_array_equal(session.outputs["y"].copy_to(), x[:, ::-1])


@pytest.mark.parametrize(("training", "kept"), [(True, "w"), (False, "c")])
def test_constants_by_what_the_model_is_for(training: bool, kept: str, tmp_path: Path) -> None:
    """Of a model for training, its TrainableParams are written back; of others, the constants."""
    data = bytearray(by_mnn(tmp_path, "scaled"))
    root = Buffer(memoryview(bytes(data)), load_schema("mnn"), "MNN").root()
    (w,) = (op for op in root.tables("oplists") if op.text("name") == "w")
    kind = load_schema("mnn").enums["OpType"]["TrainableParam"]
    data[place(w, "type", 4) : place(w, "type", 4) + 4] = kind.to_bytes(4, "little")
    data[place(root, "usage", 1)] = int(training)
    path = tmp_path / "train.mnn"
    path.write_bytes(data)

    net = vkmnn.Interpreter(path)
    assert net.trainable == {"w"}
    session = net.create_session({"backend": "CPU"})
    new = {"w": np.array([4, 3, 2, 1], "f4"), "c": np.array([-1], "f4")}
    for name, array in new.items():
        net.get_session_constant(session, name).copy_from(array)
    with pytest.raises(vkmnn.InvalidInputError, match="call resize_session"):
        net.update_session_to_model(session)
    net.resize_session(session)
    net.update_session_to_model(session)
    vkmnn.convert(net.graph, tmp_path / "again.vkmnn")
    assert vkmnn.Interpreter(tmp_path / "again.vkmnn").trainable == {"w"}
    x = np.ones((2, 4), "f4")
    old = {"w": np.array([1, 2, 3, 4], "f4"), "c": np.array([5], "f4")} | {kept: new[kept]}
    for one, values in ((session, new), (net.create_session({"backend": "CPU"}), old)):
        one.inputs["x"].copy_from(x)
        net.run_session(one)
        np.testing.assert_allclose(one.outputs["y"].copy_to(), x * values["w"] + values["c"])
    net.release_model()
    with pytest.raises(vkmnn.InvalidInputError, match="released"):
        net.update_session_to_model(session)


def place(table: Table, name: str, size: int) -> int:
    """Return where a scalar of a table is in its file."""
    return table._place(table._fields[name].slot, size)


def made_from(origin: str) -> bytes:
    """Return a file with channels last, as MNN's converter writes them of TensorFlow's formats."""
    schema = load_schema("mnn")
    types, formats = schema.enums["OpType"], schema.enums["MNN_DATA_FORMAT"]
    common = {
        **{f"{name}{axis}": 1 for name in ("stride", "dilate") for axis in "XY"},
        "kernelX": 3,
        "kernelY": 3,
        "outputCount": 2,
        "inputCount": 3,
        "group": 1,
        "padMode": schema.enums["PadMode"]["SAME"],
    }
    convolution = {"common": common, "weight": WEIGHTS_LAST.reshape(-1), "bias": [1.0, 2.0]}
    apart = {"source": formats["NHWC"], "dest": formats["NC4HW4"]}
    back = {"source": formats["NC4HW4"], "dest": formats["NHWC"]}
    steps = [
        ("Input", "x", ("Input", {"dims": [1, 4, 5, 3], "dtype": 1, "dformat": formats["NHWC"]})),
        ("ConvertTensor", "first", ("TensorConvertInfo", apart)),
        ("Convolution", "conv", ("Convolution2D", convolution)),
        ("ConvertTensor", "last", ("TensorConvertInfo", back)),
        ("Softmax", "y", ("Axis", {"axis": -1})),
    ]
    ops = [
        {
            "type": types[kind],
            "name": name,
            "main": main,
            "outputIndexes": [number],
            "inputIndexes": [number - 1] if number else [],
        }
        for number, (kind, name, main) in enumerate(steps)
    ]
    net = {
        "oplists": ops,
        "outputName": ["y"],
        "tensorName": [name for _, name, _ in steps],
        "sourceType": schema.enums["NetSource"][origin],
    }
    return write(schema, net)


WEIGHTS_LAST = np.random.default_rng(0).normal(0, 1, (2, 3, 3, 3)).astype(np.float32)


@pytest.mark.parametrize("origin", ["TENSORFLOW", "TFLITE", "ONNX"])
def test_files_with_channels_last(origin: str) -> None:
    x = np.random.default_rng(1).normal(0, 1, (1, 4, 5, 3)).astype(np.float32)
    session = vkmnn.InferenceSession(made_from(origin), device="cpu")
    assert session.get_inputs()[0].shape == [1, 4, 5, 3]
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    sums = np.einsum("nhwcij,ocij->nhwo", patches, WEIGHTS_LAST) + np.float32([1, 2])
    powers = np.exp(sums - sums.max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-6)
