"""The checks that `vkmnn doctor` runs; each is a function that yields its findings."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from typing import Any

import vkmnn
from vkmnn.bench.document import processor
from vkmnn.cli import driver_files
from vkmnn.cli.console import bytes_text, time_text
from vkmnn.cli.install import remedy, system
from vkmnn.errors import ShaderError, VkmnnError, page
from vkmnn.runtime.device_info import DeviceInfo

OLDEST_PYTHON = (3, 10)

# Packages that `pip install vkmnn` installs, and their purpose.
PACKAGES = {
    "numpy": "arrays",
    "vulkan": "the Vulkan binding",
    "cffi": "calls into the Vulkan loader",
    "onnx": "reading models",
    "protobuf": "reading models",
    "flatbuffers": "vkmnn's own model files",
    "platformdirs": "folders of caches and plug-ins",
}


class Status(Enum):
    """The outcome of a check; only FAILED keeps a device from being used."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: `detail` describes it, `remedy` is the advice ("" if none)."""

    group: str
    name: str
    status: Status
    detail: str
    remedy: str = ""


_SYSTEM, _VULKAN, _ENGINE, _TESTS = "System", "Vulkan", "Engine", "Self test"


def check_python() -> Iterator[Check]:
    """Python and the system."""
    new = sys.version_info >= OLDEST_PYTHON
    yield Check(
        _SYSTEM,
        "Python",
        Status.OK if new else Status.FAILED,
        f"{platform.python_version()} on {platform.system()} {platform.machine()} ({system()})",
        "" if new else "install Python {}.{} or newer".format(*OLDEST_PYTHON),
    )
    yield Check(_SYSTEM, "vkmnn", Status.OK, vkmnn.__version__)


def check_packages() -> Iterator[Check]:
    """The packages that vkmnn depends on, and their versions."""
    oldest = _declared_minimums()
    for name, purpose in PACKAGES.items():
        try:
            have = metadata.version(name)
        except metadata.PackageNotFoundError:
            detail = f"not installed ({purpose})"
            yield Check(_SYSTEM, name, Status.FAILED, detail, f"pip install {name}")
            continue
        want = oldest.get(name, "0")
        if _numbers(have) < _numbers(want):
            detail = f"{have} is older than {want}"
            yield Check(_SYSTEM, name, Status.FAILED, detail, f"pip install '{name}>={want}'")
        else:
            yield Check(_SYSTEM, name, Status.OK, have)


def _declared_minimums() -> dict[str, str]:
    """Return the oldest version of each dependency; nothing in a bare source tree."""
    try:
        declared = metadata.requires("vkmnn") or []
    except metadata.PackageNotFoundError:
        return {}
    matches = (re.match(r"([\w.-]+)>=([\d.]+)$", text) for text in declared)
    return {match[1]: match[2] for match in matches if match}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_environment() -> Iterator[Check]:
    """Environment variables that affect vkmnn or the Vulkan loader."""
    names = sorted(name for name in os.environ if name.startswith("VKMNN_"))
    names += [name for name in (*driver_files.OVERRIDES, driver_files.ADDED) if name in os.environ]
    for name in names:
        yield Check(_SYSTEM, name, Status.INFO, os.environ[name])


def check_vulkan() -> Iterator[Check]:
    """The Vulkan loader, its drivers and their devices, and the validation layer."""
    from vkmnn.runtime.drivers import DriverUnavailableError

    try:
        from vkmnn.runtime.drivers.layer_settings import VALIDATION_LAYER
        from vkmnn.runtime.drivers.vulkan.loader import layers, loader_version
    except DriverUnavailableError as error:
        no_package = "package" in str(error)
        fix = error.hint if no_package else remedy("driver")
        yield Check(_VULKAN, "loader", Status.FAILED, str(error), fix)
        return
    version = ".".join(map(str, loader_version()))
    yield Check(_VULKAN, "loader", Status.OK, f"Vulkan {version}")
    yield from _driver_files()
    yield from _devices()
    if VALIDATION_LAYER in layers():
        yield Check(_VULKAN, "validation layer", Status.OK, VALIDATION_LAYER)
    else:
        detail = "not installed (only VKMNN_VALIDATION=1 and --validate need it)"
        fix = remedy("validation")
        yield Check(_VULKAN, "validation layer", Status.WARNING, detail, fix)


