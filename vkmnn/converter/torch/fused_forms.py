"""PyTorch's fused layers of transformers, which the exporter to ONNX lacks, as plain operators.

Modules in the mode eval take them where no gradients are asked for.
"""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

_MASK, _PADDING = 0, 1
"""Kinds of masks: one for all batches, and one of keys for each batch; 2 has all four axes."""


def attention_layer(torch: Any, given: Any) -> tuple[Any, Any]:
    """`aten::_native_multi_head_attention`: projections, attention, and its weights."""
    linear = torch.nn.functional.linear
    weights, biases = given.qkv_weight.chunk(3), given.qkv_bias.chunk(3)
    q, k, v = (
        linear(one, weight, bias).unflatten(-1, (given.num_head, -1)).transpose(1, 2)
        for one, weight, bias in zip(
            (given.query, given.key, given.value), weights, biases, strict=True
        )
    )
    seen = None if given.mask is None else ~_spread(given).bool()  # -inf is true, too
    if given.need_weights:
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        shares = (scores if seen is None else scores.masked_fill(~seen, -inf)).softmax(-1)
        made = shares @ v
        shares = shares.mean(1) if given.average_attn_weights else shares
    else:
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        shares = q.new_empty(0)
    return linear(made.transpose(1, 2).flatten(2), given.proj_weight, given.proj_bias), shares


def _spread(given: Any) -> Any:
    """Return a mask, true where nothing is seen, over batches, heads, queries and keys."""
    if given.mask_type == _MASK:
        return given.mask[None, None]
    return given.mask[:, None, None] if given.mask_type == _PADDING else given.mask


def encoder_layer(torch: Any, given: Any) -> Any:
    """`aten::_transformer_encoder_layer_fwd`: attention and two products, each normalised."""
    functional = torch.nn.functional
    activate = functional.gelu if given.use_gelu else functional.relu

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, (given.embed_dim,), weight, bias, given.eps)

    def attend(x: Any) -> Any:
        inner = {"query": x, "key": x, "value": x, "num_head": given.num_heads}
        return attention_layer(
            torch, SimpleNamespace(**{**vars(given), **inner, "need_weights": False})
        )[0]

    def feed(x: Any) -> Any:
        wide = activate(functional.linear(x, given.ffn_weight_1, given.ffn_bias_1))
        return functional.linear(wide, given.ffn_weight_2, given.ffn_bias_2)

    first = given.norm_weight_1, given.norm_bias_1
    second = given.norm_weight_2, given.norm_bias_2
    if given.norm_first:
        x = given.src + attend(norm(given.src, *first))
        return x + feed(norm(x, *second))
    x = norm(given.src + attend(given.src), *first)
    return norm(x + feed(x), *second)
