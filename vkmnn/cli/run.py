"""`vkmnn run`: run a model one or more times, and show its outputs."""

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

from vkmnn.base.whole_files import check_writable, replacing
from vkmnn.cli.console import (
    bytes_text,
    compiling,
    document,
    heading,
    histogram,
    interrupted,
    note,
    out,
    progress,
    shape_text,
    show,
    table,
    time_text,
)
from vkmnn.cli.feeds import Feeds, fitting_feeds, make_feeds, shapes_to_open
from vkmnn.cli.reference import Reference, reference_for
from vkmnn.cli.saving import saving
from vkmnn.comparison import difference
from vkmnn.errors import InvalidInputError, VkmnnError, plural
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn.schedule_config import STORES, OnOverflow, PrecisionName, Unsupported

_TOP = 5
_MAX_CLASSES = 100_000
_OTHER_FILES = frozenset(
    (".npy", ".txt", ".csv", ".json", ".bin", ".raw", ".html", ".png", ".jpg", ".jpeg", ".onnx")
)
"""Suffixes of names that nobody means for a folder."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Device, inputs and shapes of a run; `inputs` and `shapes` are the options as typed."""

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
    """A session that has run once: its outputs, the seconds that the run took, and its inputs."""

    session: InferenceSession
    results: dict[str, Array]
    seconds: float
    fed: Feeds

    @property
    def feeds(self) -> dict[str, Array]:
        """The inputs."""
        return self.fed.arrays

    def run(self) -> float:
        """Run again and return the seconds it took."""
        start = time.perf_counter()
        self.session.run(None, self.feeds)
        return time.perf_counter() - start


@contextmanager
def opened(model: Path, options: RunOptions, fed: Feeds | None = None) -> Iterator[Opened]:
    """Open a session and run it once, showing progress while pipelines are compiled.

    Args:
        model: an ONNX file.
        options: the device and inputs of the run.
        fed: the inputs; None creates them from the options.
    """
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
                    input_shapes=shapes_to_open(model, options.shapes, options.inputs),
                )
            )
            fed = fed or session_feeds(session, options)
            start = time.perf_counter()
            try:
                results = session.run(None, fed.arrays)
            except VkmnnError:
                tell_assumed(fed.notes)  # the likely cause
                raise
            seconds = time.perf_counter() - start
        names = [arg.name for arg in session.get_outputs()]
        named = dict(zip(names, results, strict=True))
        yield Opened(session, named, seconds, fed)


def session_feeds(session: InferenceSession, options: RunOptions) -> Feeds:
    """Return inputs according to the options; guessed image sizes are tried first."""
    args = session.get_inputs()

    def make(size: int) -> Feeds:
        return make_feeds(args, options.inputs, options.shapes, options.seed, size)

    return fitting_feeds(session.get_outputs(), make, lambda fed: session.prepare([fed.arrays]))


def tell_assumed(notes: Sequence[str]) -> None:
    """Print the assumptions about inputs."""
    for text in notes:
        note(text)


def introduce(model: Path, opened: Opened) -> None:
    """Print devices and model; note assumptions, and the ops that are not on the device."""
    half = STORES[opened.session.precision]
    heading(f"{model.name} on {opened.session.device.name}{half}")
    tell_assumed(opened.fed.notes)
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
        if (share := placement.away_share) is not None:
            cost = f"; {100 * share:.1f} % of the operations{cost}"
        note(
            f"{len(away)} of {plural(len(placement.ops), 'op')} "
            f"{'runs' if len(away) == 1 else 'run'} on {where}, not on the device: "
            f"{histogram(op.type for op in away)} ({away[0].reason}){cost}"
        )


def run_model(
    model: Path, options: RunOptions, output: Path | None, compare: str | None, tolerance: float
) -> bool:
    """Run a model and print its outputs; False if `compare` reports a difference."""
    if output is not None:
        with saving("outputs cannot be saved", "--output", output):
            _check_output(output)
    reference = None if compare is None else _reference(model, compare, options)
    with opened(model, options) as here:
        introduce(model, here)
        _show_outputs(here.results)
        for name, array in here.results.items():
            _show_classes(name, array)
        spent, stopped = _repeat(here, options.repeat)
        _show_latency(here.seconds, spent)
        facts = _facts(model, here, spent) | {"interrupted": stopped}
    if stopped:
        document("run", facts)
        runs = plural(len(spent), "run")
        raise interrupted(f"{runs} of {options.repeat} after the first were timed; nothing saved")
    if output is not None:
        _save(_savable(here.results), output)
        facts["saved"] = str(output)
    same = True
    if reference is not None:
        name, expected = reference(here.fed, list(here.results))
        differences = _differences(here.results, expected, tolerance)
        same = all(row["ok"] for row in differences)
        facts["comparison"] = {"with": name, "tolerance": tolerance, "ok": same,
                               "outputs": differences}  # fmt: skip
        _show_difference(differences, name, tolerance)
        if not same:
            note(f"vkmnn compare {model} --with {compare} finds the first tensor that differs")
    document("run", facts)
    return same


def _reference(model: Path, compare: str, options: RunOptions) -> Reference:
    other = replace(options, device=compare, driver=None, validate=None, precision="high")

    def elsewhere(fed: Feeds, names: Sequence[str]) -> tuple[str, Mapping[str, Array]]:
        with opened(model, other, fed) as there:
            return there.session.device.name, there.results

    return reference_for(compare, model, elsewhere)


