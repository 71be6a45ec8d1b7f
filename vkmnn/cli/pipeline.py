"""`vkmnn run` on images, videos and folders: a pipeline instead of a bare session."""

from __future__ import annotations

import glob
import json
import shlex
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.text import Text

from vkmnn.base.media import FILMS, PICTURES, SOUNDS, has_suffix
from vkmnn.cli.console import document, heading, note, out, progress, show, table, time_text
from vkmnn.cli.feeds import shapes_to_open
from vkmnn.cli.literals import FILLERS, parse_value
from vkmnn.cli.media_inputs import PAINTING, Inputs, TaskOptions, read_inputs
from vkmnn.cli.run import RunOptions
from vkmnn.cli.saving import saving
from vkmnn.errors import InvalidInputError, plural
from vkmnn.inference_session import NodeArg
from vkmnn.ir import Array
from vkmnn.pipelines import Pipeline, Result, pipeline, task_of
from vkmnn.pipelines.films import FilmWriter, is_animated
from vkmnn.pipelines.guessing import UnknownTaskError
from vkmnn.pipelines.networks import NoPicturesError, OtherInputsError
from vkmnn.pipelines.results.result import saver_of

_MOST_ROWS = 40
_LONGEST_NAME = 40
Job = tuple[str, Any, Mapping[str, Any]]
"""A call: the name of its result, the input, settings."""


def run_pipeline(
    model: Path, options: RunOptions, tasks: TaskOptions, output: Path | None, compare: str | None
) -> None:
    """Run a pipeline on files, print the results and save them.

    Args:
        model: the model.
        options: the options of all runs; `inputs` names the files.
        tasks: the options of pipelines.
        output: destination of the results.
        compare: refused, like shapes that the file states, since both are only for arrays.
    """
    shapes = shapes_to_open(model, options.shapes) if options.shapes else {}
    if compare is not None or (options.shapes and not shapes):
        raise InvalidInputError(
            f"{'--compare' if compare else '--shape'} is for arrays, and an input is an image, "
            "a sound or a text",
            hint="give arrays: -i x=x.npy" if compare else "--size chooses the network's size",
        )
    inputs = read_inputs(options.inputs)
    if not inputs.files:
        texts = options.inputs or [tasks.prompt or ""]
        inputs = read_inputs(texts, "text")
    files = inputs.texts or list(chain.from_iterable(map(_expanded, inputs.files)))
    several = len(files) > 1 or any(Path(one).is_dir() for one in inputs.files)
    if output is not None:
        _check_output(output, several)
    streams = not inputs.texts and any(map(_is_stream, files))
    notes: list[str] = []

    def tell(text: str) -> None:
        notes.append(text)
        note(text)

    start = time.perf_counter()
    given = {
        "device": options.device,
        "driver": options.driver,
        "validation": options.validate,
        "precision": options.precision,
        "unsupported": options.unsupported,
        "on_overflow": options.on_overflow,
        "input_shapes": shapes or None,
        "tell": tell,
    }
    with _opened(model, given, tasks, inputs) as pipe:
        heading(f"{model.name} on {pipe.device}: {pipe.task}")
        opened = time.perf_counter() - start
        facts: list[dict[str, Any]] = []
        seed = {"seed": options.seed} if "seed" in pipe.settings else {}
        if task_of(pipe.task).on == "text" and inputs.files and tasks.prompt is None:
            raise InvalidInputError(
                f"'{inputs.files[0]}' is a file, and '{pipe.task}' takes a text",
                hint='-i "a text"; with an image to change: --prompt "a text"',
            )
        jobs = _jobs(files, tasks.prompt, bool(inputs.texts), seed)
        in_order = streams or pipe.sequential
        results = _results(pipe, files) if in_order else _of_jobs(pipe, jobs)
        try:
            _save(output, _shown(results, facts), several or streams, files)
        except OtherInputsError as error:
            _name_options(error)
            raise
        timed = options.repeat > 1 and not streams
        spent = _timed(pipe, jobs[0], options.repeat) if timed else []
        document("run", {
            "model": str(model), "device": pipe.device, "task": pipe.task, "notes": notes,
            "opened_s": opened, "results": facts, "runs_s": spent,
        })  # fmt: skip


def _timed(pipe: Any, job: Job, repeat: int) -> list[float]:
    """Return the seconds of repeated calls on an input, and print their median."""
    spent = []
    name, given, settings = job
    for _ in range(repeat):
        start = time.perf_counter()
        pipe(given, **settings)
        spent.append(time.perf_counter() - start)
    text = f"{time_text(median(spent))} (median of {repeat} further calls)"
    out.print(Text(f"{name}: {text}"))
    return spent


def _is_stream(file: str) -> bool:
    """Return whether a file has several images."""
    return has_suffix(file, FILMS) or is_animated(Path(file))


