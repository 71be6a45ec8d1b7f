"""Which tensors of an op take 16 bits per float where a session stores fp16.

See docs/decisions/fp16-storage.md for the reasons.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from vkmnn.core.fp16_range import fits_fp16
from vkmnn.core.tensor import Tensor
from vkmnn.vulkan.storage import kernel_dtype

Fp16Operands = tuple[list[bool], list[bool]]
"""For each input (output), whether its floats are wanted (made) as fp16."""


class Fp16Rule(enum.Enum):
    """What an op wants and makes where a session stores fp16.

    FULL: float32 everywhere; the op has no fp16 kernels, or its results leave that range.
    TAKES: fp16 everywhere, whatever the inputs are.
    FOLLOWS: fp16 when all computed float operands are and the constants fit, else float32.
    READS: operands as for FOLLOWS, results in float32.
    """

    FULL = "full"
    TAKES = "takes"
    FOLLOWS = "follows"
    READS = "reads"


def apply_fp16_rule(
    rule: Fp16Rule,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    *,
    wide: int = -1,
    clamped: bool = False,
) -> Fp16Operands:
    """Apply a rule to the tensors of an op.

    Args:
        rule: what the op wants.
        inputs: its operands.
        outputs: its results.
        wide: number of an input that stays float32.
        clamped: constants beyond the range of fp16 may become its largest number.
    """
    operands = [
        tensor
        for number, tensor in enumerate(inputs)
        if tensor is not None and number != wide and is_float(tensor)
    ]
    takes = rule is Fp16Rule.TAKES or (rule is not Fp16Rule.FULL and _fp16(operands, clamped))
    gives = takes and rule is not Fp16Rule.READS
    return [takes and number != wide for number in range(len(inputs))], [gives] * len(outputs)


def is_float(tensor: Tensor) -> bool:
    """Return whether the tensor's elements are floats on the device."""
    return kernel_dtype(tensor.dtype) == "f32"


def _fp16(operands: Sequence[Tensor], clamped: bool) -> bool:
    computed = [tensor for tensor in operands if tensor.value is None]
    constants = [tensor.value for tensor in operands if tensor.value is not None]
    # Where all operands are constant, nothing says that their results meet fp16.
    clamped = clamped and bool(computed)
    fit = all(fits_fp16(value, clamped=clamped) for value in constants)
    return bool(operands) and fit and all(tensor.fp16 for tensor in computed)
