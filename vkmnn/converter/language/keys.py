"""The keys of a GGUF file as an architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.config_file import Section
from vkmnn.converter.language.architecture import (
    FAMILIES,
    GGUF_FAMILIES,
    Architecture,
)
from vkmnn.converter.language.config import bounded, checked, unknown
from vkmnn.converter.language.rope import Rope
from vkmnn.errors import ModelFileError

_FORMS = {"": "default", "none": "default", "linear": "linear", "yarn": "yarn",
          "longrope": "longrope"}  # fmt: skip
_LOCAL_BASE = 10000.0
_WHOLE_HEADS = {"gemma2": 46, "gemma3": 62}
"""Layers of the one size of a family whose scores are scaled by the width per head."""


def section_of(path: Path, keys: Mapping[str, Any]) -> Section:
    """Return keys as the object of a configuration: whose values are checked when they are read."""
    plain = {
        key: value.tolist() if isinstance(value, np.ndarray) and value.size <= 1 << 16 else value
        for key, value in keys.items()
    }
    return Section(path, plain)


def family_of(path: Path, keys: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the architecture in the file, and the family.

    Raises:
        ModelFileError: it is not known.
    """
    section = section_of(path, keys)
    name = section.text("general.architecture")
    if not name:
        raise ModelFileError(
            f"'{path}' is a GGUF file, but not a language model: it has no general.architecture",
            hint="download or convert the model again",
        )
    if name not in GGUF_FAMILIES:
        raise unknown(path.name, name, sorted(GGUF_FAMILIES))
    return name, GGUF_FAMILIES[name]


def architecture_of_keys(
    path: Path, keys: Mapping[str, Any], factors: Mapping[str, tuple[float, ...]]
) -> Architecture:
    """Return the architecture that the keys of a file describe.

    Args:
        path: the file.
        keys: keys by name.
        factors: divisors of the frequencies, from those of the tensors rope_freqs,
            rope_factors_short and rope_factors_long that exist.

    Raises:
        ModelFileError: its family is not known, a value is missing, or has another type.
    """
    name, family = family_of(path, keys)
    section, traits = section_of(path, keys), FAMILIES[family]

    def size(key: str, default: int = 0, most: int = 1 << 20) -> int:
        whole = f"{name}.{key}"
        return bounded(section, whole, section.number(whole) or default, most)

    layers = size("block_count", most=4096)
    width, heads = size("embedding_length"), _heads(section, f"{name}.attention.head_count")
    depth = size("attention.key_length", width // heads)
    if size("attention.value_length", depth) != depth:
        raise section.wrong(f"{name}.attention.value_length", f"{depth}, as of keys")
    window = section.number(f"{name}.attention.sliding_window")
    pattern = traits.pattern
    sliding = [bool(window) and (pattern == 0 or (pattern > 0 and (one + 1) % pattern != 0))
               for one in range(layers)]  # fmt: skip
    rope = _rope(section, name, depth, factors)
    local = rope
    if family == "gemma3":
        base = section.real(f"{name}.rope.freq_base_swa", _LOCAL_BASE)
        local = checked(Rope(rope.width, base), section, depth)
    root = width / heads if _WHOLE_HEADS.get(family) == layers else depth
    return Architecture(
        family=family,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=_heads(section, f"{name}.attention.head_count_kv", heads),
        depth=depth,
        context=section.number(f"{name}.context_length"),
        epsilon=section.real(
            f"{name}.attention.layer_norm_{'' if traits.layer_norm else 'rms_'}epsilon",
            1e-5 if traits.layer_norm else 1e-6,
        ),
        scale=section.real(f"{name}.attention.scale", root**-0.5),
        ropes=tuple(
            None
            if (traits.unturned and (layer + 1) % traits.unturned == 0)
            or (traits.near_only and not one)
            else local
            if one
            else rope
            for layer, one in enumerate(sliding)
        ),
        windows=tuple(window if one else -1 for one in sliding),
        embedding_scale=section.real(
            f"{name}.embedding_scale", width**0.5 if traits.scaled else 1.0
        ),
        residual_scale=section.real(f"{name}.residual_scale", 1.0),
        logit_scale=_logit_scale(section, f"{name}.logit_scale", family),
        score_cap=section.real(f"{name}.attn_logit_softcapping"),
        logit_cap=section.real(f"{name}.final_logit_softcapping"),
        experts=section.number(f"{name}.expert_used_count"),
        normalised=family != "qwen2_moe",
        traits=traits,
    )


def _logit_scale(section: Section, key: str, family: str) -> float:
    scale = section.real(key, 1.0)
    if scale == 0:
        raise section.wrong(key, "a number other than 0")
    return 1 / scale if family == "granite" else scale


def _heads(section: Section, key: str, default: int = 0) -> int:
    """Return a number of heads, which may be given for each layer."""
    if not section.is_list(key):
        return bounded(section, key, section.number(key) or default)
    found = set(section.reals(key))
    if len(found) != 1:
        raise section.wrong(key, "the same number for all layers")
    return bounded(section, key, int(found.pop()))


def _rope(
    section: Section, name: str, depth: int, factors: Mapping[str, tuple[float, ...]]
) -> Rope:
    scaling = f"{name}.rope.scaling"
    written = section.text(f"{scaling}.type")
    if written not in _FORMS:
        raise section.wrong(f"{scaling}.type", f"one of {', '.join(filter(None, _FORMS))}")
    form = _FORMS[written]
    context = section.number(f"{name}.context_length")
    original = section.number(f"{scaling}.original_context_length")
    factor = section.real(f"{scaling}.factor", section.real(f"{name}.rope.scale_linear", 1.0))
    attention = section.real(f"{scaling}.attn_factor", 1.0)
    short, long = factors.get("rope_factors_short", ()), factors.get("rope_factors_long", ())
    if factors.get("rope_freqs"):  # Llama 3: the same for any length of text
        form, short = "longrope", factors["rope_freqs"]
        long, original = short, original or context
    elif short and long:
        form = "longrope"
    elif form == "default" and factor > 1:
        form = "linear"
    # Only YaRN's share follows from the factor; the file has all others.
    share = None if form == "yarn" and attention == 1.0 else attention
    return checked(
        Rope(
            width=section.number(f"{name}.rope.dimension_count") or depth,
            base=section.real(f"{name}.rope.freq_base", 10000.0),
            form=form,
            factor=factor,
            original=max(original or context, 2),
            fast=section.real(f"{scaling}.yarn_beta_fast", 32.0),
            slow=section.real(f"{scaling}.yarn_beta_slow", 1.0),
            whole=name != "gpt-oss",
            attention=share,
            short=short,
            long=long,
        ),
        section,
        depth,
    )
