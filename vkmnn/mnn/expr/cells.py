"""What Vars stand for: arrays, inputs without data, and operations on others.

Operations are computed at once if their inputs have data. Those on placeholders that nobody has
written to wait for the first read; with `lazy_eval(True)`, all wait, and follow later changes of
their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from vkmnn.errors import OutOfHostMemoryError, VkmnnError
from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError, NoDataError, OutOfBoundsError
from vkmnn.mnn.expr.types import NCHW, data_format, narrowed

Function = Callable[..., Any]
"""From arrays to an array, or to a tuple of several."""

CONST, INPUT, TRAINABLE = "Const", "Input", "Trainable"

_NUMPY_ERRORS = (ValueError, TypeError, ArithmeticError, KeyError, np.linalg.LinAlgError)

_versions = count(1)


class _State:
    """The mode of evaluation, and the number of changes so far."""

    lazy = False
    epoch = 0


def set_lazy(on: bool) -> None:
    """Let operations wait until they are read, or compute them at once."""
    _State.lazy = bool(on)


class Cell:
    """The content behind a Var: an array, a placeholder, or a result of an operation."""

    __slots__ = ("array", "dtype", "format", "index", "kind", "name", "node", "shape", "version")

    def __init__(
        self,
        array: Array | None = None,
        format: data_format = NCHW,
        name: str = "",
        kind: str = CONST,
    ) -> None:
        self.array, self.format, self.name, self.kind = array, format, name, kind
        self.node: Node | None = None
        self.index = 0
        self.shape: tuple[int, ...] = ()  # of a placeholder; -1 for open sizes
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self.version = next(_versions)

    def set(self, array: Array) -> None:
        """Change the data, for all operations that read it."""
        self.array, self.node = array, None
        self.shape, self.dtype = array.shape, array.dtype
        changed(self)

    def take(self, other: Cell) -> None:
        """Stand for what another cell stands for, the name excepted."""
        for field in ("array", "node", "index", "kind", "shape", "dtype", "format"):
            setattr(self, field, getattr(other, field))
        changed(self)


def changed(cell: Cell) -> None:
    """Mark what depends on a cell as outdated."""
    cell.version = next(_versions)
    _State.epoch += 1


class _Results:
    """Computed arrays, and the versions of the inputs that they are computed from."""

    __slots__ = ("arrays", "epoch", "seen", "version")

    def __init__(self) -> None:
        self.arrays: tuple[Array, ...] = ()
        self.seen: tuple[int, ...] | None = None
        self.version = 0
        self.epoch = -1  # the state of everything when `seen` was last compared


class Node:
    """An operation on cells."""

    __slots__ = ("blocked", "function", "inputs", "kept", "op", "real", "trial")

    def __init__(self, op: str, function: Function, inputs: list[Cell], kept: bool) -> None:
        self.op, self.function, self.inputs, self.kept = op, function, inputs, kept
        self.real, self.trial = _Results(), _Results()
        self.blocked = -1  # the state of everything in which an input had no data


def computed(op: str, function: Function, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Call an operation on arrays.

    Raises:
        ArgumentError: the arrays do not suit it.
        OutOfHostMemoryError: its result does not fit the memory.
    """
    try:
        with np.errstate(all="ignore"):
            results = function(*arrays)
    except VkmnnError:
        raise
    except IndexError as error:
        raise OutOfBoundsError(f"{error}", op=op) from error
    except _NUMPY_ERRORS as error:
        shapes = ", ".join(str(list(array.shape)) for array in arrays)
        raise ArgumentError(f"{error}", op=op, hint=f"the arguments' shapes: {shapes}") from error
    except MemoryError as error:
        raise OutOfHostMemoryError(f"{error}", op=op) from error
    many = results if isinstance(results, tuple) else (results,)
    return tuple(narrowed(np.asarray(array), tuple(arrays)) for array in many)


def content(cell: Cell) -> Array:
    """Return a cell's data, computed if necessary.

    Raises:
        NoDataError: a placeholder has no data.
    """
    node = cell.node
    if node is None:
        return _leaf(cell)
    array = _run(node, False)[cell.index]
    if not node.kept:
        cell.array, cell.node, cell.kind = array, None, CONST
    return array


