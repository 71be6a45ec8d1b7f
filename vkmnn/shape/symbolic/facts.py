"""Facts about a graph's tensors that hold for all sizes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from vkmnn.ir.dtype import DType
from vkmnn.ir.graph import Array, Dim, Op, TensorInfo
from vkmnn.shape.common import info_of
from vkmnn.shape.registry import MAX_RANK
from vkmnn.shape.symbolic.dims import DimAlgebra, Numbers

NamedShape = tuple[Dim, ...]

Found = tuple["DType | None", "NamedShape | None"]
"""A rule's answer for one result: element type and shape; None if unknown."""

MAX_ELEMENTS = 64
"""Longer tensors are not shapes."""


class Facts:
    """Facts about the tensors so far, which rules query by input position.

    Attributes:
        algebra: arithmetic with dimensions.
        constants: tensors that are known wholly.
    """

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.algebra = DimAlgebra()
        self.constants = constants
        self._shapes: dict[str, NamedShape | None] = {}
        self._dtypes: dict[str, DType | None] = {}
        self._values: dict[str, NamedShape] = {}

    # --- by name -------------------------------------------------------------------------------

    def add(self, name: str, dtype: DType | None, shape: NamedShape | None) -> None:
        """Record a tensor's element type and shape."""
        self._dtypes[name], self._shapes[name] = dtype, shape

    def forget(self, name: str) -> None:
        """Remove everything recorded about a tensor."""
        for table in (self._dtypes, self._shapes, self._values):
            table.pop(name, None)

    def add_values(self, name: str, values: NamedShape | None) -> None:
        """Record a tensor's elements, if it can be a shape: few integers, of rank 0 or 1."""
        dtype, shape = self.dtype_of(name), self.shape_of(name)
        if values is None or shape is None or dtype is None:
            return
        if not dtype.is_integer and dtype is not DType.BOOL:
            return
        length = shape[0] if shape else 1
        if len(shape) > 1 or len(values) > MAX_ELEMENTS:
            return
        if isinstance(length, int) and length != len(values):
            return
        low, high = _limits(dtype)
        if all(not isinstance(value, int) or low <= value <= high for value in values):
            self._values[name] = values

    def shape_of(self, name: str) -> NamedShape | None:
        """Return a tensor's shape, None when even the rank is unknown."""
        array = self.constants.get(name)
        return array.shape if array is not None else self._shapes.get(name)

    def dtype_of(self, name: str) -> DType | None:
        """Return a tensor's element type, None when it is unknown."""
        array = self.constants.get(name)
        return DType.from_numpy(array.dtype) if array is not None else self._dtypes.get(name)

    def values_of(self, name: str) -> NamedShape | None:
        """Return the elements of a small integer tensor of rank 0 or 1, None when unknown."""
        values = self._values.get(name)
        array = self.constants.get(name) if values is None else None
        found = values if array is None else _elements(array)
        if array is not None and found is not None:
            self._values[name] = found
        return found

    def known_values_of(self, name: str) -> tuple[int, ...] | None:
        """Return a tensor's elements if all of them are known ints."""
        values = self.values_of(name)
        return None if values is None else known_ints(values)

    # --- by an op's input ----------------------------------------------------------------------

    def shape(self, op: Op, place: int = 0) -> NamedShape | None:
        """Return the shape of an input; None when unknown or absent."""
        return self.shape_of(op.inputs[place]) if place < len(op.inputs) else None

    def dtype(self, op: Op, *places: int) -> DType | None:
        """Return the first known element type of these inputs (of input 0, if none is given)."""
        for place in places or (0,):
            dtype = self.dtype_of(op.inputs[place]) if place < len(op.inputs) else None
            if dtype is not None:
                return dtype
        return None

    def values(self, op: Op, place: int) -> NamedShape | None:
        """Return the elements of an input; None when unknown or absent."""
        return self.values_of(op.inputs[place]) if place < len(op.inputs) else None

    def ints(self, op: Op, place: int) -> tuple[int, ...] | None:
        """Return the elements of an input if all of them are known ints."""
        values = self.values(op, place)
        return None if values is None else known_ints(values)

    def vector(self, op: Op, place: int) -> NamedShape | None:
        """Return the elements of a vector, unknown ones as None; None when its length is unknown.

        A tensor that holds a shape determines at least the rank.
        """
        values, shape = self.values(op, place), self.shape(op, place)
        if values is not None or shape is None or len(shape) != 1:
            return values
        return unknown_dims(shape[0])

    def info(self, op: Op, place: int) -> TensorInfo | None:
        """Return the info of an input; None if it is absent or of unknown type."""
        dtype = self.dtype(op, place)
        return None if dtype is None else TensorInfo(op.inputs[place], dtype, self.shape(op, place))


class Concrete(Facts):
    """Inputs of one op with concrete sizes: the facts for a rule that acts as size computer.

    An input that is absent raises ShapeError.

    Args:
        inputs: one per input of the op, with static shapes; None where it is absent.
        contents: the contents of inputs that are known.
    """

    algebra = Numbers()

    def __init__(
        self, inputs: Sequence[TensorInfo | None], contents: Sequence[Array | None]
    ) -> None:
        self._inputs = inputs
        self._contents = contents

    def shape(self, op: Op, place: int = 0) -> NamedShape:
        return info_of(self._inputs, place).dims

    def dtype(self, op: Op, *places: int) -> DType:
        return info_of(self._inputs, places[0] if places else 0).dtype

    def values(self, op: Op, place: int) -> NamedShape | None:
        array = self._contents[place] if place < len(self._contents) else None
        return None if array is None else _elements(array)


def _elements(array: Array) -> tuple[int, ...] | None:
    """Return the elements of a tensor that can be a shape: few integers, rank 0 or 1."""
    if array.dtype.kind not in "iub" or array.ndim > 1 or array.size > MAX_ELEMENTS:
        return None
    return tuple(map(int, array.reshape(-1).tolist()))


@cache
def _limits(dtype: DType) -> tuple[int, int]:
    """Return the minimum and maximum of an integer type."""
    if dtype is DType.BOOL:
        return 0, 1
    limits = np.iinfo(dtype.value)
    return int(limits.min), int(limits.max)


def known_ints(dims: Sequence[Dim]) -> tuple[int, ...] | None:
    """Return dimensions as ints, None when one is not."""
    sizes = tuple(dim for dim in dims if isinstance(dim, int))
    return sizes if len(sizes) == len(dims) else None


def unknown_dims(rank: Dim) -> NamedShape | None:
    """Return a shape of known rank with unknown dimensions; None if the rank is unknown."""
    # The rank may be the length of an input, which a hostile model can claim to be anything.
    return (None,) * rank if isinstance(rank, int) and 0 <= rank <= MAX_RANK else None


def merge_shapes(first: NamedShape | None, second: NamedShape | None) -> NamedShape | None:
    """Fill unknown dimensions from another shape of the same tensor; the first one wins."""
    if first is None or second is None or len(first) != len(second):
        return second if first is None else first
    return tuple(b if a is None else a for a, b in zip(first, second, strict=True))
