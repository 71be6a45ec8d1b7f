"""How the items of a job run: as pictures through pipelines, or as arrays through sessions."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.media import has_suffix
from vkmnn.base.records import dataclass
from vkmnn.batch.flow import Work
from vkmnn.batch.items import ARRAYS, Item
from vkmnn.batch.outputs import Row, finite
from vkmnn.batch.pool import SessionPool, decode_threads
from vkmnn.batch.sizing import Feeds, Trial
from vkmnn.batch.stacking import Fed
from vkmnn.errors import InvalidInputError, VkmnnError
from vkmnn.inference_session import InferenceSession, NodeArg
from vkmnn.ir import Array
from vkmnn.pipelines import Picture, PicturePipeline, Pipeline, read_picture


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """An item and the value that runs."""

    item: Item
    value: Any


def holds_arrays(item: Item) -> bool:
    """Tell whether an item is one of arrays, and not a picture."""
    if isinstance(item.value, Path):
        return has_suffix(item.value, ARRAYS)
    return isinstance(item.value, Mapping) or item.suffix in ARRAYS


def _checked(item: Item) -> Any:
    if isinstance(item.value, VkmnnError):
        raise item.value
    return item.value


# --- pictures -------------------------------------------------------------------------------------


def _picture(item: Item) -> Picture:
    value = _checked(item)
    if isinstance(value, Mapping):
        raise InvalidInputError("the row holds no picture", hint='for example {"image": "a.jpg"}')
    return read_picture(value)


def picture_trial(pipe: Pipeline) -> Trial | None:
    """Return how a picture runs by itself; None if pictures are taken one by one."""
    if not isinstance(pipe, PicturePipeline) or not pipe.is_plain:
        return None

    def feeds(item: Item) -> tuple[Feeds, int]:
        picture = _picture(item)
        return pipe.feeds([picture]), picture.pixels.nbytes

    def run(feeds: Feeds) -> Sequence[Array]:
        return list(pipe.network.run(feeds).values())

    fixed = pipe.network.batch
    return Trial(feeds, run) if fixed is None else Trial(feeds, None, fixed)


def picture_work(pipes: Sequence[Pipeline], batch: int) -> Work:
    """Return the work of pipelines, one per device."""

    def prepare(item: Item) -> _Ready:
        return _Ready(item, _picture(item))

    def alike(ready: _Ready) -> Hashable:
        return pipes[0].alike(ready.value)

    def lane(pipe: Pipeline) -> Callable[[list[_Ready]], list[Row]]:
        def run(group: list[_Ready]) -> list[Row]:
            pictures: list[Picture] = [one.value for one in group]
            results = pipe.together(pictures)
            return [
                Row(one.item.name, one.item.key, made.arrays(), _json(made.to_dict()))
                for one, made in zip(group, results, strict=True)
            ]

        return run

    return Work(prepare, alike, [lane(pipe) for pipe in pipes], batch, 2, decode_threads())


def _json(value: Any) -> str:
    """Return JSON; numbers that it does not have are null."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value), ensure_ascii=False, allow_nan=False)


# --- arrays ---------------------------------------------------------------------------------------


def array_trial(pool: SessionPool) -> Trial | None:
    """Return how an item of arrays runs by itself; None if items never share a run."""
    session, stacking = pool.sessions[0], pool.stacking
    if not stacking.possible or session.keeps_states:
        return None
    inputs = session.get_inputs()

    def feeds(item: Item) -> tuple[Feeds, int] | None:
        fed = stacking.fed(_feeds(_checked(item), item.suffix, inputs))
        return (fed.feeds, 0) if fed.rows else None

    return Trial(feeds, lambda one: session.run(pool.output_names, one))


def array_work(pool: SessionPool, batch: int) -> Work:
    """Return the work of a pool on files of arrays, and on rows with values by input."""
    stacking, names = pool.stacking, pool.output_names
    inputs = pool.sessions[0].get_inputs()

    def prepare(item: Item) -> _Ready:
        return _Ready(item, stacking.fed(_feeds(_checked(item), item.suffix, inputs)))

    def alike(ready: _Ready) -> Hashable:
        return stacking.alike(ready.value)

    def lane(session: InferenceSession) -> Callable[[list[_Ready]], list[Row]]:
        def run(group: list[_Ready]) -> list[Row]:
            fed: list[Fed] = [one.value for one in group]
            outputs = session.submit(stacking.joined(fed), names).result()
            return [
                Row(one.item.name, one.item.key, dict(zip(names, made, strict=True)))
                for one, made in zip(group, stacking.split(fed, outputs), strict=True)
            ]

        return run

    size = batch if stacking.possible else 1
    return Work(prepare, alike, [lane(one) for one in pool.sessions], size, 2, decode_threads())


def _feeds(value: Any, suffix: str, inputs: Sequence[NodeArg]) -> dict[str, Array]:
    """Return the feeds of a file or a row.

    Raises:
        InvalidInputError: it is damaged, or lacks an input.
    """
    if isinstance(value, Mapping):
        return cast(value, inputs)
    where = f"'{value}'" if isinstance(value, Path) else "the file"
    try:
        if isinstance(value, Path) and value.exists() and not value.is_file():
            raise ValueError("it is no file")
        loaded = np.load(BytesIO(value) if isinstance(value, bytes) else value, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {inputs[0].name: loaded} if len(inputs) == 1 else cast({}, inputs)
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InvalidInputError(
            f"{where} cannot be read as arrays: {error}", hint="check that it is a .npy or .npz"
        ) from error


def cast(row: Mapping[str, Any], inputs: Sequence[NodeArg]) -> dict[str, Array]:
    """Return the values of a row in the types of the inputs; other keys are ignored.

    Raises:
        InvalidInputError: an input is missing, or its value does not fit its type.
    """
    made = {}
    for arg in inputs:
        if row.get(arg.name) is None:
            raise InvalidInputError(
                f"input '{arg.name}' is missing",
                hint=f"give a value for each input: {', '.join(one.name for one in inputs)}",
            )
        kind = object if arg.type == "tensor(string)" else np.dtype(arg.dtype)
        try:
            values = np.asarray(row[arg.name])
            array = values.astype(kind, casting="unsafe")
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(f"input '{arg.name}' is no array: {error}") from error
        if array.dtype.kind in "iu" and not np.array_equal(array, values):
            raise InvalidInputError(f"input '{arg.name}' has values that are no {arg.dtype}")
        made[arg.name] = array
    return made
