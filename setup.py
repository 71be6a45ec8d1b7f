"""What pyproject.toml cannot say: a wheel holds compiled shaders, and the pages of docs/."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # the generator runs from here: nothing of vkmnn is installed yet

from vkmnn.codegen.packaging import BuildShaders


def add_pages(build: Path) -> None:
    """Copy the pages of docs/, which messages name, into the package."""
    if (ROOT / "docs").is_dir():
        images = shutil.ignore_patterns("images")
        shutil.copytree(ROOT / "docs", build / "vkmnn" / "docs", ignore=images, dirs_exist_ok=True)


class BuildPackage(BuildShaders):
    """Adds the pages where a wheel is built."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            add_pages(Path(self.build_lib))


setup(cmdclass={"build_py": BuildPackage})
