"""Whole TFLite files: other sizes, other formats, quantised networks, hostile files."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.model.test_tflite_ops import compare
from tests.model.tflite_ops import CASES
from tests.tflite_files import OPERATORS, SCHEMA, Oracle, Writer, parsed
from vkmnn.cli.app import run_cli
from vkmnn.converter.tflite import reads_custom
from vkmnn.converter.tflite.custom import CUSTOM_READERS
from vkmnn.converter.tflite.front_end import read_ops
from vkmnn.converter.tflite.nodes import LiteOp
from vkmnn.errors import ModelError, UnsupportedOpError, VkmnnError
from vkmnn.opening import load_network
from vkmnn.schema import write

_RANDOM = np.random.default_rng(2)


def weights(*shape: int, scale: float = 0.4) -> np.ndarray:
    return _RANDOM.normal(0, scale, shape).astype(np.float32)


def picture_network(batch: int = 1, side: int = 12) -> bytes:
    """Convolutions, poolings, a residual, joined channels, a resize, and a softmax, with NHWC."""
    writer = Writer()
    open_ = batch < 0

    def tensor(*shape: int) -> int:
        return writer.tensor((batch, *shape))

    size = -1 if open_ else side
    half, quarter = (-1, -1) if open_ else (side // 2, side // 4)
    x = tensor(size, size, 3)
    conv = ("Conv2DOptions", {"stride_w": 2, "stride_h": 2, "fused_activation_function": 3})
    unit = ("Conv2DOptions", {"stride_w": 1, "stride_h": 1})
    a = tensor(half, half, 8)
    writer.op("CONV_2D", [x, *map(writer.constant, (weights(8, 3, 3, 3), weights(8)))], [a], conv)
    b = tensor(half, half, 8)
    deep = ("DepthwiseConv2DOptions", {"stride_w": 1, "stride_h": 1, "depth_multiplier": 1})
    operands = map(writer.constant, (weights(1, 3, 3, 8), weights(8)))
    writer.op("DEPTHWISE_CONV_2D", [a, *operands], [b], deep)
    c, d = tensor(half, half, 8), tensor(half, half, 8)
    writer.op("PRELU", [b, writer.constant(weights(1, 1, 8))], [c])
    writer.op("ADD", [a, c], [d])
    window = {"stride_w": 2, "stride_h": 2, "filter_width": 2, "filter_height": 2}
    e, f = tensor(quarter, quarter, 8), tensor(quarter, quarter, 8)
    writer.op("MAX_POOL_2D", [d], [e], ("Pool2DOptions", window))
    writer.op("AVERAGE_POOL_2D", [d], [f], ("Pool2DOptions", window))
    g = tensor(quarter, quarter, 16)
    writer.op("CONCATENATION", [e, f], [g], ("ConcatenationOptions", {"axis": 3}))
    h = tensor(6, 6, 16)
    writer.op("RESIZE_BILINEAR", [g, writer.constant(np.int32([6, 6]))], [h])
    i, j = tensor(6, 6, 4), tensor(6, 6, 4)
    writer.op("CONV_2D", [h, *map(writer.constant, (weights(4, 1, 1, 16), weights(4)))], [i], unit)
    writer.op("SOFTMAX", [i], [j], ("SoftmaxOptions", {"beta": 1.0}))
    writer.faces([x], [j])
    return writer.finish()


def transposes(model: bytes) -> int:
    return sum(op.type in ("Transpose", "Permute") for op in load_network(model).graph.ops)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_network_of_pictures(device: str) -> None:
    model = picture_network()
    x = weights(1, 12, 12, 3)
    session = vkmnn.InferenceSession(model, device=device, require_device=device == "auto")
    compare(session.run(None, {"t0": x})[0], Oracle(model).run(x)[0], 1e-4)
    assert transposes(model) <= 2


def dilated_network(kind: str) -> bytes:
    """A convolution of blocks that become batches and back; padded before, cropped after."""
    writer = Writer()
    by = {"scale": 0.05, "zero": -3} if kind == "INT8" else {}
    to = {"scale": 0.1, "zero": 5} if kind == "INT8" else {}
    x = writer.tensor((1, 7, 9, 4), kind, **by)
    block = writer.constant(np.array([2, 3], np.int32))
    edges = writer.constant(np.array([[2, 3], [3, 3]], np.int32))
    crops = writer.constant(np.array([[0, 1], [0, 0]], np.int32))
    spread, made = writer.tensor((6, 6, 5, 4), kind, **by), writer.tensor((6, 4, 3, 5), kind, **to)
    writer.op("SPACE_TO_BATCH_ND", [x, block, edges], [spread])
    filters, bias = weights(5, 3, 3, 4), weights(5)
    if kind == "INT8":
        array = (filters * 80).clip(-127, 127).astype(np.int8)
        operands = [
            writer.constant(array, scale=0.0125),
            writer.constant((bias * 1600).astype(np.int32), scale=0.05 * 0.0125),
        ]
    else:
        operands = [writer.constant(filters), writer.constant(bias)]
    step = {"padding": 1, "stride_w": 1, "stride_h": 1, "fused_activation_function": 1}
    version = 3 if kind == "INT8" else 1
    writer.op("CONV_2D", [spread, *operands], [made], ("Conv2DOptions", step), version=version)
    y = writer.tensor((1, 7, 9, 5), kind, **to)
    writer.op("BATCH_TO_SPACE_ND", [made, block, crops], [y])
    writer.faces([x], [y])
    return writer.finish()


@pytest.mark.parametrize("kind", ["FLOAT32", "INT8"])
def test_blocks_around_convolutions_are_dilations(kind: str) -> None:
    model = dilated_network(kind)
    x = weights(1, 7, 9, 4)
    x = x if kind == "FLOAT32" else (x * 99).clip(-128, 127).astype(np.int8)
    session = vkmnn.InferenceSession(model, device="cpu")
    compare(
        session.run(None, {"t0": x})[0], Oracle(model).run(x)[0], 1e-5 if x.dtype == "f4" else 1
    )
    kinds = Counter(op.type for op in load_network(model).graph.ops)
    assert kinds["Convolution"] + kinds["QuantizedConvolution"] == 1
    assert not kinds["Reshape"]
    assert transposes(model) <= 2


def line_network() -> bytes:
    """Convolutions and a pooling of lines, as pictures of one row in between."""
    writer = Writer()
    x = writer.tensor((1, 12, 3))
    step = {"padding": 0, "stride_w": 1, "stride_h": 1}
    convolve = ("Conv2DOptions", step)
    pool = ("Pool2DOptions", {**step, "stride_w": 2, "filter_width": 2, "filter_height": 1})
    length, depth = 12, 3
    for kind in ("CONV_2D", "MAX_POOL_2D", "CONV_2D"):
        wide = writer.tensor((1, 1, length, depth))
        writer.op("RESHAPE", [x, writer.constant(np.int32([1, 1, length, depth]))], [wide])
        operands: list[int] = []
        if kind == "CONV_2D":
            operands = [writer.constant(weights(8, 1, 3, depth)), writer.constant(weights(8))]
            depth = 8
        else:
            length //= 2
        made, x = writer.tensor((1, 1, length, depth)), writer.tensor((1, length, depth))
        writer.op(kind, [wide, *operands], [made], convolve if operands else pool)
        writer.op("SQUEEZE", [made], [x], ("SqueezeOptions", {"squeeze_dims": [1]}))
    writer.faces([0], [x])
    return writer.finish()


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_network_of_lines(device: str) -> None:
    model, x = line_network(), weights(1, 12, 3)
    session = vkmnn.InferenceSession(model, device=device)
    compare(session.run(None, {"t0": x})[0], Oracle(model).run(x)[0], 1e-5)
    assert transposes(model) <= 2


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_other_sizes(device: str, tmp_path: Path) -> None:
    """If sizes are open, any; if they are not, by input_shapes; stored in .vkmnn likewise."""
    (tmp_path / "m.tflite").write_bytes(picture_network(-1))
    vkmnn.convert(tmp_path / "m.tflite", tmp_path / "m.vkmnn")
    (tmp_path / "fixed.tflite").write_bytes(picture_network())
    shape = (2, 20, 20, 3)
    sessions = [
        *(
            vkmnn.InferenceSession(tmp_path / f"m.{kind}", device=device)
            for kind in ("tflite", "vkmnn")
        ),
        vkmnn.InferenceSession(
            tmp_path / "fixed.tflite", device=device, input_shapes={"t0": shape}
        ),
    ]
    for session in sessions[:2]:
        for sizes in ((1, 12, 12, 3), shape, (3, 13, 9, 3)):
            x = weights(*sizes)
            wanted = Oracle((tmp_path / "m.tflite").read_bytes()).run(x)[0]
            compare(session.run(None, {"t0": x})[0], wanted, 1e-4)
    x = weights(*shape)
    wanted = Oracle((tmp_path / "fixed.tflite").read_bytes()).run(x)[0]
    compare(sessions[2].run(None, {"t0": x})[0], wanted, 1e-4)


@pytest.mark.parametrize("side", [5, 8])
def test_transposed_convolutions_of_open_sizes(side: int) -> None:
    """The sizes of the result are computed from those of the input."""
    writer = Writer()
    x, y = writer.tensor((1, -1, -1, 2)), writer.tensor((1, -1, -1, 3))
    shape, twice = writer.tensor((4,), "INT32"), writer.tensor((4,), "INT32")
    more = writer.tensor((4,), "INT32")
    writer.op("SHAPE", [x], [shape], ("ShapeOptions", {"out_type": 2}))
    writer.op("MUL", [shape, writer.constant(np.int32([1, 2, 2, 0]))], [twice])
    writer.op("ADD", [twice, writer.constant(np.int32([0, 0, 0, 3]))], [more])
    writer.op(
        "TRANSPOSE_CONV",
        [more, writer.constant(weights(3, 3, 1, 2)), x],
        [y],
        ("TransposeConvOptions", {"padding": 0, "stride_w": 2, "stride_h": 2}),
    )
    writer.faces([x], [y])
    model = writer.finish()
    array = weights(1, side, side + 2, 2)
    session = vkmnn.InferenceSession(model, device="cpu")
    compare(session.run(None, {"t0": array})[0], Oracle(model).run(array)[0], 1e-5)


def test_quantised_inputs_say_what_they_stand_for(tmp_path: Path) -> None:
    case = CASES["CONV_2D in INT8"]
    (tmp_path / "m.tflite").write_bytes(case.model)
    vkmnn.convert(tmp_path / "m.tflite", tmp_path / "m.vkmnn")
    for name in ("m.tflite", "m.vkmnn"):
        session = vkmnn.InferenceSession(tmp_path / name, device="cpu")
        (given,), (made,) = session.get_inputs(), session.get_outputs()
        assert (given.dtype, made.dtype) == ("int8", "int8")
        assert given.quantization == (pytest.approx(0.05), -7)
        assert made.quantization == (pytest.approx(0.11), 5)
    plain = vkmnn.InferenceSession(picture_network(), device="cpu")
    assert plain.get_inputs()[0].quantization is None


# --- networks of quantised values, operator by operator ------------------------------------------

FILES = Path(__file__).resolve().parents[1] / "data" / "tflite"


def alone(model: bytes) -> Iterator[tuple[str, bytes, list[int], list[int]]]:
    """Yield each operator as a file of its own, with its input and output tensors."""
    values = parsed(model)
    graph = values["subgraphs"][0]
    for op in graph["operators"]:
        code = values["operator_codes"][op["opcode_index"]]
        number = max(code["builtin_code"], code["deprecated_builtin_code"])
        name = next(name for name, value in OPERATORS.items() if value == number)
        computed = [
            int(n)
            for n in op["inputs"]
            if n >= 0 and values["buffers"][graph["tensors"][n]["buffer"]]["data"] is None
        ]
        inputs, outputs = list(dict.fromkeys(computed)), [int(n) for n in op["outputs"]]
        one = {**graph, "operators": [op], "inputs": inputs, "outputs": outputs}
        yield (
            name,
            write(SCHEMA, {**values, "subgraphs": [one], "signature_defs": None}),
            inputs,
            outputs,
        )


@pytest.mark.parametrize("path", sorted(FILES.glob("*int8*.tflite")), ids=lambda path: path.stem)
def test_every_operator_of_quantised_networks(path: Path) -> None:
    """Given the reference kernels' inputs, each operator matches to within one step."""
    model = path.read_bytes()
    oracle = Oracle(model, every=True)
    limits = {detail["index"]: detail for detail in oracle.interpreter.get_tensor_details()}
    (given,) = oracle.interpreter.get_input_details()
    low, high = np.iinfo(given["dtype"]).min, np.iinfo(given["dtype"]).max
    x = np.random.default_rng(1).integers(low, high + 1, given["shape"]).astype(given["dtype"])
    oracle.run(x)
    seen: Counter[str] = Counter()
    for name, one, inputs, outputs in alone(model):
        feeds = [np.array(oracle.interpreter.get_tensor(number)) for number in inputs]
        session = vkmnn.InferenceSession(one, device="cpu")
        named = zip(session.get_inputs(), feeds, strict=True)
        found = session.run(None, {arg.name: array for arg, array in named})
        for number, array in zip(outputs, found, strict=True):
            wanted = np.array(oracle.interpreter.get_tensor(number))
            assert array.dtype == limits[number]["dtype"]
            compare(array, wanted, 1 if wanted.dtype.kind in "iu" else 1e-5)
        seen[name] += 1
    assert len(seen) > 4


