"""The op vocabulary: typed attributes of every operator that a graph may hold.

Converters translate a model's operators into these. Names and semantics follow MNN where MNN and
ONNX agree, else ONNX. Values that ONNX passes as inputs (Reshape's shape, Slice's starts, …) stay
inputs here; converters turn the attributes of older opsets into constant inputs, so that each op
has
one form only. All attributes are plain, hashable data. Operators of plug-ins join by `op_type`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from vkmnn.errors import PluginError
from vkmnn.ir.dtype import DType
from vkmnn.ir.regions import Region, View
from vkmnn.registry import Registry


@dataclass(frozen=True, slots=True)
class OpAttrs:
    """Base class of attributes; also the attributes of ops that have none."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A `UnaryOp` kind and its parameters, applied to an op's result before it is stored.

    kind: NONE, RELU, CLIP (alpha = min, beta = max), LEAKY_RELU (alpha), SIGMOID, SILU, GELU,
    GELU_TANH, HARD_SIGMOID (alpha, beta), HARD_SWISH, TANH, ELU (alpha), SOFTPLUS. QUICK_GELU
    (alpha) is the op QuickGelu.
    """

    kind: str = "NONE"
    alpha: float = 0.0
    beta: float = 0.0


NO_ACTIVATION = Activation()

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
"""How a result takes a residual r in: act(y + r), act(y) + r, act(y) · r."""

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
)

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


@dataclass(frozen=True, slots=True)
class ConvolutionAttrs(OpAttrs):
    """y = act(conv(x, w) + b + residual); x [N, C, *S], w [O, C/group, *kernel], b [O].

    The residual has the shape of y; `residual`, of RESIDUAL_KINDS, says where it comes in.
    Tuples have one entry per spatial axis; `pads` holds the begins, then the ends. With `auto_pad`
    SAME_UPPER, SAME_LOWER or VALID the pads are worked out from the input's shape (ONNX Conv).
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
class DeconvolutionAttrs(OpAttrs):
    """Transposed convolution; w [C, O/group, *kernel] (ONNX ConvTranspose).

    `output_shape` holds the spatial sizes and may be empty; given, it decides the pads.
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


@dataclass(frozen=True, slots=True)
class MatMulAttrs(OpAttrs):
    """y = act(alpha · (a @ b) + bias + residual) by numpy's matmul rules.

    `transpose_a`/`transpose_b` swap the last two axes of operands of rank >= 2. `bias` (input 2)
    has
    shape [N] (the last axis of y); `residual` (input 3) has the shape of y, and the attribute, of
    RESIDUAL_KINDS, says where it comes in.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    activation: Activation = NO_ACTIVATION
    residual: str = "ADD_BEFORE"


@dataclass(frozen=True, slots=True)
class BinaryAttrs(OpAttrs):
    """y = act(kind(a, b)) with numpy broadcasting.

    Integer DIV truncates toward zero; MOD has the sign of the divisor, FMOD of the dividend; PRELU
    is
    a if a >= 0 else a·b. Comparisons and logic give bool.
    """

    kind: str
    activation: Activation = NO_ACTIVATION


@dataclass(frozen=True, slots=True)
class UnaryAttrs(OpAttrs):
    """y = kind(x), element by element, with ONNX's definitions.

    alpha, beta: CLIP min and max; HARD_SIGMOID, ELU, LEAKY_RELU, CELU, THRESHOLDED_RELU as in ONNX;
    SELU alpha and gamma; ISINF detect_negative and detect_positive (0 or 1).
    """

    kind: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class QuickGeluAttrs(OpAttrs):
    """y = x · sigmoid(alpha · x): onnxruntime's contrib operator QuickGelu, ONNX Swish 24."""

    alpha: float = 1.702


