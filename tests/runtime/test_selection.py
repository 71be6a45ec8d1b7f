from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import pytest

from vkmnn.base.cache_files import cache_dir
from vkmnn.errors import DeviceNotFoundError, InvalidInputError, ShaderError
from vkmnn.runtime import Device, DeviceInfo, DeviceType, Shader, environment
from vkmnn.runtime.device import _unique, enumerate_devices, open_device
from vkmnn.runtime.pipeline import missing
from vkmnn.runtime.selection import select

MakeInfo = Callable[..., DeviceInfo]


@pytest.fixture
def devices(make_info: MakeInfo) -> list[DeviceInfo]:
    kinds = [DeviceType.CPU, DeviceType.INTEGRATED, DeviceType.DISCRETE, DeviceType.DISCRETE]
    names = ["llvmpipe (LLVM)", "Small Graphics 600", "Big Card A", "Big Card B"]
    return [
        make_info(index=i, name=name, type=kind, uuid=f"0000000{i}-0000-0000-0000-00000000000a")
        for i, (kind, name) in enumerate(zip(kinds, names, strict=True))
    ]


@pytest.mark.parametrize(
    ("selector", "index"),
    [
        ("auto", 2),
        (0, 0),
        ("3", 3),
        ("LLVMpipe", 0),
        ("big card", 2),
        ("card b", 3),
        ("graphics 600", 1),
        (" 3 ", 3),
        ("00000001-0000-0000-0000-00000000000a", 1),
        ("0000000100000000000000000000000A", 1),
    ],
)
def test_selectors(devices: list[DeviceInfo], selector: str | int, index: int) -> None:
    device, reason = select(devices, selector)
    assert device.index == index
    assert reason


@pytest.mark.parametrize("selector", ["nothing like it", 9, "9", "600", "", "-1", -1])
def test_nothing_fits(devices: list[DeviceInfo], selector: str | int) -> None:
    with pytest.raises(DeviceNotFoundError) as caught:
        select(devices, selector)
    assert "Big Card B (discrete" in str(caught.value)
    assert "apt install" in str(caught.value)
    assert '"cpu" (numpy), "fastest"' in str(caught.value)


@pytest.mark.parametrize("word", ["auto", "vulkan", "gpu", "GPU"])
def test_words_for_the_best_device(devices: list[DeviceInfo], word: str) -> None:
    assert select(devices, word)[0] is select(devices, "auto")[0]


def test_a_gpu_in_software_is_told(make_info: MakeInfo, caplog: pytest.LogCaptureFixture) -> None:
    only = [make_info(index=0, name="llvmpipe", type=DeviceType.CPU)]
    assert select(only, "auto")[0] is select(only, "vulkan")[0] is only[0]
    assert not caplog.records
    assert select(only, "gpu")[0] is only[0]
    assert "llvmpipe runs in software" in caplog.text


def test_vendors_are_selectors(make_info: MakeInfo) -> None:
    cards = [
        make_info(index=0, name="Card A", vendor="NVIDIA"),
        make_info(index=1, name="Card B", vendor="AMD"),
    ]
    assert [select(cards, name)[0].index for name in ("nvidia", "AMD")] == [0, 1]


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        *[(name, 'write "auto"') for name in ("cuda", "cuda:0", "CUDA:1", "rocm", "mps", "npu")],
        ("onnxruntime", "vkmnn bench"),
        ("llvmpiep", "did you mean LLVMpipe?"),
        ("grafics", "did you mean Graphics?"),
        ("atuo", "did you mean auto?"),
    ],
)
def test_hints_on_selectors(make_info: MakeInfo, selector: str, words: str) -> None:
    known = [make_info(index=0, name="LLVMpipe 15"), make_info(index=1, name="UHD Graphics 600")]
    with pytest.raises(DeviceNotFoundError) as caught:
        select(known, selector)
    assert caught.value.hint is not None
    assert words in caught.value.hint


def test_the_variable_that_hides_drivers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_ICD_FILENAMES", "/nowhere.json")
    with pytest.raises(DeviceNotFoundError, match=r"VK_ICD_FILENAMES=/nowhere\.json decides"):
        select([], "auto")


def test_a_number_is_an_index_and_no_part_of_a_name(make_info: MakeInfo) -> None:
    cards = [
        make_info(index=i, name="H200", uuid=f"0{i}", type=DeviceType.DISCRETE) for i in (0, 1)
    ]
    for selector in ("2", 2, "200"):
        with pytest.raises(DeviceNotFoundError, match=f"there is no device {selector}; found: 0:"):
            select(cards, selector)


def test_no_device_at_all() -> None:
    with pytest.raises(DeviceNotFoundError, match="no Vulkan device was found"):
        select([], "auto")