@pytest.mark.parametrize("path", sorted(FILES.glob("*.tflite")), ids=lambda path: path.stem)
def test_files_of_the_converter(path: Path) -> None:
    """As TensorFlow's converter writes them; on the device, twice, and from a .vkmnn file."""
    oracle, session = Oracle(path.read_bytes()), vkmnn.InferenceSession(path)
    generator = np.random.default_rng(4)
    for _ in range(2):
        feeds = []
        for detail in oracle.interpreter.get_input_details():
            if detail["dtype"] is np.float32:
                feeds.append(generator.normal(0, 1, detail["shape"]).astype(np.float32))
            else:
                feeds.append(generator.integers(0, 7, detail["shape"]).astype(detail["dtype"]))
        named = {arg.name: one for arg, one in zip(session.get_inputs(), feeds, strict=True)}
        for found, wanted in zip(session.run(None, named), oracle.run(*feeds), strict=True):
            loose = 0.02 if "dynamic" in path.stem else 1e-4
            compare(found, wanted, 2 if wanted.dtype.kind in "iu" else loose)
    names = {dim for arg in session.get_inputs() for dim in arg.shape if isinstance(dim, str)}
    for arg in session.get_outputs():  # sizes that the file leaves open follow from the inputs
        assert all(isinstance(dim, int) or dim in names for dim in arg.shape)


