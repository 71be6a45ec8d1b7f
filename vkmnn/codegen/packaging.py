"""Compiled shaders in wheels: setuptools' step `build_py` for packages with templates.

    from vkmnn.codegen.packaging import setup

    setup()

`vkmnn[codegen]` then belongs to `requires` of `[build-system]`; users of the wheel need no
compiler.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from vkmnn.codegen.build import build
from vkmnn.codegen.cache import Cache
from vkmnn.codegen.compilers import find_compiler
from vkmnn.codegen.outputs import pack
from vkmnn.shader_files.lock import LOCK_FILE

# setuptools has types in some versions only.
_BUILD_PY: Any = import_module("setuptools.command.build_py").build_py


class BuildShaders(_BUILD_PY):  # type: ignore[misc]
    """Copies the packages, then packs the shaders of those with shaders.lock.

    An editable install compiles them when they are needed.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for package in self.packages or ():
            source = Path(self.get_package_dir(package))
            if (source / LOCK_FILE).is_file():
                target = Path(self.build_lib, *package.split("."))
                pack_shaders(source, target)


def setup() -> None:
    """Run setuptools with `BuildShaders`; everything else is in pyproject.toml."""
    import_module("setuptools").setup(cmdclass={"build_py": BuildShaders})


def pack_shaders(source: Path, target: Path) -> None:
    """Compile the templates of a package into the copy of it that becomes a wheel.

    Args:
        source: holds shaders.lock and glsl/.
        target: the copy.

    Raises:
        ShaderError: a template is broken or not locked, or there is no compiler.
    """
    pack(build(source / "glsl", find_compiler(), cache=Cache.of(source)), target)