def _driver_files() -> Iterator[Check]:
    found = driver_files.find_driver_files()
    variable = driver_files.override()
    for file in found:
        if file.problem:
            detail = f"{file.path}: {file.problem}"
            fix = f"correct {variable}" if variable else "install that driver again, or remove it"
            yield Check(_VULKAN, "driver file", Status.WARNING, detail, fix)
        else:
            yield Check(_VULKAN, "driver file", Status.OK, str(file.path))
    if not found:
        fix = f"correct or unset {variable}" if variable else remedy("driver")
        # MoltenVK may be linked instead of the loader; drivers then have no files.
        status = Status.WARNING if sys.platform == "darwin" else Status.FAILED
        yield Check(_VULKAN, "driver files", status, "none found", fix)


def _devices() -> Iterator[Check]:
    from vkmnn.cli.devices import automatic, type_text, why_none

    found = vkmnn.devices()
    if not found:
        variable = driver_files.override()
        reason, way_out = why_none(None)
        fix = f"correct or unset {variable}" if variable else way_out
        yield Check(_VULKAN, "devices", Status.FAILED, reason, fix)
    for device in found:
        detail = f"{device.name}, {type_text(device)}, {bytes_text(device.memory_bytes)}"
        yield Check(_VULKAN, f"device {device.index}", Status.OK, detail)
        if device.device_profile:
            detail = f"emulates {device.device_profile}; the device can do more"
            fix = "unset VKMNN_DEVICE_PROFILE to use all of it"
            yield Check(_VULKAN, "device profile", Status.WARNING, detail, fix)
        yield from _wider_vectors(device)
    try:
        chosen, reason = automatic(found)
    except VkmnnError as error:
        fix = error.hint or ""
        yield Check(_VULKAN, "auto", Status.FAILED, error.message, fix)
    else:
        yield Check(_VULKAN, "auto", Status.INFO, f"{chosen}: {reason}")


def _wider_vectors(device: DeviceInfo) -> Iterator[Check]:
    """Mesa's software device uses 256 bits of a processor's vectors, and 512 when asked to."""
    if device.driver_name == "llvmpipe" and device.subgroup_size == 8 and "avx512f" in processor():
        detail = "uses 256 of the 512 bits of this processor's vectors"
        fix = (
            "LP_NATIVE_VECTOR_WIDTH=512 makes transformers up to 1.27 times faster, and "
            f"convolutional networks slower; measure yours ({page('performance')})"
        )
        yield Check(_VULKAN, f"vectors {device.index}", Status.INFO, detail, fix)


