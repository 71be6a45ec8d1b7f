"""What the functions of a loop say about its values, before they are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vkmnn.converter.tensorflow.functions import Function, Node, Tensor
from vkmnn.converter.tensorflow.nodes import TfNode

_ROWS = {
    "TensorListSetItem": (0, 1),
    "TensorListPushBack": (0, None),
    "TensorArrayWriteV3": (3, 1),
}
"""Operators that write a row: the numbers of the inputs with the list and with the place."""


def origin(function: Function, tensor: Tensor) -> Tensor:
    """Return the tensor that a tensor is the same as."""
    seen = set()
    while tensor not in seen and tensor not in function.arguments:
        seen.add(tensor)
        node = function.nodes.get(tensor[0])
        if node is not None and node.op == "Identity" and node.inputs:
            tensor = node.inputs[0]
    return tensor


def unchanged(body: Function) -> set[int]:
    """Return the numbers of the values that a loop's body gives back as they are."""
    pairs = zip(body.arguments, body.results, strict=True)
    return {n for n, (given, made) in enumerate(pairs) if origin(body, made) == given}


def _place(function: Function, tensor: Tensor) -> int | None:
    """Return the number of the argument that a tensor is."""
    found = origin(function, tensor)
    return function.arguments.index(found) if found in function.arguments else None


def _number(op: TfNode, function: Function, tensor: Tensor) -> float | None:
    """Return a constant of one element, in a loop's function or around it."""
    found = origin(function, tensor)
    if found not in function.arguments:
        return op.model.constant_of(function, found)
    array = op.scope.constants.get(op.inputs[function.arguments.index(found)])
    return float(array.item()) if array is not None and array.size == 1 else None


def counters(op: TfNode, body: Function) -> dict[int, int]:
    """Return the numbers of values that count rounds, and what they begin with."""
    found = {}
    for n, made in enumerate(body.results):
        node = body.nodes.get(origin(body, made)[0])
        if node is None or node.op not in ("Add", "AddV2") or len(node.inputs) != 2:
            continue
        for one, other in (node.inputs, node.inputs[::-1]):
            if _place(body, one) == n and _number(op, body, other) == 1:
                begin = op.scope.constants.get(op.inputs[n])
                if begin is not None and begin.size == 1 and begin.dtype.kind in "iu":
                    found[n] = int(begin.reshape(-1)[0])
    return found


def is_row(op: TfNode, body: Function, number: int, steps: Mapping[int, int]) -> bool:
    """Return whether a list gets one row in each round, in order, and is not read."""
    node = _writer(op, body, number)
    if node is None:
        return False
    place = _ROWS[node.op][1]
    if place is None:
        return True
    counter = _place(body, node.inputs[place])
    return counter is not None and steps.get(counter) == 0


def is_last(op: TfNode, body: Function, number: int) -> bool:
    """Return whether each round replaces the only element of a list, which is not read."""
    node = _writer(op, body, number)
    place = _ROWS[node.op][1] if node is not None else None
    length = op.scope.constants.get(op.model.lists[op.inputs[number]].length)
    if node is None or place is None or length is None or length.size != 1:
        return False
    return length.item() == 1 and _number(op, body, node.inputs[place]) == 0


def _writer(op: TfNode, body: Function, number: int) -> Node | None:
    """Return the node that writes a row of a list, if it is the only one that reads it."""
    node = body.nodes.get(origin(body, body.results[number])[0])
    if node is None or node.op not in _ROWS or op.model.lists[op.inputs[number]].tensor:
        return None
    source, place = _ROWS[node.op]
    if len(node.inputs) <= max(source, place or 0) or _place(body, node.inputs[source]) != number:
        return None
    readers = _readers(body, body.arguments[number])
    return node if all(one is node for one in readers) else None


def _readers(body: Function, tensor: Tensor) -> list[Node]:
    """Return the nodes that read a tensor, also by another name."""
    names = {tensor}
    for node in body.nodes.values():
        if node.op == "Identity" and origin(body, (node.name, 0)) == tensor:
            names.add((node.name, 0))
    return [
        node
        for node in body.nodes.values()
        if (node.name, 0) not in names and names.intersection(node.inputs)
    ]


def is_full(
    op: TfNode,
    condition: Function,
    number: int,
    steps: Mapping[int, int],
    fixed: Collection[int],
) -> bool:
    """Return whether a loop has as many rounds as a list has rows, or the list grows."""
    one = op.model.lists[op.inputs[number]]
    length = op.scope.constants.get(one.length)
    if length is not None and length.size != 1:
        return False
    if length is not None and not length.item():
        return True
    work = [origin(condition, one) for one in condition.results]
    while work:
        tensor = work.pop()
        node = condition.nodes.get(tensor[0])
        if node is None:
            return False
        if node.op == "LogicalAnd" and len(node.inputs) == 2:
            work += [origin(condition, one) for one in node.inputs]
            continue
        if node.op not in ("Less", "Greater") or len(node.inputs) != 2:
            return False
        count, limit = node.inputs if node.op == "Less" else node.inputs[::-1]
        place, end = _place(condition, count), _place(condition, limit)
        if place is None or steps.get(place) != 0:
            return False
        if end is not None:
            if end not in fixed or not op.same(op.inputs[end], one.length):
                return False
        elif length is None or _number(op, condition, limit) != length.item():
            return False
    return True
