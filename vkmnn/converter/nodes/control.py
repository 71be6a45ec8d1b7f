"""Branches and loops: bodies are scopes of their own, which read tensors around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vkmnn.converter.nodes.model import inner_graph
from vkmnn.converter.nodes.scope import BOOL, FLOAT, INT64, Scope
from vkmnn.converter.nodes.source_op import SourceOp

if TYPE_CHECKING:
    import onnx

Body = Callable[[Scope, list[str]], list[str]]
"""Writes a body's nodes into a scope; maps argument names to result names."""


def truth(op: SourceOp, name: str) -> str:
    """Return a tensor of one element as a condition: a truth value without axes."""
    return op.make("Reshape", op.cast(name, BOOL), op.constant([]), dtype=BOOL)


def branches(op: SourceOp, condition: str, then: Body, otherwise: Body) -> None:
    """Write an If whose bodies capture the op's tensors.

    Args:
        op: the operator; its outputs are the results.
        condition: a tensor of one element.
        then: writes the body of the one case; it is given no arguments.
        otherwise: writes that of the other.
    """
    graphs, types, shapes = {}, [], []
    for side, body in (("then", then), ("else", otherwise)):
        scope = _inside(op)
        made = body(scope, [])
        kept = _kept(op, scope, made)
        types = [scope.types.get(name, FLOAT) for name in kept]
        shapes.append([scope.shapes.get(name) for name in kept])
        outputs = [_info(name, kind) for name, kind in zip(kept, types, strict=True)]
        graphs[f"{side}_branch"] = inner_graph(scope, op.scope, [], outputs, f"{op.name}/{side}")
        op.scope.count = scope.count  # names inside are not given again outside
    op.scope.emit("If", [truth(op, condition)], op.outputs, op.name, **graphs)
    for name, kind, *both in zip(op.outputs, types, *shapes, strict=False):
        op.scope.types[name] = kind
        agreed = _common(*both)
        if agreed is None:
            op.scope.shapes.pop(name, None)
        else:
            op.scope.shapes[name] = agreed


def loop(
    op: SourceOp,
    arguments: Sequence[str],
    condition: Body,
    body: Body,
    results: Sequence[str],
) -> None:
    """Write a Loop that continues while a condition on its carried values holds.

    Args:
        op: the operator.
        arguments: what it carries at its beginning.
        condition: writes the condition's nodes: once before the loop, once at the end of its body.
        body: writes the body's.
        results: names for what it carries at its end.
    """
    (first,) = condition(op.scope, list(arguments))
    begin = truth(op, first)
    scope = _inside(op)
    carried = [scope.fresh(f"{op.name}/carried") for _ in arguments]
    types = [op.type_of(name) for name in arguments]
    for inner, outer, kind in zip(carried, arguments, types, strict=True):
        scope.types[inner] = kind
        shape = op.scope.shapes.get(outer)
        if shape is not None:
            scope.shapes[inner] = shape
    made = body(scope, carried)
    (again,) = condition(scope, made)
    inside = SourceOp(scope, op.type, op.name, [], [])
    kept = [truth(inside, again), *_kept(op, scope, made)]
    count, before = scope.fresh(f"{op.name}/count"), scope.fresh(f"{op.name}/before")
    heads = [_info(count, INT64, ()), _info(before, BOOL, ())]
    inputs = [
        _info(name, kind, scope.shapes.get(name)) for name, kind in zip(carried, types, strict=True)
    ]
    outputs = [_info(kept[0], BOOL, ())]
    outputs += [_info(name, kind) for name, kind in zip(kept[1:], types, strict=True)]
    graph = inner_graph(scope, op.scope, [*heads, *inputs], outputs, f"{op.name}/body")
    op.scope.count = scope.count
    op.scope.emit("Loop", ["", begin, *arguments], results, op.name, body=graph)
    for name, inner, kind in zip(results, carried, types, strict=True):
        op.scope.types[name] = kind
        if inner in scope.shapes:
            op.scope.shapes[name] = scope.shapes[inner]


def _inside(op: SourceOp) -> Scope:
    """Return a scope that knows the tensors around it."""
    scope = Scope()
    scope.types.update(op.scope.types)
    scope.shapes.update(op.scope.shapes)
    scope.constants.update(op.scope.constants)
    scope.taken |= op.scope.taken | set(op.scope.types)
    scope.count = op.scope.count
    return scope


def _kept(op: SourceOp, scope: Scope, names: Sequence[str]) -> list[str]:
    """Return results under names that the body produces."""
    kept = [scope.fresh(f"{op.name}/result") for _ in names]
    for name, one in zip(names, kept, strict=True):
        scope.copy(name, one)
    return kept


def _info(name: str, kind: int, shape: Sequence[int | None] | None = None) -> onnx.ValueInfoProto:
    from onnx import helper

    dims = None if shape is None else list(shape)
    return helper.make_tensor_value_info(name, kind, dims)


def _common(
    a: tuple[int | None, ...] | None, b: tuple[int | None, ...] | None
) -> tuple[int | None, ...] | None:
    """Return the common info of a tensor with one of two shapes."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(one if one == other else None for one, other in zip(a, b, strict=True))
