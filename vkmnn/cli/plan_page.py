"""The page of `vkmnn plan --html`: one self-contained file."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from vkmnn.cli import pages
from vkmnn.cli.console import bytes_text, time_text

TERMS = {"beside": "others in the level", "gaps": "barriers", "split": "partial sums"}
"""Labels of a prediction's terms whose names are not self-explanatory."""

_STEPS = ("level", "µs", "kernel", "op", "workgroups", "waves", "padded", "bytes", "mostly")
_STEP_NUMBERS = (0, 1, 4, 5, 6, 7)
_ROWS = '<div class="scroll rows">'


def write_plan_page(facts: Mapping[str, Any], path: Path, inputs: str) -> None:
    """Write the page of a plan.

    Args:
        facts: the result of `plan.as_dict`.
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
    terms = [[TERMS.get(name, name), _number(us, ".1f")] for name, us in facts["terms_us"].items()]
    profiles = [
        [name, pages.Cell("–", -1) if ms is None else _number(ms, ".3g")]
        for name, ms in facts["profiles"].items()
    ]
    steps = pages.table(_STEPS, map(_row, facts["steps"]), _STEP_NUMBERS)
    about = f"Predicted, not measured: the constants of a {facts['class']} are "
    about = escape(f"{about}{facts['constants_from']}.")
    body = (
        f"{pages.tiles((value, name) for name, value in tiles.items())}"
        f'<div class="pair">'
        f"{pages.card('Predicted time by term', pages.table(('term', 'µs'), terms, {1}))}"
        f"{pages.card('Predicted time by profile', pages.table(('profile', 'ms'), profiles, {1}))}"
        f"</div>{pages.card('Dispatches', f'{_ROWS}{steps}</div><p class=soft>{about}</p>')}"
    )
    subtitle = f"as {facts['profile']}, {facts['device']}; {inputs}"
    pages.write(pages.page("plan", facts["model"], subtitle, body), path)


def _number(value: float, form: str) -> pages.Cell:
    return pages.Cell(format(value, form), value)


def _row(step: Mapping[str, Any]) -> list[str | pages.Cell]:
    padded, terms = step["padded_work"], step["terms_us"]
    return [
        str(step["level"]),
        _number(step["predicted_us"], ".1f"),
        step["kernel"],
        step["op"],
        str(step["workgroups"]),
        str(step["waves"]),
        pages.Cell("", -1) if padded is None else _number(padded, ".2f"),
        pages.Cell(bytes_text(step["bytes"]), step["bytes"]),
        max(terms, key=terms.__getitem__),
    ]
