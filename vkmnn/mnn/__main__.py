"""Run a program that imports MNN on vkmnn instead, without changing it."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

from vkmnn.errors import page
from vkmnn.mnn.codes import return_error_codes
from vkmnn.mnn.refused import REFUSED


class _Modules(MetaPathFinder, Loader):
    """Finds the modules of MNN among vkmnn's, and refuses others with the reason."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.startswith("vkmnn.mnn."):  # `from MNN import optim`
            short = name.removeprefix("vkmnn.mnn.")
            return _refused(f"MNN.{short}") if short in REFUSED[""] else None
        if not name.startswith("MNN."):
            return None
        own = f"vkmnn.mnn.{name.removeprefix('MNN.')}"
        try:
            found = find_spec(own)
        except ModuleNotFoundError:
            found = None
        if found is None:
            _refused(name)
        return ModuleSpec(name, self, is_package=found.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return vkmnn's own module, which keeps its name."""
        module = import_module(f"vkmnn.mnn.{spec.name.removeprefix('MNN.')}")
        self._kept = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has been run."""
        module.__spec__ = self._kept


def _refused(name: str) -> NoReturn:
    reason = REFUSED[""].get(name.split(".")[1], "MNN has none, either")
    raise ModuleNotFoundError(
        f"vkmnn has no {name}: {reason}; see {page('coming-from-mnn')}", name=name
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Replace MNN by `vkmnn.mnn`, and run the program as `python` would."""
    parser = argparse.ArgumentParser(prog="python -m vkmnn.mnn", description=__doc__)
    parser.add_argument("program", help="a Python file; its models are .mnn, .onnx or .vkmnn files")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the program's own arguments")
    given = parser.parse_args(arguments)
    sys.modules["MNN"] = sys.modules["vkmnn.mnn"]
    sys.meta_path.insert(0, _Modules())
    return_error_codes()
    sys.argv = [given.program, *given.args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(given.program)))  # noqa: PTH100, PTH120
    runpy.run_path(given.program, run_name="__main__")


if __name__ == "__main__":
    main()
