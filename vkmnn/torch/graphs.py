"""Graphs as torch.compile hands them over: what they take, write and return.

Such a graph takes weights, sizes and numbers as inputs beside the tensors of its caller, writes
inputs, and returns views of inputs. `read_graph` turns it into a graph without any of that, whose
results are arrays, and a `Signature`, which says how the results make what the original returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

Size = Any
"""An int, or an expression of sympy's over the symbols of `Signature.symbols`."""


_PASS = "pass tensors and whole numbers"
_CLONE = "return a copy of it: .clone()"
_SHAPES = "return a tensor whose shape follows from the arguments' shapes"


class Refusal(Exception):  # noqa: N818 - no error: the graph runs in PyTorch
    """Why a graph does not run in a session; and what would help."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a view lie in the memory of another tensor."""

    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size


@dataclass(frozen=True, slots=True)
class Result:
    """What a graph returns in one place.

    Attributes:
        value: the value itself, or a `Size`, where `number` is None.
        given: the place of an input, if it is one or a view of it.
        number: the place among the results of the session, if it is one or a view of it.
        order: the axes of the session's result in the order of this one's.
        view: where its elements lie in the input's or the result's memory; None for all.
    """

    value: Any = None
    given: int | None = None
    number: int | None = None
    order: tuple[int, ...] | None = None
    view: Layout | None = None


@dataclass(slots=True)
class Signature:
    """What a graph takes, writes and returns; places are those of its arguments.

    Attributes:
        fed: tensors that every call passes to the session, and numbers.
        open: by place, the axes of tensors whose size is open; () for a number.
        weights: tensors that seldom change.
        written: the inputs that it writes.
        symbols: places of the sizes and numbers, by their symbol.
        results: what it returns.
        made: how many results the session has, without the written inputs.
    """

    fed: list[int] = field(default_factory=list)
    open: dict[int, tuple[int, ...]] = field(default_factory=dict)
    weights: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    symbols: dict[Any, int] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    made: int = 0


@dataclass(slots=True)
class Reading:
    """A graph as it is read."""

    torch: Any
    graph: Any
    places: dict[Any, int]
    signature: Signature
    made: list[Any] = field(default_factory=list)


def read_graph(torch: Any, module: Any, examples: Sequence[Any]) -> tuple[Any, Signature]:
    """Return a graph that takes the fed inputs alone and returns arrays; and the signature.

    Args:
        torch: the package.
        module: the `torch.fx.GraphModule`.
        examples: its first arguments.

    Raises:
        Refusal: PyTorch has to run it.
    """
    taken = [node for node in module.graph.nodes if node.op == "placeholder"]
    output = next(node for node in module.graph.nodes if node.op == "output")
    places = {node: place for place, node in enumerate(taken)}
    reading = Reading(torch, module.graph, places, Signature())
    sources = _read_inputs(reading, taken, examples)
    returned = output.args[0] if isinstance(output.args[0], tuple | list) else (output.args[0],)
    _read_results(reading, returned)
    reading.signature.made = len(reading.made)
    graph = _rewritten(reading, taken, sources)
    root = torch.fx.GraphModule(module, module.graph)
    set_weights(torch, root, {place: torch.empty(0) for place in reading.signature.weights})
    return torch.fx.GraphModule(root, graph), reading.signature


def set_weights(torch: Any, module: Any, weights: Mapping[int, Any]) -> None:
    """Give a rewritten graph its weights, by their places."""
    for place, weight in weights.items():
        parameter = torch.nn.Parameter(weight.detach(), requires_grad=False)
        setattr(module, _weight_name(place), parameter)


def _weight_name(place: int) -> str:
    """Return the attribute of the rewritten graph that holds a weight."""
    return f"weight_{place}"


# --- inputs --------------------------------------------------------------------------------------


