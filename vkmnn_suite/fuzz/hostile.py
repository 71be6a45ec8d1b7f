"""The models of the malformed mode: valid ones with one to four mutations."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkmnn.converter.onnx import supported_ops
from vkmnn_suite.fuzz.loops import mutate
from vkmnn_suite.fuzz.ordeal import ON_HOST

_COUNTS = (1, 1, 1, 2, 2, 3, 4)
_CHAINED, _RANDOM = 0.2, 0.3
_HOST_RATE = 0.25
"""How often nodes without a kernel may run on the host."""

_MAX_BYTES = 1 << 20


def make_hostile(
    seed: int, number: int, starts: Sequence[Start], without: Collection[int] = ()
) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model of this number, and a description of the mutations.

    Args:
        seed: the seed of the run; the same arguments result in the same model.
        number: the number of the model.
        starts: the valid models to start from, in addition to chains.
        without: mutations to leave out, by position; the others remain the same.
    """
    rng = random.Random(f"malformed/{seed}/{number}")
    model, name = _valid(rng, starts)
    done = [name]
    for place in range(rng.choice(_COUNTS)):
        own = random.Random(f"malformed/{seed}/{number}/{place}")
        if place not in without:
            done.append(mutate(model, own))
    if rng.random() < _HOST_RATE:
        model.metadata_props.add(key=ON_HOST, value="1")
    return model, done


def _valid(rng: random.Random, starts: Sequence[Start]) -> tuple[onnx.ModelProto, str]:
    kind = rng.random()
    if kind < _CHAINED or not starts:
        return _chain(rng), "chain"
    if kind < _CHAINED + _RANDOM and find_spec("onnxruntime") is not None:
        return _random(rng), "random"
    start = rng.choice(starts)
    model = onnx.ModelProto.FromString(start.model.encode("latin-1"))
    if rng.random() < 0.75:
        _bake(model, start.inputs, rng)
    return model, start.name


def _random(rng: random.Random) -> onnx.ModelProto:
    """Return a model as those that are compared with onnxruntime."""
    from vkmnn_suite.fuzz.models import make_case
    from vkmnn_suite.fuzz.oracle import Oracle

    case = make_case(rng.randrange(1 << 30), rng.randrange(1 << 30), Oracle())
    feeds = case.runs[0]
    inputs = [numpy_helper.from_array(array, name) for name, array in feeds.items()]
    if rng.random() < 0.5:
        texts = [tensor.SerializeToString().decode("latin-1") for tensor in inputs]
        _bake(case.model, texts, rng)
    return case.model


@dataclass(frozen=True, slots=True)
class Start:
    """A valid model and its inputs: serialised protobufs, as text with a character per byte."""

    name: str
    model: str
    inputs: tuple[str, ...]


