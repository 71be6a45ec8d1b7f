"""The tests of each driver, and their outcome."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from tools import process
from tools.process import WORKERS

_OPERATORS = ("-m", "not torch and not slow", "tests/op/vulkan")
_NETWORKS = ("tests/model/test_light.py", "-k", "not on_the_cpu")

PARTS: dict[str, tuple[str, ...]] = {
    "operators": _OPERATORS,
    "operators, 1 in 40": (*_OPERATORS, "--one-in", "40"),
    "driver": ("tests/driver",),
    "networks": ("-m", "not torch", *_NETWORKS),
    "networks, two of nine": ("-m", "not torch and not slow", *_NETWORKS),
    "validation": ("-m", "validation"),
    "kernels": ("--vkmnn-shaders",),
    "kernels, two pipelines each": ("--vkmnn-shaders", "--vkmnn-pipelines=2"),
    "kernels, 1 in 8 of a sample": (
        *("--vkmnn-shaders", "--vkmnn-sample", "--one-in", "8"),
        "--vkmnn-pipelines=2",
    ),
}
"""Part -> what pytest is told. The table of the page shows the names: they say what is left out."""

WHOLE = ("operators", "driver", "networks", "validation", "kernels")
SHORT = ("operators, 1 in 40", "networks, two of nine", "kernels, 1 in 8 of a sample")
# The rest is the same through either driver.
BY_KOMPUTE = ("operators", "operators, 1 in 40", "driver", "networks", "networks, two of nine")
_THINNED = {"mesa-sid": {"kernels": "kernels, two pipelines each"}}
"""What takes the place of a part where a driver's compiler would need hours."""

_ENV: dict[str, dict[str, str]] = {"kernels, 1 in 8 of a sample": {"GALLIVM_PERF": "nopt"}}
"""Part -> environment. Mesa's software driver spends nearly all of the time of a kernel in LLVM's
optimisations; operators and networks are compiled as users' are."""

_EMULATED = {
    "swiftshader": "not rotate and not coop",
    "mesa-25": "not coop",
    "mesa-sid": "not coop or m8x8x8s8",
}
"""What a driver would need minutes to compile each, and cannot run but emulated."""

ABOUT = """
import json
from vkmnn.runtime.device import open_device
from vkmnn.runtime.drivers import get_driver
from vkmnn.runtime.drivers.vulkan.api import enumerate_array, ffi, lib
info = open_device(validation=False).info
layers = enumerate_array("VkLayerProperties", lib.vkEnumerateInstanceLayerProperties)
name = "VK_LAYER_KHRONOS_validation"
versions = [layer.specVersion for layer in layers if ffi.string(layer.layerName).decode() == name]
layer = ".".join(map(str, (versions[0] >> 22, versions[0] >> 12 & 1023, versions[0] & 4095))) \\
    if versions else "none"
unknown = get_driver("vulkan").unknown_to_layer() & info.features if versions else ()
print(json.dumps([info.name, info.driver_version, layer, sorted(unknown)]))
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one part: numbers of tests, seconds, and pytest's exit status."""

    part: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    status: int

    def __str__(self) -> str:
        failed = f", {self.failed} FAILED" if self.failed else ""
        broken = f", pytest ended with {self.status}" if self.status and not self.failed else ""
        return f"{self.part}: {self.passed} passed{failed}{broken}, {self.skipped} skipped"


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome of a driver."""

    driver: str
    device: str
    version: str
    layer: str
    date: str
    outcomes: tuple[Outcome, ...]

    @property
    def status(self) -> int:
        """The first exit status that is not 0."""
        return next((outcome.status for outcome in self.outcomes if outcome.status), 0)


def run(
    driver: str, python: Path, env: Mapping[str, str], parts: Iterable[str], more: Sequence[str]
) -> Report:
    """Run parts of the tests on the driver that `env` selects, with their output shown.

    Raises:
        TaskError: the driver has no device.
    """
    about = process.ask([python, "-c", ABOUT], f"{driver} has no device", env)
    device, version, layer, unknown = json.loads(about.splitlines()[-1])
    outcomes = []
    for part in (_THINNED.get(driver, {}).get(part, part) for part in parts):
        process.say(f"{driver}: {part}")
        command = [python, "-m", "pytest", "-q", "-n", str(WORKERS), *PARTS[part], *more]
        if part.startswith("kernels") and driver in _EMULATED:
            command += ["-k", _EMULATED[driver]]
        unvalidated = {"VKMNN_VALIDATION": "0"} if unknown and part.startswith("kernels") else {}
        if unvalidated:
            process.say(f"without the layer, which is too old for {', '.join(unknown)}")
        outcomes.append(_counted(part, command, {**env, **_ENV.get(part, {}), **unvalidated}))
    date = time.strftime("%Y-%m-%d")
    return Report(driver, device, version, layer, date, tuple(outcomes))


def _counted(part: str, command: Sequence[object], env: Mapping[str, str]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tests.xml")
        start = time.monotonic()
        status = process.run_loud([*command, f"--junitxml={path}"], env)
        seconds = time.monotonic() - start
        suites = ElementTree.parse(path).iter("testsuite") if path.is_file() else ()
        counts = [[int(s.get(key, 0)) for key in _COUNTED] for s in suites] or [[0] * 4]
    tests, failures, errors, skipped = map(sum, zip(*counts, strict=True))
    failed = failures + errors
    return Outcome(part, tests - failed - skipped, failed, skipped, round(seconds), status)


_COUNTED = ("tests", "failures", "errors", "skipped")


def save(report: Report, path: Path) -> None:
    """Write a report for another process."""
    path.write_text(json.dumps(asdict(report)), "utf-8")


def load(path: Path) -> Report:
    """Read a file from `save`."""
    content = json.loads(path.read_text("utf-8"))
    outcomes = tuple(Outcome(**outcome) for outcome in content.pop("outcomes"))
    return Report(outcomes=outcomes, **content)