def _read_inputs(
    reading: Reading, taken: Sequence[Any], examples: Sequence[Any]
) -> dict[int, tuple[int, int]]:
    """Sort the inputs; return, for each size, the place and the axis that have it."""
    signature, torch = reading.signature, reading.torch
    axes: dict[Any, tuple[int, int]] = {}
    numbers = []
    for place, (node, example) in enumerate(zip(taken, examples, strict=True)):
        value = _value(node)
        if not isinstance(value, torch.Tensor):
            numbers.append((place, value))
            continue
        _check(torch, value, example)
        if value._version > 0:
            signature.written.append(place)
        elif _is_weight(torch, node, example):
            signature.weights.append(place)
            continue
        signature.fed.append(place)
        signature.open[place] = tuple(
            axis for axis, size in enumerate(value.shape) if not isinstance(size, int)
        )
        for axis, size in enumerate(value.shape):
            if (symbol := _symbol(size)) is not None:
                axes.setdefault(symbol, (place, axis))
    sources = {}
    for place, value in numbers:
        symbol = _symbol(value)
        if symbol is not None:
            signature.symbols[symbol] = place
        if not taken[place].users:
            continue
        if symbol in axes:
            sources[place] = axes[symbol]
        elif isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
            signature.fed.append(place)
            signature.open[place] = ()
        else:
            raise Refusal(f"an argument is a {type(value).__name__}", _PASS)
    return sources


def _is_weight(torch: Any, node: Any, example: Any) -> bool:
    """Return whether Dynamo says that the tensor belongs to a module."""
    marked = node.meta.get("tensor_dict") or {}
    return "_dynamo_static_input_type" in marked or isinstance(example, torch.nn.Parameter)


def _check(torch: Any, value: Any, example: Any = None) -> None:
    """Refuse tensors that sessions do not take."""
    plain = (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor, torch.nn.Buffer)
    if example is not None and type(example) not in plain:
        raise Refusal(f"an argument is a {type(example).__name__}", _PASS)
    if value.device.type != "cpu":
        raise Refusal(f"a tensor is on the device '{value.device}'", "move it with .cpu()")
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        raise Refusal("a tensor is sparse, quantised or nested", "make it dense, of floats")
    if value.is_complex():
        raise Refusal("a tensor has complex numbers", "pass and return torch.view_as_real of it")


def _value(node: Any) -> Any:
    return node.meta.get("example_value")


def _symbol(size: Any) -> Any:
    """Return the symbol that a size is; None for numbers and other expressions."""
    expression = getattr(getattr(size, "node", None), "expr", None)
    return expression if getattr(expression, "is_Symbol", False) else None


# --- results -------------------------------------------------------------------------------------


def _read_results(reading: Reading, returned: Iterable[Any]) -> None:
    torch = reading.torch
    returned = list(returned)
    tensors = [one for one in returned if isinstance(_example(one), torch.Tensor)]
    if any(_value(one).requires_grad for one in tensors):
        raise Refusal(
            "its results are to have gradients, which sessions do not compute",
            "call it under torch.no_grad() or torch.inference_mode()",
        )
    for one in tensors:
        _check(torch, _value(one))
    inputs = {
        _memory(_value(node)): node
        for node in reading.places
        if isinstance(_value(node), torch.Tensor)
    }
    shared: dict[int, list[Any]] = {}
    for one in dict.fromkeys(tensors):
        shared.setdefault(_memory(_value(one)), []).append(one)
    for one in returned:
        if one in tensors:
            owner = inputs.get(_memory(_value(one)))
            group = shared[_memory(_value(one))]
            result = _made(reading, one, group) if owner is None else _given(reading, one, owner)
        else:
            result = Result(_size(reading, _example(one)))
        reading.signature.results.append(result)


def _example(one: Any) -> Any:
    return _value(one) if hasattr(one, "meta") else one


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _given(reading: Reading, node: Any, owner: Any) -> Result:
    """Return a result that is an input, or a view of one."""
    value, source = _value(node), _value(owner)
    place = reading.places[owner]
    if value is source or node is owner:
        return Result(given=place)
    if value.dtype != source.dtype:
        raise Refusal("it returns an input's memory as another element type", _CLONE)
    return Result(given=place, view=_layout(reading, value))


def _made(reading: Reading, node: Any, group: Sequence[Any]) -> Result:
    """Return a result of the session, or a view of one."""
    axes = _order(_value(node))
    if len(group) == 1 and axes is not None:
        return Result(number=_number(reading, node, axes), order=_inverse(axes))
    memory, dtype = _memory(_value(node)), _value(node).dtype
    for owner in reading.graph.nodes:
        value = _value(owner)
        if not isinstance(value, reading.torch.Tensor) or _memory(value) != memory:
            continue
        order = _order(value)
        if order is not None and value.dtype == dtype and _is_whole(value):
            number = _number(reading, owner, order)
            if owner is node:
                return Result(number=number, order=_inverse(order))
            return Result(number=number, view=_layout(reading, _value(node)))
    if len(group) > 1:
        raise Refusal("it returns tensors that share memory", _CLONE)
    return Result(number=_number(reading, node, tuple(range(_value(node).dim()))))


