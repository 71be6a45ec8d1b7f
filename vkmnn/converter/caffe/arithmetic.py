"""Functions of several tensors, reductions, and constants."""

from __future__ import annotations

from functools import reduce
from math import prod

from vkmnn.converter.caffe.nodes import CaffeLayer, reads
from vkmnn.converter.nodes import FLOAT

_ELTWISE = ("Mul", "Add", "Max")
_SUM = 1
_MOST_ELEMENTS = 1 << 28


@reads("Eltwise")
def eltwise(op: CaffeLayer) -> None:
    """Products, sums with factors, or maxima of any number of tensors."""
    op.need(1)
    by, terms = op.proto.eltwise_param, list(op.inputs)
    if by.coeff:
        if len(by.coeff) != len(terms) or by.operation != _SUM:
            raise op.damaged(f"{len(by.coeff)} factors for {len(terms)} inputs")
        terms = [op.scaled(term, by.coeff[number]) for number, term in enumerate(terms)]
    kind = _ELTWISE[by.operation]
    op.finish("Identity", reduce(lambda one, other: op.make(kind, one, other), terms))


@reads("Axpy")
def axpy(op: CaffeLayer) -> None:
    """A tensor times a factor per channel, plus another tensor."""
    op.need(3)
    factor, x, y = op.inputs[:3]
    if len(op.sizes(factor)) == 2:
        factor = op.make("Unsqueeze", factor, op.constant([2, 3]))
    op.finish("Add", op.make("Mul", factor, x), y)


@reads("Reduction")
def reduction(op: CaffeLayer) -> None:
    """A sum or a mean over all axes from one on, times a factor."""
    op.need(1)
    by, x = op.proto.reduction_param, op.inputs[0]
    rank = op.known_rank()
    axes = op.constant(list(range(op.axis(by.axis, rank), rank)))
    kinds = {1: "ReduceSum", 2: "ReduceL1", 3: "ReduceSumSquare", 4: "ReduceMean"}
    found = op.make(kinds[by.operation], x, axes, keepdims=0)
    op.finish("Identity", op.scaled(found, by.coeff))


@reads("ArgMax")
def argmax(op: CaffeLayer) -> None:
    """Indices of the largest elements, or the elements with their indices, as floats."""
    op.need(1)
    by, x, rank = op.proto.argmax_param, op.inputs[0], op.known_rank()
    along = by.HasField("axis")
    axis = op.axis(by.axis, rank) if along else 1
    if not along:
        x = op.make("Flatten", x, axis=1)
    names = [op.scope.fresh(op.name) for _ in range(2)]
    op.scope.emit("TopK", [x, op.constant([by.top_k])], names, op.name, axis=axis)
    values, places = names
    op.scope.types[places] = 7
    places = op.cast(places, FLOAT)
    if along:
        op.finish("Identity", values if by.out_max_val else places)
        return
    rows = [places, values] if by.out_max_val else [places]
    apart = [op.make("Unsqueeze", row, op.constant([1])) for row in rows]
    op.finish("Concat", *apart, axis=1)


@reads("DummyData")
def dummy_data(op: CaffeLayer) -> None:
    """Constants of one value."""
    op.need(0)
    data = op.proto.dummy_data_param
    shapes = [list(shape.dim) for shape in data.shape] or [
        list(shape) for shape in zip(data.num, data.channels, data.height, data.width, strict=False)
    ]
    for number, name in enumerate(op.outputs):
        fillers = data.data_filler
        filler = fillers[number if len(fillers) > 1 else 0] if fillers else None
        if filler is not None and filler.type != "constant":
            raise op.unreadable(f"data of the filler {filler.type}")
        if not shapes or (len(shapes) > 1 and number >= len(shapes)):
            raise op.damaged("it does not state the shapes of its outputs")
        shape = shapes[number if len(shapes) > 1 else 0]
        if min(shape, default=1) < 1 or prod(shape) > _MOST_ELEMENTS or len(shape) > 32:
            raise op.damaged(f"an output of shape {shape}")
        value = op.number(filler.value if filler is not None else 0)
        op.scope.emit("Expand", [value, op.constant(shape)], [name], op.name)


@reads("Parameter")
def parameter(op: CaffeLayer) -> None:
    """Weights as a tensor."""
    op.need(0)
    shape = list(op.proto.parameter_param.shape.dim)
    op.scope.emit("Identity", [op.weight(0, shape, "values")], op.outputs[:1], op.name)
