"""The command line: `vkmnn devices | doctor | run | info | ops | profile | bench | tune`."""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """Run the command line on the arguments of the process."""
    missing = [name for name in ("typer", "rich") if not importlib.util.find_spec(name)]
    if missing:
        sys.exit(
            f"the command line of vkmnn needs {' and '.join(missing)}\n"
            f"  hint: pip install {' '.join(missing)}"
        )
    from vkmnn.cli.app import run_cli

    sys.exit(run_cli())
