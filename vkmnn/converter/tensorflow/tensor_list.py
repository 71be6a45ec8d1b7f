"""A list of tensors, as nodes are read."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class TensorList:
    """A list.

    Attributes:
        dtype: element type of its tensors.
        length: the tensor with the number of its elements; "" where that is `tensor`'s.
        item: sizes of its elements as far as they are known; None for an unknown rank.
        tensor: its elements, stacked; "" before there are any.
        base: zeros that were made for its elements.
        writes_rows: whether it is one that a loop stacks.
        row: the row that it got in such a loop.
    """

    dtype: int
    length: str
    item: tuple[int | None, ...] | None = None
    tensor: str = ""
    base: str = ""
    writes_rows: bool = False
    row: str = ""

    @property
    def is_sized(self) -> bool:
        """Whether a tensor can be made for it."""
        return bool(self.tensor) or (self.item is not None and None not in self.item)

    def stacked(self, name: str, whole: bool = False) -> TensorList:
        """Return it with a tensor of its elements."""
        length = self.length if whole else ""
        return replace(self, tensor=name, writes_rows=False, row="", length=length)

    def scanned(self) -> TensorList:
        """Return it as a loop stacks it."""
        return replace(self, writes_rows=True)
