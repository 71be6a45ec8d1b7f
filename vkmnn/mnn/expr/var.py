"""MNN.expr's Var: a tensor that was computed, or that will be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError, NoDataError, NotOfferedError
from vkmnn.mnn.expr import cells
from vkmnn.mnn.expr.cells import Cell
from vkmnn.mnn.expr.indexing import cells_of, put, take
from vkmnn.mnn.expr.types import NCHW, data_format, dtype, dtype_of
from vkmnn.mnn.memory import capsule
from vkmnn.mnn.tensor import (
    Tensor_DimensionType_Caffe,
    Tensor_DimensionType_Tensorflow,
    converted,
)

Order: TypeAlias = data_format  # Var has a property of that name


class Var:
    """A tensor with an order of axes.

    Arithmetic, comparisons, and the methods that numpy's arrays have, are attached by
    `vkmnn.mnn.numpy`.
    """

    def __init__(
        self, array: Array | None = None, format: data_format = NCHW, name: str = ""
    ) -> None:
        self._cell = Cell(array, format, name)

    @classmethod
    def _of(cls, cell: Cell) -> Var:
        made = cls.__new__(cls)
        made._cell = cell
        return made

    @property
    def name(self) -> str:
        """The Var's name; "" if it has none."""
        return self._cell.name

    @name.setter
    def name(self, name: str) -> None:
        self._cell.name = name

    @property
    def shape(self) -> list[int]:
        """The sizes of the axes; -1 for a placeholder's open ones."""
        cell = self._cell
        if cell.node is None and cell.array is None:
            return list(cell.shape)
        return list(cells.sample(cell).shape)

    @property
    def data_format(self) -> data_format:
        """The order of the axes."""
        return self._cell.format

    @property
    def dtype(self) -> dtype:
        """The type of the elements; int for types that MNN lacks."""
        return dtype_of(cells.sample(self._cell).dtype.name)

    @property
    def size(self) -> int:
        """The number of elements."""
        return cells.sample(self._cell).size

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def valid(self) -> bool:
        """False for `Var()`, which stands for nothing."""
        cell = self._cell
        return cell.node is not None or cell.array is not None or cell.kind != cells.CONST

    @property
    def op_type(self) -> str:
        """The operation that computes the Var: "Const" if it is not recomputed."""
        return self._cell.kind

    @property
    def inputs(self) -> list[Var]:
        """The Vars that it is computed from; none if it is not recomputed."""
        node = self._cell.node
        return [Var._of(cell) for cell in node.inputs] if node else []

    @property
    def ptr(self) -> Any:
        """The address of the data as a PyCapsule; the Var has to outlive it."""
        cell = self._cell
        cell.array = np.ascontiguousarray(cells.content(cell))
        return capsule(cell.array.ctypes.data)

    @property
    def _order(self) -> int:
        last = self._cell.format is data_format.NHWC
        return Tensor_DimensionType_Tensorflow if last else Tensor_DimensionType_Caffe

    def read(self) -> Array:
        """Return the data as an array.

        Raises:
            NoDataError: a placeholder holds no data yet.
        """
        return cells.content(self._cell)

    def read_as_tuple(self) -> tuple[Any, ...]:
        """Return the elements in one flat tuple."""
        return tuple(self.read().reshape(-1).tolist())

    def write(self, data: Any) -> bool:
        """Set the data: as many elements as the Var has.

        Raises:
            InvalidInputError: another number, or of another kind.
        """
        cell = self._cell
        array = np.asarray(data)
        like = cells.sample(cell)
        if array.size != like.size:
            raise ArgumentError(
                f"a Var of shape {tuple(self.shape)} does not take {array.size} elements"
            )
        cell.set(np.array(converted(array, like.dtype, "a Var")).reshape(like.shape))
        return True

    def sync(self) -> None:
        """Compute the data."""
        self.read()

    def fix_as_const(self) -> None:
        """Compute the data, and keep them."""
        self._fix(cells.CONST)

    def fix_as_trainable(self) -> None:
        """Compute the data, and keep them as a parameter; vkmnn does not train."""
        self._fix(cells.TRAINABLE)

    def fix_as_placeholder(self) -> None:
        """Make the Var one to write to."""
        self._fix(cells.INPUT)

    def _fix(self, kind: str) -> None:
        cell = self._cell
        if cell.node is not None or cell.array is not None or kind != cells.INPUT:
            cell.set(cells.content(cell))
        cell.kind = kind

    def close(self) -> None:
        """Drop the inputs; the Var keeps its data if it has any."""
        if self._cell.node is not None and not self._cell.node.kept:
            self._cell.set(self.read())

    def copy_from(self, source: Var) -> bool:
        """Copy another Var's data, which has as many elements."""
        return self.write(source.read())

    def set_inputs(self, inputs: Sequence[Var]) -> None:
        """Compute the Var from other inputs; only for one that is recomputed.

        Raises:
            ArgumentError: the Var is not the result of an operation, or takes another number of
                inputs, or the inputs depend on it.
        """
        node = self._cell.node
        if node is None:
            raise ArgumentError(
                "the Var is no operation that has inputs",
                hint="call expr.lazy_eval(True) before the Var is computed",
            )
        given = [one._cell for one in inputs]
        if len(given) != len(node.inputs):
            raise ArgumentError(f"the Var has {len(node.inputs)} inputs, not {len(given)}")
        if any(node in cells.ancestors(one) for one in given):
            raise ArgumentError("the new inputs depend on the Var itself")
        node.inputs = given
        node.real.seen = node.trial.seen = None
        cells.changed(self._cell)

    def replace(self, source: Var) -> None:
        """Stand for what another Var stands for, in everything that reads this one."""
        cells.replace(self._cell, source._cell)

    def reorder(self, order: Order) -> None:
        """Set the order of the axes of a placeholder, whose shape stays."""
        self._cell.format = data_format(order)

    def resize(self, shape: Sequence[int]) -> None:
        """Set the shape; the data are to be written again."""
        cell = self._cell
        cell.dtype = cells.sample(cell).dtype
        cell.shape = tuple(int(size) for size in shape)
        cell.array, cell.node, cell.kind = None, None, cells.INPUT
        cells.changed(cell)

    def set_order(self, order: Order) -> None:
        """Set the order of the axes; see `reorder`."""
        self.reorder(order)

    def set_device_ptr(self, address: int, memory_type: int) -> None:
        """Refuse: a Var's data lie in the machine's own memory.

        Raises:
            NotOfferedError: always.
        """
        _no_device_memory()

    def copy_to_device_ptr(self, address: int, memory_type: int) -> None:
        """Refuse: a Var's data lie in the machine's own memory.

        Raises:
            NotOfferedError: always.
        """
        _no_device_memory()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the data, as numpy asks for it."""
        data = self.read()
        array: Array = np.array(data, dtype, copy=copy) if copy else data
        return array if dtype is None else array.astype(dtype, copy=False)

    def __len__(self) -> int:
        """Return the first size."""
        shape = self.shape
        if not shape:
            raise TypeError("a Var without axes has no length")
        return shape[0]

    def __iter__(self) -> Iterator[Var]:
        """Yield the parts along the first axis, as Vars."""
        for index in range(len(self)):
            yield Var(cells.content(self._cell)[index], self._cell.format)

    def __bool__(self) -> bool:
        return bool(self._single())

    def __float__(self) -> float:
        return float(self._single())

    def __int__(self) -> int:
        return int(self._single())

    def _single(self) -> Any:
        data = self.read()
        if data.size != 1:
            raise ArgumentError(
                f"a Var of {data.size} elements is no single number", hint="use x.any() or x.all()"
            )
        return data.item()

    def __getitem__(self, key: Any) -> Any:
        """Return a part as a Var, or an element as a number."""
        (cell,) = cells.apply(
            "StridedSlice",
            lambda array, *arrays: take(array, key, arrays),
            [self._cell, *cells_of(key)],
        )
        single = cell.array is not None and cell.array.ndim == 0
        return cell.array.item() if single and cell.array is not None else Var._of(cell)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Change a part; Vars that were computed before keep what they have."""
        given = value if isinstance(value, Var) else Var(np.asarray(value))
        parts = cells_of(key)
        count = len(parts)
        former = self._cell
        (cell,) = cells.apply(
            "ScatterNd",
            lambda array, *arrays: put(array, key, arrays[:count], arrays[count]),
            [former, *parts, given._cell],
        )
        cell.name = former.name
        self._cell = cell

    def __repr__(self) -> str:
        """Return the data as numpy shows them; the name of a Var without data."""
        try:
            return repr(self.read())
        except NoDataError:
            return self.name or f"<Var of shape {self.shape} without data>"


def _no_device_memory() -> None:
    raise NotOfferedError(
        "a Var has no memory on a device", hint="use Session.outputs[name].map, or DeviceTensor"
    )
