"""Element types of a TorchScript module's inputs, from what its graph does with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


_INDICES = {
    "aten::embedding": (1,),
    "aten::embedding_bag": (1, 2),
    "aten::index_select": (2,),
    "aten::gather": (2,),
    "aten::scatter": (2,),
    "aten::scatter_add": (2,),
    "aten::scatter_reduce": (2,),
    "aten::index_add": (2,),
    "aten::index_copy": (2,),
    "aten::index_fill": (2,),
    "aten::take": (1,),
    "aten::take_along_dim": (1,),
    "aten::one_hot": (0,),
    "aten::bincount": (0,),
    "aten::repeat_interleave": (1,),
}
"""Operands that are indices."""

_MASKS = {
    "aten::masked_fill": (1,),
    "aten::masked_fill_": (1,),
    "aten::masked_select": (1,),
    "aten::masked_scatter": (1,),
    "aten::where": (0,),
    "aten::logical_not": (0,),
    "aten::bitwise_not": (0,),
}
"""Operands that are masks."""

_WHOLE = frozenset(("aten::eq", "aten::ne"))
"""Operators whose input is probably whole where the other operand is a whole number."""

_NEUTRAL = _aten("add sub rsub mul lt le gt ge size dim numel is_floating_point device")
"""Operators that suggest no type, unless their other operand is no whole number."""

_CONVERSIONS = frozenset(("aten::to", "aten::type_as", "aten::_cast_Float", "aten::float"))

_LAYERS = _aten(
    "_convolution _convolution_mode convolution conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d linear matmul mm bmm addmm baddbmm batch_norm layer_norm group_norm "
    "instance_norm"
)
"""Operators that read floats, not masks."""

_MOVES = _aten(
    "unsqueeze squeeze view reshape expand expand_as slice select permute transpose t repeat "
    "contiguous flatten unflatten clone detach alias narrow unfold chunk split unbind roll "
    "flip cat stack movedim broadcast_to tile"
)
"""Operators whose result has the type of their first operand, and its content."""

_LISTS = frozenset(("prim::ListConstruct", "prim::ListUnpack", "prim::TupleConstruct",
                    "prim::TupleUnpack"))  # fmt: skip


def kinds_by_use(torch: Any, module: Any, count: int) -> list[list[Any]]:
    """Return the likely element types of the first inputs, the likeliest first; empty if unknown.

    A use that only one type permits comes before one that suggests a type.
    """
    graph = module.graph.copy()
    torch._C._jit_pass_inline(graph)
    found = []
    for value in list(graph.inputs())[1 : count + 1]:
        uses = list(_uses(value))
        if any(_operand(use, _INDICES) for use in uses):
            found.append([torch.int64])
        elif any(_is_subscript(use) for use in uses):
            found.append([torch.int64, torch.bool])
        elif any(_operand(use, _MASKS) for use in uses):
            found.append([torch.bool])
        elif _are_whole(uses):
            found.append([torch.int64])
        else:
            found.append([])
    return found


def _uses(value: Any) -> Iterator[Any]:
    """Yield the uses of a value that are not mere moves, also those of what they return."""
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        for use in value.uses():
            node = use.user
            moved = (node.kind() in _MOVES and (use.offset == 0)) or node.kind() in _LISTS
            if not moved or _is_subscript_list(node):
                yield use
                continue
            for result in node.outputs():
                if result.unique() not in seen:
                    seen.add(result.unique())
                    waiting.append(result)


def _operand(use: Any, table: Mapping[str, tuple[int, ...]]) -> bool:
    return use.offset in table.get(use.user.kind(), ())


def _is_subscript_list(node: Any) -> bool:
    """Return whether a node makes the list of indices of `x[...]`."""
    if node.kind() != "prim::ListConstruct":
        return False
    uses = list(node.output().uses())
    return bool(uses) and all(
        use.user.kind() in ("aten::index", "aten::index_put", "aten::index_put_")
        and use.offset == 1
        for use in uses
    )


def _is_subscript(use: Any) -> bool:
    return _is_subscript_list(use.user)


def _are_whole(uses: list[Any]) -> bool:
    """Return whether uses suggest whole numbers: comparisons with some, or conversions."""
    telling = [use for use in uses if not (use.user.kind() in _NEUTRAL and _by_whole(use))]
    return bool(telling) and all(
        _by_whole(use) if use.user.kind() in _WHOLE else use.offset == 0 and _converts(use.user)
        for use in telling
    )


def _by_whole(use: Any) -> bool:
    """Return whether the other operand, if there is one, is a whole number of the graph."""
    others = [one for place, one in enumerate(use.user.inputs()) if place != use.offset]
    if not others:
        return True
    value = others[0].toIValue()
    whole = getattr(value, "is_floating_point", None)  # of a tensor
    return isinstance(value, int) if whole is None else not bool(whole())


def _converts(node: Any) -> bool:
    """Return whether a node converts whole numbers to floats or truths: not merely moves a tensor.

    Images are converted too, to the type of the layer that reads them.
    """
    if node.kind() not in _CONVERSIONS:
        return False
    if any(use.user.kind() in _LAYERS for use in _uses(node.output())):
        return False
    if node.kind() != "aten::to":
        return True
    kinds = [one.toIValue() for one in list(node.inputs())[1:3]]
    return any(kind in _OTHER_KINDS for kind in kinds if type(kind) is int)


_OTHER_KINDS = frozenset((5, 6, 7, 11, 15))
"""PyTorch's numbers of float16, float32, float64, bool and bfloat16."""
