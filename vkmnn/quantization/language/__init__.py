"""Language models: folders and GGUF files, quantised as a whole."""

from __future__ import annotations

from vkmnn.quantization.language.folders import is_language_model

__all__ = ["is_language_model"]