def test_software_comes_last_for_auto(make_info: MakeInfo) -> None:
    order = [DeviceType.CPU, DeviceType.OTHER, DeviceType.VIRTUAL, DeviceType.INTEGRATED]
    for i, kind in enumerate(order):
        known = [make_info(index=j, type=other) for j, other in enumerate(order[: i + 1])]
        assert select(known, "auto")[0].type is kind


def test_a_device_shown_twice_is_listed_once(
    devices: list[DeviceInfo], make_info: MakeInfo, caplog: pytest.LogCaptureFixture
) -> None:
    again = make_info(index=4, name="Big Card A", driver_name="other", uuid=devices[2].uuid)
    with caplog.at_level(logging.INFO, "vkmnn"):
        assert _unique([*devices, again]) == devices
    assert "it is device 2 (floor) again" in caplog.text


# --- the real ones -------------------------------------------------------------------------------


def test_opening_twice_gives_the_same_device(device: Device) -> None:
    assert open_device(device.info.index, validation=device.validation) is device
    assert open_device(device.info.uuid, validation=device.validation) is device
    assert device.info.uuid in {info.uuid for info in enumerate_devices()}


def test_the_environment_names_the_device(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_DEVICE", device.info.uuid)
    monkeypatch.setenv("VKMNN_VALIDATION", "1" if device.validation else "0")
    assert open_device() is device
    monkeypatch.setenv("VKMNN_DEVICE", "no such card")
    with pytest.raises(DeviceNotFoundError, match="no such card"):
        open_device()


def test_unknown_driver() -> None:
    with pytest.raises(InvalidInputError, match="no driver 'metal'"):
        enumerate_devices("metal")


def test_features_can_be_switched_off(
    device: Device, make_shader: Callable[..., Shader], monkeypatch: pytest.MonkeyPatch
) -> None:
    shader = make_shader("needs16", "void main() {}", requires=frozenset({"storage16"}))
    monkeypatch.setenv("VKMNN_DISABLE_FEATURES", "storage16, float16")
    poor = open_device("auto", validation=False)
    try:
        assert not {"storage16", "float16"} & poor.info.features
        assert poor.supports(shader) == f"{poor.info.name} lacks storage16"
        with pytest.raises(ShaderError, match="lacks storage16"):
            poor.pipeline(shader)
    finally:
        poor.close()
    monkeypatch.setenv("VKMNN_DISABLE_FEATURES", "all")
    floor = open_device("auto", validation=False)
    try:
        assert floor is not poor
        assert {name.partition("_")[0] for name in floor.info.features} == {"texel", "images"}
    finally:
        floor.close()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"push_constant_size": 132}, "needs 132 bytes of push constants, Floor allows 128"),
        ({"local_size": (256, 1, 1)}, "256 invocations along x"),
        ({"local_size": (16, 16, 1)}, "256 invocations a workgroup"),
        ({"requires": frozenset({"float16", "int8"})}, "Floor lacks float16, int8"),
        ({"subgroup_size": 32}, "lacks full_subgroups, subgroup_size_control"),
    ],
)
def test_supports_gives_the_reason(
    texel_add: Shader, make_info: MakeInfo, changes: dict[str, object], reason: str | None
) -> None:
    given = missing(dataclasses.replace(texel_add, **changes), make_info())
    assert given is None if reason is None else given is not None and reason in given


def test_the_local_size_may_be_a_specialization_constant(
    scale: Shader, make_info: MakeInfo
) -> None:
    assert missing(scale, make_info(), {"local_size_x": 128, "other": 1e9}) is None
    reason = missing(scale, make_info(), {"local_size_x": 2, "local_size_z": 65})
    assert reason == "scale needs 65 invocations along z, Floor allows 64"


def test_texel_formats_must_be_supported(texel_add: Shader, make_info: MakeInfo) -> None:
    assert missing(texel_add, make_info(features=frozenset())) == "Floor lacks texel_rgba32f"


# --- the environment ------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("1", True), ("on", True), ("0", False), ("", False)])
def test_validation_switch(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("VKMNN_VALIDATION", text)
    assert environment.validation() is value


def test_bad_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_VALIDATION", "perhaps")
    with pytest.raises(InvalidInputError, match="neither true nor false"):
        environment.validation()
    for text in ("soon", "-3", "0", "nan", "inf", "1e300"):
        monkeypatch.setenv("VKMNN_TIMEOUT", text)
        with pytest.raises(InvalidInputError, match="VKMNN_TIMEOUT"):
            environment.timeout_s()
    monkeypatch.setenv("VKMNN_TIMEOUT", "1.5")
    assert environment.timeout_s() == 1.5


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.delenv("VKMNN_CACHE_DIR", raising=False)
    assert cache_dir().as_posix() == "/somewhere/vkmnn"
    monkeypatch.setenv("VKMNN_CACHE_DIR", "/else")
    assert cache_dir().as_posix() == "/else"
