"""Execution providers: the available ones, and the meaning of a program's list."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.onnxruntime.errors import InvalidArgument
from vkmnn.opening import CPU_DEVICE
from vkmnn.schedule_config import ScheduleConfig, precision_name

VULKAN = "VulkanExecutionProvider"
CPU = "CPUExecutionProvider"

ACCELERATORS = (
    *("TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider", "CUDAExecutionProvider"),
    *("MIGraphXExecutionProvider", "ROCMExecutionProvider", "OpenVINOExecutionProvider"),
    *("DnnlExecutionProvider", "VitisAIExecutionProvider", "QNNExecutionProvider"),
    *("NnapiExecutionProvider", "VSINPUExecutionProvider", "JsExecutionProvider"),
    *("CoreMLExecutionProvider", "DmlExecutionProvider", "RknpuExecutionProvider"),
    *("WebNNExecutionProvider", "WebGpuExecutionProvider", "XnnpackExecutionProvider"),
    *("CANNExecutionProvider", "ACLExecutionProvider", "ArmNNExecutionProvider"),
)
"""onnxruntime's accelerated providers, which Vulkan replaces."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Resolved providers of a session, in order with their options, and its configuration."""

    names: list[str]
    options: dict[str, dict[str, str]]
    config: ScheduleConfig


@dataclass(slots=True)
class _Forced:
    """Settings forced on all sessions; see `python -m vkmnn.onnxruntime`."""

    settings: dict[str, Any] | None = field(default=None)


_forced = _Forced()


def force(settings: Mapping[str, Any] | None) -> None:
    """Force these settings of `ScheduleConfig` on all later sessions; None ends it."""
    _forced.settings = None if settings is None else dict(settings)


@lru_cache(maxsize=1)
def _vulkan_device_types() -> tuple[str, ...]:
    from vkmnn.runtime.device import enumerate_devices

    return tuple(device.type.value for device in enumerate_devices(None))


def get_available_providers() -> list[str]:
    """Return the providers that work here, the fastest first."""
    return [VULKAN, CPU] if _vulkan_device_types() else [CPU]


def get_all_providers() -> list[str]:
    """Return the providers whose names are known here."""
    return [VULKAN, *ACCELERATORS, CPU]


def get_device() -> str:
    """Return "GPU-VULKAN"; "CPU-VULKAN" if Vulkan runs on the processor; else "CPU"."""
    types = set(_vulkan_device_types())
    if not types:
        return "CPU"
    return "CPU-VULKAN" if types <= {"cpu"} else "GPU-VULKAN"


def choose(
    providers: Sequence[Any] | str | None,
    provider_options: Sequence[Any] | None,
    no_cpu_fallback: bool,
) -> Chosen:
    """Resolve a list of providers.

    The first known provider decides: `VulkanExecutionProvider`, or one that it replaces, runs on
    the device and leaves unsupported ops to the CPU; `CPUExecutionProvider` runs everything on the
    CPU.

    Args:
        providers: names, or pairs of name and options; None for all that are available.
        provider_options: options by position, where `providers` holds names only.
        no_cpu_fallback: refuse to run an op off the device.

    Raises:
        ValueError: the arguments do not fit together.
        InvalidArgument: an option that Vulkan does not have, or a wrong value of one.
    """
    if isinstance(providers, str):
        providers = [providers]
    pairs = _pairs(providers, provider_options)
    known: dict[str, dict[str, str]] = {}
    for name, options in pairs:
        here = _known_name(name)
        if here is not None and here not in known:
            known[here] = options if here == name else {}
    if not known:
        known = {name: {} for name in get_available_providers()}
    known.setdefault(CPU, {})
    settings: dict[str, Any] = {"require_device": no_cpu_fallback}
    if next(iter(known)) == CPU:
        settings["device"] = CPU_DEVICE
    else:
        settings.update(_settings(known[VULKAN]))
    if _forced.settings is not None:
        settings.update(_forced.settings)
    return Chosen(list(known), known, ScheduleConfig(**settings))


def _pairs(
    providers: Sequence[Any] | None, provider_options: Sequence[Any] | None
) -> list[tuple[str, dict[str, str]]]:
    """Return names with options as text, with onnxruntime's checks and messages."""
    if providers is None:
        return []
    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if provider_options is not None:
        if not isinstance(provider_options, Sequence):
            raise ValueError("'provider_options' should be a sequence.")
        if len(providers) != len(provider_options):
            raise ValueError(
                "'providers' and 'provider_options' should be the same length if both are given."
            )
        if not all(isinstance(name, str) for name in providers):
            raise ValueError(
                "Only string values for 'providers' are supported if 'provider_options' is given."
            )
        if not all(isinstance(options, dict) for options in provider_options):
            raise ValueError("'provider_options' values must be dicts.")
        return [
            (name, _as_text(options))
            for name, options in zip(providers, provider_options, strict=True)
        ]
    return [_pair(item) for item in providers]


def _pair(item: object) -> tuple[str, dict[str, str]]:
    if isinstance(item, str):
        return item, {}
    if (
        isinstance(item, tuple)
        and len(item) == 2
        and isinstance(item[0], str)
        and isinstance(item[1], dict)
    ):
        return item[0], _as_text(item[1])
    raise ValueError("'providers' values must be either strings or (string, dict) tuples.")


def _as_text(options: Mapping[Any, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in options.items()}


def _known_name(name: str) -> str | None:
    """Return the provider for a name, and warn if it replaces another one."""
    available = get_available_providers()
    if name in available:
        return name
    text = (
        f"Specified provider '{name}' is not in available provider names."
        f"Available providers: '{', '.join(available)}'"
    )
    here = available[0] if name in (*ACCELERATORS, VULKAN) else None
    ending = f"; {here} takes its place" if here else "; it is ignored"
    warnings.warn(text + ending, UserWarning, stacklevel=4)
    return here


def _flag(text: str) -> bool:
    values = {"1": True, "true": True, "0": False, "false": False}
    return values[text.lower()]


_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "device_id": ("device", int),
    "device": ("device", str),
    "precision": ("precision", precision_name),
    "driver": ("driver", str),
    "validation": ("validation", _flag),
    "require_device": ("require_device", _flag),
    "on_device_lost": ("on_device_lost", str),
    "on_overflow": ("on_overflow", str),
    "max_plans": ("max_plans", int),
}


def _settings(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of VulkanExecutionProvider as settings of `ScheduleConfig`."""
    settings = {}
    for key, text in options.items():
        if key not in _OPTIONS:
            raise InvalidArgument(
                f"Unknown provider option: '{key}' of {VULKAN}",
                hint=f"it has: {', '.join(_OPTIONS)}",
            )
        name, parse = _OPTIONS[key]
        try:
            settings[name] = parse(text)
        except (KeyError, ValueError) as error:
            raise InvalidArgument(
                f"Provider option '{key}' of {VULKAN} cannot be '{text}'"
            ) from error
    return settings
