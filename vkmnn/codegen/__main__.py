"""Entry point of `python -m vkmnn.codegen`."""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """Run the command line; say what to install if the extra `codegen` is missing."""
    missing = [name for name in ("jinja2", "typer", "rich") if not importlib.util.find_spec(name)]
    if missing:
        sys.exit(
            f"vkmnn.codegen needs {', '.join(missing)}, which is not installed.\n"
            "  hint: pip install 'vkmnn[codegen]'"
        )
    from vkmnn.codegen.cli import app

    app(prog_name="python -m vkmnn.codegen")


if __name__ == "__main__":
    main()
