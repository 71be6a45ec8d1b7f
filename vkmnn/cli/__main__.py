"""Entry point of `python -m vkmnn.cli`."""

from __future__ import annotations

from vkmnn.cli import main

if __name__ == "__main__":
    main()