STEP_KINDS = {
    "ADD": 2, "SUB": 2, "MUL": 2, "DIV": 2, "MIN": 2, "MAX": 2, "PRELU": 2,
    "GREATER": 2, "GREATER_EQUAL": 2, "LESS": 2, "LESS_EQUAL": 2, "EQUAL": 2,
    "ABS": 1, "FLOOR": 1, "CEIL": 1, "ROUND": 1, "SIGN": 1, "SQRT": 1, "RSQRT": 1,
    "EXP": 1, "LOG": 1, "SIGMOID": 1, "TANH": 1, "MUL_ADD": 3, "CLIP": 3, "SELECT": 3,
}  # fmt: skip
"""Kinds of steps, and how many values each takes: those of `UnaryOp` and `BinaryOp`, MUL_ADD
(a · b + c), CLIP (x, min, max), SELECT (condition, a, b). Comparisons give 1 or 0."""
MAX_STEPS = 8
MAX_STEP_NUMBERS = 8
MAX_STEP_INPUTS = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an Elementwise op; `values` are numbered as the op says."""

    kind: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElementwiseAttrs(OpAttrs):
    """y = the last of several steps, each a function of floats, element by element.

    All steps compute in the shape to which the inputs broadcast. Value k >= 0 is input k, or, from
    the number of inputs on, the result of a step; value -1 - k is `numbers[k]`.
    """

    steps: tuple[Step, ...]
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CastAttrs(OpAttrs):
    """y = x converted to `to`: float to int truncates toward zero, to bool is x != 0."""

    to: DType


@dataclass(frozen=True, slots=True)
class ReductionAttrs(OpAttrs):
    """Reduce over the axes in input 1 (content); none = all, unless noop_with_empty_axes."""

    kind: str
    keepdims: bool = True
    noop_with_empty_axes: bool = False


@dataclass(frozen=True, slots=True)
class SoftmaxAttrs(OpAttrs):
    """Softmax over `axis`, or over all axes from it on when `flatten` (ONNX before opset 13)."""

    axis: int = -1
    log: bool = False
    flatten: bool = False


@dataclass(frozen=True, slots=True)
class ArgReduceAttrs(OpAttrs):
    """ArgMax and ArgMin: int64 index of the extremum along `axis`."""

    axis: int = 0
    keepdims: bool = True
    select_last_index: bool = False


@dataclass(frozen=True, slots=True)
class TopKAttrs(OpAttrs):
    """(values, int64 indices) of the k largest or smallest along `axis`; input 1 is k (content).

    Among equal elements the lower index comes first (ONNX TopK).
    """

    axis: int = -1
    largest: bool = True
    sorted: bool = True


@dataclass(frozen=True, slots=True)
class CumSumAttrs(OpAttrs):
    """Cumulative sum along the axis that input 1 (content) gives."""

    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class LayerNormAttrs(OpAttrs):
    """Normalise over axes[axis:], then scale (input 1) and shift (input 2), both optional.

    With `rms` the mean is not subtracted. scale and bias broadcast to the normalised axes.
    Outputs: y,
    and optionally mean and inverse standard deviation (ONNX LayerNormalization).
    """

    axis: int = -1
    epsilon: float = 1e-5
    rms: bool = False


@dataclass(frozen=True, slots=True)
class GroupNormAttrs(OpAttrs):
    """Normalise each of `groups` channel groups of x [N, C, *S] per sample; scale and bias [C].

    groups = 0 means one group per channel (ONNX InstanceNormalization).
    """

    groups: int = 0
    epsilon: float = 1e-5
    activation: Activation = NO_ACTIVATION


@dataclass(frozen=True, slots=True)
class ScaleAttrs(OpAttrs):
    """y = act(x · scale[c] + bias[c]), c on axis 1: a BatchNorm that no conv absorbed."""

    activation: Activation = NO_ACTIVATION


@dataclass(frozen=True, slots=True)
class LRNAttrs(OpAttrs):
    """Local response normalisation across channels (ONNX LRN)."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0


@dataclass(frozen=True, slots=True)
class PoolingAttrs(OpAttrs):
    """MAX, AVERAGE or LP pooling over x [N, C, *S]; output 1 of MAX is the int64 flat index.

    `is_global` pools the whole spatial extent and ignores the rest. `p` is the norm of LP;
    `storage_order` 1 makes MAX's indices column-major (ONNX MaxPool).
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


@dataclass(frozen=True, slots=True)
class InterpAttrs(OpAttrs):
    """Resize; inputs x, roi?, scales?, sizes? (the last three are content), as in ONNX Resize.

    mode: nearest, linear, cubic. coordinate_mode: ONNX coordinate_transformation_mode. axes empty =
    all axes.
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


@dataclass(frozen=True, slots=True)
class GridSampleAttrs(OpAttrs):
    """Sample x [N, C, *S] at grid [N, *out, len(S)]; mode linear, nearest or cubic."""

    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False


@dataclass(frozen=True, slots=True)
class AxisAttrs(OpAttrs):
    """An axis, negative from the end: Concat, Gather, GatherElements, OneHot, Flatten."""

    axis: int = 0


@dataclass(frozen=True, slots=True)
class GatherNDAttrs(OpAttrs):
    """GatherND with leading batch axes."""

    batch_dims: int = 0


@dataclass(frozen=True, slots=True)
class ScatterNDAttrs(OpAttrs):
    """ScatterND(data, indices, updates); reduction none, add, mul, max or min."""

    reduction: str = "none"


@dataclass(frozen=True, slots=True)
class ScatterElementsAttrs(OpAttrs):
    """ScatterElements(data, indices, updates) along `axis`; reduction as ScatterND."""

    axis: int = 0
    reduction: str = "none"


