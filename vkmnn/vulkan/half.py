"""Which tensors of an op take 16 bits per float where a session stores halves.

See docs/decisions/half-storage.md for the reasons.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from vkmnn.core.tensor import Tensor
from vkmnn.vulkan.storage import fits_half, kernel_dtype

Halves = tuple[list[bool], list[bool]]
"""For each input and each output, whether its floats are wanted (made) as halves."""


class HalfRule(enum.Enum):
    """What an op wants and makes where a session stores halves.

    FULL: float32 everywhere; the op has no kernels for halves, or its results leave their range.
    TAKES: halves everywhere, whatever the inputs are.
    FOLLOWS: halves when all computed float operands are and the constants fit, else float32.
    READS: its operands as FOLLOWS, and results in float32.
    """

    FULL = "full"
    TAKES = "takes"
    FOLLOWS = "follows"
    READS = "reads"


def halves(
    rule: HalfRule, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], *, wide: int = -1
) -> Halves:
    """Apply a rule to the tensors of an op; `wide` is the number of an input that stays float32."""
    operands = [tensor for number, tensor in enumerate(inputs) if number != wide]
    takes = rule is HalfRule.TAKES or (rule is not HalfRule.FULL and _all_half(operands))
    gives = takes and rule is not HalfRule.READS
    return [takes and number != wide for number in range(len(inputs))], [gives] * len(outputs)


def is_float(tensor: Tensor) -> bool:
    """Return whether the tensor's elements are floats on the device."""
    return kernel_dtype(tensor.dtype) == "f32"


def _all_half(operands: Sequence[Tensor | None]) -> bool:
    floats = [tensor for tensor in operands if tensor is not None and is_float(tensor)]
    return bool(floats) and all(
        tensor.half if tensor.value is None else fits_half(tensor.value) for tensor in floats
    )
