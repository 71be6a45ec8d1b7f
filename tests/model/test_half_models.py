"""Models that are float16 or bfloat16 in the file: results, classes, and names of precisions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from tests.model.oracle import range_error
from tests.onnxruntime_oracle import open_oracle
from vkmnn.schedule_config import PRECISIONS

Array = np.ndarray[Any, Any]
FLOAT, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
NUMPY = {HALF: np.dtype(np.float16), BFLOAT: np.dtype(ml_dtypes.bfloat16)}
KINDS = {"float16": HALF, "bfloat16": BFLOAT}
# Of the range: a unit in the last place, and what a network of some 20 layers makes of it.
LIMITS = {"float16": 0.002, "bfloat16": 0.02}
LARGEST = 1e4  # what converters make of the -1e9 of masks
CHECKED = (
    *("resnet", "bert"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("mobilenet_v2", "gpt2")),
)


def rounded(tensor: onnx.TensorProto, kind: int) -> onnx.TensorProto:
    values = np.clip(numpy_helper.to_array(tensor), -LARGEST, LARGEST).astype(NUMPY[kind])
    return numpy_helper.from_array(values, tensor.name)


def constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the float32 constants, but for sizes of Resize, which are float32 by its definition."""
    sizes = {name for node in graph.node if node.op_type == "Resize" for name in node.input[1:]}
    yield from (one for one in graph.initializer if one.name not in sizes)
    for node in graph.node:
        if not sizes & {*node.output}:
            yield from (item.t for item in node.attribute if item.name == "value")


def whole(model: onnx.ModelProto, kind: int, keep_io: bool) -> onnx.ModelProto:
    """Return a model in a half type throughout, as converters write it.

    Args:
        model: in float32.
        kind: the type.
        keep_io: float32 inputs and outputs, with casts after and before them.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for tensor in list(constants(graph)):
        if tensor.data_type == FLOAT:
            tensor.CopyFrom(rounded(tensor, kind))
    for node in graph.node:
        for item in node.attribute:
            if node.op_type == "Cast" and item.name == "to" and item.i == FLOAT:
                item.i = kind
    del graph.value_info[:]
    before, after = list[onnx.NodeProto](), list[onnx.NodeProto]()
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type != FLOAT:
            continue
        if not keep_io:
            value.type.tensor_type.elem_type = kind
            continue
        inner = f"{value.name}_half"
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [inner if name == value.name else name for name in names]
        if value in graph.input:
            before.append(helper.make_node("Cast", [value.name], [inner], to=kind))
        else:
            after.append(helper.make_node("Cast", [inner], [value.name], to=FLOAT))
    set_nodes(graph, [*before, *graph.node, *after])
    return made


def set_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    copies = [onnx.NodeProto.FromString(one.SerializeToString()) for one in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def weights_only(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """Return a model whose weights are stored in a half type, and cast before they are used."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    casts = []
    for tensor in made.graph.initializer:
        if tensor.data_type == FLOAT and len(tensor.dims) > 1:
            name = tensor.name
            tensor.CopyFrom(rounded(tensor, kind))
            tensor.name = f"{name}_stored"
            casts.append(helper.make_node("Cast", [tensor.name], [name], to=FLOAT))
    set_nodes(made.graph, [*casts, *made.graph.node])
    return made


def with_rounded_weights(model: onnx.ModelProto, kind: int, least: int = 0) -> onnx.ModelProto:
    """Return the float32 model with the values of the float16 one, from `least` dimensions on."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in list(constants(made.graph)):
        if tensor.data_type == FLOAT and len(tensor.dims) >= least:
            values = numpy_helper.to_array(rounded(tensor, kind)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return made


def halved(feeds: dict[str, Array], model: onnx.ModelProto) -> dict[str, Array]:
    kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    return {
        name: array.astype(NUMPY[kinds[name]]) if kinds[name] in NUMPY else array
        for name, array in feeds.items()
    }


def check(results: list[Array], expected: list[Array], limit: float) -> None:
    for result, want in zip(results, expected, strict=True):
        have = result.astype(np.float32)
        assert range_error(have, want) < limit
        rows = [array.reshape(-1, array.shape[-1]) for array in (have, want)]
        # Rows whose best two differ by less than the tolerance may go either way.
        best = np.sort(rows[1], axis=1)
        clear = best[:, -1] - best[:, -2] > limit * np.ptp(want)
        assert clear.any()
        assert (rows[0].argmax(1) == rows[1].argmax(1))[clear].all()


@pytest.mark.parametrize("keep_io", [True, False], ids=["float32 outside", "half outside"])
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", CHECKED)
def test_whole_models(name: str, dtype: str, keep_io: bool) -> None:
    network, kind = NETWORKS[name], KINDS[dtype]
    model = network.build()
    half = whole(model, kind, keep_io)
    feeds = make_feeds(model, network.sizes[0])
    expected = open_oracle(with_rounded_weights(model, kind)).run(None, feeds)
    for precision in ("high", "normal"):
        with vkmnn.InferenceSession(half, precision=precision, require_device=True) as session:
            results = session.run(None, halved(feeds, half))
        types = {str(result.dtype) for result in results}
        assert types == {"float32" if keep_io else dtype}
        check(results, expected, LIMITS[dtype])


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", CHECKED)
def test_weights_in_half(name: str, dtype: str) -> None:
    """Arithmetic is float32, so that results are those of the rounded weights."""
    network, kind = NETWORKS[name], KINDS[dtype]
    model = network.build()
    feeds = make_feeds(model, network.sizes[0])
    expected = open_oracle(with_rounded_weights(model, kind, least=2)).run(None, feeds)
    stored = weights_only(model, kind)
    with vkmnn.InferenceSession(stored, require_device=True) as session:
        check(session.run(None, feeds), expected, 1e-4)


@pytest.mark.parametrize("precision", ["high", "fp32", "normal", "fp16", "low"])
@pytest.mark.parametrize("dtype", KINDS)
def test_numpy_takes_the_same_words(dtype: str, precision: Any) -> None:
    network, kind = NETWORKS["resnet"], KINDS[dtype]
    model = network.build()
    feeds = make_feeds(model, network.sizes[0])
    expected = open_oracle(with_rounded_weights(model, kind)).run(None, feeds)
    half = whole(model, kind, keep_io=True)
    with vkmnn.InferenceSession(half, "cpu", precision=precision) as session:
        check(session.run(None, feeds), expected, LIMITS[dtype])
        assert session.precision == PRECISIONS[precision]


def test_low_is_normal_to_the_bit_without_float16_arithmetic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = NETWORKS["bert"]
    model = network.build()
    feeds = make_feeds(model, network.sizes[0])
    results = {}
    for precision in ("normal", "low"):
        with vkmnn.InferenceSession(model, precision=precision) as session:  # type: ignore[arg-type]
            results[precision] = session.run(None, feeds)
            used = session.precision
    if used == "low":
        pytest.skip("a GPU with float16 arithmetic")
    for low, normal in zip(results["low"], results["normal"], strict=True):
        np.testing.assert_array_equal(low, normal)
    said = [record.getMessage() for record in caplog.records if '"low"' in record.getMessage()]
    assert said
    assert used in ("normal", "high")