@dataclass(frozen=True, slots=True)
class TransposeAttrs(OpAttrs):
    """Permute axes; an empty `perm` reverses them."""

    perm: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReshapeAttrs(OpAttrs):
    """Reshape to input 1 (content): 0 keeps the axis unless allowzero, -1 is deduced."""

    allowzero: bool = False


@dataclass(frozen=True, slots=True)
class SplitAttrs(OpAttrs):
    """Split along `axis` by input 1 (content) or into `num_outputs` parts, the last smallest."""

    axis: int = 0
    num_outputs: int = 0


@dataclass(frozen=True, slots=True)
class PadAttrs(OpAttrs):
    """Pad by input 1 (content; negative crops), value input 2, axes input 3 (content).

    mode: constant, reflect, edge, wrap.
    """

    mode: str = "constant"


@dataclass(frozen=True, slots=True)
class BlockAttrs(OpAttrs):
    """DepthToSpace (mode DCR or CRD) and SpaceToDepth."""

    block_size: int
    mode: str = "DCR"


@dataclass(frozen=True, slots=True)
class TriluAttrs(OpAttrs):
    """Keep the upper or lower triangle; input 1 is the diagonal offset k (content)."""

    upper: bool = True


@dataclass(frozen=True, slots=True)
class ShapeAttrs(OpAttrs):
    """Shape of x as int64, axes [start:end]."""

    start: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class ConstantOfShapeAttrs(OpAttrs):
    """A tensor of shape input 0 (content) filled with one value."""

    value: float | int | bool = 0.0
    dtype: DType = DType.FLOAT32


@dataclass(frozen=True, slots=True)
class EinsumAttrs(OpAttrs):
    """Einstein summation, equation as in ONNX Einsum."""

    equation: str


@dataclass(frozen=True, slots=True)
class AttentionAttrs(OpAttrs):
    """softmax(scale · q kᵀ + mask) v.

    q [..., L, D], k [..., S, D], v [..., S, E]; the mask broadcasts to [..., L, S] or is absent.

    With `causal`, query i sees keys 0..i only. With `blind_zero`, a query that sees no key gets
    zeros (ONNX Attention 24), else what the softmax of nothing but -inf gives: NaN.
    """

    scale: float
    causal: bool = False
    blind_zero: bool = True


ATTENTION_AXES = 3
"""Over how many axes the matrices of a StridedAttention are numbered."""


