"""`vkmnn run`: run one model one or more times, and show what comes out."""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.text import Text

from vkmnn.cli.console import (
    bytes_text,
    compiling,
    heading,
    histogram,
    note,
    out,
    shape_text,
    show,
    table,
    time_text,
)
from vkmnn.cli.feeds import make_feeds
from vkmnn.cli.saving import saving
from vkmnn.errors import VkmnnError
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn.schedule_config import STORES, OnOverflow, PrecisionName, Unsupported
from vkmnn.whole_files import check_writable, replacing

_TOP = 5
_MAX_CLASSES = 100_000


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Where a model runs and on what data; `inputs` and `shapes` are the options as typed."""

    device: str
    driver: str | None
    validate: bool | None
    inputs: Sequence[str]
    shapes: Sequence[str]
    seed: int
    repeat: int
    precision: PrecisionName = "high"
    unsupported: Unsupported = "cpu"
    on_overflow: OnOverflow = "warn"


@dataclass(slots=True)
class Opened:
    """A session that has run once: its inputs, its outputs, and the seconds that the run took."""

    session: InferenceSession
    feeds: dict[str, Array]
    results: dict[str, Array]
    seconds: float
    assumed: list[str]

    def run(self) -> float:
        """Run again and return the seconds it took."""
        start = time.perf_counter()
        self.session.run(None, self.feeds)
        return time.perf_counter() - start


@contextmanager
def opened(
    model: Path, options: RunOptions, feeds: dict[str, Array] | None = None
) -> Iterator[Opened]:
    """Open a session and run it once, showing progress while pipelines are compiled.

    Args:
        model: an ONNX file.
        options: where and on what it runs.
        feeds: the inputs, made as the options say where None.
    """
    assumed: list[str] = []
    with ExitStack() as stack:
        with compiling() as progress:
            session = stack.enter_context(
                InferenceSession(
                    model,
                    options.device,
                    precision=options.precision,
                    driver=options.driver,
                    validation=options.validate,
                    progress=progress,
                    unsupported=options.unsupported,
                    on_overflow=options.on_overflow,
                )
            )
            args = session.get_inputs()
            if feeds is None:
                feeds, assumed = make_feeds(args, options.inputs, options.shapes, options.seed)
            start = time.perf_counter()
            try:
                results = session.run(None, feeds)
            except VkmnnError:
                _tell_assumed(assumed)  # the likely cause
                raise
            seconds = time.perf_counter() - start
        names = [arg.name for arg in session.get_outputs()]
        named = dict(zip(names, results, strict=True))
        yield Opened(session, feeds, named, seconds, assumed)


def _tell_assumed(assumed: Sequence[str]) -> None:
    for text in assumed:
        note(f"input {text}; --shape sets it")


def introduce(model: Path, opened: Opened) -> None:
    """Print what runs where; note what was assumed, and the ops that are not on the device."""
    half = STORES[opened.session.precision]
    heading(f"{model.name} on {opened.session.device.name}{half}")
    _tell_assumed(opened.assumed)
    placement = opened.session.placement()
    away = placement.off_device
    if placement.note:
        note(placement.note)
    elif away:
        names = {"CPU": "numpy", "onnx": "the onnx package's evaluator"}
        where = " and ".join(
            names.get(one, one) for one in dict.fromkeys(op.backend for op in away)
        )
        copied = placement.copied_bytes
        cost = f"; {bytes_text(copied)} copied between steps in a run" if copied else ""
        note(
            f"{len(away)} of {len(placement.ops)} ops run on {where}, not on the device: "
            f"{histogram(op.type for op in away)} ({away[0].reason}){cost}"
        )


def run_model(
    model: Path, options: RunOptions, output: Path | None, compare: str | None, tolerance: float
) -> bool:
    """Run a model and print its outputs; False when `compare` finds a difference."""
    if output is not None:
        with saving("outputs cannot be saved", "--output", output):
            _check_output(output)
    with opened(model, options) as here:
        introduce(model, here)
        _show_outputs(here.results)
        for name, array in here.results.items():
            _show_classes(name, array)
        _show_latency(here.seconds, [here.run() for _ in range(options.repeat)])
    if output is not None:
        _save(here.results, output)
    if compare is None:
        return True
    other = replace(options, device=compare, driver=None, validate=None, precision="high")
    with opened(model, other, here.feeds) as there:
        name = there.session.device.name
        return _show_difference(here.results, there.results, name, tolerance)


def _show_outputs(results: Mapping[str, Any]) -> None:
    numbers = ("min", "max", "mean")
    rows = table("output", "type", "shape", *numbers, right=numbers)
    for name, array in results.items():
        if isinstance(array, np.ndarray):
            shape = Text(shape_text(array.shape))
            rows.add_row(Text(name), str(array.dtype), shape, *_statistics(array))
        else:
            items = f"{len(array)} items" if isinstance(array, list | dict) else "empty"
            rows.add_row(Text(name), type(array).__name__, items, "–", "–", "–")
    show(rows)
    for name, array in results.items():
        if not isinstance(array, np.ndarray):
            continue
        bad = array.size - int(np.isfinite(array).sum()) if array.dtype.kind == "f" else 0
        if bad:
            note(f"{bad} of the {array.size} values of '{name}' are not finite")


def _statistics(array: Array) -> tuple[str, str, str]:
    if array.size == 0 or array.dtype.kind not in "fiub":
        return "–", "–", "–"
    values = array.astype(np.float64)
    return f"{values.min():.6g}", f"{values.max():.6g}", f"{values.mean():.6g}"


def _show_classes(name: str, array: Any) -> None:
    """Print the highest values of an output that looks like class scores."""
    # A batch of rows; axes of size 1 may follow the classes.
    if (
        not isinstance(array, np.ndarray)
        or array.dtype.kind != "f"
        or array.ndim < 1
        or array.size == 0
    ):
        return
    classes = array.shape[min(1, array.ndim - 1)]
    rows = array.reshape(-1, classes)
    trailing = array.shape[2:]
    if not _TOP < classes <= _MAX_CLASSES or any(size != 1 for size in trailing):
        return
    best = np.argsort(-rows[0].astype(np.float64), kind="stable")[:_TOP]
    made = table("class", "value", right=("class", "value"))
    for index in best:
        made.add_row(str(index), f"{float(rows[0, index]):.6g}")
    of = f" (row 1 of {len(rows)})" if len(rows) > 1 else ""
    out.print(Text(f"  highest of '{name}'{of}"))
    show(made)


def _show_latency(first: float, spent: Sequence[float]) -> None:
    text = f"first run {time_text(first)}"
    if len(spent) == 1:
        text += f", then {time_text(spent[0])}"
    elif spent:
        text += (
            f", then {time_text(median(spent))} (median of {len(spent)}, "
            f"{time_text(min(spent))} to {time_text(max(spent))})"
        )
    out.print(Text(text))


def _save(results: Mapping[str, Array], output: Path) -> None:
    """Write the outputs to a .npz file, or as .npy files to a folder."""
    if output.suffix == ".npz":
        with saving("outputs cannot be saved", "--output", output):
            _save_npz(results, output)
        out.print(Text(f"saved {output}"))
        return
    with saving("outputs cannot be saved", "--output", output):
        output.mkdir(parents=True, exist_ok=True)
    for name, path in _file_names(results, output).items():
        with saving("outputs cannot be saved", "--output", path), replacing(path) as file:
            np.save(file, results[name])
        out.print(Text(f"saved {path}"))


def _check_output(output: Path) -> None:
    """See whether outputs can be written to a file, or into a folder, made where it is missing."""
    if output.suffix == ".npz":
        check_writable(output)
        return
    if output.exists() and not output.is_dir():
        raise NotADirectoryError("it is a file, and its name does not end with .npz")
    there = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    check_writable(there / "output.npy")


def _save_npz(results: Mapping[str, Array], path: Path) -> None:
    """Do what numpy.savez does, which takes names as keywords and keeps `file` for itself."""
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in results.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _file_names(names: Sequence[str] | Mapping[str, Array], folder: Path) -> dict[str, Path]:
    """Return a path for each name; names may contain characters that paths may not."""
    paths: dict[str, Path] = {}
    for name in names:
        stem = re.sub(r"[^\w.-]", "_", name).lstrip(".") or "output"
        while folder / f"{stem}.npy" in paths.values():
            stem += "_"
        paths[name] = folder / f"{stem}.npy"
    return paths


def _show_difference(
    results: Mapping[str, Array], expected: Mapping[str, Array], device: str, tolerance: float
) -> bool:
    """Compare with the outputs of another device; False when one differs by more than allowed."""
    numbers = ("largest", "of the range")
    rows = table("", "output", *numbers, right=numbers)
    all_ok = True
    for name, want in expected.items():
        have = results[name]
        largest, relative = difference(have, want)
        ok = have.shape == want.shape and relative <= tolerance
        all_ok &= ok
        mark = Text("✓", style="bold green") if ok else Text("✗", style="bold red")
        rows.add_row(mark, Text(name), f"{largest:.3g}", f"{relative:.1e}")
    out.print()
    heading(f"Difference from {device} (allowed: {tolerance:g} of the range)")
    show(rows)
    return all_ok


def difference(have: Array, want: Array) -> tuple[float, float]:
    """Return the largest absolute difference, and the same as a fraction of the range of `want`.

    Infinity where only one of the two has no finite value, or the shapes differ.
    """
    if have.shape != want.shape:
        return float("inf"), float("inf")
    if want.size == 0:
        return 0.0, 0.0
    a, b = have.astype(np.float64), want.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    if not np.isfinite(apart).all():
        return float("inf"), float("inf")
    finite = b[np.isfinite(b)]
    scale = float(np.ptp(finite) or np.abs(finite).max()) if finite.size else 0.0
    largest = float(apart.max())
    return largest, largest / scale if scale else (0.0 if largest == 0 else float("inf"))
