"""The op vocabulary: typed attributes of every operator that a graph may contain.

Converters translate a model's operators into these. Names and semantics follow MNN where MNN and
ONNX agree, else ONNX. Values that ONNX passes as inputs (Reshape's shape, Slice's starts, …) stay
inputs here; converters turn the attributes of older opsets into constant inputs, so that each op
has one form only. All attributes are plain, hashable data. Operators of plug-ins are declared by
`op_type`, too, each in a module of its own.
"""

from __future__ import annotations

from math import inf

from vkmnn.base.packed_rows import Packing
from vkmnn.base.records import dataclass
from vkmnn.ir import cost
from vkmnn.ir.cost import COPY, VIEW
from vkmnn.ir.custom import CustomAttrs, custom_flops
from vkmnn.ir.dtype import DType
from vkmnn.ir.op_type import MANY, HostWork, numbers_of, op_type, per_input
from vkmnn.ir.op_type import OpAttrs as OpAttrs  # also in the vocabulary
from vkmnn.ir.regions import Region, View


@dataclass(frozen=True, slots=True)
class Activation:
    """A `UnaryOp` kind and its parameters, applied to an op's result before it is stored.

    kind: NONE, RELU, CLIP (alpha = min, beta = max), LEAKY_RELU (alpha), SIGMOID, SILU, GELU,
    GELU_TANH, HARD_SIGMOID (alpha, beta), HARD_SWISH, TANH, ELU (alpha), SOFTPLUS, QUICK_GELU
    (alpha).
    """

    kind: str = "NONE"
    alpha: float = 0.0
    beta: float = 0.0


NO_ACTIVATION = Activation()

SUMS = HostWork(numbers_of(inputs=2))
ROWS = HostWork(numbers_of(outputs=3))
INDEXED = HostWork(cost.index_numbers)
SCATTERED = HostWork(numbers_of(inputs=1, outputs=2))

ACTIVATION_KINDS = (
    "NONE",
    "RELU",
    "CLIP",
    "LEAKY_RELU",
    "SIGMOID",
    "SILU",
    "GELU",
    "GELU_TANH",
    "HARD_SIGMOID",
    "HARD_SWISH",
    "TANH",
    "ELU",
    "SOFTPLUS",
    "QUICK_GELU",
)

RESIDUAL_KINDS = ("ADD_BEFORE", "ADD_AFTER", "MUL_AFTER")
"""How a residual r enters the result: act(y + r), act(y) + r, act(y) · r."""

UNARY_KINDS = (
    "ABS",
    "NEG",
    "RECIPROCAL",
    "FLOOR",
    "CEIL",
    "ROUND",
    "SQRT",
    "RSQRT",
    "SQUARE",
    "EXP",
    "LOG",
    "ERF",
    "SIN",
    "COS",
    "TAN",
    "ASIN",
    "ACOS",
    "ATAN",
    "SINH",
    "COSH",
    "ASINH",
    "ACOSH",
    "ATANH",
    "SIGN",
    "NOT",
    "ISNAN",
    "ISINF",
    "RELU",
    "CLIP",
    "LEAKY_RELU",
    "SIGMOID",
    "HARD_SIGMOID",
    "HARD_SWISH",
    "TANH",
    "ELU",
    "SELU",
    "CELU",
    "SOFTPLUS",
    "SOFTSIGN",
    "GELU",
    "GELU_TANH",
    "SILU",
    "MISH",
    "QUICK_GELU",
    "THRESHOLDED_RELU",
)

BINARY_KINDS = (
    "ADD",
    "SUB",
    "MUL",
    "DIV",
    "POW",
    "MOD",
    "FMOD",
    "MIN",
    "MAX",
    "PRELU",
    "EQUAL",
    "GREATER",
    "GREATER_EQUAL",
    "LESS",
    "LESS_EQUAL",
    "AND",
    "OR",
    "XOR",
    "BIT_AND",
    "BIT_OR",
    "BIT_XOR",
)

BIT_KINDS = ("BIT_AND", "BIT_OR", "BIT_XOR")

