"""Models over HTTP: OpenAI's API for language models, the Open Inference Protocol for others."""

from __future__ import annotations

from vkmnn.serve.access import Access, access_of, proxies_of, read_keys
from vkmnn.serve.app import App, make_app
from vkmnn.serve.joining import Batching
from vkmnn.serve.limits import KEEP_ALIVE_S, Limits
from vkmnn.serve.listening import bound, server_of
from vkmnn.serve.models import Caches, Models, Options, Running, load_models
from vkmnn.serve.observer import JsonLines, Observer, Traces
from vkmnn.serve.repository import Repository, Shelf

__all__ = [
    "KEEP_ALIVE_S",
    "Access",
    "App",
    "Batching",
    "Caches",
    "JsonLines",
    "Limits",
    "Models",
    "Observer",
    "Options",
    "Repository",
    "Running",
    "Shelf",
    "Traces",
    "access_of",
    "bound",
    "load_models",
    "make_app",
    "proxies_of",
    "read_keys",
    "server_of",
]
