"""One or more uses of every operator on named sizes, and the expected results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkmnn.ir import OP_TYPES, Activation, Array, Dim, DType, Op, TensorInfo
from vkmnn.ir.ops import Step

Shape = tuple[Dim, ...]

SIZES = (
    {"N": 2, "L": 12, "H": 14, "W": 17, "M": 5},
    {"N": 1, "L": 7, "H": 9, "W": 8, "M": 11},
    {"N": 3, "L": 24, "H": 32, "W": 20, "M": 2},
)
"""Sizes that the names may have."""


@dataclass(frozen=True)
class Given:
    """An input: its shape, and its value, an array or integers that may be names."""

    shape: Shape
    dtype: DType = DType.FLOAT32
    value: Array | Shape | None = None

    def sized(self, sizes: dict[str, int]) -> tuple[TensorInfo, Array | None]:
        """Return the input for sizes of the names."""
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim or 0 for dim in self.shape)
        value = self.value
        if isinstance(value, tuple):
            value = np.array([sizes.get(str(dim), dim) for dim in value], self.dtype.numpy)
            value = value.reshape(shape)
        return TensorInfo("", self.dtype, shape), value


@dataclass(frozen=True)
class Case:
    """An op, its inputs (None = absent), and the shapes of its outputs."""

    op: Op
    inputs: list[Given | None]
    outputs: list[Shape]

    def __str__(self) -> str:
        shapes = ", ".join("-" if x is None else str(list(x.shape)) for x in self.inputs)
        return f"{self.op.type}({shapes})".replace("'", "")


X = Given(("N", "L", 8))
IMAGE = Given(("N", 8, "H", "W"))
ROW = Given((8,))


def ints(*values: Dim) -> Given:
    """Return a vector of integers, some of which may be names."""
    return Given((len(values),), DType.INT64, tuple(values))


def one(value: Dim) -> Given:
    return Given((), DType.INT64, (value,))


def floats(*values: float) -> Given:
    return Given((len(values),), DType.FLOAT32, np.array(values, np.float32))


def case(op_type: str, *inputs: Given | None, out: Shape | list[Shape], **attrs: object) -> Case:
    names = ["" if given is None else f"x{place}" for place, given in enumerate(inputs)]
    outputs = out if isinstance(out, list) else [out]
    results = [f"y{place}" for place in range(len(outputs))]
    made = OP_TYPES[op_type].attrs(**attrs)
    return Case(Op(op_type, op_type, names, results, made), list(inputs), outputs)


SAME = X.shape
FOLDED = {"strides": (1, 1), "dilations": (1, 1)}
DOWN = "floor((H + -1)/2) + 1", "floor((W + -1)/2) + 1"

CASES = [
    case("Identity", X, out=SAME),
    case("ConvertTensor", X, out=SAME, source="NCHW", dest="NC4HW4"),
    case("UnaryOp", X, out=SAME, kind="MISH"),
    case("UnaryOp", X, out=SAME, kind="ISNAN"),
    case("BinaryOp", X, ROW, out=SAME, kind="MUL"),
    case("BinaryOp", X, Given((1, "L", 1)), out=SAME, kind="PRELU"),
    case("BinaryOp", X, X, out=SAME, kind="EQUAL"),
    case("BinaryOp", Given(("N", 1, 8)), Given(("L", 1)), out=SAME, kind="SUB"),
    case("Elementwise", X, ROW, out=SAME, steps=(Step("MUL", (0, 1)),)),
    case("Select", Given(("N", "L", 1), DType.BOOL), X, ROW, out=SAME),
    case("Cast", Given(SAME, DType.INT32), out=SAME, to=DType.FLOAT32),
    case("Reduction", X, ints(-1), out=("N", "L", 1), kind="SUM"),
    case("Reduction", X, ints(1), out=("N", 8), kind="MAX", keepdims=False),
    case("Reduction", X, out=(1, 1, 1), kind="MEAN"),
    case("Softmax", X, out=SAME, axis=1),
    case("ArgMax", X, out=("N", 1, 8), axis=1),
    case("ArgMin", X, out=("N", "L"), axis=-1, keepdims=False),
    case("TopK", X, ints(3), out=[("N", "L", 3)] * 2),
    case("TopK", X, ints("M"), out=[("N", "M", 8)] * 2, axis=1),
    case("CumSum", X, one(1), out=SAME),
    case("SampleToken", Given(("N", "L")), Given(("N", 4)), Given(("N", 1)), out=("N", 1)),
    case("DynamicRange", X, out=[(), ()]),
    case("Det", Given(("N", "L", 3, 3)), out=("N", "L")),
    case("CumProd", X, one(1), out=SAME),
    case("BitCast", Given(SAME, DType.INT32), out=SAME, to=DType.FLOAT32),
    case("Col2Im", Given(("N", 18, 36)), ints(7, 8), ints(2, 3), out=("N", 3, 7, 8)),
    case("DFT", Given(("N", "L", 2)), one(1), out=("N", "L", 2)),
    case("DFT", Given(("N", "L", 1)), one(-2), one(16), out=("N", 9, 2), onesided=True),
    case(
        "MelWeightMatrix",
        *(one(value) for value in (4, 16, 8000)),
        *(Given((), DType.FLOAT32, np.float32(edge)) for edge in (0, 4000)),
        out=(9, 4),
    ),
    case(
        "LinearAttention",
        Given(("N", "L", 24)),
        Given(("N", "L", 12)),
        Given(("N", "L", 10)),
        out=[("N", "L", 20), ("N", 2, 6, 5)],
        query_heads=4,
        heads=2,
    ),
    case(
        "RoiAlign",
        IMAGE,
        Given(("M", 4)),
        Given(("M",), DType.INT64),
        out=("M", 8, 3, 5),
        size=(3, 5),
    ),
    case("RoiPool", IMAGE, Given(("M", 5)), out=("M", 8, 3, 5), size=(3, 5)),
    case(
        "DeformColumns",
        IMAGE,
        Given(("N", 12, "H", "W")),
        out=("N", 48, "H*W"),
        kernel=(3, 2),
        strides=(1, 1),
        dilations=(1, 1),
        pads=(1, 1, 1, 0),
    ),
    case(
        "NonMaxSuppression",
        Given(("N", 7, 4)),
        Given(("N", 3, 7)),
        ints(5),
        out=[("15*N", 3), (1,)],
    ),
    case("LayerNorm", X, ROW, ROW, out=[SAME, ("N", "L", 1), ("N", "L", 1)]),
    case("LayerNorm", X, ROW, X, out=[SAME, ("N", "L", 1), ("N", "L", 1)]),
    case("GroupNorm", IMAGE, ROW, ROW, out=IMAGE.shape, groups=4),
    case("GroupNorm", Given(("N", 4, "L", 8)), None, None, out=("N", 4, "L", 8), groups=2),
    case("ImageToTensor", Given(("N", "H", 8, 3), DType.UINT8), out=("N", 3, "H", 8)),
    case(
        *("ImageToTensor", Given((3, "H", 8))),
        out=(1, 3, "H", 8), channels_last=False, single=True,
    ),
    case("Scale", Given(("N", 6, "L", 8)), Given((6,)), Given((6,)), out=("N", 6, "L", 8)),
    case("LRN", Given(("N", 6, "L", 8)), out=("N", 6, "L", 8), size=3),
    case(
        *("Convolution", IMAGE, Given((6, 8, 3, 3)), Given((6,))),
        out=("N", 6, "H", "W"),
        kernel=(3, 3), pads=(1, 1, 1, 1), **FOLDED,
    ),
    case(
        *("Convolution", Given(("N", 4, "L", 8)), Given((4, 1, 3, 3))),
        out=("N", 4, "L", 8),
        kernel=(3, 3), pads=(1, 1, 1, 1), group=4, **FOLDED,
    ),
    case(
        *("Convolution", IMAGE, Given((6, 8, 3, 3))),
        out=("N", 6, *DOWN),
        kernel=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2), dilations=(1, 1),
    ),
    case(
        *("QuantizedConvolution", Given(("N", 4, "L", 8)), Given((4, 1, 3, 3), DType.INT8)),
        *(Given((4,)), None, Given((4,))),
        out=("N", 4, "L", 8),
        kernel=(3, 3), pads=(1, 1, 1, 1), group=4, **FOLDED,
        auto_pad="NOTSET", low=-128.0, high=127.0,
    ),
    case(
        *("DynamicQuantizeConvolution", Given(("N", 4, "L", 8)), Given((4, 1, 3, 3), DType.INT8)),
        *(Given((4,)), None, Given((4,)), Given(()), Given(())),
        out=("N", 4, "L", 8),
        kernel=(3, 3), pads=(1, 1, 1, 1), group=4, **FOLDED, auto_pad="NOTSET",
    ),
    case(
        *("Convolution", IMAGE, Given((6, 8, 3, 5))),
        out=("N", 6, "floor((H + 1)/2)", "floor((W + 2)/3)"),
        kernel=(3, 5), pads=(), strides=(2, 3), dilations=(1, 2), auto_pad="SAME_UPPER",
    ),
    case(
        *("Deconvolution", IMAGE, Given((8, 3, 4, 4))),
        out=("N", 6, "2*H", "2*W"),
        kernel=(4, 4), pads=(1, 1, 1, 1), output_padding=(0, 0), group=2,
        strides=(2, 2), dilations=(1, 1),
    ),
    case(
        *("Deconvolution", Given(("N", 8, "L", 8)), Given((8, 6, 2, 1))),
        out=("N", 6, "2*L", 8),
        kernel=(2, 1), pads=(), output_padding=(), strides=(2, 1), dilations=(1, 1),
    ),
    case(
        *("Deconvolution", IMAGE, Given((8, 6, 3, 3))),
        out=("N", 6, "3*H", "2*W"),
        kernel=(3, 3), pads=(), output_padding=(), auto_pad="SAME_LOWER",
        strides=(3, 2), dilations=(1, 1),
    ),
    case(
        *("Pooling", Given(("N", 4, "L", 8))),
        out=("N", 4, "L", 8),
        kind="AVERAGE", kernel=(3, 3), pads=(1, 1, 1, 1),
    ),
    case("Pooling", IMAGE, out=[("N", 8, *DOWN)] * 2, kind="MAX", kernel=(1, 1), strides=(2, 2)),
    case(
        *("Pooling", IMAGE),
        out=("N", 8, "floor((H + 1)/3) + 1", "floor(W/2) + 1"),
        kind="AVERAGE", kernel=(3, 3), strides=(3, 2), pads=(2, 1, 0, 1), ceil_mode=True,
    ),
    case("Pooling", IMAGE, out=("N", 8, 1, 1), kind="LP", is_global=True),
    case(
        *("Pooling", Given(("N", 4, 15, 15))),
        out=("N", 4, 8, 8),
        kind="AVERAGE", kernel=(2, 2), strides=(2, 2), ceil_mode=True,
    ),
    case("MatMul", X, Given((8, 6)), Given((6,)), out=("N", "L", 6)),
    case("QuantizedMatMul", X, Given((8, 6)), Given((6,)), None, Given((1,)),
         out=("N", "L", 6), transpose_a=False, transpose_b=False, low=-128.0, high=127.0),
    case("DynamicQuantizeMatMul", X, Given((8, 6), DType.INT8), Given((6,)), None, Given((1,)),
         Given(()), Given(()), out=("N", "L", 6)),
    case("MatMulNBits", X, Given((6, 1, 16), DType.UINT8), None, None, Given((6, 1)),
         out=("N", "L", 6), bits=4, block=32, depth=8, columns=6),
    case("ExpertMatMul", X, Given((5, 6, 8)), Given(("N", "L", 3), DType.INT64), Given((5, 6)),
         out=("N", "L", 3, 6), experts=5, columns=6, depth=8),
    case("ExpertMatMul", Given(("N", "L", 3, 8)), Given((5, 8, 1, 16), DType.UINT8),
         Given(("N", "L", 3), DType.INT64), None, Given((5, 8, 1)), None, Given(("N", "L", 3)),
         out=("N", "L", 4), experts=5, columns=8, depth=8, bits=4, block=32, each=True, gated=True),
    case("NormedMatMul", X, Given((8, 12)), out=("N", "L", 12), norm="RMS"),
    case("NormedMatMul", X, Given((12, 8)), out=("N", "L", 6), transpose_b=True, gated=True),
    case("MatMul", X, Given(("N", "L", 8)), out=("N", "L", "L"), transpose_b=True),
    case("MatMul", Given(("L", "N")), Given(("L", 8)), out=("N", 8), transpose_a=True),
    case("MatMul", Given((8,)), Given(("N", 8, 6)), out=("N", 6)),
    *(
        case(
            "Recurrent",
            Given(("L", "N", 32) if not swapped else ("N", "L", 32)),
            Given((2, 16, 4)),
            out=[("N", "L", 2, 4), ("N", 2, 4), ("N", 2, 4)]
            if swapped
            else [("L", 2, "N", 4), (2, "N", 4), (2, "N", 4)],
            cell="LSTM",
            activations=(Activation("TANH"),) * 6,
            direction="BIDIRECTIONAL",
            batch_first=swapped,
        )
        for swapped in (False, True)
    ),
    case("Attention", *[Given(("N", 4, "L", 8))] * 3, out=("N", 4, "L", 8), scale=1.0),
    case(
        *("Attention", Given((1, 4, "L", 8)), *[Given(("N", 1, "M", 8))] * 2),
        out=("N", 4, "L", 8), scale=1.0,
    ),
    case("Einsum", X, Given((8, 6)), out=("N", "L", 6), equation="nlc,co->nlo"),
    case("Interp", IMAGE, None, floats(1, 1, 2, 2), out=("N", 8, "2*H", "2*W")),
    case("Interp", IMAGE, None, None, ints(20, 24), out=("N", 8, 20, 24), axes=(2, 3)),
    case("Interp", IMAGE, None, None, ints("N", 8, "W", "H"), out=("N", 8, "W", "H")),
    case("Interp", Given(("N", 8, 10, 8)), None, floats(1, 1, 0.7, 1), out=("N", 8, 7, 8)),
    case("GridSample", IMAGE, Given(("N", "L", 6, 2)), out=("N", 8, "L", 6)),
    case("Gather", Given((100, 8)), Given(("N", "L"), DType.INT64), out=SAME),
    case("Gather", X, Given((), DType.INT64), out=("N", 8), axis=1),
    case("GatherNBits", Given((50, 2, 16), DType.UINT8), Given(("N", "L"), DType.INT64),
         Given((50, 2)), out=("N", "L", 40), bits=4, block=32, depth=40, rows=50),
    case("GatherElements", X, Given(SAME, DType.INT64), out=SAME, axis=1),
    case("GatherND", Given((50, 60, 8)), Given(("N", "L", 2), DType.INT64), out=SAME),
    case("ScatterND", X, Given((1, 1), DType.INT64), Given((1, "L", 8)), out=SAME),
    case("ScatterElements", X, Given(SAME, DType.INT64), X, out=SAME, axis=1),
    case("Rotary", Given(("N", 4, "L", 8)), Given((1, 1, "L", 2)), Given((1, 1, "L", 2)),
         out=("N", 4, "L", 8), width=4),
    case("CachedAttention", Given(("N", 4, 1, 8)), Given(("N", 2, 1, 8)), Given(("N", 2, 1, 12)),
         None, None, Given(("N", 2, "L", 8)), Given(("N", 2, "L", 12)), Given((1,), DType.INT64),
         out=[("N", 4, 1, 12), ("N", 2, "L", 8), ("N", 2, "L", 12)], scale=0.5),
    case("Append", X, Given(("N", 1, 8)), Given((1,), DType.INT64), out=SAME, axis=1),
    case("Append", Given(("N", "L", 3), DType.INT32), Given(("N", 1, 8)), Given((1,), DType.INT64),
         out=("N", "L", 3), axis=1, packing="i8"),
    case("UnpackRows", Given(("N", "L", 3), DType.INT32), Given((1,), DType.INT64),
         out=("N", "L", 7), axis=1, packing="i8", depth=7),
    case("JoinPast", Given(("N", 2, "L", 8)), Given(("N", 2, 3, 8)), Given(("N", 1), DType.INT64),
         one("L"), out=[("N", 2, "L", 8), ("N", 2, "L", 8)]),
    case("JoinPast", Given((2, 2, 9, 8)), Given((2, 2, 3, 8)), Given((2,), DType.INT64), one(5),
         out=[(2, 2, 9, 8), (2, 2, 5, 8)]),
    case("OneHot", Given(("N", "L"), DType.INT64), one(8), Given((2,)), out=SAME, axis=-1),
    case("OneHot", Given(("N",), DType.INT64), ints("L"), Given((2,)), out=("L", "N")),
    case("Transpose", X, out=("L", "N", 8), perm=(1, 0, 2)),
    case("Reshape", X, ints(0, -1, 2, 4), out=("N", "L", 2, 4)),
    case("Reshape", X, ints(-1, 8), out=("L*N", 8)),
    case("Reshape", X, ints("L", "N", -1), out=("L", "N", 8)),
    case("Flatten", X, out=("L*N", 8), axis=2),
    case("Squeeze", Given(("N", 1, "L", 8)), ints(1), out=SAME),
    case("Squeeze", Given((1, 3, 8)), out=(3, 8)),
    case("Unsqueeze", X, ints(0, -2), out=(1, "N", "L", 1, 8)),
    case("Concat", X, X, out=("N", "2*L", 8), axis=1),
    case("Concat", X, Given(("N", 3, 8)), Given(("N", "M", 8)), out=("N", "M + L + 3", 8), axis=1),
    case("Split", X, out=[("N", "L", 4)] * 2, axis=-1, num_outputs=2),
    case("Split", Given(("N", "L", 24)), ints(8, 16), out=[SAME, ("N", "L", 16)], axis=2),
    case("Slice", X, ints(0), ints(4), ints(2), out=("N", "L", 4)),
    case("Slice", X, ints(-1), ints(-9), ints(2), ints(-1), out=SAME),
    case("Slice", X, ints(0, 2), ints(2**63 - 1, 6), ints(1, 2), out=("N", "L", 4)),
    case("Slice", Given((64, 8)), ints(0), ints("L"), ints(0), out=("min(64, L)", 8)),
    case("Slice", X, ints(1), ints(2**31), ints(1), out=("N", "max(0, L + -1)", 8)),
    case("Slice", X, ints(2), ints(-6), ints(1), out=("N", "max(0, L + -8)", 8)),
    case("Slice", X, ints(0), ints(-1), ints(1), out=("N", "max(0, L + -1)", 8)),
    case("Slice", X, ints(-9), ints(2**31), ints(1), out=("N", "min(9, L)", 8)),
    case("Slice", X, ints(0), ints(8), ints(1), out=("N", "min(8, L)", 8)),
    case("Slice", Given(("N", "L", 8)), ints(0, 0), ints("N", "L"), out=SAME),
    case("Pad", X, ints(0, 1, 0, 0, -1, 0), out=SAME),
    case("Pad", X, ints(2, 3), None, ints(1), out=("N", "L + 5", 8)),
    case("Expand", Given((1, 8)), ints("N", "L", 8), out=SAME),
    case("Tile", X, ints(1, 2, 3), out=("N", "2*L", 24)),
    case("Tile", X, ints(1, "M", 1), out=("N", "L*M", 8)),
    case("DepthToSpace", Given(("N", 8, "L", 4)), out=("N", 2, "2*L", 8), block_size=2),
    case("DepthToSpace", IMAGE, out=("N", 2, "2*H", "2*W"), block_size=2),
    case("SpaceToDepth", Given(("N", 2, 16, 16)), out=("N", 8, 8, 8), block_size=2),
    case("Trilu", X, one(1), out=SAME),
    case("Shape", X, out=(3,)),
    case("Shape", X, out=(1,), start=-2, end=-1),
    case("Size", X, out=()),
    case("Range", one(0), one("L"), one(1), out=("L",)),
    case("Range", one(2), one(11), one(3), out=(3,)),
    case("ConstantOfShape", ints("N", "L", 8), out=SAME, value=1.5),
]  # fmt: skip
