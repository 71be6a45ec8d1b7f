"""One TFLite file for each kind of operator, in float and, if it matters, quantised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.tflite_files import Options, Writer

_RANDOM = np.random.default_rng(7)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return _RANDOM.normal(0, scale, shape).astype(np.float32)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


@dataclass(frozen=True)
class Fixed:
    """A constant operand; it is quantised if it has a scale."""

    array: np.ndarray
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Packed(Fixed):
    """A constant of four bits, two to a byte."""


@dataclass(frozen=True)
class Coded:
    """An operand of quantised values that is fed."""

    array: np.ndarray
    scale: float
    zero: int = 0


@dataclass(frozen=True)
class Result:
    """An output of an operator."""

    shape: Sequence[int]
    kind: str = "FLOAT32"
    scale: float | None = None
    zero: int = 0


@dataclass(frozen=True)
class Case:
    """A file, its feeds, and the tolerance for its results.

    `limit` is relative to the largest number; for integers it is the largest difference.
    """

    model: bytes
    feeds: list[np.ndarray]
    limit: float = 1e-5


Operand = np.ndarray | Fixed | Coded | None


def one(
    kind: str,
    operands: Sequence[Operand],
    results: Sequence[Result] | Result,
    options: Options | None = None,
    *,
    limit: float = 1e-5,
    version: int = 1,
    custom: bytes = b"",
) -> Case:
    """Return a file of one operator; arrays are fed, `Fixed` ones are constants."""
    writer, numbers, feeds, fed = Writer(), [], [], []
    for operand in operands:
        if operand is None:
            numbers.append(-1)
        elif isinstance(operand, Packed):
            nibbles = operand.array.reshape(-1).astype(np.uint8) & 15
            data = (nibbles[::2] | nibbles[1::2] << 4).tobytes()
            numbers.append(writer.tensor(operand.array.shape, "INT4", data=data, **operand.more))
        elif isinstance(operand, Fixed):
            numbers.append(writer.constant(operand.array, **operand.more))
        else:
            array = operand.array if isinstance(operand, Coded) else operand
            more = (
                {"scale": operand.scale, "zero": operand.zero} if isinstance(operand, Coded) else {}
            )
            kinds = {"float32": "FLOAT32", "bool": "BOOL"}
            name = kinds.get(array.dtype.name, array.dtype.name.upper())
            number = writer.tensor(array.shape, name, **more)
            numbers.append(number)
            feeds.append(array)
            fed.append(number)
    made = [results] if isinstance(results, Result) else list(results)
    outputs = [writer.tensor(one.shape, one.kind, scale=one.scale, zero=one.zero) for one in made]
    writer.op(kind, numbers, outputs, options, version=version, custom=custom)
    writer.faces(fed, outputs)
    return Case(writer.finish(), feeds, limit)


PICTURE = normal(1, 7, 9, 4)
LINE = normal(3, 5)
POSITIVE = np.abs(normal(3, 5)) + np.float32(0.1)
BYTES = _RANDOM.integers(-128, 128, (1, 7, 9, 4)).astype(np.int8)
WINDOW = {"stride_w": 1, "stride_h": 1}
SAME, VALID = {"padding": 0}, {"padding": 1}


def pool(kind: str, padding: int, **more: Any) -> Case:
    options = {"padding": padding, "stride_w": 2, "stride_h": 1, **more}
    options |= {"filter_width": 3, "filter_height": 2}
    shape = (1, 7, 5, 4) if padding == 0 else (1, 6, 4, 4)
    return one(kind, [PICTURE], Result(shape), ("Pool2DOptions", options))


def unary(kind: str, array: np.ndarray = LINE, options: Options | None = None, **more: Any) -> Case:
    return one(kind, [array], Result(array.shape), options, **more)


def reduce(kind: str, array: np.ndarray, axes: list[int], keep: bool, **more: Any) -> Case:
    shape = [
        1 if axis in axes else size
        for axis, size in enumerate(array.shape)
        if keep or axis not in axes
    ]
    result = Result(shape, "BOOL" if array.dtype == bool else "FLOAT32")
    return one(
        kind, [array, Fixed(ints(*axes))], result, ("ReducerOptions", {"keep_dims": keep}), **more
    )


WIDE = normal(2, 3, 4, 5)

CASES: dict[str, Case] = {
    "conv same": one(
        "CONV_2D",
        [PICTURE, Fixed(normal(6, 3, 3, 4)), Fixed(normal(6))],
        Result((1, 4, 5, 6)),
        ("Conv2DOptions", {**SAME, "stride_w": 2, "stride_h": 2, "fused_activation_function": 3}),
    ),
    "conv dilated": one(
        "CONV_2D",
        [PICTURE, Fixed(normal(6, 2, 3, 4)), Fixed(normal(6))],
        Result((1, 7, 9, 6)),
        ("Conv2DOptions", {**SAME, **WINDOW, "dilation_w_factor": 2, "dilation_h_factor": 3}),
    ),
    "conv of groups": one(
        "CONV_2D",
        [PICTURE, Fixed(normal(6, 2, 2, 2)), Fixed(normal(6))],
        Result((1, 6, 8, 6)),
        ("Conv2DOptions", {**VALID, **WINDOW, "fused_activation_function": 1}),
        version=6,
    ),
    "depthwise": one(
        "DEPTHWISE_CONV_2D",
        [PICTURE, Fixed(normal(1, 3, 3, 8)), Fixed(normal(8))],
        Result((1, 4, 5, 8)),
        (
            "DepthwiseConv2DOptions",
            {**SAME, "stride_w": 2, "stride_h": 2, "depth_multiplier": 2},
        ),
    ),
    "transpose conv": one(
        "TRANSPOSE_CONV",
        [Fixed(ints(1, 14, 18, 3)), Fixed(normal(3, 3, 3, 4)), PICTURE, Fixed(normal(3))],
        Result((1, 14, 18, 3)),
        ("TransposeConvOptions", {**SAME, "stride_w": 2, "stride_h": 2}),
        version=3,
    ),
    "transpose conv valid": one(
        "TRANSPOSE_CONV",
        [Fixed(ints(1, 15, 28, 3)), Fixed(normal(3, 3, 2, 4)), PICTURE],
        Result((1, 15, 28, 3)),
        ("TransposeConvOptions", {**VALID, "stride_w": 3, "stride_h": 2}),
    ),
    "conv 3d": one(
        "CONV_3D",
        [normal(1, 4, 5, 6, 2), Fixed(normal(2, 3, 2, 2, 3)), Fixed(normal(3))],
        Result((1, 2, 5, 3, 3)),
        ("Conv3DOptions", {**SAME, "stride_d": 2, "stride_w": 2, "stride_h": 1}),
    ),
    "conv 3d transpose": one(
        "CONV_3D_TRANSPOSE",
        [Fixed(ints(1, 4, 10, 6, 2)), Fixed(normal(2, 3, 2, 2, 3)), normal(1, 2, 5, 3, 3)],
        Result((1, 4, 10, 6, 2)),
        ("Conv3DOptions", {**SAME, "stride_d": 2, "stride_w": 2, "stride_h": 2}),
    ),
    "fully connected": one(
        "FULLY_CONNECTED",
        [normal(2, 3, 4), Fixed(normal(5, 4)), Fixed(normal(5))],
        Result((6, 5)),
        ("FullyConnectedOptions", {"fused_activation_function": 1}),
    ),
    "fully connected keeping axes": one(
        "FULLY_CONNECTED",
        [normal(2, 3, 4), Fixed(normal(5, 4)), None],
        Result((2, 3, 5)),
        ("FullyConnectedOptions", {"keep_num_dims": True}),
        version=5,
    ),
    "fully connected by two tensors": one(
        "FULLY_CONNECTED", [normal(2, 4), normal(5, 4), None], Result((2, 5)), version=1
    ),
    "batch matmul": one(
        "BATCH_MATMUL",
        [normal(2, 3, 4), normal(2, 4, 5)],
        Result((2, 3, 5)),
        ("BatchMatMulOptions", {}),
    ),
    "batch matmul transposed": one(
        "BATCH_MATMUL",
        [normal(2, 4, 3), Fixed(normal(1, 5, 4))],
        Result((2, 3, 5)),
        ("BatchMatMulOptions", {"adj_x": True, "adj_y": True}),
    ),
    **{
        f"{kind} {name}": pool(kind, padding)
        for kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
        for name, padding in (("same", 0), ("valid", 1))
    },
    "average pool with relu6": pool("AVERAGE_POOL_2D", 0, fused_activation_function=3),
    **{
        kind: one(kind, [PICTURE, Fixed(normal(1, 1, 4) + 2)], Result(PICTURE.shape))
        for kind in ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
    },
    "ADD with relu": one(
        "ADD",
        [PICTURE, PICTURE[:, :1]],
        Result(PICTURE.shape),
        ("AddOptions", {"fused_activation_function": 1}),
    ),
    "MUL with relu_n1_to_1": one(
        "MUL", [LINE, LINE], Result(LINE.shape), ("MulOptions", {"fused_activation_function": 2})
    ),
    "SUB with relu6": one(
        "SUB",
        [ints(9, -3, 4), ints(1, 1, 1)],
        Result((3,), "INT32"),
        ("SubOptions", {"fused_activation_function": 3}),
    ),
    "ADD_N": one("ADD_N", [LINE, LINE[::-1].copy(), LINE], Result(LINE.shape)),
    "POW": one("POW", [POSITIVE, LINE], Result(LINE.shape)),
    "FLOOR_DIV": one("FLOOR_DIV", [LINE * 5, POSITIVE], Result(LINE.shape)),
    "FLOOR_DIV of integers": one(
        "FLOOR_DIV", [ints(7, -7, 7, -7), ints(2, 2, -2, -2)], Result((4,), "INT32")
    ),
    "FLOOR_MOD": one("FLOOR_MOD", [LINE * 5, POSITIVE], Result(LINE.shape), limit=1e-4),
    "FLOOR_MOD of integers": one(
        "FLOOR_MOD", [ints(7, -7, 7, -7), ints(2, 2, -2, -3)], Result((4,), "INT32")
    ),
    **{
        kind: one(kind, [ints(1, 2, 3, 4), ints(3, 2, 1, 4)], Result((4,), "BOOL"))
        for kind in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
    },
    **{
        kind: one(
            kind, [np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)], Result((4,), "BOOL")
        )
        for kind in ("LOGICAL_AND", "LOGICAL_OR")
    },
    "LOGICAL_NOT": one("LOGICAL_NOT", [np.array([0, 1], bool)], Result((2,), "BOOL")),
    "BITWISE_XOR": one("BITWISE_XOR", [ints(1, 6, -3), ints(3, 5, 9)], Result((3,), "INT32")),
    "RIGHT_SHIFT": one("RIGHT_SHIFT", [ints(16, -7, 33), ints(2, 1, 3)], Result((3,), "INT32")),
    **{
        kind: unary(kind)
        for kind in (
            *("RELU", "RELU6", "RELU_N1_TO_1", "ELU", "LOGISTIC", "TANH", "EXP", "ABS"),
            *("NEG", "SIN", "COS", "FLOOR", "CEIL", "SQUARE", "HARD_SWISH", "SIGN"),
        )
    },
    "RELU_0_TO_1": unary("RELU_0_TO_1"),
    "ROUND": unary("ROUND", np.float32([0.5, 1.5, -0.5, -1.5, 2.4, 2.6])),
    **{kind: unary(kind, POSITIVE) for kind in ("LOG", "SQRT", "RSQRT")},
    "GELU": unary("GELU", options=("GeluOptions", {})),
    "GELU approximately": unary("GELU", options=("GeluOptions", {"approximate": True})),
    "LEAKY_RELU": unary("LEAKY_RELU", options=("LeakyReluOptions", {"alpha": 0.3})),
    "PRELU": one("PRELU", [PICTURE, Fixed(normal(1, 1, 4))], Result(PICTURE.shape)),
    "SOFTMAX": unary("SOFTMAX", options=("SoftmaxOptions", {"beta": 2.0})),
    "LOG_SOFTMAX": unary("LOG_SOFTMAX"),
    "ATAN2": one(
        "ATAN2",
        [np.float32([1, -1, 2, -2, 0, 3, -3]), np.float32([2, 2, -1, -1, 5, 0, 0])],
        Result((7,)),
    ),
    "L2_NORMALIZATION": unary("L2_NORMALIZATION", PICTURE, ("L2NormOptions", {})),
    "CAST to integers": one(
        "CAST",
        [np.float32([1.7, -1.7, 3])],
        Result((3,), "INT32"),
        ("CastOptions", {"out_data_type": 2}),
    ),
    "CAST to truth": one(
        "CAST", [ints(0, 2, -1)], Result((3,), "BOOL"), ("CastOptions", {"out_data_type": 6})
    ),
    "FAKE_QUANT": unary(
        "FAKE_QUANT", options=("FakeQuantOptions", {"min": -1.5, "max": 2.0, "num_bits": 6})
    ),
    "SELECT of rows": one(
        "SELECT", [np.array([1, 0, 1], bool), LINE, LINE * 2], Result(LINE.shape)
    ),
    "SELECT_V2": one("SELECT_V2", [LINE[:1] > 0, LINE, np.float32([5])], Result(LINE.shape)),
    "RESHAPE": one("RESHAPE", [WIDE, Fixed(ints(4, -1))], Result((4, 30))),
    "RESHAPE to a scalar": one("RESHAPE", [normal(1, 1), Fixed(np.zeros(0, np.int32))], Result(())),
    "RESHAPE by option": one(
        "RESHAPE", [WIDE], Result((6, 20)), ("ReshapeOptions", {"new_shape": [6, -1]})
    ),
    "TRANSPOSE": one("TRANSPOSE", [WIDE, Fixed(ints(2, 0, 3, 1))], Result((4, 2, 5, 3))),
    "SQUEEZE": one(
        "SQUEEZE", [normal(1, 3, 1)], Result((3, 1)), ("SqueezeOptions", {"squeeze_dims": [0]})
    ),
    "SQUEEZE of all": one("SQUEEZE", [normal(1, 3, 1)], Result((3,)), ("SqueezeOptions", {})),
    "EXPAND_DIMS": one("EXPAND_DIMS", [LINE, Fixed(ints(-1))], Result((3, 5, 1))),
    "SHAPE": one("SHAPE", [WIDE], Result((4,), "INT32"), ("ShapeOptions", {"out_type": 2})),
    "RANK": one("RANK", [WIDE], Result((), "INT32")),
    "CONCATENATION": one(
        "CONCATENATION", [LINE, LINE * 2], Result((3, 10)), ("ConcatenationOptions", {"axis": -1})
    ),
    "PACK": one(
        "PACK", [LINE, LINE * 2], Result((3, 2, 5)), ("PackOptions", {"values_count": 2, "axis": 1})
    ),
    "UNPACK": one("UNPACK", [LINE], [Result((5,))] * 3, ("UnpackOptions", {"num": 3, "axis": 0})),
    "SPLIT": one(
        "SPLIT",
        [Fixed(ints(2).reshape(())), WIDE],
        [Result((2, 3, 2, 5))] * 2,
        ("SplitOptions", {"num_splits": 2}),
    ),
    "SPLIT_V": one(
        "SPLIT_V",
        [WIDE, Fixed(ints(1, -1)), Fixed(ints(3).reshape(()))],
        [Result((2, 3, 4, 1)), Result((2, 3, 4, 4))],
        ("SplitVOptions", {"num_splits": 2}),
    ),
    "SLICE": one(
        "SLICE", [WIDE, Fixed(ints(0, 1, 0, 2)), Fixed(ints(1, -1, 2, 3))], Result((1, 2, 2, 3))
    ),
    "SLICE at places computed": one(
        "SLICE", [WIDE, ints(0, 1, 0, 2), Fixed(ints(1, 2, 2, 3))], Result((1, 2, 2, 3))
    ),
    "STRIDED_SLICE": one(
        "STRIDED_SLICE",
        [WIDE, Fixed(ints(0, -1, 3)), Fixed(ints(0, 9, 0)), Fixed(ints(1, 1, -2))],
        Result((2, 2, 5)),
        ("StridedSliceOptions", {"begin_mask": 1, "end_mask": 5, "shrink_axis_mask": 2}),
    ),
    "STRIDED_SLICE with ellipsis": one(
        "STRIDED_SLICE",
        [WIDE, Fixed(ints(1, 0, 1)), Fixed(ints(2, 0, 4)), Fixed(ints(1, 1, 2))],
        Result((1, 3, 4, 2)),
        ("StridedSliceOptions", {"ellipsis_mask": 2}),
    ),
    "TILE": one("TILE", [LINE, Fixed(ints(2, 3))], Result((6, 15))),
    "FILL": one("FILL", [Fixed(ints(2, 3)), np.float32(4)], Result((2, 3))),
    "RANGE": one(
        "RANGE",
        [Fixed(np.array(2, np.int32)), np.array(9, np.int32), Fixed(np.array(3, np.int32))],
        Result((3,), "INT32"),
    ),
    "REVERSE_V2": one("REVERSE_V2", [WIDE, Fixed(ints(1))], Result(WIDE.shape)),
    "REVERSE_SEQUENCE": one(
        "REVERSE_SEQUENCE",
        [WIDE, Fixed(ints(2, 1, 4, 3, 5))],
        Result(WIDE.shape),
        ("ReverseSequenceOptions", {"seq_dim": 2, "batch_dim": 3}),
    )
    if False
    else one(
        "REVERSE_SEQUENCE",
        [normal(4, 3, 2), Fixed(ints(2, 1))],
        Result((4, 3, 2)),
        ("ReverseSequenceOptions", {"seq_dim": 0, "batch_dim": 2}),
    ),
    "BROADCAST_TO": one("BROADCAST_TO", [LINE, Fixed(ints(2, 3, 5))], Result((2, 3, 5)), version=2),
    "BROADCAST_ARGS": one(
        "BROADCAST_ARGS", [Fixed(ints(3, 1)), ints(2, 1, 4)], Result((3,), "INT32")
    ),
    "ZEROS_LIKE": one("ZEROS_LIKE", [LINE], Result(LINE.shape)),
    "CUMSUM": one(
        "CUMSUM",
        [LINE, Fixed(ints(1).reshape(()))],
        Result(LINE.shape),
        ("CumsumOptions", {"exclusive": True, "reverse": True}),
    ),
    "PAD": one("PAD", [LINE, Fixed(np.int32([[1, 2], [0, 3]]))], Result((6, 8))),
    "PADV2": one(
        "PADV2", [LINE, Fixed(np.int32([[1, 0], [0, 1]])), Fixed(np.float32(7))], Result((4, 6))
    ),
    "MIRROR_PAD": one(
        "MIRROR_PAD",
        [LINE, Fixed(np.int32([[2, 1], [3, 0]]))],
        Result((6, 8)),
        ("MirrorPadOptions", {"mode": 0}),
    ),
    "MIRROR_PAD symmetric": one(
        "MIRROR_PAD",
        [LINE, Fixed(np.int32([[3, 1], [2, 5]]))],
        Result((7, 12)),
        ("MirrorPadOptions", {"mode": 1}),
    ),
    **{
        f"{kind} {name}": one(
            kind,
            [PICTURE, Fixed(ints(11, 12))],
            Result((1, 11, 12, 4)),
            ({"B": "ResizeBilinearOptions"}.get(kind[7], "ResizeNearestNeighborOptions"), options),
        )
        for kind in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
        for name, options in (
            ("plain", {}),
            ("aligned", {"align_corners": True}),
            ("half", {"half_pixel_centers": True}),
        )
    },
    "DEPTH_TO_SPACE": one(
        "DEPTH_TO_SPACE",
        [PICTURE],
        Result((1, 14, 18, 1)),
        ("DepthToSpaceOptions", {"block_size": 2}),
    ),
    "SPACE_TO_DEPTH": one(
        "SPACE_TO_DEPTH",
        [normal(1, 6, 8, 3)],
        Result((1, 3, 4, 12)),
        ("SpaceToDepthOptions", {"block_size": 2}),
    ),
    "SPACE_TO_BATCH_ND": one(
        "SPACE_TO_BATCH_ND",
        [PICTURE, Fixed(ints(2, 3)), Fixed(np.int32([[1, 0], [0, 3]]))],
        Result((6, 4, 4, 4)),
    ),
    "BATCH_TO_SPACE_ND": one(
        "BATCH_TO_SPACE_ND",
        [normal(6, 4, 4, 2), Fixed(ints(2, 3)), Fixed(np.int32([[1, 0], [0, 3]]))],
        Result((1, 7, 9, 2)),
    ),
    "GATHER": one(
        "GATHER", [WIDE, ints(2, 0)], Result((2, 2, 4, 5)), ("GatherOptions", {"axis": 1})
    ),
    "GATHER of batches": one(
        "GATHER",
        [WIDE, Fixed(np.int32([[3, 0], [1, 1]]))],
        Result((2, 3, 2, 5)),
        ("GatherOptions", {"axis": 2, "batch_dims": 1}),
    ),
    "GATHER_ND": one("GATHER_ND", [WIDE, Fixed(np.int32([[1, 2], [0, 0]]))], Result((2, 4, 5))),
    "EMBEDDING_LOOKUP": one("EMBEDDING_LOOKUP", [ints(2, 0), Fixed(LINE)], Result((2, 5))),
    "ARG_MAX": one(
        "ARG_MAX",
        [WIDE, Fixed(ints(-1).reshape(()))],
        Result((2, 3, 4), "INT32"),
        ("ArgMaxOptions", {"output_type": 2}),
    ),
    "ARG_MIN": one(
        "ARG_MIN",
        [WIDE, Fixed(ints(1).reshape(()))],
        Result((2, 4, 5), "INT64"),
        ("ArgMinOptions", {"output_type": 4}),
    ),
    **{
        f"{kind} {'kept' if keep else 'gone'}": reduce(kind, WIDE, [1, 3], keep)
        for kind in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")
        for keep in (True, False)
    },
    **{kind: reduce(kind, WIDE > 0.5, [2], False) for kind in ("REDUCE_ANY", "REDUCE_ALL")},
    "MEAN of integers": one(
        "MEAN",
        [np.int32([[1, 2, 4], [-1, -2, -5]]), Fixed(ints(1))],
        Result((2,), "INT32"),
        ("ReducerOptions", {}),
    ),
    "TOPK_V2": one(
        "TOPK_V2",
        [WIDE, Fixed(ints(3).reshape(()))],
        [Result((2, 3, 4, 3)), Result((2, 3, 4, 3), "INT32")],
    ),
    "WHERE": one("WHERE", [LINE > 0], Result((1, 2), "INT64")),
    "ONE_HOT": one(
        "ONE_HOT",
        [
            ints(1, 3, -1, 0),
            Fixed(ints(3).reshape(())),
            Fixed(np.float32(2)),
            Fixed(np.float32(-1)),
        ],
        Result((4, 3)),
        ("OneHotOptions", {"axis": -1}),
    ),
    "SCATTER_ND": one(
        "SCATTER_ND", [Fixed(np.int32([[1], [3], [1]])), LINE, Fixed(ints(4, 5))], Result((4, 5))
    ),
    "SPARSE_TO_DENSE": one(
        "SPARSE_TO_DENSE",
        [Fixed(ints(1, 3)), Fixed(ints(5)), np.float32([7, 8]), Fixed(np.float32(-1))],
        Result((5,)),
        ("SparseToDenseOptions", {}),
    ),
    "DYNAMIC_UPDATE_SLICE": one(
        "DYNAMIC_UPDATE_SLICE", [WIDE, normal(2, 1, 4, 5), ints(0, 9, 0, 0)], Result(WIDE.shape)
    ),
    "DYNAMIC_UPDATE_SLICE inside": one(
        "DYNAMIC_UPDATE_SLICE", [WIDE, normal(1, 2, 2, 5), ints(1, 1, 1, 0)], Result(WIDE.shape)
    ),
    "UNIQUE": one(
        "UNIQUE",
        [ints(3, 1, 3, 2, 1)],
        [Result((3,), "INT32"), Result((5,), "INT32")],
        ("UniqueOptions", {}),
    ),
    "SEGMENT_SUM": one("SEGMENT_SUM", [LINE, Fixed(ints(0, 0, 1))], Result((2, 5))),
    **{
        f"UNSORTED_SEGMENT_{kind}": one(
            f"UNSORTED_SEGMENT_{kind}",
            [LINE, ints(1, 0, 1), Fixed(ints(2).reshape(()))],
            Result((2, 5)),
        )
        for kind in ("SUM", "PROD", "MAX", "MIN")
    },
    "MATRIX_DIAG": one("MATRIX_DIAG", [LINE], Result((3, 5, 5))),
    "MATRIX_SET_DIAG": one("MATRIX_SET_DIAG", [normal(2, 3, 4), normal(2, 3)], Result((2, 3, 4))),
    "BUCKETIZE": one(
        "BUCKETIZE",
        [LINE],
        Result(LINE.shape, "INT32"),
        ("BucketizeOptions", {"boundaries": [-1.0, 0.0, 0.5]}),
    ),
    "NON_MAX_SUPPRESSION_V4": one(
        "NON_MAX_SUPPRESSION_V4",
        [
            np.float32([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3], [0, 2, 1, 3.1]]),
            np.float32([0.9, 0.75, 0.6, 0.95]),
            Fixed(ints(3).reshape(())),
            Fixed(np.float32(0.5)),
            Fixed(np.float32(0.1)),
        ],
        [Result((3,), "INT32"), Result((), "INT32")],
    ),
    "NON_MAX_SUPPRESSION_V5": one(
        "NON_MAX_SUPPRESSION_V5",
        [
            np.float32([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3], [0, 2, 1, 3.1]]),
            np.float32([0.9, 0.75, 0.6, 0.95]),
            *(
                Fixed(one)
                for one in (ints(3).reshape(()), np.float32(0.5), np.float32(0.1), np.float32(0))
            ),
        ],
        [Result((3,), "INT32"), Result((3,)), Result((), "INT32")],
    ),
    "DEQUANTIZE": one("DEQUANTIZE", [Coded(BYTES, 0.1, 3)], Result(BYTES.shape)),
    "QUANTIZE": one("QUANTIZE", [LINE], Result(LINE.shape, "INT8", 0.02, 5)),
    "QUANTIZE again": one(
        "QUANTIZE", [Coded(BYTES, 0.1, 3)], Result(BYTES.shape, "UINT8", 0.13, 120), limit=1
    ),
}


def detector(**more: Any) -> Case:
    """Return SSD's last operator, on random boxes."""
    from flatbuffers import flexbuffers

    options = {
        "max_detections": 6,
        "max_classes_per_detection": 1,
        "detections_per_class": 4,
        "use_regular_nms": False,
        "nms_score_threshold": 0.3,
        "nms_iou_threshold": 0.4,
        "num_classes": 3,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
        **more,
    }
    builder = flexbuffers.Builder()
    builder.MapFromElements(options)
    custom = bytes(builder.Finish())
    random = np.random.default_rng(1)
    boxes = random.normal(0, 1, (1, 20, 4)).astype(np.float32)
    scores = random.uniform(0, 1, (1, 20, 4)).astype(np.float32)
    anchors = random.uniform(0.1, 0.9, (20, 4)).astype(np.float32)
    rows = options["max_detections"] * options["max_classes_per_detection"]
    results = [Result((1, rows, 4)), Result((1, rows)), Result((1, rows)), Result((1,))]
    operands = [boxes, scores, Fixed(anchors)]
    return one("TFLite_Detection_PostProcess", operands, results, custom=custom, limit=1e-5)


