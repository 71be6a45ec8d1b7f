from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.codegen.conftest import SCALE, SCALE_ENTRY, Project
from vkmnn.codegen.browse import Settings
from vkmnn.codegen.cache import Cache, cache_folder
from vkmnn.codegen.compiler import Compiler
from vkmnn.codegen.places import SHADERS
from vkmnn.codegen.watch import Step, Watch, command_for

NAMES = ["scale_f16_buffer", "scale_f32_buffer", "scale_f32_texel"]
ROOT = Path(__file__).resolve().parents[2]


class Steps:
    """A watch on a project, and the events between two comparisons that must agree."""

    def __init__(self, project: Project, compiler: Compiler, only: frozenset[str]) -> None:
        settings = Settings(None, project.root, 1)
        self._watch = Watch(settings, compiler, Cache(cache_folder()), only)
        self.meanwhile: list[str] = []
        self._project = project

    def __call__(self) -> Step:
        step = self._watch.step(self._sleep)
        assert step is not None
        return step

    def quiet(self) -> bool:
        return self._watch.step(self._sleep) is None

    def _sleep(self, seconds: float) -> None:
        if self.meanwhile:
            self._project.write("scale.comp.j2", self.meanwhile.pop(0))


@pytest.fixture
def steps(project: Project, compiler: Compiler) -> Steps:
    return Steps(project, compiler, frozenset())


def test_each_save_is_one_step(project: Project, steps: Steps) -> None:
    first = steps()
    assert first.changes is not None
    assert (first.files, first.changes.names("added")) == ((), NAMES)
    assert steps.quiet()
    project.write("scale.comp.j2", SCALE.replace("SHIFT *", "2.0 * SHIFT *"))
    step = steps()
    assert step.changes is not None
    assert step.files == ("scale.comp.j2",)
    assert step.changes.names("changed") == list(step.compiled) == NAMES
    project.write("include/common.glsl.j2", "uint global_index() { return 7u; }\n")
    assert steps().files == ("common.glsl.j2",)
    project.macro({"scale.comp.j2": {**SCALE_ENTRY, "optimize": {"dtype=f16": "none"}}})
    step = steps()
    assert (step.files, step.compiled) == (("macro.json",), ("scale_f16_buffer",))
    assert steps.quiet()


def test_saving_the_same_again_is_no_change(project: Project, steps: Steps) -> None:
    steps()
    project.write("scale.comp.j2", SCALE)
    os.utime(project.glsl / "scale.comp.j2", (1, 1))
    assert steps.quiet()


def test_a_save_in_several_writes_is_one_step(project: Project, steps: Steps) -> None:
    steps()
    project.write("scale.comp.j2", "")
    steps.meanwhile = [SCALE[:100], SCALE.replace("SHIFT *", "3.0 * SHIFT *")]
    assert steps().error is None
    assert steps.quiet()


def test_a_mistake_is_shown_and_the_outputs_stay(project: Project, steps: Steps) -> None:
    steps()
    before = (project.root / "shaders.lock").read_bytes()
    project.write("scale.comp.j2", SCALE.replace("SHIFT *", "SHFT *"))
    step = steps()
    assert step.changes is None
    assert "scale.comp.j2:20: 'SHFT'" in str(step.error)
    assert (project.root / "shaders.lock").read_bytes() == before
    assert steps.quiet()
    (project.glsl / "macro.json").unlink()
    assert "does not exist" in str(steps().error)
    project.macro({"scale.comp.j2": SCALE_ENTRY})
    assert "'SHFT'" in str(steps().error)
    project.write("scale.comp.j2", SCALE)
    step = steps()
    assert step.changes is not None
    assert (step.changes.rows, step.compiled) == ((), ())


def test_only_some_templates(project: Project, compiler: Compiler) -> None:
    project.write("other.comp.j2", "{% broken")
    project.macro({"scale.comp.j2": SCALE_ENTRY, "other.comp.j2": {}})
    steps = Steps(project, compiler, frozenset({"scale"}))
    assert steps().error is None
    project.write("other.comp.j2", "{% broken, too")
    step = steps()
    assert (step.error, step.compiled) == (None, ())


