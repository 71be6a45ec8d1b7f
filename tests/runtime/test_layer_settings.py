"""The settings of the validation layer and the log that it writes, without the layer."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from vkmnn.runtime import Device
from vkmnn.runtime.device import open_device
from vkmnn.runtime.drivers import layer_settings as module
from vkmnn.runtime.drivers.layer_settings import LayerLog, layer_settings

# As layers of 1.3.239 and of 1.4 write them.
OLD = """\
SYNC-HAZARD-X(ERROR / SPEC): msgNum: -7 - Validation Error: [ SYNC-HAZARD-X ] Object 0: a | b
    Objects: 1
        [0] 0xc000000000c, type: 9, name: NULL
"""
NEW = """\
Validation Error: [ VUID-vkCmdDispatch-None-08114 ] | MessageID = 0x30b6e267
vkCmdDispatch(): the descriptor is not valid.
Objects: 1
    [0] VkQueue 0x55d8
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "_folder", tmp_path)
    for name in ("VK_LAYER_SETTINGS_PATH", "VK_INSTANCE_LAYERS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_messages_are_read_once_each(folder: Path) -> None:
    log = LayerLog()
    assert log.new_messages() == []
    path = folder / "log.txt"
    path.write_text(OLD + NEW)
    first, second = log.new_messages()
    assert first == "Validation Error: [ SYNC-HAZARD-X ] Object 0: a | b"
    assert second == NEW.partition("\nObjects")[0]
    assert log.new_messages() == []
    with path.open("a") as file:
        file.write(OLD)
    assert len(log.new_messages()) == 1


def test_a_log_cut_by_another_instance_is_read_on(folder: Path) -> None:
    """The layer then goes on where it was, behind a hole."""
    log = LayerLog()
    path = folder / "log.txt"
    with path.open("w") as layer:
        layer.write(OLD)
        layer.flush()
        assert len(log.new_messages()) == 1
        path.write_text("")
        assert log.new_messages() == []
        layer.write(NEW)
        layer.flush()
        assert "VUID-vkCmdDispatch-None-08114" in log.new_messages()[0]


def test_the_environment_is_left_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with layer_settings(named=True):
        assert os.environ["VK_LAYER_SETTINGS_PATH"].startswith(str(folder))
        assert "VK_INSTANCE_LAYERS" not in os.environ
    assert "VK_LAYER_SETTINGS_PATH" not in os.environ
    monkeypatch.setenv("VK_LAYER_SETTINGS_PATH", "/mine.txt")
    monkeypatch.setenv("VK_INSTANCE_LAYERS", "VK_LAYER_mine")
    with layer_settings(named=True, forced=True):
        assert os.environ["VK_LAYER_SETTINGS_PATH"] == "/mine.txt"
        both = f"VK_LAYER_mine{os.pathsep}VK_LAYER_KHRONOS_validation"
        assert os.environ["VK_INSTANCE_LAYERS"] == both
    assert os.environ["VK_INSTANCE_LAYERS"] == "VK_LAYER_mine"


@pytest.mark.parametrize("named", [True, False])
def test_a_layer_is_given_the_settings_that_it_knows(folder: Path, named: bool) -> None:
    """A layer that knows settings by name warns of the older way, also where both are used."""
    with layer_settings(named=named):
        text = Path(os.environ["VK_LAYER_SETTINGS_PATH"]).read_text("utf-8")
    assert ("khronos_validation.validate_sync = true" in text) == named
    assert ("khronos_validation.enables = " in text) != named
    assert f"log_filename = {folder / 'log.txt'}" in text


@pytest.mark.parametrize(
    ("severity", "vuid", "raised"),
    [
        (0x1000, "VUID-vkCmdDispatch-None-08114", True),
        (0x100, "SYNC-HAZARD-READ-AFTER-WRITE", True),
        (0x100, "VALIDATION-SETTINGS", False),  # as layers of 1.4 tell what they think of settings
        (0x10, "CURRENT-VALIDATION-ENABLED", False),
    ],
)
def test_faults_are_kept_and_information_is_logged(
    device: Device, caplog: pytest.LogCaptureFixture, severity: int, vuid: str, raised: bool
) -> None:
    from vkmnn.runtime.drivers.vulkan import instance
    from vkmnn.runtime.drivers.vulkan.api import NULL, ffi

    strings = [ffi.new("char[]", text) for text in (vuid.encode(), b"the text")]
    data = ffi.new("VkDebugUtilsMessengerCallbackDataEXT *")
    data.pMessageIdName, data.pMessage = strings
    messages: list[str] = []
    with caplog.at_level(logging.INFO, logger="vkmnn"):
        instance._receive(messages, severity, 2, data, NULL)
    assert messages == [f"{vuid}: the text"] * raised
    assert (vuid in caplog.text) != raised


@pytest.mark.validation
@pytest.mark.parametrize(
    ("version", "left_off"),
    [
        ((1, 3, 239), {"cooperative_matrix", "subgroup_rotate", "bfloat16"}),
        ((1, 3, 280), {"bfloat16"}),
        ((1, 4, 363), set()),
    ],
)
def test_an_old_layer_does_not_see_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], left_off: set[str]
) -> None:
    """Such a layer reports a new driver's features as faults when the device is made."""
    from vkmnn.runtime.drivers import vulkan_driver

    monkeypatch.setattr(vulkan_driver, "require_layer", lambda: version)
    unknown = vulkan_driver.VulkanDriver().unknown_to_layer()
    assert unknown - {"bfloat16_cooperative_matrix"} == left_off


@pytest.mark.validation
def test_a_validated_device_goes_without_what_the_layer_does_not_know(
    validated: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from vkmnn.runtime.drivers.vulkan_driver import VulkanDriver

    some = min(validated.info.features)
    caplog.set_level(logging.INFO, logger="vkmnn")
    unknown = VulkanDriver.unknown_to_layer
    monkeypatch.setattr(VulkanDriver, "unknown_to_layer", lambda self: unknown(self) | {some})
    device = open_device(validation=True)
    try:
        assert device.info.features == validated.info.features - {some}
        assert f"too old: {some}" in caplog.text
        assert some in open_device(validation=False).info.features
    finally:
        device.close()
