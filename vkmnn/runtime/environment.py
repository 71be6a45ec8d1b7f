"""The environment variables that the runtime reads, in one place."""

from __future__ import annotations

import os
from pathlib import Path

from vkmnn.errors import InvalidInputError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


def device_selector() -> str:
    """`VKMNN_DEVICE`: the device that "auto" stands for."""
    return os.environ.get("VKMNN_DEVICE", "").strip() or "auto"


def driver() -> str:
    """`VKMNN_DRIVER`: the driver to use when a call names none."""
    return os.environ.get("VKMNN_DRIVER", "").strip() or "vulkan"


def validation() -> bool:
    """`VKMNN_VALIDATION`: whether devices are opened under the validation layer."""
    text = os.environ.get("VKMNN_VALIDATION", "").strip().lower()
    if text not in _TRUE | _FALSE:
        raise InvalidInputError(
            f"VKMNN_VALIDATION={text!r} is neither true nor false", hint="set it to 1 or 0"
        )
    return text in _TRUE


def disabled_features() -> frozenset[str]:
    """`VKMNN_DISABLE_FEATURES`: features to leave off, by commas; "all" leaves the floor alone."""
    text = os.environ.get("VKMNN_DISABLE_FEATURES", "")
    return frozenset(item.strip() for item in text.split(",") if item.strip())


def timeout_s() -> float:
    """`VKMNN_TIMEOUT`: seconds that a command buffer may take before the device counts as lost."""
    text = os.environ.get("VKMNN_TIMEOUT", "").strip() or "300"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise InvalidInputError(
            f"VKMNN_TIMEOUT={text!r} is not a number of seconds above 0", hint="for example 300"
        )
    return value


def tune() -> str:
    """`VKMNN_TUNE`: "off", "cached" (use what was measured before) or "on" (measure new plans)."""
    text = os.environ.get("VKMNN_TUNE", "").strip().lower() or "cached"
    if text not in ("off", "cached", "on"):
        raise InvalidInputError(
            f"VKMNN_TUNE={text!r} is not known", hint="set it to off, cached or on"
        )
    return text


def cache_dir() -> Path:
    """`VKMNN_CACHE_DIR`: where caches are kept, by default `vkmnn` in the user's cache folder."""
    text = os.environ.get("VKMNN_CACHE_DIR", "").strip()
    if text:
        return Path(text).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "vkmnn"
