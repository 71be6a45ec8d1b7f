"""`vkmnn quantize`: write a model with narrow weights, and report size and accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from vkmnn.base.whole_files import check_writable
from vkmnn.cli import pages
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
from vkmnn.cli.media_inputs import TaskOptions
from vkmnn.cli.models import local_file, local_model
from vkmnn.cli.pipeline import parsed_options
from vkmnn.cli.quantize_report import (
    DIFFERENCES,
    SIZES,
    difference_row,
    quantize_page,
    samples_of,
    show_perplexities,
    show_reached,
    show_sensitivity,
    size_rows,
    size_text,
)
from vkmnn.cli.saving import saving
from vkmnn.converter.foreign import kind_of_folder
from vkmnn.errors import InvalidInputError, plural
from vkmnn.inference_session import NodeArg
from vkmnn.quantization import Quantized, Size, quantize
from vkmnn.quantization.advice import refuse_formats
from vkmnn.quantization.language import is_language_model
from vkmnn.quantization.model import inputs_of, load

_SHOWN = 12
_PROFILE = "geforce-rtx-3060-laptop"
"""The device for which times are predicted."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The model and the output of `vkmnn quantize`, as typed."""

    model: str
    output: Path | None
    output_option: Path | None
    weights: str | None
    bits: int | None
    sizes: Sequence[str]
    html: Path | None

    @property
    def path(self) -> Path:
        """The file or folder to write.

        Raises:
            InvalidInputError: there is none, or two.
        """
        given = [one for one in (self.output, self.output_option) if one is not None]
        if len(given) != 1:
            raise InvalidInputError(
                "two outputs are named" if given else "no output is named",
                hint=f"vkmnn quantize {self.model} -o small.onnx",
            )
        return given[0]

    @property
    def type(self) -> str | None:
        """The type of weights; None for the default.

        Raises:
            InvalidInputError: --bits is not 4 or 8, or contradicts --weights.
        """
        if self.bits is None:
            return self.weights
        named = f"int{self.bits}"
        if named not in ("int4", "int8") or self.weights not in (None, named):
            raise InvalidInputError(
                f"--bits {self.bits} contradicts --weights {self.weights}"
                if self.weights
                else f"--bits cannot be {self.bits}",
                hint="4 or 8",
            )
        return named


def quantize_model(wanted: Wanted, options: Mapping[str, Any], tasks: TaskOptions) -> None:
    """Quantise a model, and print sizes, accuracy and the parts that stay in float.

    Args:
        wanted: the model, and what to write.
        options: further arguments of `vkmnn.quantize`.
        tasks: how pictures and texts are prepared.
    """
    output, options = wanted.path, dict(options)
    if wanted.html is not None:
        with saving("page cannot be written", "--html", wanted.html):
            check_writable(wanted.html)
    model = local_model(wanted.model)
    language = is_language_model(model)
    if wanted.type is not None:
        options["weights"] = wanted.type
    elif language:
        options["weights"] = "int4"
    if not language:
        model = local_file(wanted.model)
        if model.is_dir():
            raise _folder(model)
        options |= _of_network(model, wanted, options, tasks)
    with interruptible(f"{output} was not written"), progress("reading the model") as report:
        made = quantize(
            model,
            output,
            progress=lambda what, done, total: report(done, total, what),
            tell=note,
            **options,
        )
    heading(f"{model.name} → {output.name}")
    out.print()
    _show_sizes(made)
    _show_nodes(made)
    show_sensitivity(made.sensitivity)
    show_reached(made)
    _show_accuracy(made)
    show_perplexities(made.perplexities)
    if made.advice:
        note(made.advice)
    for path in made.files:
        note(f"{path}: {bytes_text(path.stat().st_size)}")
    facts = _facts(model, made)
    if wanted.html is not None:
        with saving("page cannot be written", "--html", wanted.html):
            pages.write(quantize_page(made, model.name), wanted.html)
        out.print(Text(f"saved {wanted.html}; open it in a browser"))
    document("quantize", facts)


def _of_network(
    model: Path, wanted: Wanted, options: Mapping[str, Any], tasks: TaskOptions
) -> dict[str, Any]:
    """Return the options that only networks have: preprocessing, and shapes of random inputs."""
    refuse_formats(model)
    sizes = list(wanted.sizes)
    if options["calibration"] is not None:  # a size of pictures, not of random inputs
        given = [one for one in sizes if "=" not in one and "," not in one]
        tasks = replace(tasks, size=given[-1] if given else None)
        sizes = [one for one in sizes if one not in given]
        if options["activations"] is None:
            note("activations stay in float; --activations uint8 quantises them by these samples")
    random = options["calibration"] is None and (options["compare"] or options["sensitivity"])
    return {
        "sizes": _shapes(model, sizes, told=random) if random or sizes else {},
        "options": parsed_options(tasks),
        "profile": _PROFILE if options["target"] else None,
    }


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
        "outputs": [_finite(dataclasses.asdict(one)) for one in made.accuracy],
        "samples": made.samples,
        "random": made.made_up,
        "advice": made.advice or None,
        "labels": made.correct and {"quantized": made.correct[0], "float": made.correct[1]},
        "sensitivity": [dataclasses.asdict(one) for one in made.sensitivity],
        "target": made.reached and _finite(dataclasses.asdict(made.reached)),
        "perplexity": {one.name: one.value for one in made.perplexities},
        "notes": made.notes,
    }


def _finite(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts without the infinite numbers, which JSON lacks."""
    return {
        name: None if isinstance(one, float) and not np.isfinite(one)
        else _finite(one) if isinstance(one, dict) else one
        for name, one in facts.items()
    }  # fmt: skip


def _show_sizes(made: Quantized) -> None:
    rows = table(*SIZES, right=SIZES[1:])
    *types, (name, before, after) = size_rows(made)
    for kind, *sizes in types:
        rows.add_row(kind, *map(size_text, sizes))
    share = f" ({after / before:.1%})" if before and after is not None else ""
    rows.add_row(name, size_text(before), size_text(after) + share, style="bold")
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


def _show_accuracy(made: Quantized) -> None:
    accuracy = made.accuracy
    if not accuracy:
        return
    heading(f"Difference from the float model on {samples_of(made)}")
    if made.made_up:
        note("random inputs say little about accuracy; --calibrate compares on real ones")
    rows = table(*DIFFERENCES, right=DIFFERENCES[1:])
    for one in accuracy[:_SHOWN]:
        rows.add_row(*map(Text, difference_row(one)))
    show(rows)
    if made.correct is not None:
        after, before = made.correct
        out.print(Text(f"  correct by the labels: {after:.1%}, float {before:.1%}"))
    if len(accuracy) > _SHOWN:
        worst = max(accuracy, key=lambda one: one.relative)
        note(
            f"{plural(len(accuracy) - _SHOWN, 'more output')}; the worst of all is '{worst.name}', "
            f"{worst.relative:.1e} of its range"
        )
