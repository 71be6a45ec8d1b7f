"""Places where an operator can be written and tried without a trace in the checkout."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the extra 'codegen' is not installed")

from vkmnn.shaders.library import BUILTIN

ROOT = Path(__file__).resolve().parents[2]
SWIFTSHADER = Path(
    os.environ.get("VKMNN_SWIFTSHADER_ICD", "/usr/lib/chromium/vk_swiftshader_icd.json")
)
# For processes that only run an operator: nothing of the generator can be imported. The shaders of
# vkmnn that they need are compiled in advance.
NO_COMPILER = (
    "import sys; sys.modules.update(dict.fromkeys(['jinja2', 'slangpy', 'vkmnn.codegen'])); "
    "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
)


@dataclass
class Place:
    """A folder to work in, with the Python to work with."""

    folder: Path
    python: Path = Path(sys.executable)
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str | Path, env: dict[str, str] | None = None) -> str:
        """Run a command and return its output; a failure shows all of it."""
        done = self.try_run(*command, env=env)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def try_run(
        self, *command: str | Path, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.env, **(env or {}), "COLUMNS": "200"}
        environment.pop("VKMNN_PLUGINS", None)
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=1800
        )

    def new_op(self, *arguments: str) -> str:
        return self.run(self.python, "-m", "vkmnn.codegen", "new-op", *arguments)

    def pytest(self, *arguments: str | Path, env: dict[str, str] | None = None) -> str:
        """Run tests where nothing of the generator can be imported."""
        compile_built_in_shaders()
        return self.run(self.python, "-c", NO_COMPILER, "-q", *arguments, env=env)

    def lint(self, *paths: str, folder: str = ".", types: bool = True) -> None:
        """Check files like `tasks.py lint`; for types, mypy takes ten seconds."""
        for tool in ("ruff", "mypy"):
            pytest.importorskip(tool, reason="the extra 'lint' is not installed")
        place = replace(self, folder=self.folder / folder)
        place.run(self.python, "-m", "ruff", "check", "--no-cache", *paths)
        place.run(self.python, "-m", "ruff", "format", "--check", "--no-cache", *paths)
        if types:
            place.run(self.python, "-m", "mypy", "--strict", *paths)


@functools.cache
def compile_built_in_shaders() -> None:
    """Compile shaders that are not compiled yet."""
    BUILTIN.all()
    BUILTIN.prepare(name for name, _, _ in BUILTIN.variants())


def can_build_wheels() -> bool:
    """Return whether this environment can build wheels by itself; else pip downloads the tools."""
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return False
    own = tuple(map(int, version.split(".")[:2])) >= (70, 1)  # has a bdist_wheel of its own
    return own or importlib.util.find_spec("wheel") is not None


@pytest.fixture
def fresh_environment(tmp_path: Path) -> Place:
    """A fresh virtual environment with vkmnn and its dependencies by reference, and no plug-ins.

    A command `pip` in it installs without a network if it can.
    """
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False)
    scripts = Path(sysconfig.get_path("scripts", "venv", {"base": str(folder)}))
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    here = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    (packages / "by_reference.pth").write_text("\n".join(here) + "\n", "utf-8")
    python = scripts / "python"
    offline = ["--no-deps"]
    if can_build_wheels():
        offline.append("--no-build-isolation")
    commands = {
        "pip": f'"{sys.executable}" -m pip -q --disable-pip-version-check '
        f'--python "{python}" "$@" {" ".join(offline)}',
        "vkmnn": f'"{python}" -m vkmnn "$@"',
    }
    for name, text in commands.items():
        (scripts / name).write_text(f"#!/bin/sh\nexec {text}\n", "utf-8")
        (scripts / name).chmod(0o755)
    path = os.pathsep.join([str(scripts), os.environ["PATH"]])
    work = tmp_path / "work"
    work.mkdir()
    env = {"PATH": path, "PYTHONPATH": ""}
    if "vkmnn" not in metadata.entry_points(group="pytest11").names:  # vkmnn is not installed
        env["PYTEST_PLUGINS"] = "vkmnn.testing.pytest_plugin"
    return Place(work, python, env)


@pytest.fixture
def drivers() -> list[dict[str, str]]:
    """The environments to test in: with the default driver, and with SwiftShader if available."""
    floor = {"VK_DRIVER_FILES": str(SWIFTSHADER), "VK_ICD_FILENAMES": str(SWIFTSHADER)}
    return [{}, floor] if SWIFTSHADER.is_file() else [{}]