def node_tests() -> list[Start]:
    """Return onnx's node tests whose operators vkmnn knows; generating them takes seconds."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    known = {op.name for op in supported_ops()}
    found = []
    for case in cases:
        model = case.model or onnx.load(Path(str(case.model_dir)) / "model.onnx")
        if _is_known(model, known) and model.ByteSize() < _MAX_BYTES:
            data = model.SerializeToString().decode("latin-1")
            found.append(Start(case.name, data, _inputs(case)))
    return found


def _is_known(model: onnx.ModelProto, known: Collection[str]) -> bool:
    graph = model.graph
    plain = all(value.type.HasField("tensor_type") for value in (*graph.input, *graph.output))
    return plain and all(node.op_type in known for node in graph.node)


def _inputs(case: Any) -> tuple[str, ...]:
    if case.data_sets:
        arrays = case.data_sets[0][0]
        protos = [a if isinstance(a, TensorProto) else numpy_helper.from_array(a) for a in arrays]
        return tuple(proto.SerializeToString().decode("latin-1") for proto in protos)
    files = sorted((Path(case.model_dir) / "test_data_set_0").glob("input_*.pb"))
    return tuple(file.read_bytes().decode("latin-1") for file in files)


def save_starts(path: Path) -> None:
    """Write the node tests to a file, for other processes."""
    path.write_text(json.dumps([asdict(start) for start in node_tests()]), "utf-8")


def load_starts(path: Path) -> list[Start]:
    """Read the file that `save_starts` wrote."""
    entries = json.loads(path.read_text("utf-8"))
    return [Start(entry["name"], entry["model"], tuple(entry["inputs"])) for entry in entries]


def _bake(model: onnx.ModelProto, inputs: Sequence[str], rng: random.Random) -> None:
    """Turn most inputs into constants: shapes, axes and weights can then be mutated."""
    for value, data in zip(list(model.graph.input), inputs, strict=False):
        integer = value.type.tensor_type.elem_type in (TensorProto.INT64, TensorProto.INT32)
        if rng.random() > (0.9 if integer else 0.3):
            continue
        tensor = TensorProto.FromString(data.encode("latin-1"))
        tensor.name = value.name
        model.graph.initializer.append(tensor)
        model.graph.input.remove(value)


def _chain(rng: random.Random) -> onnx.ModelProto:
    """Return a small network in which passes, folding and fusions have something to do."""
    constants = {
        "w": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4),
        "k": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 4, 1, 2),
        "c": np.float32(2).reshape(()),
        "v": np.ones(4, np.float32),
        "shape": np.array([2, 4, 1, 4]),
        "back": np.array([0, 0, -1]),
        "starts": np.array([0]),
        "ends": np.array([2]),
        "axes": np.array([1]),
        "pads": np.array([0, 0, 1, 1]),
        "repeats": np.array([1, 2, 1]),
        "picks": np.array([0, 1, 1]),
        "sizes": np.array([2, 4, 6]),
    }
    steps: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
        "MatMul": (("w",), {}),
        "Add": (("v",), {}),
        "Mul": (("c",), {}),
        "Relu": ((), {}),
        "Sigmoid": ((), {}),
        "Softmax": ((), {"axis": -1}),
        "Transpose": ((), {"perm": [0, 2, 1]}),
        "Reshape": (("back",), {}),
        "Slice": (("starts", "ends", "axes"), {}),
        "Pad": (("pads", "c", "axes_pad"), {}),
        "Tile": (("repeats",), {}),
        "Gather": (("picks",), {"axis": 1}),
        "Concat": (("x",), {"axis": 1}),
        "ReduceMean": (("axes",), {"keepdims": 1}),
        "Unsqueeze": (("axes",), {}),
        "Squeeze": (("axes",), {}),
        "Resize": (("", "", "sizes"), {"mode": "linear"}),
        "Expand": (("sizes",), {}),
        "LayerNormalization": (("v",), {"axis": -1}),
        "Flatten": ((), {"axis": 1}),
        "Shape": ((), {}),
        "ConstantOfShape": ((), {}),
        "Cast": ((), {"to": TensorProto.FLOAT}),
        "Split": ((), {"axis": 0, "num_outputs": 1}),
        "Conv": (("k",), {"group": 1}),
        "MaxPool": ((), {"kernel_shape": [1, 2], "strides": [1, 1]}),
        "Einsum": (("w",), {"equation": "...i,ij->...j"}),
        "Where": (("x", "c"), {}),
        "Range": (("ends", "c"), {}),
        "TopK": (("ends",), {"axis": -1}),
    }
    constants["axes_pad"] = np.array([1, 2])
    nodes, name = [], "x"
    length = rng.choice((2, 4, 6, 9))
    for number in range(length):
        kind = rng.choice(list(steps))
        inputs, attributes = steps[kind]
        result = "y" if number == length - 1 else f"t{number}"
        node = helper.make_node(kind, [name, *inputs], [result], name=f"n{number}")
        node.attribute.extend(helper.make_attribute(*pair) for pair in attributes.items())
        nodes.append(node)
        name = result
    read = {name for node in nodes for name in node.input}
    shape: list[int | str] = ["N" if rng.random() < 0.3 else 2, 4, 4]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, name) for name, a in constants.items() if name in read],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