def test_int8_networks_run_on_quantised_values() -> None:
    ops = load_network(FILES / "cnn_int8.tflite").graph.ops
    kinds = Counter(op.type for op in ops)
    assert kinds["QuantizedConvolution"] == 4
    assert kinds["QuantizedMatMul"] == 1
    assert not kinds["Convolution"]
    assert kinds["Transpose"] <= 2


@pytest.mark.parametrize(("name", "count"), [("lstm_float", 1), ("gru_float", 1)])
def test_loops_of_keras_are_recurrent_operators(name: str, count: int) -> None:
    kinds = Counter(op.type for op in load_network(FILES / f"{name}.tflite").graph.ops)
    assert kinds["Recurrent"] == count
    assert kinds["MatMul"] == 2  # of all steps at once, and of the layer behind


# --- what is not read ----------------------------------------------------------------------------


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    """All of it, by TFLite's names."""
    writer = Writer()
    x, y, z, w = (writer.tensor((3,)) for _ in range(4))
    writer.op("FlexErfinv", [x], [y])
    writer.op("MyOwn", [y], [z])
    writer.op("HASHTABLE_LOOKUP", [z, z, z], [w])
    writer.faces([x], [w])
    with pytest.raises(UnsupportedOpError) as refused:
        vkmnn.InferenceSession(writer.finish(), device="cpu")
    assert [node.op for node in refused.value.nodes] == ["FlexErfinv", "MyOwn", "HASHTABLE_LOOKUP"]
    assert "SELECT_TF_OPS" in str(refused.value)
    path = tmp_path / "m.tflite"
    path.write_bytes(b"\x93NUMPY" + bytes(99))
    with pytest.raises(ModelError, match="is a numpy array, not a TFLite model"):
        vkmnn.InferenceSession(path, device="cpu")
    with pytest.raises(ModelError, match="does not exist"):
        vkmnn.InferenceSession(tmp_path / "other.tflite", device="cpu")