CASES |= {
    "detections": detector(),
    "detections of two classes": detector(max_classes_per_detection=2),
    "detections by class": detector(use_regular_nms=True),
    "detections by class, many": detector(use_regular_nms=True, max_detections=15),
}


def chained(
    model: Writer, inputs: Sequence[int], outputs: Sequence[int], *feeds: np.ndarray
) -> Case:
    model.faces(inputs, outputs)
    return Case(model.finish(), list(feeds))


def spectrum(kind: str) -> Case:
    writer = Writer()
    x, y, z = (
        *(writer.tensor((2, 4, 8)), writer.tensor((2, 4, 5), "COMPLEX64")),
        writer.tensor((2, 4, 5)),
    )
    writer.op("RFFT2D", [x, writer.constant(ints(4, 8))], [y])
    writer.op(kind, [y], [z])
    return chained(writer, [x], [z], normal(2, 4, 8))


def densified() -> Case:
    """[[0, 3, 0], [0, 0, 0], [5, 0, 7], [0, 2, 0]], compressed by rows, in a product."""
    writer = Writer()
    x, y = writer.tensor((2, 3)), writer.tensor((2, 4))
    levels = [
        {"format": 0, "dense_size": 4},
        {
            "format": 1,
            "array_segments": ("Uint8Vector", {"values": [0, 1, 1, 3, 4]}),
            "array_indices": ("Int32Vector", {"values": [1, 0, 2, 1]}),
        },
    ]
    sparsity = {"traversal_order": [0, 1], "dim_metadata": levels}
    packed = writer.tensor((4, 3), data=np.float32([3, 5, 7, 2]), sparsity=sparsity)
    weights = writer.tensor((4, 3))
    writer.op("DENSIFY", [packed], [weights])
    writer.op("FULLY_CONNECTED", [x, weights, -1], [y])
    return chained(writer, [x], [y], normal(2, 3))


