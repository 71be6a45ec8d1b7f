"""Counts the Vulkan functions that command buffers call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from vkmnn.runtime.drivers.vulkan import command


def count_vulkan(calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Count calls by name from now on, until the patch is undone."""
    lib = command.lib

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(lib, name)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return function(*arguments)

        return call

    class Counted:
        def __getattr__(self, name: str) -> Any:
            made = counted(name) if name.startswith("vk") else getattr(lib, name)
            setattr(self, name, made)
            return made

    monkeypatch.setattr(command, "lib", Counted())
