"""What pyproject.toml cannot say: a wheel holds the shaders as one archive, not as files."""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithShaders(build_py):
    """Copies the packages, and packs vkmnn/shaders/spirv where a wheel is made of the copy."""

    def run(self) -> None:
        super().run()
        folder = Path(self.build_lib) / "vkmnn" / "shaders"
        if not self.editable_mode and (folder / "spirv").is_dir():
            # By path: importing vkmnn would need what it depends on.
            runpy.run_path(str(folder / "archive.py"))["pack"](folder)


setup(cmdclass={"build_py": BuildWithShaders})
