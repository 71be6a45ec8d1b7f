"""The pytest plug-in from a user's perspective: in a separate project and process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from vkmnn.runtime.device import enumerate_devices
from vkmnn.shaders.library import BUILTIN

ROOT = Path(__file__).resolve().parents[2]
NEEDS_DEVICE = pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device")
FEW = ("--vkmnn-shaders", "--vkmnn-kernel", "fill_f32", "--vkmnn-kernel", "unary_test_f32_*")


class Project:
    """A folder with tests of its own; pytest finds the plug-in as if vkmnn were installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        information = folder / "site" / "vkmnn_shader_tests-1.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1\n")
        (information / "entry_points.txt").write_text(
            "[pytest11]\nvkmnn = vkmnn.testing.pytest_plugin\n"
        )
        (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
        self.write("tests/test_own.py", "def test_own(): pass\n")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def pytest(
        self, *args: object, at: Path = ROOT, **env: str
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.folder / "site"), str(at)])
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, args)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, **env},
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def entries(path: Path) -> dict[str, dict[str, object]]:
    data = json.loads(path.read_text("utf-8"))
    return {entry["variant"]: entry for entry in data["entries"]}


def test_without_the_option_nothing_of_vkmnn_is_imported(project: Project):
    project.write(
        "tests/test_own.py",
        "import sys\ndef test_own():\n"
        "    assert 'vkmnn.testing.pytest_plugin' in sys.modules\n"
        "    assert not {'numpy', 'vulkan', 'vkmnn.runtime', 'vkmnn.core'} & set(sys.modules)\n",
    )
    done = project.pytest()
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert "kernel variants" not in done.stdout


@NEEDS_DEVICE
def test_run_writes_what_it_found(project: Project):
    files = ("--vkmnn-report", "out/page.html", "--vkmnn-results", "out/results.json")
    done = project.pytest(*FEW, *files)
    assert done.returncode == 0, done.stdout
    assert "test_own" not in done.stdout
    assert "vkmnn shaders: " in done.stdout
    assert "report: out/page.html" in done.stdout
    found = entries(project.folder / "out" / "results.json")
    assert {"fill_f32", "unary_test_f32_buffer"} <= set(found)
    assert all(entry["outcome"] in ("passed", "skipped") for entry in found.values())
    assert "fill_f32" in (project.folder / "out" / "page.html").read_text("utf-8")


@pytest.mark.soak
@NEEDS_DEVICE
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_vkmnn_may_be_installed_in_the_project_folder(project: Project, workers: tuple[str, ...]):
    """As in `.venv`, where pytest does not look for tests."""
    (project.folder / "pytest.ini").write_text("[pytest]\n")  # no testpaths: the whole folder
    installed = project.folder / ".venv" / "lib"
    installed.mkdir(parents=True)
    for package in ("vkmnn", "vkmnn_suite"):
        (installed / package).symlink_to(ROOT / package)
    done = project.pytest(*FEW, *workers, at=installed)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@NEEDS_DEVICE
def test_own_tests_run_when_they_are_named(project: Project):
    done = project.pytest(*FEW, "-v", "tests")
    assert done.returncode == 0, done.stdout
    assert "test_own.py::test_own PASSED" in done.stdout
    assert "test_kernel[fill_f32@" in done.stdout


@pytest.mark.soak
@NEEDS_DEVICE
def test_workers_report_to_the_main_process(project: Project):
    pytest.importorskip("xdist")
    done = project.pytest(*FEW, "-n", "2", "--vkmnn-results", "results.json")
    assert done.returncode == 0, done.stdout
    assert "kernel variants" in done.stdout
    found = entries(project.folder / "results.json")
    assert found["fill_f32"]["cases"]


