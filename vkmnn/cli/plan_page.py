"""The page of `vkmnn plan --html`: one self-contained file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from vkmnn.base.whole_files import replacing
from vkmnn.cli.console import bytes_text, time_text

TERMS = {"beside": "others in the level", "gaps": "barriers", "split": "partial sums"}
"""Labels of a prediction's terms whose names are not clear by themselves."""

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title: plan</title>
<style>
$css</style>
</head>
<body>
<main>
<h1>$title</h1>
<p class="soft">$subtitle</p>
<div class="tiles">
$tiles</div>
<div class="pair">
<section class="card"><h2>Predicted time by term</h2>$terms</section>
<section class="card"><h2>Predicted time by profile</h2>$profiles</section>
</div>
<section class="card">
<h2>Dispatches</h2>
<div class="scroll rows">$steps</div>
<p class="soft">Predicted, not measured: the constants of a $kind are $source.</p>
</section>
<footer>vkmnn plan</footer>
</main>
</body>
</html>
""")


def write_plan_page(facts: Mapping[str, Any], path: Path, inputs: str) -> None:
    """Write a page on a plan.

    Args:
        facts: of `plan.as_dict`.
        path: the file.
        inputs: their names and shapes.
    """
    tiles = {
        "predicted": time_text(facts["predicted_ms"] / 1000),
        "dispatches": str(facts["dispatches"]),
        "levels of dependencies": str(facts["levels"]),
        "times the needed products": f"{facts['padded_work']:.2f}",
        "weights": bytes_text(facts["memory"]["constants"]),
        "activations": bytes_text(facts["memory"]["activations"]),
    }
    terms = ((TERMS.get(name, name), f"{us:.1f}") for name, us in facts["terms_us"].items())
    profiles = (
        (name, "–" if ms is None else f"{ms:.3g}") for name, ms in facts["profiles"].items()
    )
    text = _PAGE.substitute(
        title=escape(facts["model"]),
        subtitle=escape(f"as {facts['profile']}, {facts['device']}; {inputs}"),
        css=(files(__package__) / "profile_page.css").read_text("utf-8"),
        tiles="".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>\n'
            for name, value in tiles.items()
        ),
        terms=_table(("term", "µs"), terms, numbers={1}),
        profiles=_table(("profile", "ms"), profiles, numbers={1}),
        steps=_table(
            ("level", "µs", "kernel", "op", "workgroups", "waves", "padded", "bytes", "mostly"),
            map(_row, facts["steps"]),
            numbers={0, 1, 4, 5, 6, 7},
        ),
        kind=escape(facts["class"]),
        source=escape(facts["constants_from"]),
    )
    with replacing(path) as file:
        file.write(text.encode())


def _row(step: Mapping[str, Any]) -> tuple[str, ...]:
    padded, terms = step["padded_work"], step["terms_us"]
    return (
        str(step["level"]),
        f"{step['predicted_us']:.1f}",
        step["kernel"],
        step["op"],
        str(step["workgroups"]),
        str(step["waves"]),
        "" if padded is None else f"{padded:.2f}",
        bytes_text(step["bytes"]),
        max(terms, key=terms.__getitem__),
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: set[int]) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        kinds = (' class="n"' if place in numbers else "" for place in range(len(values)))
        return "".join(
            f"<{tag}{kind}>{escape(value)}</{tag}>"
            for kind, value in zip(kinds, values, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{cells('th', heads)}</tr></thead>\n<tbody>\n{body}</tbody></table>"
