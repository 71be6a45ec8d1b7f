"""Where templates are, and the names of their files."""

from __future__ import annotations

from pathlib import Path

SHADERS = Path(__file__).resolve().parent.parent / "shaders"
BUILTIN_FOLDER = SHADERS / "glsl"  # its includes are available to all templates
MACRO_FILE = "macro.json"
TEMPLATE_SUFFIX = ".comp.j2"


def source_line(folder: Path, file: str, line: int) -> str | None:
    """Return one line of a template, include or macro.json; None when there is none."""
    for path in (folder / file, BUILTIN_FOLDER / file):
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            return lines[line - 1] if 0 < line <= len(lines) else None
    return None