def blocks(kind: str, scales: Any, block: int) -> tuple[bytes, Any]:
    """Return a layer whose weights are quantised by blocks, and the weights."""
    values = np.random.default_rng(3).integers(-8, 8, (6, 64))
    nibbles = (values & 15).astype(np.uint8).reshape(-1)
    raw = nibbles[::2] | nibbles[1::2] << 4 if kind == "INT4" else values.astype(np.int8)
    writer = Writer()
    x, y = writer.tensor((-1, 64)), writer.tensor((-1, 6))
    details = {"scales": writer.constant(scales), "zero_points": -1, "block_size": block}
    quantization = {"details": ("BlockwiseQuantization", details)}
    weights = writer.tensor((6, 64), kind, data=raw, quantization=quantization)
    writer.op("FULLY_CONNECTED", [x, weights, -1], [y], ("FullyConnectedOptions", {}))
    writer.faces([x], [y])
    return writer.finish(), values


@pytest.mark.parametrize("kind", ["INT4", "INT8"])
def test_weights_quantised_by_blocks(kind: str) -> None:
    rng = np.random.default_rng(4)
    scales = rng.uniform(0.01, 0.1, (6, 2)).astype(np.float16)
    model, values = blocks(kind, scales, 32)
    array = rng.standard_normal((3, 64)).astype(np.float32)
    wanted = array @ (values * np.repeat(scales.astype(np.float32), 32, 1)).T
    session = vkmnn.InferenceSession(model, device="cpu")
    np.testing.assert_allclose(session.run(None, {"t0": array})[0], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "block"), [((6, 2), 16), ((6, 2), 0), ((3, 2), 32), ((12,), 32), ((6, 2, 1), 32)]
)
def test_scales_that_do_not_fit_their_blocks(shape: tuple[int, ...], block: int) -> None:
    model, _ = blocks("INT4", np.ones(shape, np.float32), block)
    with pytest.raises(ModelError, match="for blocks of"):
        vkmnn.InferenceSession(model, device="cpu")


