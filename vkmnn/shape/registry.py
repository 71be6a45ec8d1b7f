"""The registry of shape computers, and the one entry to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from vkmnn.base.registry import Registry
from vkmnn.errors import ShapeError, plural, unexpected_error
from vkmnn.ir import Array, Op, TensorInfo, check_attrs
from vkmnn.shape.common import Infos, Outputs, Values

SizeComputer = Callable[[Op[Any], Infos, Values], Outputs]

COMPUTERS: Registry[str, SizeComputer] = Registry("shape computer of")

MAX_RANK = 32
"""Axes that a tensor may have; numpy's own limit was this until version 2."""

MAX_ELEMENTS = 1 << 48
"""No serious network has a tensor of as many; sizes in bytes stay 64-bit numbers."""

_TOO_LARGE = f"tensors have at most {MAX_ELEMENTS} elements"
_FEWER_AXES = f"tensors have at most {MAX_RANK} axes"
_CHECK_INPUTS = "check the shapes given for the model's inputs, and the model itself at this node"


def size_computer(op_type: str) -> Callable[[SizeComputer], SizeComputer]:
    """Register a function as the shape computer of `op_type`.

    The function gets the op, the known infos of its inputs (static shapes; None = absent) and the
    known contents of inputs, and returns (element type, shape) of every output. It may return more
    outputs than the op names. It raises ShapeError without op and node, which `compute_shapes`
    fills in.

    Raises:
        PluginError: `op_type` has a computer already.
    """
    return COMPUTERS.register(op_type)


def compute_shapes(
    op: Op,
    inputs: Sequence[TensorInfo | None],
    values: Sequence[Array | None],
    *,
    max_elements: float = MAX_ELEMENTS,
) -> list[TensorInfo]:
    """Return names, element types and static shapes of the outputs of `op`, one per `op.outputs`.

    Args:
        op: the operator; outputs named "" are computed as well, and keep the name "".
        inputs: one per `op.inputs`, with static shapes; None where the input is absent.
        values: the contents of inputs that are known, else None; at least those of `content` in the
            op's declaration.
        max_elements: maximum elements of an output; larger for probes, which never become tensors.

    Raises:
        ShapeError: the inputs do not fit together, a needed content is unknown, or the op type has
            no shape computer (Raster: its creator knows its output).
    """
    computer = COMPUTERS.get(op.type)
    if computer is None:
        raise ShapeError(
            f"op type '{op.type}' has no shape computer",
            op=op.type,
            node=op.name,
            hint="register one with @size_computer, or give the output's info yourself",
        )
    check_attrs(op)
    try:
        outputs = computer(op, inputs, values)
    except ShapeError as error:
        raise _located(op, inputs, error.message, error.hint) from error
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        # Attributes of a hostile model may be nonsense in ways that no computer checks for.
        raise _located(op, inputs, f"shape computation failed: {error}", None) from error
    except Exception as error:
        raise unexpected_error(
            error, "shape computation", kind=ShapeError, op=op.type, node=op.name
        ) from error
    if len(outputs) < len(op.outputs):
        raise _located(
            op,
            inputs,
            f"the node names {plural(len(op.outputs), 'output')}, but the op has {len(outputs)}",
            None,
        )
    infos = []
    for name, (dtype, shape) in zip(op.outputs, outputs, strict=False):
        if len(shape) > MAX_RANK:
            raise _located(op, inputs, f"the output would have {len(shape)} axes", _FEWER_AXES)
        if shape and min(shape) < 0:
            raise _located(op, inputs, f"the output would be {dtype.value}{list(shape)}", None)
        if is_too_large(shape, max_elements):
            raise _located(
                op, inputs, f"the output would be {dtype.value}{list(shape)}", _TOO_LARGE
            )
        infos.append(TensorInfo(name, dtype, tuple(shape)))
    return infos


def is_too_large(shape: Sequence[int], max_elements: float = MAX_ELEMENTS) -> bool:
    """Return whether a tensor has too many elements, even without its empty axes.

    Strides and sizes of empty tensors are 64-bit numbers too.
    """
    return prod(shape) > max_elements or (0 in shape and prod(filter(None, shape)) > max_elements)


def _located(op: Op, inputs: Infos, message: str, hint: str | None) -> ShapeError:
    given = ", ".join(
        "absent" if info is None else f"{info.dtype.value}{list(info.shape or ())}"
        for info in inputs
    )
    where = f" (from {op.source})" if op.source else ""
    return ShapeError(
        f"{message}{where}; inputs: {given or 'none'}",
        op=op.type,
        node=op.name,
        hint=hint or _CHECK_INPUTS,
    )
