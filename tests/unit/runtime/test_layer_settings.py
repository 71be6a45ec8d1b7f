"""The settings of the validation layer and the log that it writes, without the layer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
    with layer_settings():
        assert os.environ["VK_LAYER_SETTINGS_PATH"].startswith(str(folder))
        assert "VK_INSTANCE_LAYERS" not in os.environ
    assert "VK_LAYER_SETTINGS_PATH" not in os.environ
    monkeypatch.setenv("VK_LAYER_SETTINGS_PATH", "/mine.txt")
    monkeypatch.setenv("VK_INSTANCE_LAYERS", "VK_LAYER_mine")
    with layer_settings(forced=True):
        assert os.environ["VK_LAYER_SETTINGS_PATH"] == "/mine.txt"
        both = f"VK_LAYER_mine{os.pathsep}VK_LAYER_KHRONOS_validation"
        assert os.environ["VK_INSTANCE_LAYERS"] == both
    assert os.environ["VK_INSTANCE_LAYERS"] == "VK_LAYER_mine"
