"""Which tensors of an op are narrow if a session stores floats narrower than float32.

The reasons are in docs/decisions/fp16-storage.md.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from vkmnn.base.elements import FloatElement
from vkmnn.core.float_range import fits
from vkmnn.core.tensor import Tensor
from vkmnn.vulkan.storage import kernel_dtype

FloatOperands = tuple[list[bool], list[bool]]
"""For each input (output), whether its floats should be narrow."""


class FloatRule(enum.Enum):
    """Storage of an op's floats in a session with narrower floats than float32.

    FULL: float32 everywhere; the op has no narrow kernels, or its results exceed that range. TAKES:
    narrow everywhere, whatever the inputs are. FOLLOWS: narrow if all computed float operands are
    and the constants fit, else float32. READS: operands as for FOLLOWS, results in float32.
    """

    FULL = "full"
    TAKES = "takes"
    FOLLOWS = "follows"
    READS = "reads"


def apply_float_rule(
    rule: FloatRule,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    element: FloatElement,
    *,
    wide: int = -1,
    clamped: bool = False,
) -> FloatOperands:
    """Apply a rule to the tensors of an op.

    Args:
        rule: the op's rule.
        inputs: its operands.
        outputs: its results.
        element: how the session stores floats.
        wide: number of an input that stays float32.
        clamped: constants beyond the range may become its largest number.
    """
    operands = [
        tensor
        for number, tensor in enumerate(inputs)
        if tensor is not None and number != wide and is_float(tensor)
    ]
    takes = rule is FloatRule.TAKES or (
        rule is not FloatRule.FULL and _follows(operands, element, clamped)
    )
    gives = takes and rule is not FloatRule.READS
    return [takes and number != wide for number in range(len(inputs))], [gives] * len(outputs)


def is_float(tensor: Tensor) -> bool:
    """Return whether the tensor's elements are floats on the device."""
    return kernel_dtype(tensor.dtype) == "f32"


def _follows(operands: Sequence[Tensor], element: FloatElement, clamped: bool) -> bool:
    computed = [tensor for tensor in operands if tensor.value is None]
    constants = [tensor.value for tensor in operands if tensor.value is not None]
    # If all operands are constant, nothing shows that their results meet narrow ones.
    clamped = clamped and bool(computed)
    fit = all(fits(value, element, clamped=clamped) for value in constants)
    return bool(operands) and fit and all(tensor.element != "f32" for tensor in computed)
