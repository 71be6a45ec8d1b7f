"""Operators that refer to subgraphs: branches, loops, calls, and composites of StableHLO."""

from __future__ import annotations

from vkmnn.converter.nodes import Scope
from vkmnn.converter.nodes.control import Body, branches, loop
from vkmnn.converter.tflite.nodes import LiteOp, reads
from vkmnn.converter.tflite.reading import read_subgraph
from vkmnn.converter.tflite.subgraph import Subgraph


def _called(op: LiteOp, scope: Scope, number: int, arguments: list[str], what: str) -> list[str]:
    """Read a subgraph into a scope; return the names of its results."""
    model = op.subgraph.model
    model.calls += 1
    prefix = f"{op.name}/{what}{model.calls}/"
    inner = Subgraph(model, number, scope, prefix, arguments, op.subgraph)
    read_subgraph(inner)
    return inner.results()


def _body(op: LiteOp, field: str, what: str) -> Body:
    def body(scope: Scope, arguments: list[str]) -> list[str]:
        given = arguments if what in ("cond", "body") else op.inputs[1:]
        return _called(op, scope, op.integer(field), given, what)

    return body


def _checked(op: LiteOp, body: Body, count: int) -> Body:
    """Return a body that has to have so many results."""

    def checked(scope: Scope, arguments: list[str]) -> list[str]:
        made = body(scope, arguments)
        if len(made) != count:
            raise op.damaged(f"a subgraph has {len(made)} results, not {count}")
        return made

    return checked


@reads("IF")
def conditional(op: LiteOp) -> None:
    """If; the subgraphs' inputs are the operator's after the condition."""
    op.need(1, 0)
    sides = [_body(op, f"{side}_subgraph_index", side) for side in ("then", "else")]
    then, otherwise = (_checked(op, side, len(op.outputs)) for side in sides)
    with op.subgraph.model.variables.inside():
        branches(op, op.inputs[0], then, otherwise)


@reads("WHILE")
def repetition(op: LiteOp) -> None:
    """Loop; both subgraphs take all carried values."""
    op.need(0, 0)
    count = len(op.inputs)
    if len(op.outputs) != count:
        raise op.damaged(f"it carries {count} tensors, and gives {len(op.outputs)}")
    # A loop carries numbers; resources refer to the same variables in all its rounds.
    carried = [n for n, tensor in enumerate(op.tensors) if tensor is None or tensor.dtype]

    def whole(arguments: list[str]) -> list[str]:
        return [
            arguments[carried.index(n)] if n in carried else name
            for n, name in enumerate(op.inputs)
        ]

    def kept(made: list[str]) -> list[str]:
        return [made[n] for n in carried]

    condition = _checked(op, _body(op, "cond_subgraph_index", "cond"), 1)
    body = _checked(op, _body(op, "body_subgraph_index", "body"), count)
    with op.subgraph.model.variables.inside():
        loop(
            op,
            [op.inputs[n] for n in carried],
            lambda scope, given: condition(scope, whole(given)),
            lambda scope, given: kept(body(scope, whole(given))),
            [op.outputs[n] for n in carried],
        )


def _inlined(op: LiteOp, field: str, what: str) -> None:
    made = _called(op, op.scope, op.integer(field), op.inputs, what)
    if len(made) != len(op.outputs):
        raise op.damaged(f"its subgraph has {len(made)} results, not {len(op.outputs)}")
    for name, output in zip(made, op.outputs, strict=True):
        op.scope.emit("Identity", [name], [output], op.name)


@reads("CALL")
def call(op: LiteOp) -> None:
    """Inline a subgraph."""
    _inlined(op, "subgraph", "call")


@reads("STABLEHLO_COMPOSITE")
def composite(op: LiteOp) -> None:
    """Inline the subgraph that implements a composite."""
    _inlined(op, "decomposition_subgraph_index", "composite")
