"""MNN's configurations: dictionaries, backend names, and their meaning here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError
from vkmnn.opening import CPU_DEVICE
from vkmnn.schedule_config import Level, NetworkPath, PathNames, ScheduleConfig, checked_names

CPU_TYPE, VULKAN_TYPE = 0, 7

_GPU = {
    1: "METAL",
    2: "CUDA",
    3: "OPENCL",
    4: "AUTO",
    5: "NN",
    6: "OPENGL",
    7: "VULKAN",
    8: "HIAI",
    9: "TRT",
}
_PRECISIONS = {
    "high": "high",
    "normal": "normal",
    "low": "low",
    "lowBF": "normal",  # bfloat16, whose range float16 arithmetic does not have
    "low_bf16": "normal",
    "Low_BF16": "normal",
    0: "normal",
    1: "high",
    2: "low",
    3: "normal",
}
_LEVELS: Mapping[Any, Level] = {
    "normal": "normal",
    "high": "high",
    "low": "low",
    0: "normal",
    1: "high",
    2: "low",
}


@dataclass(frozen=True, slots=True)
class Runtime:
    """Runtime settings from `createRuntime` for `createSession`."""

    config: ScheduleConfig


_IGNORED = {"mode"}
_PATHS = {"saveTensors", "inputPaths", "outputPaths"}
_OWN = {"device", "execution", "allocator", "out_of_range", "on_overflow"}
_KNOWN = {"backend", "precision", "numThread", "power", "memory", *_OWN, *_PATHS, *_IGNORED}


def ignored(what: str) -> None:
    """Warn, once for a caller, that something has no effect."""
    warnings.warn(f"vkmnn.mnn ignores {what}", stacklevel=3)


def schedule(config: Mapping[str, Any] | None) -> ScheduleConfig:
    """Return the configuration for MNN's dictionary.

    "backend" defaults to "VULKAN", which also replaces other GPU backends, with a warning.
    "inputPaths" are the ops, or tensors, where the network starts, and "outputPaths" where it then
    ends; without the first, the second are additional outputs. vkmnn's own keys are "device", an
    index, a part of a name or a UUID, and "execution", "allocator", "out_of_range" and
    "on_overflow", as in `ScheduleConfig`.

    Raises:
        InvalidInputError: not a dictionary; an unknown key or value.
    """
    config = {} if config is None else config
    if not isinstance(config, Mapping):
        raise InvalidInputError(
            f"a configuration is a dictionary, not {config!r}", hint='write {"backend": "VULKAN"}'
        )
    for key in config:
        if key not in _KNOWN:
            raise InvalidInputError(
                f"a session has no setting '{key}'", hint=f"known are: {', '.join(sorted(_KNOWN))}"
            )
    precision = config.get("precision", "high")
    wanted: Any = _entry(_PRECISIONS, precision)
    if wanted is None:
        raise InvalidInputError(
            f"there is no precision {precision!r}", hint='use "high", "normal" or "low"'
        )
    starts, ends, tensors = (
        checked_names(config.get(key), key) for key in ("inputPaths", "outputPaths", "saveTensors")
    )
    saved = (*tensors, *(() if starts else ends))
    return ScheduleConfig(
        device=_device(config),
        precision=wanted,
        on_overflow=config.get("on_overflow", "warn"),
        save_tensors=tuple(dict.fromkeys(saved)),
        threads=config.get("numThread", 1),
        memory=_level(config, "memory"),
        power=_level(config, "power"),
        execution=_word(config, "execution", "indirect"),
        allocator=_word(config, "allocator", "defer"),
        out_of_range=config.get("out_of_range", "raise"),
        path=NetworkPath(starts, ends, PathNames.ANY) if starts else None,
    )


def _entry(table: Mapping[Any, Any], key: object) -> Any:
    """Return the entry for a key of any type; None if there is none."""
    try:
        return table.get(key)
    except TypeError:  # a list or a dictionary, which no table has
        return None


def _word(config: Mapping[str, Any], key: str, default: str) -> Any:
    """Return a setting that MNN writes in capitals; `ScheduleConfig` refuses unknown ones."""
    value = config.get(key, default)
    return value.lower() if isinstance(value, str) else value


def _level(config: Mapping[str, Any], key: str) -> Level:
    """Return a memory or power level, which MNN also gives as numbers."""
    value = config.get(key, "normal")
    found: Level | None = _entry(_LEVELS, value)
    if found is None:
        raise InvalidInputError(
            f"there is no {key} {value!r}", hint='use "normal", "high" or "low"'
        )
    return found


def _device(config: Mapping[str, Any]) -> str | int:
    backend = config.get("backend", VULKAN_TYPE)
    name = backend.upper() if isinstance(backend, str) else _entry(_GPU, backend) or backend
    if name == "CPU" or (name == CPU_TYPE and not isinstance(backend, bool)):
        return CPU_DEVICE
    if name not in _GPU.values():
        raise InvalidInputError(f"there is no backend {backend!r}", hint='use "VULKAN" or "CPU"')
    if name not in ("VULKAN", "AUTO"):
        warnings.warn(f"vkmnn.mnn has no backend {name}: Vulkan is used instead", stacklevel=4)
    device: str | int = config.get("device", "auto")
    return device
