"""Damaged models are refused with typed errors, in little time and memory."""

from __future__ import annotations

import importlib.util
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.model.caffe_models import snapshot
from tests.model.mnn_models import converted
from tests.model.networks import NETWORKS
from vkmnn_suite.fuzz.files import make_damaged
from vkmnn_suite.fuzz.hostile import make_hostile, save_starts
from vkmnn_suite.fuzz.malformed import (
    CRASHED,
    Tally,
    new_child,
    put_through,
    replay,
    run_malformed,
    torment,
)
from vkmnn_suite.fuzz.mutations import MUTATIONS
from vkmnn_suite.fuzz.options import Options
from vkmnn_suite.fuzz.ordeal import RAN, TYPED, UNTYPED, undergo

MODELS = 150


@pytest.fixture
def devices() -> list[str]:
    return ["cpu", "0"] if vkmnn.devices() else ["cpu"]


def model(
    op: str, inputs: dict[str, np.ndarray], opset: int = 18, outputs: int = 1, **attributes: object
) -> onnx.ModelProto:
    """Return a model of one node on x [2, 3, 4] and constants."""
    node = helper.make_node(op, ["x", *inputs], ["y", "z", "u"][:outputs], name="wrong")
    for key, value in attributes.items():
        node.attribute.append(helper.make_attribute(key, value))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "past",
        [info("x", TensorProto.FLOAT, [2, 3, 4])],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in inputs.items() if name],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


NONE = np.zeros(0, np.float32)

HUGE = 2**31 - 1


def empty(op: str, constant: bool = False) -> onnx.ModelProto:
    """Return a model with a tensor of no elements whose other sizes no number counts."""
    sizes = [0, HUGE, HUGE]
    names = ["x", "wrong"] if constant else ["wrong"]
    made = helper.make_node(op, names, ["y"])
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [made],
        "past",
        [info(names[0], TensorProto.FLOAT, [1] if constant else sizes)],
        [info("y", TensorProto.FLOAT, None)],
        [TensorProto(name="wrong", data_type=TensorProto.FLOAT, dims=sizes)] if constant else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


PAST = {
    "an empty input of endless sizes": empty("ReduceSum"),
    "an empty constant of endless sizes": empty("Add", constant=True),
    "an empty fill of endless sizes": model("Expand", {"s": ints(0, HUGE, HUGE, 1, 1, 1)}),
    "an empty result of endless sizes": model("Pad", {"p": ints(-1, HUGE, HUGE, -1, HUGE, HUGE)}),
    "pad axes out of range": model(
        "Pad", {"p": ints(0, 1, 0, 1), "v": np.float32(0).reshape(()), "a": ints(1, 2**31 - 1)}
    ),
    "101 axes": model("Reshape", {"s": ints(*[1] * 101)}),
    "scale that is not a number": model(
        "Resize",
        {"r": NONE, "s": np.array([1, np.nan, 1], np.float32)},
        mode="linear",
    ),
    "scale without end": model(
        "Resize", {"r": NONE, "s": np.array([1, np.inf, 1], np.float32)}, mode="nearest"
    ),
    "axis inserted twice": model("Unsqueeze", {"a": ints(2, 4, 2)}),
    "axis removed that does not exist": model("Squeeze", {"a": ints(7)}),
    "slice of an axis that does not exist": model(
        "Slice", {"s": ints(0), "e": ints(2**31 - 1), "a": ints(9)}
    ),
    "slices of another number": model("Slice", {"s": ints(0, 0), "e": ints(9), "a": ints(0)}),
    "permutation of other axes": model("Transpose", {}, perm=[0, 9, 1]),
    "parts without number": model("Split", {}, axis=0, num_outputs=2**31 - 1),
    "split of an axis that does not exist": model("Split", {}, axis=9, num_outputs=1),
    "two million channels": model("DepthToSpace", {}, blocksize=2**20),
    "no strides": model("MaxPool", {}, kernel_shape=[1], strides=[0]),
    "largest of an axis that does not exist": model("TopK", {"k": ints(1)}, outputs=2, axis=-9),
    "more elements than there are numbers": model("Tile", {"r": ints(2**31 - 1, 2**31 - 1, 1)}),
    "fill of an endless list of sizes": model("Expand", {"s": ints(*[2**31] * 6)}),
}


