"""docs/networks.md: which networks of the tests run where. `python -m tests.networks.page`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

import vkmnn
from tests.networks.detectors import DETECTORS
from tests.networks.generation import GENERATION
from tests.networks.other_forms import OTHER_FORMS
from tests.networks.recurrent import RECURRENT
from tests.networks.written import Written

WRITTEN: dict[str, Written] = {**DETECTORS, **RECURRENT, **GENERATION, **OTHER_FORMS}
PAGE = Path(__file__).parents[2] / "docs" / "networks.md"

_BEGIN = "<!-- written by `python -m tests.networks.page`; do not edit -->\n"
_HEAD = ("Network", "What it is", "Not on the device", "Why")


def row(name: str, session: vkmnn.InferenceSession) -> str:
    """Return a network's row, from a session that has run it."""
    placement = session.placement()
    off = Counter((op.type, op.backend) for op in placement.off_device)
    reasons = dict.fromkeys(op.reason for op in placement.off_device)
    where = ", ".join(f"{count} {kind} ({place})" for (kind, place), count in sorted(off.items()))
    cells = (
        f"`{name}`",
        WRITTEN[name].what,
        where or "–",
        "; ".join(reasons) or "–",
    )
    return _line(cells)


def recorded() -> dict[str, str]:
    """Return the rows of the page by network."""
    table = PAGE.read_text().partition(_BEGIN)[2]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line for line in lines}


def write() -> None:
    """Run every network on its first feeds, and write where its ops ran."""
    lines = [_line(_HEAD), _line(["---"] * len(_HEAD))]
    for name, network in WRITTEN.items():
        with vkmnn.InferenceSession(network.make()) as session:
            session.run(None, network.feeds(np.random.default_rng(0))[0])
            lines.append(row(name, session))
    before = PAGE.read_text().partition(_BEGIN)[0]
    PAGE.write_text(before + _BEGIN + "\n" + "\n".join(lines) + "\n")


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    write()
