"""The command line: `vkmnn devices | doctor | run | info | ops | profile | bench | tune`."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Run the command line on the arguments of the process."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    missing = [name for name in ("typer", "rich") if not importlib.util.find_spec(name)]
    if missing:
        sys.exit(
            f"the command line of vkmnn needs {' and '.join(missing)}\n"
            f"  hint: pip install {' '.join(missing)}"
        )
    try:
        from vkmnn.cli.app import run_cli

        sys.exit(run_cli())
    except KeyboardInterrupt:  # Ctrl-C during the imports
        sys.exit(128 + signal.SIGINT)  # as of commands that notice it
