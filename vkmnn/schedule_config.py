"""Configuration of a session: settings, their names, and MNN's spelling."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from vkmnn.base.elements import Arithmetic, FloatElement
from vkmnn.errors import InvalidInputError, nearest

Precision = Literal["high", "fast", "normal", "low"]
PrecisionName = Literal["high", "fast", "normal", "low", "fp32", "fp16", "float32", "float16"]

Level = Literal["normal", "high", "low"]
Tuning = Literal["off", "cached", "on"]
Storage = Literal["auto", "buffer", "image"]

Execution = Literal["indirect", "direct"]
Allocator = Literal["defer", "eager"]

OutOfRange = Literal["raise", "skip"]

OnDeviceLost = Literal["raise", "rebuild"]
OnOverflow = Literal["warn", "high", "raise", "ignore"]
Unsupported = Literal["cpu", "raise"]

PRECISIONS: Mapping[str, Precision] = {
    "high": "high",
    "fp32": "high",
    "float32": "high",
    "fast": "fast",
    "normal": "normal",
    "fp16": "normal",
    "float16": "normal",
    "low": "low",
}
"""Meaning of each precision name."""

STORAGE: Mapping[Precision, tuple[FloatElement, Arithmetic]] = {
    "high": ("f32", "f32"),
    "fast": ("f32", "limbs"),
    "normal": ("f16", "f32"),
    "low": ("f16", "f16"),
}
"""How each precision stores floats, and what products of them may be computed in."""

STORES: Mapping[Precision, str] = {
    "high": "",
    "fast": ", float32 products by float16 matrices",
    "normal": ", float16 storage",
    "low": ", float16 storage and products",
}
"""Headings for the precisions."""

PRECISION_HELP = (
    '"high" or "fp32" (the default): float32 throughout; "fast": float32 with products by float16 '
    'matrices; "normal" or "fp16": float16 storage with float32 arithmetic; "low": with float16 '
    "arithmetic in products, too"
)


class PathNames(enum.Enum):
    """Kind of the names in a path."""

    OP = "op"
    TENSOR = "tensor"
    ANY = "any"
    """Names of ops, or of tensors if no op has the name."""


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """A part of a network, by names that the model's file has (MNN ScheduleConfig.path).

    The part is everything that `outputs` need, back to `inputs`, which the caller feeds instead of
    their producers. Ops are named by their nodes: as inputs, they stand for their results, as do
    the network's inputs by their names.

    Args:
        inputs: where the part starts; empty for the network's inputs.
        outputs: where it ends; empty for the network's outputs.
        names: the kind of objects that the names refer to.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    names: PathNames = PathNames.OP


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """Configuration of a session (MNN ScheduleConfig).

    Args:
        device: "auto" (`VKMNN_DEVICE`, otherwise the best Vulkan device, otherwise the CPU backend,
            with a warning), "fastest" (the same device, numpy, and onnxruntime if installed are
            measured on the first inputs of each shape, and the fastest is remembered), an index,
            part of a name, a UUID, "cpu" for numpy, or the name of a plug-in's backend, with an
            option after a colon: "f64:strict".
        precision: "high", also "fp32": float32 throughout; "fast": as "high", except that products
            and convolutions may multiply each number as the sum of two float16 numbers, by
            cooperative matrices, with an error of about 1e-6 of the largest products of a row and a
            column; devices without such matrices run it as "high"; "normal", also "fp16": floats
            are stored as float16 if their range allows it, and computed in float32; "low": products
            with constants and convolutions are computed in float16, a few terms at a time, which
            are accumulated in float32; so is element-wise arithmetic on the CPU backend. If the
            device has no float16 arithmetic, or emulates it, "low" runs as "normal"; without 16-bit
            storage both run as "high"; a warning and `Session.precision` say so.
        driver: the Vulkan binding; None uses `VKMNN_DRIVER` or the default.
        validation: run under the Khronos validation layer; None uses `VKMNN_VALIDATION`.
        save_tensors: names of intermediate tensors to keep as additional outputs.
        require_device: raise PlacementError if an op would run off the device.
        max_plans: number of input shapes whose plans are kept; None keeps as many as fit in 256 MiB
            of device memory, and at least eight.
        progress: called with (done, total) while pipelines are compiled.
        on_device_lost: "raise" DeviceLostError, after which the session must be closed; or
            "rebuild": reopen the device, plan and upload again, and run once more. A second
            loss in the same call raises.
        on_overflow: reaction to a value that fits float32 but becomes infinite in float16, at
            "normal" and "low": "warn" logs it once per op; "high" repeats the run with that op in
            float32, and keeps it there; "raise" raises Float16OverflowError; "ignore" does not
            check.
        threads: number of independent ops that the CPU backend may run at once; numpy's own threads
            are separate.
        memory: "low" keeps one plan, "high" as many as are used, up to 128; "normal" the number of
            `max_plans`, which takes precedence in any case. With "high", CPU devices also compute
            quantised 3 × 3 convolutions by Winograd, for which weights take several times the
            memory.
        power: "high" measures the kernels of new plans, as `tuning="on"`; "low" measures nothing,
            and makes the CPU backend run one op at a time. Either also sets the priority of the
            session's work among all programs, on devices with the feature "queue_priority".
        tuning: the session's setting of `VKMNN_TUNE`; takes precedence over `power`.
        storage: storage of tensors between ops, in buffers or in 2-D images: the session's setting
            of `VKMNN_STORAGE`.
        execution: MNN's Backend::Info::mode. "indirect" records the commands of a plan once, and
            runs replay them; "direct" records them again in every run. Only Vulkan devices record.
        allocator: MNN's Backend::Info::allocator. "defer" places the tensors of a plan once all of
            them are known, so that they share memory as well as possible; "eager" places each on
            first use, like an allocator, which is faster but needs more memory.
        out_of_range: handling of an index beyond its axis: "raise" InvalidInputError, or "skip", as
            in MNN: gathers return zeros there, scatters skip the update. This takes a few more ops
            for each gather and scatter.
        path: the part of the network to run; None for all of it. Only `Interpreter` accepts it.
    """

    device: str | int = "auto"
    precision: PrecisionName = "high"
    driver: str | None = None
    validation: bool | None = None
    save_tensors: tuple[str, ...] = ()
    require_device: bool = False
    max_plans: int | None = None
    progress: Callable[[int, int], None] | None = None
    on_device_lost: OnDeviceLost = "raise"
    on_overflow: OnOverflow = "warn"
    threads: int = 1
    memory: Level = "normal"
    power: Level = "normal"
    tuning: Tuning | None = None
    storage: Storage | None = None
    execution: Execution = "indirect"
    allocator: Allocator = "defer"
    out_of_range: OutOfRange = "raise"
    path: NetworkPath | None = None

    @property
    def plans_kept(self) -> int | None:
        """Number of input shapes to keep plans for; None for as many as fit 256 MiB."""
        if self.max_plans is not None:
            return self.max_plans
        return {"low": 1, "high": 128}.get(self.memory)

    @property
    def cpu_threads(self) -> int:
        """Number of ops that the CPU backend runs at once."""
        return 1 if self.power == "low" else self.threads

    @property
    def tuning_effort(self) -> Tuning | None:
        """Tuning effort; None uses `VKMNN_TUNE`."""
        by_power: Mapping[str, Tuning] = {"low": "off", "high": "on"}
        return self.tuning or by_power.get(self.power)

    def check_levels(self) -> None:
        """Check memory, power, tuning, storage and overflow settings.

        Raises:
            InvalidInputError: one of them is unknown.
        """
        for name, value, known in (
            ("memory", self.memory, get_args(Level)),
            ("power", self.power, get_args(Level)),
            ("tuning", self.tuning, (None, *get_args(Tuning))),
            ("storage", self.storage, (None, *get_args(Storage))),
            ("on_overflow", self.on_overflow, get_args(OnOverflow)),
            ("execution", self.execution, get_args(Execution)),
            ("allocator", self.allocator, get_args(Allocator)),
            ("out_of_range", self.out_of_range, get_args(OutOfRange)),
        ):
            if value not in known:
                raise InvalidInputError(
                    f'{name}="{value}" is not known',
                    hint=f"it is one of {', '.join(map(str, known))}",
                )

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> ScheduleConfig:
        """Return the configuration in a dictionary, with this class's names or MNN's.

        MNN's keys: "backend" ("VULKAN", "CPU" or "AUTO"), "precision", "memory", "power",
        "saveTensors", and "numThread".

        Raises:
            InvalidInputError: a key or a value is unknown.
        """
        own = {field.name for field in fields(cls)}
        found: dict[str, Any] = {}
        for key, value in settings.items():
            if key == "backend":
                found["device"] = _device(value)
            elif key in ("saveTensors", "save_tensors"):
                found["save_tensors"] = checked_names(value, key)
            elif key == "numThread":
                found["threads"] = value
            elif key in ("execution", "allocator") and isinstance(value, str):
                found[key] = value.lower()  # MNN's names are in capitals
            elif key in own:
                found[key] = value
            else:
                known = sorted({*own, "backend", "saveTensors", "numThread"})
                raise InvalidInputError(
                    f"a session has no setting '{key}'", hint=nearest(key, known, "settings")
                )
        return cls(**found)