def _repeat(here: Opened, repeat: int) -> tuple[list[float], bool]:
    """Return the seconds of further runs, and whether Ctrl-C ended them early."""
    spent: list[float] = []
    try:
        with progress("running") as report:
            for number in range(repeat):
                spent.append(here.run())
                report(number + 1, repeat)
    except KeyboardInterrupt:
        return spent, True
    return spent, False


def _facts(model: Path, here: Opened, spent: Sequence[float]) -> dict[str, Any]:
    """Return the results of a run for a JSON document."""
    away = here.session.placement().off_device
    return {
        "model": str(model),
        "device": here.session.device.name,
        "precision": here.session.precision,
        "inputs": [
            {"name": name, **_described(value), "source": here.fed.sources[name]}
            for name, value in here.feeds.items()
        ],
        "outputs": [
            {"name": name, **_described(value), **_numbers(value)}
            for name, value in here.results.items()
        ],
        "first_s": here.seconds,
        "runs_s": list(spent),
        "median_s": median(spent) if spent else None,
        "off_device": [
            {"op": op.type, "name": op.name, "backend": op.backend, "reason": op.reason}
            for op in away
        ],
        "notes": here.fed.notes,
    }


def _described(value: Any) -> dict[str, Any]:
    """Return the type and the shape of an input or output."""
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape)}
    return {"dtype": type(value).__name__, "shape": None}


def _numbers(value: Any) -> dict[str, Any]:
    """Return minimum, maximum and mean, and the number of values that are not finite."""
    if not isinstance(value, np.ndarray) or not value.size or value.dtype.kind not in "fiub":
        return {"min": None, "max": None, "mean": None, "not_finite": 0}
    wide = value.astype(np.float64)
    bad = value.size - int(np.isfinite(wide).sum())
    return {"min": wide.min(), "max": wide.max(), "mean": wide.mean(), "not_finite": bad}


def _show_outputs(results: Mapping[str, Any]) -> None:
    numbers = ("min", "max", "mean")
    rows = table("output", "type", "shape", *numbers, right=numbers)
    for name, array in results.items():
        if isinstance(array, np.ndarray):
            shape = Text(shape_text(array.shape))
            rows.add_row(Text(name), str(array.dtype), shape, *_statistics(array))
        else:
            items = plural(len(array), "item") if isinstance(array, list | dict) else "empty"
            rows.add_row(Text(name), type(array).__name__, items, "–", "–", "–")
    show(rows)
    for name, array in results.items():
        if not isinstance(array, np.ndarray):
            continue
        bad = array.size - int(np.isfinite(array).sum()) if array.dtype.kind == "f" else 0
        if bad:
            verb = "is" if bad == 1 else "are"
            note(f"{bad} of the {plural(array.size, 'value')} of '{name}' {verb} not finite")


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


def _savable(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs for files: strings in numpy's own type.

    Raises:
        InvalidInputError: one is not an array.
    """
    arrays = {}
    for name, value in results.items():
        if not isinstance(value, np.ndarray):
            raise InvalidInputError(
                f"output '{name}' cannot be saved: it is a {type(value).__name__}, not an array",
                hint="run the model from Python: vkmnn.InferenceSession(model).run(None, feeds)",
            )
        arrays[name] = value.astype(str) if value.dtype.kind == "O" else value
    return arrays


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
    """Check that outputs can be written to a file or folder; create a missing folder."""
    if output.suffix == ".npz":
        check_writable(output)
        return
    if output.suffix.lower() in _OTHER_FILES and not output.is_dir():
        raise InvalidInputError(
            f"outputs are not saved as {output.suffix.lower()} files",
            hint=f"-o {output.stem}.npz for one file, -o {output.stem} for a folder of .npy files",
        )
    if output.exists() and not output.is_dir():
        raise NotADirectoryError("it is a file, and its name does not end with .npz")
    there = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    check_writable(there / "output.npy")


def _save_npz(results: Mapping[str, Array], path: Path) -> None:
    """Like numpy.savez, which takes names as keywords and reserves `file`."""
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


def _differences(
    results: Mapping[str, Array], expected: Mapping[str, Array], tolerance: float
) -> list[dict[str, Any]]:
    """Return the difference of each output from the expected one."""
    rows = []
    for name, want in expected.items():
        have = results[name]
        largest, relative = difference(have, want)
        ok = have.shape == want.shape and relative <= tolerance
        rows.append({"name": name, "largest": largest, "relative": relative, "ok": ok})
    return rows


def _show_difference(
    differences: Sequence[Mapping[str, Any]], device: str, tolerance: float
) -> None:
    """Print the comparison with the outputs of another device."""
    numbers = ("largest", "of the range")
    rows = table("", "output", *numbers, right=numbers)
    for row in differences:
        mark = Text("✓", style="bold green") if row["ok"] else Text("✗", style="bold red")
        name = Text(row["name"])
        rows.add_row(mark, name, f"{row['largest']:.3g}", f"{row['relative']:.1e}")
    out.print()
    heading(f"Difference from {device} (allowed: {tolerance:g} of the range)")
    show(rows)