def test_what_is_tested(tmp_path: Path) -> None:
    command = command_for(["b", "a"], None, SHADERS)
    assert command is not None
    assert command[-4:] == ["--vkmnn-kernel", "a", "--vkmnn-kernel", "b"]
    (suite,) = (word for word in command if word.endswith("suite.py"))
    assert (ROOT / "vkmnn" / "testing" / "suite.py").samefile(suite)
    assert command_for([], None, SHADERS) is None
    assert command_for(["a"], None, tmp_path) is None
    assert command_for(["a"], "", SHADERS) is None
    chosen = command_for(["a"], "tests/x.py -k 'a or b'", tmp_path)
    assert chosen is not None
    assert chosen[-3:] == ["tests/x.py", "-k", "a or b"]


@pytest.mark.soak
def test_the_default_tests_run() -> None:
    command = command_for(["unary_map_f32_buffer"], None, SHADERS)
    assert command is not None
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False
    )
    if "no vulkan device" in done.stdout.lower():
        pytest.skip("no Vulkan device")
    assert re.search(r"^1 passed", done.stdout, re.MULTILINE), done.stdout + done.stderr


def _heed_ctrl_c() -> None:
    """Undo what shells do to jobs in the background, whose children ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Child:
    """The real command in a child process, and the lines that it prints."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vkmnn.codegen", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            preexec_fn=_heed_ctrl_c,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.seen: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, text: str) -> None:
        """Wait for a line with this text."""
        end = time.monotonic() + 900
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                pytest.fail(f"'{text}' did not come:\n{''.join(self.seen)}")
            self.seen.append(line)
            if text in line:
                return


@pytest.fixture
def child(project: Project, tmp_path: Path) -> Iterator[Child]:
    test = tmp_path / "test_it.py"
    lock = project.root / "shaders.lock"
    test.write_text(
        "import json, pathlib\n"
        "def test_it():\n"
        f"    lock = json.loads(pathlib.Path({str(lock)!r}).read_text())\n"
        "    assert lock['templates']['scale']['axes']['load'] == ['buffer', 'texel']\n",
        encoding="utf-8",
    )
    settings = tmp_path / "pytest.ini"  # none of the repository's
    settings.write_text("[pytest]\n", encoding="utf-8")
    tests = f"-p no:cacheprovider -c '{settings}' '{test}'"
    shaders = ("--shaders", str(project.root))
    started = Child(*shaders, "watch", "--interval", "0.05", "--tests", tests)
    yield started
    started.process.kill()
    started.process.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_the_command(project: Project, child: Child) -> None:
    child.until("3 added")
    child.until("tests passed")
    child.until("watching")
    project.write("scale.comp.j2", SCALE.replace("SHIFT *", "SHFT *"))
    child.until("scale.comp.j2:20: 'SHFT' : undeclared identifier")
    child.until("20 |     value += SHFT * {{ k }}.0;")
    child.until("watching")
    project.write("scale.comp.j2", SCALE.replace("SHIFT *", "2.0 * SHIFT *"))
    child.until("3 changed")
    child.until("tests passed")
    axes = {**SCALE_ENTRY["axes"], "load": ["texel", "buffer"]}
    project.macro({"scale.comp.j2": {**SCALE_ENTRY, "axes": axes, "optimize": "none"}})
    child.until("3 changed")
    child.until("tests failed")
    child.until("watching")
    child.process.send_signal(signal.SIGINT)
    child.until("stopped")
    assert child.process.wait(30) == 0
    assert "Traceback" not in "".join(child.seen)


def test_an_unknown_template_ends_at_once(project: Project) -> None:
    child = Child("--shaders", str(project.root), "watch", "scala")
    child.until("there is no template 'scala'")
    child.until("did you mean 'scale'?")
    assert child.process.wait(30) == 1
