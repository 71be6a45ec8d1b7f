"""Declarations of ops: one declaration holds all properties of an op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from math import prod
from typing import Any, TypeVar

from vkmnn.base.records import dataclass
from vkmnn.base.registry import Registry
from vkmnn.errors import PluginError

Shape = tuple[int, ...]
Flops = Callable[[Any, Sequence[Shape | None], Shape], int]
"""Counts an op's floating-point operations from its attributes, the shapes of its inputs (None:
absent) and that of its first output; a multiply-add counts as two."""


def per_output(factor: int) -> Flops:
    """Return a function that counts `factor` operations per element of the first output."""
    return lambda attrs, inputs, output: factor * prod(output)


USUAL_FLOPS = per_output(1)
"""Default operation count of ops without a declaration."""

MANY = 2**31 - 1
"""Any number of inputs."""

Inputs = Sequence[Shape | None]
Outputs = Sequence[Shape]
Count = Callable[[Any, Inputs, Outputs], int]
"""Counts from an op's attributes and the shapes of its inputs (None: absent) and outputs."""


def numbers_of(*, inputs: int = 0, outputs: int = 0) -> Count:
    """Return a function that counts `factor` operations per element of the inputs and outputs."""

    def count(attrs: Any, shapes: Inputs, results: Outputs) -> int:
        present = sum(prod(shape) for shape in shapes if shape is not None)
        return inputs * present + outputs * sum(map(prod, results))

    return count


@dataclass(frozen=True, slots=True)
class HostWork:
    """Work of an op on the numpy backend: estimates, rounded up.

    Attributes:
        numbers: counts the float64 numbers or indices held in addition to inputs and results.
        steps: counts the calls of numpy.
        flop_s: seconds per operation.
        blas: whether floating-point operations run in the BLAS library.
        sorts: whether the elements of the first input are sorted.
        view: whether results are views, without memory or time.
    """

    numbers: Count = field(default=numbers_of(outputs=1), repr=False)
    steps: Count = field(default=lambda attrs, inputs, outputs: 1, repr=False)
    flop_s: float = 3e-9
    blas: bool = False
    sorts: bool = False
    view: bool = False


USUAL_WORK = HostWork()


@dataclass(frozen=True, slots=True)
class OpAttrs:
    """Base class of attributes; also the attributes of ops without any."""

    def kernel_of(self, op_type: str) -> str:
        """Return the registry key of kernels for an op of this type."""
        return op_type


@dataclass(frozen=True, slots=True)
class OpType:
    """Declared properties of an op type; the fields are arguments of `op_type`."""

    attrs: type[OpAttrs]
    min_inputs: int
    max_inputs: int
    content: tuple[int, ...] = ()
    shape_only: bool = False
    flops: Flops = field(default=USUAL_FLOPS, repr=False)
    host: HostWork = field(default=USUAL_WORK, repr=False)


OP_TYPES: Registry[str, OpType] = Registry("op type")

_A = TypeVar("_A", bound=OpAttrs)


def op_type(
    *names: str,
    inputs: int | tuple[int, int] = 1,
    content: tuple[int, ...] = (),
    shape_only: bool = False,
    flops: int | Flops = USUAL_FLOPS,
    host: HostWork = USUAL_WORK,
) -> Callable[[type[_A]], type[_A]]:
    """Add an op to the vocabulary; decorates the class of its attributes.

    Args:
        names: type names of the ops in CamelCase: `op.type`. Several names share all other
            properties.
        inputs: number of inputs, or minimum and maximum.
        content: inputs whose *values* must be known to compute the output's shape, or to plan it.
        shape_only: the result depends only on the shape of the input, never on its values.
        flops: floating-point operations for each element of the first output (0: it only moves
            data), or a function that counts them all.
        host: memory and time on the numpy backend in addition to inputs and results.

    Raises:
        PluginError: a name is already in use, the class is not a frozen dataclass derived from
            OpAttrs, or the numbers of inputs are not valid.
    """
    low, high = (inputs, inputs) if isinstance(inputs, int) else inputs
    if not 0 <= low <= high or not all(0 <= index < high for index in content):
        raise PluginError(
            f"inputs {inputs} with content {content} make no sense",
            op=", ".join(names),
            hint="inputs=2, or inputs=(1, 3) with optional ones; content counts from 0",
        )
    count = per_output(flops) if isinstance(flops, int) else flops

    def add(attrs: type[_A]) -> type[_A]:
        # Of the class itself, not inherited: the decorators may be in the wrong order.
        params = vars(attrs).get("__dataclass_params__")
        if OpAttrs not in attrs.__mro__ or params is None or not params.frozen:
            raise PluginError(
                f"{attrs.__name__} cannot hold attributes",
                op=", ".join(names),
                hint="derive it from OpAttrs, with @dataclass(frozen=True, slots=True) below this",
            )
        OP_TYPES.register(*names)(OpType(attrs, low, high, content, shape_only, count, host))
        return attrs

    return add


def per_input(factor: int) -> Flops:
    """Return a counter of `factor` operations per element of the first input."""
    return lambda attrs, inputs, output: factor * prod(inputs[0] or ())
