"""The nine image networks that come with the onnx package.

Their weights are all 0.02, so that the recorded outputs test sizes and plumbing more than numbers.
With random weights in the same networks, onnxruntime is the oracle.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from _pytest.mark.structures import ParameterSet
from onnx import ModelProto, TensorProto, numpy_helper

import vkmnn
from tests.model.oracle import assert_agree
from tests.onnxruntime_oracle import open_oracle
from vkmnn.ir import Array

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# Relative tolerances of onnx's own runner (onnx/backend/test/case/model); absolute: 1e-7.
TOLERANCES = {
    "bvlc_alexnet": 1e-3,
    "densenet121": 2e-3,
    "inception_v1": 1e-3,
    "inception_v2": 1e-3,
    "resnet50": 1e-3,
    "shufflenet": 1e-3,
    "squeezenet": 1e-3,
    "vgg19": 1e-3,
    "zfnet512": 1e-3,
}
QUICK = ("shufflenet", "squeezenet")  # what the run on the feature floor has time for
# VGG-19 and ZFNet-512 have no op that AlexNet lacks, but 900 MB of weights.
WITH_RANDOM_WEIGHTS = [name for name in TOLERANCES if name not in ("vgg19", "zfnet512")]


def marked(names: Iterable[str]) -> list[ParameterSet]:
    """Return the names as parameters of a test, those of large networks marked as slow."""
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in names]


def ramp(shape: tuple[int, ...]) -> Array:
    """Return the input of onnx's runner: 0 to 1 in equal steps."""
    size = int(np.prod(shape))
    return (np.arange(size) / size).astype(np.float32).reshape(shape)


def check_recorded(name: str, session: vkmnn.InferenceSession) -> None:
    """Compare the session's output with the recorded one, as onnx's runner does."""
    (info,) = session.get_inputs()
    assert info.shape is not None
    (result,) = session.run(None, {info.name: ramp(info.shape)})
    recorded = TensorProto.FromString((FOLDER / f"light_{name}_output_0.pb").read_bytes())
    expected = numpy_helper.to_array(recorded)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(result, expected, rtol=TOLERANCES[name], atol=1e-7)


@pytest.mark.parametrize("name", marked(TOLERANCES))
def test_recorded_output_on_the_device(name: str, validation: bool):
    path = FOLDER / f"light_{name}.onnx"
    with vkmnn.InferenceSession(path, validation=validation, require_device=True) as session:
        check_recorded(name, session)


@pytest.mark.parametrize("name", marked(TOLERANCES))
def test_recorded_output_on_the_cpu(name: str):
    with vkmnn.InferenceSession(FOLDER / f"light_{name}.onnx", device="cpu") as session:
        check_recorded(name, session)


def with_random_weights(
    model: ModelProto, seed: int = 0, factor: tuple[float, float] = (0.5, 1.5)
) -> ModelProto:
    """Replace the constants that generate the weights, and let the output be the input of Softmax.

    `factor` limits the factors of a normalisation.
    """
    random = np.random.default_rng(seed)
    graph = model.graph
    fillers = {node.output[0]: node for node in graph.node if node.op_type == "ConstantOfShape"}
    shapes = {init.name: numpy_helper.to_array(init) for init in graph.initializer}
    factors = _factors(graph)
    for name, node in fillers.items():
        shape = tuple(shapes[node.input[0]])
        if len(shape) > 1:  # He's initialisation keeps the variance through every layer
            weight = random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        elif name in factors:
            weight = random.uniform(*factor, shape)
        else:
            weight = random.normal(0, 0.1, shape)
        graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), name))
        graph.node.remove(node)
    if graph.node[-1].op_type == "Softmax":
        graph.output[0].name = graph.node.pop().input[0]
    return model


def _factors(graph: onnx.GraphProto) -> set[str]:
    """Return the weights that scale: those of BatchNormalization and Mul, which are above 0."""
    sources = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Unsqueeze"}
    found: set[str] = set()
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            found |= {node.input[1], node.input[4]}
        elif node.op_type == "Mul":
            found |= {sources.get(name, name) for name in node.input}
    return found


@pytest.mark.parametrize("name", marked(WITH_RANDOM_WEIGHTS))
def test_random_weights_agree_with_onnxruntime(name: str, validation: bool):
    model = with_random_weights(onnx.load(FOLDER / f"light_{name}.onnx"))
    with vkmnn.InferenceSession(model, validation=validation, require_device=True) as session:
        (info,) = session.get_inputs()
        assert info.shape is not None
        x = np.random.default_rng(1).standard_normal(info.shape, dtype=np.float32)
        results = session.run(None, {info.name: x})
    assert_agree(results, open_oracle(model).run(None, {info.name: x}), what=name)


@pytest.mark.soak
@pytest.mark.parametrize("name", marked(WITH_RANDOM_WEIGHTS))
def test_halves_agree_with_onnxruntime(name: str, validation: bool):
    """Whole networks in halves; factors are small enough for residuals to stay in their range."""
    model = with_random_weights(onnx.load(FOLDER / f"light_{name}.onnx"), factor=(0.3, 0.7))
    with vkmnn.InferenceSession(
        model, validation=validation, require_device=True, precision="normal"
    ) as session:
        if session.precision != "normal":
            pytest.skip("the device has no 16-bit storage")
        (info,) = session.get_inputs()
        assert info.shape is not None
        x = np.random.default_rng(1).standard_normal(info.shape, dtype=np.float32)
        results = session.run(None, {info.name: x})
    assert_agree(results, open_oracle(model).run(None, {info.name: x}), limit=1e-2, what=name)