CASES |= {
    **{kind: spectrum(kind) for kind in ("REAL", "IMAG", "COMPLEX_ABS")},
    "DENSIFY": densified(),
    **{
        f"STABLEHLO_{kind}": one(f"STABLEHLO_{kind}", [LINE, POSITIVE], Result(LINE.shape))
        for kind in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM")
    },
}


def coded(kind: str, shape: Sequence[int], scale: float, zero: int) -> Coded:
    """Return random quantised values of a type."""
    limits = np.iinfo(kind.lower())
    array = _RANDOM.integers(limits.min, limits.max + 1, shape).astype(kind.lower())
    return Coded(array, scale, zero)


def quantised(kind: str, dtype: str, *, weights: str = "INT8") -> Case:
    """Return a convolution, depthwise convolution or product of quantised values."""
    zero = {"INT8": -7, "UINT8": 120, "INT16": 0}[dtype]
    scale = 0.05 if dtype != "INT16" else 0.0004
    x = coded(dtype, (2, 12) if kind == "FULLY_CONNECTED" else (1, 6, 7, 4), scale, zero)
    per_axis = weights != "UINT8"
    shape, axis, outputs = {
        "CONV_2D": ((5, 3, 3, 4), 0, 5),
        "DEPTHWISE_CONV_2D": ((1, 3, 3, 8), 3, 8),
        "FULLY_CONNECTED": ((6, 12), 0, 6),
        "TRANSPOSE_CONV": ((5, 3, 3, 4), 0, 5),
    }[kind]
    scales = _RANDOM.uniform(0.005, 0.02, outputs if per_axis else 1).astype(np.float32)
    if weights == "UINT8":
        array = _RANDOM.integers(0, 256, shape).astype(np.uint8)
        zeros = 130
    else:
        array, zeros = _RANDOM.integers(-127, 128, shape).astype(np.int8), 0
    filters = Fixed(array, {"scale": scales, "zero": zeros, "axis": axis})
    wide = np.int64 if dtype == "INT16" else np.int32
    bias = _RANDOM.integers(-900, 900, outputs).astype(wide)
    biases = Fixed(bias, {"scale": np.float32(scale) * scales})
    out = {"INT8": ("INT8", 0.11, 5), "UINT8": ("UINT8", 0.11, 133), "INT16": ("INT16", 0.0007, 0)}
    window = {**SAME, **WINDOW}
    options = {
        "CONV_2D": ("Conv2DOptions", {**window, "fused_activation_function": 1}),
        "DEPTHWISE_CONV_2D": ("DepthwiseConv2DOptions", {**window, "depth_multiplier": 2}),
        "FULLY_CONNECTED": ("FullyConnectedOptions", {}),
        "TRANSPOSE_CONV": ("TransposeConvOptions", {**SAME, "stride_w": 2, "stride_h": 2}),
    }[kind]
    made = {"FULLY_CONNECTED": (2, 6), "TRANSPOSE_CONV": (1, 12, 14, 5)}.get(
        kind, (1, 6, 7, outputs)
    )
    operands: list[Operand] = [x, filters, biases]
    if kind == "TRANSPOSE_CONV":
        operands = [Fixed(ints(*made)), filters, x, biases]
    limit = 1 if dtype != "INT16" else 4
    return one(kind, operands, Result(made, *out[dtype]), options, limit=limit, version=3)


