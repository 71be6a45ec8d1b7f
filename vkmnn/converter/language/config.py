"""config.json of a folder as an architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vkmnn.base.config_file import Section
from vkmnn.converter.language.architecture import FAMILIES, Architecture, Family
from vkmnn.converter.language.rope import FORMS, Rope
from vkmnn.errors import ModelFileError

_TYPES = {"gemma3_text": "gemma3"}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
               "query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 1e6,
               "rope_local_base_freq": 10000.0, "max_position_embeddings": 131072},
    "gemma2": {"query_pre_attn_scalar": 256, "sliding_window": 4096},
    "smollm3": {"num_key_value_heads": 4, "rope_theta": 2e6, "max_position_embeddings": 32768},
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
                "rope_theta": 150000.0, "rms_norm_eps": 1e-5, "num_experts_per_tok": 4,
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
                                 "beta_slow": 1.0, "truncate": False,
                                 "original_max_position_embeddings": 4096}},
    "olmo2": {"rms_norm_eps": 1e-5},
    "ernie4_5": {"rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    "glm": {"rms_norm_eps": 1.5625e-07, "head_dim": 128, "partial_rotary_factor": 0.5},
    "glm4": {"rms_norm_eps": 1.5625e-07, "head_dim": 128, "partial_rotary_factor": 0.5},
    "cohere": {"logit_scale": 0.0625, "layer_norm_eps": 1e-5},
    "cohere2": {"logit_scale": 0.0625, "layer_norm_eps": 1e-5, "sliding_window": 4096},
    "stablelm": {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25},
    "phi": {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    "starcoder2": {"norm_epsilon": 1e-5},
}  # fmt: skip
"""Defaults that files omit: transformers only writes values that differ from them."""
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
_REFUSED = ("use_bidirectional_attention", "use_qk_norm", "qk_layernorm")
"""Switches that add parts to layers which are not built."""
_NORMALISED = ("mixtral", "gpt_oss")
"""Families in which the shares of the chosen experts always add up to 1."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_DEEPEST, _WIDEST = 4096, 1 << 20


def architecture_of(config: Section) -> Architecture:
    """Return the architecture that a config.json describes.

    Raises:
        ModelFileError: its family is not known, a value is missing, or has another type.
    """
    inner = config.section("text_config") if "text_config" in config else config
    kind = inner.text("model_type") or config.text("model_type")
    family = _TYPES.get(kind, kind)
    if family not in FAMILIES:
        raise unknown(config.path.parent.name or str(config.path), kind, FAMILIES)
    whole = inner.with_defaults(_DEFAULTS.get(family, {}))
    return _Config(whole, family, FAMILIES[family]).read()


def unknown(what: str, kind: str, known: Sequence[str] | dict[str, Family]) -> ModelFileError:
    """Return the error for an unknown family."""
    return ModelFileError(
        f"'{what}' is of the family '{kind[:100]}', whose layers are not known",
        hint=f"these are: {', '.join(sorted(known))}; export others: optimum-cli export onnx",
    )


def bounded(section: Section, key: str, value: int, most: int = _WIDEST) -> int:
    """Return a size that has to be there.

    Raises:
        ModelFileError: it is missing, or out of all proportion.
    """
    if not 0 < value <= most:
        raise section.wrong(key, f"a number from 1 to {most}")
    return value


