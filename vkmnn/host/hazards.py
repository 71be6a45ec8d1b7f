"""Nodes that would end the process or never return in an evaluator, which does not check them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

_LEAF = b"LEAF"
_OF_INVERSE = "com.microsoft"
_NO_INDEX = "TfIdfVectorizer has n-grams outside of its pool, or without an index"


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model at any depth, those of its functions included."""
    pending = [model.graph.node, *(function.node for function in model.functions)]
    while pending:
        for node in pending.pop():
            yield node
            pending += [graph.node for graph in held_graphs(node)]


def held_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node, whatever the declared type of their attribute."""
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def hazard_of_onnxruntime(model: onnx.ModelProto) -> str | None:
    """Return why onnxruntime would crash the process, or None."""
    fed = {value.name for value in model.graph.input}
    outer = {id(node) for node in model.graph.node}
    for node in all_nodes(model):
        if node.op_type == "TfIdfVectorizer" and not _has_all_indexes(_attributes(node)):
            return _NO_INDEX
        if _is_inverse(node) and not (id(node) in outer and fed.issuperset(node.input)):
            return "Inverse takes matrices whose shape nothing checks"
    return None


def hazard_of_onnx(model: onnx.ModelProto) -> str | None:
    """Return why onnx's evaluator would not return, or None."""
    for node in all_nodes(model):
        if node.op_type in ("TreeEnsembleClassifier", "TreeEnsembleRegressor"):
            if _has_cycle(_named_branches(_attributes(node))):
                return f"{node.op_type} has a branch that leads back"
        elif node.op_type == "TfIdfVectorizer" and not _has_all_indexes(_attributes(node)):
            return _NO_INDEX
        elif node.op_type == "TreeEnsemble":
            branches = _numbered_branches(_attributes(node))
            targets = [target for group in branches.values() for target in group]
            if len(set(targets)) < len(targets) or _has_cycle(branches):
                return "TreeEnsemble has a node that two branches lead to"
    return None


def matrices_to_invert(model: onnx.ModelProto) -> frozenset[str]:
    """Return the inputs whose last two sizes onnxruntime assumes to be equal."""
    return frozenset(node.input[0] for node in model.graph.node if _is_inverse(node))


def _is_inverse(node: onnx.NodeProto) -> bool:
    return node.op_type == "Inverse" and node.domain == _OF_INVERSE and len(node.input) == 1


def _attributes(node: onnx.NodeProto) -> Mapping[str, Any]:
    from onnx import helper

    return {one.name: helper.get_attribute_value(one) for one in node.attribute if one.type}


def _has_all_indexes(attributes: Mapping[str, Any]) -> bool:
    """Whether all n-grams are inside the pool and have an index, as evaluators assume."""
    pool = len(attributes.get("pool_int64s") or attributes.get("pool_strings") or ())
    starts = attributes.get("ngram_counts", ())
    ends = [*starts[1:], pool]
    pairs = list(zip(starts, ends, strict=False))
    if any(not 0 <= start <= end <= pool for start, end in pairs):
        return False
    count = sum((end - start) // length for length, (start, end) in enumerate(pairs, 1))
    indexes = attributes.get("ngram_indexes", ())
    return count <= len(indexes) and min(indexes, default=0) >= 0


def _named_branches(attributes: Mapping[str, Any]) -> dict[Any, list[Any]]:
    """Return the targets of each node's branches, by tree and node number."""
    columns = ("treeids", "nodeids", "modes", "truenodeids", "falsenodeids")
    rows = zip(*(attributes.get(f"nodes_{name}", ()) for name in columns), strict=False)
    return {
        (tree, node): [] if mode == _LEAF else [(tree, yes), (tree, no)]
        for tree, node, mode, yes, no in rows
    }


def _numbered_branches(attributes: Mapping[str, Any]) -> dict[Any, list[Any]]:
    """Return the targets of each node's branches, without leaves, by node position."""
    sides = [
        list(zip(attributes.get(ids, ()), attributes.get(leaves, ()), strict=False))
        for ids, leaves in (
            ("nodes_truenodeids", "nodes_trueleafs"),
            ("nodes_falsenodeids", "nodes_falseleafs"),
        )
    ]
    return {
        place: [target for target, is_leaf in pair if not is_leaf]
        for place, pair in enumerate(zip(*sides, strict=False))
    }


def _has_cycle(branches: Mapping[Any, Iterable[Any]]) -> bool:
    """Whether some path along the branches returns to a node."""
    counts = dict.fromkeys(branches, 0)
    for targets in branches.values():
        for target in targets:
            counts[target] = counts.get(target, 0) + 1
    ready = [place for place, count in counts.items() if not count]
    done = 0
    while ready:
        done += 1
        for target in branches.get(ready.pop(), ()):
            counts[target] -= 1
            if not counts[target]:
                ready.append(target)
    return done < len(counts)
