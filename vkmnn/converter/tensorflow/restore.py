"""Which tensor of a SavedModel's files each variable is, by the graph that would restore them."""

from __future__ import annotations

from collections.abc import Collection

from vkmnn.converter.tensorflow.context import Context
from vkmnn.converter.tensorflow.functions import Function, Node, Tensor
from vkmnn.converter.tensorflow.states import variable_key

_HANDLES = ("VarHandleOp", "VariableV2", "Variable")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_ASSIGNS = ("AssignVariableOp", "Assign")
_SAME = ("Identity", "IdentityN")
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def restored(model: Context, nodes: dict[str, Node], name: str) -> dict[str, str]:
    """Return the keys of tensors by the keys of variables.

    Args:
        model: the model, for its functions.
        nodes: the nodes of the graph.
        name: the node that restores all variables.
    """
    whole = Function("", nodes, [], [], [name])
    return _Restoring(model).found(whole, {}, 0)


class _Restoring:
    def __init__(self, model: Context) -> None:
        self.model = model

    def found(self, function: Function, given: dict[Tensor, str], depth: int) -> dict[str, str]:
        """Return the pairs of a function whose arguments are variables, by their keys."""
        keys: dict[str, str] = {}
        work, seen = [*function.ends, *(one[0] for one in function.results)], set[str]()
        while work:
            name = work.pop()
            node = function.nodes.get(name)
            if node is None or name in seen:
                continue
            seen.add(name)
            work += [*node.controls, *(one for one, _ in node.inputs)]
            if node.op in _ASSIGNS and len(node.inputs) > 1:
                variable = self._variable(function, node.inputs[0], given)
                key = self._key(function, node.inputs[1])
                if variable and key:
                    keys[variable] = key
            elif node.op in _CALLS and "f" in node.attrs and depth < 8:
                called = self.model.function(node.attrs["f"].func.name)
                if called is not None and len(called.arguments) == len(node.inputs):
                    inner = {
                        argument: self._variable(function, one, given)
                        for argument, one in zip(called.arguments, node.inputs, strict=True)
                    }
                    keys |= self.found(called, inner, depth + 1)
        return keys

    def _variable(self, function: Function, tensor: Tensor, given: dict[Tensor, str]) -> str:
        for _ in range(16):
            if tensor in given:
                return given[tensor]
            node = function.nodes.get(tensor[0])
            if node is None:
                return ""
            if node.op in _HANDLES:
                texts = [
                    node.attrs[key].s.decode("utf-8", "replace") if key in node.attrs else ""
                    for key in ("shared_name", "container")
                ]
                return variable_key(node.op, node.name, *texts)
            if node.op not in _SAME or not node.inputs:
                return ""
            tensor = node.inputs[0]
        return ""

    def _key(self, function: Function, tensor: Tensor) -> str:
        """Return the tensor of the files that a tensor is."""
        for _ in range(16):
            node = function.nodes.get(tensor[0])
            if node is None or not node.inputs:
                return ""
            if node.op == "RestoreV2" and len(node.inputs) == 3:
                names = function.nodes.get(node.inputs[1][0])
                values = names.attrs["value"].tensor if names and "value" in names.attrs else None
                texts = list(values.string_val) if values is not None else []
                number = tensor[1] if len(texts) > tensor[1] else -1
                return texts[number].decode("utf-8", "backslashreplace") if texts else ""
            tensor = node.inputs[min(tensor[1], len(node.inputs) - 1)]
        return ""


def guessed(entries: Collection[str], key: str) -> str:
    """Return the tensor that has a variable's name, where no graph restores it."""
    return key if key in entries else f"{key}{_SUFFIX}"