@NEEDS_DEVICE
@pytest.mark.parametrize("plugin", ["terminal", "xdist"])
def test_other_plugins_may_be_off(project: Project, plugin: str):
    done = project.pytest(*FEW, "-p", f"no:{plugin}", "--vkmnn-results", "results.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert entries(project.folder / "results.json")["fill_f32"]["outcome"] == "passed"


@pytest.mark.soak
@NEEDS_DEVICE
def test_baseline_is_written_then_compared_and_never_fails(project: Project):
    timed = ("--vkmnn-perf-baseline", "baseline.json")
    assert project.pytest(*FEW, *timed, "--vkmnn-perf-update").returncode == 0
    path = project.folder / "baseline.json"
    written = path.read_text("utf-8")
    data = json.loads(written)
    [times] = data["devices"].values()
    assert (
        times["fill_f32"]["low_us"]
        <= times["fill_f32"]["median_us"]
        <= times["fill_f32"]["high_us"]
    )
    for time in times.values():  # as if everything had been a thousand times faster
        for key in ("low_us", "median_us", "high_us"):
            time[key] /= 1000
    path.write_text(json.dumps(data))
    done = project.pytest(*FEW, *timed)
    assert done.returncode == 0, done.stdout
    assert "against baseline.json: " in done.stdout
    assert "slower" in done.stdout
    assert json.loads(path.read_text("utf-8")) == data


OWN_CASES = """
from vkmnn.testing import Variant, op_case, shader_cases
from vkmnn.shaders.library import ShaderLibrary
import numpy as np
from pathlib import Path

LIBRARY = ShaderLibrary(Path(__file__).parent / "shaders")

@shader_cases("own", LIBRARY)
def own(variant):
    from vkmnn.ir.ops import UnaryAttrs
    yield op_case("UnaryOp", UnaryAttrs("ABS"), [np.ones(3, np.float32)])
"""


def add_kernel(project: Project) -> None:
    """Give the project its own kernel, which its cases do not reach."""
    shader = BUILTIN.load("unary_test_f32_buffer")
    code = shader.spirv()
    described = BUILTIN._entry(shader.name)
    assert described is not None
    digest = hashlib.sha256(code).hexdigest()
    entry = {**described, "template": "own", "axes": {}, "spirv_sha256": digest}
    folder = project.folder / "tests" / "shaders"
    (folder / "spirv").mkdir(parents=True)
    (folder / "manifest.json").write_text(
        json.dumps({"schema": 1, "templates": {}, "variants": {"own_kernel": entry}})
    )
    (folder / "spirv" / "own_kernel.spv").write_bytes(code)
    project.write("tests/conftest.py", OWN_CASES)


@pytest.mark.soak
@NEEDS_DEVICE
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_kernels_of_a_plugin_are_tested_too(project: Project, workers: tuple[str, ...]):
    add_kernel(project)
    done = project.pytest("--vkmnn-shaders", "--vkmnn-kernel", "own*", *workers)
    assert done.returncode == 1, done.stdout
    assert "no case reaches own_kernel" in done.stdout
    assert "never dispatched" in done.stdout


@pytest.fixture
def lonely(project: Project) -> Path:
    """Return where vkmnn is installed and `vkmnn-suite` is not."""
    installed = project.folder / "site"
    (installed / "vkmnn").symlink_to(ROOT / "vkmnn")
    return installed


@NEEDS_DEVICE
@pytest.mark.parametrize("chosen", [(), ("--vkmnn-kernel", "unary_*")])
def test_without_the_suite_its_package_is_named(
    project: Project, lonely: Path, chosen: tuple[str, ...]
):
    done = project.pytest("--vkmnn-shaders", *chosen, at=lonely)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "vkmnn's own kernels are left out" in done.stderr
    assert "pip install vkmnn-suite" in done.stderr
    assert "passed" not in done.stdout


@NEEDS_DEVICE
@pytest.mark.parametrize("chosen", [(), ("--vkmnn-kernel", "*_kernel")])
def test_without_the_suite_kernels_of_a_plugin_are_tested(
    project: Project, lonely: Path, chosen: tuple[str, ...]
):
    add_kernel(project)
    done = project.pytest("--vkmnn-shaders", *chosen, at=lonely)
    assert done.returncode == 1, done.stdout
    assert "vkmnn's own kernels are left out" in done.stdout
    assert "no case reaches own_kernel" in done.stdout
    assert "1 failed" in done.stdout


@NEEDS_DEVICE
def test_a_variant_without_a_test_fails_the_session(project: Project):
    """Coverage decides when nothing was left out on purpose, whatever the tests said."""
    project.write(
        "tests/conftest.py",
        "def pytest_collection_modifyitems(items):\n"
        "    items[:] = [item for item in items if 'fill_f32' in item.name]\n",
    )
    done = project.pytest("--vkmnn-shaders")
    assert "1 passed" in done.stdout
    assert "never dispatched" in done.stdout
    assert done.returncode == 1


@pytest.mark.soak
@NEEDS_DEVICE
def test_a_crash_of_the_driver_is_a_failure_of_the_variant(project: Project):
    pytest.importorskip("xdist")
    project.write(
        "site/crashing.py",
        "import os\ndef pytest_runtest_call(item):\n    if 'fill_f32' in item.name: os._exit(3)\n",
    )
    done = project.pytest(*FEW, "-n", "1", "-p", "crashing", "--vkmnn-results", "results.json")
    assert done.returncode == 1, done.stdout
    found = entries(project.folder / "results.json")
    assert found["fill_f32"]["outcome"] == "failed"
    assert "crashed" in str(found["fill_f32"]["message"])
    assert found["unary_test_f32_buffer"]["outcome"] == "passed"


# --- usage errors ---------------------------------------------------------------------------------


@NEEDS_DEVICE
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--vkmnn-device", "no such device"], "no device matches 'no such device'"),
        (["--vkmnn-report", "."], "this is a folder"),
        (["--vkmnn-results", "pytest.ini/x.json"], "cannot be written"),
        (["--vkmnn-perf-baseline", "none.json"], "--vkmnn-perf-update writes a new one"),
        (["--vkmnn-perf-baseline", "pytest.ini"], "is not a JSON file"),
        (["--vkmnn-perf-update"], "needs --vkmnn-perf-baseline FILE"),
    ],
)
def test_what_cannot_work_is_said_before_tests_run(project: Project, args: list[str], message: str):
    done = project.pytest("--vkmnn-shaders", *args)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert message in done.stderr
    assert "passed" not in done.stdout


