"""Small language models with random weights, as files that describe their networks.

The weights are the same everywhere; `make_described.py` stores the results of transformers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]

VOCABULARY = 96
PROMPT = [5, 90, 7, 3, 50, 9, 11, 42, 17, 66, 81, 2, 30, 31, 8, 77, 64, 23, 12, 55]
TOKENS = 12

_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "head_dim": 16, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
_LONG = {"rope_type": "longrope", "rope_theta": 10000.0,
         "short_factor": [1.0 + 0.1 * n for n in range(6)],
         "long_factor": [2.0 + 0.5 * n for n in range(6)]}  # fmt: skip
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh",
          "tie_word_embeddings": True}  # fmt: skip
_BOTH_ROPES = {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
               "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 10000.0},
    "tied": {"model_type": "llama", "tie_word_embeddings": True, "rope_theta": 50000.0,
             "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "llama3": {"model_type": "llama", "rope_parameters": _LLAMA3},
    "linear": {"model_type": "llama", "rope_theta": 10000.0,
               "rope_scaling": {"type": "linear", "factor": 4.0}},
    "yarn": {"model_type": "llama", "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 128}},
    "dynamic": {"model_type": "llama", "rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
    "mistral": {"model_type": "mistral", "sliding_window": 8, "rope_theta": 10000.0},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1e6, "sliding_window": 8,
              "use_sliding_window": False, "max_window_layers": 1, "num_key_value_heads": 1},
    "qwen3": {"model_type": "qwen3", "head_dim": 24, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
              "sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3_full": {"model_type": "qwen3", "head_dim": 24, "rope_theta": 1e6},
    "gemma": {"model_type": "gemma", **_GEMMA, "num_key_value_heads": 1, "head_dim": 24},
    "gemma2": {"model_type": "gemma2", **_GEMMA, "sliding_window": 8, "head_dim": 24,
               "query_pre_attn_scalar": 20, "attn_logit_softcapping": 5.0,
               "final_logit_softcapping": 3.0},
    "gemma2_plain": {
        "model_type": "gemma2",
        **_GEMMA,
        "sliding_window": 8,
        "head_dim": 24,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {"model_type": "gemma3_text", **_GEMMA, "sliding_window": 8, "head_dim": 24,
               "num_hidden_layers": 7, "query_pre_attn_scalar": 24,
               "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
               "rope_parameters": _BOTH_ROPES},
    "phi3": {"model_type": "phi3", "partial_rotary_factor": 0.75, "sliding_window": 9,
             "original_max_position_embeddings": 256, "rope_parameters": _LONG},
    "phi3_long": {
        "model_type": "phi3",
        "sliding_window": None,
        "original_max_position_embeddings": 16,
        "rope_parameters": {
            **_LONG,
            "short_factor": [1.0 + 0.1 * n for n in range(8)],
            "long_factor": [2.0 + 0.5 * n for n in range(8)],
        },
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
                "sliding_window": None, "rope_theta": 1e6},
    "qwen2_moe": {"model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
                  "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
                  "qkv_bias": True, "use_sliding_window": False, "rope_theta": 1e6},
    "qwen3_moe": {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 32, "norm_topk_prob": True, "decoder_sparse_step": 1,
                  "mlp_only_layers": [], "use_sliding_window": False, "rope_theta": 1e6},
    "gpt_oss": {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
                "intermediate_size": 32, "sliding_window": 8, "attention_bias": True,
                "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                    "original_max_position_embeddings": 128, "beta_fast": 32.0,
                                    "beta_slow": 1.0, "truncate": False}},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 4, "rope_theta": 2e6,
                "tie_word_embeddings": True, "use_sliding_window": False},
    "smollm3_own": {"model_type": "smollm3", "num_hidden_layers": 3, "rope_theta": 10000.0,
                    "no_rope_layers": [0, 1, 1], "use_sliding_window": False},
    "granite": {"model_type": "granite", "rope_theta": 10000.0, "embedding_multiplier": 12.0,
                "attention_multiplier": 0.2, "residual_multiplier": 0.25, "logits_scaling": 8.0},
    "olmo2": {"model_type": "olmo2", "rope_theta": 10000.0},
    "ernie4_5": {"model_type": "ernie4_5", "rope_theta": 10000.0, "tie_word_embeddings": True},
    "glm": {"model_type": "glm", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
            "attention_bias": True},
    "glm4": {"model_type": "glm4", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
             "attention_bias": True},
    "cohere": {"model_type": "cohere", "rope_theta": 10000.0, "logit_scale": 0.25,
               "layer_norm_eps": 1e-5, "tie_word_embeddings": True, "use_qk_norm": False},
    "cohere2": {"model_type": "cohere2", "rope_theta": 10000.0, "logit_scale": 0.25,
                "num_hidden_layers": 4, "sliding_window": 8, "layer_norm_eps": 1e-5,
                "tie_word_embeddings": True},
    "stablelm": {"model_type": "stablelm", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                 "layer_norm_eps": 1e-5, "use_qkv_bias": True},
    "stablelm_parallel": {"model_type": "stablelm", "rope_theta": 10000.0,
                          "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5,
                          "use_parallel_residual": True},
    "phi": {"model_type": "phi", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
            "layer_norm_eps": 1e-5, "num_key_value_heads": 4, "hidden_act": "gelu_new"},
    "starcoder2": {"model_type": "starcoder2", "rope_theta": 10000.0, "norm_epsilon": 1e-5,
                   "sliding_window": 8, "use_bias": True, "hidden_act": "gelu_pytorch_tanh",
                   "tie_word_embeddings": True},
    "starcoder2_plain": {"model_type": "starcoder2", "rope_theta": 10000.0, "norm_epsilon": 1e-5,
                         "sliding_window": None, "use_bias": True,
                         "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True},
    "wide": {"model_type": "llama", **_WIDE, "rope_theta": 10000.0},
    "wide_qwen2": {"model_type": "qwen2", **_WIDE, "rope_theta": 1e6,
                   "tie_word_embeddings": True},
}  # fmt: skip
"""config.json of each model, without its sizes."""


def config_of(name: str) -> dict[str, Any]:
    """Return a whole config.json."""
    return {**_SIZES, **CONFIGS[name]}


MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")


def _experts(config: Mapping[str, Any], part: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the weights of a mixture."""
    mixtral, width = config["model_type"] == "mixtral", config["hidden_size"]
    inner = config["intermediate_size" if mixtral else "moe_intermediate_size"]
    count = config["num_local_experts" if mixtral else "num_experts"]
    whole = f"{part}.{'block_sparse_moe' if mixtral else 'mlp'}"
    yield f"{whole}.gate.weight", (count, width)
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for expert in range(count):
        for name in names[:2]:
            yield f"{whole}.experts.{expert}.{name}.weight", (inner, width)
        yield f"{whole}.experts.{expert}.{names[2]}.weight", (width, inner)
    if config["model_type"] == "qwen2_moe":
        shared = config["shared_expert_intermediate_size"]
        yield f"{whole}.shared_expert_gate.weight", (1, width)
        for name in ("gate", "up"):
            yield f"{whole}.shared_expert.{name}_proj.weight", (shared, width)
        yield f"{whole}.shared_expert.down_proj.weight", (width, shared)


