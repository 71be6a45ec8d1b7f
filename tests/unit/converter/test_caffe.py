"""Caffe's files: which belong together, which parts of a network count, and refusals."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.model.caffe_layers import convolved, pooled, softmax, steps
from tests.model.caffe_models import blob, field, saved, snapshot, weights
from tests.model.caffe_networks import NETWORKS
from vkmnn.converter.caffe import read_layers
from vkmnn.converter.caffe.schema import message_class
from vkmnn.converter.front_end import find_front_end
from vkmnn.errors import BudgetError, ModelError, ModelFileError, UnsupportedOpError, VkmnnError
from vkmnn.opening import load_network

RNG = np.random.default_rng(2)
X = RNG.normal(0, 1, (2, 3, 5, 6)).astype(np.float32)
WEIGHTS = {
    "conv": [RNG.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32), np.arange(4, dtype=np.float32)]
}
CONV = (
    'layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" '
    "convolution_param { num_output: 4 kernel_size: 3 } }"
)
INPUT = 'input: "data" input_dim: 2 input_dim: 3 input_dim: 5 input_dim: 6 '
NET = INPUT + CONV
RIGHT = convolved(X, *WEIGHTS["conv"], 1, 0)


def run(
    model: Any, feeds: dict[str, np.ndarray] | None = None, **options: Any
) -> dict[str, np.ndarray]:
    with vkmnn.InferenceSession(model, "cpu", **options) as session:
        names = [arg.name for arg in session.get_outputs()]
        return dict(zip(names, session.run(None, feeds or {"data": X}), strict=True))


def check(found: np.ndarray, expected: np.ndarray = RIGHT) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def refused(kind: type[VkmnnError], text: str, path: Path, arrays: Any = None) -> VkmnnError:
    """Opening a network must fail with an error that names the problem, and helps."""
    with pytest.raises(kind) as caught:
        load_network(saved(path, text, WEIGHTS if arrays is None else arrays))
    assert type(caught.value) is kind
    assert not caught.value.unexpected
    return caught.value


# --- files -------------------------------------------------------------------------------------


def test_outputs_have_the_sizes_that_follow(tmp_path: Path) -> None:
    path = saved(tmp_path, NET, WEIGHTS)
    for first in (2, "n"):
        with vkmnn.InferenceSession(
            path, "cpu", input_shapes={"data": (first, 3, 5, 6)}
        ) as session:
            assert session.get_outputs()[0].shape == [first, 4, 3, 4]


def test_weights_beside_the_network(tmp_path: Path) -> None:
    path = saved(tmp_path, NET, WEIGHTS)
    check(run(path)["conv"])
    check(run(str(path.with_suffix(".caffemodel")))["conv"])  # which finds the network, too
    (tmp_path / "net.caffemodel").rename(tmp_path / "snapshot_iter_9.caffemodel")
    check(run(path)["conv"])  # the only one
    (tmp_path / "other.caffemodel").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"no 'net\.caffemodel' beside") as caught:
        run(path)
    assert "other.caffemodel, snapshot_iter_9.caffemodel" in str(caught.value.hint)
    assert caught.value.node == "conv"


def test_a_network_without_weights_needs_none(tmp_path: Path) -> None:
    path = saved(tmp_path, INPUT + 'layer { type: "ReLU" bottom: "data" top: "y" }', {})
    check(run(path)["y"], np.maximum(X, 0))
    refused(ModelFileError, NET, tmp_path, {})


@pytest.mark.parametrize("suffix", [".prototxt", ".caffemodel"])
def test_missing_file(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        load_network(tmp_path / f"none{suffix}")


def whole(kind: str = "Input", parameters: bytes = b"") -> bytes:
    return snapshot(X.shape, WEIGHTS["conv"], kind, parameters)


def test_weights_that_hold_the_network(tmp_path: Path) -> None:
    path = tmp_path / "net.caffemodel"
    path.write_bytes(whole())
    for model in (path, whole()):
        check(run(model)["loss"], softmax(RIGHT))
    assert load_network(path).source.metadata.graph_name == "whole"


def test_layers_of_data_become_inputs(tmp_path: Path) -> None:
    """Of a batch and a size that they state; channels are those of the weights."""
    path = tmp_path / "net.caffemodel"
    path.write_bytes(whole("Data", field(107, field(4, 2)) + field(100, field(3, 5))))
    with vkmnn.InferenceSession(path, "cpu") as session:
        assert [arg.name for arg in session.get_inputs()] == ["data"]
        assert session.get_inputs()[0].shape == [2, 3, 5, 5]
        check(session.run(None, {"data": X[..., :5]})[0], softmax(RIGHT[..., :3]))
    path.write_bytes(whole("ImageData", field(115, b"")))
    with vkmnn.InferenceSession(path, "cpu") as session:  # which says nothing of sizes
        assert session.get_inputs()[0].shape == ["data_0", 3, "data_2", "data_3"]
        check(session.run(None, {"data": X})[0], softmax(RIGHT))
        check(session.run(None, {"data": X[:1, :, 1:]})[0], softmax(RIGHT[:1, :, 1:]))


def test_weights_only_are_not_a_network(tmp_path: Path) -> None:
    path = tmp_path / "net.caffemodel"
    path.write_bytes(field(1, "nothing"))
    with pytest.raises(ModelFileError, match="holds no layers"):
        load_network(path)
    path.write_bytes(whole()[:-9])
    with pytest.raises(ModelFileError, match="not a Caffe model"):
        load_network(path)


def test_what_is_recognised(tmp_path: Path) -> None:
    for model in ("a.prototxt", Path("b.CAFFEMODEL"), whole()):
        assert type(find_front_end(model)).__name__ == "CaffeFrontEnd"
    for model in (b"", b"\x0a", b"\x0a\x7f", b"\x08\x07\x12\x01", "a.onnx", 5):
        assert type(find_front_end(model)).__name__ != "CaffeFrontEnd"


def test_names_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "net.caffemodel"
    path.write_bytes(whole().replace(b"label", b"lab\xffl"))
    with pytest.raises(ModelFileError, match="not text"):
        load_network(path)


def test_large_arrays_are_cut_out_of_the_file(tmp_path: Path) -> None:
    """Whatever a small one looks like: five bytes stand for a large one."""
    path = saved(tmp_path, NET, {})
    held = path.with_suffix(".caffemodel")
    for damaged in (field(5, b"#\0\0\0\0"), field(5, b"#\x09\0\0\0"), field(5, b"123")):
        held.write_bytes(field(100, field(1, "conv") + field(7, damaged)))
        with pytest.raises(ModelError, match="a blob of layer 'conv' is damaged"):
            load_network(path)


def test_blobs_of_other_forms(tmp_path: Path) -> None:
    """Of float64, in several pieces, and NVIDIA's of float16."""
    path = saved(tmp_path, NET, {})
    first, second = WEIGHTS["conv"]
    pieces = [first.reshape(-1)[:30], first.reshape(-1)[30:40], first.reshape(-1)[40:]]
    shape = field(7, field(1, bytes(first.shape)))
    forms = {
        "doubles": blob(first, double=True),
        "pieces": shape + b"".join(field(5, piece.tobytes()) for piece in pieces),
        "halves": shape + field(10, 2) + field(12, first.astype("<f2").tobytes()),
    }
    for form in forms.values():
        layer = field(1, "conv") + field(7, form) + field(7, blob(second))
        path.with_suffix(".caffemodel").write_bytes(field(100, layer))
        np.testing.assert_allclose(run(path)["conv"], RIGHT, atol=5e-3)


