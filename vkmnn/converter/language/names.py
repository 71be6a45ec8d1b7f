"""The names that transformers gives to weights, as those that GGUF files have."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WHOLE = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "norm.bias": "output_norm.bias",
    "final_layernorm.weight": "output_norm.weight",
    "final_layernorm.bias": "output_norm.bias",
    "lm_head.weight": "output.weight",
    "lm_head.bias": "output.bias",
}
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.dense": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_gate_up",
    "mlp.down_proj": "ffn_down",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate_exps": "ffn_gate_exps",
    "mlp.up_exps": "ffn_up_exps",
    "mlp.down_exps": "ffn_down_exps",
    "self_attn.sinks": "attn_sinks",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
_OF_EXPERT = {"w1": "ffn_gate", "w2": "ffn_down", "w3": "ffn_up", "gate_proj": "ffn_gate",
              "down_proj": "ffn_down", "up_proj": "ffn_up"}  # fmt: skip
_EXPERT = re.compile(r"(?:block_sparse_moe|mlp)\.experts\.(?P<expert>\d{1,4})\.(?P<part>\w+)")
_LAYER = re.compile(r"layers\.(?P<layer>\d{1,4})\.(?P<part>.+?)(?:\.(?P<kind>weight|bias))?")
_PREFIX = re.compile(r"^(model\.language_model\.|language_model\.model\.|language_model\.|model\.)")
_IGNORED = re.compile(r"rotary_emb\.inv_freq$|^(vision_tower|multi_modal_projector|visual)\.|"
                      r"^model\.(vision_tower|multi_modal_projector|visual)\.")  # fmt: skip


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Return the transformers names of GGUF's tensors; unknown names stay.

    Weights of parts that do not generate text are left out.
    """
    given = [name for name in names if not _IGNORED.search(name)]
    sandwiched = any(".post_feedforward_layernorm." in name for name in given)
    return {name: _plain(name, sandwiched) for name in given}


def _plain(name: str, sandwiched: bool) -> str:
    short = _PREFIX.sub("", name)
    match = _LAYER.fullmatch(short)
    if match is None:
        return _WHOLE.get(short, name)
    part = match["part"]
    # After attention if there is also a norm after the gates, else the one before them.
    if sandwiched and part == "post_attention_layernorm":
        known: str | None = "post_attention_norm"
    elif (expert := _EXPERT.fullmatch(part)) and expert["part"] in _OF_EXPERT:
        known = f"{_OF_EXPERT[expert['part']]}.{int(expert['expert'])}"
    else:
        known = _OF_LAYER.get(part)
    kind = match["kind"] or "weight"  # sinks are called nothing else
    return name if known is None else f"blk.{int(match['layer'])}.{known}.{kind}"