def test_texts_are_refused() -> None:
    writer = Writer()
    x, y = writer.tensor((3,), "STRING"), writer.tensor((3,), "STRING")
    writer.op("RESHAPE", [x], [y], ("ReshapeOptions", {"new_shape": [3]}))
    writer.faces([x], [y])
    with pytest.raises(ModelError, match="STRING"):
        vkmnn.InferenceSession(writer.finish(), device="cpu")


def test_plugins_read_custom_operators() -> None:
    from flatbuffers import flexbuffers

    @reads_custom("Scaled")
    def scaled(op: LiteOp) -> None:
        op.need(1)
        factor = op.custom_options()["factor"]
        op.give(op.make("Mul", op.real(0), op.constant(factor, np.float32)))

    try:
        writer = Writer()
        x, y = writer.tensor((3,)), writer.tensor((3,))
        builder = flexbuffers.Builder()
        builder.MapFromElements({"factor": 2.5})
        writer.op("Scaled", [x], [y], custom=bytes(builder.Finish()))
        writer.faces([x], [y])
        session = vkmnn.InferenceSession(writer.finish(), device="cpu")
        array = np.float32([1, 2, 3])
        np.testing.assert_array_equal(session.run(None, {"t0": array})[0], array * 2.5)
        assert read_ops()["Scaled"]
    finally:
        CUSTOM_READERS.remove("Scaled")


