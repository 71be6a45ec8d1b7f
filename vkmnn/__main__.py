"""Entry point of `python -m vkmnn`, for when the command `vkmnn` is not on the PATH."""

from __future__ import annotations

from vkmnn.cli import main

if __name__ == "__main__":
    main()
