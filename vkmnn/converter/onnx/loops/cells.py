"""The body of a loop as formulas: linear forms of its state and input, their products and sums.

`Formulas` visits the nodes of a body once. A value is one of

| class | stands for |
|---|---|
| an array | a constant |
| `Outer` | a tensor of the graph around the loop |
| `Count` | the iteration number plus a constant |
| `Bound` | a condition: the count stays below limits |
| `Row` | a slice of an outer tensor at the count |
| `Linear` | products of rows or states with constant matrices, and a bias |
| `Sum` | a sum of products of states, rows, linear forms, and their activations |
| `Side` | several of these, concatenated |
| `Lifted` | one of these with an axis more |
| `Buffer`, `Stored` | a carried tensor of rows, and the same with a new row |

or None, if it has none of these forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vkmnn.converter.onnx.schema import check_node, find_schema
from vkmnn.converter.onnx.source import SourceNode
from vkmnn.errors import ModelError
from vkmnn.ir import Array

Matrix = npt.NDArray[Any]

if TYPE_CHECKING:
    import onnx

Atom = tuple[Any, ...]
"""("h", number of a carried value), ("x", source, axis, offset), ("l", number of a linear form), or
(activation, number of its argument)."""
Product = tuple[Atom, ...]

_MAX_TERMS = 6
_MAX_CONSTANT = 1 << 24
_ACTIVATIONS = {"Sigmoid", "Tanh", "Relu"}
_SHAPES = {"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"}
# Of TensorProto.DataType. A count that is cast to floats may meet a fractional limit.
_FLOAT = 1
_WHOLE = {6, 7, 9}  # int32, int64, bool
_MIRRORED = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}


@dataclass(frozen=True, slots=True)
class Outer:
    """A tensor of the graph around the loop."""

    name: str


@dataclass(frozen=True, slots=True)
class Count:
    """The iteration number, from 0, plus `offset`; it has `rank` axes of size 1."""

    offset: int
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """The condition that the count plus each offset is below the paired limit."""

    limits: tuple[tuple[int | str, int], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """The slice of an outer tensor at the count plus `offset` along `axis`."""

    source: str
    axis: int
    offset: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Linear:
    """Σ product · matrix + bias."""

    terms: Mapping[Product, Matrix]
    bias: Matrix


@dataclass(frozen=True, slots=True)
class Sum:
    """Σ factor · product; the empty product is a constant."""

    terms: Mapping[Product, float]


@dataclass(frozen=True, slots=True)
class Lifted:
    """A sum with an additional axis of size 1, at `axis`."""

    value: Sum
    axis: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """A carried value with three axes, by its number."""

    place: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A buffer with a new row: at the count plus `offset`, or at the end of `axis` (None)."""

    place: int
    value: Sum
    axis: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Side:
    """Sums concatenated along the last axis."""

    parts: tuple[Sum, ...]


Formula = Any  # one of the above, an array, or None


def atom(*parts: Any) -> Sum:
    """Return the sum that consists of one atom."""
    return Sum({(parts,): 1.0})