def test_every_operator_that_is_read_has_a_file() -> None:
    """Each kind is in one of the files of these tests."""
    from tests.model import test_tflite_control, test_tflite_numpy, test_tflite_recurrent

    files = [case.model for case in CASES.values()]
    files += [case.model for case, _ in test_tflite_numpy.HLO.values()]
    files += [make() for make in test_tflite_recurrent.FILES.values()]
    files += [
        test_tflite_control.conditional(), test_tflite_control.repetition(),
        test_tflite_control.composite(), test_tflite_control.variable(True),
    ]  # fmt: skip
    found = {name for model in files for name in _kinds(model)}
    without = {name for name, is_read in read_ops().items() if is_read} - found
    assert without <= UNCHECKED


UNCHECKED = {
    *("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "CALL", "BITCAST"),
    *("LOCAL_RESPONSE_NORMALIZATION", "Convolution2DTransposeBias"),
}
"""In test_tflite_numpy.py."""


def _kinds(model: bytes) -> set[str]:
    names = {number: name for name, number in OPERATORS.items()}
    return {
        code["custom_code"] or names[max(code["builtin_code"], code["deprecated_builtin_code"])]
        for code in parsed(model)["operator_codes"]
    }


# --- hostile files -------------------------------------------------------------------------------

NUMBERS = (-1, 0, 1, 2, 3, 7, 127, 255, 2**31 - 1, -(2**31))


def mutated(values: Any, generator: random.Random) -> None:
    """Change one field somewhere in a file's tables, in place."""
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            places.append((value, key))
            inner = value[key][1] if isinstance(value[key], tuple) else value[key]
            if isinstance(inner, dict | list):
                collect(inner)

    collect(values)
    owner, key = generator.choice(places)
    old = owner[key]
    if isinstance(old, bool):
        owner[key] = not old
    elif isinstance(old, int):
        owner[key] = generator.choice([old + 1, old - 1, *NUMBERS])
    elif isinstance(old, float):
        owner[key] = generator.choice([0.0, -old, 1e30, float("nan"), float("inf")])
    elif isinstance(old, np.ndarray) and old.size:
        array = old.copy()
        which = generator.randrange(array.size)
        limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        new = generator.choice(NUMBERS) if limits else generator.choice([0, -1, np.nan, 1e30])
        array[which] = min(max(new, limits.min), limits.max) if limits else new
        owner[key] = generator.choice([array, array[: which or None], np.append(array, array[:1])])
    elif isinstance(old, list) and old:
        which = generator.randrange(len(old))
        owner[key] = generator.choice([old[:which], [*old, old[which]], old[::-1]])
    elif isinstance(owner, dict):
        owner[key] = None


def hostile(model: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yield damaged files: tables that contradict each other, and bytes that are others."""
    generator = random.Random(seed)
    while count:
        if count % 3:
            values = parsed(model)
            for _ in range(generator.choice((1, 1, 2))):
                mutated(values, generator)
            try:
                yield write(SCHEMA, values)
            except Exception:  # noqa: BLE001 - such a file cannot be written
                continue
        else:
            data = bytearray(model)
            for _ in range(generator.choice((1, 2, 8))):
                data[generator.randrange(8, len(data))] = generator.randrange(256)
            yield bytes(data)
        count -= 1


def survives(model: bytes) -> None:
    """Open and run a possibly damaged file: it works, or the error is typed."""
    try:
        session = vkmnn.InferenceSession(
            model, device="cpu", budget=vkmnn.Budget(bytes=1 << 26, seconds=2.0)
        )
        feeds = {}
        for arg in session.get_inputs():
            shape = [size if isinstance(size, int) else 2 for size in arg.shape or ()]
            if np.prod(shape, dtype=float) > 1e5:
                return
            feeds[arg.name] = np.ones(shape, arg.dtype)
        session.run(None, feeds)
    except VkmnnError:
        pass


HOSTILE = (
    *("conv same", "STRIDED_SLICE", "SPLIT_V", "CONV_2D in INT8", "detections", "DENSIFY"),
    *(
        "TRANSPOSE_CONV in INT8",
        "DYNAMIC_UPDATE_SLICE",
        "SPACE_TO_BATCH_ND",
        "FULLY_CONNECTED by INT4",
    ),
)


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_files(name: str) -> None:
    for model in hostile(CASES[name].model, 40, 1):
        survives(model)


@pytest.mark.parametrize("which", ["control", "loop", "variable", "lstm", "network"])
def test_damaged_networks(which: str) -> None:
    from tests.model import test_tflite_control, test_tflite_recurrent

    makers = {
        "control": test_tflite_control.conditional,
        "loop": test_tflite_control.repetition,
        "variable": lambda: test_tflite_control.variable(True),
        "lstm": test_tflite_recurrent.lstm,
        "network": picture_network,
    }
    for model in hostile(makers[which](), 40, 2):
        survives(model)


def test_tensors_that_claim_much_memory() -> None:
    for kind, more in (
        ("variable", {"is_variable": True}),
        ("sparse", {"sparsity": {"traversal_order": [0], "dim_metadata": [{"dense_size": 2**30}]}}),
    ):
        writer = Writer()
        x, y = writer.tensor((3,)), writer.tensor((3,))
        large = writer.tensor((2**30,), data=None if kind == "variable" else b"abcd", **more)
        writer.op("ADD", [x, large], [y])
        writer.faces([x], [y])
        with pytest.raises(VkmnnError):
            vkmnn.InferenceSession(writer.finish(), device="cpu")


def test_subgraphs_that_contain_each_other() -> None:
    writer = Writer()
    for _ in range(2):
        if writer.here["tensors"]:
            writer.begin()
        x, y = writer.tensor((3,)), writer.tensor((3,))
        writer.op("CALL", [x], [y], ("CallOptions", {"subgraph": 1}))
        writer.faces([x], [y])
    with pytest.raises(ModelError, match="contain each other"):
        vkmnn.InferenceSession(writer.finish(), device="cpu")


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(CASES))
def test_many_damaged_files(name: str) -> None:
    for model in hostile(CASES[name].model, 10, 3):
        survives(model)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(picture_network())
    assert run_cli(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert run_cli(["run", str(path), "--device", "cpu"]) == 0
    assert run_cli(["profile", str(path), "--device", "cpu", "-n", "1"]) == 0
    assert run_cli(["convert", str(path), str(tmp_path / "net.vkmnn")]) == 0
    x = weights(1, 12, 12, 3)
    found = vkmnn.InferenceSession(tmp_path / "net.vkmnn", device="cpu").run(None, {"t0": x})[0]
    compare(found, Oracle(path.read_bytes()).run(x)[0], 1e-4)
    capsys.readouterr()
    assert run_cli(["ops", "--format", "tflite", "CONV_2D"]) == 0
    assert "DEPTHWISE_CONV_2D" in capsys.readouterr().out
