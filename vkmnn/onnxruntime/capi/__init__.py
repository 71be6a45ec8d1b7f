"""Modules of onnxruntime that programs import for their exceptions and types."""

from __future__ import annotations