@dataclass(frozen=True, slots=True)
class StridedAttentionAttrs(OpAttrs):
    """Attention between views of tensors of any shape; what Attention becomes before it runs.

    A view addresses element (b0, b1, b2, row, column) of a tensor in plain order; it leaves out
    the stride of the column, which is 1. Rows and columns are queries·depth (q), keys·depth (k),
    keys·width (v), queries·keys (the mask, which is added) and queries·width (the result, whose
    view covers the output).
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
    blind_zero: bool = True


@dataclass(frozen=True, slots=True)
class RasterAttrs(OpAttrs):
    """Copy regions of the inputs into the output (MNN Raster); what no region writes gets `fill`.

    `region.origin` is the number of the input. Regions do not overlap in the output unless
    `ordered`,
    in which case they are applied in list order.
    """

    regions: tuple[Region, ...]
    fill: float | int = 0
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class ConvertTensorAttrs(OpAttrs):
    """Change the memory layout, not the value; layouts are names of `Layout` members."""

    source: str
    dest: str


@dataclass(frozen=True, slots=True)
class OpType:
    """What the vocabulary knows of an op: its attributes' class, arity, and content inputs.

    `content` lists inputs whose *values* must be known to compute the output's shape or to plan
    the op.
    """

    attrs: type[OpAttrs]
    min_inputs: int
    max_inputs: int
    content: tuple[int, ...] = ()


_MANY = 2**31 - 1

OP_TYPES: Registry[str, OpType] = Registry("op type")

_A = TypeVar("_A", bound=OpAttrs)


def op_type(
    name: str, *, inputs: int | tuple[int, int] = 1, content: tuple[int, ...] = ()
) -> Callable[[type[_A]], type[_A]]:
    """Add an op to the vocabulary; decorates the class of its attributes.

    Args:
        name: the op's name, in CamelCase: `op.type`.
        inputs: how many inputs it takes, or the least and the most.
        content: inputs whose *values* must be known to compute the output's shape.

    Raises:
        PluginError: the name is taken, the class is not a frozen dataclass derived from OpAttrs, or
            the numbers of inputs make no sense.
    """
    least, most = (inputs, inputs) if isinstance(inputs, int) else inputs
    if not 0 <= least <= most or not all(0 <= index < most for index in content):
        raise PluginError(
            f"inputs {inputs} with content {content} make no sense",
            op=name,
            hint="inputs=2, or inputs=(1, 3) with optional ones; content counts from 0",
        )

    def add(attrs: type[_A]) -> type[_A]:
        # Of the class itself, not inherited: the decorators may stand in the wrong order.
        params = vars(attrs).get("__dataclass_params__")
        if OpAttrs not in attrs.__mro__ or params is None or not params.frozen:
            raise PluginError(
                f"{attrs.__name__} cannot hold attributes",
                op=name,
                hint="derive it from OpAttrs, with @dataclass(frozen=True, slots=True) below this",
            )
        OP_TYPES.register(name)(OpType(attrs, least, most, content))
        return attrs

    return add


_BUILT_IN: dict[str, OpType] = {
    "Convolution": OpType(ConvolutionAttrs, 2, 4),
    "Deconvolution": OpType(DeconvolutionAttrs, 2, 3),
    "MatMul": OpType(MatMulAttrs, 2, 4),
    "BinaryOp": OpType(BinaryAttrs, 2, 2),
    "UnaryOp": OpType(UnaryAttrs, 1, 1),
    "Elementwise": OpType(ElementwiseAttrs, 1, MAX_STEP_INPUTS),
    "QuickGelu": OpType(QuickGeluAttrs, 1, 1),
    "Select": OpType(OpAttrs, 3, 3),
    "Cast": OpType(CastAttrs, 1, 1),
    "Reduction": OpType(ReductionAttrs, 1, 2, (1,)),
    "Softmax": OpType(SoftmaxAttrs, 1, 1),
    "ArgMax": OpType(ArgReduceAttrs, 1, 1),
    "ArgMin": OpType(ArgReduceAttrs, 1, 1),
    "TopK": OpType(TopKAttrs, 2, 2, (1,)),
    "CumSum": OpType(CumSumAttrs, 2, 2, (1,)),
    "LayerNorm": OpType(LayerNormAttrs, 1, 3),
    "GroupNorm": OpType(GroupNormAttrs, 1, 3),
    "Scale": OpType(ScaleAttrs, 3, 3),
    "LRN": OpType(LRNAttrs, 1, 1),
    "Pooling": OpType(PoolingAttrs, 1, 1),
    "Interp": OpType(InterpAttrs, 1, 4, (1, 2, 3)),
    "GridSample": OpType(GridSampleAttrs, 2, 2),
    "Gather": OpType(AxisAttrs, 2, 2),
    "GatherElements": OpType(AxisAttrs, 2, 2),
    "GatherND": OpType(GatherNDAttrs, 2, 2),
    "ScatterND": OpType(ScatterNDAttrs, 3, 3),
    "ScatterElements": OpType(ScatterElementsAttrs, 3, 3),
    "OneHot": OpType(AxisAttrs, 3, 3, (1,)),
    "Transpose": OpType(TransposeAttrs, 1, 1),
    "Reshape": OpType(ReshapeAttrs, 2, 2, (1,)),
    "Flatten": OpType(AxisAttrs, 1, 1),
    "Squeeze": OpType(OpAttrs, 1, 2, (1,)),
    "Unsqueeze": OpType(OpAttrs, 2, 2, (1,)),
    "Identity": OpType(OpAttrs, 1, 1),
    "Concat": OpType(AxisAttrs, 1, _MANY),
    "Split": OpType(SplitAttrs, 1, 2, (1,)),
    "Slice": OpType(OpAttrs, 3, 5, (1, 2, 3, 4)),
    "Pad": OpType(PadAttrs, 2, 4, (1, 3)),
    "Expand": OpType(OpAttrs, 2, 2, (1,)),
    "Tile": OpType(OpAttrs, 2, 2, (1,)),
    "DepthToSpace": OpType(BlockAttrs, 1, 1),
    "SpaceToDepth": OpType(BlockAttrs, 1, 1),
    "Trilu": OpType(TriluAttrs, 1, 2, (1,)),
    "Shape": OpType(ShapeAttrs, 1, 1),
    "Size": OpType(OpAttrs, 1, 1),
    "Range": OpType(OpAttrs, 3, 3, (0, 1, 2)),
    "ConstantOfShape": OpType(ConstantOfShapeAttrs, 1, 1, (0,)),
    "Einsum": OpType(EinsumAttrs, 1, _MANY),
    "Attention": OpType(AttentionAttrs, 3, 4),
    "StridedAttention": OpType(StridedAttentionAttrs, 3, 4),
    "Raster": OpType(RasterAttrs, 0, _MANY),
    "ConvertTensor": OpType(ConvertTensorAttrs, 1, 1),
}

for _name, _entry in _BUILT_IN.items():
    OP_TYPES.register(_name)(_entry)