def _short(text: str) -> str:
    """Return the start of a text, as the name of its result."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"


def _jobs(
    files: Sequence[str], prompt: str | None, texts: bool, settings: Mapping[str, Any]
) -> list[Job]:
    """Return the calls of a pipeline: on texts, on files, or on a prompt with an image each.

    Raises:
        InvalidInputError: a prompt with texts.
    """
    if texts and prompt is not None and files != [prompt]:
        raise InvalidInputError(
            "--prompt is for images to change, and --input is a text", hint="give one of them"
        )
    if texts:
        return [(_short(text), text, settings) for text in files]
    if prompt is not None:
        return [(Path(file).name, prompt, {**settings, "image": file}) for file in files]
    return [(Path(file).name, file, settings) for file in files]


def _of_jobs(pipe: Any, jobs: Sequence[Job]) -> Iterator[tuple[str, Result[Any], float]]:
    """Yield the name of each call, its result and seconds."""
    for name, given, settings in jobs:
        start = time.perf_counter()
        if "progress" in pipe.settings:
            with progress("painting") as report:
                result = pipe(given, progress=report, **settings)
        else:
            result = pipe(given, **settings)
        yield name, result, time.perf_counter() - start


def _in_sequence(pipe: Any, files: Sequence[str]) -> Iterator[tuple[str, Result[Any], float]]:
    """Yield name, result and seconds for images that are the frames of one video."""
    start = time.perf_counter()
    for file, result in zip(files, pipe.stream(files), strict=True):
        end = time.perf_counter()
        yield Path(file).name, result, end - start
        start = end


def _opened(
    model: Path, options: Mapping[str, Any], tasks: TaskOptions, inputs: Inputs
) -> Pipeline:
    given: dict[str, Any] = {**options, **parsed_options(tasks)}
    if inputs.values:
        given["feeds"] = _feeds(model, inputs.values)
    try:
        return pipeline(tasks.task, model, **given)
    except NoPicturesError as error:
        what = "a sound" if has_suffix(inputs.files[0], SOUNDS) else "an image"
        error.message = f"'{inputs.files[0]}' is {what}, and {error.message}"
        raise
    except UnknownTaskError as error:
        start = f"vkmnn run {_typed(model)} -i"
        lines = [f"\n  {start} {_typed(inputs.files[0])} --task {task}  # {what}"
                 for task, what in error.tasks]  # fmt: skip
        error.hint = (
            f"type one of these lines:{''.join(lines)}" if lines else
            "no known network has these outputs; run it on an array, and decode them yourself:\n"
            f"  {start} {error.array} -o outputs.npz"
        )  # fmt: skip
        raise


def _typed(name: object) -> str:
    """Return a file's name as it is typed in this system's shell."""
    system: str = sys.platform
    if system != "win32":
        return shlex.quote(str(name))
    from subprocess import list2cmdline

    return list2cmdline([str(name)])


def _value(arg: NodeArg, text: str) -> Array:
    """Return the value of an input; one without a shape of its own gets 1 for open dimensions."""
    given = parse_value(arg, text)
    if given.array is not None:
        return given.array
    shape = tuple(side if isinstance(side, int) else 1 for side in arg.shape or ())
    if given.filler:
        return FILLERS[given.filler](np.random.default_rng(0), shape, arg.dtype)
    return np.full(shape, given.fill, arg.dtype)


def _name_options(error: OtherInputsError) -> None:
    """Put the options of the command into an error about other inputs."""
    options = " ".join(f"-i {name}=VALUE" for name in error.names)
    error.hint = f"add {options} (a number, zeros, a JSON list or a .npy file)"


def _feeds(model: Path, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the network's other inputs."""
    from vkmnn.pipelines.networks import load
    from vkmnn.pipelines.options import Options

    args = {arg.name: arg for arg in load(model, Options()).inputs}
    made = {}
    for name, text in values.items():
        if name not in args:
            raise InvalidInputError(
                f"--input {text or name}: neither an image, a video or a folder, nor a value for "
                "another input",
                hint=f"inputs: {', '.join(args)}",
            )
        made[name] = _value(args[name], text)
    return made


def parsed_options(tasks: TaskOptions) -> dict[str, Any]:
    """Return the options in the form of `vkmnn.pipeline`."""
    made: dict[str, Any] = {
        "labels": tasks.labels,
        "threshold": tasks.threshold,
        "channels": tasks.channels,
        "preprocess": tasks.preprocess,
        "trimap": tasks.trimap,
        "size": None if tasks.size is None else _sides(tasks.size),
        "mean": None if tasks.mean is None else _numbers("--mean", tasks.mean),
        "std": None if tasks.std is None else _numbers("--std", tasks.std),
        **{name: getattr(tasks, name) for name in PAINTING},
    }
    made = {name: value for name, value in made.items() if value is not None}
    for text in tasks.more:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInputError(f"--set {text} has no value", hint="for example --set top=3")
        made[name.strip().replace("-", "_")] = _literal(value)
    return made


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _sides(text: str) -> tuple[int, int]:
    try:
        sides = [int(part) for part in text.lower().replace("×", "x").split("x")]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2):
        raise InvalidInputError(
            f"--size {text} is not a size",
            hint="for example --size 640 or --size 480x640 (rows first)",
        )
    return sides[0], sides[-1]


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.strip("[]() ").split(","))
    except ValueError:
        raise InvalidInputError(
            f"{option} {text} is not a list of numbers", hint=f"for example {option} 0.5,0.5,0.5"
        ) from None


