"""What pyproject.toml cannot say: a wheel holds compiled shaders and the pages of docs/.

Links of README.md, which are relative in a checkout, are absolute in the package's description.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # the generator runs from here: nothing of vkmnn is installed yet

from vkmnn.codegen.packaging import BuildShaders


def description() -> str:
    """Return README.md with absolute links, to the files of this version's tag."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (version,) = re.findall(r'^version = "(.+)"$', project, re.MULTILINE)
    (source,) = re.findall(r'^Source = "(.+)"$', project, re.MULTILINE)

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({source}/{kind}/v{version}/{link[3]})"

    text = (ROOT / "README.md").read_text("utf-8")
    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]*)\)", absolute, text)


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


setup(
    cmdclass={"build_py": BuildPackage},
    long_description=description(),
    long_description_content_type="text/markdown",
)