def chained(perms: list[list[int]], then: str = "") -> onnx.ModelProto:
    """Return a model of transpositions of x [2, 3, 4], with undeclared shapes."""
    nodes, value = [], "x"
    for number, perm in enumerate(perms):
        nodes.append(helper.make_node("Transpose", [value], [f"t{number}"], "wrong", perm=perm))
        value = f"t{number}"
    nodes.append(helper.make_node(then or "Identity", [value] + ["w"] * bool(then), ["y"]))
    info, matrix = helper.make_tensor_value_info, np.ones((3, 3), np.float32)
    graph = helper.make_graph(
        nodes,
        "past",
        [info("x", TensorProto.FLOAT, None)],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(matrix, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


PAST |= {
    "transposes of other ranks": chained([[1, 0], [0, 2, 1]]),
    "more axes, then fewer": chained([[0, 2, 1], [1, 0]]),
    "product of a transpose of far axes": chained([[2**62, 1, 2]], "MatMul"),
    "product of a transpose of other ranks": chained([[0, 1, 3, 2]], "MatMul"),
}


def scaled() -> onnx.ModelProto:
    """Return a layer norm of x [2, 3, 4] with a scale of three, and a product with four."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "three"], ["t"], "wrong", axis=-1),
        helper.make_node("Mul", ["t", "four"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    sizes = {"three": 3, "four": 4}
    graph = helper.make_graph(
        nodes,
        "past",
        [info("x", TensorProto.FLOAT, [2, 3, 4])],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(n, np.float32), name) for name, n in sizes.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


PAST["scales of other sizes"] = scaled()


@pytest.mark.parametrize("name", PAST)
def test_what_once_raised_something_else(name: str, devices: list[str]) -> None:
    outcome = undergo(PAST[name], devices)
    assert outcome.kind == TYPED, outcome
    assert not outcome.place, outcome
    assert "wrong" in outcome.text


@pytest.mark.soak
def test_random_damage(tmp_path: Path) -> None:
    """Failures of a driver without memory do not count against vkmnn: see `ordeal`."""
    starts = tmp_path / "starts.json"
    save_starts(starts)
    options = Options(seed=int(os.environ.get("VKMNN_FUZZ_SEED", "0")), graphs=MODELS, jobs=1)
    tally = torment(options, starts)
    assert tally.kinds.total() == MODELS
    assert not tally.failures, (tally.failures, tally.texts)
    assert tally.kinds[TYPED] > MODELS // 3
    assert tally.kinds[RAN] > MODELS // 20


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Valid files of other formats; one of MNN's where its converter is installed."""
    network = NETWORKS["espcn"].build()
    for value in network.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, (1, 1, 8, 8), strict=True):
            dim.dim_value = size
    found = [tmp_path / "net.vkmnn"]
    vkmnn.convert(network, found[0])
    if importlib.util.find_spec("_tools") is not None:
        found.append(converted(network, tmp_path))
    rng = np.random.default_rng(3)
    blobs = [rng.normal(0, 1, shape).astype(np.float32) for shape in ((4, 3, 3, 3), (4,))]
    found.append(tmp_path / "net.caffemodel")
    found[-1].write_bytes(snapshot((1, 3, 5, 5), blobs))
    return found


@pytest.mark.parametrize("kind", [".vkmnn", ".mnn", ".caffemodel"])
def test_damaged_files(kind: str, files: list[Path], tmp_path: Path, devices: list[str]) -> None:
    starts = [path for path in files if path.suffix == kind]
    if not starts:
        pytest.skip("MNN is not installed: pip install 'vkmnn[test]'")
    kinds: Counter[str] = Counter()
    for number in range(60):
        data, suffix, _ = make_damaged(1, number, starts)
        path = tmp_path / f"damaged{suffix}"
        path.write_bytes(data)
        outcome = undergo(path, devices)
        kinds[outcome.kind] += 1
        assert outcome.kind in (RAN, TYPED), (number, outcome)
    assert min(kinds[RAN], kinds[TYPED]) > 3, kinds


def test_files_are_damaged_in_the_mode(files: list[Path], tmp_path: Path) -> None:
    options = Options(graphs=3, jobs=1, device="cpu", starts=tuple(files), folder=tmp_path)
    assert run_malformed(options) == 0


def test_the_same_seed_gives_the_same_files(files: list[Path]) -> None:
    seen = set()
    for number in range(40):
        data, _, done = make_damaged(5, number, files)
        assert (data, done) == make_damaged(5, number, files)[::2]
        assert len(make_damaged(5, number, files, [0])[2]) == len(done) - 1
        seen.add(data)
    assert len(seen) > 35


# --- the mode itself -----------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_models() -> None:
    for number in range(20):
        one, done = make_hostile(5, number, [])
        other, again = make_hostile(5, number, [])
        assert (one.SerializeToString(), done) == (other.SerializeToString(), again)


def test_mutations_that_are_left_out_do_not_change_the_others() -> None:
    for number in range(40):
        _, done = make_hostile(5, number, [])
        for place in range(1, len(done)):
            _, rest = make_hostile(5, number, [], [place - 1])
            assert len(rest) == len(done) - 1


def test_every_mutation_changes_some_model() -> None:
    idle = set(MUTATIONS)
    for number in range(300):
        for name in sorted(idle):
            damaged, _ = make_hostile(8, number, [], range(9))
            before = damaged.SerializeToString()
            try:
                MUTATIONS[name](damaged, random.Random(number))
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                continue
            if damaged.SerializeToString() != before:
                idle.discard(name)
        if not idle:
            return
    assert not idle


def test_untyped_errors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("vkmnn.opening.front_ends.load_plugins", fail)
    outcome = undergo(PAST["101 axes"], ["cpu"])
    assert (outcome.kind, outcome.error) == (UNTYPED, "KeyError")


def test_crashes_are_attributed_to_their_model() -> None:
    ask = {"seed": 1, "number": 0, "without": [], "devices": ["cpu"]}
    with new_child(60.0) as child:
        answer = put_through(child, {"path": "no such file", "devices": []})
        assert answer["kind"] == CRASHED
        assert put_through(child, ask)["kind"] in (RAN, TYPED)


def test_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(PAST["101 axes"].SerializeToString())
    assert replay(Options(device="cpu"), path) == 0
    assert "typed ShapeError" in capsys.readouterr().out


def test_a_tally_names_the_first_model_of_each_kind() -> None:
    tally = Tally()
    answer = {"kind": UNTYPED, "error": "KeyError", "place": "a.py:1 f", "text": "t"}
    tally.add(3, answer)
    tally.add(5, answer)
    assert tally.failures == {(UNTYPED, "KeyError", "a.py:1 f"): [3, 5]}