def _expert_tensors(config: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the weights of the experts of gpt-oss, by the names in its GGUF files."""
    width, inner, count = (
        config[one] for one in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    return [
        ("router.weight", (count, width)), ("router.bias", (count,)),
        ("gate_exps.weight", (count, inner, width)), ("gate_exps.bias", (count, inner)),
        ("up_exps.weight", (count, inner, width)), ("up_exps.bias", (count, inner)),
        ("down_exps.weight", (count, width, inner)), ("down_exps.bias", (count, width)),
    ]  # fmt: skip


_FUSED_QKV = ("phi3",)
_FUSED_GATES = ("phi3", "glm", "glm4")
_UNGATED = {"phi": ("fc1", "fc2"), "starcoder2": ("c_fc", "c_proj")}
_LAYER_NORM = ("cohere", "cohere2", "stablelm", "phi", "starcoder2")
"""Families whose norms subtract the mean; all but Cohere's have biases."""
_FURTHER_NORMS = {
    **dict.fromkeys(("gemma2", "gemma3_text"), ("pre_feedforward_layernorm",
                                                "post_feedforward_layernorm")),
    "olmo2": ("post_feedforward_layernorm",),
    "glm4": ("post_self_attn_layernorm", "post_mlp_layernorm"),
}  # fmt: skip


def _norm(kind: str, name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (width,)
    if kind in _LAYER_NORM and not kind.startswith("cohere"):
        yield f"{name}.bias", (width,)


def _norms(config: Mapping[str, Any], part: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the norms of a layer."""
    kind, width, depth = (config[key] for key in ("model_type", "hidden_size", "head_dim"))
    if kind in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2"):
        for one, heads in (("q", "attention"), ("k", "key_value")):
            count = config[f"num_{heads}_heads"] if kind == "olmo2" else 1
            yield f"{part}.self_attn.{one}_norm.weight", (count * depth,)
    parallel = kind in ("cohere", "cohere2", "phi") or config.get("use_parallel_residual")
    if not parallel:
        yield from _norm(kind, f"{part}.post_attention_layernorm", width)
    for one in _FURTHER_NORMS.get(kind, ()):
        yield f"{part}.{one}.weight", (width,)


def _attention_shapes(
    config: Mapping[str, Any], part: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the matrices of attention, with biases where the family has some, and of gates."""
    kind, width, depth = (config[key] for key in ("model_type", "hidden_size", "head_dim"))
    wide, narrow = (config[f"num_{one}_heads"] * depth for one in ("attention", "key_value"))
    biased = config.get("attention_bias") or kind in ("qwen2", "qwen2_moe", "phi", "starcoder2")
    if kind in _FUSED_QKV:
        yield f"{part}.self_attn.qkv_proj.weight", (wide + 2 * narrow, width)
    for one, size in (("q", wide), ("k", narrow), ("v", narrow)) if kind not in _FUSED_QKV else ():
        yield f"{part}.self_attn.{one}_proj.weight", (size, width)
        if biased or config.get("use_qkv_bias"):
            yield f"{part}.self_attn.{one}_proj.bias", (size,)
    if kind not in (*MIXTURES, "gpt_oss"):
        yield from _gate_shapes(config, part)
    last = "dense" if kind == "phi" else "o_proj"
    yield f"{part}.self_attn.{last}.weight", (width, wide)
    if biased and kind not in ("qwen2", "qwen2_moe", "glm", "glm4"):
        yield f"{part}.self_attn.{last}.bias", (width,)


def _gate_shapes(config: Mapping[str, Any], part: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the first matrices of a feed-forward part without experts."""
    kind, width, inner = (config[key] for key in ("model_type", "hidden_size", "intermediate_size"))
    first, _ = _UNGATED.get(kind, ("", ""))
    names = [(first, inner)] if first else [("gate_proj", inner), ("up_proj", inner)]
    if kind in _FUSED_GATES:
        names = [("gate_up_proj", 2 * inner)]
    for name, rows in names:
        yield f"{part}.mlp.{name}.weight", (rows, width)
        if config.get("mlp_bias") or first:
            yield f"{part}.mlp.{name}.bias", (rows,)


def _shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the weights of a model by transformers' names, with their shapes."""
    kind, width = config["model_type"], config["hidden_size"]
    yield "model.embed_tokens.weight", (VOCABULARY, width)
    for layer in range(config["num_hidden_layers"]):
        part = f"model.layers.{layer}"
        if kind != "olmo2":
            yield from _norm(kind, f"{part}.input_layernorm", width)
        yield from _attention_shapes(config, part)
        if kind == "gpt_oss":
            yield f"{part}.self_attn.sinks", (config["num_attention_heads"],)
            for name, shape in _expert_tensors(config):
                yield f"{part}.mlp.{name}", shape
        elif kind in MIXTURES:
            yield from _experts(config, part)
        else:
            down = f"{part}.mlp.{_UNGATED.get(kind, ('', 'down_proj'))[1]}"
            yield f"{down}.weight", (width, config["intermediate_size"])
            if config.get("mlp_bias") or kind in _UNGATED:
                yield f"{down}.bias", (width,)
        yield from _norms(config, part)
    last = "final_layernorm" if kind == "phi" else "norm"
    yield from _norm(kind, f"model.{last}", width)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCABULARY, width)
    if kind == "phi":
        yield "lm_head.bias", (VOCABULARY,)


def weights_of(name: str, seed: int = 0) -> Arrays:
    """Return the weights of a model by transformers' names, float32."""
    config, rng = config_of(name), np.random.default_rng(seed)
    norms = 0.0 if config["model_type"].startswith("gemma") else 1.0
    made: Arrays = {}
    for key, shape in _shapes(config):
        values = rng.standard_normal(shape)
        if "norm" in key:
            values = norms + 0.2 * values
        elif "embed" in key:
            values *= 0.5 if norms else 0.06
        elif len(shape) == 2:
            values *= 1.5 / np.sqrt(shape[-1])
        else:
            values *= 0.3
        made[key] = values.astype(np.float32)
    return made


# --- safetensors ---------------------------------------------------------------------------------


def brain_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Return float32 truncated to bfloat16."""
    bits: npt.NDArray[np.uint16] = (values.view(np.uint32) >> 16).astype(np.uint16)
    return bits


def rounded(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Return float32 rounded to a type."""
    if dtype == "BF16":
        wide = brain_bits(values).astype(np.uint32) << 16
        return wide.view(np.float32)
    return values.astype(np.float16 if dtype == "F16" else np.float32).astype(np.float32)


def _stored(values: npt.NDArray[Any], dtype: str) -> bytes:
    if dtype == "BF16":
        return brain_bits(values).tobytes()
    return values.astype(np.float16 if dtype == "F16" else np.float32).tobytes()


def write_safetensors(path: Path, tensors: Arrays, dtype: str = "F32") -> None:
    """Write a file; bytes stay bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        whole = values.dtype == np.uint8
        stored = values.tobytes() if whole else _stored(values, dtype)
        header[name] = {"dtype": "U8" if whole else dtype, "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + len(stored)]}  # fmt: skip
        data += stored
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_folder(
    folder: Path, name: str, dtype: str = "F32", shards: int = 1, seed: int = 0
) -> Path:
    """Write a folder as `save_pretrained` does."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["ForCausalLM"], "torch_dtype": "float32", **config_of(name)}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    tensors = weights_of(name, seed)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return folder
    names, places = list(tensors), {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        mine = names[number::shards]
        write_safetensors(folder / file, {one: tensors[one] for one in mine}, dtype)
        places |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    return folder


_OF_FILES = ("wide", "wide_qwen2", "qwen3_full", "gemma2_plain", "gpt_oss", "starcoder2_plain")
FOLDERS: dict[str, tuple[str, str, int]] = {
    **{name: (name, "F32", 1) for name in CONFIGS if name not in _OF_FILES},
    "llama_f16": ("llama", "F16", 1),
    "qwen2_bf16": ("qwen2", "BF16", 3),
}
"""Folders with an oracle: the model, the type of its weights, the number of files."""


# --- GGUF ----------------------------------------------------------------------------------------

_ALIGN = 32
TYPES: dict[str, tuple[int, int, int]] = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136), "BF16": (30, 1, 2), "MXFP4": (39, 32, 17),
}  # fmt: skip
"""By name: number, weights and bytes of a block."""

_HALVES: dict[str, dict[int, float]] = {
    "Q4_0": {0: 1 / 8}, "Q4_1": {0: 1 / 5, 2: -1.5}, "Q5_0": {0: 1 / 16},
    "Q5_1": {0: 1 / 10, 2: -1.5}, "Q8_0": {0: 1 / 128}, "Q2_K": {80: 1 / 12, 82: 1.5 / 12},
    "Q3_K": {108: 1 / 100}, "Q4_K": {0: 1 / 300, 2: 7.5 / 300}, "Q5_K": {0: 1 / 600, 2: 15.5 / 600},
    "Q6_K": {208: 1 / 3000}, "IQ4_NL": {0: 1 / 120}, "IQ4_XS": {0: 1 / 3000},
}  # fmt: skip
"""Positions of the float16 numbers in a block, and their sizes for weights of about 1."""


def random_blocks(
    kind: str, shape: Sequence[int], scale: float, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Return the bytes of a matrix of random quantised values, with weights of about `scale`."""
    _, count, width = TYPES[kind]
    blocks = int(np.prod(shape)) // count
    data = rng.integers(0, 256, (blocks, width), dtype=np.uint8)
    for at, size in _HALVES.get(kind, {}).items():
        values = (scale * size * rng.uniform(0.8, 1.2, blocks)).astype("<f2")
        data[:, at : at + 2] = values.view(np.uint8).reshape(-1, 2)
    if kind in ("Q4_K", "Q5_K"):  # minima that bring weights near 0, as quantisers choose them
        scales = rng.integers(16, 64, (blocks, 8), dtype=np.uint8)
        minima = np.clip(scales + rng.integers(-8, 9, scales.shape), 0, 63).astype(np.uint8)
        data[:, 4:8] = scales[:, :4] | scales[:, 4:] >> 4 << 6
        data[:, 8:12] = minima[:, :4] | minima[:, 4:] >> 4 << 6
        data[:, 12:16] = scales[:, 4:] & 15 | minima[:, 4:] << 4
    elif kind == "Q2_K":
        scales = rng.integers(4, 15, (blocks, 16), dtype=np.uint8)
        minima = scales + rng.integers(-2, 2, scales.shape).astype(np.uint8)
        data[:, :16] = scales | minima << 4
    elif kind == "MXFP4":
        data[:, 0] = 127 + np.round(np.log2(scale / 4)) + rng.integers(-1, 2, blocks)
    return data.reshape(-1)


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _text(value)
    kind, data = _value(value[0])
    return 9, struct.pack("<IQ", kind, len(value)) + data + b"".join(
        _value(one)[1] for one in value[1:]
    )


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


SANDWICHED = ("gemma2", "gemma3_text", "gpt_oss", "olmo2")
"""Families whose GGUF files name the norm after attention so."""
Stored = tuple[str, tuple[int, ...], bytes]


def write_gguf(path: Path, keys: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Path:
    """Write a file of tensors: type, shape, bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, value in keys.items():
        kind, data = _value(value)
        head += _text(key) + struct.pack("<I", kind) + data
    at, body = 0, b""
    for name, (kind, shape, data) in tensors.items():
        head += _text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", TYPES[kind][0], at)
        body += data + b"\0" * (-len(data) % _ALIGN)
        at = len(body)
    path.write_bytes(head + b"\0" * (-len(head) % _ALIGN) + body)
    return path


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "w1": "ffn_gate", "w3": "ffn_up",
    "mlp.router": "ffn_gate_inp", "mlp.gate_exps": "ffn_gate_exps",
    "mlp.up_exps": "ffn_up_exps", "mlp.down_exps": "ffn_down_exps",
    "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "model.final_layernorm": "output_norm",
    "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
    "w2": "ffn_down", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str, sandwiched: bool) -> str:
    """Return the name that a converter to GGUF gives to a weight."""
    if name.endswith(".sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight"
    whole, _, kind = name.rpartition(".")
    if whole in GGUF_NAMES:
        return f"{GGUF_NAMES[whole]}.{kind}"
    _, _, layer, part = whole.split(".", 3)
    if ".experts." in part:  # all experts are one tensor
        return f"blk.{layer}.{GGUF_NAMES[part.rpartition('.')[2]]}_exps.{kind}"
    found = GGUF_NAMES[part]
    if sandwiched and part == "post_attention_layernorm":
        found = "post_attention_norm"
    return f"blk.{layer}.{found}.{kind}"


def paired(values: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Return queries or keys in the order that converters give to those of LLaMA."""
    cut = values.reshape(heads, 2, values.shape[0] // heads // 2, -1)
    return cut.swapaxes(1, 2).reshape(values.shape)


_ARCHITECTURES = {"gemma3_text": "gemma3", "mistral": "llama", "mixtral": "llama",
                  "gpt_oss": "gpt-oss", "qwen2_moe": "qwen2moe",
                  "qwen3_moe": "qwen3moe", "glm": "chatglm", "cohere": "command-r",
                  "phi": "phi2"}  # fmt: skip


WINDOWED = ("gemma2", "gemma3_text", "phi3", "gpt_oss", "cohere2")


_FACTORS = {"embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
            "attention_multiplier": "attention.scale", "logits_scaling": "logit_scale",
            "logit_scale": "logit_scale"}  # fmt: skip


def gguf_keys(name: str) -> dict[str, Any]:
    """Return the keys that a converter writes."""
    config = config_of(name)
    kind = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    rope = config.get("rope_parameters", {})
    keys: dict[str, Any] = {
        "general.architecture": kind, "general.name": name,
        f"{kind}.context_length": config["max_position_embeddings"],
        f"{kind}.embedding_length": config["hidden_size"],
        f"{kind}.block_count": config["num_hidden_layers"],
        f"{kind}.feed_forward_length": config["intermediate_size"],
        f"{kind}.attention.head_count": config["num_attention_heads"],
        f"{kind}.attention.head_count_kv": config["num_key_value_heads"],
        f"{kind}.attention.key_length": config["head_dim"],
        f"{kind}.attention.value_length": config["head_dim"],
        f"{kind}.attention.layer_norm_{'' if config['model_type'] in _LAYER_NORM else 'rms_'}"
        "epsilon": config["rms_norm_eps"],
        f"{kind}.rope.freq_base": float(config.get("rope_theta", rope.get("rope_theta", 10000.0))),
    }  # fmt: skip
    if config.get("sliding_window") and config["model_type"] in WINDOWED:
        keys[f"{kind}.attention.sliding_window"] = config["sliding_window"]
    for ours, theirs in (("attn_logit_softcapping", "attn_logit_softcapping"),
                         ("final_logit_softcapping", "final_logit_softcapping")):  # fmt: skip
        if ours in config:
            keys[f"{kind}.{theirs}"] = config[ours]
    for ours, theirs in _FACTORS.items():
        if ours in config:
            keys[f"{kind}.{theirs}"] = config[ours]
    if "num_experts_per_tok" in config:
        keys[f"{kind}.expert_used_count"] = config["num_experts_per_tok"]
    if "partial_rotary_factor" in config:
        keys[f"{kind}.rope.dimension_count"] = int(
            config["head_dim"] * config["partial_rotary_factor"]
        )
    if kind == "phi3":
        original = config["original_max_position_embeddings"]
        keys[f"{kind}.rope.scaling.original_context_length"] = original
        factor = config["max_position_embeddings"] / original
        keys[f"{kind}.rope.scaling.attn_factor"] = float(
            np.sqrt(1 + np.log(factor) / np.log(original))
        )
    if name == "gemma3":
        keys[f"{kind}.rope.freq_base"] = 1e6
        keys[f"{kind}.rope.scaling.type"] = "linear"
        keys[f"{kind}.rope.scaling.factor"] = 8.0
    if name in ("yarn", "gpt_oss"):
        keys[f"{kind}.rope.scaling.type"] = "yarn"
        keys[f"{kind}.rope.scaling.factor"] = 4.0
        keys[f"{kind}.rope.scaling.original_context_length"] = 128
    return keys


FILES: dict[str, tuple[str, str]] = {
    **{f"llama_{kind.lower()}": ("llama", kind) for kind in
       ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")},
    **{f"wide_{kind.lower()}": ("wide", kind) for kind in
       ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")},
    "qwen2_q4_k": ("wide_qwen2", "Q4_K"),
    "smollm3_q8_0": ("smollm3", "Q8_0"),
    "gpt_oss_mxfp4": ("gpt_oss", "MXFP4"), "mixtral_q4_0": ("mixtral", "Q4_0"),
    "qwen2_moe_q8_0": ("qwen2_moe", "Q8_0"),
    "qwen3_moe_q4_1": ("qwen3_moe", "Q4_1"),
    **{f"{name}_q8_0": (name, "Q8_0") for name in
       ("granite", "olmo2", "glm4", "cohere", "cohere2", "phi")},
    "starcoder2_q8_0": ("starcoder2_plain", "Q8_0"),
    "ernie4_5_f16": ("ernie4_5", "F16"), "glm_bf16": ("glm", "BF16"),
    "stablelm_q4_0": ("stablelm", "Q4_0"), "stablelm_parallel_f32": ("stablelm_parallel", "F32"),
    **{f"{name}_q8_0": (name, "Q8_0") for name in ("qwen3_full", "phi3", "yarn", "llama3")},
    **{f"{name}_q4_0": (name, "Q4_0") for name in ("gemma", "gemma2_plain", "gemma3")},
}  # fmt: skip
"""Files with an oracle: the model, and the type of its matrices."""


PAIRED = ("llama", "mistral", "mixtral", "smollm3", "granite")
"""Families whose queries and keys converters to GGUF put in pairs."""


def gguf_tensors(name: str, kind: str, seed: int = 0) -> dict[str, Stored]:
    """Return the tensors of a file: matrices of a type, vectors of float32."""
    config, rng = config_of(name), np.random.default_rng(seed + 1)
    made: dict[str, Stored] = {}
    sandwiched = config["model_type"] in SANDWICHED
    for key, values in weights_of(name, seed).items():
        ours = gguf_name(key, sandwiched)
        llama = config["model_type"] in PAIRED
        if len(values.shape) == 1 or key.endswith("bias"):
            if "norm" in key and config["model_type"].startswith("gemma"):
                values = values + 1
            made[ours] = ("F32", values.shape, values.tobytes())
            continue
        if kind in ("F32", "F16", "BF16"):
            for part, heads in (("q", "attention"), ("k", "key_value")):
                if llama and f"{part}_proj" in key:
                    values = paired(values, config[f"num_{heads}_heads"])
            made[ours] = (kind, values.shape, _stored(np.ascontiguousarray(values), kind))
        else:
            whole = values.shape[-1] % TYPES[kind][1] == 0
            used = kind if whole else "Q8_0"
            stored = random_blocks(used, values.shape, float(values.std()) * 1.5, rng).tobytes()
            made[ours] = _with_experts(made.get(ours), used, values.shape, stored)
    if name == "phi3":
        for part in ("short", "long"):
            factors = np.array(config["rope_parameters"][f"{part}_factor"], np.float32)
            made[f"rope_factors_{part}.weight"] = ("F32", factors.shape, factors.tobytes())
    if name == "llama3":
        factors = llama3_factors(config["rope_parameters"], config["head_dim"])
        made["rope_freqs.weight"] = ("F32", factors.shape, factors.tobytes())
    return made


def _with_experts(before: Stored | None, kind: str, shape: tuple[int, ...], data: bytes) -> Stored:
    """Return a matrix, or one that has the same name after those of other experts."""
    if before is None:
        return kind, shape, data
    count = before[1][0] if len(before[1]) == 3 else 1
    return kind, (count + 1, *shape), before[2] + data


def llama3_factors(rope: Mapping[str, Any], depth: int) -> npt.NDArray[np.float32]:
    """Return the divisors of the frequencies that converters write for Llama 3."""
    plain = rope["rope_theta"] ** (-np.arange(0, depth, 2) / depth)
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    found = []
    for one in 2 * np.pi / plain:
        if one < original / high:
            found.append(1.0)
        elif one > original / low:
            found.append(factor)
        else:
            smooth = (original / one - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


def write_file(path: Path, name: str, kind: str, seed: int = 0, **more: Any) -> Path:
    """Write a GGUF file as converters do."""
    return write_gguf(path, {**gguf_keys(name), **more}, gguf_tensors(name, kind, seed))
