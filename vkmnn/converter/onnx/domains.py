"""Domains of operators."""

from __future__ import annotations


def normal_domain(domain: str) -> str:
    """Return the domain as the table writes it: "" for ONNX's own, which "ai.onnx" also means."""
    return "" if domain == "ai.onnx" else domain
