"""A model on one device that computes the results of rows: values by input, or pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vkmnn.base.closing import Closing
from vkmnn.batch.flow import Failed, Flow, Work
from vkmnn.batch.items import Item
from vkmnn.batch.lanes import array_work, picture_work
from vkmnn.batch.outputs import Row
from vkmnn.batch.pool import SessionPool, checked_count
from vkmnn.inference_session import InferenceSession, NodeArg
from vkmnn.pipelines import pipeline
from vkmnn.ray.devices import AssignedDevice


class RowModel(Closing):
    """A model, opened on the device that Ray has assigned to this process, or on a named one.

    Args:
        model: as for `InferenceSession`; with a task, as for `vkmnn.pipeline`.
        task: a task on pictures; None for the network itself.
        batch: rows in one run, at most.
        device: as for `InferenceSession`; None for the assigned one.
        options: further options of the session or the pipeline.

    Attributes:
        session: the session; None with a task.
        inputs: the network's inputs; empty with a task.
        names: the names of the results.

    Raises:
        VkmnnError: as `InferenceSession`, `vkmnn.pipeline` and `AssignedDevice`.
    """

    def __init__(
        self,
        model: Any,
        task: str | None,
        batch: int,
        device: str | int | None,
        options: Mapping[str, Any],
    ) -> None:
        self.batch = checked_count("batch", batch)
        self.session: InferenceSession | None = None
        self.inputs: list[NodeArg] = []
        self.names: list[str] = []
        assigned = AssignedDevice(options.get("driver")) if device is None else None
        self._closing: list[Closing | Any] = [] if assigned is None else [assigned]
        place = device if assigned is None else assigned.device
        try:
            self._work, self.can_batch = self._opened(model, task, place, options)
        except BaseException:
            self.close()
            raise

    def _opened(
        self, model: Any, task: str | None, device: Any, options: Mapping[str, Any]
    ) -> tuple[Work, bool]:
        if task is not None:
            pipe = pipeline(task, model, device=device, **options)
            self._closing.append(pipe)
            return picture_work([pipe], self.batch), False
        pool = SessionPool(model, device, **options)
        self._closing.append(pool)
        self.session, self.names = pool.sessions[0], pool.output_names
        self.inputs = self.session.get_inputs()
        return array_work(pool, self.batch), pool.can_batch

    @property
    def lost(self) -> bool:
        """Whether the model cannot compute any more because its device is lost."""
        return self.session is not None and self.session.lost

    def outcomes(self, rows: Sequence[Any]) -> Iterator[Row | Failed]:
        """Yield the result of each row, in order.

        Args:
            rows: values by input, or pictures: paths, bytes or arrays.

        Raises:
            VkmnnError: an error that is not that of a row: the device is lost.
        """
        lifted = [_lifted(row, self.inputs) if not self.can_batch else None for row in rows]
        items = [
            Item("", row if one is None else one, key=str(number))
            for number, (row, one) in enumerate(zip(rows, lifted, strict=True))
        ]
        for (_, outcome), one in zip(Flow(self._work).outcomes(items), lifted, strict=True):
            if one is None or isinstance(outcome, Failed):
                yield outcome
            else:
                arrays = {name: _lowered(array) for name, array in outcome.arrays.items()}
                yield Row(outcome.name, outcome.key, arrays)

    def close(self) -> None:
        """Close the model, and let other processes use the device."""
        for one in reversed(self._closing):
            one.close()
        self._closing.clear()


def _lifted(row: Any, inputs: Sequence[NodeArg]) -> Mapping[str, Any] | None:
    """Return a row with the first axis that a network of fixed batch 1 has; None if it has it."""
    if not isinstance(row, Mapping) or not inputs:
        return None
    shapes = {arg.name: arg.shape or () for arg in inputs}
    values = {name: np.asarray(row[name]) for name in shapes if row.get(name) is not None}
    fits = all(
        name in values and shape and shape[0] == 1 and values[name].ndim == len(shape) - 1
        for name, shape in shapes.items()
    )
    return {name: array[None] for name, array in values.items()} if fits else None


def _lowered(array: Any) -> Any:
    return array[0] if array.ndim and array.shape[0] == 1 else array
