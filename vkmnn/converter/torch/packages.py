"""The packages of the extra `torch`, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from vkmnn.errors import MissingExtraError

PROGRAM = "a program of torch.export"


def need_torch(what: str) -> Any:
    """Return the package `torch`, after a check that its exporter works.

    Args:
        what: what it is needed for, as the error says it.

    Raises:
        MissingExtraError: `torch` or `onnxscript` is not installed.
    """
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("onnxscript")
    except ImportError as error:
        raise MissingExtraError(
            f"{what} takes the packages 'torch' and 'onnxscript': {error}",
            hint="pip install 'vkmnn[torch]'",
        ) from error
    return torch


def dynamo() -> Any | None:
    """Return the package `torch._dynamo`; None where PyTorch is not installed."""
    try:
        return importlib.import_module("torch._dynamo")
    except ImportError:
        return None
