"""VkInstance: made once per mode, with or without the validation layer."""

from __future__ import annotations

import os
import weakref
from contextlib import nullcontext
from typing import Any

from vkmnn.errors import ValidationLayerError
from vkmnn.runtime.drivers.base import DriverUnavailableError
from vkmnn.runtime.drivers.layer_settings import VALIDATION_LAYER, layer_settings
from vkmnn.runtime.drivers.vulkan.api import (
    LOADER_HINT,
    NULL,
    check,
    enumerate_array,
    ffi,
    lib,
    names,
    struct,
)
from vkmnn.runtime.drivers.vulkan.loader import layer_names, loader_version

API_1_3 = 1 << 22 | 3 << 12

KNOWN_FALSE: dict[str, str] = {}
"""Message id -> why the validation layer is wrong to report it here."""

_ENUMERATE_PORTABILITY = 1  # VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
_SYNCHRONIZATION_VALIDATION = 4  # VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
_WARNING, _ERROR = 0x100, 0x1000  # VK_DEBUG_UTILS_MESSAGE_SEVERITY_*
_VALIDATION = 2  # VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT


class Instance:
    """A VkInstance and, in validation mode, the messages that its layer sent.

    Raises:
        DriverUnavailableError: no driver is installed, or the loader is older than Vulkan 1.1.
        ValidationLayerError: `validation` is asked for and the layer is not installed.
    """

    def __init__(self, validation: bool) -> None:
        self.validation = validation
        self.messages: list[str] = []
        if loader_version() < (1, 1):
            raise DriverUnavailableError("the Vulkan loader is older than 1.1", LOADER_HINT)
        extensions = {
            ffi.string(item.extensionName).decode()
            for item in enumerate_array(
                "VkExtensionProperties", lib.vkEnumerateInstanceExtensionProperties, NULL
            )
        }
        wanted, layers, flags = [], [], 0
        if "VK_KHR_portability_enumeration" in extensions:
            wanted.append("VK_KHR_portability_enumeration")
            flags = _ENUMERATE_PORTABILITY
        chain: Any = NULL
        keep: list[Any] = []
        if validation:
            require_layer()
            layers.append(VALIDATION_LAYER)
            wanted.append("VK_EXT_debug_utils")
            chain = self._messenger_info()
            enables = ffi.new("VkValidationFeatureEnableEXT[]", [_SYNCHRONIZATION_VALIDATION])
            features = struct(
                "VkValidationFeaturesEXT",
                lib.VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                enabledValidationFeatureCount=1,
                pEnabledValidationFeatures=enables,
            )
            chain.pNext = features
            keep += [enables, features]
        name = ffi.new("char[]", b"vkmnn")
        application = struct(
            "VkApplicationInfo",
            lib.VK_STRUCTURE_TYPE_APPLICATION_INFO,
            pEngineName=name,
            pApplicationName=name,
            apiVersion=API_1_3,
        )
        extension_array, kept_extensions = names(wanted)
        layer_array, kept_layers = names(layers)
        keep += [name, kept_extensions, kept_layers]
        info = struct(
            "VkInstanceCreateInfo",
            lib.VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
            pNext=chain,
            flags=flags,
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=layer_array,
            enabledExtensionCount=len(wanted),
            ppEnabledExtensionNames=extension_array,
        )
        out = ffi.new("VkInstance *")
        with layer_settings() if validation else nullcontext():
            result = lib.vkCreateInstance(info, NULL, out)
        if result == lib.VK_ERROR_INCOMPATIBLE_DRIVER:
            raise DriverUnavailableError("the Vulkan loader found no driver (ICD)", LOADER_HINT)
        check(result, "vkCreateInstance")
        self.handle = out[0]
        self._messenger = self._create_messenger(chain) if validation else NULL
        callback = self._callback if validation else None
        self._finalizer = weakref.finalize(
            self, _destroy, os.getpid(), self.handle, self._messenger, callback
        )

    def function(self, name: str) -> Any:
        """Return an instance-level function that the loader does not export."""
        pointer = lib.vkGetInstanceProcAddr(self.handle, name.encode())
        return ffi.cast(f"PFN_{name}", pointer)

    def _messenger_info(self) -> Any:
        messages = self.messages

        def receive(_severity: int, _kinds: int, data: Any, _user: Any) -> int:
            vuid = ffi.string(data.pMessageIdName).decode() if data.pMessageIdName else ""
            text = ffi.string(data.pMessage).decode(errors="replace")
            if vuid not in KNOWN_FALSE:
                messages.append(text if vuid in text else f"{vuid}: {text}")
            return 0

        # Held by the instance: the layer calls it until the instance is gone.
        self._callback = ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", receive)
        return struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            lib.VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
            messageSeverity=_WARNING | _ERROR,
            messageType=_VALIDATION,
            pfnUserCallback=self._callback,
        )

    def _create_messenger(self, info: Any) -> Any:
        info.pNext = NULL
        out = ffi.new("VkDebugUtilsMessengerEXT *")
        create = self.function("vkCreateDebugUtilsMessengerEXT")
        check(create(self.handle, info, NULL, out), "vkCreateDebugUtilsMessengerEXT")
        return out[0]


def require_layer() -> None:
    """See whether the validation layer is installed.

    Raises:
        ValidationLayerError: it is not.
    """
    if VALIDATION_LAYER not in layer_names():
        raise ValidationLayerError(
            f"validation mode needs the layer {VALIDATION_LAYER}, which is not installed",
            hint="install it (Debian, Ubuntu: `apt install vulkan-validationlayers`; else the "
            "Vulkan SDK), or switch validation off (VKMNN_VALIDATION=0)",
        )


def _destroy(process: int, handle: Any, messenger: Any, _callback: Any) -> None:
    if os.getpid() != process:
        return
    if messenger:
        pointer = lib.vkGetInstanceProcAddr(handle, b"vkDestroyDebugUtilsMessengerEXT")
        ffi.cast("PFN_vkDestroyDebugUtilsMessengerEXT", pointer)(handle, messenger, NULL)
    lib.vkDestroyInstance(handle, NULL)
