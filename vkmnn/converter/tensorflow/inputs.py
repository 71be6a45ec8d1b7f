"""Inputs and constants of graphs."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.converter.tensorflow.context import Context
from vkmnn.converter.tensorflow.files import array_of
from vkmnn.converter.tensorflow.nodes import TfNode, reads
from vkmnn.converter.tensorflow.schema import Message
from vkmnn.errors import ModelError
from vkmnn.ir import Dim


@reads("Const")
def constant(op: TfNode) -> None:
    """A constant."""
    if "value" not in op.attrs:
        raise op.damaged("it has no value")
    array = array_of(op.model.file, op.attrs["value"].tensor, op.name)
    op.scope.set_constant(op.outputs[0], array)


@reads("Placeholder", "PlaceholderV2")
def placeholder(op: TfNode) -> None:
    """An input."""
    dtype = op.dtype("dtype")
    if op.model.file.signature is not None or op.scope is not op.model.scope:
        raise op.unreadable("an input that the signature does not name")
    shape = op.attrs["shape"].shape if "shape" in op.attrs else None
    declare(op.model, op.outputs[0], dtype, shape, op.type)


@reads("PlaceholderWithDefault")
def with_default(op: TfNode) -> None:
    """The default value."""
    op.need(1)
    op.alias(op.inputs[0], op.outputs[0])


def declare(model: Context, name: str, dtype: int, stated: Message | None, kind: str) -> None:
    """Declare an input of the model.

    Raises:
        ModelError: its elements are no numbers, or it has too many axes.
    """
    if not dtype:
        raise ModelError(
            f"the input '{name}' has elements that are no numbers", op=kind, node=name,
            hint="vkmnn runs networks on numbers: cut off what reads texts and examples",
        )  # fmt: skip
    shape: Sequence[Dim] | None = model.shapes.get(name)
    if shape is None and stated is not None and not stated.unknown_rank:
        shape = [dim.size if dim.size >= 0 else None for dim in stated.dim]
    scope = model.scope
    scope.types[name] = dtype
    if shape is None:
        model.inputs[name] = dtype, None
        return
    if len(shape) > 32:
        raise ModelError(f"an input of {len(shape)} axes", op=kind, node=name)
    scope.shapes[name] = tuple(dim if isinstance(dim, int) else None for dim in shape)
    named = [f"{name}_{axis}" if dim is None else dim for axis, dim in enumerate(shape)]
    model.inputs[name] = dtype, named
