"""Run a program that imports onnxruntime on Vulkan instead, without changing it."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

from vkmnn.onnxruntime.providers import force
from vkmnn.onnxruntime.replace import replace_onnxruntime
from vkmnn.schedule_config import PRECISIONS


def main(arguments: Sequence[str] | None = None) -> None:
    """Replace onnxruntime and run the program as `python` would."""
    parser = argparse.ArgumentParser(prog="python -m vkmnn.onnxruntime", description=__doc__)
    parser.add_argument("-d", "--device", default="auto", help="as VKMNN_DEVICE; default: auto")
    parser.add_argument("-p", "--precision", choices=PRECISIONS, default="high")
    parser.add_argument(
        *("--keep-providers",),
        action="store_true",
        help="honour the providers that the program asks for: CPUExecutionProvider runs on numpy",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", help="a Python file, or a module with -m")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the program's own arguments")
    given = parser.parse_args(arguments)
    replace_onnxruntime()
    force(None if given.keep_providers else {"device": given.device, "precision": given.precision})
    sys.argv = [given.program, *given.args]
    if given.module:
        sys.path.insert(0, "")
        runpy.run_module(given.program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(given.program)))  # noqa: PTH100, PTH120
        runpy.run_path(given.program, run_name="__main__")


if __name__ == "__main__":
    main()