def sample(cell: Cell) -> Array:
    """Return an array of a cell's shape and type: its data if there are any."""
    try:
        if cell.node is None or cell.node.blocked != _State.epoch:
            return content(cell)
    except NoDataError:
        _block(cell)
    return _trial_leaf(cell) if cell.node is None else _run(cell.node, True)[cell.index]


def apply(
    op: str,
    function: Function,
    inputs: Sequence[Cell],
    outputs: int = 1,
    format: data_format | None = None,
) -> list[Cell]:
    """Return the results of an operation, in the format of its first input."""
    if format is None:
        format = inputs[0].format if inputs else NCHW
    if not _State.lazy and all(map(_settled, inputs)):
        arrays = computed(op, function, [content(cell) for cell in inputs])
        return [Cell(array, format) for array in arrays]
    node = Node(op, function, list(inputs), _State.lazy)
    cells = [Cell(None, format, kind=op) for _ in range(outputs)]
    for index, cell in enumerate(cells):
        cell.node, cell.index = node, index
    return cells


def substituted(outputs: Sequence[Cell], values: Mapping[int, Array]) -> list[Array]:
    """Return the data that cells have if others have other data.

    Args:
        outputs: the cells.
        values: the others' data, by the `id` of their cells.

    Raises:
        NoDataError: a placeholder has no data.
    """
    made: dict[int, tuple[Array, ...]] = {}

    def data(cell: Cell) -> Array:
        if id(cell) in values:
            return values[id(cell)]
        return made[id(cell.node)][cell.index] if cell.node else _leaf(cell)

    stack = [cell.node for cell in outputs if cell.node and id(cell) not in values]
    while stack:
        node = stack[-1]
        missing = [
            one.node
            for one in node.inputs
            if one.node and id(one.node) not in made and id(one) not in values
        ]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if id(node) not in made:
            arrays = [data(one) for one in node.inputs]
            made[id(node)] = computed(node.op, node.function, arrays)
    return [data(cell) for cell in outputs]


def replace(cell: Cell, other: Cell) -> None:
    """Let a cell stand for what another one does.

    Operations of the other one that read the cell keep its former content.
    """
    former = Cell()
    former.take(cell)
    for node in ancestors(other):
        node.inputs = [former if one is cell else one for one in node.inputs]
    cell.take(other)


def ancestors(cell: Cell) -> list[Node]:
    """Return the operations that a cell is computed by, the last one first."""
    found: dict[int, Node] = {}
    waiting = [cell.node]
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            waiting.extend(one.node for one in node.inputs)
    return list(found.values())


def _settled(cell: Cell) -> bool:
    """Tell whether a cell's data can be computed now."""
    if cell.node is None:
        return cell.array is not None
    if cell.node.blocked == _State.epoch:
        return False
    try:
        content(cell)
    except NoDataError:
        _block(cell)
        return False
    return True


def _block(cell: Cell) -> None:
    if cell.node is not None:
        cell.node.blocked = _State.epoch


def _leaf(cell: Cell) -> Array:
    if cell.array is None:
        raise NoDataError(
            f"Var '{cell.name}' holds no data yet" if cell.name else "the Var holds no data yet",
            hint="call write first",
        )
    return cell.array


def _trial_leaf(cell: Cell) -> Array:
    if cell.array is not None:
        return cell.array
    shape = tuple(1 if size < 0 else size for size in cell.shape)
    return np.broadcast_to(np.ones((), cell.dtype), shape)


def _run(last: Node, trial: bool) -> tuple[Array, ...]:
    """Compute a node after those that it depends on, as far as they are outdated."""
    leaf = _trial_leaf if trial else _leaf

    def results(node: Node) -> _Results:
        return node.trial if trial else node.real

    stack = [last]
    while stack:
        node = stack[-1]
        mine = results(node)
        if mine.epoch == _State.epoch:
            stack.pop()
            continue
        before = [one.node for one in node.inputs if one.node is not None]
        outdated = [one for one in before if results(one).epoch != _State.epoch]
        if outdated:
            stack.extend(outdated)
            continue
        stack.pop()
        seen = tuple(results(one.node).version if one.node else one.version for one in node.inputs)
        if seen != mine.seen:
            arrays = [
                results(one.node).arrays[one.index] if one.node else leaf(one)
                for one in node.inputs
            ]
            mine.arrays = computed(node.op, node.function, arrays)
            mine.seen, mine.version = seen, next(_versions)
        mine.epoch = _State.epoch
    return results(last).arrays
