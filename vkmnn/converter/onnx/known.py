"""Facts about tensors of the graph around a Loop, a Scan or an If."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vkmnn.ir import Array, TensorInfo


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about tensors of the graph around a node.

    Attributes:
        value: returns a tensor's content where it follows from constants and sizes.
        info: returns the known shape and type of a tensor.
        constant: adds a constant and returns its name.
        opsets: the opsets of the node.
        sequence: returns whether a name is a sequence whose members are known.
    """

    value: Callable[[str], Array | None]
    info: Callable[[str], TensorInfo | None]
    constant: Callable[[Array], str]
    opsets: Mapping[str, int]
    sequence: Callable[[str], bool]