def test_options_need_the_main_one(project: Project):
    done = project.pytest("--vkmnn-kernel", "conv*")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--vkmnn-kernel needs --vkmnn-shaders" in done.stderr


@NEEDS_DEVICE
def test_pattern_that_matches_nothing_fails(project: Project):
    done = project.pytest("--vkmnn-shaders", "--vkmnn-kernel", "nothing*")
    assert done.returncode == 1
    assert "no kernel variant matches nothing*" in done.stdout


def test_no_device_is_a_usage_error(project: Project):
    none = project.folder / "none.json"
    done = project.pytest(*FEW, VK_DRIVER_FILES=str(none), VK_ICD_FILENAMES=str(none))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no Vulkan device" in done.stderr or "no device matches" in done.stderr


@pytest.mark.parametrize(("strength", "part"), [(1, 0.35), (2, 0.65)])
def test_a_sample_shows_every_combination_of_values(strength: int, part: float):
    from vkmnn.testing.selection import chosen_variants

    def traits(variants):
        return {
            (v.template, frozenset(values))
            for v in variants
            for values in combinations(v.axes.items(), min(strength, len(v.axes)))
        }

    everything, sample = chosen_variants([]), chosen_variants([], strength=strength)
    assert traits(sample) == traits(everything)
    assert {v.template for v in sample} == {v.template for v in everything}
    assert len(sample) < part * len(everything)
    names = [v.name for v in everything]
    assert [v.name for v in sample] == sorted({v.name for v in sample}, key=names.index)


@NEEDS_DEVICE
@pytest.mark.parametrize(("option", "passed"), [("--vkmnn-sample", 2), ("--vkmnn-pairs", 4)])
def test_a_sample_is_run_and_is_no_loss_of_coverage(project: Project, option: str, passed: int):
    done = project.pytest("--vkmnn-shaders", option, "--vkmnn-kernel", "gather_nd_*")
    assert done.returncode == 0, done.stdout
    assert f"{passed} passed" in done.stdout  # of four: two elements by two loads


def test_only_tests_are_rewritten(project: Project) -> None:
    """Installed with a plug-in, all of vkmnn would be; two threads import it at once."""
    project.write("tests/conftest.py", "import pytest\npytest.register_assert_rewrite('vkmnn')\n")
    project.write(
        "tests/test_own.py",
        "import vkmnn.core.session, vkmnn.testing.case, vkmnn.vulkan.backend\n"
        "def test_own():\n"
        "    for module in (vkmnn.core.session, vkmnn.vulkan.backend):\n"
        "        assert '@pytest_ar' not in vars(module)\n"
        "    assert '@pytest_ar' in vars(vkmnn.testing.case)\n"
        "    assert '@pytest_ar' in globals()\n",
    )
    result = project.pytest()
    assert result.returncode == 0, result.stdout + result.stderr
