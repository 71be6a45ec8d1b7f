"""Feeds of several items in one run: joined along the first axis, and outputs split again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError
from vkmnn.inference_session import NodeArg
from vkmnn.ir import Array


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """The feeds of an item, ready to run.

    Attributes:
        feeds: values by input.
        rows: their size along the first axis; 0 if they run alone.
        is_sample: whether the first axis was added, and is removed from the outputs.
    """

    feeds: Mapping[str, Any]
    rows: int
    is_sample: bool = False


class Stacking:
    """Joins and splits feeds of one network.

    Args:
        inputs: the network's inputs.
        outputs: the outputs that are wanted.

    Attributes:
        possible: whether several items may share a run: all inputs and outputs are tensors whose
            first axis has the same open size.
    """

    def __init__(self, inputs: Sequence[NodeArg], outputs: Sequence[NodeArg]) -> None:
        self._inputs = {arg.name: arg for arg in inputs}
        ranked = [arg for arg in (*inputs, *outputs) if arg.shape]
        firsts = {arg.shape[0] for arg in ranked if arg.shape}
        self.possible = (
            bool(inputs)
            and len(ranked) == len(inputs) + len(outputs)
            and all(arg.type.startswith("tensor(") for arg in ranked)
            and len(firsts) == 1
            and not isinstance(next(iter(firsts)), int)
        )

    def fed(self, item: Any) -> Fed:
        """Return the feeds of an item.

        Args:
            item: feeds as for `InferenceSession.run`, or of a single sample, without the first
                axis.

        Raises:
            InvalidInputError: it is not a mapping.
        """
        if not isinstance(item, Mapping):
            raise InvalidInputError(
                f"an item is a dictionary of arrays by input, not {type(item).__name__}",
                hint="pass prepare=, a function from an item to its feeds",
            )
        if not self.possible or item.keys() != self._inputs.keys():
            return Fed(item, 0)  # names that are missing or unknown: the run reports them
        arrays = {name: np.asarray(value) for name, value in item.items()}
        missing = {len(self._inputs[name].shape or ()) - one.ndim for name, one in arrays.items()}
        if missing == {1}:
            return Fed({name: one[None] for name, one in arrays.items()}, 1, True)
        rows = {one.shape[0] if one.ndim else 0 for one in arrays.values()}
        if missing != {0} or len(rows) != 1:
            return Fed(item, 0)
        return Fed(arrays, rows.pop())

    def alike(self, fed: Fed) -> Hashable:
        """Return the key of feeds that can be joined."""
        if not fed.rows:
            return object()
        return tuple((name, one.dtype.str, one.shape[1:]) for name, one in fed.feeds.items())

    def joined(self, group: Sequence[Fed]) -> Mapping[str, Any]:
        """Return the feeds of a run."""
        if len(group) == 1:
            return group[0].feeds
        names = group[0].feeds
        return {name: np.concatenate([one.feeds[name] for one in group]) for name in names}

    def split(self, group: Sequence[Fed], outputs: Sequence[Array]) -> list[list[Array]]:
        """Return the outputs of each item.

        Raises:
            InvalidInputError: an output's first axis is not that of the inputs.
        """
        if len(group) == 1 and not group[0].is_sample:
            return [list(outputs)]
        total = sum(one.rows for one in group)
        for array in outputs:
            if not array.ndim or array.shape[0] != total:
                raise InvalidInputError(
                    f"an output of shape {list(array.shape)} has no row for each of {total} rows",
                    hint="run items alone: batch=1, with the first axis in each",
                )
        made, start = [], 0
        for one in group:
            rows: Any = start if one.is_sample else slice(start, start + one.rows)
            made.append([array[rows].copy() for array in outputs])
            start += one.rows
        return made
