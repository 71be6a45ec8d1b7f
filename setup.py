"""What pyproject.toml cannot say: a wheel holds shaders as one archive, and the pages of docs/."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


def add_pages(root: Path, build: Path) -> None:
    """Copy the pages of docs/, which messages name, into the package."""
    if (root / "docs").is_dir():
        images = shutil.ignore_patterns("images")
        shutil.copytree(root / "docs", build / "vkmnn" / "docs", ignore=images, dirs_exist_ok=True)


class BuildWithShaders(build_py):
    """Copies the packages; packs vkmnn/shaders/spirv and adds docs/ where a wheel is made."""

    def run(self) -> None:
        super().run()
        folder = Path(self.build_lib) / "vkmnn" / "shaders"
        if not self.editable_mode and (folder / "spirv").is_dir():
            # By path: importing vkmnn would need what it depends on.
            runpy.run_path(str(folder / "archive.py"))["pack"](folder)
        if not self.editable_mode:
            add_pages(Path(__file__).resolve().parent, Path(self.build_lib))


setup(cmdclass={"build_py": BuildWithShaders})
