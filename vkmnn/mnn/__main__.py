"""Run a program that imports MNN on vkmnn instead, without changing it."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

from vkmnn.errors import page
from vkmnn.mnn.codes import return_error_codes


class _Missing:
    """Refuses modules of MNN that vkmnn does not have, with a pointer to the documentation."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.startswith(("MNN.", "vkmnn.mnn.")):  # the latter is `from MNN import cv`
            module = f"MNN.{name.rpartition('.')[2]}"
            raise ModuleNotFoundError(
                f"vkmnn has no {module}: it covers running models only; see "
                f"{page('coming-from-mnn')}",
                name=module,
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Replace MNN by `vkmnn.mnn`, and run the program as `python` would."""
    parser = argparse.ArgumentParser(prog="python -m vkmnn.mnn", description=__doc__)
    parser.add_argument("program", help="a Python file; its models are .mnn, .onnx or .vkmnn files")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the program's own arguments")
    given = parser.parse_args(arguments)
    for name in ("", ".nn", ".expr"):
        sys.modules[f"MNN{name}"] = sys.modules[f"vkmnn.mnn{name}"]
    sys.meta_path.append(_Missing())
    return_error_codes()
    sys.argv = [given.program, *given.args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(given.program)))  # noqa: PTH100, PTH120
    runpy.run_path(given.program, run_name="__main__")


if __name__ == "__main__":
    main()
