"""The actor of Ray Data's `map_batches`: a model, opened once, that adds its results to batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vkmnn.base.closing import Closing
from vkmnn.base.extras import need
from vkmnn.batch.flow import Failed
from vkmnn.batch.lanes import cast
from vkmnn.batch.outputs import Row
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.ir import Array
from vkmnn.ray.rows import RowModel

_RESULT, _ERROR = "result", "error"
_PICTURE = "image"
Batch = Any
"""A dictionary of arrays by column, or a `pyarrow.Table`."""


class Predictor(Closing):
    """A model for `Dataset.map_batches`; each actor opens it once, on a separate device.

    `dataset.map_batches(Predictor, fn_constructor_args=["model.onnx"], **on_devices())`

    Args:
        model: as for `InferenceSession`; with a task, as for `vkmnn.pipeline`. Nodes of a cluster
            read paths on their own file systems.
        task: a task on pictures, such as "classify"; None for the network itself.
        inputs: columns by input, or the column of the only input; None for columns of the inputs'
            names. With a task: the column of pictures ("image") as bytes, paths, or arrays.
        outputs: new columns by output, or the requested outputs; None for all, under their names.
            With a task, "result" is the task's result as JSON.
        keep: the columns of the batch to keep in the result; None for all.
        on_error: "raise" the error of a row; or "keep": its results are None, and the column
            "error" has the reason.
        batch: most rows in one run, however many a batch has.
        device: as for `InferenceSession`; None for the one that Ray has assigned.
        options: further options of `InferenceSession` or `vkmnn.pipeline`.

    Raises:
        DeviceNotFoundError: Ray has assigned no device.
        InvalidInputError: an argument is not valid.
        VkmnnError: as `InferenceSession` or `vkmnn.pipeline`.
    """

    def __init__(
        self,
        model: Any,
        task: str | None = None,
        *,
        inputs: str | Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        on_error: Literal["raise", "keep"] = "raise",
        batch: int = 64,
        device: str | int | None = None,
        **options: Any,
    ) -> None:
        if on_error not in ("raise", "keep"):
            raise InvalidInputError(f"on_error={on_error!r} is not known", hint='"raise" or "keep"')
        if isinstance(outputs, str) or isinstance(keep, str):
            raise InvalidInputError("outputs and keep are lists", hint='write ["name"]')
        self._on_error, self._keep, self._task = on_error, keep, task
        self._model = RowModel(model, task, batch, device, options)
        try:
            self._inputs = self._columns_of(inputs)
            self._outputs = None if outputs is None else _renamed(outputs)
            if task is None:
                for name in self._outputs or ():
                    _known(name, self._model.names, "output")
        except BaseException:
            self.close()
            raise

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch, of the same kind, with the results.

        Raises:
            InvalidInputError: a column is missing, or a value does not fit.
            VkmnnError: a run fails.
        """
        is_table = not isinstance(batch, Mapping)
        columns = _columns(batch) if is_table else dict(batch)
        for name in self._inputs.values():
            _known(name, columns, "column")
        made = self._results({name: columns[column] for name, column in self._inputs.items()})
        kept = list(columns) if self._keep is None else list(self._keep)
        for name in kept:
            _known(name, columns, "column")
        if is_table:
            return _with_columns(batch.select([one for one in kept if one not in made]), made)
        return {**{name: columns[name] for name in kept}, **made}

    def close(self) -> None:
        """Close the model, and let other actors use the device."""
        self._model.close()

    # --- inputs ----------------------------------------------------------------------------------

    def _columns_of(self, given: str | Mapping[str, str] | None) -> dict[str, str]:
        if self._task is not None:
            if isinstance(given, Mapping):
                raise InvalidInputError("a task takes one column", hint='inputs="image"')
            return {_PICTURE: given or _PICTURE}
        names = [arg.name for arg in self._model.inputs]
        if isinstance(given, str):
            if len(names) != 1:
                raise InvalidInputError(
                    f"the network has {len(names)} inputs: {', '.join(names)}",
                    hint="give a dictionary of columns by input",
                )
            return {names[0]: given}
        for name in given or ():
            _known(name, names, "input")
        return {name: (given or {}).get(name, name) for name in names}

    # --- results ---------------------------------------------------------------------------------

    def _results(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new columns."""
        made = self._at_once(values)
        if made is None:
            count = len(next(iter(values.values()), ()))
            if self._task is not None:
                rows: list[Any] = list(values[_PICTURE])
            else:
                rows = [{name: one[i] for name, one in values.items()} for i in range(count)]
            made = self._collected(list(self._model.outcomes(rows)))
        elif self._on_error == "keep":
            made[_ERROR] = np.full(len(next(iter(made.values()), ())), None, object)
        if self._outputs is None:
            return made
        for name in self._outputs:
            _known(name, made, "output")
        renamed = {column: made[name] for name, column in self._outputs.items()}
        return {**renamed, **({_ERROR: made[_ERROR]} if self._on_error == "keep" else {})}

    def _at_once(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Run columns as they are, where their first axis is that of the network."""
        model = self._model
        ranks = {arg.name: len(arg.shape or ()) for arg in model.inputs}
        if model.session is None or not model.can_batch or not all(
            isinstance(one, np.ndarray) and one.dtype != object and one.ndim == ranks[name]
            for name, one in values.items()
        ):  # fmt: skip
            return None
        count = len(next(iter(values.values())))
        if not count:
            return None
        try:
            feeds = cast(values, model.inputs)
            futures = [
                model.session.submit(
                    {name: one[start : start + model.batch] for name, one in feeds.items()},
                    model.names,
                )
                for start in range(0, count, model.batch)
            ]
            parts = [future.result() for future in futures]
        except InvalidInputError:
            if self._on_error == "raise":
                raise
            return None  # row by row, to find those that fail
        joined = [np.concatenate(one) if len(one) > 1 else one[0] for one in zip(*parts)]  # noqa: B905
        return dict(zip(model.names, joined, strict=True))

    def _collected(self, outcomes: Sequence[Row | Failed]) -> dict[str, Any]:
        rows: list[Mapping[str, Any] | None] = []
        errors: list[str | None] = []
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                if self._on_error == "raise":
                    raise outcome.error
                errors.append(str(outcome.error))
                rows.append(None)
            else:
                said = {} if outcome.result is None else {_RESULT: outcome.result}
                errors.append(None)
                rows.append({**outcome.arrays, **said})
        names = list(dict.fromkeys(name for row in rows for name in row or ()))
        names = names or self._model.names or [_RESULT]
        made = {name: _stacked([row and row.get(name) for row in rows]) for name in names}
        if self._on_error == "keep":
            made[_ERROR] = _objects(errors)
        return made


def _renamed(outputs: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    return dict(outputs) if isinstance(outputs, Mapping) else {name: name for name in outputs}


def _known(name: str, known: Any, what: str) -> None:
    if name not in known:
        raise InvalidInputError(
            f"there is no {what} '{name}'", hint=nearest(name, known, f"{what}s")
        )


def _objects(values: Sequence[Any]) -> Array:
    made = np.empty(len(values), object)
    for number, value in enumerate(values):
        made[number] = value
    return made


def _stacked(values: Sequence[Any]) -> Array:
    """Return a column: one array if all rows have the same shape, otherwise an array per row."""
    kinds = {(one.shape, one.dtype) if isinstance(one, np.ndarray) else None for one in values}
    return _objects(values) if len(kinds) != 1 or None in kinds else np.stack(values)


def _columns(table: Any) -> dict[str, Any]:
    """Return the columns of a pyarrow.Table as arrays.

    Raises:
        InvalidInputError: it is no table.
    """
    if not hasattr(table, "column_names") or not hasattr(table, "select"):
        raise InvalidInputError(
            f"a batch is a dictionary of arrays or a pyarrow.Table, not {type(table).__name__}",
            hint='map_batches(batch_format="numpy"), or "pyarrow"',
        )
    return {name: _array_of(table.column(name)) for name in table.column_names}


def _array_of(column: Any) -> Any:
    parts = [_part(chunk) for chunk in column.chunks if len(chunk)]
    if len(parts) == 1:
        return parts[0]
    if parts and len({(one.shape[1:], one.dtype) for one in parts}) == 1:
        return np.concatenate(parts)
    return _objects([row for part in parts for row in part])


def _part(chunk: Any) -> Any:
    fixed = getattr(chunk, "to_numpy_ndarray", None)
    return chunk.to_numpy(zero_copy_only=False) if fixed is None else fixed()


def _with_columns(table: Any, made: Mapping[str, Any]) -> Any:
    """Return a table with further columns, as Ray stores arrays."""
    blocks = need("ray.data.block", "tables with arrays", "ray")
    added = blocks.BlockAccessor.batch_to_arrow_block(dict(made))
    for name in added.column_names:
        table = table.append_column(added.schema.field(name), added.column(name))
    return table
