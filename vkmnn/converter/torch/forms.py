"""Operators that torch's exporter to ONNX lacks, or writes as loops, in terms of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
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
    return {
        aten.scaled_dot_product_attention.default: partial(_attention, torch),
        aten.sort.stable: partial(_stable_sort, torch),
        aten._native_multi_head_attention.default: partial(attention_layer, torch),
        aten._transformer_encoder_layer_fwd.default: partial(encoder_layer, torch),
        aten.argsort.stable: partial(_stable_order, torch),
        **{one: partial(_embedding_bag, torch) for one in _bags(torch)},
    }


def _attention(
    torch: Any, q: Any, k: Any, v: Any, attn_mask: Any = None, *options: Any, **named: Any
) -> Any:
    """Attention on four axes, the only number that the exporter takes."""
    attend = torch.nn.functional.scaled_dot_product_attention
    lead = q.dim() - 3
    if lead == 1:
        return NotImplemented
    if lead < 1:
        q, k, v = (one[(None,) * (4 - one.dim())] for one in (q, k, v))
        made = attend(q, k, v, attn_mask, *options, **named)
        return made[0] if lead == 0 else made[0, 0]
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*q.shape[:-1], k.shape[-2]).flatten(0, lead - 1)
    flat = [one.flatten(0, lead - 1) for one in (q, k, v)]
    return attend(*flat, attn_mask, *options, **named).unflatten(0, q.shape[:lead])


def _stable_sort(
    torch: Any, x: Any, stable: Any = None, dim: int = -1, descending: bool = False
) -> Any:
    """Sort: the exporter's form, TopK, has equal elements in their order anyway."""
    return torch.ops.aten.sort.default(x, dim, descending)


def _stable_order(
    torch: Any, x: Any, stable: Any = None, dim: int = -1, descending: bool = False
) -> Any:
    return torch.ops.aten.sort.default(x, dim, descending)[1]


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


def _embedding_bag(
    torch: Any,
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Bags as rows of the table, multiplied by which bags they are in and added."""
    if indices.dim() == 2:  # of `_bags_of_one_size`: a row for each bag
        inside = torch.ones_like(indices, dtype=torch.bool)
    else:
        starts = offsets[:-1] if include_last_offset else offsets
        ends = torch.cat([offsets[1:], torch.full_like(offsets[:1], indices.shape[0])])
        places = torch.arange(indices.shape[0])
        ends = offsets[1:] if include_last_offset else ends
        inside = (places >= starts[:, None]) & (places < ends[:, None])
    if padding_idx is not None and padding_idx >= 0:
        inside = inside & (indices != padding_idx)
    rows = torch.nn.functional.embedding(indices, weight)
    if mode == _MAX:
        made = rows.masked_fill(~inside[..., None], -inf).amax(1)
        made = made.masked_fill(~inside.any(1, keepdim=True), 0)
    else:
        share = inside.to(weight.dtype)
        if per_sample_weights is not None:
            share = share * per_sample_weights
        made = (share[:, None] @ rows).squeeze(1) if indices.dim() == 2 else share @ rows
    if mode == _MEAN:
        made = made / inside.sum(1, keepdim=True).clamp_min(1).to(weight.dtype)
    return made, offsets, offsets, offsets
