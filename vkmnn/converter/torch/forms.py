"""Operators that torch's exporter to ONNX lacks, or writes as loops, in terms of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any

from vkmnn.converter.torch.fused_forms import attention_layer, encoder_layer
from vkmnn.converter.torch.packages import PROGRAM, need_torch

_MEAN, _MAX = 1, 2
"""Modes of embedding bags; 0 is the sum."""


def with_forms(program: Any) -> Any:
    """Return a program whose operators torch's exporter takes; the same one where it has them."""
    torch = need_torch(PROGRAM)
    table = _table(torch)
    used = {node.target for node in _nodes(program)} & table.keys()
    if not used:
        return program
    program = program.run_decompositions({one: table[one] for one in used - _bags(torch)})
    if used & _bags(torch):
        for node in _nodes(program):
            if node.target in _bags(torch):
                _bags_of_one_size(torch, node)
        program = program.run_decompositions({one: table[one] for one in _bags(torch)})
    return program


def _nodes(program: Any) -> Iterator[Any]:
    """Yield the nodes of a program's graph, and of those inside it."""
    for module in program.graph_module.modules():
        yield from list(getattr(getattr(module, "graph", None), "nodes", ()))


def _bags(torch: Any) -> set[Any]:
    bag = torch.ops.aten.embedding_bag
    return {bag.default, bag.padding_idx}


def _table(torch: Any) -> Mapping[Any, Callable[..., Any]]:
    aten = torch.ops.aten
    forms = {
        aten.scaled_dot_product_attention.default: _attention,
        aten.sort.stable: _stable_sort,
        aten._native_multi_head_attention.default: attention_layer,
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
        aten.argsort.stable: _stable_order,
        aten.scatter_reduce.two: _scattered_mean,
        **dict.fromkeys(_bags(torch), _embedding_bag),
    }
    return {one: partial(_called, torch, one, form) for one, form in forms.items()}


def _called(
    torch: Any, operator: Any, form: Callable[[Any, Any], Any], *args: Any, **named: Any
) -> Any:
    """Call a form with the operator's arguments by their names."""
    formal = operator._schema.arguments
    given = {one.name: one.default_value for one in formal}
    given |= dict(zip((one.name for one in formal), args, strict=False)) | named
    return form(torch, SimpleNamespace(**given))


def _attention(torch: Any, given: Any) -> Any:
    """Attention on four axes, the only number that the exporter takes."""
    q, k, v, mask = given.query, given.key, given.value, given.attn_mask
    lead = q.dim() - 3
    if lead == 1:
        return NotImplemented
    attend = partial(
        torch.nn.functional.scaled_dot_product_attention,
        dropout_p=given.dropout_p,
        is_causal=given.is_causal,
        scale=given.scale,
        enable_gqa=given.enable_gqa,
    )
    if lead < 1:
        q, k, v = (one[(None,) * (4 - one.dim())] for one in (q, k, v))
        made = attend(q, k, v, mask)
        return made[0] if lead == 0 else made[0, 0]
    if mask is not None:
        mask = mask.expand(*q.shape[:-1], k.shape[-2]).flatten(0, lead - 1)
    flat = [one.flatten(0, lead - 1) for one in (q, k, v)]
    return attend(*flat, mask).unflatten(0, q.shape[:lead])


def _stable_sort(torch: Any, given: Any) -> Any:
    """Sort: the exporter's form, TopK, has equal elements in their order anyway."""
    return torch.ops.aten.sort.default(given.self, given.dim, given.descending)


def _stable_order(torch: Any, given: Any) -> Any:
    return _stable_sort(torch, given)[1]


def _scattered_mean(torch: Any, given: Any) -> Any:
    """Sum and count: the exporter's form of a mean is the last of the elements."""
    if given.reduce != "mean":
        return NotImplemented
    start, axis, places, rows = given.self, given.dim, given.index, given.src
    one = torch.ones_like(rows)
    if given.include_self:
        count = torch.ones_like(start).scatter_add(axis, places, one)
    else:
        start = start.scatter(axis, places, 0)
        count = torch.zeros_like(start).scatter_add(axis, places, one).clamp_min(1)
    mode = None if start.is_floating_point() else "floor"
    return torch.div(start.scatter_add(axis, places, rows), count, rounding_mode=mode)


def _bags_of_one_size(torch: Any, node: Any) -> None:
    """Give an embedding bag its indices on two axes where its offsets say that all are as long."""
    weight, indices, offsets, *rest = node.args
    uniform = offsets.target is torch.ops.aten.arange.start_step and offsets.args[0] == 0
    if not uniform or rest[4:5] == [True]:  # which has one offset more
        return
    count = offsets.args[2]
    with node.graph.inserting_before(node):
        rows = [
            one and node.graph.call_function(torch.ops.aten.reshape.default, (one, [-1, count]))
            for one in (indices, rest[3] if len(rest) > 3 else None)
        ]
    rest[3:4] = rows[1:] if len(rest) > 3 else []
    node.args = (weight, rows[0], offsets, *rest)


def _embedding_bag(torch: Any, given: Any) -> Any:
    """Bags as rows of the table, multiplied by which bags they are in and added."""
    indices, weight, offsets = given.indices, given.weight, given.offsets
    inside = _inside(torch, indices, offsets, given.include_last_offset)
    padding = getattr(given, "padding_idx", None)
    if padding is not None and padding >= 0:
        inside = inside & (indices != padding)
    rows = torch.nn.functional.embedding(indices, weight)
    if given.mode == _MAX:
        made = rows.masked_fill(~inside[..., None], -inf).amax(1)
        made = made.masked_fill(~inside.any(1, keepdim=True), 0)
    else:
        share = inside.to(weight.dtype)
        if given.per_sample_weights is not None:
            share = share * given.per_sample_weights
        made = (share[:, None] @ rows).squeeze(1) if indices.dim() == 2 else share @ rows
    if given.mode == _MEAN:
        made = made / inside.sum(1, keepdim=True).clamp_min(1).to(weight.dtype)
    return made, offsets, offsets, offsets


def _inside(torch: Any, indices: Any, offsets: Any, include_last: bool) -> Any:
    """Return which indices are in which bag."""
    if indices.dim() == 2:  # of `_bags_of_one_size`: a row for each bag
        return torch.ones_like(indices, dtype=torch.bool)
    places, count = torch.arange(indices.shape[0]), indices.shape[0]
    if include_last:
        starts, ends = offsets[:-1], offsets[1:]
    else:
        starts = offsets
        ends = torch.cat([offsets[1:], torch.full_like(offsets[:1], count)])
    return (places >= starts[:, None]) & (places < ends[:, None])
