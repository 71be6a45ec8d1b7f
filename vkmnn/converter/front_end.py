"""The front end interface: recognise a kind of model, read it, and convert it to a graph.

A front end is a folder next to `onnx/`, or a plug-in; docs/extending/front-end.md shows a complete
one.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from vkmnn.base.budget import Meter
from vkmnn.base.records import dataclass
from vkmnn.base.registry import Registry
from vkmnn.ir import Dim, Graph
from vkmnn.shape.folding import Evaluator

if TYPE_CHECKING:
    from vkmnn.converter.onnx.host_nodes import HostCheck

START_BYTES = 64
"""Bytes of a file passed to `recognises`."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """Budget and options of a conversion.

    Attributes:
        meter: called with nodes, weights and computed values; raises BudgetError.
        evaluate: computes an op on constant inputs.
        as_inputs: names of constants with a default value that stay inputs.
        host: tells which parts of an ONNX model an evaluator on the host can run; None to refuse
            them.
        shapes: shapes of inputs that replace the file's; sizes of other tensors that the file
            states are then worked out anew.
        told: called with the ONNX model from which the graph was converted, as ONNX's front end
            read it.
    """

    meter: Meter
    evaluate: Evaluator | None = None
    as_inputs: frozenset[str] = frozenset()
    host: HostCheck | None = None
    shapes: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    told: Callable[[Any], None] | None = None


class FrontEnd(ABC):
    """Turns one kind of model into graphs. It has no state.

    Attributes:
        optimised: its graphs have been through the passes, which need not run again.
    """

    optimised: ClassVar[bool] = False

    @abstractmethod
    def recognises(self, model: object, start: bytes) -> bool:
        """Return whether the model is of this kind.

        Args:
            model: the caller's argument: a path, bytes, or an object.
            start: the first bytes of the file or of the bytes; empty where there are none.
        """

    @abstractmethod
    def read(self, model: Any) -> Any:
        """Read the model, and whatever belongs to it, from disk.

        Runs in a separate thread while plug-ins are imported, so it must not depend on their
        registrations.

        Raises:
            ModelFileError: the file does not exist, or it is not such a model.
        """

    def unstated(self, model: Any) -> tuple[str, ...]:
        """Return the inputs whose shapes callers must give, since the model states none.

        Raises:
            ModelFileError: as `read`.
        """
        return ()

    @abstractmethod
    def convert(self, source: Any, conversion: Conversion) -> Graph:
        """Return the graph of a model that `read` returned: valid, with all constants.

        Raises:
            ModelError: the model contradicts itself.
            BudgetError: it exceeds the budget.
            UnsupportedOpError: operators that vkmnn does not know; all of them.
        """


FRONT_ENDS: Registry[str, type[FrontEnd]] = Registry("front end for")

F = TypeVar("F", bound=type[FrontEnd])


def front_end(name: str) -> Callable[[F], F]:
    """Register a class of front end under the name of its format.

    Raises:
        PluginError: there is one of that name.
    """
    return FRONT_ENDS.register(name)  # type: ignore[return-value]


def find_front_end(model: object) -> FrontEnd | None:
    """Return the front end that recognises the model, or None."""
    start = _start(model)
    for name in FRONT_ENDS:
        candidate = FRONT_ENDS[name]()
        if candidate.recognises(model, start):
            return candidate
    return None


def _start(model: object) -> bytes:
    if isinstance(model, bytes):
        return model[:START_BYTES]
    if isinstance(model, str | os.PathLike):
        path = Path(os.fspath(model))
        try:
            if path.is_file():  # not a pipe, which would be read only once
                with path.open("rb") as file:
                    return file.read(START_BYTES)
        except (OSError, ValueError):
            pass  # its front end reports the error
    return b""
