"""Branches and loops: bodies are separate scopes, which read outer tensors."""

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
        then: writes the body for true; called without arguments.
        otherwise: writes the body for false.
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
        arguments: the initial values that it carries.
        condition: writes the condition's nodes: once before the loop, once at the end of its body.
        body: writes the body's. Results after those that are carried are stacked. It is called
            again where a carried value turns out to change its size.
        results: names for the final carried values, and for the stacked ones.
    """
    (first,) = condition(op.scope, list(arguments))
    begin = truth(op, first)
    shapes = [op.scope.shapes.get(name) for name in arguments]
    while True:
        scope = _inside(op)
        carried = [scope.fresh(f"{op.name}/carried") for _ in arguments]
        types = [op.type_of(name) for name in arguments]
        for inner, shape, kind in zip(carried, shapes, types, strict=True):
            scope.types[inner] = kind
            if shape is not None:
                scope.shapes[inner] = shape
        made = body(scope, carried)
        wider = [
            _kept_sizes(*one) for one in zip(shapes, map(scope.shapes.get, made), strict=False)
        ]
        if wider == shapes:
            break
        shapes = wider
    (again,) = condition(scope, made[: len(carried)])
    inside = SourceOp(scope, op.type, op.name, [], [])
    kept = [truth(inside, again), *_kept(op, scope, made)]
    count, before = scope.fresh(f"{op.name}/count"), scope.fresh(f"{op.name}/before")
    heads = [_info(count, INT64, ()), _info(before, BOOL, ())]
    inputs = [_info(*one) for one in zip(carried, types, shapes, strict=True)]
    stacked = made[len(carried) :]
    types += [scope.types.get(name, FLOAT) for name in stacked]
    outputs = [_info(kept[0], BOOL, ())]
    outputs += [_info(name, kind) for name, kind in zip(kept[1:], types, strict=True)]
    graph = inner_graph(scope, op.scope, [*heads, *inputs], outputs, f"{op.name}/body")
    op.scope.count = scope.count
    op.scope.emit("Loop", ["", begin, *arguments], results, op.name, body=graph)
    rows = [scope.shapes.get(name) for name in stacked]
    shapes += [None if one is None else (None, *one) for one in rows]
    for name, shape, kind in zip(results, shapes, types, strict=True):
        op.scope.types[name] = kind
        if shape is not None:
            op.scope.shapes[name] = shape


def _kept_sizes(
    before: tuple[int | None, ...] | None, after: tuple[int | None, ...] | None
) -> tuple[int | None, ...] | None:
    """Return the sizes of a carried value that a round does not change, as far as is known."""
    if before is None or after is None:
        return before
    if len(before) != len(after):
        return None
    pairs = zip(before, after, strict=True)
    return tuple(None if None not in (a, b) and a != b else a for a, b in pairs)


def _inside(op: SourceOp) -> Scope:
    """Return a scope that can read the outer tensors."""
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
