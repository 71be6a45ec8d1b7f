"""Operators of a format and their readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from vkmnn.base.budget import Meter
from vkmnn.base.registry import Registry
from vkmnn.converter.nodes.source_op import SourceOp, UnreadableError
from vkmnn.errors import UnsupportedNode, UnsupportedOpError, VkmnnError, unexpected_error

O = TypeVar("O", bound=SourceOp)  # noqa: E741 - an operator
F = TypeVar("F")

OperatorList = Callable[[], Mapping[str, bool]]
FORMATS: Registry[str, OperatorList] = Registry("list of operators of")
"""By format, as `vkmnn ops --format` calls it: every operator that files may have, and whether it
is read."""


def lists_operators(format: str) -> Callable[[OperatorList], OperatorList]:
    """Register the function that lists a format's operators."""
    return FORMATS.register(format)


class Readers(Generic[O]):
    """Functions that write nodes of ONNX for the operators of a format.

    Args:
        format: name of the format.
    """

    def __init__(self, format: str) -> None:
        self.format = format
        self._functions: Registry[str, Callable[[O], None]] = Registry(
            f"reader of {format}'s operator"
        )

    def reads(self, *types: str) -> Callable[[Callable[[O], None]], Callable[[O], None]]:
        """Register a function that reads operators of these types.

        Raises:
            PluginError: one of them is read already.
        """
        return self._functions.register(*types)

    def summary(self, kind: str) -> str:
        """Return the first line of the documentation of a type's reader; "" if there is none."""
        function = self._functions.get(kind)
        return ((function.__doc__ if function else "") or "").strip().partition("\n")[0]

    def remove(self, kind: str) -> None:
        """Forget the function that reads operators of a type.

        Raises:
            PluginError: there is none.
        """
        self._functions.remove(kind)

    def __contains__(self, kind: object) -> bool:
        """Return whether operators of a type are read."""
        return kind in self._functions

    def __iter__(self) -> Iterator[str]:
        """Iterate over the types that are read, sorted."""
        return iter(self._functions)

    def read(self, op: O) -> None:
        """Write an operator's nodes.

        Raises:
            UnreadableError: operators of its type, or this use of one, are not supported.
            ModelError: the operator contradicts itself.
        """
        function = self._functions.get(op.type)
        if function is None:
            raise op.unreadable("vkmnn does not read it")
        function(op)


class Reading:
    """Progress of reading a file: operators, and refusals.

    Args:
        format: name of the format.
        meter: counts operators.
    """

    def __init__(self, format: str, meter: Meter) -> None:
        self.format, self.meter = format, meter
        self.unsupported: list[UnsupportedNode] = []
        self._count = 0

    def count(self, operators: int) -> None:
        """Count operators about to be read.

        Raises:
            BudgetError: the file has more than the budget allows.
        """
        self._count += operators
        self.meter.check_nodes(self._count)

    @contextmanager
    def operator(self, op: SourceOp) -> Iterator[None]:
        """Read an operator: refusals are recorded, and unexpected errors are converted.

        Raises:
            VkmnnError: as the reader, but for UnreadableError.
        """
        try:
            yield
        except UnreadableError as error:
            self.refuse(op, error.message)
        except VkmnnError:
            raise
        except Exception as error:
            raise unexpected_error(error, "reading it", op=op.type, node=op.name) from error

    def refuse(self, op: SourceOp, reason: str) -> None:
        """Record an unsupported operator."""
        self.unsupported.append(UnsupportedNode(op.type, self.format, 1, op.name, reason))

    def check(self) -> None:
        """Raise the collected refusals.

        Raises:
            UnsupportedOpError: there are refusals; all of them are listed.
        """
        if self.unsupported:
            raise UnsupportedOpError(self.unsupported)
