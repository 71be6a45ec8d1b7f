"""`vkmnn convert`: write a model as a file of vkmnn's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vkmnn.cli.console import bytes_text, document, interruptible, note, waiting
from vkmnn.cli.feeds import shapes_to_open
from vkmnn.errors import InvalidInputError
from vkmnn.opening.saving import convert
from vkmnn.schedule_config import PrecisionName, Unsupported


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """The options of the command; `sizes` and `shapes` as typed."""

    precision: PrecisionName
    unsupported: Unsupported
    external: bool
    sizes: Sequence[str]
    shapes: Sequence[str]
    tuned: bool
    packed: bool
    device: str


def convert_model(model: Path, output: Path, options: ConvertOptions) -> None:
    """Convert a model and list the written files."""
    fixed, external = _parse_sizes(options.sizes), options.external
    with interruptible(f"{output} was not written"), waiting(f"converting {model.name}"):
        convert(
            model,
            output,
            precision=options.precision,
            external_data=external,
            sizes=fixed,
            input_shapes=shapes_to_open(model, options.shapes),
            tuned=options.tuned,
            packed=options.packed,
            device=options.device,
            unsupported=options.unsupported,
        )
    written = [output, output.with_name(f"{output.name}.data")] if external else [output]
    for path in written:
        note(f"{path}: {bytes_text(path.stat().st_size)}")
    files = [{"path": str(path), "bytes": path.stat().st_size} for path in written]
    document("convert", {"model": str(model), "precision": options.precision, "files": files})


def _parse_sizes(texts: Sequence[str]) -> dict[str, int | tuple[int, ...]]:
    """Return sizes of named dimensions, given as NAME=SIZE, or as NAME= with several in a row."""
    sizes: dict[str, int | tuple[int, ...]] = {}
    for text in texts:
        name, _, values = text.rpartition("=")
        hint = "for example --static-shapes N=1 or N=1,8; without it, one file serves all sizes"
        every = tuple(
            parse_fixed([f"{name}={value}"], "--static-shapes", hint)[name]
            for value in values.split(",")
        )
        sizes[name] = every[0] if len(every) == 1 else every
    return sizes


def parse_fixed(texts: Sequence[str], option: str, hint: str) -> dict[str, int]:
    """Return sizes of named dimensions, given as NAME=SIZE.

    Raises:
        InvalidInputError: a text is none, with the option's name and the hint.
    """
    sizes = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not value.isdecimal():
            raise InvalidInputError(
                f"{option} {text}: '{value}' is not the size of a dimension", hint=hint
            )
        sizes[name] = int(value)
    return sizes