@dataclass(slots=True)
class Formulas:
    """The values of a body.

    Attributes:
        value: returns a constant of the graph around the loop, None for other tensors.
        shape: returns the shape of a tensor there, as far as it is known.
        widths: known columns of the carried values, by their numbers.
        opsets: the versions of the body's operator sets, by domain.
        names: values by name.
        arguments: the arguments of activations, by number.
        linears: the linear forms in sums, by number.
    """

    value: Callable[[str], Array | None]
    shape: Callable[[str], Sequence[Any] | None]
    widths: Mapping[int, int]
    opsets: Mapping[str, int]
    names: dict[str, Formula] = field(default_factory=dict)
    arguments: list[Formula] = field(default_factory=list)
    linears: list[Linear] = field(default_factory=list)

    def read(self, body: onnx.GraphProto) -> None:
        """Compute the values of a body, whose inputs have values already."""
        from onnx import numpy_helper

        for tensor in body.initializer:
            self.names[tensor.name] = numpy_helper.to_array(tensor)
        for node in body.node:
            results = self._node(node)
            for name, result in zip(node.output, results, strict=False):
                self.names[name] = result

    def get(self, name: str) -> Formula:
        """Return the value of a name in the body, or in the graph around the loop."""
        if name not in self.names:
            constant = self.value(name) if name else None
            self.names[name] = (Outer(name) if name else None) if constant is None else constant
        return self.names[name]

    # --- nodes -----------------------------------------------------------------------------------

    def _node(self, node: onnx.NodeProto) -> Sequence[Formula]:
        attributes = {one.name: one for one in node.attribute}
        given = [self.get(name) for name in node.input]
        constant = all(
            isinstance(one, np.ndarray) or name == ""
            for one, name in zip(given, node.input, strict=True)
        )
        if constant and not any(one.g.node for one in node.attribute):
            return self._constants(node, given)
        rule = _RULES.get("Shape" if node.op_type in _SHAPES else node.op_type)
        if rule is None or node.domain not in ("", "ai.onnx") or not self._is_valid(node):
            return ()
        made = rule(self, node, given, attributes)
        return made if isinstance(made, list) else [made]

    def _is_valid(self, node: onnx.NodeProto) -> bool:
        source = SourceNode(node, node.name, self.opsets, node.name)
        try:
            check_node(source, find_schema(source))
        except ModelError:  # the loop's own conversion reports it
            return False
        return True

    def _constants(self, node: onnx.NodeProto, given: Sequence[Formula]) -> Sequence[Formula]:
        """Return the results of a node whose inputs are constants."""
        from onnx import TypeProto, helper
        from onnx.reference import ReferenceEvaluator

        if sum(one.size for one in given if one is not None) > _MAX_CONSTANT:
            return ()
        feeds = {name: one for name, one in zip(node.input, given, strict=True) if name}
        graph = helper.make_graph(
            [node],
            "constant",
            [helper.make_value_info(name, TypeProto()) for name in feeds],
            [helper.make_value_info(name, TypeProto()) for name in node.output if name],
        )
        opsets = [helper.make_opsetid(domain, one) for domain, one in self.opsets.items()]
        try:
            model = helper.make_model(graph, opset_imports=opsets)
            found = iter(ReferenceEvaluator(model).run(None, feeds))
        except Exception:  # noqa: BLE001 - the evaluator may raise anything
            return ()
        return [np.asarray(next(found)) if name else None for name in node.output]

    # --- values ----------------------------------------------------------------------------------

    def as_sum(self, value: Formula) -> Sum | None:
        """Return a value as a sum; None if it is not one."""
        if isinstance(value, Sum):
            return value
        if isinstance(value, Linear):
            place = next((i for i, one in enumerate(self.linears) if one is value), None)
            if place is None:
                place = len(self.linears)
                self.linears.append(value)
            return atom("l", place)
        if isinstance(value, Row) and not value.kept:
            return atom("x", value.source, value.axis, value.offset)
        if isinstance(value, np.ndarray) and value.size == 1:
            return Sum({(): float(value.reshape(-1)[0])})
        return None

    def width(self, part: Sum) -> int | None:
        """Return the number of columns of a state or a row; None if it is unknown."""
        if len(part.terms) != 1 or len(next(iter(part.terms))) != 1:
            return None
        ((one,),) = part.terms
        if one[0] == "h":
            return self.widths.get(one[1])
        shape = self.shape(one[1]) if one[0] == "x" else None
        size = shape[2] if shape is not None and len(shape) == 3 else None
        return size if isinstance(size, int) else None


# --- rules ---------------------------------------------------------------------------------------

_Rule = Callable[["Formulas", "onnx.NodeProto", list[Any], dict[str, Any]], Formula]


