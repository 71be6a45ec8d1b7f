"""VkInstance: one per mode, with or without the validation layer."""

from __future__ import annotations

import logging
import os
import weakref
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from vkmnn.errors import ValidationLayerError
from vkmnn.runtime.drivers.base import DriverUnavailableError, override_hint
from vkmnn.runtime.drivers.layer_settings import (
    CHECKS,
    SETTINGS_EXTENSION,
    VALIDATION_LAYER,
    layer_settings,
)
from vkmnn.runtime.drivers.vulkan.api import (
    LOADER_HINT,
    NULL,
    check,
    ffi,
    lib,
    names,
    struct,
)
from vkmnn.runtime.drivers.vulkan.loader import instance_extensions, layers, loader_version

log = logging.getLogger(__name__)

API_1_3 = 1 << 22 | 3 << 12

KNOWN_FALSE: dict[str, str] = {}
"""Message id -> why the validation layer reports it wrongly here."""

_ENUMERATE_PORTABILITY = 1  # VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
_SYNCHRONIZATION_VALIDATION = 4  # VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
_SETTINGS_ID = "VALIDATION-SETTINGS"  # messages of the layer on its own settings, as a warning
_INFO, _WARNING, _ERROR = 0x10, 0x100, 0x1000  # VK_DEBUG_UTILS_MESSAGE_SEVERITY_*
_VALIDATION = 2  # VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT


class Instance:
    """A VkInstance and, in validation mode, the messages of its layer.

    Raises:
        DriverUnavailableError: no driver is installed, or the loader is older than Vulkan 1.1.
        ValidationLayerError: `validation` is requested and the layer is not installed.
    """

    def __init__(self, validation: bool) -> None:
        self.validation = validation
        self.messages: list[str] = []
        if loader_version() < (1, 1):
            raise DriverUnavailableError("the Vulkan loader is older than 1.1", LOADER_HINT)
        wanted, chosen, flags = [], [], 0
        settings: AbstractContextManager[None] = nullcontext()
        if "VK_KHR_portability_enumeration" in instance_extensions():
            wanted.append("VK_KHR_portability_enumeration")
            flags = _ENUMERATE_PORTABILITY
        chain: Any = NULL
        keep: list[Any] = []
        if validation:
            require_layer()
            chosen.append(VALIDATION_LAYER)
            wanted.append("VK_EXT_debug_utils")
            chain = self._messenger_info()
            if takes_named_settings():
                wanted.append(SETTINGS_EXTENSION)
                chain.pNext, kept_checks = _named_checks()
            else:
                chain.pNext, kept_checks = _old_checks()
                settings = layer_settings(named=False)
            keep += kept_checks
        name = ffi.new("char[]", b"vkmnn")
        application = struct(
            "VkApplicationInfo",
            lib.VK_STRUCTURE_TYPE_APPLICATION_INFO,
            pEngineName=name,
            pApplicationName=name,
            apiVersion=API_1_3,
        )
        extension_array, kept_extensions = names(wanted)
        layer_array, kept_layers = names(chosen)
        keep += [name, kept_extensions, kept_layers]
        info = struct(
            "VkInstanceCreateInfo",
            lib.VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
            pNext=chain,
            flags=flags,
            pApplicationInfo=application,
            enabledLayerCount=len(chosen),
            ppEnabledLayerNames=layer_array,
            enabledExtensionCount=len(wanted),
            ppEnabledExtensionNames=extension_array,
        )
        out = ffi.new("VkInstance *")
        with settings:
            result = lib.vkCreateInstance(info, NULL, out)
        if result == lib.VK_ERROR_INCOMPATIBLE_DRIVER:
            hint = override_hint() or LOADER_HINT
            raise DriverUnavailableError("the Vulkan loader found no driver (ICD)", hint)
        check(result, "vkCreateInstance")
        self.handle = out[0]
        self._messenger = self._create_messenger(chain) if validation else NULL
        callback = self._callback if validation else None
        self._finalizer = weakref.finalize(
            self, _destroy, os.getpid(), self.handle, self._messenger, callback
        )
        self._finalizer.atexit = False  # devices go first

    def destroy(self) -> None:
        """Destroy the instance; safe to call twice."""
        self._finalizer()

    def function(self, name: str) -> Any:
        """Return an instance-level function that the loader does not export."""
        pointer = lib.vkGetInstanceProcAddr(self.handle, name.encode())
        return ffi.cast(f"PFN_{name}", pointer)

    def _messenger_info(self) -> Any:
        # Held by the instance: the layer calls it until the instance is destroyed.
        self._callback = ffi.callback(
            "PFN_vkDebugUtilsMessengerCallbackEXT", partial(_receive, self.messages)
        )
        return struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            lib.VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
            messageSeverity=_INFO | _WARNING | _ERROR,
            messageType=_VALIDATION,
            pfnUserCallback=self._callback,
        )

    def _create_messenger(self, info: Any) -> Any:
        info.pNext = NULL
        out = ffi.new("VkDebugUtilsMessengerEXT *")
        create = self.function("vkCreateDebugUtilsMessengerEXT")
        check(create(self.handle, info, NULL, out), "vkCreateDebugUtilsMessengerEXT")
        return out[0]


