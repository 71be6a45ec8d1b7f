"""Commands as a user types them, on small models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn.cli.app import run_cli

FLOAT, INT64, BOOL, TEXT = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.STRING,
)


class Result(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: object) -> Result:
        capsys.readouterr()
        status = run_cli([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def street(tmp_path: Path) -> Path:
    """An image file of 120 rows and 200 columns."""
    from PIL import Image

    from tests.pipelines.networks import stripes

    path = tmp_path / "street.png"
    Image.fromarray(stripes(120, 200)).save(path)
    return path


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any] | None]],
    outputs: dict[str, tuple[int, list[Any] | None]],
    weights: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Save a model of these nodes; inputs and outputs are element types and shapes by name."""
    infos = [
        [helper.make_tensor_value_info(name, *about) for name, about in values.items()]
        for values in (inputs, outputs)
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", *infos, constants)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    """Save a model of y = x[:, ids] · rate, of x [b, n] float32, ids [b, k] and rate [] int64."""
    nodes = [
        helper.make_node("Cast", ["rate"], ["factor"], to=FLOAT),
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node("Gather", ["scaled", "ids"], ["y"], axis=1),
    ]
    inputs = {"x": (FLOAT, ["b", "n"]), "ids": (INT64, ["b", "k"]), "rate": (INT64, [])}
    return save(tmp_path / "rates.onnx", nodes, inputs, {"y": (FLOAT, None)})


def convolution(path: Path, shape: list[Any], rank: int, channels: int = 24) -> Path:
    """Save a convolution of images, with scores of rank 2 or a map of rank 4 as its output."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((channels, 3, 3, 3)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["map"], name="first", strides=[16, 16]),
        helper.make_node("GlobalAveragePool", ["map"], ["means"]),
        helper.make_node("Flatten", ["means"], ["scores"]),
    ]
    outputs = {"scores": (FLOAT, [None, channels])} if rank == 2 else {"map": (FLOAT, [None] * 4)}
    return save(path, nodes if rank == 2 else nodes[:1], {"x": (FLOAT, shape)}, outputs, weights)


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    return convolution(tmp_path / "classifier.onnx", ["N", 3, "?", "?"], 2)
