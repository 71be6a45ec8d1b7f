"""Rewritten graphs of torch.compile's as programs of torch.export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkmnn.converter.torch import exporting
from vkmnn.torch.graphs import Refusal, Signature

_NOT_RANDOM = {"train": False, "training": False, "dropout_p": 0}
"""Arguments by which operators that may draw random numbers draw none."""


def export_graph(
    torch: Any, module: Any, signature: Signature, args: Sequence[Any], fixed: bool
) -> Any:
    """Return the program of a graph.

    Args:
        torch: the package.
        module: the rewritten graph, with its weights.
        signature: what it takes.
        args: arguments of a call to the original graph.
        fixed: whether all sizes are those of the arguments.

    Raises:
        Refusal: it draws random numbers or updates statistics.
        ConversionError: PyTorch cannot export it.
    """
    auto = torch.export.Dim.AUTO
    given, sizes = [], []
    for place in signature.fed:
        value = args[place]
        given.append(value)
        number = not isinstance(value, torch.Tensor)
        kept: Any = auto if number else dict.fromkeys(signature.open[place], auto)
        sizes.append(kept)
    with exporting("the graph"):
        program = torch.export.export(
            module, tuple(given), dynamic_shapes=None if fixed else tuple(sizes), strict=False
        )
    for graph in program.graph_module.modules():
        for node in getattr(graph, "graph", _Empty).nodes:
            _check(torch, node)
    return program


class _Empty:
    nodes: tuple[Any, ...] = ()


def _check(torch: Any, node: Any) -> None:
    """Refuse an operator whose results sessions do not reproduce."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return
    given = {
        one.name: node.args[place]
        if place < len(node.args)
        else node.kwargs.get(one.name, one.default_value)
        for place, one in enumerate(schema.arguments)
    }
    updates = given.get("training") or given.get("use_input_stats")
    if given.get("running_mean") is not None and updates:
        raise Refusal(f"{schema.name} updates its statistics", "call eval() on the module")
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return
    if not any(name in given and given[name] == value for name, value in _NOT_RANDOM.items()):
        raise Refusal(
            f"{schema.name} draws random numbers",
            "call eval() on the module, or pass the numbers as an argument",
        )