def _receive(messages: list[str], severity: int, _kinds: int, data: Any, _user: Any) -> int:
    """Handle a message of the layer: store errors to be raised, log information."""
    vuid = ffi.string(data.pMessageIdName).decode() if data.pMessageIdName else ""
    text = ffi.string(data.pMessage).decode(errors="replace")
    if severity < _WARNING or vuid == _SETTINGS_ID:
        log.info("%s: %s", vuid, text)
    elif vuid not in KNOWN_FALSE:
        messages.append(text if vuid in text else f"{vuid}: {text}")
    return 0


def require_layer() -> tuple[int, int, int]:
    """Return the version of the validation layer.

    Raises:
        ValidationLayerError: it is not installed.
    """
    installed = layers()
    if VALIDATION_LAYER not in installed:
        raise ValidationLayerError(
            f"validation mode needs the layer {VALIDATION_LAYER}, which is not installed",
            hint="install it (Debian, Ubuntu: `apt install vulkan-validationlayers`; else the "
            "Vulkan SDK), or switch validation off (VKMNN_VALIDATION=0)",
        )
    return installed[VALIDATION_LAYER]


def takes_named_settings() -> bool:
    """Return whether the validation layer accepts settings by name."""
    return SETTINGS_EXTENSION in instance_extensions(VALIDATION_LAYER)


def _named_checks() -> tuple[Any, list[Any]]:
    """Return the structure that enables synchronisation checks, and the objects it points to."""
    on = ffi.new("VkBool32 *", 1)
    settings = ffi.new("VkLayerSettingEXT[]", len(CHECKS))
    layer = ffi.new("char[]", VALIDATION_LAYER.encode())
    keep = [on, settings, layer]
    for setting, check_name in zip(settings, CHECKS, strict=True):
        keep.append(ffi.new("char[]", check_name.encode()))
        setting.pLayerName, setting.pSettingName = layer, keep[-1]
        setting.type = lib.VK_LAYER_SETTING_TYPE_BOOL32_EXT
        setting.valueCount = 1
        setting.pValues = on
    info = struct(
        "VkLayerSettingsCreateInfoEXT",
        lib.VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT,
        settingCount=len(settings),
        pSettings=settings,
    )
    return info, [*keep, info]


def _old_checks() -> tuple[Any, list[Any]]:
    """Return the settings in the form for a layer that only supports switches."""
    enables = ffi.new("VkValidationFeatureEnableEXT[]", [_SYNCHRONIZATION_VALIDATION])
    info = struct(
        "VkValidationFeaturesEXT",
        lib.VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
        enabledValidationFeatureCount=1,
        pEnabledValidationFeatures=enables,
    )
    return info, [enables, info]


def _destroy(process: int, handle: Any, messenger: Any, _callback: Any) -> None:
    if os.getpid() != process:
        return
    if messenger:
        pointer = lib.vkGetInstanceProcAddr(handle, b"vkDestroyDebugUtilsMessengerEXT")
        ffi.cast("PFN_vkDestroyDebugUtilsMessengerEXT", pointer)(handle, messenger, NULL)
    lib.vkDestroyInstance(handle, NULL)