# --- networks ----------------------------------------------------------------------------------


def test_layers_of_other_phases_are_left_out(tmp_path: Path) -> None:
    text = (
        INPUT
        + 'layer { name: "conv" type: "ReLU" bottom: "data" top: "y" include { phase: TRAIN } }'
        + CONV
        + 'layer { type: "ReLU" bottom: "conv" top: "a" exclude { phase: TEST } }'
        + 'layer { type: "ReLU" bottom: "conv" top: "b" include { min_level: 1 } }'
        + 'layer { type: "ReLU" bottom: "conv" top: "c" include { stage: "deploy" } }'
        + 'layer { type: "AbsVal" bottom: "conv" top: "d" include { phase: TEST not_stage: "x" } }'
        + 'layer { type: "Accuracy" bottom: "conv" bottom: "label" top: "accuracy" }'
    )
    assert set(run(saved(tmp_path, text, WEIGHTS))) == {"d"}
    assert set(run(saved(tmp_path, text + ' state { stage: "deploy" level: 1 }', WEIGHTS))) == {
        *"bcd"
    }


def test_blobs_that_are_written_again(tmp_path: Path) -> None:
    """Readers in between see the earlier value; the last of them is the output."""
    text = INPUT + (
        'layer { name: "a" type: "Power" bottom: "data" top: "x" power_param { scale: 2 } }'
        'layer { name: "b" type: "AbsVal" bottom: "x" top: "before" }'
        'layer { name: "c" type: "ReLU" bottom: "x" top: "x" }'
        'layer { name: "d" type: "Power" bottom: "x" top: "x" power_param { shift: 1 } }'
        'layer { name: "e" type: "ReLU" bottom: "data" top: "data" }'
        'layer { name: "f" type: "Eltwise" bottom: "data" bottom: "before" top: "sum" }'
    )
    found = run(saved(tmp_path, text, {}))
    assert set(found) == {"x", "sum"}
    check(found["x"], np.maximum(2 * X, 0) + 1)
    check(found["sum"], np.maximum(X, 0) + np.abs(2 * X))


