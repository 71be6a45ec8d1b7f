"""Additions of the site to the pages of docs/: links into the repository, help of commands."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
COMMANDS = "<!-- commands -->"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to files that the site leaves out at the repository."""
    folder = Path(page.file.abs_src_path).parent
    inside = {file.abs_src_path for file in files if file.inclusion.is_included()}

    def absolute(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if str(target) in inside or not target.exists():  # a dead one is for mkdocs to report
            return link[0]
        if target.is_dir() and str(target / "README.md") in inside:
            return f"{link[1].rstrip('/')}/README.md{link[2] or ''}"
        kind = "tree" if target.is_dir() else "blob"
        place = target.relative_to(ROOT).as_posix()
        return f"{config['repo_url']}/{kind}/main/{place}{link[2] or ''}"

    text = _LINK.sub(absolute, markdown)
    return text.replace(COMMANDS, commands()) if COMMANDS in text else text


def commands() -> str:
    """Return the help of all commands, a section each."""
    import typer

    from vkmnn.cli.app import app

    group: Any = typer.main.get_command(app)
    parts = []
    for name in sorted(group.commands):
        command = group.commands[name]
        if command.hidden:
            continue
        with command.make_context(f"vkmnn {name}", [], resilient_parsing=True) as at:
            parts.append(f"## vkmnn {name}\n\n```text\n{command.get_help(at).strip()}\n```\n")
    return "\n".join(parts)
