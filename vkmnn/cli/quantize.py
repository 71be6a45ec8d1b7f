"""`vkmnn quantize`: write a model with narrow weights, and report size and accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from vkmnn.cli.console import (
    bytes_text,
    document,
    heading,
    interruptible,
    note,
    out,
    progress,
    show,
    table,
)
from vkmnn.cli.feeds import parse_sizes, picture_sizes, settle
from vkmnn.converter.foreign import kind_of_folder
from vkmnn.errors import InvalidInputError, plural
from vkmnn.inference_session import NodeArg
from vkmnn.quantization import OutputAccuracy, Quantized, Size, quantize
from vkmnn.quantization.model import inputs_of, load

_SHOWN = 12


def quantize_model(
    model: Path, output: Path, sizes: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Quantise a model, and print sizes, accuracy and the parts that stay in float.

    Args:
        model: an ONNX file.
        output: the file to write.
        sizes: sizes of named dimensions, as typed.
        options: further arguments of `vkmnn.quantize`.
    """
    if model.is_dir():
        raise _folder(model)
    random = options["compare"] and options["calibration"] is None
    fixed = _shapes(model, sizes, told=random) if random or sizes else {}
    with interruptible(f"{output} was not written"), progress("reading the model") as report:
        made = quantize(
            model,
            output,
            sizes=fixed,
            progress=lambda what, done, total: report(done, total, what),
            **options,
        )
    heading(f"{model.name} → {output.name}")
    out.print()
    _show_sizes(made.before, made.after)
    _show_nodes(made)
    _show_accuracy(made.accuracy, made.samples, made.made_up)
    if made.advice:
        note(made.advice)
    for path in made.files:
        note(f"{path}: {bytes_text(path.stat().st_size)}")
    document("quantize", _facts(model, made))


def _folder(model: Path) -> InvalidInputError:
    networks = [str(path) for path in sorted(model.glob("*.onnx")) or sorted(model.rglob("*.onnx"))]
    kind = kind_of_folder(model)
    return InvalidInputError(
        f"'{model}' is {kind.name if kind else 'a folder'}, and quantize writes single .onnx files",
        hint=f"give one of its networks: {', '.join(networks[:4])}"
        if networks
        else "give the path of an .onnx file",
    )


def _shapes(model: Path, texts: Sequence[str], told: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the random inputs that models are compared on.

    Args:
        model: an ONNX file.
        texts: `--shape` options.
        told: print the assumptions.
    """
    proto = load(model)
    declared = {info.name: info.shape for info in inputs_of(proto)}
    sizes = parse_sizes(texts, declared)
    outputs = [
        NodeArg(value.name, "", [None] * len(value.type.tensor_type.shape.dim), "")
        for value in proto.graph.output
    ]
    shapes, notes, _ = settle(declared, sizes, assume=1, picture=picture_sizes(outputs)[0])
    for text in notes if told else ():
        note(text)
    return shapes


def _facts(model: Path, made: Quantized) -> dict[str, Any]:
    """Return the results of quantisation for a JSON document."""

    def weights(sizes: Mapping[str, Size]) -> dict[str, int]:
        return {name: size.nbytes for name, size in sizes.items()}

    return {
        "model": str(model),
        "files": [{"path": str(path), "bytes": path.stat().st_size} for path in made.files],
        "weights_before": weights(made.before),
        "weights_after": weights(made.after),
        "quantized": made.quantized,
        "in_float": [
            {"name": node.name, "op": node.op, "reason": node.reason} for node in made.in_float
        ],
        "outputs": [dataclasses.asdict(one) for one in made.accuracy],
        "samples": made.samples,
        "random": made.made_up,
        "advice": made.advice or None,
    }


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
    heading(f"{plural(len(made.quantized), 'node')} quantised, {len(made.in_float)} in float")
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
    inputs = plural(samples, "random input" if made_up else "calibration sample")
    heading(f"Difference from the float model on {inputs}")
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
            f"{plural(len(accuracy) - _SHOWN, 'more output')}; the worst of all is '{worst.name}', "
            f"{worst.relative:.1e} of its range"
        )