COMPARISON_KINDS = ("EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "AND", "OR", "XOR")

REDUCTION_KINDS = (
    "SUM",
    "MEAN",
    "MAX",
    "MIN",
    "PROD",
    "L1",
    "L2",
    "LOG_SUM",
    "LOG_SUM_EXP",
    "SUM_SQUARE",
)


@op_type(
    "Convolution",
    inputs=(2, 4),
    flops=cost.convolution_flops,
    host=HostWork(cost.convolution_numbers, cost.convolution_steps, 3e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class ConvolutionAttrs(OpAttrs):
    """y = act(conv(x, w) + b + residual); x [N, C, *S], w [O, C/group, *kernel], b [O].

    The residual has the shape of y; `residual`, one of RESIDUAL_KINDS, specifies how it is added.
    Tuples have one entry per spatial axis; `pads` lists all begins, then all ends. With `auto_pad`
    SAME_UPPER, SAME_LOWER or VALID the pads are computed from the input's shape (ONNX Conv).
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    group: int = 1
    auto_pad: str = "NOTSET"
    activation: Activation = NO_ACTIVATION
    residual: str = "ADD_BEFORE"


@dataclass(frozen=True, slots=True)
class CodeSum:
    """Quantised addition: y = clip(rint((x · of_x + residual · of_residual) / unit)).

    All arithmetic is float32, in this order. Scales are those of the operands, `unit` that of y.
    """

    of_x: float
    of_residual: float
    unit: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CodeMean:
    """Quantised mean: y = clip(rint((mean · of_x) / unit), low, high) · scale.

    All arithmetic is float32, in this order; `of_x` is the scale of x, `unit` that of y. Softmax
    and LayerNorm end the same way; NaN becomes `low`.
    """

    of_x: float
    unit: float
    low: float
    high: float
    scale: float = 1.0


@op_type(
    "QuantizedConvolution",
    inputs=(5, 6),
    flops=cost.convolution_flops,
    host=HostWork(cost.convolution_numbers, cost.convolution_steps, 3e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class QuantizedConvolutionAttrs(OpAttrs):
    """Quantised convolution: y = clip(rint((conv(x, w) + bias) · factor), low, high).

    Zero points are already subtracted: x and y are integers in float32, so that pads are zeros.
    Inputs: x, w (int8 or int16), bias [O] (integers), residual, factor [O]. The sum is exact; it is
    rounded to float32 once, and its product with the factor half to even. A residual is quantised,
    too, and is added as `add` specifies; without `add`, it is part of the sum. The result is
    multiplied by `scale`. `taken`: bounds of x, if known. Window and group: as in
    `ConvolutionAttrs`. Input 5, a table, optionally maps quantised values before a residual is
    added late; its first entry is for the value `first`. `wide`: sums may need more than 24 bits,
    up to 28, but fewer than 24 for the multiples of 16 in the weights and for the remainder; there
    is no residual.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    group: int
    auto_pad: str
    low: float
    high: float
    add: CodeSum | None = None
    scale: float = 1.0
    taken: tuple[float, float] = (-inf, inf)
    first: int = 0
    wide: bool = False


@op_type(
    "DynamicQuantizeConvolution",
    inputs=(7, 7),
    flops=cost.convolution_flops,
    host=HostWork(cost.convolution_numbers, cost.convolution_steps, 3e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class DynamicQuantizeConvolutionAttrs(OpAttrs):
    """y = act(conv(c, w) · (factor · scale) + bias + residual), where c is the quantised x.

    Inputs: x, w (constant int8 or int16), bias [O] or absent, residual in y's shape or absent
    (`residual`, one of RESIDUAL_KINDS, specifies how it is added), factor [O] or [1], constant,
    scale and point. Quantisation as in `DynamicQuantizeMatMul`; pads are zeros. Window and group:
    as in `ConvolutionAttrs`.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    group: int
    auto_pad: str
    activation: Activation = NO_ACTIVATION
    residual: str = "ADD_BEFORE"


@op_type(
    "Deconvolution",
    inputs=(2, 3),
    flops=cost.deconvolution_flops,
    host=HostWork(cost.deconvolution_numbers, cost.deconvolution_steps, 3e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class DeconvolutionAttrs(OpAttrs):
    """Transposed convolution; w [C, O/group, *kernel] (ONNX ConvTranspose).

    `output_shape` holds the spatial sizes and may be empty; if given, it determines the pads.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    output_padding: tuple[int, ...]
    output_shape: tuple[int, ...] = ()
    group: int = 1
    auto_pad: str = "NOTSET"
    activation: Activation = NO_ACTIVATION


@op_type(
    "MatMul",
    inputs=(2, 4),
    flops=cost.matmul_flops,
    host=HostWork(cost.matmul_numbers, flop_s=1e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class MatMulAttrs(OpAttrs):
    """y = act(alpha · (a @ b) + bias + residual) by numpy's matmul rules.

    `transpose_a`/`transpose_b` swap the last two axes of operands of rank >= 2. `bias` (input 2)
    has shape [N] (the last axis of y); `residual` (input 3) has the shape of y, and the attribute,
    one of RESIDUAL_KINDS, specifies how it is added.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    activation: Activation = NO_ACTIVATION
    residual: str = "ADD_BEFORE"


NORMS = ("NONE", "RMS", "STD")
"""Normalisation of rows in `NormedMatMul`: none, root mean square, or standard deviation."""


@op_type(
    "NormedMatMul",
    inputs=(2, 4),
    flops=cost.matmul_flops,
    host=HostWork(cost.matmul_numbers, flop_s=1e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class NormedMatMulAttrs(OpAttrs):
    """y = act(norm(x) @ w + bias + residual): a product with its normalisation and epilogue.

    Inputs: x [..., depth], w [depth, columns], or [columns, depth] with `transpose_b`, bias
    [columns], residual in y's shape (`residual`, one of RESIDUAL_KINDS, specifies how it is added).
    `norm`, one of NORMS: x / sqrt(mean(x²) + epsilon), or (x - mean) / sqrt(variance + epsilon).
    `gated`: of every four columns, the first two are gates of the other two, and y [..., columns /
    2] is act(gate) · other; without a residual.
    """

    transpose_b: bool = False
    norm: str = "NONE"
    epsilon: float = 0.0
    activation: Activation = NO_ACTIVATION
    residual: str = "ADD_BEFORE"
    gated: bool = False

    @property
    def transpose_a(self) -> bool:
        """False: rows are not transposed."""
        return False


@op_type(
    "QuantizedMatMul",
    inputs=(5, 8),
    flops=cost.matmul_flops,
    host=HostWork(cost.matmul_numbers, flop_s=1e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class QuantizedMatMulAttrs(OpAttrs):
    """Quantised product: y = clip(rint((a @ b + bias) · factor), low, high) · scale.

    Inputs: a, b (integers; int8 and int16 if constant), bias [N] or absent, residual, factor [N] or
    [1], table; otherwise as in `QuantizedConvolution`, with the operands of `MatMul`. Input 6,
    constant [7, N], requantises values before the table: its rows are low, high, of_x, offset,
    unit, made_low and made_high, and a value q becomes clip(rint((clip(q, low, high) · of_x +
    offset) / unit), made_low, made_high). `taken` and `taken_b`: bounds of a and b, if known. If
    those of a are unknown, input 7 may be a number that shifts a to the range from 0 to 255.
    Results do not depend on the bounds.
    """

    transpose_a: bool
    transpose_b: bool
    low: float
    high: float
    add: CodeSum | None = None
    scale: float = 1.0
    first: int = 0
    taken: tuple[float, float] = (-inf, inf)
    taken_b: tuple[float, float] = (-inf, inf)


@op_type(
    "DynamicQuantizeMatMul",
    inputs=(7, 7),
    flops=cost.matmul_flops,
    host=HostWork(cost.matmul_numbers, flop_s=1e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class DynamicQuantizeMatMulAttrs(OpAttrs):
    """y = act((c @ b) · (factor · scale) + bias + residual), where c is the quantised x.

    Inputs: x, b (constant int8 or int16 [K, N], or [N, K] with `transpose_b`), bias [N] or absent,
    residual in y's shape or absent (`residual`, one of RESIDUAL_KINDS, specifies how it is added),
    factor [N] or [1], constant, and the outputs of `DynamicRange` for x: scale and point, one
    number each. c = clip(rint(x / scale) + point, 0, 255) - point, with NaN as 0 before `point` is
    subtracted (ONNX DynamicQuantizeLinear).
    """

    transpose_b: bool = False
    activation: Activation = NO_ACTIVATION
    residual: str = "ADD_BEFORE"

    @property
    def transpose_a(self) -> bool:
        """False: rows are not transposed."""
        return False


@op_type(
    "MatMulNBits",
    inputs=(5, 7),
    flops=cost.packed_matmul_flops,
    host=HostWork(cost.packed_numbers, flop_s=1e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class MatMulNBitsAttrs(OpAttrs):
    """y = act(x @ wᵀ + bias + residual), with w [columns, depth] packed in 4 or 8 `bits`.

    Inputs: x [..., depth], quantised weights, bias [columns], residual in y's shape (`residual`,
    one of RESIDUAL_KINDS, specifies how it is added), scales, zeros. Weights are uint8 [columns,
    blocks, block · bits / 8], low bits first, scales [columns, blocks], zeros uint8 [columns,
    blocks] or absent, which means 2^(bits - 1): w = (q - zero) · scale. Zeros may also be floats,
    stored minus 2^(bits - 1), because float16 is most precise near 0. `block` is a multiple of 16;
    values beyond `depth` are ignored. Input 6, [depth], normalises the rows of x first: x /
    sqrt(mean(x²) + epsilon) · input 6. `gated`: of every four columns, the first two are gates of
    the other two, and y [..., columns / 2] is act(gate) · other; without a residual.
    """

    bits: int
    block: int
    depth: int
    columns: int
    activation: Activation = NO_ACTIVATION
    residual: str = "ADD_BEFORE"
    epsilon: float = 0.0
    gated: bool = False

    @property
    def width(self) -> int:
        """The columns of y."""
        return self.columns // 2 if self.gated else self.columns


@op_type(
    "ExpertMatMul",
    inputs=(3, 8),
    flops=cost.expert_flops,
    host=HostWork(cost.expert_numbers, flop_s=1e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class ExpertMatMulAttrs(OpAttrs):
    """y = act(x @ w[e]ᵀ + bias[e]) for every expert e that is chosen for a row of x.

    Inputs: x [..., depth], or with `each` [..., chosen, depth]; weights; chosen [..., chosen], the
    numbers of experts, clamped to those there are; bias [experts, columns]; scales; zeros; shares
    [..., chosen]; residual. Weights are floats [experts, columns, depth] where `bits` is 0, else
    packed values [experts, columns, blocks, block · bits / 8] as those of `MatMulNBits`, with
    scales and zeros [experts, columns, blocks]. y is [..., chosen, columns]; with shares it is
    [..., columns], the sum of each row's experts weighted by them, plus the residual. `gated`: of
    every four columns, the first two are gates of the others, and y [..., columns / 2] is
    act(min(gate, limit)) · (clip(other, -limit, limit) + offset).
    """

    experts: int
    columns: int
    depth: int
    bits: int = 0
    block: int = 0
    each: bool = False
    activation: Activation = NO_ACTIVATION
    gated: bool = False
    limit: float = inf
    offset: float = 0.0

    @property
    def width(self) -> int:
        """The columns of y."""
        return self.columns // 2 if self.gated else self.columns

    @property
    def weights(self) -> tuple[int, ...]:
        """The shape of the weights."""
        if not self.bits:
            return self.experts, self.columns, self.depth
        blocks = -(-self.depth // self.block)
        return self.experts, self.columns, blocks, self.block * self.bits // 8


@op_type("GatherNBits", inputs=(3, 4), flops=2, host=HostWork(numbers_of(outputs=2)))
@dataclass(frozen=True, slots=True)
class GatherNBitsAttrs(OpAttrs):
    """Rows of a packed table: y [*indices, depth]. Inputs: packed values, indices, scales, zeros.

    Packing as in `MatMulNBits`. Negative indices count from the end; an index out of range gives
    zeros (com.microsoft GatherBlockQuantized). y has the type of the scales, or float32 with
    `wide`.
    """

    bits: int
    block: int
    depth: int
    rows: int
    wide: bool = False


@op_type("BinaryOp", inputs=2)
@dataclass(frozen=True, slots=True)
class BinaryAttrs(OpAttrs):
    """y = act(kind(a, b)) with numpy broadcasting.

    Integer DIV truncates toward zero; MOD has the sign of the divisor, FMOD of the dividend. PRELU
    is a if a >= 0, else a·b. Comparisons and logic give bool; BIT_AND, BIT_OR and BIT_XOR take
    integers.
    """

    kind: str
    activation: Activation = NO_ACTIVATION


@dataclass(frozen=True, slots=True)
class StridedBinaryAttrs(BinaryAttrs):
    """BinaryOp of strided views, created before a run to avoid copying an operand.

    A view addresses an operand by the axes of the result, whose sizes are in `shape`: element (i,
    j, …) is at Σ index·stride of the operand in plain order.
    """

    shape: tuple[int, ...] = ()
    strides: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@op_type("UnaryOp")
@dataclass(frozen=True, slots=True)
class UnaryAttrs(OpAttrs):
    """y = kind(x), element by element, with ONNX's definitions.

    alpha, beta: CLIP min and max; HARD_SIGMOID, ELU, LEAKY_RELU, CELU, THRESHOLDED_RELU as in ONNX;
    SELU alpha and gamma; ISINF detect_negative and detect_positive (0 or 1). QUICK_GELU is
    x · sigmoid(alpha · x): onnxruntime's QuickGelu, ONNX Swish 24.
    """

    kind: str
    alpha: float = 0.0
    beta: float = 0.0


STEP_KINDS = {
    "ADD": 2, "SUB": 2, "MUL": 2, "DIV": 2, "MIN": 2, "MAX": 2, "PRELU": 2,
    "GREATER": 2, "GREATER_EQUAL": 2, "LESS": 2, "LESS_EQUAL": 2, "EQUAL": 2,
    "ABS": 1, "FLOOR": 1, "CEIL": 1, "ROUND": 1, "SIGN": 1, "SQRT": 1, "RSQRT": 1,
    "EXP": 1, "LOG": 1, "SIGMOID": 1, "TANH": 1, "MUL_ADD": 3, "CLIP": 3, "SELECT": 3,
}  # fmt: skip
"""Kinds of steps and their operand counts: those of `UnaryOp` and `BinaryOp`, MUL_ADD (a · b + c),
CLIP (x, min, max), SELECT (condition, a, b). Comparisons return 1 or 0.
"""
MAX_STEPS = 8
MAX_STEP_NUMBERS = 8
MAX_STEP_INPUTS = 4


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an Elementwise op; see there for the numbering of `values`."""

    kind: str
    values: tuple[int, ...]


@op_type("Elementwise", inputs=(1, MAX_STEP_INPUTS))
@dataclass(frozen=True, slots=True)
class ElementwiseAttrs(OpAttrs):
    """y = the last of several element-wise steps on floats.

    All steps compute in the broadcast shape of the inputs. Value k >= 0 is input k or, from the
    number of inputs on, the result of a step; value -1 - k is `numbers[k]`.
    """

    steps: tuple[Step, ...]
    numbers: tuple[float, ...] = ()


@op_type("Cast")
@dataclass(frozen=True, slots=True)
class CastAttrs(OpAttrs):
    """y = x converted to `to`: float to int truncates toward zero, to bool is x != 0.

    For 8-bit floats, values that are too large become the largest number if the cast saturates; for
    FLOAT8E8M0 the mode (up, down or nearest) selects the power of two for x (ONNX Cast).
    """

    to: DType
    saturate: bool = True
    round_mode: str = "up"


@op_type("BitCast", flops=0, host=COPY)
@dataclass(frozen=True, slots=True)
class BitCastAttrs(OpAttrs):
    """y = the bits of x interpreted as type `to` (ONNX BitCast)."""

    to: DType


@op_type("Reduction", inputs=(1, 2), content=(1,), flops=per_input(1), host=SUMS)
@dataclass(frozen=True, slots=True)
class ReductionAttrs(OpAttrs):
    """Reduce over the axes in input 1 (content); none = all, unless noop_with_empty_axes."""

    kind: str
    keepdims: bool = True
    noop_with_empty_axes: bool = False


@op_type("Softmax", flops=5, host=ROWS)
@dataclass(frozen=True, slots=True)
class SoftmaxAttrs(OpAttrs):
    """Softmax over `axis`, or over all axes from it on when `flatten` (ONNX before opset 13).

    x is first multiplied by `of_input`, its scale; `ending` quantises the result.
    """

    axis: int = -1
    log: bool = False
    flatten: bool = False
    of_input: float = 1.0
    ending: CodeMean | None = None


@op_type("ArgMax", "ArgMin", flops=per_input(1), host=HostWork(numbers_of(inputs=1)))
@dataclass(frozen=True, slots=True)
class ArgReduceAttrs(OpAttrs):
    """ArgMax and ArgMin: int64 index of the extremum along `axis`.

    An empty axis has no extremum: an error, or index 0 with `empty_gives_zero`.
    """

    axis: int = 0
    keepdims: bool = True
    select_last_index: bool = False
    empty_gives_zero: bool = False


@op_type("TopK", inputs=2, content=(1,), host=HostWork(numbers_of(inputs=3), sorts=True))
@dataclass(frozen=True, slots=True)
class TopKAttrs(OpAttrs):
    """(values, int64 indices) of the k largest or smallest along `axis`; input 1 is k (content).

    Among equal elements the lower index comes first (ONNX TopK).
    """

    axis: int = -1
    largest: bool = True
    sorted: bool = True


@op_type(
    "SampleToken",
    inputs=3,
    flops=per_input(4),
    host=HostWork(numbers_of(inputs=6), sorts=True),
)
@dataclass(frozen=True, slots=True)
class SampleTokenAttrs(OpAttrs):
    """Draw an index of each row of logits, int64 [B, 1].

    Inputs: logits [B, N]; settings [B, 4] (inverse temperature, top_k, top_p and min_p; infinite
    top_k and top_p, and a min_p of 0, exclude nothing); random numbers from 0 to 1 [B, 1]. Of the
    likeliest tokens, equally likely ones by index, the first with which the sum of probabilities
    exceeds the number. Tokens of less than 2^-40 of the largest probability may be excluded.
    """


@op_type(
    "NonMaxSuppression",
    inputs=(3, 5),
    content=(2,),
    flops=cost.suppression_flops,
    host=HostWork(numbers_of(inputs=4, outputs=1), cost.suppression_steps),
)
@dataclass(frozen=True, slots=True)
class NonMaxSuppressionAttrs(OpAttrs):
    """Select boxes by descending score, skipping those that overlap a selected one too much.

    Inputs: boxes [B, N, 4], scores [B, C, N], maximum number of boxes per class and image
    (content), maximum allowed intersection over union (0 if absent), and the score that boxes must
    exceed (any if absent). Boxes are two corners (y, x, y, x), or with `center` a center and sizes
    (x, y, w, h). Outputs: rows of (image, class, box), padded with zeros to the maximum number; and
    the number of valid rows, as a vector of one element. Of boxes with equal scores, the lower
    index comes first (ONNX NonMaxSuppression; ties as in onnxruntime).
    """

    center: bool = False


@op_type("RoiAlign", inputs=3, flops=cost.roi_flops, host=HostWork(numbers_of(outputs=8)))
@dataclass(frozen=True, slots=True)
class RoiAlignAttrs(OpAttrs):
    """Sample x [N, C, H, W] in regions [R, 4] (x, y, x, y) of the images given by input 2 [R].

    Each of the size[0] · size[1] bins of a region is the mean of ratio² bilinear samples, or of as
    many as the bin has pixels if `ratio` is 0; with `largest`, it is the largest weighted pixel
    read by a sample. `half_pixel` shifts regions, times `scale`, by half a pixel; without it they
    are at least one pixel wide (ONNX RoiAlign).
    """

    size: tuple[int, int]
    ratio: int = 0
    scale: float = 1.0
    half_pixel: bool = True
    largest: bool = False


@op_type("RoiPool", inputs=2, flops=cost.roi_flops, host=HostWork(numbers_of(outputs=8)))
@dataclass(frozen=True, slots=True)
class RoiPoolAttrs(OpAttrs):
    """The maxima of x [N, C, H, W] in the bins of regions [R, 5] (image, x, y, x, y).

    Corners, times `scale`, are rounded to pixels, and belong to the region; bins may overlap, and
    bins without pixels are 0 (ONNX MaxRoiPool).
    """

    size: tuple[int, int]
    scale: float = 1.0


@op_type("DeformColumns", inputs=(2, 3), flops=8, host=HostWork(numbers_of(outputs=8)))
@dataclass(frozen=True, slots=True)
class DeformColumnsAttrs(OpAttrs):
    """im2col of a deformable convolution: [N, C · taps, positions].

    Inputs: x [N, C, H, W]; offsets [N, groups · taps · 2, *places], (y, x) of each tap; factors [N,
    groups · taps, *places] or none. Every tap reads x at its regular position plus its offset;
    bilinear between pixels, zeros around x (ONNX DeformConv).
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    groups: int = 1


@op_type(
    "LinearAttention",
    inputs=(3, 6),
    flops=cost.linear_attention_flops,
    host=HostWork(numbers_of(inputs=2, outputs=2), cost.linear_attention_steps),
)
@dataclass(frozen=True, slots=True)
class LinearAttentionAttrs(OpAttrs):
    """Linear attention with a state S [B, heads, D, E] that is updated in each step.

    Inputs: queries [B, T, H · D], keys [B, T, heads · D], values [B, T, heads · E]; the first
    state, zeros if absent; decays [B, T, heads] or [B, T, heads · D]; rates [B, T, heads] or [B, T,
    1]. In each step S becomes exp(decay) · S, then S + k ⊗ v, where with rates v is replaced by
    rate · (v - kᵀ S). Outputs: scale · qᵀ S of every step, [B, T, H · E], and the last S (ONNX
    LinearAttention). A scale of 0 means 1 / √D.
    """

    query_heads: int
    heads: int
    scale: float = 0.0


@op_type("CumSum", "CumProd", inputs=2, content=(1,), host=SUMS)
@dataclass(frozen=True, slots=True)
class CumSumAttrs(OpAttrs):
    """Cumulative sum, or product, along the axis that input 1 (content) gives."""

    exclusive: bool = False
    reverse: bool = False


@op_type("Col2Im", inputs=3, content=(1, 2), flops=per_input(1))
@dataclass(frozen=True, slots=True)
class Col2ImAttrs(OpAttrs):
    """Image [N, C, *image] from blocks [N, C · elements, blocks]; overlaps are added.

    Sizes of image and blocks are inputs 1 and 2 (content); by default, steps are 1 and pads 0 (ONNX
    Col2Im).
    """

    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()


@op_type(
    "DFT",
    inputs=(2, 3),
    content=(1, 2),
    flops=cost.fourier_flops,
    host=HostWork(numbers_of(inputs=4, outputs=4)),
)
@dataclass(frozen=True, slots=True)
class DFTAttrs(OpAttrs):
    """Fourier transform along the axis that input 1 (content) gives, as in ONNX DFT.

    The length is input 2 (content), by default that of the axis. The last axis holds the 1 or 2
    parts of each number. With inverse and onesided, half of the elements are given, and the results
    are real.
    """

    inverse: bool = False
    onesided: bool = False


@op_type("MelWeightMatrix", inputs=5, content=(0, 1, 2, 3, 4), flops=4)
@dataclass(frozen=True, slots=True)
class MelWeightMatrixAttrs(OpAttrs):
    """Weights [spectrogram bins, mel bins] of ONNX MelWeightMatrix.

    Inputs, all content: mel bins, length of the transform, sample rate, lower and upper edge.
    """

    dtype: DType = DType.FLOAT32


@op_type("Rotary", inputs=3, flops=3, host=ROWS)
@dataclass(frozen=True, slots=True)
class RotaryAttrs(OpAttrs):
    """Rotate pairs of the first `width` columns of x [B, H, S, D]; the others are unchanged.

    Inputs: x, cosines and sines [B or 1, 1, S, width / 2 or width]. Pairs are `width` / 2 apart, or
    adjacent if `interleaved`: (a, b) becomes (a · cos - b · sin, b · cos + a · sin). Tables of
    `width` columns have one entry per column, others one per pair.
    """

    width: int
    interleaved: bool = False


@op_type("LayerNorm", inputs=(1, 3), flops=8, host=ROWS)
@dataclass(frozen=True, slots=True)
class LayerNormAttrs(OpAttrs):
    """Normalise over axes[axis:], then scale (input 1) and shift (input 2), both optional.

    With `rms` the mean is not subtracted. scale and bias broadcast to the normalised axes. Outputs:
    y, and optionally mean and inverse standard deviation (ONNX LayerNormalization). x is first
    multiplied by `of_input`, its scale; `ending` quantises y.
    """

    axis: int = -1
    epsilon: float = 1e-5
    rms: bool = False
    of_input: float = 1.0
    ending: CodeMean | None = None


@op_type("GroupNorm", inputs=(1, 3), flops=8, host=ROWS)
@dataclass(frozen=True, slots=True)
class GroupNormAttrs(OpAttrs):
    """Normalise each of `groups` channel groups of x [N, C, *S] per sample; scale and bias [C].

    groups = 0 means one group per channel (ONNX InstanceNormalization).
    """

    groups: int = 0
    epsilon: float = 1e-5
    activation: Activation = NO_ACTIVATION


@op_type("Scale", inputs=3, flops=2)
@dataclass(frozen=True, slots=True)
class ScaleAttrs(OpAttrs):
    """y = act(x · scale[c] + bias[c]), c on axis 1: a BatchNorm not folded into a convolution."""

    activation: Activation = NO_ACTIVATION


@op_type("ImageToTensor", flops=2)
@dataclass(frozen=True, slots=True)
class ImageToTensorAttrs(OpAttrs):
    """Images of any number type as floats [N, C, *S]: y = x · scale[c] + bias[c].

    x is [N, *S, C] with `channels_last`, else [N, C, *S]; with `single`, one image without N. scale
    and bias are empty if they are 1 and 0, otherwise they have one entry for each of 1 to 4
    channels.
    """

    channels_last: bool = True
    single: bool = False
    dtype: DType = DType.FLOAT32
    scale: tuple[float, ...] = ()
    bias: tuple[float, ...] = ()


@op_type("LRN", flops=6, host=HostWork(cost.lrn_numbers, cost.lrn_steps))
@dataclass(frozen=True, slots=True)
class LRNAttrs(OpAttrs):
    """Local response normalisation across channels (ONNX LRN)."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0


@op_type(
    "Pooling",
    flops=cost.pooling_flops,
    host=HostWork(cost.pooling_numbers, cost.pooling_steps),
)
@dataclass(frozen=True, slots=True)
class PoolingAttrs(OpAttrs):
    """MAX, AVERAGE or LP pooling over x [N, C, *S]; output 1 of MAX is the int64 flat index.

    `is_global` pools the whole spatial extent and ignores the window. `p` is the norm of LP;
    `storage_order` 1 makes MAX's indices column-major (ONNX MaxPool). With `ending`, for AVERAGE, x
    and y are quantised values minus their zero points, and sums are exact.
    """

    kind: str
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    auto_pad: str = "NOTSET"
    ceil_mode: bool = False
    count_include_pad: bool = False
    is_global: bool = False
    p: int = 2
    storage_order: int = 0
    ending: CodeMean | None = None


@op_type("Interp", inputs=(1, 4), content=(1, 2, 3), flops=8, host=HostWork(cost.interp_numbers))
@dataclass(frozen=True, slots=True)
class InterpAttrs(OpAttrs):
    """Resize; inputs x, roi?, scales?, sizes? (the last three are content), as in ONNX Resize.

    mode: nearest, linear, cubic. coordinate_mode: ONNX coordinate_transformation_mode. No axes: all
    of them. `ending`: x is multiplied by `of_x` before resizing and requantised afterwards (no
    cropping). `whole_lengths`: align_corners as in PyTorch, where the last elements coincide
    regardless of the rounding of scales (docs/decisions/resize-lengths.md).
    """

    mode: str = "nearest"
    coordinate_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    extrapolation_value: float = 0.0
    antialias: bool = False
    axes: tuple[int, ...] = ()
    keep_aspect_ratio_policy: str = "stretch"
    ending: CodeMean | None = None
    whole_lengths: bool = False


@op_type("GridSample", inputs=2, flops=8, host=HostWork(cost.grid_sample_numbers))
@dataclass(frozen=True, slots=True)
class GridSampleAttrs(OpAttrs):
    """Sample x [N, C, *S] at grid [N, *out, len(S)]; mode linear, nearest or cubic."""

    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False


@op_type("Gather", "GatherElements", inputs=2, flops=0, host=INDEXED)
@op_type("OneHot", inputs=3, content=(1,), flops=0, host=HostWork(numbers_of(inputs=3)))
@op_type("Concat", inputs=(1, MANY), flops=0, host=COPY)
@op_type("Flatten", flops=0, host=VIEW)
@dataclass(frozen=True, slots=True)
class AxisAttrs(OpAttrs):
    """An axis, negative from the end: Concat, Gather, GatherElements, OneHot, Flatten."""

    axis: int = 0


@op_type("Append", inputs=3, flops=0, host=COPY)
@dataclass(frozen=True, slots=True)
class AppendAttrs(OpAttrs):
    """Write the second input into the first along `axis`, at the position in the third.

    The third input is one integer. On a device the first input is updated in place, so no other op
    may read it. Writes stop at its end. With `packing` ("f16" or "i8"; `base/packed_rows.py`), the
    last axis of the first input has the words of packed rows, int32, and that of the second floats.
    """

    axis: int
    packing: Packing = ""


@op_type("UnpackRows", inputs=2, flops=1, host=COPY)
@dataclass(frozen=True, slots=True)
class UnpackRowsAttrs(OpAttrs):
    """Floats [..., depth] of a cache of packed rows, int32 [..., words]; see `Append`.

    The second input is the number of valid rows along `axis`, one integer; results past them are
    undefined.
    """

    axis: int
    packing: Packing
    depth: int
    dtype: DType = DType.FLOAT32


@op_type("JoinPast", inputs=4, content=(3,), flops=0, host=COPY)
@dataclass(frozen=True, slots=True)
class JoinPastAttrs(OpAttrs):
    """Append new rows to a cache, and return the part that attention reads.

    Inputs: the cache [B, G, P, D]; new rows [B, G, L, D]; the number of valid cache rows in each
    sequence, integers [B] or [B, 1]; the length T of the longest sequence including the new rows
    (content). Outputs: the cache [B, G, max(P, T), D], with the valid rows of each sequence,
    directly followed by the new ones, then zeros; and its first T rows.

    If T = P + L, a batch of one is the concatenation of the cache and the new rows.
    """


@op_type("GatherND", inputs=2, flops=0, host=INDEXED)
@dataclass(frozen=True, slots=True)
class GatherNDAttrs(OpAttrs):
    """GatherND with leading batch axes."""

    batch_dims: int = 0


@op_type("ScatterND", inputs=3, host=SCATTERED)
@dataclass(frozen=True, slots=True)
class ScatterNDAttrs(OpAttrs):
    """ScatterND(data, indices, updates); reduction none, add, mul, max or min."""

    reduction: str = "none"


@op_type("ScatterElements", inputs=3, host=SCATTERED)
@dataclass(frozen=True, slots=True)
class ScatterElementsAttrs(OpAttrs):
    """ScatterElements(data, indices, updates) along `axis`; reduction as ScatterND."""

    axis: int = 0
    reduction: str = "none"


@op_type("Transpose", flops=0, host=VIEW)
@dataclass(frozen=True, slots=True)
class TransposeAttrs(OpAttrs):
    """Permute axes; an empty `perm` reverses them."""

    perm: tuple[int, ...] = ()


@op_type("Reshape", inputs=2, content=(1,), flops=0, host=VIEW)
@dataclass(frozen=True, slots=True)
class ReshapeAttrs(OpAttrs):
    """Reshape to input 1 (content): 0 keeps the axis unless allowzero, -1 is deduced."""

    allowzero: bool = False


@op_type("Split", inputs=(1, 2), content=(1,), flops=0, host=VIEW)
@dataclass(frozen=True, slots=True)
class SplitAttrs(OpAttrs):
    """Split along `axis` by input 1 (content) or into `num_outputs` parts, the last smallest."""

    axis: int = 0
    num_outputs: int = 0


@op_type("Pad", inputs=(2, 4), content=(1, 3), flops=0)
@dataclass(frozen=True, slots=True)
class PadAttrs(OpAttrs):
    """Pad by input 1 (content; negative crops), value input 2, axes input 3 (content).

    mode: constant, reflect, edge, wrap.
    """

    mode: str = "constant"


@op_type("DepthToSpace", "SpaceToDepth", flops=0, host=COPY)
@dataclass(frozen=True, slots=True)
class BlockAttrs(OpAttrs):
    """DepthToSpace (mode DCR or CRD) and SpaceToDepth."""

    block_size: int
    mode: str = "DCR"


@op_type("Trilu", inputs=(1, 2), content=(1,), flops=0)
@dataclass(frozen=True, slots=True)
class TriluAttrs(OpAttrs):
    """Keep the upper or lower triangle; input 1 is the diagonal offset k (content)."""

    upper: bool = True


@op_type("Shape", shape_only=True, flops=0, host=COPY)
@dataclass(frozen=True, slots=True)
class ShapeAttrs(OpAttrs):
    """Shape of x as int64, axes [start:end]."""

    start: int = 0
    end: int | None = None


@op_type("ConstantOfShape", content=(0,), flops=0, host=COPY)
@dataclass(frozen=True, slots=True)
class ConstantOfShapeAttrs(OpAttrs):
    """A tensor of shape input 0 (content) filled with one value."""

    value: float | int | bool = 0.0
    dtype: DType = DType.FLOAT32


@op_type("Einsum", inputs=(1, MANY), flops=cost.einsum_flops, host=HostWork(cost.einsum_numbers))
@dataclass(frozen=True, slots=True)
class EinsumAttrs(OpAttrs):
    """Einstein summation, equation as in ONNX Einsum."""

    equation: str


@dataclass(frozen=True, slots=True)
class CodeAttention:
    """Rounding in quantised attention, in float32 and half to even.

    s = clip(rint((q · k) · scale), low, low + len(table) - 1); x = table[s - low]; p =
    clip(rint(softmax(x) / unit), *weights); y = clip(rint((p · v) · factor), *made) · decoded.

    `later`, if not empty, replaces `table` for keys after the query.
    """

    low: float
    table: tuple[float, ...]
    unit: float
    weights: tuple[float, float]
    factor: float
    made: tuple[float, float]
    decoded: float = 1.0
    later: tuple[float, ...] = ()


@op_type(
    "Attention",
    inputs=(3, 6),
    flops=cost.attention_flops,
    host=HostWork(cost.attention_numbers, flop_s=4e-10, blas=True),
)
@dataclass(frozen=True, slots=True)
class AttentionAttrs(OpAttrs):
    """softmax(scale · q kᵀ + mask) v.

    q [..., L, D], k [..., S, D], v [..., S, E]; the mask broadcasts to [..., L, S] or is absent. A
    fifth input, one integer, is the number of valid keys, at least 1: keys beyond it, and their
    mask, are not read.

    A sixth input is a sink, which broadcasts to [..., 1, 1]: a score without a value that takes
    part in every query's softmax. With `softcap` c, scores are c · tanh(scale · q kᵀ / c) before
    the mask is added.

    With `causal`, query i sees only keys 0..i. With a `window` w, the last query sees only the last
    w keys, and each earlier query a window that ends one key earlier. With `zero_fully_masked`, a
    query whose keys are all masked gets zeros (ONNX Attention 24); otherwise, the softmax over only
    -inf gives NaN.

    With `codes`, operands are quantised, sums are exact, and `scale` quantises the scores; mask,
    fifth and sixth input, soft cap and window are not supported.
    """

    scale: float
    causal: bool = False
    zero_fully_masked: bool = True
    codes: CodeAttention | None = None
    softcap: float = 0.0
    window: int = 0


@op_type("CachedAttention", inputs=(8, 12), flops=cost.cached_attention_flops, host=SCATTERED)
@dataclass(frozen=True, slots=True)
class CachedAttentionAttrs(OpAttrs):
    """Attention of a few query rows over a cache, after appending their keys and values.

    Inputs: q [B, H, R, D], k [B, G, R, D], v [B, G, R, E], H a multiple of G; cosines and sines as
    of Rotary, absent if `width` is 0; caches of keys [B, G, C, D] and values [B, G, C, E]; their
    number of valid rows, one integer or [B]; a mask that broadcasts to [B, H, R, C], added to the
    scores; a sink for every head, [H, 1, 1]; optional factors [D] for the rows of q and of k, which
    are then normalised first: x / sqrt(mean(x²) + epsilon) · factors. q and k are rotated (Rotary),
    k and v appended (Append), and q attends to all valid keys (Attention, with its `softcap` and
    `window`). Outputs: y [B, H, R, E], and the caches. On a device the caches are updated in place,
    so no other op may read them.

    If the number of rows is given as [B], a negative one leaves the caches of its batch element
    unchanged: its queries attend only to the new rows.

    With `layout` "rows", q, k, v and y are [B, R, H or G, …]. With "packed", q is [B, R, H·D + G·D
    + G·E], the three concatenated, k and v are absent, and y is [B, R, H, E].

    With `positions`, the tables have a row for each row of the caches, [1, 1, C, …], and a new row
    is turned by the one of the place where it is written.

    With `packing`, caches are int32 and have rows of words, as those of Append; new rows are
    attended to as the caches hold them.
    """

    scale: float
    width: int = 0
    interleaved: bool = False
    zero_fully_masked: bool = False
    layout: str = ""
    softcap: float = 0.0
    window: int = 0
    epsilon: float = 0.0
    packing: Packing = ""
    positions: bool = False


ATTENTION_AXES = 3
"""Number of batch axes of a StridedAttention."""


@op_type(
    "StridedAttention",
    inputs=(3, 6),
    flops=cost.strided_attention_flops,
    host=HostWork(cost.strided_attention_numbers),
)
@dataclass(frozen=True, slots=True)
class StridedAttentionAttrs(OpAttrs):
    """Attention between strided views of tensors; Attention is lowered to it.

    A view addresses element (b0, b1, b2, row, column) of a tensor in plain order; the stride of the
    column is 1 and not stored. Rows and columns are queries·depth (q), keys·depth (k), keys·width
    (v), queries·keys (the mask, which is added) and queries·width (the result, whose view covers
    the output). The fifth input is that of Attention; the sixth has a sink per matrix, in batch
    order.
    """

    batch: tuple[int, int, int]
    queries: int
    keys: int
    depth: int
    width: int
    views: tuple[View, View, View]
    mask: View | None
    result: View
    scale: float
    causal: bool = False
    zero_fully_masked: bool = True
    codes: CodeAttention | None = None
    softcap: float = 0.0
    window: int = 0


RECURRENT_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Cells of a Recurrent, and their numbers of gates."""

RECURRENT_ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
"""Number of activations of a cell."""

RECURRENT_KINDS = (
    "SIGMOID",
    "TANH",
    "RELU",
    "AFFINE",
    "LEAKY_RELU",
    "THRESHOLDED_RELU",
    "SCALED_TANH",
    "HARD_SIGMOID",
    "ELU",
    "SOFTSIGN",
    "SOFTPLUS",
)
"""Activations of cells: AFFINE is alpha · x + beta, SCALED_TANH is alpha · tanh(beta · x)."""


_RECURRENT = HostWork(cost.recurrent_numbers, cost.recurrent_steps, 4e-10, blas=True)


@op_type("Recurrent", inputs=(2, 7), flops=cost.recurrent_flops, host=_RECURRENT)
@dataclass(frozen=True, slots=True)
class RecurrentAttrs(OpAttrs):
    """The steps of an LSTM, GRU or RNN, after the products with its input.

    Inputs: gates [T, B, D·G·H], the contribution of the input and of all biases but `bias`, with
    gates in ONNX's order (i o f c; z r h); weights [D, G·H, H]; bias [D, H], added to the product
    in a GRU's last gate before the reset; lengths [B]; first h and first c [D, B, H]; peepholes [D,
    3·H]. All but the first two may be absent. Outputs: every h [T, D, B, H], zeros past a
    sequence's length, the last h and, for an LSTM, the last c [D, B, H].

    D is 2 with direction BIDIRECTIONAL. `activations` lists those of each direction, of
    RECURRENT_KINDS. A `clip` above 0 bounds their inputs, except for an LSTM's cell output.
    `linear`: a GRU resets its product rather than its state. `coupled`: an LSTM's forget gate is
    one minus its input gate. `batch_first` swaps the axes: [B, T, D·G·H], [B, T, D, H], [B, D, H].
    """

    cell: str
    activations: tuple[Activation, ...]
    direction: str = "FORWARD"
    clip: float = 0.0
    linear: bool = False
    coupled: bool = False
    batch_first: bool = False

    @property
    def directions(self) -> int:
        """Number of directions, each with its own weights."""
        return 2 if self.direction == "BIDIRECTIONAL" else 1


@op_type("Raster", inputs=(0, MANY), flops=0, host=COPY)
@dataclass(frozen=True, slots=True)
class RasterAttrs(OpAttrs):
    """Copy regions of the inputs into the output (MNN Raster); the rest is `fill`.

    `region.origin` is the index of the input. Regions do not overlap in the output unless
    `ordered`, in which case they are applied in list order.
    """

    regions: tuple[Region, ...]
    fill: float | int = 0
    ordered: bool = False


@op_type("ConvertTensor", flops=0, host=COPY)
@dataclass(frozen=True, slots=True)
class ConvertTensorAttrs(OpAttrs):
    """Change the memory layout, not the value; layouts are names of `Layout` members."""

    source: str
    dest: str


op_type("Custom", inputs=(0, MANY), flops=custom_flops)(CustomAttrs)

# Ops without attributes.
op_type("Select", inputs=3)(OpAttrs)
op_type("Det", flops=cost.determinant_flops, host=HostWork(numbers_of(inputs=3)))(OpAttrs)
op_type("DynamicRange", flops=per_input(2), host=HostWork(numbers_of(inputs=2)))(OpAttrs)
op_type("Squeeze", inputs=(1, 2), content=(1,), flops=0, host=VIEW)(OpAttrs)
op_type("Unsqueeze", inputs=2, content=(1,), flops=0, host=VIEW)(OpAttrs)
op_type("Identity", flops=0, host=VIEW)(OpAttrs)
op_type("Slice", inputs=(3, 5), content=(1, 2, 3, 4), flops=0, host=VIEW)(OpAttrs)
op_type("Expand", inputs=2, content=(1,), flops=0, host=VIEW)(OpAttrs)
op_type("Tile", inputs=2, content=(1,), flops=0)(OpAttrs)
op_type("Size", shape_only=True, flops=0, host=COPY)(OpAttrs)
op_type("Range", inputs=3, content=(0, 1, 2), host=HostWork(numbers_of(outputs=2)))(OpAttrs)
