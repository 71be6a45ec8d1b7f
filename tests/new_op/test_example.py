"""The plug-in under examples/: up to date, clean, and whole when it is installed from its wheel."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.new_op.conftest import Place

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "plugin"


@pytest.mark.slow
def test_it_installs_and_runs(fresh_environment: Place, drivers: list[dict[str, str]]) -> None:
    place = fresh_environment
    skipped = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(PLUGIN, place.folder / "plugin", ignore=skipped)
    place.run("python", "-m", "vkmnn.codegen", "--check", "--shaders", "plugin/vkmnn_swiglu")
    place.lint(".", folder="plugin")
    place.run("pip", "install", "./plugin")
    (place.folder / "plugin" / "vkmnn_swiglu").rename(place.folder / "gone")  # take the installed
    shown = place.run("vkmnn", "ops", "--plugins")
    for words in ("vkmnn-swiglu 0.1.0", "op type SwiGLU", "converter of vkmnn_swiglu::SwiGLU"):
        assert words in shown
    for env in drivers:
        assert "passed" in place.pytest("plugin/tests", env=env)
    said = place.pytest("--vkmnn-shaders", "--vkmnn-kernel", "swiglu*", "plugin/tests")
    assert "swiglu_" in said