def check_shaders() -> Iterator[Check]:
    """Every compiled shader is present and unchanged."""
    from vkmnn.shaders import all_shaders
    from vkmnn.shaders.library import Module, is_pending

    fix = "install vkmnn again; in a checkout: python -m vkmnn.codegen"
    try:
        shaders = all_shaders()
    except (OSError, ValueError, KeyError, ShaderError) as error:
        detail = f"the shaders cannot be listed: {error}"
        yield Check(_ENGINE, "shaders", Status.FAILED, detail, fix)
        return
    missing, changed = [], []
    pending = sum(map(is_pending, shaders))
    for shader in shaders:
        try:
            if shader.by_source and isinstance(shader.spirv, Module):  # a library checks its own
                continue
            if hashlib.sha256(shader.spirv()).hexdigest() != shader.digest:
                changed.append(shader.name)
        except OSError:
            missing.append(shader.name)
    problems = [
        f"{len(names)} {what} ({_some(names)})"
        for what, names in (("missing", missing), ("changed", changed))
        if names
    ]
    if problems:
        detail = f"of {len(shaders)} shaders, {' and '.join(problems)}"
        yield Check(_ENGINE, "shaders", Status.FAILED, detail, fix)
    else:
        later = f"; {pending} will be compiled when they are needed" if pending else ""
        yield Check(_ENGINE, "shaders", Status.OK, f"{len(shaders)} variants are in order{later}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def check_plugins() -> Iterator[Check]:
    """Check that every plug-in loads; report what it registers."""
    from vkmnn.discovery import survey

    for name, where, error in survey():
        if error is None:
            yield Check(_ENGINE, f"plug-in {name}", Status.OK, where)
        else:
            detail, fix = error.message, error.hint or ""
            yield Check(_ENGINE, f"plug-in {name}", Status.FAILED, detail, fix)


def check_cache() -> Iterator[Check]:
    """The folder for compiled pipelines is writable."""
    from vkmnn.base.cache_files import cache_dir

    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        detail = f"{folder} cannot be written to: {error.strerror}; every start compiles anew"
        fix = "set VKMNN_CACHE_DIR to a folder of your own"
        yield Check(_ENGINE, "cache folder", Status.WARNING, detail, fix)
        return
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield Check(_ENGINE, "cache folder", Status.OK, f"{folder} ({bytes_text(size)})")


def check_glslang() -> Iterator[Check]:
    """The shader generator's compiler; users never need it."""
    from vkmnn.codegen.compilers import find_compiler

    try:
        yield Check(_ENGINE, "glslang", Status.OK, find_compiler().identity)
    except ShaderError as error:
        detail = f"{error.message} (only python -m vkmnn.codegen needs one)"
        yield Check(_ENGINE, "glslang", Status.INFO, detail, error.hint or "")


def check_by_running() -> Iterator[Check]:
    """A small network gives the same results on every device as on numpy."""
    from vkmnn.cli.selftest import run_apart

    answers = [(device, run_apart(device.index)) for device in vkmnn.devices()]
    any_works = any(answer["error"] is None for _, answer in answers)
    for device, answer in answers:
        name = f"device {device.index}"
        if answer["error"] is None:
            spent = time_text(answer["seconds"])
            detail = f"{device.name}: differs from numpy by {answer['difference']:.0e} ({spent})"
            yield Check(_TESTS, name, Status.OK, detail)
            yield from _proofs(device, answer.get("proofs", ()))
        else:
            detail = f"{device.name}: {answer['error']}"
            fix = "update the device's driver; meanwhile, choose another device with VKMNN_DEVICE"
            yield Check(_TESTS, name, Status.WARNING if any_works else Status.FAILED, detail, fix)


def _proofs(device: DeviceInfo, proofs: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    """Matrices and the like are as fast as their replacements, and right."""
    from vkmnn.vulkan.device_rules import refusal_reasons

    for proof in proofs:
        name = f"{proof['name']} {device.index}"
        if proof["kept"]:
            yield Check(_TESTS, name, Status.OK, proof["text"])
        else:
            fix = "update the device's driver; until then, networks run without them"
            yield Check(_TESTS, name, Status.WARNING, f"not used: {proof['text']}", fix)
    for reason in refusal_reasons(device):
        yield Check(_TESTS, f"matrices {device.index}", Status.INFO, reason)


def check_kompute() -> Iterator[Check]:
    """The package of the driver `kompute`, if installed; nothing else needs it."""
    from vkmnn.cli.selftest import run_apart
    from vkmnn.runtime.drivers.kompute.package import BUILD_HINT

    try:
        version = metadata.version("kp")
    except metadata.PackageNotFoundError:
        detail = "not installed (only the driver 'kompute' needs it)"
        yield Check(_VULKAN, "kompute", Status.INFO, detail)
        return
    for device in vkmnn.devices()[:1]:
        answer = run_apart(device.index, "kompute")
        if answer["error"] is None:
            detail = f"kp {version}: differs from numpy by {answer['difference']:.0e}"
            yield Check(_VULKAN, "kompute", Status.OK, detail)
        else:
            detail = f"kp {version}: {answer['error'].partition('  hint:')[0].strip()}"
            yield Check(_VULKAN, "kompute", Status.WARNING, detail, BUILD_HINT)


def has_usable_device(found: Sequence[Check]) -> bool:
    """True when the self test passed on some device."""
    return any(check.group == _TESTS and check.status is Status.OK for check in found)


CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    check_python,
    check_packages,
    check_environment,
    check_vulkan,
    check_kompute,
    check_shaders,
    check_plugins,
    check_cache,
    check_glslang,
    check_by_running,
)