def _expanded(text: str) -> list[str]:
    """Return the files that match a folder or a pattern."""
    path = Path(text)
    if path.is_dir():
        kinds = PICTURES | SOUNDS
        found = sorted(str(one) for one in path.iterdir() if has_suffix(one, kinds))
    elif path.exists() or not glob.has_magic(text):
        return [text]
    else:
        found = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - absolute ones too
    if not found:
        raise InvalidInputError(f"'{text}' matches no images", hint="check the path")
    return found


def _results(pipe: Any, files: Sequence[str]) -> Iterator[tuple[str, Result[Any], float]]:
    """Yield name, result and seconds for each image and each frame."""
    if pipe.sequential and not any(map(_is_stream, files)):
        yield from _in_sequence(pipe, files)
        return
    for file in files:
        start = time.perf_counter()
        if _is_stream(file):
            for number, result in enumerate(pipe.stream(file)):
                end = time.perf_counter()
                yield f"{Path(file).stem}-{number:05d}", result, end - start
                start = end
        else:
            result = pipe(file)
            yield Path(file).name, result, time.perf_counter() - start


def _shown(
    results: Iterable[tuple[str, Result[Any], float]], facts: list[dict[str, Any]]
) -> Iterator[tuple[str, Result[Any]]]:
    """Print each result as it arrives."""
    for name, result, seconds in results:
        facts.append({"input": name, "seconds": seconds, "result": result.to_dict()})
        out.print(Text(f"{name}: {plural(len(result), 'result')}, {time_text(seconds)}"))
        if len(result):
            rows = table(*result.columns, right=result.columns[1:])
            for row in result.rows()[:_MOST_ROWS]:
                rows.add_row(*map(Text, row))
            show(rows)
        if len(result) > _MOST_ROWS:
            note(f"{len(result) - _MOST_ROWS} more; --output FILE.json has all")
        yield name, result


# --- saving ---------------------------------------------------------------------------------------


def _check_output(output: Path, several: bool) -> None:
    """Refuse early what cannot be saved at the end."""
    if has_suffix(output, FILMS):
        return
    if several and output.suffix and output.suffix.lower() not in (".json", ".txt"):
        raise InvalidInputError(
            f"'{output}' is for the result of one image, and there are several",
            hint=f"name a folder, -o {output.stem or 'results'}, or a .json file",
        )
    if not several and output.suffix:
        saver_of(output)
    if output.suffix and not output.absolute().parent.is_dir():
        raise InvalidInputError(f"the folder of '{output}' does not exist", hint="create it first")


def _save(
    output: Path | None,
    results: Iterator[tuple[str, Result[Any]]],
    streamed: bool,
    files: Sequence[str],
) -> None:
    """Save results as they arrive: in one file, a folder, or a video."""
    if output is None:
        deque(results, maxlen=0)  # results are only printed
    elif has_suffix(output, FILMS):
        with FilmWriter(output, files[0]) as film:
            for _, result in results:
                film.add(result.draw())
        out.print(Text(f"saved {output}"))
    elif streamed and output.suffix.lower() in (".json", ".txt"):
        listed = dict(results)
        is_json = output.suffix.lower() == ".json"
        made = (
            json.dumps({name: one.to_dict() for name, one in listed.items()}, indent=2)
            if is_json
            else "\n".join(f"{name}\t{one.text()}" for name, one in listed.items())
        )
        with saving("results cannot be saved", "--output", output):
            output.write_text(made + "\n", "utf-8")
        out.print(Text(f"saved {output}"))
    elif output.suffix and not streamed:
        for _, result in results:
            out.print(Text(f"saved {result.save(output)}"))
    else:
        with saving("results cannot be saved", "--output", output):
            output.mkdir(parents=True, exist_ok=True)
        saved = [one.save(output / _file_name(number, name, one))
                 for number, (name, one) in enumerate(results)]  # fmt: skip
        what = "image" if all(has_suffix(one, PICTURES) for one in saved) else "file"
        out.print(Text(f"saved {plural(len(saved), what)} in {output}"))


def _file_name(number: int, name: str, result: Result[Any]) -> str:
    """Return the name of a result's file: from its image or sound, or a number for a text."""
    if result.picture is not None:
        return f"{Path(name).stem}.png"
    stem = Path(name).stem if has_suffix(name, SOUNDS) else f"{number:05d}"
    return f"{stem}{result.suffix}"
