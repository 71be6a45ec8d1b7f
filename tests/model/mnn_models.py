"""Models as MNN's converter writes them, and single ops to convert.

The converter is the wheel's extension module, in a process without access to installers: the
wheel's own command installs packages and reports its conversions.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

_CONVERT = "import sys, _tools; _tools.mnnconvert(['mnnconvert', *sys.argv[1:]])"


def converted(model: onnx.ModelProto, folder: Path, *options: str) -> Path:
    """Return a model as MNN's converter writes it."""
    if importlib.util.find_spec("_tools") is None:
        pytest.skip("MNN is not installed: pip install 'vkmnn[test]'")
    source, target = folder / "source.onnx", folder / "net.mnn"
    onnx.save(model, source)
    names = ["-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(target)]
    command = [sys.executable, "-c", _CONVERT, *names, "--bizCode", "test", *options]
    env = {**os.environ, "PATH": str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert target.exists(), done.stdout + done.stderr
    return target


def fed(session: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return feeds as MNN has them: floats and integers of 32 bits."""
    kinds = {"tensor(float)": np.float32, "tensor(int32)": np.int32}
    types = {arg.name: kinds[arg.type] for arg in session.get_inputs()}
    return {name: np.asarray(value).astype(types[name]) for name, value in feeds.items()}


def one_op(
    op: str, shape: Sequence[int], outputs: int = 1, constants: Sequence[Any] = (), **more: Any
) -> onnx.ModelProto:
    """Return a model of one node; the constants are its inputs after the first."""
    arrays = [None if one is None else np.asarray(one) for one in constants]
    names = ["" if one is None else f"c{n}" for n, one in enumerate(arrays)]
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op, ["x", *names], results, name="node", **more)
    kinds = {"ArgMax": TensorProto.INT64, "Shape": TensorProto.INT64, "Size": TensorProto.INT64}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if n else kinds.get(op, TensorProto.FLOAT), None
            )
            if op != "Split"
            else helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for n, name in enumerate(results)
        ],
        [
            numpy_helper.from_array(array, name)
            for array, name in zip(arrays, names, strict=True)
            if array is not None
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _random(*shape: int, scale: float = 0.5) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(0, scale, shape).astype(np.float32)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


PICTURE = (1, 4, 7, 11)

OPS: dict[str, onnx.ModelProto] = {
    **{
        name: one_op(name, PICTURE)
        for name in (
            *("Abs", "Neg", "Floor", "Ceil", "Exp", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh"),
            *("Asinh", "Sign", "Erf", "Sigmoid", "Tanh", "Relu", "Softplus", "HardSwish", "Elu"),
            *("Selu", "LeakyRelu", "Softsign", "HardSigmoid", "GlobalAveragePool"),
            *("GlobalMaxPool", "Shape", "Identity", "Reciprocal"),
        )
    },
    **{
        f"{name} by one": one_op(name, PICTURE, constants=[_random(4, 1, 1) + 2])
        for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")
    },
    **{
        f"{name} of two axes": one_op(name, PICTURE, axes=[2, 3], keepdims=0)
        for name in ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1")
    },
    "ReduceSum": one_op("ReduceSum", PICTURE, constants=[_ints(1)], keepdims=1),
    "Clip": one_op("Clip", PICTURE, constants=[np.float32(-0.3), np.float32(0.5)]),
    "Clip to 6": one_op("Clip", PICTURE, constants=[np.float32(0), np.float32(6)]),
    "Conv": one_op("Conv", PICTURE, constants=[_random(6, 4, 3, 3), _random(6)], pads=[1, 0, 2, 1]),
    "Conv with steps": one_op(
        "Conv", PICTURE, constants=[_random(5, 4, 3, 2)], strides=[2, 1], dilations=[1, 3]
    ),
    "Conv of groups": one_op("Conv", PICTURE, constants=[_random(6, 2, 3, 3)], group=2),
    "Conv of channels": one_op("Conv", PICTURE, constants=[_random(4, 1, 3, 3)], group=4),
    "ConvTranspose": one_op(
        "ConvTranspose",
        PICTURE,
        constants=[_random(4, 5, 3, 3), _random(5)],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        output_padding=[1, 0],
    ),
    "ConvTranspose of channels": one_op(
        "ConvTranspose", PICTURE, constants=[_random(4, 1, 3, 3)], group=4
    ),
    "MaxPool": one_op("MaxPool", PICTURE, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
    "AveragePool": one_op(
        "AveragePool", PICTURE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "AveragePool with pads": one_op(
        "AveragePool",
        PICTURE,
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        count_include_pad=1,
    ),
    "Gemm": one_op("Gemm", (3, 5), constants=[_random(4, 5), _random(4)], transB=1),
    "MatMul": one_op("MatMul", (2, 3, 5), constants=[_random(5, 4)]),
    "Softmax": one_op("Softmax", PICTURE, axis=1),
    "LayerNormalization": one_op(
        "LayerNormalization", (2, 3, 8), constants=[_random(8), _random(8)], axis=-1
    ),
    "InstanceNormalization": one_op(
        "InstanceNormalization", PICTURE, constants=[_random(4), _random(4)], epsilon=1e-5
    ),
    "BatchNormalization": one_op(
        "BatchNormalization",
        PICTURE,
        constants=[_random(4), _random(4), _random(4), np.abs(_random(4)) + 1],
    ),
    "LRN": one_op("LRN", PICTURE, size=3, alpha=0.1, beta=0.6, bias=1.5),
    "Transpose": one_op("Transpose", PICTURE, perm=[0, 2, 3, 1]),
    "Reshape": one_op("Reshape", PICTURE, constants=[_ints(0, -1, 2)]),
    "Flatten": one_op("Flatten", PICTURE, axis=1),
    "Squeeze": one_op("Squeeze", PICTURE, constants=[_ints(0)]),
    "Unsqueeze": one_op("Unsqueeze", PICTURE, constants=[_ints(1, 3)]),
    "Slice": one_op(
        "Slice", PICTURE, constants=[_ints(1, -2), _ints(4, -9), _ints(1, 3), _ints(2, -3)]
    ),
    "Split": one_op("Split", PICTURE, 2, constants=[_ints(1, 3)], axis=1),
    "Pad": one_op("Pad", PICTURE, constants=[_ints(0, 0, 1, 2, 0, 0, 3, 4), np.float32(0.5)]),
    "Pad by the edge": one_op(
        "Pad", PICTURE, constants=[_ints(0, 0, 1, 2, 0, 0, 3, 4)], mode="edge"
    ),
    "Pad by reflection": one_op(
        "Pad", PICTURE, constants=[_ints(0, 0, 1, 2, 0, 0, 3, 4)], mode="reflect"
    ),
    "Tile": one_op("Tile", PICTURE, constants=[_ints(2, 1, 1, 3)]),
    "Expand": one_op("Expand", (1, 4, 1, 3), constants=[_ints(2, 4, 5, 1)]),
    "Gather": one_op("Gather", PICTURE, constants=[np.array([[0, 2], [3, 1]], np.int64)], axis=1),
    "GatherElements": one_op(
        "GatherElements", (3, 4), constants=[np.array([[0, 1, 2, 0]], np.int64)], axis=0
    ),
    "GatherND": one_op("GatherND", (3, 4), constants=[np.array([[0, 1], [2, 3]], np.int64)]),
    "ScatterND": one_op(
        "ScatterND", (5, 4), constants=[np.array([[1], [3]], np.int64), _random(2, 4)]
    ),
    "ArgMax": one_op("ArgMax", PICTURE, axis=1),
    "TopK": one_op("TopK", (3, 9), 2, constants=[_ints(4)]),
    "CumSum": one_op("CumSum", (3, 9), constants=[np.array(1, np.int64)]),
    "DepthToSpace": one_op("DepthToSpace", (1, 8, 3, 5), blocksize=2, mode="CRD"),
    "SpaceToDepth": one_op("SpaceToDepth", (1, 3, 4, 6), blocksize=2),
    **{
        f"Resize {mode} {coordinates}": one_op(
            "Resize",
            PICTURE,
            constants=[None, np.array([1, 1, 2, 3], np.float32)],
            mode=mode,
            coordinate_transformation_mode=coordinates,
            **({"nearest_mode": "floor"} if mode == "nearest" else {}),
        )
        for mode, coordinates in (
            ("nearest", "asymmetric"),
            ("linear", "half_pixel"),
            ("linear", "align_corners"),
        )
    },
}
"""Single ops for which MNN's converter follows ONNX."""
