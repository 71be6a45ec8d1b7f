"""Shapes of results as far as they follow from shapes that may be known in part only.

The session computes exact shapes when sizes are known; these rules tell passes what holds for all
sizes. An op without a rule gives results of unknown shape, unless the model says more.
"""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.converter.passes.symbolic.dims import DimAlgebra
from vkmnn.converter.passes.symbolic.facts import Facts, Found, Rule, Shape
from vkmnn.ir.dtype import DType
from vkmnn.ir.graph import Dim, Op
from vkmnn.ir.ops import (
    COMPARISON_KINDS,
    ArgReduceAttrs,
    AttentionAttrs,
    AxisAttrs,
    BinaryAttrs,
    BlockAttrs,
    CastAttrs,
    ConstantOfShapeAttrs,
    ConvolutionAttrs,
    DeconvolutionAttrs,
    InterpAttrs,
    LayerNormAttrs,
    MatMulAttrs,
    PoolingAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    SplitAttrs,
    TopKAttrs,
    TransposeAttrs,
    UnaryAttrs,
)
from vkmnn.shape.registry import MAX_RANK


def is_absent(op: Op, place: int) -> bool:
    """True when an op has no such input."""
    return place >= len(op.inputs) or not op.inputs[place]


def broadcast(facts: Facts, *shapes: Shape | None) -> Shape | None:
    """Return what shapes broadcast to, with None for dimensions that are not known."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    rank = max(map(len, known), default=0)
    result: Shape = (1,) * rank
    for shape in known:
        padded = (1,) * (rank - len(shape)) + shape
        result = tuple(map(facts.algebra.broadcast, result, padded))
    return result


def _like_first(op: Op, facts: Facts) -> list[Found]:
    return [(facts.dtype(op), facts.shape(op))]


def _unary(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, UnaryAttrs)
    logic = op.attrs.kind in ("NOT", "ISNAN", "ISINF")
    return [(DType.BOOL if logic else facts.dtype(op), facts.shape(op))]


def _binary(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, BinaryAttrs)
    dtype = (
        DType.BOOL if op.attrs.kind in COMPARISON_KINDS else facts.dtype(op) or facts.dtype(op, 1)
    )
    return [(dtype, broadcast(facts, facts.shape(op), facts.shape(op, 1)))]


def _select(op: Op, facts: Facts) -> list[Found]:
    shape = broadcast(facts, *(facts.shape(op, place) for place in range(3)))
    return [(facts.dtype(op, 1) or facts.dtype(op, 2), shape)]


def _cast(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, CastAttrs)
    return [(op.attrs.to, facts.shape(op))]


def _windows(attrs: ConvolutionAttrs | PoolingAttrs, spatial: Shape, algebra: DimAlgebra) -> Shape:
    """Return how many windows fit: floor((dim + pads - dilation·(kernel - 1) - 1) / stride) + 1."""
    axes = len(attrs.kernel)
    strides, dilations = attrs.strides or (1,) * axes, attrs.dilations or (1,) * axes
    pads = attrs.pads or (0,) * (2 * axes)
    sizes: list[Dim] = []
    for axis, dim in enumerate(spatial):
        stride = strides[axis]
        if attrs.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            sizes.append(algebra.floor_divide(algebra.add(dim, stride - 1), stride))
            continue
        total = 0 if attrs.auto_pad == "VALID" else pads[axis] + pads[axis + axes]
        span = algebra.add(dim, total - dilations[axis] * (attrs.kernel[axis] - 1) - 1)
        sizes.append(algebra.add(algebra.floor_divide(span, stride), 1))
    return tuple(sizes)


def _convolution(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, ConvolutionAttrs)
    shape, weights = facts.shape(op), facts.shape(op, 1)
    if shape is None or weights is None:
        return [(facts.dtype(op), None)]
    spatial = _windows(op.attrs, shape[2:], facts.algebra)
    return [(facts.dtype(op), (shape[0], weights[0], *spatial))]


def _deconvolution(op: Op, facts: Facts) -> list[Found]:
    attrs = op.attrs
    assert isinstance(attrs, DeconvolutionAttrs)
    shape, weights = facts.shape(op), facts.shape(op, 1)
    if shape is None or weights is None:
        return [(facts.dtype(op), None)]
    channels = facts.algebra.multiply(weights[1], attrs.group)
    spatial: list[Dim] = list(attrs.output_shape)
    if not spatial and attrs.auto_pad in ("NOTSET", "VALID"):
        axes = len(attrs.kernel)
        for axis, dim in enumerate(shape[2:]):
            pads = attrs.pads[axis] + attrs.pads[axis + axes] if attrs.auto_pad == "NOTSET" else 0
            rest = attrs.dilations[axis] * (attrs.kernel[axis] - 1) + 1 - attrs.strides[axis] - pads
            grown = facts.algebra.multiply(dim, attrs.strides[axis])
            spatial.append(facts.algebra.add(grown, rest + attrs.output_padding[axis]))
    elif not spatial:
        spatial = [
            facts.algebra.multiply(dim, stride)
            for dim, stride in zip(shape[2:], attrs.strides, strict=True)
        ]
    return [(facts.dtype(op), (shape[0], channels, *spatial))]


def _pooling(op: Op, facts: Facts) -> list[Found]:
    attrs = op.attrs
    assert isinstance(attrs, PoolingAttrs)
    shape = facts.shape(op)
    if shape is not None and attrs.is_global:
        shape = (*shape[:2], *[1] * (len(shape) - 2))
    elif shape is not None:
        # With ceil_mode the last window must start before the end padding: that is not worked out.
        unknown = (None,) * (len(shape) - 2)
        windows = unknown if attrs.ceil_mode else _windows(attrs, shape[2:], facts.algebra)
        shape = (*shape[:2], *windows)
    return [(facts.dtype(op), shape), (DType.INT64, shape)]


def _matmul(op: Op, facts: Facts) -> list[Found]:
    attrs, a, b = op.attrs, facts.shape(op), facts.shape(op, 1)
    assert isinstance(attrs, MatMulAttrs)
    dtype = facts.dtype(op) or facts.dtype(op, 1)
    if a is None or b is None or not a or not b:
        return [(dtype, None)]
    rows = () if len(a) == 1 else (a[-1 if attrs.transpose_a else -2],)
    columns = () if len(b) == 1 else (b[-2 if attrs.transpose_b else -1],)
    batch = broadcast(facts, a[:-2], b[:-2])
    return [(dtype, None if batch is None else (*batch, *rows, *columns))]


def _layer_norm(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, LayerNormAttrs)
    dtype, shape = facts.dtype(op), facts.shape(op)
    if shape is None:
        return [(dtype, None)] * 3
    axis = op.attrs.axis % len(shape) if shape else 0
    reduced = (*shape[:axis], *[1] * (len(shape) - axis))
    return [(dtype, shape), (dtype, reduced), (dtype, reduced)]


def _attention(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, AttentionAttrs)
    q, v = facts.shape(op), facts.shape(op, 2)
    return [(facts.dtype(op), None if q is None or v is None else (*q[:-1], v[-1]))]


def _without(shape: Shape, axes: Sequence[int], *, keep: bool) -> Shape:
    dropped = {axis % len(shape) for axis in axes} if shape else set()
    if keep:
        return tuple(1 if axis in dropped else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in dropped)


def _reduction(op: Op, facts: Facts) -> list[Found]:
    attrs, shape = op.attrs, facts.shape(op)
    assert isinstance(attrs, ReductionAttrs)
    axes = () if is_absent(op, 1) else facts.ints(op, 1)
    if shape is None or axes is None:
        return [(facts.dtype(op), None)]
    if not axes and not attrs.noop_with_empty_axes:
        axes = tuple(range(len(shape)))
    return [(facts.dtype(op), _without(shape, axes, keep=attrs.keepdims))]


def _arg_reduce(op: Op, facts: Facts) -> list[Found]:
    attrs, shape = op.attrs, facts.shape(op)
    assert isinstance(attrs, ArgReduceAttrs)
    if shape is None:
        return [(DType.INT64, None)]
    return [(DType.INT64, _without(shape, (attrs.axis,), keep=attrs.keepdims))]


def _top_k(op: Op, facts: Facts) -> list[Found]:
    attrs, shape, k = op.attrs, facts.shape(op), facts.value(op, 1)
    assert isinstance(attrs, TopKAttrs)
    if shape is not None:
        shape = _with(shape, attrs.axis, k[0] if k else None)
    return [(facts.dtype(op), shape), (DType.INT64, shape)]


def _with(shape: Shape, axis: int, dim: Dim) -> Shape:
    changed = list(shape)
    changed[axis] = dim
    return tuple(changed)


def _gather(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, AxisAttrs)
    data, indices = facts.shape(op), facts.shape(op, 1)
    if data is None or indices is None or not data:
        return [(facts.dtype(op), None)]
    axis = op.attrs.axis % len(data)
    return [(facts.dtype(op), (*data[:axis], *indices, *data[axis + 1 :]))]


def _gather_elements(op: Op, facts: Facts) -> list[Found]:
    return [(facts.dtype(op), facts.shape(op, 1))]


def _transpose(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, TransposeAttrs)
    shape = facts.shape(op)
    if shape is not None:
        perm = op.attrs.perm or tuple(reversed(range(len(shape))))
        shape = tuple(shape[axis] for axis in perm)
    return [(facts.dtype(op), shape)]


def _reshape(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, ReshapeAttrs)
    shape, target = facts.shape(op), facts.value(op, 1)
    if target is None:
        length = facts.shape(op, 1)
        rank = length[0] if length else None
        if not isinstance(rank, int) or rank > MAX_RANK:
            return [(facts.dtype(op), None)]
        return [(facts.dtype(op), (None,) * rank)]
    dims: list[Dim] = list(target)
    if not op.attrs.allowzero:
        for axis, dim in enumerate(dims):
            if dim == 0:
                dims[axis] = shape[axis] if shape is not None and axis < len(shape) else None
    dims = [None if dim == -1 else dim for dim in dims]
    if dims.count(None) == 1 and shape is not None and 0 not in dims:
        algebra = facts.algebra
        given = algebra.product(tuple(dim for dim in dims if dim is not None))
        dims[dims.index(None)] = algebra.divide(algebra.product(shape), given)
    return [(facts.dtype(op), tuple(dims))]


def _flatten(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, AxisAttrs)
    shape, axis = facts.shape(op), op.attrs.axis
    if shape is None:
        return [(facts.dtype(op), (None, None))]
    axis = axis + len(shape) if axis < 0 else axis
    product = facts.algebra.product
    return [(facts.dtype(op), (product(shape[:axis]), product(shape[axis:])))]


def _squeeze(op: Op, facts: Facts) -> list[Found]:
    shape, axes = facts.shape(op), facts.ints(op, 1)
    if shape is None or (axes is None and not is_absent(op, 1)):
        return [(facts.dtype(op), None)]
    if axes is None:
        if not all(isinstance(dim, int) for dim in shape):
            return [(facts.dtype(op), None)]
        axes = tuple(axis for axis, dim in enumerate(shape) if dim == 1)
    return [(facts.dtype(op), _without(shape, axes, keep=False))]


def _unsqueeze(op: Op, facts: Facts) -> list[Found]:
    shape, axes = facts.shape(op), facts.ints(op, 1)
    if shape is None or axes is None:
        return [(facts.dtype(op), None)]
    rank = len(shape) + len(axes)
    added = {axis % rank for axis in axes}
    if len(added) != len(axes):
        return [(facts.dtype(op), None)]  # an axis occurs twice
    rest = iter(shape)
    return [(facts.dtype(op), tuple(1 if axis in added else next(rest) for axis in range(rank)))]


def _concat(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, AxisAttrs)
    shapes = [facts.shape(op, place) for place in range(len(op.inputs))]
    known = [shape for shape in shapes if shape]
    if not known:
        return [(facts.dtype(op), None)]
    axis = op.attrs.axis % len(known[0])
    total: Dim = 0
    for shape in shapes:
        total = facts.algebra.add(total, shape[axis] if shape else None)
    merged = [
        next((dim for dim in dims if isinstance(dim, int)), next(filter(None, dims), None))
        for dims in zip(*known, strict=True)
    ]
    return [(facts.dtype(op), _with(tuple(merged), axis, total))]


def _split(op: Op, facts: Facts) -> list[Found]:
    attrs, shape = op.attrs, facts.shape(op)
    assert isinstance(attrs, SplitAttrs)
    count = len(op.outputs)
    if shape is None:
        return [(facts.dtype(op), None)] * count
    sizes: Sequence[Dim] | None = facts.value(op, 1)
    if sizes is None:
        dim = shape[attrs.axis]
        if is_absent(op, 1) and isinstance(dim, int):
            part = -(-dim // count)
            sizes = [min(part, max(dim - number * part, 0)) for number in range(count)]
        else:
            sizes = [None] * count
    return [(facts.dtype(op), _with(shape, attrs.axis, size)) for size in sizes]


def slice_bounds(op: Op, facts: Facts, rank: int) -> dict[int, tuple[Dim, Dim, int]] | None:
    """Return (start, end, step) by axis; None when axes or steps are not known."""
    starts, ends = facts.value(op, 1), facts.value(op, 2)
    if starts is None or ends is None:
        return None
    axes = tuple(range(len(starts))) if is_absent(op, 3) else facts.ints(op, 3)
    steps = (1,) * len(starts) if is_absent(op, 4) else facts.ints(op, 4)
    if axes is None or steps is None:
        return None
    places = [axis % rank for axis in axes]
    return dict(zip(places, zip(starts, ends, steps, strict=True), strict=True))


def _slice(op: Op, facts: Facts) -> list[Found]:
    shape = facts.shape(op)
    bounds = slice_bounds(op, facts, len(shape)) if shape else None
    if shape is None:
        return [(facts.dtype(op), None)]
    if bounds is None:
        axes = facts.ints(op, 3) if not is_absent(op, 3) else None
        touched = range(len(shape)) if axes is None else [axis % len(shape) for axis in axes]
        return [(facts.dtype(op), tuple(None if a in touched else d for a, d in enumerate(shape)))]
    dims = list(shape)
    for axis, (start, end, step) in bounds.items():
        dims[axis] = _slice_dim(shape[axis], start, end, step, facts.algebra)
    return [(facts.dtype(op), tuple(dims))]


def _slice_dim(dim: Dim, start: Dim, end: Dim, step: int, algebra: DimAlgebra) -> Dim:
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int):
        stop = None if step < 0 and end < -dim else end
        return len(range(*slice(start, stop, step).indices(dim)))
    if start != 0 or step != 1:
        return None
    if end == dim or (isinstance(end, int) and end >= 2**31 - 1):
        return dim
    if isinstance(dim, int) and isinstance(end, str):
        return algebra.minimum(dim, end)
    return None


def _pad(op: Op, facts: Facts) -> list[Found]:
    shape, pads = facts.shape(op), facts.value(op, 1)
    if shape is None:
        return [(facts.dtype(op), None)]
    axes = tuple(range(len(shape))) if is_absent(op, 3) else facts.ints(op, 3)
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return [(facts.dtype(op), (None,) * len(shape))]
    dims, add = list(shape), facts.algebra.add
    for place, axis in enumerate(axes):
        dims[axis] = add(dims[axis], add(pads[place], pads[place + len(axes)]))
    return [(facts.dtype(op), tuple(dims))]


def _expand(op: Op, facts: Facts) -> list[Found]:
    return [(facts.dtype(op), broadcast(facts, facts.shape(op), facts.value(op, 1)))]


def _tile(op: Op, facts: Facts) -> list[Found]:
    shape, repeats = facts.shape(op), facts.value(op, 1)
    if shape is None or repeats is None or len(shape) != len(repeats):
        return [(facts.dtype(op), None)]
    return [(facts.dtype(op), tuple(map(facts.algebra.multiply, shape, repeats)))]


def _depth_to_space(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, BlockAttrs)
    shape, block = facts.shape(op), op.attrs.block_size
    if shape is not None:
        channels = facts.algebra.divide(shape[1], block**2)
        rest = (facts.algebra.multiply(dim, block) for dim in shape[2:])
        shape = (shape[0], channels, *rest)
    return [(facts.dtype(op), shape)]


def _space_to_depth(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, BlockAttrs)
    shape, block = facts.shape(op), op.attrs.block_size
    if shape is not None:
        channels = facts.algebra.multiply(shape[1], block**2)
        rest = (facts.algebra.floor_divide(dim, block) for dim in shape[2:])
        shape = (shape[0], channels, *rest)
    return [(facts.dtype(op), shape)]


def _shape(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, ShapeAttrs)
    shape = facts.shape(op)
    rank = None if shape is None else len(shape[op.attrs.start : op.attrs.end])
    return [(DType.INT64, (rank,))]


def _size(op: Op, facts: Facts) -> list[Found]:
    return [(DType.INT64, ())]


def _constant_of_shape(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, ConstantOfShapeAttrs)
    return [(op.attrs.dtype, facts.value(op, 0))]


def _interp(op: Op, facts: Facts) -> list[Found]:
    assert isinstance(op.attrs, InterpAttrs)
    shape, sizes = facts.shape(op), facts.value(op, 3)
    if shape is None:
        return [(facts.dtype(op), None)]
    axes = op.attrs.axes or tuple(range(len(shape)))
    if is_absent(op, 3) and not is_absent(op, 2) and op.inputs[2] in facts.constants:
        scales = [float(scale) for scale in facts.constants[op.inputs[2]].flat]
        if all(scale == int(scale) for scale in scales):
            pairs = zip(axes, scales, strict=False)
            sizes = tuple(facts.algebra.multiply(shape[axis], int(scale)) for axis, scale in pairs)
    if op.attrs.keep_aspect_ratio_policy != "stretch" or sizes is None or len(sizes) != len(axes):
        sizes = (None,) * len(axes)
    dims = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        dims[axis] = size
    return [(facts.dtype(op), tuple(dims))]


SHAPE_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "Identity",
            "Softmax",
            "GroupNorm",
            "Scale",
            "LRN",
            "Trilu",
            "CumSum",
            "ScatterND",
            "ScatterElements",
        ),
        _like_first,
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_reduce),
    "Attention": _attention,
    "BinaryOp": _binary,
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Interp": _interp,
    "LayerNorm": _layer_norm,
    "MatMul": _matmul,
    "Pad": _pad,
    "Pooling": _pooling,
    "Reduction": _reduction,
    "Reshape": _reshape,
    "Select": _select,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _top_k,
    "Transpose": _transpose,
    "UnaryOp": _unary,
    "Unsqueeze": _unsqueeze,
}