def _number(reading: Reading, node: Any, axes: tuple[int, ...]) -> int:
    """Return the place of a node, with its axes in the order of its memory, among the results."""
    for number, known in enumerate(reading.made):
        if known[0] is node:
            return number
    reading.made.append((node, axes))
    return len(reading.made) - 1


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the order that undoes one; None for that of the axes themselves."""
    back = tuple(sorted(range(len(axes)), key=axes.__getitem__))
    return None if back == tuple(range(len(axes))) else back


def _order(tensor: Any) -> tuple[int, ...] | None:
    """Return the axes in the order of memory; None where elements overlap or leave gaps."""
    size = [_hint(one) for one in tensor.shape]
    stride = [_hint(one) for one in tensor.stride()]
    if 0 in size or tensor.is_contiguous():
        return tuple(range(len(size)))
    # Axes of one element may have any stride: each stays behind its neighbour.
    axes = sorted(range(len(size)), key=lambda axis: -stride[axis] if size[axis] > 1 else 0)
    real = [axis for axis in axes if size[axis] > 1]
    counts = [1, *accumulate((size[axis] for axis in reversed(real)), lambda a, b: a * b)]
    dense = [stride[axis] for axis in reversed(real)] == counts[:-1]
    return tuple(axes) if dense else None


def _is_whole(tensor: Any) -> bool:
    """Return whether a dense tensor is all of its memory."""
    count = 1
    for size in tensor.shape:
        count *= _hint(size)
    held = _hint(tensor.untyped_storage().nbytes())
    return _hint(tensor.storage_offset()) == 0 and held == count * tensor.element_size()


def _hint(size: Any) -> int:
    """Return what a size is in the first call."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    if hint is None:
        raise Refusal("the shape of a result depends on values", _SHAPES)
    return int(hint)


def _layout(reading: Reading, tensor: Any) -> Layout:
    return Layout(
        tuple(_size(reading, one) for one in tensor.shape),
        tuple(_size(reading, one) for one in tensor.stride()),
        _size(reading, tensor.storage_offset()),
    )


def _size(reading: Reading, value: Any) -> Size:
    """Return a size as an int or an expression; other constants as they are."""
    expression = getattr(getattr(value, "node", None), "expr", None)
    if expression is None:
        return value
    if not isinstance(value, reading.torch.SymInt):
        raise Refusal(f"it returns a {type(value).__name__}", "return it as a tensor")
    if not expression.free_symbols:
        return int(expression)
    if not expression.free_symbols <= reading.signature.symbols.keys():
        raise Refusal("the shape of a result depends on values", _SHAPES)
    return expression


def sizes_at(
    sizes: tuple[Size, ...], symbols: Mapping[Any, int], args: Sequence[Any]
) -> tuple[int, ...]:
    """Return the values of sizes in a call with these arguments."""
    values = {symbol: args[place] for symbol, place in symbols.items()}
    return tuple(one if isinstance(one, int) else int(one.subs(values)) for one in sizes)


# --- the graph -----------------------------------------------------------------------------------


def _rewritten(
    reading: Reading, taken: Sequence[Any], sources: Mapping[int, tuple[int, int]]
) -> Any:
    """Return the graph that takes the fed inputs alone."""
    torch, signature = reading.torch, reading.signature
    graph = torch.fx.Graph()
    known: dict[Any, Any] = dict.fromkeys(taken)  # those that nothing reads stay None
    for place in signature.fed:
        known[taken[place]] = graph.placeholder(taken[place].name)
    for place in signature.weights:
        known[taken[place]] = graph.get_attr(_weight_name(place))
    for place, (owner, axis) in sources.items():
        size = torch.ops.aten.sym_size.int
        known[taken[place]] = graph.call_function(size, (known[taken[owner]], axis))
    graph.graph_copy(reading.graph, known)
    returned = []
    for node, axes in reading.made:
        one = known[node]
        if axes != tuple(range(len(axes))):
            one = graph.call_function(torch.permute, (one, axes))
        returned.append(one)
    graph.output(tuple(returned))
    return graph
