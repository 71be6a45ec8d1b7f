"""Copies resolved layers to the repeated layers that a plan has skipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from vkmnn.base.budget import Meter
from vkmnn.core.alike_layers import Layer, Layers, Mark
from vkmnn.core.resolve import Resolved
from vkmnn.ir import Array, Graph, Op, TensorInfo
from vkmnn.ir.ops import RasterAttrs


def resolve_layers(
    graph: Graph,
    layers: Layers,
    inputs: Mapping[str, TensorInfo],
    resolve: Callable[[Graph], Resolved],
    meter: Meter,
) -> Resolved | None:
    """Resolve a network from a few of its repeated layers.

    Args:
        graph: the network.
        layers: the repeated layers.
        inputs: static description of the inputs.
        resolve: computes shapes, folds, lowers.
        meter: the meter charged for the pieces of data movement.

    Returns:
        None where layers have not become alike: all of the network is to be resolved then.
    """
    if not _are_equal(layers.inputs, inputs):
        return None
    found = resolve(replace(graph, ops=layers.ops))
    first, model = (_places(found.ops, number) for number in (0, 1))
    if not first or not model or first.stop > model.start:
        return None
    if not _are_equal(layers.handed, found.infos):
        return None
    copies = [_Copy(layer, layers.model, graph, found) for layer in layers.left_out]
    ops = found.ops[: model.stop]
    made = {name for op in ops[model.start :] for name in op.outputs}
    before = {name for op in ops[first.start : first.stop] for name in op.outputs}
    if not _are_whole(found.ops, model, made, before, copies[0]):
        return None
    for copy in copies:
        written = [copy.of(op, made) for op in found.ops[model.start : model.stop]]
        if None in written:
            return None
        ops += [op for op in written if op is not None]
        copy.note_outputs()
        _charge(written, meter)
    for op in found.ops[model.stop :]:
        read = [copies[-1].name(name) if name in copies[-1].own else name for name in op.inputs]
        ops.append(Op(op.type, op.name, read, op.outputs, op.attrs, op.source))
    return Resolved(list(map(_unmarked, ops)), found.infos, found.constants)


def _are_equal(pairs: Sequence[tuple[str, str]], infos: Mapping[str, TensorInfo]) -> bool:
    """Whether the tensors of each pair have equal types and shapes."""
    described = ((infos[one], infos[other]) for one, other in pairs)
    return all(a.dtype is b.dtype and a.shape == b.shape for a, b in described)


def _places(ops: Sequence[Op], layer: int) -> range:
    """Return the positions of a marked layer's ops; empty if other ops are between them."""
    at = [i for i, op in enumerate(ops) if isinstance(op.source, Mark) and op.source.layer == layer]
    together = at and at[-1] - at[0] < len(at)
    return range(at[0], at[-1] + 1) if together else range(0)


def _are_whole(
    ops: Sequence[Op], model: range, made: set[str], before: set[str], copy: _Copy
) -> bool:
    """Return whether the second layer reads only what a copy finds in its predecessor too."""
    for index, op in enumerate(ops):
        for name in op.inputs:
            if name in before and index >= model.start:
                if index >= model.stop or copy.name(name) not in made:
                    return False
            elif name in copy.own and name not in made and name not in copy.found.constants:
                return False
    return True


class _Copy:
    """A skipped layer, as a copy of the second one.

    Args:
        layer: the layer.
        model: the ops of the second layer, as the network has them.
        graph: the network.
        found: the resolved network, to which the copy adds its parts.
    """

    def __init__(self, layer: Layer, model: Sequence[Op], graph: Graph, found: Resolved) -> None:
        self.found = found
        self.own = {name for op in model for name in op.outputs if name}
        self._layer = layer
        self._graph = graph
        self._names = dict(layer.names)
        self._names[""] = ""
        self._known: set[str] = set()

    def of(self, op: Op, made: set[str]) -> Op | None:
        """Return the copy of an op; None if a name has no counterpart."""
        name = self._layer.owners.get(op.name) or self._lowered(op.name)
        inputs = [self.name(one) for one in op.inputs]
        outputs = [self.name(one) for one in op.outputs]
        kept = {one for one in (*op.inputs, *op.outputs) if one in made and self.name(one) == one}
        if name is None or kept - {""}:
            return None
        assert isinstance(op.source, Mark)
        source = self._layer.ops[op.source.place].source
        return Op(op.type, name, inputs, outputs, op.attrs, source)

    def name(self, model: str) -> str:
        """Return the counterpart of a tensor of the second layer; other names stay."""
        name = self._names.get(model)
        if name is None:
            name = self._names[model] = self._lowered(model) or model
        if name != model and name not in self._known:
            self._known.add(name)
            self._note(model, name)
        return name

    def note_outputs(self) -> None:
        """Add the outputs of the network that are known."""
        for model in self.own & self.found.constants.keys():
            self.name(model)

    def _lowered(self, name: str) -> str | None:
        """Return the name that lowering derives from an op's name for a tensor or op."""
        owner, mark, rest = name.partition("~")
        own = self._layer.owners.get(owner) if mark else None
        return own and f"{own}~{rest}"

    def _note(self, model: str, name: str) -> None:
        info = self.found.infos[model]
        self.found.infos[name] = TensorInfo(name, info.dtype, info.shape)
        value: Array | None = self.found.constants.get(model)
        if value is not None:
            self.found.constants[name] = self._graph.constants.get(name, value)


def _charge(ops: Sequence[Op | None], meter: Meter) -> None:
    for op in ops:
        if op is not None and isinstance(op.attrs, RasterAttrs):
            meter.charge_pieces(len(op.attrs.regions), op.type, op.source or op.name)


def _unmarked(op: Op) -> Op:
    if not isinstance(op.source, Mark):
        return op
    return Op(op.type, op.name, op.inputs, op.outputs, op.attrs, str(op.source))