def test_losses_end_as_what_they_measure(tmp_path: Path) -> None:
    loss = 'layer { name: "l" type: "SoftmaxWithLoss" bottom: "conv" bottom: "label" top: "l" }'
    check(run(saved(tmp_path, NET + loss, WEIGHTS))["l"], softmax(RIGHT))
    score = 'layer { name: "p" type: "Softmax" bottom: "conv" top: "p" }'
    assert set(run(saved(tmp_path, NET + loss + score, WEIGHTS))) == {"p"}
    squares = 'layer { name: "l" type: "EuclideanLoss" bottom: "conv" bottom: "label" top: "l" }'
    check(run(saved(tmp_path, NET + squares, WEIGHTS))["conv"])


def test_weights_that_layers_share(tmp_path: Path) -> None:
    """By the names of their parameters."""
    twin = CONV.replace('name: "conv"', 'name: "twin"').replace('top: "conv"', 'top: "twin"')
    named = 'param { name: "w" } param { name: "b" } '
    text = INPUT + "".join(one.replace("bottom", named + "bottom", 1) for one in (CONV, twin))
    check(run(saved(tmp_path, text, WEIGHTS))["twin"])


def test_constants(tmp_path: Path) -> None:
    text = NET + (
        'layer { name: "ones" type: "DummyData" top: "ones" dummy_data_param { '
        "data_filler { value: 1.5 } shape { dim: 2 dim: 4 dim: 3 dim: 4 } } }"
        'layer { name: "own" type: "Parameter" top: "own" parameter_param { shape { dim: 4 } } }'
        'layer { name: "y" type: "Eltwise" bottom: "conv" bottom: "ones" top: "y" }'
        'layer { name: "z" type: "Scale" bottom: "y" bottom: "own" top: "z" '
        "scale_param { axis: -1 } }"
    )
    own = np.arange(4, dtype=np.float32)
    check(run(saved(tmp_path, text, {**WEIGHTS, "own": [own]}))["z"], (RIGHT + 1.5) * own)


def test_open_sizes(tmp_path: Path) -> None:
    """Poolings of sizes unknown until a run are rounded like others."""
    layer = 'layer {{ type: "Pooling" bottom: "data" top: "y" pooling_param {{ {} }} }}'
    for kind, kernel, stride, pad in (("MAX", 3, 2, 1), ("AVE", 3, 2, 1), ("MAX", 3, 2, 0)):
        given = f"pool: {kind} kernel_size: {kernel} stride: {stride} pad: {pad}"
        path = saved(tmp_path, INPUT + layer.format(given), {})
        with vkmnn.InferenceSession(
            path, "cpu", input_shapes={"data": ("N", 3, None, "w")}
        ) as session:
            for height, width in ((5, 6), (6, 5), (8, 9)):
                x = RNG.normal(0, 1, (1, 3, height, width)).astype(np.float32)
                both = (kernel,) * 2, (stride,) * 2, (pad,) * 2
                check(session.run(None, {"data": x})[0], pooled(x, *both, kind == "MAX")[0])


def test_sequences_go_on_in_the_next_run(tmp_path: Path) -> None:
    """Where a marker says that nothing begins."""
    arrays = [RNG.normal(0, 1, shape).astype(np.float32) for shape in ((8, 3), (8,), (8, 2))]
    text = (
        'input: "x" input_shape { dim: 2 dim: 2 dim: 3 } input: "m" input_shape { dim: 2 dim: 2 }'
        'layer { name: "l" type: "LSTM" bottom: "x" bottom: "m" top: "y" '
        "recurrent_param { num_output: 2 } }"
    )
    markers = np.array([[0, 0], [1, 1], [1, 0], [1, 1], [0, 1], [1, 1]], np.float32)
    x = RNG.normal(0, 1, (6, 2, 3)).astype(np.float32)
    expected = steps(x, markers, "LSTM", *arrays)[0]
    with vkmnn.InferenceSession(saved(tmp_path, text, {"l": arrays}), "cpu") as session:
        assert [arg.name for arg in session.get_inputs()] == ["x", "m"]
        assert [arg.name for arg in session.get_outputs()] == ["y"]
        for _ in range(2):
            for at in (0, 2, 4):
                found = session.run(None, {"x": x[at : at + 2], "m": markers[at : at + 2]})
                check(found[0], expected[at : at + 2])
            session.reset_state()
        check(
            session.run(None, {"x": x[2:4], "m": np.ones((2, 2), np.float32)})[0],
            steps(x[2:4], np.ones((2, 2)), "LSTM", *arrays)[0],
        )