class _Config:
    def __init__(self, section: Section, family: str, traits: Family) -> None:
        self._section, self._family, self._traits = section, family, traits

    def _size(self, key: str, default: int = 0, most: int = _WIDEST) -> int:
        found = self._section.number(key) or default
        return bounded(self._section, key, found, most)

    def read(self) -> Architecture:
        section = self._section
        layers = self._size("num_hidden_layers", most=_DEEPEST)
        width, heads = self._size("hidden_size"), self._size("num_attention_heads")
        depth = self._size("head_dim", width // heads)
        self._check()
        sliding = self._sliding(layers)
        ropes = self._ropes(depth)
        window = section.number("sliding_window")
        root = section.real("query_pre_attn_scalar", float(depth))
        experts = section.number("num_experts_per_tok") if self._mixes() else 0
        return Architecture(
            family=self._family,
            layers=layers,
            width=width,
            heads=heads,
            kv_heads=self._size("num_key_value_heads", heads),
            depth=depth,
            context=section.number("max_position_embeddings"),
            epsilon=next((section.real(one) for one in _EPSILONS if one in section), 1e-6),
            scale=section.real("attention_multiplier", (root if root > 0 else depth) ** -0.5),
            ropes=tuple(
                ropes[one] if turned else None
                for one, turned in zip(sliding, self._turned(sliding), strict=True)
            ),
            windows=tuple(window if one and window else -1 for one in sliding),
            embedding_scale=section.real(
                "embedding_multiplier", width**0.5 if self._traits.scaled else 1.0
            ),
            residual_scale=section.real("residual_multiplier", 1.0),
            logit_scale=self._logit_scale(),
            score_cap=section.real("attn_logit_softcapping"),
            logit_cap=section.real("final_logit_softcapping"),
            experts=experts,
            normalised=section.flag("norm_topk_prob", self._family in _NORMALISED),
            traits=replace(self._traits, limit=section.real("swiglu_limit", self._traits.limit))
            if self._traits.limit
            else self._traits,
        )

    def _check(self) -> None:
        """Refuse values that the layers of the family do not have here."""
        section = self._section
        known: tuple[str, ...] = ("silu",) if self._traits.activation == "silu" else _TANH
        if self._traits.scaled:  # Gemma's true activation has another key
            known = ("silu", "gelu", *_TANH)
        if section.text("hidden_act", known[0]) not in known:
            raise section.wrong("hidden_act", " or ".join(known))
        for one in _REFUSED:
            if section.flag(one):
                raise section.wrong(one, "false")

    def _logit_scale(self) -> float:
        divisor = self._section.real("logits_scaling", 1.0)
        if divisor == 0:
            raise self._section.wrong("logits_scaling", "a number other than 0")
        return self._section.real("logit_scale", 1.0) / divisor

    def _mixes(self) -> bool:
        return any(key in self._section for key in ("num_local_experts", "num_experts"))

    def _sliding(self, layers: int) -> list[bool]:
        """Return which layers have windows."""
        section = self._section
        given = section.texts("layer_types")
        if given:
            if len(given) != layers or not set(given) <= {_FULL, _SLIDING}:
                raise section.wrong("layer_types", f"{layers} of {_FULL} and {_SLIDING}")
            return [one == _SLIDING for one in given]
        if "max_window_layers" in section:  # of Qwen's
            used = section.flag("use_sliding_window")
            first = section.number("max_window_layers")
            return [used and one >= first for one in range(layers)]
        pattern = section.number("sliding_window_pattern") or self._traits.pattern
        return [pattern == 0 or (pattern > 0 and (one + 1) % pattern != 0) for one in range(layers)]

    def _turned(self, sliding: list[bool]) -> list[bool]:
        """Tell which layers have a rotary embedding."""
        section, every = self._section, self._traits.unturned
        layers = len(sliding)
        if self._traits.near_only:
            return sliding
        if not every:
            return [True] * layers
        if "no_rope_layers" in section:  # called so, but 1 says that a layer has one
            given = section.reals("no_rope_layers")
            if len(given) != layers or not set(given) <= {0.0, 1.0}:
                raise section.wrong("no_rope_layers", f"{layers} of 0 and 1")
            return [one == 1.0 for one in given]
        every = section.number("no_rope_layer_interval") or every
        return [(one + 1) % every != 0 for one in range(layers)]

    def _ropes(self, depth: int) -> dict[bool, Rope]:
        """Return the rotary embeddings of layers without and with windows."""
        section = self._section
        given = section.section("rope_parameters")
        if _FULL in given or _SLIDING in given:
            full, local = (given.section(one) for one in (_FULL, _SLIDING))
            return {False: self._rope(full, depth), True: self._rope(local, depth)}
        where = given if "rope_parameters" in section else section.section("rope_scaling")
        whole = self._rope(where, depth)
        if "rope_local_base_freq" not in section:
            return {False: whole, True: whole}
        near = Rope(whole.width, section.real("rope_local_base_freq"))
        return {False: whole, True: checked(near, section, depth)}

    def _rope(self, given: Section, depth: int) -> Rope:
        section = self._section
        form = given.text("rope_type") or given.text("type") or "default"
        form = {"su": "longrope", "mrope": "default"}.get(form, form)
        if form not in FORMS:
            raise given.wrong("rope_type", f"one of {', '.join(FORMS)}")
        share = given.real("partial_rotary_factor", section.real("partial_rotary_factor", 1.0))
        context = section.number("max_position_embeddings")
        original = (given.number("original_max_position_embeddings")
                    or section.number("original_max_position_embeddings"))  # fmt: skip
        factor = given.real("factor", context / original if original else 1.0)
        base = given.real("rope_theta", section.real("rope_theta", 10000.0))
        rope = Rope(
            width=int(depth * share) // 2 * 2,
            base=base,
            form=form,
            factor=factor,
            original=original or context,
            low=given.real("low_freq_factor", 1.0),
            high=given.real("high_freq_factor", 4.0),
            fast=given.real("beta_fast", 32.0),
            slow=given.real("beta_slow", 1.0),
            whole=given.flag("truncate", True),
            attention=given.real("attention_factor") if "attention_factor" in given else None,
            short=tuple(given.reals("short_factor")),
            long=tuple(given.reals("long_factor")),
        )
        if "mscale" in given or "mscale_all_dim" in given:
            raise given.wrong("mscale", "nothing: only DeepSeek's attention has it")
        return checked(rope, given, depth)


def checked(rope: Rope, section: Section, depth: int) -> Rope:
    """Return a rotary embedding with validated numbers.

    Args:
        rope: the embedding.
        section: the section that defines it.
        depth: elements of a head.

    Raises:
        ModelFileError: one does not.
    """
    half = rope.width // 2
    if not 0 < rope.width <= depth:
        raise section.wrong("partial_rotary_factor", f"a share of the {depth} elements of a head")
    if rope.base <= 1 or rope.factor <= 0 or rope.low >= rope.high:
        raise section.wrong("rope_theta", "a base above 1, with a factor above 0")
    if rope.form in ("llama3", "yarn", "longrope", "dynamic") and rope.original < 2:
        raise section.wrong("original_max_position_embeddings", "the original context")
    if rope.form == "yarn" and not 0 < rope.slow < rope.fast:
        raise section.wrong("beta_fast", "more than beta_slow, which is above 0")
    if rope.form == "longrope":
        for name, factors in (("short_factor", rope.short), ("long_factor", rope.long)):
            if len(factors) != half or min(factors) <= 0:
                raise section.wrong(name, f"{half} numbers above 0")
    return rope
