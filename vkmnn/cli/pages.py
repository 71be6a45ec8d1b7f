"""Parts shared by the self-contained pages that commands write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape as escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

from vkmnn.base.whole_files import replacing

COLOURS = 8
"""Colours of operators; the remaining operators share another one."""

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title: $kind</title>
<style>
$css</style>
</head>
<body>
<main>
<h1>$title</h1>
<p class="soft">$subtitle</p>
$body
<footer>$footer</footer>
</main>
<script>
$script</script>
</body>
</html>
""")


class Cell(NamedTuple):
    """A table cell: its text, and a numeric sort key if there is one."""

    text: str
    value: float | None = None


def page(
    kind: str, title: str, subtitle: str, body: str, *, script: str = "", footer: str = ""
) -> str:
    """Return a page.

    Args:
        kind: "profile", "plan" and so on.
        title: the title of the page.
        subtitle: where the network ran, and on which inputs.
        body: HTML.
        script: the file of the page's own script, in this package.
        footer: text at the end; by default, the command.
    """
    own = files(__package__)
    scripts = [own.joinpath(name).read_text("utf-8") for name in ("pages.js", script) if name]
    return _PAGE.substitute(
        kind=kind,
        title=escape(title),
        subtitle=escape(subtitle),
        css=own.joinpath("pages.css").read_text("utf-8"),
        body=body,
        script="\n".join(scripts),
        footer=escape(footer or f"vkmnn {kind}"),
    )


def write(text: str, path: Path) -> None:
    """Write a page.

    Raises:
        OSError: the file cannot be written.
    """
    with replacing(path) as file:
        file.write(text.encode())


def tiles(facts: Iterable[tuple[str, str]]) -> str:
    """Return tiles: large numbers with labels."""
    made = (
        f'<div class="tile"><b>{escape(number)}</b><span>{escape(text)}</span></div>\n'
        for number, text in facts
    )
    return f'<div class="tiles">\n{"".join(made)}</div>'


def card(title: str, content: str) -> str:
    """Return a card: a section of a page."""
    return f'<section class="card"><h2>{escape(title)}</h2>{content}</section>'


def heads(names: Sequence[str], numbers: Iterable[int], by: int | None = None) -> str:
    """Return the header of a sortable table; `by` is the initial sort column."""
    marked = set(numbers)
    return "".join(
        f"<th{' class=n' if place in marked else ''}"
        f"{' aria-sort=descending' if place == by else ''}>"
        f"<button type=button>{escape(name)}</button></th>"
        for place, name in enumerate(names)
    )


def table(
    names: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    numbers: Iterable[int],
    kinds: Sequence[str] = (),
) -> str:
    """Return a sortable table.

    Args:
        names: column names.
        rows: cells.
        numbers: indices of numeric columns.
        kinds: a CSS class for each row, or none.
    """
    marked = set(numbers)
    lines = []
    for number, row in enumerate(rows):
        cells = []
        for place, one in enumerate(row):
            cell = one if isinstance(one, Cell) else Cell(one)
            value = "" if cell.value is None else f' data-value="{cell.value:.6g}"'
            kind = ' class="n"' if place in marked else ""
            cells.append(f"<td{kind}{value}>{escape(cell.text)}</td>")
        style = f' class="{kinds[number]}"' if kinds and kinds[number] else ""
        lines.append(f"<tr{style}>{''.join(cells)}</tr>\n")
    head = heads(names, marked)
    body = "".join(lines)
    kind = " class=numbered" if names[0] == "#" else ""
    return f"<table{kind}><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"


def colours_of(types: Sequence[str]) -> dict[str, str]:
    """Return the colours of the first types of operators."""
    return {name: f"var(--c{number})" for number, name in enumerate(types[:COLOURS])}


def legend(types: Sequence[str], colours: Mapping[str, str]) -> str:
    """Return the legend of the operators' colours."""
    items = [(name, colours[name]) for name in types if name in colours]
    if len(types) > len(items):
        items.append(("other operators", "var(--other)"))
    return "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in items
    )
