"""`vkmnn doctor`: every check can fail, and then tells what to do."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import vkmnn
from tests.device_infos import COOPMAT_GPU
from vkmnn.cli import checks, doctor, driver_files, install, selftest
from vkmnn.cli.app import run_cli
from vkmnn.cli.checks import Check, Status
from vkmnn.errors import DeviceError, ShaderError
from vkmnn.testing.emulation import COOPMAT_SHAPE
from vkmnn.vulkan.cost.devices import INTEL


def only(*names: str) -> tuple[Callable[[], Iterator[Check]], ...]:
    """Return the checks of these names."""
    return tuple(getattr(checks, f"check_{name}") for name in names)


def by_name(found: Iterator[Check]) -> dict[str, Check]:
    return {check.name: check for check in found}


@pytest.fixture
def no_driver_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*driver_files.OVERRIDES, driver_files.ADDED):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


# --- Kompute -----------------------------------------------------------------------------------


@pytest.fixture
def kp_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 0.9.0 of the package `kp` is installed."""
    monkeypatch.setattr(metadata, "version", lambda name: "0.9.0")


def test_kompute_is_nothing_to_worry_about(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    (check,) = checks.check_kompute()
    assert check.status is Status.INFO
    assert "not installed" in check.detail


@pytest.mark.parametrize("wrong", [False, True])
def test_kompute_is_tried(kp_version: None, monkeypatch: pytest.MonkeyPatch, wrong: bool) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    asked: list[tuple[int, str]] = []

    def run_apart(index: int, driver: str) -> dict[str, Any]:
        asked.append((index, driver))
        error = "no device matches '0': wrong data\n  hint: build it" if wrong else None
        return {"error": error, "difference": 1e-7}

    monkeypatch.setattr(selftest, "run_apart", run_apart)
    (check,) = checks.check_kompute()
    assert asked == [(vkmnn.devices()[0].index, "kompute")]
    assert check.status is (Status.WARNING if wrong else Status.OK)
    assert check.detail.endswith("wrong data" if wrong else "1e-07")
    assert ("tasks.py kompute" in check.remedy) == wrong


# --- as a whole --------------------------------------------------------------------------------


def test_doctor_here(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_cli(["doctor"])
    text = capsys.readouterr().out
    for words in ("Python", "numpy", "onnx", "shaders", "cache folder"):
        assert words in text
    if vkmnn.devices():
        assert status == 0, text
        assert "vkmnn works here." in text
        assert vkmnn.devices()[0].name in text
    else:
        assert status == 1
        assert "No usable device" in text


def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_cli(["doctor", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] == (status == 0)
    assert {check["status"] for check in answer["checks"]} <= {status.value for status in Status}
    assert "Self test" in {check["group"] for check in answer["checks"]} or not vkmnn.devices()


def test_a_check_that_breaks_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_driver() -> Iterator[Check]:
        raise DeviceError("vkCreateInstance failed", hint="start again")
        yield

    def check_arrays() -> Iterator[Check]:
        raise ImportError("No module named 'numpy'")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (check_driver, check_arrays, checks.check_python))
    assert run_cli(["doctor"]) == 1
    text = capsys.readouterr().out
    for words in ("vkCreateInstance failed", "→ start again", "No module named 'numpy'", "Python"):
        assert words in text


# --- the system --------------------------------------------------------------------------------


def test_missing_and_old_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "onnx":
            raise metadata.PackageNotFoundError(name)
        return "1.9.3"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy>=1.26", "cffi>=1.9"])
    found = by_name(checks.check_packages())
    assert found["onnx"].status is Status.FAILED
    assert found["onnx"].remedy == "pip install onnx"
    assert found["numpy"].status is Status.FAILED
    assert found["numpy"].remedy == "pip install 'numpy>=1.26'"
    assert found["cffi"].status is Status.OK
    assert found["vulkan"].status is Status.OK


def test_variables_are_shown(no_driver_variables: pytest.MonkeyPatch) -> None:
    no_driver_variables.setenv("VKMNN_DEVICE", "some card")
    no_driver_variables.setenv("VK_DRIVER_FILES", "/some/file.json")
    found = by_name(checks.check_environment())
    assert found["VKMNN_DEVICE"].detail == "some card"
    assert found["VK_DRIVER_FILES"].detail == "/some/file.json"


RELEASES = {
    "debian": {"ID": "debian"},
    "ubuntu": {"ID": "ubuntu", "ID_LIKE": "debian"},
    "mint": {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"},
    "fedora": {"ID": "fedora"},
    "rocky": {"ID": "rocky", "ID_LIKE": "rhel centos fedora"},
    "arch": {"ID": "arch"},
    "manjaro": {"ID": "manjaro", "ID_LIKE": "arch"},
    "nixos": {"ID": "nixos"},
    "nothing": {},
}


@pytest.mark.parametrize(
    ("release", "command"),
    [
        *((name, "apt install") for name in ("debian", "ubuntu", "mint")),
        *((name, "dnf install") for name in ("fedora", "rocky")),
        *((name, "pacman -S") for name in ("arch", "manjaro")),
        *((name, "libvulkan.so.1") for name in ("nixos", "nothing")),
    ],
)
def test_remedies_of_linux(monkeypatch: pytest.MonkeyPatch, release: str, command: str) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: RELEASES[release])
    assert command in install.remedy("driver")


@pytest.mark.parametrize(
    ("name", "words"), [("darwin", "molten-vk"), ("win32", "vulkan-1.dll"), ("linux", "libvulkan")]
)
def test_remedies_of_other_systems(monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    def no_file() -> dict[str, str]:
        raise OSError("no os-release")

    monkeypatch.setattr("sys.platform", name)
    monkeypatch.setattr(platform, "freedesktop_os_release", no_file)
    assert words in install.remedy("driver")


def test_every_remedy_knows_every_system() -> None:
    systems = {frozenset(texts) for texts in install.REMEDIES.values()}
    assert systems == {frozenset({"debian", "fedora", "arch", "linux", "macos", "windows"})}


# --- drivers -----------------------------------------------------------------------------------


def write_manifest(path: Path, library: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": library}}))
    return path


def test_driver_files_of_a_variable(
    no_driver_variables: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lib.so").write_bytes(b"")
    good = write_manifest(tmp_path / "good.json", "./lib.so")
    bare = write_manifest(tmp_path / "bare.json", "libsomething.so")
    gone = write_manifest(tmp_path / "gone.json", "/nowhere/lib.so")
    text = tmp_path / "text.json"
    text.write_text("[]")
    missing = tmp_path / "missing.json"
    paths = [good, bare, gone, text, missing, good]
    no_driver_variables.setenv("VK_ICD_FILENAMES", "/older/variable.json")
    no_driver_variables.setenv("VK_DRIVER_FILES", ":".join(map(str, paths)))
    found = driver_files.find_driver_files()
    assert [file.path for file in found] == paths[:-1]
    problems = [file.problem for file in found]
    assert problems[:2] == ["", ""]
    assert "/nowhere/lib.so" in problems[2]
    assert problems[3] == "is not a driver manifest"
    assert "No such file" in problems[4]
    assert driver_files.override() == "VK_DRIVER_FILES"


def test_driver_files_that_are_installed(
    no_driver_variables: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_driver_variables.setattr("sys.platform", "linux")
    first = write_manifest(tmp_path / "home" / "vulkan" / "icd.d" / "a.json", "liba.so")
    second = write_manifest(tmp_path / "data" / "vulkan" / "icd.d" / "b.json", "libb.so")
    added = write_manifest(tmp_path / "added" / "c.json", "libc.so")
    no_driver_variables.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    no_driver_variables.setenv("XDG_DATA_DIRS", f"{tmp_path}/data:{tmp_path}/nothing")
    no_driver_variables.setenv("VK_ADD_DRIVER_FILES", str(added.parent))
    found = [file.path for file in driver_files.find_driver_files()]
    assert [path for path in found if path.is_relative_to(tmp_path)] == [added, first, second]


def test_a_variable_that_hides_the_drivers(no_driver_variables: pytest.MonkeyPatch) -> None:
    no_driver_variables.setenv("VK_DRIVER_FILES", "/nowhere/driver.json")
    (check,) = checks._driver_files()
    assert check.status is Status.WARNING
    assert check.remedy == "correct VK_DRIVER_FILES"
    no_driver_variables.setenv("VK_DRIVER_FILES", ":")
    (check,) = checks._driver_files()
    assert check.status is Status.FAILED
    assert check.remedy == "correct or unset VK_DRIVER_FILES"


def test_the_device_of_the_environment_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    monkeypatch.setenv("VKMNN_DEVICE", "no such card")
    auto = by_name(checks._devices())["auto"]
    assert auto.status is Status.FAILED
    assert "no such card" in auto.detail


# --- the engine --------------------------------------------------------------------------------


def test_damaged_shaders(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there() -> bytes:
        raise FileNotFoundError("gone.spv")

    from vkmnn.shaders import all_shaders

    shaders = all_shaders()
    damaged = (
        replace(shaders[0], spirv=lambda: b"other"),
        replace(shaders[1], spirv=not_there),
        *shaders[2:5],
    )
    monkeypatch.setattr("vkmnn.shaders.all_shaders", lambda: damaged)
    (check,) = checks.check_shaders()
    assert check.status is Status.FAILED
    assert f"1 missing ({shaders[1].name})" in check.detail
    assert f"1 changed ({shaders[0].name})" in check.detail
    assert "vkmnn.codegen" in check.remedy


def test_a_manifest_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ValueError("Expecting value")

    monkeypatch.setattr("vkmnn.shaders.all_shaders", broken)
    (check,) = checks.check_shaders()
    assert check.status is Status.FAILED
    assert "Expecting value" in check.detail


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "cache"))
    (check,) = checks.check_cache()
    assert check.status is Status.OK
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (check,) = checks.check_cache()
    assert check.status is Status.WARNING
    assert "VKMNN_CACHE_DIR" in check.remedy


def test_glslang_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> Any:
        raise ShaderError("no GLSL compiler was found", hint="pip install 'vkmnn[codegen]'")

    monkeypatch.setattr("vkmnn.codegen.compilers.find_compiler", nothing)
    (check,) = checks.check_glslang()
    assert check.status is Status.INFO
    assert "pip install" in check.remedy


# --- the self test -----------------------------------------------------------------------------


def test_self_test_on_numpy() -> None:
    answer = selftest.run_here("cpu")
    assert answer["error"] is None
    assert answer["difference"] == 0


def test_self_test_on_every_device() -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    for device in vkmnn.devices():
        answer = selftest.run_apart(device.index)
        assert answer["error"] is None, device.name
        assert answer["difference"] < 1e-5


def test_what_devices_prove_is_shown() -> None:
    """With figures; what is not used is a warning, and says what to do."""
    arc = replace(
        COOPMAT_GPU,
        index=3,
        vendor_id=INTEL,
        cooperative_matrices=(replace(COOPMAT_SHAPE, m=8, n=8),),
    )
    proofs = [
        {"name": "matrices", "kept": True, "text": "64x1024x1024 in 20 µs"},
        {"name": "images", "kept": False, "text": "wrong results: off by 1.0e-01 of the range"},
    ]
    fast, wrong, refused = checks._proofs(arc, proofs)
    assert (fast.name, fast.status, fast.remedy) == ("matrices 3", Status.OK, "")
    assert (wrong.name, wrong.status) == ("images 3", Status.WARNING)
    assert wrong.detail == "not used: wrong results: off by 1.0e-01 of the range"
    assert "driver" in wrong.remedy
    assert refused.status is Status.INFO
    assert "Arc before Xe2" in refused.detail


def test_self_test_finds_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    from vkmnn.core.session import Session

    real = Session.run
    calls: list[int] = []

    def wrong_at_first(self: Session, feeds: Any) -> Any:
        calls.append(1)
        results = real(self, feeds)
        factor = 1.5 if len(calls) == 1 else 1
        return {name: array * factor for name, array in results.items()}

    monkeypatch.setattr(Session, "run", wrong_at_first)
    assert "wrong results" in selftest.run_here("cpu")["error"]


def test_self_test_survives_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "TIMEOUT_S", 1800)
    assert "there is no device 97" in selftest.run_apart(97)["error"]


@pytest.mark.parametrize(
    ("code", "limit", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 1800, "signal 11"),
        ("import sys; sys.exit('the driver gave up')", 1800, "status 1: the driver gave up"),
        ("import time; time.sleep(60)", 2, "no answer within"),
    ],
)
def test_self_test_survives_its_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, limit: int, words: str
) -> None:
    """A program that behaves like the driver replaces Python."""
    fake = tmp_path / "python"
    fake.write_text(f"#!/usr/bin/env python3\n{code}\n")
    fake.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(fake))
    monkeypatch.setattr(selftest, "TIMEOUT_S", limit)
    assert words in selftest.run_apart(0)["error"]


@pytest.mark.parametrize(
    ("driver", "lanes", "flags", "says"),
    [
        ("llvmpipe", 8, "avx2 avx512f", True),
        ("llvmpipe", 16, "avx2 avx512f", False),
        ("llvmpipe", 8, "avx2", False),
        ("radv", 8, "avx2 avx512f", False),
    ],
)
def test_vectors_that_are_not_used(
    monkeypatch: pytest.MonkeyPatch, driver: str, lanes: int, flags: str, says: bool
) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    info = replace(vkmnn.devices()[0], driver_name=driver, subgroup_size=lanes)
    monkeypatch.setattr(vkmnn, "devices", lambda: [info])
    monkeypatch.setattr(checks, "processor", lambda: f"A processor, {flags}")
    found = [check for check in checks.check_vulkan() if check.name == f"vectors {info.index}"]
    assert len(found) == says
    assert all("LP_NATIVE_VECTOR_WIDTH=512" in check.remedy for check in found)


def test_a_device_profile_that_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    assert not [check for check in checks.check_vulkan() if check.name == "device profile"]
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", "apple-m1")
    found = [check for check in checks.check_vulkan() if check.name == "device profile"]
    assert found
    assert all("apple-m1" in check.detail for check in found)
    assert all(check.status is checks.Status.WARNING for check in found)


def test_a_device_that_fails_the_test(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    first = vkmnn.devices()[0]
    twins = [first, replace(first, index=1, name="Broken card")]
    good = {"error": None, "seconds": 0.1, "difference": 1e-7}
    answers = {0: good, 1: {"error": "the process ended with signal 11: no message"}}
    monkeypatch.setattr(doctor, "CHECKS", only("by_running"))
    monkeypatch.setattr(vkmnn, "devices", lambda: twins)
    monkeypatch.setattr(selftest, "run_apart", lambda index: answers[index])
    assert run_cli(["doctor"]) == 0
    assert "! " in capsys.readouterr().out
    answers[0] = answers[1]
    assert run_cli(["doctor"]) == 1
    text = capsys.readouterr().out
    assert text.count("✗") == 3  # two devices, and the verdict that points at them
    assert "No usable device" in text