def checked_names(value: Any, setting: str) -> tuple[str, ...]:
    """Return a list of names in a dictionary; None counts as an empty one.

    Raises:
        InvalidInputError: it is something else.
    """
    names = value if value is not None else ()
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInputError(
            f"{setting} is {value!r}", hint=f'give a list of names: {{"{setting}": ["a", "b"]}}'
        )
    return tuple(names)


_DEVICES = {"VULKAN": "auto", "AUTO": "auto", "CPU": "cpu"}


def _device(backend: object) -> str:
    name = str(backend).upper()
    if name not in _DEVICES:
        raise InvalidInputError(
            f"there is no backend '{backend}'", hint=f"use one of {', '.join(_DEVICES)}"
        )
    return _DEVICES[name]


def precision_name(text: str) -> PrecisionName:
    """Return `text` as the name of a precision.

    Raises:
        InvalidInputError: it is none.
    """
    for name in get_args(PrecisionName):
        if text == name:
            return name  # type: ignore[no-any-return]
    raise InvalidInputError(f"unknown precision '{text}'", hint=f"use {PRECISION_HELP}")


def on_overflow_name(text: str) -> OnOverflow:
    """Return `text` as the reaction to float16 overflow.

    Raises:
        InvalidInputError: it is not one of them.
    """
    for name in get_args(OnOverflow):
        if text == name:
            return name  # type: ignore[no-any-return]
    known = ", ".join(f'"{name}"' for name in get_args(OnOverflow))
    raise InvalidInputError(f'on_overflow="{text}" is not known', hint=f"it is one of {known}")


def unsupported_name(text: str) -> Unsupported:
    """Return `text` as the handling of operators without a kernel.

    Raises:
        InvalidInputError: it is not one of them.
    """
    for name in get_args(Unsupported):
        if text == name:
            return name  # type: ignore[no-any-return]
    raise InvalidInputError(f'unsupported="{text}" is not known', hint='it is "cpu" or "raise"')
