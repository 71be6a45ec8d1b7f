"""PyTorch's fused layers of transformers, which the exporter to ONNX lacks, as plain operators.

Modules in the mode eval take them where no gradients are asked for.
"""

from __future__ import annotations

from math import inf
from typing import Any

_MASK, _PADDING = 0, 1
"""Kinds of masks: one for all batches, and one of keys for each batch; 2 has all four axes."""


def attention_layer(
    torch: Any,
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """`aten::_native_multi_head_attention`: projections, attention, and its weights."""
    linear = torch.nn.functional.linear
    heads = [
        linear(one, weight, bias).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for one, weight, bias in zip(
            (query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True
        )
    ]
    seen = None if mask is None else ~_spread(mask, mask_type).bool()  # -inf is true, too
    if not need_weights:
        made = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=seen)
        weights = query.new_empty(0)
    else:
        scores = heads[0] @ heads[1].transpose(-1, -2) * heads[0].shape[-1] ** -0.5
        weights = (scores if seen is None else scores.masked_fill(~seen, -inf)).softmax(-1)
        made = weights @ heads[2]
        weights = weights.mean(1) if average_attn_weights else weights
    return linear(made.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


def _spread(mask: Any, kind: int | None) -> Any:
    """Return a mask, true where nothing is seen, over batches, heads, queries and keys."""
    if kind == _MASK:
        return mask[None, None]
    return mask[:, None, None] if kind == _PADDING else mask


def encoder_layer(
    torch: Any,
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *weights: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """`aten::_transformer_encoder_layer_fwd`; `weights` are of two norms and two products."""
    if len(weights) > _WEIGHTS:
        mask, mask_type = (*weights[_WEIGHTS:], mask_type)[:2]
    functional = torch.nn.functional

    def norm(x: Any, place: int) -> Any:
        return functional.layer_norm(x, (embed_dim,), *weights[place : place + 2], eps)

    def attend(x: Any) -> Any:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        options = (mask, False, True, mask_type)
        return attention_layer(torch, x, x, x, embed_dim, num_heads, *projections, *options)[0]

    def feed(x: Any) -> Any:
        activate = functional.gelu if use_gelu else functional.relu
        return functional.linear(activate(functional.linear(x, *weights[4:6])), *weights[6:8])

    if norm_first:
        src = src + attend(norm(src, 0))
        return src + feed(norm(src, 2))
    src = norm(src + attend(src), 0)
    return norm(src + feed(src), 2)


_WEIGHTS = 8