def moved(
    kind: str, operands: Sequence[Operand], shape: Sequence[int], options: Options | None = None
) -> Case:
    """Return an operator that moves quantised values: the results are exact."""
    first = next(operand for operand in operands if isinstance(operand, Coded))
    dtype = first.array.dtype.name.upper()
    result = Result(shape, dtype, first.scale, first.zero)
    return one(kind, operands, result, options, version=1 if kind == "RESHAPE" else 2, limit=0)


CODES = coded("INT8", (1, 6, 8, 4), 0.06, 4)
OTHER = coded("INT8", (1, 6, 8, 4), 0.04, -11)
BYTE = coded("UINT8", (1, 6, 8, 4), 0.06, 131)
SHORT = coded("INT16", (1, 6, 8, 4), 0.0003, 0)


def same(operand: Coded, scale: float | None = None, zero: int | None = None) -> Result:
    """Return a result like an operand, or of another scale."""
    kind = operand.array.dtype.name.upper()
    by = (operand.scale, operand.zero) if scale is None else (scale, zero or 0)
    return Result(operand.array.shape, kind, *by)


CASES |= {
    **{
        f"{kind} in {dtype}": quantised(
            kind, dtype, weights="UINT8" if dtype == "UINT8" else "INT8"
        )
        for kind in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
        for dtype in ("INT8", "UINT8", "INT16")
    },
    "TRANSPOSE_CONV in INT8": quantised("TRANSPOSE_CONV", "INT8"),
    **{
        f"{kind} in INT8": one(kind, [CODES, OTHER], same(CODES, 0.09, -3), limit=1, version=2)
        for kind in ("ADD", "SUB", "MUL", "SQUARED_DIFFERENCE")
    },
    **{
        f"{kind} in UINT8": one(kind, [BYTE, BYTE], same(BYTE, 0.1, 101), limit=1)
        for kind in ("ADD", "MUL")
    },
    "ADD in INT16": one(
        "ADD",
        [SHORT, SHORT],
        same(SHORT, 0.0007, 0),
        ("AddOptions", {"pot_scale_int16": False}),
        limit=2,
        version=3,
    ),
    "MUL in INT16": one("MUL", [SHORT, SHORT], same(SHORT, 0.005, 0), limit=2, version=4),
    "MAXIMUM in INT8": one("MAXIMUM", [CODES, CODES], same(CODES), limit=0, version=2),
    "LESS in INT8": one("LESS", [CODES, OTHER], Result(CODES.array.shape, "BOOL"), version=2),
    **{
        f"{kind} in INT8": one(
            kind,
            [CODES],
            same(CODES, *by),
            options,
            limit=1,
            version=1 if kind in ("ELU", "HARD_SWISH") else 2,
        )
        for kind, by, options in (
            ("RELU", (0.03, -128), None),
            ("RELU6", (6 / 255, -128), None),
            ("LOGISTIC", (1 / 256, -128), None),
            ("TANH", (1 / 128, 0), None),
            ("SOFTMAX", (1 / 256, -128), ("SoftmaxOptions", {"beta": 1.0})),
            ("LOG_SOFTMAX", (16 / 256, 127), None),
            ("HARD_SWISH", (0.05, -20), None),
            ("LEAKY_RELU", (0.06, -1), ("LeakyReluOptions", {"alpha": 0.2})),
            ("ELU", (0.06, -100), None),
            ("ABS", (0.06, -128), None),
            ("L2_NORMALIZATION", (1 / 128, 0), ("L2NormOptions", {})),
            ("GELU", (0.05, -100), ("GeluOptions", {})),
        )
    },
    **{
        f"{kind} in INT16": one(kind, [SHORT], same(SHORT, 1 / 32768, 0), limit=16, version=3)
        for kind in ("LOGISTIC", "TANH")
    },
    "PRELU in INT8": one(
        "PRELU",
        [CODES, Fixed(np.int8([[[-80, 3, 60, 9]]]), {"scale": 0.01, "zero": 3})],
        same(CODES, 0.06, 2),
        limit=1,
    ),
    **{
        f"{kind} in {name}": one(
            kind,
            [operand],
            Result((1, 6, 4, 4), name, operand.scale, operand.zero),
            (
                "Pool2DOptions",
                {**SAME, "stride_w": 2, "stride_h": 1, "filter_width": 2, "filter_height": 2},
            ),
            limit=0,
            version=2,
        )
        for kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D")
        for name, operand in (("INT8", CODES), ("UINT8", BYTE), ("INT16", SHORT))
    },
    "MEAN in INT8": one(
        "MEAN",
        [CODES, Fixed(ints(1, 2))],
        Result((1, 4), "INT8", 0.02, 3),
        ("ReducerOptions", {}),
        limit=1,
        version=2,
    ),
    "REDUCE_MAX in INT8": one(
        "REDUCE_MAX",
        [CODES, Fixed(ints(3))],
        Result((1, 6, 8), "INT8", 0.06, 4),
        ("ReducerOptions", {}),
        limit=0,
        version=2,
    ),
    "ARG_MAX in INT8": one(
        "ARG_MAX",
        [CODES, Fixed(ints(3).reshape(()))],
        Result((1, 6, 8), "INT32"),
        ("ArgMaxOptions", {"output_type": 2}),
        version=2,
    ),
    "RESHAPE in INT8": moved("RESHAPE", [CODES, Fixed(ints(4, -1))], (4, 48)),
    "TRANSPOSE in INT8": moved("TRANSPOSE", [CODES, Fixed(ints(0, 3, 1, 2))], (1, 4, 6, 8)),
    "PAD in INT8": moved(
        "PAD", [CODES, Fixed(np.int32([[0, 0], [1, 0], [0, 2], [0, 0]]))], (1, 7, 10, 4)
    ),
    "PAD in UINT8": moved(
        "PAD", [BYTE, Fixed(np.int32([[0, 0], [1, 0], [0, 2], [0, 0]]))], (1, 7, 10, 4)
    ),
    "SLICE in INT8": moved(
        "SLICE", [CODES, Fixed(ints(0, 1, 0, 2)), Fixed(ints(1, -1, 2, 2))], (1, 5, 2, 2)
    ),
    "STRIDED_SLICE in INT8": moved(
        "STRIDED_SLICE",
        [CODES, *(Fixed(ints(*n)) for n in ((0, 1, 0, 0), (1, 6, 8, 4), (1, 2, 3, 1)))],
        (1, 3, 3, 4),
        ("StridedSliceOptions", {}),
    ),
    "CONCATENATION in INT8": moved(
        "CONCATENATION", [CODES, CODES], (1, 6, 8, 8), ("ConcatenationOptions", {"axis": 3})
    ),
    "CONCATENATION in UINT8 of two scales": one(
        "CONCATENATION",
        [BYTE, coded("UINT8", (1, 6, 8, 4), 0.03, 100)],
        Result((1, 6, 8, 8), "UINT8", 0.06, 131),
        ("ConcatenationOptions", {"axis": 3}),
        limit=1,
    ),
    "SPACE_TO_DEPTH in INT8": moved(
        "SPACE_TO_DEPTH", [CODES], (1, 3, 4, 16), ("SpaceToDepthOptions", {"block_size": 2})
    ),
    "RESIZE_BILINEAR in INT8": one(
        "RESIZE_BILINEAR",
        [CODES, Fixed(ints(12, 16))],
        Result((1, 12, 16, 4), "INT8", 0.06, 4),
        ("ResizeBilinearOptions", {"half_pixel_centers": True}),
        limit=1,
        version=3,
    ),
    "RESIZE_NEAREST_NEIGHBOR in INT8": moved(
        "RESIZE_NEAREST_NEIGHBOR",
        [CODES, Fixed(ints(12, 16))],
        (1, 12, 16, 4),
        ("ResizeNearestNeighborOptions", {}),
    ),
    "GATHER in INT8": moved(
        "GATHER", [CODES, Fixed(ints(3, 0))], (1, 6, 8, 2), ("GatherOptions", {"axis": 3})
    ),
    "BATCH_MATMUL in INT8": one(
        "BATCH_MATMUL",
        [coded("INT8", (2, 3, 4), 0.05, 2), coded("INT8", (2, 4, 5), 0.04, 0)],
        Result((2, 3, 5), "INT8", 0.2, -4),
        ("BatchMatMulOptions", {}),
        limit=1,
        version=2,
    ),
    "EMBEDDING_LOOKUP in INT8": one(
        "EMBEDDING_LOOKUP",
        [ints(2, 0), Fixed(np.int8([[1, -2], [3, 4], [127, -90]]), {"scale": 0.1})],
        Result((2, 2)),
        version=3,
    ),
    "FULLY_CONNECTED by INT4": one(
        "FULLY_CONNECTED",
        [
            normal(2, 6),
            Packed(
                _RANDOM.integers(-7, 8, (5, 6)).astype(np.int8),
                {"scale": np.float32([0.1, 0.2, 0.3, 0.1, 0.2])},
            ),
            None,
        ],
        Result((2, 5)),
        ("FullyConnectedOptions", {}),
        limit=0.05,
        version=12,
    ),
    "FULLY_CONNECTED by INT8, of floats": one(
        "FULLY_CONNECTED",
        [
            normal(2, 16),
            Fixed(_RANDOM.integers(-127, 128, (5, 16)).astype(np.int8), {"scale": 0.02}),
            Fixed(normal(5)),
        ],
        Result((2, 5)),
        ("FullyConnectedOptions", {}),
        limit=0.03,
        version=3,
    ),
}
