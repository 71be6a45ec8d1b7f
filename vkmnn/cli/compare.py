"""`vkmnn compare`: a model on two engines, tensor by tensor."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from vkmnn.base.whole_files import check_writable
from vkmnn.cli import pages
from vkmnn.cli.console import document, heading, note, out, progress, shape_text, show, table
from vkmnn.cli.feeds import shapes_to_open
from vkmnn.cli.run import RunOptions, session_feeds, tell_assumed
from vkmnn.cli.saving import saving
from vkmnn.comparison import ONNXRUNTIME, Comparison, TensorRow, check_reference, compare
from vkmnn.converter.native import NativeFrontEnd
from vkmnn.errors import plural
from vkmnn.inference_session import InferenceSession
from vkmnn.opening import CPU_DEVICE, front_end_of

_AROUND = 3
"""Number of tensors shown before the first that differs."""

_STATUS = {
    "same": "",
    "differs": "differs",
    "fused": "fused into",
    "constant": "constant, computed while loading",
    "removed": "left out by the passes",
    "missing": "not computed there",
    "other": "no tensor",
}


def usual_reference(model: Path) -> str:
    """Return onnxruntime if it is installed and the model converts to ONNX; else numpy."""
    native = isinstance(front_end_of(model), NativeFrontEnd)
    there = importlib.util.find_spec(ONNXRUNTIME) is not None
    return ONNXRUNTIME if there and not native else CPU_DEVICE


def compare_models(
    model: Path,
    options: RunOptions,
    against: str | None,
    tolerance: float | None,
    layers: bool,
    html: Path | None,
) -> bool:
    """Compare a model with a reference and print the differences; False if there are any.

    Args:
        model: the model's file.
        options: the device and inputs of the run.
        against: the reference; None for the default.
        tolerance: the allowed difference; None for the default.
        layers: whether to show every tensor.
        html: file to write a page to.
    """
    against = against or usual_reference(model)
    if html is not None:
        with saving("page cannot be written", "--html", html):
            check_writable(html)
    check_reference(against, model)
    shapes = shapes_to_open(model, options.shapes, options.inputs)
    with InferenceSession(
        model, CPU_DEVICE, unsupported=options.unsupported, input_shapes=shapes
    ) as session:
        fed = session_feeds(session, options)
    tell_assumed(fed.notes)

    def run(every: bool) -> Comparison:
        with progress("comparing") as report:
            return compare(
                model,
                fed.arrays,
                against,
                options.device,
                precision=options.precision,
                tolerance=tolerance,
                layers=every,
                unsupported=options.unsupported,
                progress=report,
            )

    found = run(layers or html is not None)
    if not found.ok and not (layers or html is not None):
        found = run(True)  # the first tensor that differs
    inputs = ", ".join(f"{name} {shape_text(x.shape)}" for name, x in fed.arrays.items())
    _show(found, model, layers)
    if html is not None:
        with saving("page cannot be written", "--html", html):
            pages.write(comparison_page(found, model.name, inputs), html)
        out.print(Text(f"saved {html}; open it in a browser"))
    document("compare", _facts(found, model) | {"notes": fed.notes})
    return found.ok


def _facts(found: Comparison, model: Path) -> dict[str, object]:
    first = found.first
    return {
        "model": str(model),
        "device": found.device,
        "with": found.reference,
        "tolerance": found.tolerance,
        "ok": found.ok,
        "first": None if first is None else first.name,
        "tensors": [dataclasses.asdict(row) for row in found],
    }


def _show(found: Comparison, model: Path, layers: bool) -> None:
    title = f"{model.name} on {found.device}, compared with {found.reference}"
    heading(f"{title} (allowed: {found.tolerance:g} of the range)")
    rows = list(found)
    if not layers:
        rows = _short(found)
    numbers = ("largest", "of the range")
    shown = table("", "tensor", "node", "shape", *numbers, "where", "", right=numbers)
    for row in rows:
        marks = {"same": ("✓", "bold green"), "differs": ("✗", "bold red")}
        mark, style = marks.get(row.status, ("–", "dim"))
        cells = _cells(row)
        shown.add_row(Text(mark, style=style), *(Text(cell) for cell in cells))
    show(shown)
    unseen = sum(row.status == "fused" for row in found)
    if unseen and not layers:
        note(f"{plural(unseen, 'tensor')} are inside fused ops: --layers lists them")
    out.print(Text(str(found)))


def _short(found: Comparison) -> list[TensorRow]:
    """Return the outputs, and the first differing tensor with its predecessors."""
    compared = [row for row in found if row.compared]
    first = found.first
    outputs = [row for row in found if row.output]
    if first is None:
        return outputs
    place = compared.index(first)
    near = compared[max(place - _AROUND, 0) : place + 1]
    return [*near, *(row for row in outputs if row not in near)]


def _cells(row: TensorRow) -> tuple[str, ...]:
    """Return name, node, shape, the two differences, where the largest is, and a remark."""
    status = _STATUS[row.status]
    remark = f"{status} {row.into}" if row.into else status
    shape = "" if row.shape is None else shape_text(row.shape)
    if not row.compared:
        return row.name, row.node, shape, "", "", "", remark
    where = ""
    if row.at or row.have is not None:
        where = f"{shape_text(row.at)}: {row.have:.8g}, not {row.want:.8g}"
    return (
        *(row.name, row.node, shape, f"{row.largest:.3g}", f"{row.relative:.1e}"),
        *(where, remark),
    )


def comparison_page(found: Comparison, title: str, inputs: str) -> str:
    """Return the page of a comparison.

    Args:
        found: the comparison.
        title: the title of the comparison.
        inputs: names and shapes of its inputs.
    """
    counts = {name: sum(row.status == name for row in found) for name in _STATUS}
    facts = [
        (str(counts["differs"]), "tensors differ"),
        (str(counts["same"]), "agree"),
        (str(counts["fused"]), "vanished in fused ops"),
        (f"{found.tolerance:g}", "allowed, of a tensor's range"),
    ]
    rows = []
    for number, row in enumerate(found):
        name, node, shape, largest, relative, where, remark = _cells(row)
        differences: Sequence[str | pages.Cell] = (
            _sorted(largest, row.largest, row.compared),
            _sorted(relative, row.relative, row.compared),
        )
        place = pages.Cell(str(number + 1), number)
        rows.append([place, name, node, shape, *differences, where, remark])
    names = ("#", "tensor", "node", "shape", "largest", "of the range", "where", "remark")
    kinds = ["wrong" if row.status == "differs" else _dim(row) for row in found]
    body = pages.table(names, rows, {0, 4, 5}, kinds)
    told = pages.escape(str(found))
    content = f'<p class="verdict">{told}.</p><div class="scroll rows">{body}</div>'
    subtitle = f"on {found.device}, compared with {found.reference}; inputs {inputs}"
    text = pages.tiles(facts) + pages.card("Tensors, in the order of the model", content)
    return pages.page("compare", title, subtitle, text)


def _dim(row: TensorRow) -> str:
    return "" if row.compared else "dim"


def _sorted(text: str, value: float, compared: bool) -> pages.Cell:
    """Return a cell; those without a value are sorted last."""
    largest = 1e300 if math.isinf(value) else value
    return pages.Cell(text, largest if compared else -1.0)
