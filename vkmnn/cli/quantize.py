"""`vkmnn quantize`: write a model with narrow weights, and say what that saves and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from vkmnn.cli.console import bytes_text, err, heading, note, out, show, table
from vkmnn.cli.convert import parse_fixed
from vkmnn.quantization import OutputAccuracy, Quantized, Size, quantize

_SHOWN = 12


def quantize_model(
    model: Path, output: Path, sizes: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Quantise a model, and print sizes, accuracy and what stayed in float.

    Args:
        model: an ONNX file.
        output: the file to write.
        sizes: sizes of named dimensions, as typed.
        options: further arguments of `vkmnn.quantize`.
    """
    fixed = parse_fixed(sizes, "--size", "for example --size N=4; it concerns random inputs")
    with _progress() as progress:
        made = quantize(model, output, sizes=fixed, progress=progress, **options)
    heading(f"{model.name} → {output.name}")
    out.print()
    _show_sizes(made.before, made.after)
    _show_nodes(made)
    _show_accuracy(made.accuracy, made.samples, made.made_up)
    for path in made.files:
        note(f"{path}: {bytes_text(path.stat().st_size)}")


def _show_sizes(before: Mapping[str, Size], after: Mapping[str, Size]) -> None:
    rows = table("weights", "before", "after", right=("before", "after"))
    for name in dict.fromkeys((*before, *after)):
        sizes = [bytes_text(side[name].nbytes) if name in side else "–" for side in (before, after)]
        rows.add_row(name, *sizes)
    totals = [sum(size.nbytes for size in side.values()) for side in (before, after)]
    share = f" ({totals[1] / totals[0]:.1%})" if totals[0] else ""
    rows.add_row("all", bytes_text(totals[0]), bytes_text(totals[1]) + share, style="bold")
    show(rows)


def _show_nodes(made: Quantized) -> None:
    heading(f"{len(made.quantized)} nodes quantised, {len(made.in_float)} in float")
    if not made.in_float:
        out.print()
        return
    grouped: dict[tuple[str, str], list[str]] = {}
    for node in made.in_float:
        grouped.setdefault((node.op, node.reason), []).append(node.name)
    rows = table("in float", "nodes", "why", "names", right=("nodes",))
    for (op, reason), names in sorted(grouped.items(), key=lambda item: -len(item[1])):
        more = f", … ({len(names) - 3} more)" if len(names) > 3 else ""
        rows.add_row(op, str(len(names)), reason, Text(", ".join(names[:3]) + more))
    show(rows)


def _show_accuracy(accuracy: Sequence[OutputAccuracy], samples: int, made_up: bool) -> None:
    if not accuracy:
        return
    inputs = "random inputs" if made_up else "calibration samples"
    heading(f"Difference from the float model on {samples} {inputs}")
    if made_up:
        note("random inputs say little about accuracy; --calibrate compares on real ones")
    numbers = ("largest", "of the range", "same top 1")
    rows = table("output", *numbers, right=numbers)
    for one in accuracy[:_SHOWN]:
        top1 = "–" if one.top1 is None else f"{one.top1:.1%}"
        largest = f"{one.largest:.3g}" if np.isfinite(one.largest) else "not finite"
        rows.add_row(Text(one.name), largest, f"{one.relative:.1e}", top1)
    show(rows)
    if len(accuracy) > _SHOWN:
        worst = max(accuracy, key=lambda one: one.relative)
        note(
            f"{len(accuracy) - _SHOWN} more outputs; the worst of all is '{worst.name}', "
            f"{worst.relative:.1e} of its range"
        )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar with what is being done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("reading the model", total=None)

        def report(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield report
