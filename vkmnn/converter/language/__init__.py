"""Language models of GGUF files and of safetensors: the network is built from its description."""

from __future__ import annotations

from vkmnn.converter.language.front_end import LanguageFrontEnd
from vkmnn.converter.language.source import LanguageSource, is_described, read_source

__all__ = ["LanguageFrontEnd", "LanguageSource", "is_described", "read_source"]
