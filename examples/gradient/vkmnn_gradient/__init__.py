"""Gradient (ai.onnx.preview.training): expands to the nodes that compute it.

Reverse-mode differentiation (Griewank and Walther, "Evaluating Derivatives", 2008, chapter 3): from
`y` back to `xs`, the rule of every node turns the gradients of its outputs into those of its
inputs. The result consists of ordinary nodes, which another Gradient may differentiate again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count

import onnx
from onnx import helper
from vkmnn.errors import ModelError, UnsupportedNode, UnsupportedOpError

from vkmnn_gradient.rules import CONSTANT, DOMAIN, Tape, functions, rule_of

__all__ = ["expand_gradients"]

_TRAINING = "ai.onnx.preview.training"
_ONNX = ("", "ai.onnx")


def expand_gradients(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model with its Gradient nodes expanded.

    Raises:
        ModelError: a Gradient names a tensor that does not exist.
        UnsupportedOpError: there is no rule for an operator between `xs` and `y`.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    taken = {name for node in proto.graph.node for name in (*node.input, *node.output)}
    taken |= {value.name for value in proto.graph.input}
    opset = max(o.version for o in proto.opset_import if o.domain in _ONNX)
    for node in proto.graph.node:
        made = _Gradient(node, nodes, taken, opset).nodes() if _is_gradient(node) else [node]
        nodes.extend(made)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.functions.extend(functions())
    proto.opset_import.add(domain=DOMAIN, version=1)
    return proto


def _is_gradient(node: onnx.NodeProto) -> bool:
    return node.op_type == "Gradient" and node.domain == _TRAINING


class _Gradient:
    """A Gradient node, and the nodes before it."""

    def __init__(
        self,
        node: onnx.NodeProto,
        before: Sequence[onnx.NodeProto],
        taken: set[str],
        opset: int,
    ) -> None:
        self._node = node
        said = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self._xs = [name.decode() for name in said.get("xs", ())]
        zs = [name.decode() for name in said.get("zs", ())]
        self._y: str = said.get("y", b"").decode()
        named = [*self._xs, *zs]
        if len(node.input) != len(named):
            raise self._wrong(f"{len(node.input)} inputs for {len(named)} names in xs and zs")
        self._taken = taken
        self._opset = opset
        self._numbers = count()
        self._path = self._between(before, named)
        self._values = dict(zip(named, node.input, strict=True))

    def nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes that compute the gradients.

        Raises:
            ModelError: y does not exist.
            UnsupportedOpError: there is no rule for a node between them.
        """
        made = self._forward()
        tape = Tape(self._name, self._opset)
        y = self._values.get(self._y, self._y)
        gradients = {y: tape.node("OnesLike", [y], domain=DOMAIN)}
        wanted = self._reached()
        for node in reversed(self._path):
            if node.op_type in CONSTANT or node.output[0] not in gradients:
                continue
            if not wanted.intersection(node.input):
                continue
            rule = rule_of(node, self._opset)
            if rule is None or node.domain not in (*_ONNX, DOMAIN):
                raise self._unsupported(node)
            parts = rule(tape, node, gradients[node.output[0]])
            for name, part in zip(node.input, parts, strict=False):
                if part and name in wanted:
                    old = gradients.get(name)
                    gradients[name] = tape.node("Add", [old, part]) if old else part
        made += tape.nodes
        for x, output in zip(self._xs, self._node.output, strict=False):
            value = self._values[x]
            if output:
                found = gradients.get(value)
                kind, inputs = ("Identity", [found]) if found else ("ZerosLike", [value])
                made.append(_node(kind, inputs, [output], "" if found else DOMAIN))
        return made

    def _between(
        self, before: Sequence[onnx.NodeProto], named: Collection[str]
    ) -> list[onnx.NodeProto]:
        """Return the nodes on which y depends, up to those named, in their order."""
        needed, path = {self._y} - set(named), []
        for node in reversed(before):
            if needed.intersection(node.output):
                path.append(node)
                needed.update(name for name in node.input if name and name not in named)
        if self._y not in {*named, *(name for node in path for name in node.output)}:
            raise self._wrong(f"no node before it makes its y, '{self._y}'")
        return path[::-1]

    def _forward(self) -> list[onnx.NodeProto]:
        """Return copies of nodes whose values change because other tensors are fed."""
        made, path = [], []
        changed = {name for name, value in self._values.items() if name != value}
        for node in self._path:
            if not changed.intersection(node.input):
                path.append(node)
                continue
            other = onnx.NodeProto()
            other.CopyFrom(node)
            other.name = self._name()
            changed.update(node.output)
            for names in (other.input, other.output):
                for place, name in enumerate(names):
                    if name in changed:
                        names[place] = self._values.setdefault(name, self._name())
            made.append(other)
            path.append(other)
        self._path = path
        return made

    def _reached(self) -> set[str]:
        """Return the tensors through which xs reach y."""
        wanted = {self._values[name] for name in self._xs}
        for node in self._path:
            if node.op_type not in CONSTANT and wanted.intersection(node.input):
                wanted.update(node.output)
        return wanted

    def _name(self) -> str:
        """Return a name that nothing has."""
        for number in self._numbers:
            name = f"{self._node.name or 'Gradient'}/{self._y}/{number}"
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise AssertionError

    def _wrong(self, what: str) -> ModelError:
        return ModelError(what, op="Gradient", node=self._node.name)

    def _unsupported(self, node: onnx.NodeProto) -> UnsupportedOpError:
        reason = f"the gradient of {node.op_type} is not known"
        place = UnsupportedNode("Gradient", _TRAINING, 1, self._node.name, reason)
        return UnsupportedOpError([place])


def _node(kind: str, inputs: Sequence[str], outputs: Sequence[str], domain: str) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, outputs, domain=domain)