# --- what is refused ---------------------------------------------------------------------------

PYTHON = (
    'layer { name: "rois" type: "Python" bottom: "conv" top: "rois" '
    'python_param { module: "rpn.proposal" layer: "ProposalLayer" } }'
)


def test_layers_that_are_not_read_are_named(tmp_path: Path) -> None:
    """All of them, and not those behind them; Python code is not run."""
    more = 'layer { name: "m" type: "Mystery" bottom: "conv" top: "m" mystery_param { a: [1, 2] } }'
    stochastic = (
        'layer { name: "s" type: "Pooling" bottom: "conv" top: "s" '
        "pooling_param { pool: STOCHASTIC } }"
    )
    behind = (
        'layer { name: "r" type: "ReLU" bottom: "rois" top: "r" }'
        'layer { name: "f" type: "Flatten" bottom: "r" top: "f" }'
        'layer { name: "t" type: "Mystery" bottom: "f" top: "t" }'
    )
    error = refused(UnsupportedOpError, NET + PYTHON + more + stochastic + behind, tmp_path)
    assert [(node.op, node.node) for node in error.nodes] == [  # type: ignore[attr-defined]
        ("Python", "rois"), ("Mystery", "m"), ("Pooling", "s"), ("Mystery", "t"),
    ]  # fmt: skip
    assert "rpn.proposal.ProposalLayer" in str(error)


def layer(kind: str, parameters: str = "", bottoms: str = 'bottom: "data"') -> str:
    return f'{INPUT} layer {{ name: "layer" type: "{kind}" {bottoms} top: "y" {parameters} }}'


