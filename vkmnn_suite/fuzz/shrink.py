"""Makes a failing model smaller while it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Array
from vkmnn_suite.fuzz.case import Case, Feeds
from vkmnn_suite.fuzz.models import is_valid
from vkmnn_suite.fuzz.oracle import Oracle, OracleError, read_names

Fails = Callable[[Case], bool]

_PATIENCE_S = 10.0

_PARAMETERS = frozenset({"activation_alpha", "activation_beta"})
"""Attributes whose defaults differ from engine to engine: without them, models fail anyhow."""


def shrink(case: Case, fails: Fails, oracle: Oracle, patience_s: float = _PATIENCE_S) -> Case:
    """Return a smaller case that fails as well.

    Args:
        case: the failing case.
        fails: returns whether a case fails as the first one did.
        oracle: tells which cases are valid.
        patience_s: seconds after which the smallest case so far is good enough.
    """
    end = time.monotonic() + patience_s
    best = _Parts.of(case)
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for candidate in _smaller(best, oracle):
            if time.monotonic() > end:
                break
            made = candidate.case(case)
            if all(is_valid(made.model, feeds, oracle) for feeds in made.runs) and fails(made):
                best, progress = candidate, True
                break
    return best.case(case)


@dataclass(frozen=True)
class _Parts:
    """The parts of a case."""

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, Array]
    runs: tuple[Feeds, ...]
    outputs: tuple[str, ...]
    opsets: tuple[onnx.OperatorSetIdProto, ...]

    @classmethod
    def of(cls, case: Case) -> _Parts:
        graph = case.model.graph
        constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        outputs = tuple(value.name for value in graph.output)
        opsets = tuple(case.model.opset_import)
        return cls(tuple(graph.node), constants, case.runs, outputs, opsets)

    def pruned(self) -> _Parts:
        """Return the part on which the outputs depend."""
        needed = set(self.outputs)
        nodes = []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                nodes.append(node)
                needed.update(read_names(node))
        constants = {name: a for name, a in self.constants.items() if name in needed}
        runs = tuple({n: a for n, a in feeds.items() if n in needed} for feeds in self.runs)
        return replace(self, nodes=tuple(nodes[::-1]), constants=constants, runs=runs)

    def case(self, like: Case) -> Case:
        """Put the parts together again."""
        types = {value.name: value.type.tensor_type.elem_type for value in like.model.graph.output}
        inputs = []
        for name, array in self.runs[0].items():
            shapes = [feeds[name].shape for feeds in self.runs]
            dims = [
                sizes[0] if len(set(sizes)) == 1 else f"{name}_{axis}"
                for axis, sizes in enumerate(zip(*shapes, strict=True))
            ]
            code = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, code, dims))
        graph = helper.make_graph(
            self.nodes,
            "fuzz",
            inputs,
            [
                helper.make_tensor_value_info(name, types[name], None)
                if name in types
                else helper.make_empty_tensor_value_info(name)
                for name in self.outputs
            ],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        used = {node.domain for node in self.nodes} | {""}
        model = helper.make_model(
            graph,
            opset_imports=[opset for opset in self.opsets if opset.domain in used],
            ir_version=like.model.ir_version,
            producer_name=like.model.producer_name,
        )
        return replace(like, model=model, runs=self.runs)


def _smaller(parts: _Parts, oracle: Oracle) -> Iterator[_Parts]:
    """Yield smaller parts, the largest reductions first."""
    for run in range(len(parts.runs) if len(parts.runs) > 1 else 0):
        yield replace(parts, runs=(parts.runs[run],))
    if len(parts.outputs) > 1:
        for output in parts.outputs:
            yield replace(parts, outputs=(output,)).pruned()
    if len(parts.runs) == 1:
        yield from _cuts(parts, oracle)
    yield from _without_attributes(parts)
    if len(parts.runs) == 1:
        yield from _shorter(parts)
        yield from _plainer(parts)


def _cuts(parts: _Parts, oracle: Oracle) -> Iterator[_Parts]:
    """Feed the results of nodes: of all but one node, then of single nodes."""
    feeds = parts.runs[0]
    probe = Case(_bare(parts), parts.runs)
    try:
        tensors = oracle.evaluate(probe.model, feeds)
    except OracleError:
        return
    count = len(parts.nodes)
    fates = [[n for n in range(count) if n != kept] for kept in range(count)] if count > 1 else []
    fates += [[n] for n in range(count)] if count > 2 else []
    for dropped in fates:
        cut = {name for n in dropped for name in parts.nodes[n].output if name}
        kept = [node for n, node in enumerate(parts.nodes) if n not in dropped]
        outputs = tuple(name for name in parts.outputs if name not in cut)
        if not outputs or len(dropped) > 1:
            outputs = tuple(name for node in kept for name in node.output if name)
        run = {**feeds, **{name: tensors[name] for name in cut}}
        yield replace(parts, nodes=tuple(kept), runs=(run,), outputs=outputs).pruned()


def _bare(parts: _Parts) -> onnx.ModelProto:
    """Return a model for the oracle, which reads nodes and constants only."""
    constants = [numpy_helper.from_array(array, name) for name, array in parts.constants.items()]
    graph = helper.make_graph(parts.nodes, "bare", [], [], constants)
    return helper.make_model(graph, opset_imports=parts.opsets)


def _without_attributes(parts: _Parts) -> Iterator[_Parts]:
    for position, node in enumerate(parts.nodes):
        for attribute in node.attribute:
            if attribute.name in _PARAMETERS:
                continue
            less = onnx.NodeProto()
            less.CopyFrom(node)
            del less.attribute[:]
            less.attribute.extend(a for a in node.attribute if a.name != attribute.name)
            nodes = (*parts.nodes[:position], less, *parts.nodes[position + 1 :])
            yield replace(parts, nodes=nodes)


def _shorter(parts: _Parts) -> Iterator[_Parts]:
    """Cut all axes of one size to a smaller one."""
    sources = {**parts.constants, **parts.runs[0]}
    for size in sorted({n for array in sources.values() for n in array.shape}, reverse=True):
        for less in dict.fromkeys((1, 2, size // 2, size - 1)):
            if 0 < less < size:
                yield _mapped(parts, partial(_cut, size=size, less=less))


def _cut(array: Array, size: int, less: int) -> Array:
    return np.ascontiguousarray(
        array[tuple(slice(less) if n == size else slice(None) for n in array.shape)]
    ).reshape([less if n == size else n for n in array.shape])


def _plainer(parts: _Parts) -> Iterator[_Parts]:
    """Use simpler values for one tensor of floats."""
    sources: Sequence[str] = [*parts.constants, *parts.runs[0]]
    for name in sources:
        array: AnyArray | None = parts.constants.get(name, parts.runs[0].get(name))
        if array is None or array.dtype.kind != "f" or not np.isfinite(array).all():
            continue
        for plain in (np.ones_like(array), np.round(array), np.round(array, 1)):
            if not bool(np.array_equal(plain, array)):
                yield _mapped(parts, partial(_exchanged, old=array, new=plain))


def _exchanged(array: Array, old: Array, new: Array) -> Array:
    return new if array is old else array


def _mapped(parts: _Parts, function: Callable[[Array], Array]) -> _Parts:
    constants = {name: function(array) for name, array in parts.constants.items()}
    runs = tuple({n: function(a) for n, a in feeds.items()} for feeds in parts.runs)
    return replace(parts, constants=constants, runs=runs)
