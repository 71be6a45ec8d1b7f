"""Old and new forms of operators, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from vkmnn.converter.onnx import load_model
from vkmnn.errors import UnsupportedOpError
from vkmnn.ir import Graph
from vkmnn.ir.ops import SoftmaxAttrs, UnaryAttrs

Build = Callable[..., onnx.ModelProto]
Agree = Callable[..., Graph]
Evaluate = Callable[[Graph, list[np.ndarray]], list[np.ndarray]]

RANDOM = np.random.default_rng(3)


def rand(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RANDOM.normal(size=shape).astype(dtype)


I64 = TensorProto.INT64
F32 = TensorProto.FLOAT


@dataclass
class Case:
    """One node; `opsets` it is tried at, `x` the run-time inputs, `c` the constant ones."""

    op: str
    opsets: tuple[int, ...]
    x: dict[str, np.ndarray]
    order: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    c: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, tuple[int, None]] = field(default_factory=lambda: {"y": (F32, None)})
    label: str = ""

    def __str__(self) -> str:
        return f"{self.op}{self.label and '-' + self.label}"


def case(
    op: str, opsets: tuple[int, ...], *inputs: Any, label: str = "", **attributes: Any
) -> Case:
    """Build a case: plain arrays are inputs, arrays in a tuple are constants, None is absent."""
    made = Case(op, opsets, {}, [], attributes, label=label)
    for index, value in enumerate(inputs):
        name = "" if value is None else f"i{index}"
        made.order.append(name)
        if isinstance(value, tuple):
            made.c[name] = np.asarray(value[0])
        elif value is not None:
            made.x[name] = value
    return made


def outputs(made: Case, **codes: int) -> Case:
    made.outputs = {name: (code, None) for name, code in codes.items()}
    return made


X2 = rand(3, 5)
X3 = rand(2, 3, 5)
X4 = rand(2, 6, 7, 5)
SCALE = np.array([1, 1, 2, 1.7], np.float32)

CASES = [
    # Softmax family: a flattened matrix before opset 13.
    *(
        case(op, opsets, X3, axis=axis, label=f"axis{axis}")
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for axis in (0, 1, 2, -1)
        for opsets in ((7, 11, 13, 17) if axis >= 0 else (11, 13, 17),)
    ),
    *(case(op, (7, 13), X3, label="default") for op in ("Softmax", "LogSoftmax", "Hardmax")),
    # Attributes that became inputs.
    case("Slice", (7, 9), X3, starts=[0, 1], ends=[2, -1], axes=[0, 2]),
    case("Slice", (7, 9), X3, starts=[1], ends=[1000], label="no-axes"),
    case("Slice", (10, 13), X3, ([-1],), ([-9],), ([2],), ([-2],), label="inputs"),
    case("Slice", (11, 13), X3, np.array([1]), np.array([3]), np.array([-1]), label="run-time"),
    case("Squeeze", (7, 11), rand(1, 3, 1, 2), axes=[0, 2]),
    case("Squeeze", (11,), rand(1, 3, 1), axes=[-1], label="negative"),
    case("Squeeze", (7, 13), rand(1, 3, 1), label="all"),
    case("Squeeze", (13, 21), rand(1, 3, 1), ([2],), label="input"),
    case("Unsqueeze", (7, 11), X2, axes=[0, 3]),
    case("Unsqueeze", (13, 21), X2, ([0, -1],), label="input"),
    *(
        case(f"Reduce{op}", (7, 11, 13), np.abs(X3) + 0.1, axes=[0, 2], keepdims=0)
        for op in ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    ),
    *(
        case(f"Reduce{op}", (18, 20), np.abs(X3) + 0.1, ([0, -1],), keepdims=0, label="input")
        for op in ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    ),
    case("ReduceSum", (7, 11), X3, axes=[1]),
    case("ReduceSum", (13, 18), X3, ([1],), label="input"),
    case("ReduceSum", (7, 13), X3, label="all"),
    case("ReduceSum", (13,), X3, noop_with_empty_axes=1, label="noop"),
    case("ReduceMean", (11,), X3, axes=[-1], label="negative"),
    case("Clip", (7, 10), X3, min=-0.5, max=0.25),
    case("Clip", (7,), X3, max=0.25, label="no-min"),
    case("Clip", (11, 13), X3, (np.float32(-0.5),), (np.float32(0.25),), label="inputs"),
    case("Clip", (11, 13), X3, None, (np.float32(0.25),), label="only-max"),
    case("Clip", (11, 13), X3, np.array(-0.5, "f4"), np.array(0.2, "f4"), label="run-time"),
    case("Clip", (11,), X3, np.array(-0.5, "f4"), label="run-time-min"),
    outputs(
        case("Clip", (12, 13), np.arange(-4, 5), (np.int64(-2),), (np.int64(3),), label="int64"),
        y=I64,
    ),
    case("Pad", (7, 10), X3, pads=[0, 1, 2, 1, 0, -1], value=1.5),
    case("Pad", (7, 10), X3, pads=[0, 1, 2, 0, 2, 1], mode="reflect", label="reflect"),
    case("Pad", (7,), X3, pads=[0, 1, 2, 0, 2, 1], mode="edge", label="edge"),
    case("Pad", (11, 13, 18), X3, ([0, 1, 2, 1, 0, 1],), (np.float32(2),), label="inputs"),
    case("Pad", (18, 21), X3, ([1, 2],), None, ([-1],), label="axes"),
    case("Pad", (19, 21), X3, ([0, 1, 2, 1, 1, 1],), mode="wrap", label="wrap"),
    case("Upsample", (7,), X4, scales=[1.0, 1.0, 2.0, 3.0]),
    case("Upsample", (7,), X4, scales=[1.0, 1.0, 2.0, 1.5], mode="linear", label="linear"),
    case("Upsample", (9,), X4, (SCALE,), label="input"),
    case("Upsample", (9,), X4, (SCALE,), mode="linear", label="linear-input"),
    case("Resize", (10,), X4, (SCALE,)),
    case("Resize", (10,), X4, (np.array([1, 1, 0.6, 0.5], "f4"),), label="down"),
    case("Resize", (10,), X4, (np.array([1, 1, 2.5, 0.5], "f4"),), label="both"),
    case("Resize", (10,), X4, np.array([1, 1, 2.5, 0.5], "f4"), label="run-time"),
    case("Resize", (10,), X4, (SCALE,), mode="linear", label="linear"),
    case("Resize", (11, 13, 18), X4, (np.zeros(0, "f4"),), (SCALE,), label="empty-roi"),
    case(
        "Resize",
        (11, 13),
        X4,
        (np.zeros(0, "f4"),),
        (np.zeros(0, "f4"),),
        ([2, 6, 9, 11],),
        mode="linear",
        label="sizes",
    ),
    case(
        "Resize",
        (13, 19),
        X4,
        None,
        None,
        ([2, 6, 9, 4],),
        mode="cubic",
        coordinate_transformation_mode="pytorch_half_pixel",
        label="cubic",
    ),
    case(
        "Resize",
        (13,),
        X4,
        None,
        (np.array([1, 1, 2, 3], "f4"),),
        coordinate_transformation_mode="align_corners",
        mode="linear",
        label="corners",
    ),
    # Several outputs.
    outputs(case("Split", (7, 11), X3, axis=2, split=[1, 3, 1]), a=F32, b=F32, c=F32),
    outputs(case("Split", (7, 11, 13), X4, axis=1, label="equal"), a=F32, b=F32, c=F32),
    outputs(case("Split", (13, 18), X3, ([4, 1],), axis=-1, label="input"), a=F32, b=F32),
    outputs(case("Split", (18,), X3, axis=2, num_outputs=3, label="rest"), a=F32, b=F32, c=F32),
    outputs(case("TopK", (7,), X3, k=2), v=F32, i=I64),
    outputs(case("TopK", (10,), X3, ([2],), axis=1, label="input"), v=F32, i=I64),
    outputs(case("TopK", (11, 21), X3, ([3],), largest=0, label="smallest"), v=F32, i=I64),
    outputs(case("MaxPool", (8, 12), X4, kernel_shape=[3, 2], strides=[2, 1]), y=F32, i=I64),
    # Pools and convolutions.
    case("MaxPool", (7, 22), X4, kernel_shape=[3, 2], label="default-strides"),
    case("MaxPool", (10, 12), X4, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, label="ceil"),
    case("MaxPool", (10,), X4, kernel_shape=[2, 2], dilations=[2, 3], label="dilated"),
    case(
        "MaxPool", (7,), X4, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER", label="L"
    ),
    case(
        "MaxPool", (7,), X4, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER", label="U"
    ),
    case("AveragePool", (7, 11), X4, kernel_shape=[3, 2], pads=[1, 0, 1, 1]),
    case(
        "AveragePool",
        (7, 19),
        X4,
        kernel_shape=[3, 2],
        pads=[1, 1, 0, 1],
        count_include_pad=1,
        label="include",
    ),
    case("AveragePool", (7,), X4, kernel_shape=[3, 3], auto_pad="SAME_LOWER", label="lower"),
    case("LpPool", (7, 18), X4, kernel_shape=[2, 2], p=1),
    *(case(f"Global{kind}Pool", (7, 22), X4) for kind in ("Average", "Max")),
    case("GlobalLpPool", (7,), X4, p=3),
    case("Conv", (7, 22), X4, (rand(4, 3, 3, 2),), (rand(4),), group=2, pads=[1, 0, 2, 1]),
    case("Conv", (7,), X4, (rand(6, 1, 3, 3),), group=6, auto_pad="SAME_LOWER", label="depthwise"),
    case("Conv", (11,), X3, (rand(4, 3, 3),), dilations=[2], label="1d"),
    case("Conv", (11,), X4, rand(5, 6, 1, 1), kernel_shape=[1, 1], label="run-time-weight"),
    case("Conv", (11,), rand(1, 2, 5, 4, 6), (rand(3, 2, 2, 3, 1),), strides=[2, 1, 3], label="3d"),
    case("ConvTranspose", (7, 22), X4, (rand(6, 2, 3, 2),), (rand(4),), group=2, strides=[2, 3]),
    case(
        "ConvTranspose",
        (11,),
        X4,
        (rand(6, 2, 3, 3),),
        strides=[2, 2],
        output_padding=[1, 0],
        pads=[1, 1, 0, 1],
        label="padding",
    ),
    case(
        "ConvTranspose",
        (11,),
        X4,
        (rand(6, 2, 3, 3),),
        strides=[2, 2],
        output_shape=[15, 11],
        label="shape",
    ),
    case("ConvTranspose", (11,), X3, (rand(3, 2, 4),), strides=[2], label="1d"),
    # Normalisation.
    case(
        "BatchNormalization",
        (7, 9, 14, 15),
        X4,
        (rand(6),),
        (rand(6),),
        (rand(6),),
        (np.abs(rand(6)),),
        epsilon=1e-3,
    ),
    case(
        "BatchNormalization",
        (9, 15),
        X4,
        rand(6),
        rand(6),
        rand(6),
        np.abs(rand(6)),
        label="run-time",
    ),
    case("InstanceNormalization", (7, 22), X4, (rand(6),), (rand(6),)),
    case("LRN", (7, 13), X4, size=3, alpha=0.5, beta=0.6, bias=1.5),
    case("LpNormalization", (7, 22), X3, axis=1, p=1),
    case("MeanVarianceNormalization", (9, 13, 18), X4),
    case("MeanVarianceNormalization", (9, 13, 18), X4, axes=[1], label="axes"),
    case("MeanVarianceNormalization", (13,), X4, axes=[-1, 0], label="negative"),
    case("LayerNormalization", (17,), X3, (rand(5),), (rand(5),)),
    case("LayerNormalization", (17,), X3, (rand(3, 5),), axis=1, epsilon=0.1, label="axis1"),
    case("GroupNormalization", (21,), X4, (rand(6),), (rand(6),), num_groups=3),
    # Elements.
    *(case(op, (7, 14), X3, rand(3, 1)) for op in ("Add", "Sub", "Mul", "Div")),
    case("Pow", (7, 12, 15), np.abs(X3), rand(5)),
    case("Pow", (12, 15), np.abs(X3), np.arange(5, dtype=np.int64), label="int-exponent"),
    outputs(case("Pow", (12,), np.arange(5, dtype=np.int32), np.float32([2, 2, 2, 0.5, 0.5])), y=6),
    outputs(case("Mod", (10, 13), np.arange(-4, 5), (np.int64(3),)), y=I64),
    case("Mod", (10, 13), X3, rand(5), fmod=1, label="fmod"),
    case("PRelu", (7, 9, 16), X4, (rand(6, 1, 1),)),
    *(case(op, (8, 13), X3, rand(5), rand(2, 1, 1)) for op in ("Sum", "Mean", "Max", "Min")),
    *(case(op, (8, 13), X3, label="one") for op in ("Sum", "Mean", "Max", "Min")),
    outputs(case("Max", (12,), np.arange(5), np.array([3])), y=I64),
    case("HardSigmoid", (7,), X3),
    case("Selu", (7,), X3, alpha=1.5, gamma=0.9),
    case("ThresholdedRelu", (10,), X3, alpha=0.5),
    case("Celu", (12,), X3, alpha=0.7),
    case("Gelu", (20,), X3, approximate="tanh"),
    case("Round", (11,), np.array([-2.5, -0.5, 0.5, 1.5, 2.5, 1.2], "f4")),
    outputs(case("IsInf", (10, 20), np.array([1, np.inf, -np.inf, np.nan], "f4")), y=9),
    outputs(case("IsInf", (10,), np.array([np.inf, -np.inf], "f4"), detect_negative=0), y=9),
    outputs(case("IsNaN", (9, 20), np.array([1, np.inf, np.nan], "f4")), y=9),
    outputs(case("Not", (7,), np.array([True, False])), y=9),
    outputs(case("Cast", (7, 13, 19), X3 * 9, to=TensorProto.INT32), y=6),
    outputs(case("Equal", (7, 13), np.arange(4), np.array([1, 1, 2, 2])), y=9),
    outputs(case("GreaterOrEqual", (12, 16), X3, rand(5)), y=9),
    case("Where", (9, 16), X3 > 0, X3, rand(5)),
    case("Dropout", (7, 10), X3, ratio=0.4),
    case("Dropout", (12, 13), X3, (np.float32(0.4),), (np.array(False),), label="inputs"),
    outputs(case("Dropout", (12, 13), X3, label="mask"), y=F32, m=9),
    # Products.
    case("Gemm", (7, 9, 13), X2, (rand(5, 4),), (rand(4),)),
    case(
        "Gemm", (7, 11), X2, (rand(4, 5),), (rand(1, 4),), transB=1, alpha=0.5, beta=2.0, label="B"
    ),
    case("Gemm", (11,), rand(5, 3), rand(5, 4), rand(4), transA=1, beta=-1.5, label="run-time"),
    case("Gemm", (11,), X2, (rand(5, 4),), (rand(3, 1),), beta=3.0, label="column"),
    case("Gemm", (11,), X2, (rand(5, 4),), (rand(),), label="scalar"),
    case("Gemm", (11,), X2, (rand(5, 4),), (rand(1),), label="one"),
    case("Gemm", (11, 13), X2, (rand(5, 4),), label="no-c"),
    case("Gemm", (11,), X2, (rand(5, 4),), (rand(3, 4),), beta=0.0, label="no-beta"),
    case("MatMul", (7, 13), X3, rand(5)),
    case("Einsum", (12,), X3, rand(2, 5, 4), equation="bij,bjk->bki"),
    # Movement and indices.
    case("Flatten", (7, 13), X4, axis=2),
    case("Flatten", (11,), X4, axis=-1, label="negative"),
    case("Transpose", (7,), X3),
    case("Reshape", (7, 13), X3, ([0, -1],)),
    case("Reshape", (14,), rand(0, 3), ([3, 0, 5],), allowzero=1, label="zero"),
    case("Expand", (8, 13), rand(3, 1), ([2, 1, 5],)),
    case("Tile", (7, 13), X2, ([2, 3],)),
    case("Concat", (7, 13), X3, rand(2, 1, 5), axis=1),
    case("DepthToSpace", (7,), rand(1, 8, 2, 3), blocksize=2),
    case("DepthToSpace", (11, 13), rand(1, 8, 2, 3), blocksize=2, mode="CRD", label="crd"),
    case("SpaceToDepth", (7, 13), rand(1, 3, 4, 6), blocksize=2),
    case("Gather", (7, 13), X3, np.array([[0, 2], [1, 1]]), axis=1),
    case("Gather", (11,), X3, np.array(-1), axis=2, label="negative"),
    case("GatherElements", (11, 13), X2, np.array([[0, 2, 1, 0, -1]]), axis=0),
    case("GatherND", (11, 12), X3, np.array([[0, 1], [1, 2]])),
    case("GatherND", (12,), X3, np.array([[1], [2]]), batch_dims=1, label="batch"),
    case("Scatter", (9, 10), X2, np.array([[0, 2, 1, 0, 1]]), rand(1, 5)),
    case("ScatterElements", (11, 16), X2, np.array([[4, 0]]), rand(1, 2), axis=1),
    case("ScatterElements", (16, 18), X2, np.array([[4, 4]]), rand(1, 2), axis=1, reduction="add"),
    case("ScatterND", (11, 16), X3, np.array([[0, 1], [1, 2]]), rand(2, 5)),
    case("OneHot", (9, 11), np.array([0, 2, -1]), (np.int64(4),), rand(2)),
    case("OneHot", (11,), np.float32([0, 3]), (np.float32([4]),), rand(2), axis=0, label="float"),
    outputs(case("ArgMax", (7, 12), X3, axis=1, keepdims=0), y=I64),
    outputs(case("ArgMin", (12, 13), X3, axis=-1, select_last_index=1), y=I64),
    case("CumSum", (11, 14), X3, (np.int32(1),), exclusive=1, reverse=1),
    outputs(case("Shape", (7, 13), X4), y=I64),
    outputs(case("Shape", (15, 21), X4, start=-3, end=-1, label="part"), y=I64),
    outputs(case("Size", (7, 13), X4), y=I64),
    case("ConstantOfShape", (9, 20), ([2, 3],)),
    outputs(case("EyeLike", (9, 22), X2, k=1, dtype=TensorProto.DOUBLE), y=11),
    outputs(case("Range", (11,), (np.int64(9),), (np.int64(1),), (np.int64(-2),)), y=I64),
    case("Trilu", (14,), X3, (np.int64(-1),), upper=0),
    case("GridSample", (16,), X4, rand(2, 3, 4, 2) * 0.7, mode="bicubic"),
    case("GridSample", (16,), X4, rand(2, 3, 4, 2), padding_mode="border", label="border"),
    case("GridSample", (20,), X4, rand(2, 3, 4, 2) * 0.7, mode="cubic", align_corners=1),
    case("GridSample", (20,), X4, rand(2, 3, 4, 2), padding_mode="reflection", label="reflection"),
    # Quantization.
    outputs(case("QuantizeLinear", (10, 13), X3 * 50, (np.float32(0.3),), (np.uint8(120),)), y=2),
    outputs(
        case(
            "QuantizeLinear",
            (13, 19),
            X3 * 50,
            (np.float32([0.3, 0.5, 0.7]),),
            (np.int8([1, 2, 3]),),
            axis=1,
            label="axis",
        ),
        y=3,
    ),
    case(
        "DequantizeLinear", (10, 13), np.arange(9, dtype="u1"), (np.float32(0.3),), (np.uint8(3),)
    ),
    case(
        "DequantizeLinear",
        (13,),
        np.arange(6, dtype="i1").reshape(3, 2),
        (np.float32([0.3, 0.5, 0.7]),),
        axis=0,
        label="axis",
    ),
    outputs(case("MatMulInteger", (10,), np.uint8([[1, 200], [3, 4]]), np.uint8([[9], [8]])), y=6),
    outputs(
        case(
            "QLinearConv",
            (10,),
            RANDOM.integers(0, 255, (1, 2, 5, 5)).astype("u1"),
            (np.float32(0.1),),
            (np.uint8(100),),
            # Small weights: without VNNI onnxruntime saturates sums of two products at 16 bits.
            (RANDOM.integers(-60, 60, (3, 2, 3, 3)).astype("i1"),),
            (np.float32([0.1, 0.2, 0.3]),),
            (np.int8([0, 0, 0]),),
            (np.float32(2.5),),
            (np.uint8(128),),
            (np.int32([1000, -2000, 0]),),
        ),
        y=2,
    ),
]

RUNS = [pytest.param(made, opset, id=f"{made}-{opset}") for made in CASES for opset in made.opsets]


@pytest.mark.parametrize(("made", "opset"), RUNS)
def test_agrees_with_onnxruntime(made: Case, opset: int, build: Build, agree: Agree) -> None:
    node = helper.make_node(made.op, made.order, list(made.outputs), **made.attributes)
    agree(build([node], made.x, made.outputs, made.c, opset), made.x)


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 22])
def test_small_network_at_every_opset(opset: int, build: Build, agree: Agree) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "o", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Dropout", ["f"], ["d"]),
        helper.make_node("Gemm", ["d", "k", "q"], ["z"], transB=1),
        helper.make_node("Softmax", ["z"], ["y"]),
    ]
    constants = {
        "w": rand(4, 3, 3, 3),
        "b": rand(4),
        "s": rand(4),
        "o": rand(4),
        "m": rand(4),
        "v": np.abs(rand(4)),
        "k": rand(7, 4),
        "q": rand(7),
    }
    x = {"x": rand(2, 3, 9, 7)}
    graph = agree(build(nodes, x, ["y"], constants, opset), x)
    assert [op.type for op in graph.ops] == [
        "Convolution",
        "Scale",
        "UnaryOp",
        "Pooling",
        "Pooling",
        "Flatten",
        "Identity",
        "MatMul",
        "Softmax",
    ]
    assert all(info.shape is not None for info in graph.infos.values())


def test_group_normalization_18_has_scales_by_group(build: Build, evaluate: Evaluate) -> None:
    """onnxruntime has no kernel for this version; the definition of opset 18 is written out."""
    x, scale, bias = rand(2, 6, 3), rand(3), rand(3)
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=3)
    graph = load_model(build([node], {"x": x}, ["y"], {"s": scale, "b": bias}, 18))
    groups = x.reshape(2, 3, -1)
    normal = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(
        groups.var(-1, keepdims=True) + 1e-5
    )
    expected = normal * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(
        evaluate(graph, [x])[0], expected.reshape(x.shape), rtol=1e-4, atol=1e-5
    )


def test_flatten_is_dropped_on_the_last_axis(build: Build) -> None:
    model = build([helper.make_node("Softmax", ["x"], ["y"], axis=1)], {"x": X2}, ["y"], opset=11)
    assert load_model(model).ops[0].attrs == SoftmaxAttrs(-1)


@pytest.mark.parametrize(
    ("dtype", "largest"), [("float32", np.finfo(np.float32).max), ("float16", np.inf)]
)
def test_the_bound_that_an_early_clip_leaves_out(build: Build, dtype: str, largest: float) -> None:
    node = helper.make_node("Clip", ["x"], ["y"], min=0.0)
    model = build([node], {"x": X2.astype(dtype)}, ["y"], opset=7)
    assert load_model(model).ops[0].attrs == UnaryAttrs("CLIP", 0.0, float(largest))


@pytest.mark.parametrize(
    ("op", "opset", "inputs", "attributes", "words"),
    [
        ("Resize", 13, "x", {}, "scales and sizes"),
        ("Resize", 13, "x.s", {"mode": "spline"}, "spline"),
        ("Conv", 13, "xx", {"auto_pad": "SAME"}, "auto_pad 'SAME'"),
        ("GridSample", 20, "xx", {"padding_mode": "mirror"}, "mirror"),
        ("ScatterND", 16, "xix", {"reduction": "mean"}, "mean"),
        ("Pad", 13, "xi", {"mode": "symmetric"}, "symmetric"),
        ("Dropout", 13, "xst", {}, "not a constant"),
    ],
)
def test_unsupported_attribute_values(
    build: Build, op: str, opset: int, inputs: str, attributes: dict[str, Any], words: str
) -> None:
    values = {
        "x": X4,
        "s": np.ones(6, np.float32),
        "i": np.zeros((2, 4), np.int64),
        "t": np.array(False),
    }
    node = helper.make_node(
        op, list(inputs.replace(".", " ").replace(" ", "?")), ["y"], **attributes
    )
    node.input[:] = ["" if name == "?" else name for name in node.input]
    with pytest.raises(UnsupportedOpError) as caught:
        load_model(build([node], {n: values[n] for n in set(inputs) - {"."}}, ["y"], opset=opset))
    assert words in caught.value.nodes[0].reason


def test_batch_normalization_of_single_elements(build: Build, evaluate: Evaluate) -> None:
    """Opset 7 could keep statistics for each element of a sample; onnxruntime dropped that."""
    x, constants = rand(4, 3, 2), {name: np.abs(rand(3, 2)) for name in "sbmv"}
    node = helper.make_node("BatchNormalization", ["x", *constants], ["y"], spatial=0)
    graph = load_model(build([node], {"x": x}, ["y"], constants, 7))
    scale, bias, mean, var = constants.values()
    expected = (x - mean) / np.sqrt(var + 1e-5) * scale + bias
    np.testing.assert_allclose(evaluate(graph, [x])[0], expected, rtol=1e-4, atol=1e-5)


def test_attention_with_a_past_is_expanded(build: Build) -> None:
    inputs = {name: rand(2, 4, 5, 8) for name in "qkv"}
    inputs |= {"pk": rand(2, 4, 3, 8), "pv": rand(2, 4, 3, 8)}
    node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], ["y"])
    model = build([node], inputs, ["y"], opset=23)
    assert not any(op.type == "Attention" for op in load_model(model).ops)


def test_attention_with_a_soft_cap_stays_one_op(build: Build, evaluate: Evaluate) -> None:
    inputs = {name: rand(2, 4, 5, 8) for name in "qkv"} | {"m": rand(5, 5)}
    node = helper.make_node("Attention", list("qkvm"), ["y"], softcap=0.7)
    graph = load_model(build([node], inputs, ["y"], opset=23))
    assert [op.type for op in graph.ops] == ["Attention"]
    q, k, v, mask = inputs.values()
    scores = 0.7 * np.tanh(q @ k.transpose(0, 1, 3, 2) / np.sqrt(8) / 0.7) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ v
    np.testing.assert_allclose(
        evaluate(graph, list(inputs.values()))[0], expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("split", [False, True])
def test_attention_with_shared_heads(build: Build, evaluate: Evaluate, split: bool) -> None:
    """Neighbouring queries share keys and values: the first two the first ones."""
    whole = {"q": rand(2, 4, 5, 8), "k": rand(2, 2, 7, 8), "v": rand(2, 2, 7, 6)}
    inputs = {
        name: x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) if split else x
        for name, x in whole.items()
    }
    heads = {"q_num_heads": 4, "kv_num_heads": 2} if split else {}
    node = helper.make_node("Attention", list("qkv"), ["y"], **heads)
    graph = load_model(build([node], inputs, ["y"], opset=23))
    assert [op.type for op in graph.ops].count("Attention") == 1
    q, k, v = whole["q"], whole["k"].repeat(2, 1), whole["v"].repeat(2, 1)
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ v
    if split:
        expected = expected.transpose(0, 2, 1, 3).reshape(2, 5, 24)
    result = evaluate(graph, list(inputs.values()))[0]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_plain_attention_stays_one_op(build: Build, evaluate: Evaluate) -> None:
    inputs = {name: rand(2, 5, 12) for name in "qkv"} | {"m": rand(5, 5) > -0.5}
    node = helper.make_node("Attention", list("qkvm"), ["y"], q_num_heads=3, kv_num_heads=3)
    graph = load_model(build([node], inputs, ["y"], opset=23))
    assert [op.type for op in graph.ops].count("Attention") == 1
    q, k, v = (inputs[name].reshape(2, 5, 3, 4).transpose(0, 2, 1, 3) for name in "qkv")
    scores = np.where(inputs["m"], q @ k.transpose(0, 1, 3, 2) / 2, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ v
    expected = expected.transpose(0, 2, 1, 3).reshape(2, 5, 12)
    np.testing.assert_allclose(evaluate(graph, list(inputs.values()))[0], expected, rtol=1e-4)


@pytest.mark.parametrize("axes", [None, (1,), (0, -1)])
def test_mean_variance_normalization_of_halves(
    axes: tuple[int, ...] | None, build: Build, evaluate: Evaluate
) -> None:
    """The squares are beyond float16, and the last channel has no variance."""
    x = (300 * X4 + 100).astype(np.float16)
    x[:, -1] = 7
    given = {} if axes is None else {"axes": axes}
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], **given)
    model = build([node], {"x": x}, {"y": (TensorProto.FLOAT16, None)})
    (y,) = evaluate(load_model(model), [x])
    wide, over = x.astype(np.float64), axes or (0, 2, 3)
    mean, deviation = (of(wide, axis=over, keepdims=True) for of in (np.mean, np.std))
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, (wide - mean) / (deviation + 1e-9), atol=2e-3)