DAMAGED = {
    "weights of another shape": (
        CONV.replace("kernel_size: 3", "kernel_size: 5"),
        "weights are 4 x 3 x 3 x 3 in the weights, 4 x 3 x 5 x 5",
    ),
    "fewer weights": (CONV.replace("conv\" type", "half\" type"), "1 blobs for it: no biases"),
    "a blob that does not exist": (CONV.replace('"data"', '"dat"'), "reads the blob 'dat'"),
    "groups": (
        CONV.replace("num_output", "group: 3 num_output"), "3 channels and 4 outputs in 3 groups"
    ),
    "no window": (CONV.replace("kernel_size: 3", ""), "a window of"),
    "no steps": (CONV.replace("kernel_size: 3", "kernel_size: 3 stride: 0"), "strides"),
    "an axis": (layer("Softmax", "softmax_param { axis: 9 }"), "axis 9 of a tensor of 4"),
    "concatenated": (layer("Concat", "concat_param { axis: 7 }"), "axis 7 of a tensor of 4"),
    "parts": (layer("Slice", "slice_param { slice_point: 9 }"), "parts at"),
    "an order": (layer("Permute", "permute_param { order: 0 order: 0 }"), "the order"),
    "tiles": (layer("Tile", "tile_param { tiles: -1 }"), "-1 tiles"),
    "pads": (layer("Pooling", "pooling_param { kernel_size: 2 pad: 2 }"), "windows of 2"),
    "no such shape": (layer("Reshape", "reshape_param { shape { dim: -1 dim: -1 } }"), "the shape"),
    "a base": (layer("Exp", "exp_param { base: -3 }"), "a base of -3"),
    "shuffled": (layer("ShuffleChannel", "shuffle_channel_param { group: 2 }"), "2 groups"),
    "a blob written twice": (layer("Split", 'top: "y"'), "writes a blob twice"),
    "factors": (layer("Eltwise", "eltwise_param { coeff: 1 coeff: 2 }"), "2 factors for 1 inputs"),
    "an even window": (layer("LRN", "lrn_param { local_size: 4 }"), "no middle"),
    "a crop": (
        layer("Crop", "crop_param { offset: 3 }", 'bottom: "data" bottom: "data"'),
        "elements from 3 on",
    ),
    "no boxes": (layer("PriorBox", "", 'bottom: "data" bottom: "data"'), "0 smallest"),
    "inputs": (INPUT + 'input: "more" ' + CONV, "2 inputs and shapes for 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_what_contradicts_itself(name: str, tmp_path: Path) -> None:
    text, words = DAMAGED[name]
    text = text if "input" in text else INPUT + text
    error = refused(ModelError, text, tmp_path, {**WEIGHTS, "half": WEIGHTS["conv"][:1]})
    assert words in str(error)


def nested(depth: int) -> str:
    return 'layer { name: "x" ' + "a { " * depth + "} " * depth + "}"


TEXTS = {
    "no text": (b"\xff\xfe\0", "not a network"),
    "nothing": (b"", "has no layers"),
    "a solver": (b'net: "train.prototxt" base_lr: 0.01', "has no layers"),
    "not closed": (b'layer { name: "x"', "not a network"),
    "another type": (b"layer { name: 5 }", "not a network"),
    "too deep": (nested(5000).encode(), "nested more than 16 deep"),
    "too many": (b"layer { }" * 100_001, "100,001 messages"),
    "too long": (b"#" * (5 << 20), "longer than a network"),
    "a number too large": (b"input_dim: 99999999999999999999", "not a network"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_are_no_network(name: str, tmp_path: Path) -> None:
    content, words = TEXTS[name]
    (tmp_path / "net.prototxt").write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        load_network(tmp_path / "net.prototxt")
    assert words in str(caught.value)
    assert caught.value.hint


def test_brackets_in_names_and_comments_are_not_messages(tmp_path: Path) -> None:
    state = "state { stage: '\\'" + "<" * 99 + "' }"
    text = f'# {"{" * 99}\nname: "{"{" * 99}" {state} {NET}'
    check(run(saved(tmp_path, text, WEIGHTS))["conv"])


def test_networks_have_a_budget(tmp_path: Path) -> None:
    path = saved(tmp_path, NET + 'layer { type: "ReLU" bottom: "conv" top: "conv" }' * 20, WEIGHTS)
    with pytest.raises(BudgetError):
        vkmnn.InferenceSession(path, "cpu", budget=vkmnn.Budget(nodes=10))


def test_binary_files_of_many_layers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.caffemodel"
    path.write_bytes(field(100, b"") * 100_001)
    with pytest.raises(ModelFileError, match="not a Caffe model"):
        load_network(path)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a file with a few bytes changed, removed or repeated."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, length = rng.randrange(len(changed)), rng.choice((1, 1, 2, 8, 40))
        change = rng.randrange(5)
        if change == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            changed[at : at + length] = rng.randbytes(length)
        elif change == 2:
            del changed[at : at + length]
        elif change == 3:
            changed[at:at] = changed[at : at + length]
        else:
            number = str(rng.choice((0, -1, 7, 2**31, 2**63, 10**30, 1e39, "nan")))
            changed[at : at + length] = number.encode()
    return bytes(changed) or b"\0"


@pytest.mark.parametrize("name", ["residual", "ssd", "segmenting", "version_1", "version_0"])
def test_damaged_files(name: str, tmp_path: Path) -> None:
    """They are read, or refused by a typed error."""
    network = NETWORKS[name]()
    rng = random.Random(name)
    held = weights(network.weights, network.form)
    text = network.text.encode()
    path = tmp_path / "net.prototxt"
    refusals = 0
    for number in range(40):
        path.write_bytes(mutated(text, rng) if number % 2 else text)
        path.with_suffix(".caffemodel").write_bytes(held if number % 2 else mutated(held, rng))
        try:
            load_network(path, vkmnn.Budget(bytes=1 << 26, seconds=5))
        except VkmnnError:
            refusals += 1
    assert refusals > 10


# --- tables ------------------------------------------------------------------------------------


def test_layers_are_listed() -> None:
    read = read_layers()
    assert sum(read.values()) > 60
    assert read["Convolution"]
    assert not read["Python"]


def test_numbers_of_old_types() -> None:
    """The enumeration counts from its place in the table."""
    kinds = message_class("V1LayerParameter").DESCRIPTOR.fields_by_name["type"].enum_type
    numbers = {"CONVOLUTION": 4, "INNER_PRODUCT": 14, "POOLING": 17, "SOFTMAX_LOSS": 21}
    numbers |= {"ELTWISE": 25, "ARGMAX": 30, "ABSVAL": 35, "DECONVOLUTION": 39}
    assert {name: kinds.values_by_name[name].number for name in numbers} == numbers
