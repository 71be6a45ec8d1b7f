"""Selection of a device."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from vkmnn.errors import DeviceNotFoundError
from vkmnn.runtime.device_info import DeviceInfo, DeviceType
from vkmnn.runtime.drivers.base import override_hint

_log = logging.getLogger(__name__)
_INDEX = re.compile(r"-?[0-9]{1,9}")

_AUTOMATIC = frozenset({"auto", "vulkan", "gpu"})
"""Selector of the best device."""

_OTHER_INTERFACES: Mapping[str, str] = {
    "cuda": "CUDA",
    "rocm": "ROCm",
    "hip": "HIP",
    "mps": "Metal",
    "metal": "Metal",
    "coreml": "Core ML",
    "directml": "DirectML",
    "dml": "DirectML",
    "opencl": "OpenCL",
    "webgpu": "WebGPU",
    "tensorrt": "TensorRT",
    "openvino": "OpenVINO",
    "xpu": "oneAPI",
    "npu": "an NPU's interface",
    "tpu": "a TPU's interface",
}
"""Selectors of other programs, and the interface that they name."""

_LIBRARIES = frozenset({"onnxruntime", "ort", "numpy", "mnn", "ncnn", "torch"})


def select(devices: Sequence[DeviceInfo], selector: str | int) -> tuple[DeviceInfo, str]:
    """Return the selected device and the reason for the choice.

    Args:
        devices: the available devices.
        selector: "auto" (also "gpu" or "vulkan"), an index (an integer, or its text), a UUID, part
            of the name, or the vendor (in upper or lower case).

    Raises:
        DeviceNotFoundError: no device matches.
    """
    ranked = sorted(devices, key=lambda device: (device.type.rank, device.index))
    text = str(selector).strip().lower()
    if text in _AUTOMATIC and ranked:
        best = ranked[0]
        if text == "gpu" and best.type is DeviceType.CPU:
            _log.warning('"gpu": this machine has none, %s runs in software', best.name)
        if len(ranked) == 1:
            return best, "the only Vulkan device"
        return best, f"the first of type {best.type.value}, the best type of {len(ranked)} devices"
    if _INDEX.fullmatch(text):
        for device in devices:
            if device.index == int(text):
                return device, f"its index is {text}"
        # "2" is in "H200": a number that is not an index must not select a device by its name.
        raise DeviceNotFoundError(f"there is no device {text}; {describe(devices)}", hint=_HINT)
    for device in ranked:
        if device.uuid.replace("-", "") == text.replace("-", ""):
            return device, "its UUID was given"
    for device in ranked:
        if text and text in device.name.lower():
            return device, f"its name contains '{selector}'"
    for device in ranked:
        if text and text in device.vendor.lower().split():
            return device, f"its vendor is {device.vendor}"
    raise DeviceNotFoundError(
        f"no device matches '{selector}'; {describe(devices)}", hint=_hint(text, ranked)
    )


def _hint(text: str, devices: Sequence[DeviceInfo]) -> str:
    """Return a hint that suggests a replacement for a selector without a match."""
    interface = _OTHER_INTERFACES.get(text.partition(":")[0])
    if interface is not None:
        return f'vkmnn runs networks by Vulkan, not by {interface}: write "auto", or an index'
    if text in _LIBRARIES:
        return f'"cpu" runs networks on numpy; `vkmnn bench` compares with other engines ({text})'
    words = {word.lower(): word for device in devices for word in device.name.split()}
    near = get_close_matches(text, [*words, "auto", "cpu", "fastest"], 1)
    if near and text not in _AUTOMATIC:
        return f"did you mean {words.get(near[0], near[0])}? `vkmnn devices` lists the devices"
    return (None if devices else override_hint()) or _HINT


def describe(devices: Sequence[DeviceInfo]) -> str:
    """Return a readable list of devices."""
    if not devices:
        return "no Vulkan device was found"
    lines = (f"{d.index}: {d.name} ({d.type.value}, {d.uuid})" for d in devices)
    return "found: " + "; ".join(lines)


_HINT = (
    'a selector is "auto", "cpu" (numpy), "fastest", an index, part of a name or a UUID; '
    "`vkmnn devices` lists the devices found. Drivers come with the GPU vendor's package or with "
    "Mesa (Debian, Ubuntu: `apt install mesa-vulkan-drivers`, which also brings a software device)"
)
