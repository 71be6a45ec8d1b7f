"""Differences between families of language models, as plain data."""

from __future__ import annotations

from dataclasses import field

from vkmnn.base.records import dataclass
from vkmnn.converter.language.rope import Rope


@dataclass(frozen=True, slots=True)
class Family:
    """Peculiarities of a family, beyond its sizes and tensors.

    Attributes:
        activation: activation of the gates: "silu" or "gelu_tanh".
        gated: values between the two products of the feed-forward part are gated.
        layer_norm: norms subtract the mean, and may have a bias.
        normed_after: layers have norms after attention and gates, none before; queries and keys
            are normalised whole, not by head.
        parallel: where a layer has one norm, attention and feed-forward part both read it.
        paired: the rotary halves of queries and keys are in pairs, in files of all formats.
        near_only: only layers with windows have a rotary embedding.
        scaled: embeddings are multiplied by the root of the width.
        one_more: norms in safetensors hold their factors less one.
        pattern: of this many layers, all but the last have windows; 0 for all, -1 for none.
        unturned: of so many layers, the last one has no rotary embedding; 0 for none.
        limit: limit of the experts' gates; 1 is then also added to the values that they gate
            (gpt-oss).
    """

    activation: str = "silu"
    gated: bool = True
    layer_norm: bool = False
    normed_after: bool = False
    parallel: bool = False
    paired: bool = False
    near_only: bool = False
    scaled: bool = False
    one_more: bool = False
    pattern: int = 0
    unturned: int = 0
    limit: float = 0.0


FAMILIES: dict[str, Family] = {
    "llama": Family(pattern=-1),
    "mistral": Family(),
    "qwen2": Family(pattern=-1),
    "qwen3": Family(pattern=-1),
    "gemma": Family("gelu_tanh", scaled=True, one_more=True, pattern=-1),
    "gemma2": Family("gelu_tanh", scaled=True, one_more=True, pattern=2),
    "gemma3": Family("gelu_tanh", scaled=True, one_more=True, pattern=6),
    "phi3": Family(),
    "smollm3": Family(pattern=-1, unturned=4),
    "mixtral": Family(),
    "qwen2_moe": Family(pattern=-1),
    "qwen3_moe": Family(pattern=-1),
    "gpt_oss": Family(pattern=2, limit=7.0),
    "granite": Family(pattern=-1),
    "olmo2": Family(pattern=-1, normed_after=True),
    "ernie4_5": Family(pattern=-1, paired=True),
    "glm": Family(pattern=-1, paired=True),
    "glm4": Family(pattern=-1, paired=True),
    "cohere": Family(pattern=-1, layer_norm=True, parallel=True, paired=True),
    "cohere2": Family(pattern=4, layer_norm=True, parallel=True, paired=True, near_only=True),
    "stablelm": Family(pattern=-1, layer_norm=True, parallel=True),
    "phi": Family("gelu_tanh", gated=False, pattern=-1, layer_norm=True, parallel=True),
    "starcoder2": Family("gelu_tanh", gated=False, layer_norm=True),
}
"""By `model_type` of config.json."""

GGUF_FAMILIES = {
    **{
        name: name
        for name in (
            "llama",
            "qwen2",
            "qwen3",
            "gemma",
            "gemma2",
            "gemma3",
            "phi3",
            "smollm3",
            "granite",
            "olmo2",
            "ernie4_5",
            "glm4",
            "cohere2",
            "stablelm",
            "starcoder2",
        )
    },
    "chatglm": "glm",
    "command-r": "cohere",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
}
"""By `general.architecture`; Mistral and Mixtral call themselves llama."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A language model of the kind of LLaMA.

    Attributes:
        family: a key of `FAMILIES`.
        layers: how many.
        width: width of the residual stream.
        heads, kv_heads: number of heads of queries, and of keys and values.
        depth: elements of a head.
        context: the most tokens that it was trained for.
        epsilon: epsilon of its norms.
        scale: scale of the scores.
        ropes: by layer; None for a layer without rotary embedding.
        windows: by layer, -1 for none: how many keys a row sees, itself included.
        embedding_scale, residual_scale, logit_scale: factors of embeddings, of what layers add to
            the residual stream, and of the logits.
        score_cap, logit_cap: tanh bounds them; 0 for none.
        experts: number of experts per token in a mixture; 0 for none.
        normalised: whether the shares of the chosen experts add up to 1.
    """

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    depth: int
    context: int
    epsilon: float
    scale: float
    ropes: tuple[Rope | None, ...]
    windows: tuple[int, ...]
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    experts: int = 0
    normalised: bool = False
    traits: Family = field(default_factory=Family)
