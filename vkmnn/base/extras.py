"""Optional packages, imported on demand."""

from __future__ import annotations

import importlib
from typing import Any

from vkmnn.errors import MissingExtraError


def need(package: str, what: str, extra: str = "llm", hint: str = "") -> Any:
    """Import and return a package.

    Args:
        package: its name.
        what: its purpose, for the error.
        extra: the extra of vkmnn that installs it.
        hint: how to install or avoid it, for packages of no extra.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f"{what} takes the package '{package}', which is not installed",
            hint=hint or f"pip install 'vkmnn[{extra}]'",
        ) from error
