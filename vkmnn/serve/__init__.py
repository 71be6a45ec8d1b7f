"""Models over HTTP: OpenAI's API for language models, the Open Inference Protocol for others."""

from __future__ import annotations

from vkmnn.serve.access import Access, access_of, proxies_of, read_keys
from vkmnn.serve.app import App, make_app
from vkmnn.serve.joining import Batching
from vkmnn.serve.limits import KEEP_ALIVE_S, Limits
from vkmnn.serve.listening import bound, server_of
from vkmnn.serve.models import Models, Running, load_models

__all__ = [
    "KEEP_ALIVE_S",
    "Access",
    "App",
    "Batching",
    "Limits",
    "Models",
    "Running",
    "access_of",
    "bound",
    "load_models",
    "make_app",
    "proxies_of",
    "read_keys",
    "server_of",
]
