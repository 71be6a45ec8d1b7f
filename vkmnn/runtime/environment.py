"""Environment variables of the runtime."""

from __future__ import annotations

import os
from typing import TypeVar

from vkmnn.base.budget import DEFAULT_NODES, Budget
from vkmnn.errors import InvalidInputError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})
_HOST_ENGINES = {
    "auto": ("onnxruntime", "onnx"),
    "onnxruntime": ("onnxruntime",),
    "onnx": ("onnx",),
}
_LONGEST_S = 1e9  # Vulkan counts nanoseconds in 64 bits


FASTEST = "fastest"
"""Device name that selects the fastest engine by measurement."""


_DEVICE_WORDS = frozenset({"auto", "cpu", FASTEST})

_Selector = TypeVar("_Selector", str, str | int)


def device_word(selector: _Selector) -> _Selector:
    """Return a selector of a device; "auto", "cpu" and "fastest" may be in upper case."""
    word = str(selector).strip().lower()
    return word if word in _DEVICE_WORDS else selector


def device_selector() -> str:
    """`VKMNN_DEVICE`: the device for "auto"; "fastest" also measures the default one."""
    selected = device_word(os.environ.get("VKMNN_DEVICE", "").strip())
    return selected if selected and selected != FASTEST else "auto"


def measures() -> bool:
    """`VKMNN_DEVICE`: whether it requests the fastest engine by measurement."""
    return device_word(os.environ.get("VKMNN_DEVICE", "")) == FASTEST


def driver() -> str:
    """`VKMNN_DRIVER`: the driver to use if a call names none."""
    return os.environ.get("VKMNN_DRIVER", "").strip() or "vulkan"


def validation() -> bool:
    """`VKMNN_VALIDATION`: whether devices are opened under the validation layer."""
    text = os.environ.get("VKMNN_VALIDATION", "").strip().lower()
    if text not in _TRUE | _FALSE:
        raise InvalidInputError(
            f"VKMNN_VALIDATION={text!r} is neither true nor false", hint="set it to 1 or 0"
        )
    return text in _TRUE


def pin_workers() -> bool:
    """`VKMNN_PIN_WORKERS`: whether each worker of a software device has its own processor."""
    text = os.environ.get("VKMNN_PIN_WORKERS", "").strip().lower() or "1"
    if text not in _TRUE | _FALSE:
        raise InvalidInputError(
            f"VKMNN_PIN_WORKERS={text!r} is neither true nor false", hint="set it to 1 or 0"
        )
    return text in _TRUE


def disabled_features() -> frozenset[str]:
    """`VKMNN_DISABLE_FEATURES`: features to disable, comma-separated; "all" leaves the minimum."""
    text = os.environ.get("VKMNN_DISABLE_FEATURES", "")
    return frozenset(item.strip() for item in text.split(",") if item.strip())


def device_profile() -> str:
    """`VKMNN_DEVICE_PROFILE`: the profile that every device emulates; "" for none."""
    return os.environ.get("VKMNN_DEVICE_PROFILE", "").strip()


def host_engines() -> tuple[str, ...]:
    """`VKMNN_HOST_ENGINE`: evaluators for nodes without a kernel, in order of preference."""
    text = os.environ.get("VKMNN_HOST_ENGINE", "").strip().lower() or "auto"
    engines = _HOST_ENGINES.get(text)
    if engines is None:
        known = ", ".join(_HOST_ENGINES)
        raise InvalidInputError(
            f"VKMNN_HOST_ENGINE={text!r} is not known", hint=f"set it to one of {known}"
        )
    return engines


def timeout_s() -> float:
    """`VKMNN_TIMEOUT`: seconds after which a running command buffer counts as a lost device."""
    text = os.environ.get("VKMNN_TIMEOUT", "").strip() or "300"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= _LONGEST_S:
        raise InvalidInputError(
            f"VKMNN_TIMEOUT={text!r} is not a number of seconds above 0 and up to {_LONGEST_S:g}",
            hint="for example 300",
        )
    return value


