"""The device, backend and precision of a session."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from vkmnn.base.elements import FLOATS
from vkmnn.base.records import dataclass
from vkmnn.core.backend import Backend
from vkmnn.core.backends import named_backend, open_backend
from vkmnn.core.overflow import OverflowWatch
from vkmnn.cpu_fallback import CpuBackend
from vkmnn.discovery import load_plugins
from vkmnn.errors import DeviceNotFoundError, InvalidInputError
from vkmnn.runtime import environment
from vkmnn.runtime.device_info import DeviceInfo, DeviceType
from vkmnn.schedule_config import PRECISIONS, STORAGE, Precision, ScheduleConfig, precision_name

if TYPE_CHECKING:
    from vkmnn.runtime.device import Device

_log = logging.getLogger(__name__)

CPU_DEVICE = "cpu"
MAX_THREADS = 256


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """Replaces DeviceInfo if numpy or a plug-in's backend is the device."""

    name: str = "CPU (numpy backend)"


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A backend, the device it runs on, and its precision."""

    backend: Backend
    info: DeviceInfo | CpuInfo
    precision: Precision


def open_device(config: ScheduleConfig, subject: str | None = None) -> OpenDevice:
    """Open the device that the configuration asks for.

    Args:
        config: how the session runs.
        subject: identifies the model to be opened, for the pipelines that it needed last time; None
            if unknown.

    Raises:
        DeviceNotFoundError: it does not exist.
        InvalidInputError: the precision is unknown.
        PluginError: a plug-in's backend cannot be opened.
    """
    _check_threads(config.threads)
    config.check_levels()
    wanted = selector(config)
    if wanted == CPU_DEVICE:
        return _on_cpu(config)
    if isinstance(wanted, str) and wanted != "auto" and not wanted.isdigit():
        load_plugins()  # one may have a backend of that name
        if (name := named_backend(wanted)) is not None:
            info = CpuInfo(f"{name} (a plug-in's backend)")
            precision = _precision(config, "high", info.name)
            return OpenDevice(open_backend(wanted), info, precision)
    from vkmnn.runtime import device as devices

    try:
        device = devices.open_device(
            wanted,
            driver=config.driver,
            validation=config.validation,
            priority=config.power,
        )
    except DeviceNotFoundError as error:
        if wanted != "auto" or config.require_device:
            raise
        _log.warning(
            "no Vulkan device, the numpy CPU backend runs the network, many times slower: %s",
            str(error).removeprefix("no Vulkan device: "),
        )
        return _on_cpu(config)
    foreseen = None
    if subject is not None and not device.validation:
        from vkmnn.vulkan.plan.foreseen import Foreseen

        foreseen = Foreseen(device, subject)
    from vkmnn.vulkan.backend import VulkanBackend
    from vkmnn.vulkan.settings import BackendSettings

    precise = PRECISIONS[precision_name(config.precision)]
    possible, prove = _proved(device, possible_precision(precise, device.info), config)
    precision = _precision(config, possible, device.info.name)
    element, arithmetic = STORAGE[precision]
    settings = BackendSettings(
        progress=config.progress,
        element=element,
        arithmetic=arithmetic,
        overflows=_overflow_watch(config, precision),
        tuning=config.tuning_effort,
        storage=config.storage,
        spacious=config.memory == "high",
        replays=config.execution == "indirect",
        eager=config.allocator == "eager",
        flags=_proved_flags(device),
    )
    backend = VulkanBackend(device, settings, foreseen=foreseen, prove=prove)
    return OpenDevice(backend, device.info, precision)


def _proved(
    device: Device, precision: Precision, config: ScheduleConfig
) -> tuple[Precision, Callable[[Device, str], bool] | None]:
    """Settle what kernels may use of the device at a precision.

    Returns:
        The precision, and what settles the rest for the ops of a network; None where nothing needs
        proof, as on software devices.
    """
    if device.info.type is DeviceType.CPU and environment.proof() != "on":
        return precision, None
    from vkmnn.vulkan.proof import BY_ARITHMETIC, IMAGES, concerns

    if not concerns(device.info):
        return precision, None
    from vkmnn.opening.proof_trial import PROVER

    for capability in BY_ARITHMETIC.get(STORAGE[precision], ()):
        verdict = PROVER.settle(device, capability)
        if precision == "fast" and verdict is not None and not verdict.kept:
            precision = "high"
    if (config.storage or environment.storage()) == "auto":
        PROVER.settle(device, IMAGES)
    return precision, PROVER.settle_codes


def _proved_flags(device: Device) -> bool | None:
    """Return whether dispatches wait by flags; None where only `VKMNN_FLAGS` decides."""
    if environment.flags() != "on":
        return None
    from vkmnn.opening.proof_trial import PROVER
    from vkmnn.vulkan.proof import FLAGS

    verdict = PROVER.settle(device, FLAGS)
    if verdict is None:
        _log.info("%s: barriers, as it has not proved to wait by flags", device.info.name)
    return verdict is not None and verdict.kept


def _check_threads(threads: object) -> None:
    if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise InvalidInputError(
            f"cannot run on {threads!r} threads",
            hint=f"threads is a number from 1 to {MAX_THREADS}",
        )


def selector(config: ScheduleConfig) -> str | int:
    """Return the device asked for, by the configuration or else by the environment."""
    device = environment.device_word(config.device)
    return environment.device_selector() if device in ("auto", environment.FASTEST) else device


def _on_cpu(config: ScheduleConfig) -> OpenDevice:
    precision = PRECISIONS[precision_name(config.precision)]
    if precision == "fast":
        precision = _precision(config, "high", CpuInfo().name)
    watch = _overflow_watch(config, precision)
    element, arithmetic = STORAGE[precision]
    assert arithmetic != "limbs"
    backend = CpuBackend(config.cpu_threads, element, arithmetic, overflows=watch)
    return OpenDevice(backend, CpuInfo(), precision)


def _overflow_watch(config: ScheduleConfig, precision: Precision) -> OverflowWatch | None:
    """Return the overflow handling; None where there is no float16, or it is ignored."""
    overflows = FLOATS[STORAGE[precision][0]].overflows
    if not overflows or config.on_overflow == "ignore":
        return None
    return OverflowWatch(config.on_overflow)


def possible_precision(wanted: Precision, info: DeviceInfo) -> Precision:
    """Return the precision nearest to a wanted one that kernels of a device have, and gain by."""
    element, arithmetic = STORAGE[wanted]
    if not info.features >= {*FLOATS[element].needs}:
        return "high"
    from vkmnn.vulkan.device_rules import is_gpu

    if arithmetic == "limbs":
        from vkmnn.vulkan.gemm.coop_tiles import limb_matrix_of

        return wanted if limb_matrix_of(info) is not None and is_gpu(info) else "high"
    if arithmetic == "f32" or ("float16" in info.features and is_gpu(info)):
        return wanted
    return next(name for name, how in STORAGE.items() if how == (element, "f32"))


def _precision(config: ScheduleConfig, possible: Precision, device: str) -> Precision:
    """Return the precision to run with, and warn if it is not the requested one."""
    wanted = PRECISIONS[precision_name(config.precision)]
    element, arithmetic = STORAGE[wanted]
    if possible == wanted:
        return wanted
    if STORAGE[possible][0] != element:
        _log.warning(
            '%s stores no %s: precision "%s" runs as "%s", in float32',
            device,
            FLOATS[element].dtype.name,
            config.precision,
            possible,
        )
    elif arithmetic == "limbs":
        _log.warning(
            '%s has no cooperative matrices that gain by precision "%s": it runs as "%s"',
            device,
            wanted,
            possible,
        )
    else:
        _log.warning(
            '%s has no native %s arithmetic: precision "%s" runs as "%s", with float32 arithmetic',
            device,
            FLOATS[arithmetic].dtype.name,
            wanted,
            possible,
        )
    return possible
