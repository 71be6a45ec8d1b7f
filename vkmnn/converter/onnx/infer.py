"""What follows from an op about its outputs: element types, ranks, and the sizes that are plain.

Converters need element types and ranks before any shape is known. onnx's own inference would say
them too, but it is native code that trusts its input and can take the process down with a hostile
model. The real shapes are computed later, from the shapes of the inputs; this only has to be true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkmnn.errors import VkmnnError
from vkmnn.ir import Array, Dim, DType, Op, TensorInfo
from vkmnn.ir.ops import (
    COMPARISON_KINDS,
    ArgReduceAttrs,
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    ConstantOfShapeAttrs,
    EinsumAttrs,
    GatherNDAttrs,
    LayerNormAttrs,
    MatMulAttrs,
    PoolingAttrs,
    ReductionAttrs,
    ShapeAttrs,
    TransposeAttrs,
    UnaryAttrs,
)
from vkmnn.shape import compute_shapes

Shape = tuple[Dim, ...]
Known = tuple[DType, Shape | None]
Infos = Sequence[TensorInfo | None]
Values = Sequence[Array | None]
Rule = Callable[[Op, Infos, Values], list[Known]]


_MAX_RANK = 64


class _UnknownError(Exception):
    """An input that the rule needs is not known."""


def infer_outputs(op: Op, infos: Infos, values: Values) -> list[TensorInfo]:
    """Return what is known of the op's outputs; empty when nothing is.

    Args:
        op: any op of the vocabulary.
        infos: what is known of its inputs.
        values: those inputs that are constants.
    """
    try:
        known = _RULES.get(op.type, _by_shape_computer)(op, infos, values)
    except (_UnknownError, VkmnnError, ArithmeticError, LookupError, TypeError, ValueError):
        return []  # a wrong model; shape computation will say what is wrong with it
    return [
        TensorInfo(name, dtype, shape)
        for name, (dtype, shape) in zip(op.outputs, known, strict=False)
        if name
    ]


def merge_shapes(ours: Shape | None, theirs: Shape | None) -> Shape | None:
    """Fill what one shape leaves open from another of the same tensor; the first is right."""
    if ours is None or theirs is None or len(ours) != len(theirs):
        return theirs if ours is None else ours
    return tuple(b if a is None else a for a, b in zip(ours, theirs, strict=True))


# --- access ------------------------------------------------------------------------------------


def _info(infos: Infos, index: int) -> TensorInfo:
    info = infos[index] if index < len(infos) else None
    if info is None:
        raise _UnknownError
    return info


def _shape(infos: Infos, index: int) -> Shape | None:
    info = infos[index] if index < len(infos) else None
    return None if info is None else info.shape


def _open(shape: Shape | None, *axes: int) -> Shape | None:
    """Return the shape with these axes unknown; all of them when none is given."""
    if shape is None:
        return None
    opened = {axis % len(shape) for axis in axes} if axes else set(range(len(shape)))
    return tuple(None if axis in opened else dim for axis, dim in enumerate(shape))


def _unknown_dims(rank: Dim) -> Shape | None:
    # The rank may be the length of an input, which a hostile model can claim to be anything.
    return (None,) * rank if isinstance(rank, int) and rank <= _MAX_RANK else None


def _dims(value: Array | None) -> Shape | None:
    """Return a constant that holds a shape; negative sizes are unknown."""
    if value is None:
        return None
    return tuple(int(dim) if dim >= 0 else None for dim in value.reshape(-1).tolist())


def _broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    rank = max((len(shape) for shape in known), default=0)
    return tuple(
        _common([shape[axis - rank] for shape in known if axis >= rank - len(shape)])
        for axis in range(rank)
    )


def _common(dims: Sequence[Dim]) -> Dim:
    sizes = {dim for dim in dims if dim != 1}
    fixed = {dim for dim in sizes if isinstance(dim, int)}
    if not sizes:
        return 1
    if fixed:
        return fixed.pop()
    return sizes.pop() if len(sizes) == 1 else None


# --- rules -------------------------------------------------------------------------------------


def _like_input(op: Op, infos: Infos, values: Values) -> list[Known]:
    info = _info(infos, 0)
    return [(info.dtype, info.shape)]


def _same_rank(op: Op, infos: Infos, values: Values) -> list[Known]:
    info = _info(infos, 0)
    return [(info.dtype, _open(info.shape))] * len(op.outputs)


def _windows(op: Op, infos: Infos, values: Values) -> list[Known]:
    info = _info(infos, 0)
    weight = _shape(infos, 1)
    channels = weight[0] if op.type == "Convolution" and weight else None
    shape = _open(info.shape)
    if info.shape is not None and shape is not None:
        shape = (info.shape[0], channels, *shape[2:])
    return [(info.dtype, shape)]


def _pooling(op: Op, infos: Infos, values: Values) -> list[Known]:
    attrs = op.attrs
    info = _info(infos, 0)
    if info.shape is None or not isinstance(attrs, PoolingAttrs):
        return [(info.dtype, None), (DType.INT64, None)]
    spatial: Dim = 1 if attrs.is_global else None
    shape = (*info.shape[:2], *(spatial,) * (len(info.shape) - 2))
    return [(info.dtype, shape), (DType.INT64, shape)]


def _unary(op: Op, infos: Infos, values: Values) -> list[Known]:
    info = _info(infos, 0)
    is_test = isinstance(op.attrs, UnaryAttrs) and op.attrs.kind in ("ISNAN", "ISINF", "NOT")
    return [(DType.BOOL if is_test else info.dtype, info.shape)]


def _binary(op: Op, infos: Infos, values: Values) -> list[Known]:
    info = _info(infos, 0)
    is_test = isinstance(op.attrs, BinaryAttrs) and op.attrs.kind in COMPARISON_KINDS
    shape = _broadcast([info.shape, _shape(infos, 1)])
    return [(DType.BOOL if is_test else info.dtype, shape)]


def _select(op: Op, infos: Infos, values: Values) -> list[Known]:
    branch = infos[1] or _info(infos, 2)
    return [(branch.dtype, _broadcast([_shape(infos, index) for index in range(3)]))]


def _cast(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, CastAttrs)
    return [(op.attrs.to, _shape(infos, 0))]


def _matmul(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, MatMulAttrs)
    a, b = _info(infos, 0), _shape(infos, 1)
    if a.shape is None or b is None or len(a.shape) < 2 or len(b) < 2:
        return [(a.dtype, None)]
    batch = _broadcast([a.shape[:-2], b[:-2]])
    rows = a.shape[-1 if op.attrs.transpose_a else -2]
    columns = b[-2 if op.attrs.transpose_b else -1]
    return [(a.dtype, None if batch is None else (*batch, rows, columns))]


def _attention(op: Op, infos: Infos, values: Values) -> list[Known]:
    q, v = _info(infos, 0), _shape(infos, 2)
    return [(q.dtype, None if q.shape is None or v is None else (*q.shape[:-1], v[-1]))]


def _einsum(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, EinsumAttrs)
    _, arrow, result = op.attrs.equation.replace(" ", "").partition("->")
    plain = arrow and "." not in op.attrs.equation
    return [(_info(infos, 0).dtype, _unknown_dims(len(result)) if plain else None)]


def _reduction(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, ReductionAttrs)
    info = _info(infos, 0)
    given = len(op.inputs) > 1 and bool(op.inputs[1])
    axes = values[1] if given else np.zeros(0, np.int64)
    if info.shape is None:
        return [(info.dtype, None)]
    if axes is None:
        return [(info.dtype, _open(info.shape) if op.attrs.keepdims else None)]
    rank = len(info.shape)
    listed = {int(axis) % rank for axis in axes.reshape(-1)}
    if not listed and not op.attrs.noop_with_empty_axes:
        listed = set(range(rank))
    return [(info.dtype, _without(info.shape, listed, op.attrs.keepdims))]


def _without(shape: Shape, axes: set[int], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def _arg_reduce(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, ArgReduceAttrs)
    shape = _shape(infos, 0)
    if shape is None:
        return [(DType.INT64, None)]
    axes = {op.attrs.axis % len(shape)}
    return [(DType.INT64, _without(shape, axes, op.attrs.keepdims))]


def _top_k(op: Op, infos: Infos, values: Values) -> list[Known]:
    info = _info(infos, 0)
    shape = _open(info.shape)
    return [(info.dtype, shape), (DType.INT64, shape)]


def _layer_norm(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, LayerNormAttrs)
    info = _info(infos, 0)
    statistics: Known = (info.dtype, None)
    if info.shape is not None:
        axis = op.attrs.axis % len(info.shape)
        kept = tuple(dim if index < axis else 1 for index, dim in enumerate(info.shape))
        statistics = (info.dtype, kept)
    return [(info.dtype, info.shape), statistics, statistics]


def _grid_sample(op: Op, infos: Infos, values: Values) -> list[Known]:
    info = _info(infos, 0)
    grid = _shape(infos, 1)
    if info.shape is None or grid is None:
        return [(info.dtype, None)]
    return [(info.dtype, (*info.shape[:2], *grid[1:-1]))]


def _gather(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, AxisAttrs)
    info = _info(infos, 0)
    indices = _shape(infos, 1)
    if info.shape is None or indices is None:
        return [(info.dtype, None)]
    axis = op.attrs.axis % len(info.shape)
    return [(info.dtype, (*info.shape[:axis], *indices, *info.shape[axis + 1 :]))]


def _gather_elements(op: Op, infos: Infos, values: Values) -> list[Known]:
    return [(_info(infos, 0).dtype, _shape(infos, 1))]


def _gather_nd(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, GatherNDAttrs)
    info = _info(infos, 0)
    indices = _shape(infos, 1)
    if info.shape is None or not indices or not isinstance(indices[-1], int):
        return [(info.dtype, None)]
    return [(info.dtype, (*indices[:-1], *info.shape[op.attrs.batch_dims + indices[-1] :]))]


def _one_hot(op: Op, infos: Infos, values: Values) -> list[Known]:
    indices = _shape(infos, 0)
    rank = None if indices is None else len(indices) + 1
    return [(_info(infos, 2).dtype, _unknown_dims(rank))]


def _transpose(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, TransposeAttrs)
    info = _info(infos, 0)
    if info.shape is None:
        return [(info.dtype, None)]
    perm = op.attrs.perm or range(len(info.shape))[::-1]
    return [(info.dtype, tuple(info.shape[axis] for axis in perm))]


def _to_shape(op: Op, infos: Infos, values: Values) -> list[Known]:
    """Reshape: the rank is the length of the shape; a size of 0 means another one."""
    info = _info(infos, 0)
    dims = _dims(values[1])
    if dims is not None:
        return [(info.dtype, tuple(dim or None for dim in dims))]
    length = _shape(infos, 1)
    return [(info.dtype, _unknown_dims(length[0]) if length else None)]


def _expand(op: Op, infos: Infos, values: Values) -> list[Known]:
    info = _info(infos, 0)
    target = _dims(values[1])
    length = _shape(infos, 1)
    if target is None and length:
        target = _unknown_dims(length[0])
    return [(info.dtype, _broadcast([info.shape, target]))]


def _flatten(op: Op, infos: Infos, values: Values) -> list[Known]:
    return [(_info(infos, 0).dtype, (None, None))]


def _squeeze(op: Op, infos: Infos, values: Values) -> list[Known]:
    info = _info(infos, 0)
    axes = values[1] if len(values) > 1 else None
    if info.shape is None or axes is None:
        return [(info.dtype, None)]
    gone = {int(axis) % len(info.shape) for axis in axes.reshape(-1)}
    return [(info.dtype, _without(info.shape, gone, False))]


def _unsqueeze(op: Op, infos: Infos, values: Values) -> list[Known]:
    info = _info(infos, 0)
    axes = values[1]
    if info.shape is None or axes is None:
        return [(info.dtype, None)]
    rank = len(info.shape) + axes.size
    new = {int(axis) % rank for axis in axes.reshape(-1)}
    if len(new) != axes.size:
        return [(info.dtype, None)]  # an axis occurs twice
    dims = iter(info.shape)
    return [(info.dtype, tuple(1 if axis in new else next(dims) for axis in range(rank)))]


def _concat(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, AxisAttrs)
    known = [info for info in infos if info is not None]
    if not known:
        raise _UnknownError
    shapes = [info.shape for info in known if info.shape is not None]
    if not shapes:
        return [(known[0].dtype, None)]
    axis = op.attrs.axis % len(shapes[0])
    dims = [shape[axis] for shape in shapes]
    shape = _open(shapes[0], axis)
    sizes = [dim for dim in dims if isinstance(dim, int)]
    if shape is not None and len(sizes) == len(infos):
        shape = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
    return [(known[0].dtype, shape)]


def _shape_of(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, ShapeAttrs)
    shape = _shape(infos, 0)
    length = None if shape is None else len(shape[op.attrs.start : op.attrs.end])
    return [(DType.INT64, (length,))]


def _size_of(op: Op, infos: Infos, values: Values) -> list[Known]:
    return [(DType.INT64, ())]


def _range(op: Op, infos: Infos, values: Values) -> list[Known]:
    return [(_info(infos, 0).dtype, (None,))]


def _filled(op: Op, infos: Infos, values: Values) -> list[Known]:
    assert isinstance(op.attrs, ConstantOfShapeAttrs)
    dims = _dims(values[0])
    if dims is None:
        length = _shape(infos, 0)
        dims = _unknown_dims(length[0]) if length else None
    return [(op.attrs.dtype, dims)]


# Stands for every unknown size when a shape computer is asked for the rank.
_ANY_SIZE = 4096


def _by_shape_computer(op: Op, infos: Infos, values: Values) -> list[Known]:
    """An op of a plug-in: exact where the inputs are static, else its type and rank."""
    given: list[TensorInfo | None] = []
    for name, info in zip(op.inputs, infos, strict=True):
        if info is None or info.shape is None:
            if name:
                raise _UnknownError
            given.append(None)
        else:
            dims = (dim if isinstance(dim, int) else _ANY_SIZE for dim in info.shape)
            given.append(replace(info, shape=tuple(dims)))
    exact = all(info is None or info.is_static for info in infos)
    made = compute_shapes(op, given, values)
    return [(info.dtype, info.shape if exact else _open(info.shape)) for info in made]


_RULES: Mapping[str, Rule] = {
    "ArgMax": _arg_reduce,
    "ArgMin": _arg_reduce,
    "Attention": _attention,
    "BinaryOp": _binary,
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Convolution": _windows,
    "CumSum": _like_input,
    "Deconvolution": _windows,
    "DepthToSpace": _same_rank,
    "Einsum": _einsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "GridSample": _grid_sample,
    "GroupNorm": _like_input,
    "Identity": _like_input,
    "Interp": _same_rank,
    "LRN": _like_input,
    "LayerNorm": _layer_norm,
    "MatMul": _matmul,
    "OneHot": _one_hot,
    "Pad": _same_rank,
    "Pooling": _pooling,
    "Range": _range,
    "Reduction": _reduction,
    "Reshape": _to_shape,
    "Scale": _like_input,
    "ScatterElements": _like_input,
    "ScatterND": _like_input,
    "Select": _select,
    "Shape": _shape_of,
    "Size": _size_of,
    "Slice": _same_rank,
    "Softmax": _like_input,
    "SpaceToDepth": _same_rank,
    "Split": _same_rank,
    "Squeeze": _squeeze,
    "Tile": _same_rank,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Trilu": _like_input,
    "UnaryOp": _unary,
    "Unsqueeze": _unsqueeze,
}
