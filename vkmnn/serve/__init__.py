"""Models over HTTP: OpenAI's API for language models, the Open Inference Protocol for others."""

from __future__ import annotations

from vkmnn.serve.app import make_app
from vkmnn.serve.limits import KEEP_ALIVE_S, Limits
from vkmnn.serve.models import Models

__all__ = ["KEEP_ALIVE_S", "Limits", "Models", "make_app"]