def _shape(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    """Reshape counts and scalars; remove the axis of a row along which it was sliced."""
    value, op = given[0], node.op_type
    if op == "Identity":
        return value
    if op == "Cast":
        kind = attributes["to"].i
        floats = kind == _FLOAT and isinstance(value, Linear | Sum | Row)
        return value if floats or (kind in _WHOLE and _is_scalar(f, value)) else None
    if isinstance(value, Count):
        target = given[1] if len(given) > 1 and isinstance(given[1], np.ndarray) else None
        if op == "Reshape":
            return None if target is None else Count(value.offset, target.size)
        more = _axes(given, attributes)
        if op == "Unsqueeze":
            return None if more is None else Count(value.offset, value.rank + len(more))
        return Count(value.offset, 0 if more is None else value.rank - len(more))
    if op == "Unsqueeze":
        whole, at = f.as_sum(value), _axes(given, attributes)
        return Lifted(whole, at[0]) if whole is not None and at in ([0], [1]) else None
    if _is_scalar(f, value):
        return value
    if op == "Reshape" and isinstance(value, Linear | Sum):
        return _reshaped(f, value, given[1])
    if not isinstance(value, Row) or not value.kept:
        return None
    shape, axes = f.shape(value.source) or (), given[1] if len(given) > 1 else None
    if op == "Squeeze":
        named = _axes(given, attributes)
        gone = named is not None and [one % len(shape) for one in named] == [value.axis]
    else:
        sizes = axes.tolist() if isinstance(axes, np.ndarray) and op == "Reshape" else []
        gone = sizes in ([-1, shape[2]], [shape[1 - value.axis], shape[2]])
    return Row(value.source, value.axis, value.offset, False) if gone else None


def _reshaped(f: Formulas, value: Linear | Sum, target: Formula) -> Formula:
    """Return rows in the shape that they have, without the axis of a single one, or lifted."""
    sizes = target.tolist() if isinstance(target, np.ndarray) else []
    if isinstance(value, Linear):
        return value if sizes in ([value.bias.size], [-1, value.bias.size]) else None
    lifted = len(sizes) == 3 and sizes[0] == 1 and sizes[2] in f.widths.values()
    return Lifted(value, 0) if lifted else None


def _axes(given: list[Any], attributes: Any) -> list[int] | None:
    """Return the axes of Squeeze or Unsqueeze; None if it has none, or computes them."""
    if "axes" in attributes:
        return list(attributes["axes"].ints)
    named = given[1] if len(given) > 1 else None
    return [int(one) for one in named.reshape(-1)] if isinstance(named, np.ndarray) else None


def _is_scalar(f: Formulas, value: Formula) -> bool:
    """Return whether a value is a scalar: a count, a condition, or an outer tensor of size 1."""
    if not isinstance(value, Outer):
        return isinstance(value, Count | Bound)
    shape = f.shape(value.name)
    return shape is not None and all(size == 1 for size in shape)


def _gather(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    """Return the row of an outer tensor at the count."""
    source, at = given[:2]
    shape = f.shape(source.name) if isinstance(source, Outer) else None
    axis = attributes["axis"].i if "axis" in attributes else 0
    if not isinstance(at, Count) or shape is None or len(shape) != 3 or axis % 3 == 2:
        return None
    return Row(source.name, axis % 3, at.offset, at.rank > 0) if at.rank < 2 else None


def _slice(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    """Return the row of an outer tensor from the count to the next one, with its axis."""
    if len(given) < 4:
        return None
    source, begin, end, axes = given[:4]
    shape = f.shape(source.name) if isinstance(source, Outer) else None
    steps = [one for one in given[4:] if one is not None]
    plain = all(isinstance(one, np.ndarray) and (one == 1).all() for one in steps)
    if shape is None or len(shape) != 3 or not plain or not isinstance(axes, np.ndarray):
        return None
    if not isinstance(begin, Count) or not isinstance(end, Count) or axes.size != 1:
        return None
    if end.offset != begin.offset + 1:
        return None
    axis = int(axes.reshape(-1)[0]) % 3
    return None if axis == 2 else Row(source.name, axis, begin.offset, True)


def _product(f: Formulas, value: Formula, matrix: Formula) -> Linear | None:
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.dtype.kind != "f":
        return None
    zero = np.zeros(matrix.shape[1], matrix.dtype)
    if isinstance(value, Side):
        widths = [f.width(part) for part in value.parts]
        if widths.count(None) == 1:
            widths[widths.index(None)] = len(matrix) - sum(one or 0 for one in widths)
        if None in widths or sum(one or 0 for one in widths) != len(matrix):
            return None
        terms: dict[Product, Matrix] = {}
        begin = 0
        for part, width in zip(value.parts, widths, strict=True):
            (key,) = part.terms
            end = begin + (width or 0)
            if key in terms or part.terms[key] != 1:
                return None
            terms[key] = matrix[begin:end]
            begin = end
        return Linear(terms, zero)
    whole = None if isinstance(value, Linear) else f.as_sum(value)
    if whole is None or len(whole.terms) != 1:
        return None
    ((key, factor),) = whole.terms.items()
    return Linear({key: matrix * matrix.dtype.type(factor)}, zero) if key else None


def _matmul(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    return _product(f, *given)


def _gemm(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    def number(name: str, default: float) -> float:
        return float(attributes[name].f) if name in attributes else default

    if "transA" in attributes and attributes["transA"].i:
        return None
    matrix = given[1]
    if isinstance(matrix, np.ndarray) and "transB" in attributes and attributes["transB"].i:
        matrix = matrix.T
    made: Formula = _scaled(_product(f, given[0], matrix), number("alpha", 1.0))
    if len(given) > 2 and node.input[2]:
        made = _added(f, made, _scaled(given[2], number("beta", 1.0)))
    return made


def _scaled(value: Formula, factor: float) -> Formula:
    if factor == 1 or value is None:
        return value
    if isinstance(value, Linear):
        terms = {key: (one * factor).astype(one.dtype) for key, one in value.terms.items()}
        return Linear(terms, (value.bias * factor).astype(value.bias.dtype))
    if isinstance(value, Sum):
        return Sum({key: one * factor for key, one in value.terms.items()})
    return (value * factor).astype(value.dtype) if isinstance(value, np.ndarray) else None


def _added(f: Formulas, one: Formula, other: Formula) -> Formula:
    if isinstance(one, np.ndarray):
        one, other = other, one
    if isinstance(one, Count):
        whole = isinstance(other, np.ndarray) and other.size == 1 and other.dtype.kind in "iu"
        moved = one.offset + int(other.reshape(-1)[0]) if whole else 0
        return Count(moved, max(one.rank, other.ndim)) if whole else None
    if isinstance(one, Linear) and isinstance(other, np.ndarray):
        row = other.reshape(-1)
        fits = (
            other.ndim <= 2
            and row.size in (1, one.bias.size)
            and other.shape[-1:]
            in (
                (),
                row.shape,
            )
        )
        return Linear(one.terms, one.bias + row.astype(one.bias.dtype)) if fits else None
    if isinstance(one, Linear) and isinstance(other, Linear):
        if one.bias.shape != other.bias.shape:
            return None
        terms = dict(one.terms)
        for key, matrix in other.terms.items():
            if key in terms and terms[key].shape != matrix.shape:
                return None
            terms[key] = terms[key] + matrix if key in terms else matrix
        return Linear(terms, one.bias + other.bias)
    first, second = f.as_sum(one), f.as_sum(other)
    if first is None or second is None:
        return None
    sums = dict(first.terms)
    for product, factor in second.terms.items():
        sums[product] = sums.get(product, 0.0) + factor
    return _short(sums)


def _short(terms: Mapping[Product, float]) -> Sum | None:
    kept = {key: factor for key, factor in terms.items() if factor}
    return Sum(kept) if len(kept) <= _MAX_TERMS else None


def _add(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    return _added(f, *given)


def _sub(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    if isinstance(given[0], Count) and isinstance(given[1], np.ndarray):
        return _added(f, given[0], -given[1])
    return _added(f, given[0], _scaled(given[1], -1.0))


def _mul(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    for one, other in (given, given[::-1]):
        if isinstance(one, np.ndarray) and one.size == 1 and isinstance(other, Linear | Sum):
            return _scaled(other, float(one.reshape(-1)[0]))
    first, second = map(f.as_sum, given)
    if first is None or second is None:
        return None
    terms: dict[Product, float] = {}
    for one, factor in first.terms.items():
        for other, more in second.terms.items():
            key = tuple(sorted((*one, *other)))
            terms[key] = terms.get(key, 0.0) + factor * more
    return _short(terms)


def _activation(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    value = given[0] if isinstance(given[0], Linear) else f.as_sum(given[0])
    if value is None:
        return None
    for place, one in enumerate(f.arguments):
        if one is value or (isinstance(one, Sum) and one == value):
            return atom(node.op_type, place)
    f.arguments.append(value)
    return atom(node.op_type, len(f.arguments) - 1)


def _scatter(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    """Return a buffer with a row written at the count."""
    data, at, rows = given
    plain = "reduction" not in attributes or attributes["reduction"].s in (b"", b"none")
    if not (isinstance(data, Buffer) and isinstance(at, Count) and isinstance(rows, Lifted)):
        return None
    fits = plain and at.rank == 2 and rows.axis == 0
    return Stored(data.place, rows.value, 0, at.offset) if fits else None


def _concat(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    if len(given) == 2 and isinstance(given[0], Buffer) and isinstance(given[1], Lifted):
        axis = attributes["axis"].i % 3
        return Stored(given[0].place, given[1].value, axis, None) if axis == given[1].axis else None
    parts = [None if isinstance(one, Linear) else f.as_sum(one) for one in given]
    if attributes["axis"].i not in (1, -1):
        return None
    whole = (one for one in parts if one is not None)
    sides = [one for one in whole if len(one.terms) == 1 and () not in one.terms]
    return Side(tuple(sides)) if len(sides) == len(given) else None


def _split(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    value = given[0]
    axis = attributes["axis"].i if "axis" in attributes else 0
    if not isinstance(value, Linear) or axis not in (1, -1):
        return None
    total, count = value.bias.size, len(node.output)
    if "split" in attributes:
        sizes = list(attributes["split"].ints)
    elif len(given) > 1:
        sizes = [int(one) for one in given[1]] if isinstance(given[1], np.ndarray) else []
    else:
        size = -(-total // count)
        sizes = [*[size] * (count - 1), total - size * (count - 1)]
    ends = np.cumsum([0, *sizes])
    if len(sizes) != count or ends[-1] != total:
        return None
    return [_columns(value, a, b) for a, b in pairwise(ends.tolist())]


def _columns(value: Linear, begin: int, end: int) -> Linear:
    terms = {key: matrix[:, begin:end] for key, matrix in value.terms.items()}
    return Linear(terms, value.bias[begin:end])


def _cut(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    """Return columns of a linear form, or a row of an outer tensor."""
    value = given[0]
    if not isinstance(value, Linear):
        return _slice(f, node, given, attributes)
    parts = [one for one in given[1:] if one is not None]
    if len(parts) < 3 or not all(isinstance(one, np.ndarray) and one.size == 1 for one in parts):
        return None
    begin, end, axis, step = [int(one.reshape(-1)[0]) for one in parts] + [1] * (4 - len(parts))
    if axis not in (1, -1) or step != 1:
        return None
    begin, end, _ = slice(begin, end).indices(value.bias.size)
    return _columns(value, begin, max(begin, end))


def _compare(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    kind, (count, limit) = node.op_type, given
    if kind in _MIRRORED:
        kind, count, limit = _MIRRORED[kind], limit, count
    if not isinstance(count, Count):
        return None
    offset = count.offset - (kind == "LessOrEqual")
    if isinstance(limit, np.ndarray) and limit.size == 1 and limit.dtype.kind in "iu":
        return Bound(((int(limit.reshape(-1)[0]), offset),))
    return Bound(((limit.name, offset),)) if isinstance(limit, Outer) else None


def _both(f: Formulas, node: onnx.NodeProto, given: list[Any], attributes: Any) -> Formula:
    limits: list[tuple[int | str, int]] = []
    for one in given:
        if isinstance(one, Bound):
            limits.extend(one.limits)
        elif not (isinstance(one, np.ndarray) and one.all()):
            return None
    return Bound(tuple(limits))


_RULES: Mapping[str, _Rule] = {
    "Shape": _shape,
    "Gather": _gather,
    "Slice": _cut,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Concat": _concat,
    "ScatterND": _scatter,
    "Split": _split,
    "And": _both,
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _compare),
}
