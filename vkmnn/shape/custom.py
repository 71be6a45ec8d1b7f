"""Shapes of Custom ops, by their types."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from vkmnn.base.registry import Registry
from vkmnn.errors import ShapeError
from vkmnn.ir import Op
from vkmnn.ir.custom import CUSTOM, CUSTOM_FLOPS, CustomAttrs
from vkmnn.ir.op_type import Flops, per_output
from vkmnn.shape.common import Infos, Outputs, Values
from vkmnn.shape.registry import SizeComputer, size_computer

CUSTOM_SHAPES: Registry[str, SizeComputer] = Registry("shape computer of Custom op")


def custom_op(type_: str, *, flops: int | Flops = 1) -> Callable[[SizeComputer], SizeComputer]:
    """Register a type of Custom op; decorates its shape computer, as `size_computer` does.

    Args:
        type_: the type of these ops: "acme.Gate".
        flops: floating-point operations for each element of the first output, or a function of
            attributes, input shapes and the shape of the first output.

    Raises:
        PluginError: there is one of that type.
    """

    def add(computer: SizeComputer) -> SizeComputer:
        CUSTOM_SHAPES.register(type_)(computer)
        CUSTOM_FLOPS.register(type_)(per_output(flops) if isinstance(flops, int) else flops)
        return computer

    return add


@size_computer(CUSTOM)
def _custom(op: Op[CustomAttrs], inputs: Infos, values: Values) -> Outputs:
    computer = CUSTOM_SHAPES.get(op.attrs.type)
    if computer is None:
        near = get_close_matches(op.attrs.type, CUSTOM_SHAPES, 1)
        raise ShapeError(
            f"there is no Custom op of type '{op.attrs.type}'",
            hint=f"did you mean {near[0]}?" if near else "load the plug-in that registers it",
        )
    return computer(op, inputs, values)
