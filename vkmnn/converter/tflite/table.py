"""Writes the operators of docs/operators-tflite.md.

python -m vkmnn.converter.tflite.table docs/operators-tflite.md
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vkmnn.converter.tflite.custom import CUSTOM_READERS
from vkmnn.converter.tflite.nodes import READERS
from vkmnn.converter.tflite.operators import read_ops

MARK = "<!-- written by `python -m vkmnn.converter.tflite.table`; do not edit below -->\n"


def with_table(text: str) -> str:
    """Return the page with the present operators behind its mark."""
    listed = read_ops()
    read = sorted(name for name, is_read in listed.items() if is_read)
    rest = sorted(name for name, is_read in listed.items() if not is_read)
    together: dict[str, list[str]] = {}
    for name in read:
        together.setdefault(READERS.summary(name) or CUSTOM_READERS.summary(name), []).append(name)
    rows = [f"| {', '.join(names)} | {summary} |" for summary, names in together.items()]
    head = (
        f"vkmnn supports {len(read)} of {len(listed)} operators.\n\n"
        "| Operators | Description |\n|---|---|\n"
    )
    lines = "\n".join(rows)
    return f"{text.partition(MARK)[0]}{MARK}\n{head}{lines}\n\nNot supported: {', '.join(rest)}.\n"


if __name__ == "__main__":
    os.environ["VKMNN_PLUGINS"] = "off"  # the page is about vkmnn alone
    page = Path(sys.argv[1])
    page.write_text(with_table(page.read_text("utf-8")), "utf-8")
