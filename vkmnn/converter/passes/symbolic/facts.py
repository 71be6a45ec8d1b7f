"""What is known of the tensors of a graph for all sizes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vkmnn.converter.passes.symbolic.dims import DimAlgebra
from vkmnn.ir.dtype import DType
from vkmnn.ir.graph import Array, Dim, Op

Shape = tuple[Dim, ...]

Found = tuple["DType | None", "Shape | None"]
"""What a rule says of one result: element type and shape; None where it cannot tell."""


class Facts:
    """What is known of the tensors read so far.

    values: the elements of small integer tensors of rank 0 or 1, as dimensions.
    """

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.algebra = DimAlgebra()
        self.shapes: dict[str, Shape | None] = {}
        self.dtypes: dict[str, DType | None] = {}
        self.values: dict[str, Shape] = {}
        self.constants = constants

    def shape(self, op: Op, place: int = 0) -> Shape | None:
        """Return the shape of an input of an op; None when unknown or absent."""
        return self.shapes.get(op.inputs[place]) if place < len(op.inputs) else None

    def dtype(self, op: Op, place: int = 0) -> DType | None:
        """Return the element type of an input of an op."""
        return self.dtypes.get(op.inputs[place]) if place < len(op.inputs) else None

    def value(self, op: Op, place: int) -> Shape | None:
        """Return the elements of an input; None when unknown or absent."""
        return self.values.get(op.inputs[place]) if place < len(op.inputs) else None

    def ints(self, op: Op, place: int) -> tuple[int, ...] | None:
        """Return the elements of an input when all of them are known ints."""
        value = self.value(op, place)
        if value is None:
            return None
        sizes = tuple(dim for dim in value if isinstance(dim, int))
        return sizes if len(sizes) == len(value) else None


Rule = Callable[[Op, Facts], Sequence[Found]]
"""Says what is known of an op's results from what is known of its inputs."""

ValueRule = Callable[[Op, Facts], "Shape | None"]
"""Says what is known of the elements of an op's result."""
