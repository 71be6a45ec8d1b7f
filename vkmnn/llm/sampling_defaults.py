"""The sampling options that a model's files recommend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vkmnn.base.config_file import Section
from vkmnn.llm.layout import Layout


@dataclass(frozen=True, slots=True)
class _Option:
    """An option of sampling in the files of a model.

    Attributes:
        key: its key in generation_config.json and in the section `search` of genai_config.json.
        gguf: its key in a GGUF file.
        standard: value of a model that samples and lacks the key.
        most: largest value.
        off: value that stands for any number at or below 0, as some files write it.
    """

    key: str
    gguf: str
    standard: float
    most: float
    off: float


_OPTIONS: Mapping[str, _Option] = {
    "temperature": _Option("temperature", "temp", 1.0, 100.0, 0.0),
    "top_k": _Option("top_k", "top_k", 50, 2**31 - 1, 0),  # 50 as in transformers and in genai
    "top_p": _Option("top_p", "top_p", 1.0, 1.0, 1.0),
    "min_p": _Option("min_p", "min_p", 0.0, 1.0, 0.0),
    "repetition_penalty": _Option("repetition_penalty", "penalty_repeat", 1.0, 100.0, 1.0),
}
_GREEDY = ("temperature", "top_k", "top_p", "min_p")
"""Options without effect on a model that does not sample."""

_GGUF = "general.sampling."


def sampling_defaults(layout: Layout) -> dict[str, float]:
    """Return recommended options by the names of `LanguageModel.generate`; empty without any.

    As in transformers and onnxruntime-genai, a folder's model samples only if `do_sample` is true.
    A GGUF file has keys `general.sampling.*`; with any of them but the penalty, it samples.

    Raises:
        ModelFileError: a value is of the wrong type or out of its range.
    """
    if layout.keys:
        section = Section(layout.decoder, layout.keys)
        given = {name: _GGUF + one.gguf for name, one in _OPTIONS.items()}
        found = {name: _value(section, key, name) for name, key in given.items() if key in section}
        samples = any(name in found for name in _GREEDY)
        return {"temperature": _OPTIONS["temperature"].standard, **found} if samples else found
    search = layout.search
    if search.flag("do_sample"):
        return {
            name: _value(search, one.key, name) if one.key in search else one.standard
            for name, one in _OPTIONS.items()
        }
    return {
        name: _value(search, one.key, name)
        for name, one in _OPTIONS.items()
        if name not in _GREEDY and one.key in search
    }


def _value(section: Section, key: str, name: str) -> float:
    option = _OPTIONS[name]
    value = section.real(key)
    if value <= 0:
        return option.off
    if value > option.most or (isinstance(option.off, int) and not value.is_integer()):
        whole = "a whole number" if isinstance(option.off, int) else "a number"
        raise section.wrong(key, f"{whole} up to {option.most:g}")
    return int(value) if isinstance(option.off, int) else value