def tune() -> str:
    """`VKMNN_TUNE`: "off", "cached" (use earlier measurements) or "on" (measure new plans)."""
    text = os.environ.get("VKMNN_TUNE", "").strip().lower() or "cached"
    if text not in ("off", "cached", "on"):
        raise InvalidInputError(
            f"VKMNN_TUNE={text!r} is not known", hint="set it to off, cached or on"
        )
    return text


def storage() -> str:
    """`VKMNN_STORAGE`: "buffer", "image", or "auto" to choose by device."""
    text = os.environ.get("VKMNN_STORAGE", "").strip().lower() or "auto"
    if text not in ("auto", "buffer", "image"):
        raise InvalidInputError(
            f"VKMNN_STORAGE={text!r} is not known", hint="set it to auto, buffer or image"
        )
    return text


def proof() -> str:
    """`VKMNN_PROOF`: whether matrices and the like are timed and checked before their first use.

    "auto" does so once per GPU and driver version, "on" in every process and on any device, "off"
    never.
    """
    text = os.environ.get("VKMNN_PROOF", "").strip().lower() or "auto"
    if text not in ("auto", "on", "off"):
        raise InvalidInputError(
            f"VKMNN_PROOF={text!r} is not known", hint="set it to auto, on or off"
        )
    return text


def flags() -> str:
    """`VKMNN_FLAGS`: whether dispatches wait for each other by flags instead of barriers.

    "off" never, "on" on GPUs of a list that have proved it, "force" on every device, for tests.
    """
    text = os.environ.get("VKMNN_FLAGS", "").strip().lower() or "off"
    if text not in ("off", "on", "force"):
        raise InvalidInputError(
            f"VKMNN_FLAGS={text!r} is not known", hint="set it to off, on or force"
        )
    return text


def offline() -> bool:
    """`VKMNN_OFFLINE`, or the hub's own `HF_HUB_OFFLINE`: whether nothing may be downloaded."""
    texts = [os.environ.get(name, "").strip().lower() for name in ("VKMNN_OFFLINE", _HUB_OFFLINE)]
    if texts[0] not in _TRUE | _FALSE:
        raise InvalidInputError(
            f"VKMNN_OFFLINE={texts[0]!r} is neither true nor false", hint="set it to 1 or 0"
        )
    return not _TRUE.isdisjoint(texts)


def max_download() -> int:
    """`VKMNN_MAX_DOWNLOAD`: the most bytes that a name may download, or an archive hold."""
    usual = 64 << 30
    return int(_number("VKMNN_MAX_DOWNLOAD", usual, "bytes", "for example 20g", least=1))


_HUB_OFFLINE = "HF_HUB_OFFLINE"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def budget() -> Budget:
    """`VKMNN_MAX_BYTES`, `VKMNN_MAX_NODES`, `VKMNN_MAX_SECONDS`: limits for a model."""
    return Budget(
        int(_number("VKMNN_MAX_BYTES", 0, "bytes", "for example 4g", least=1)) or None,
        int(_number("VKMNN_MAX_NODES", DEFAULT_NODES, "nodes", "for example 100000", least=1)),
        _number("VKMNN_MAX_SECONDS", 0, "seconds", "for example 600") or None,
    )


def _number(variable: str, default: float, what: str, hint: str, least: float = 0) -> float:
    """Return the positive number in a variable; it may end in k, m, g or t."""
    text = os.environ.get(variable, "").strip().lower()
    if not text:
        return default
    unit = text[-1] if text[-1] in _UNITS else ""
    try:
        value = float(text[: len(text) - len(unit)]) * _UNITS[unit]
    except ValueError:
        value = -1.0
    if not 0 < value < 1e18 or value < least:
        raise InvalidInputError(
            f"{variable}={os.environ[variable]!r} is not a number of {what} above 0", hint=hint
        )
    return value
