"""Traits: properties of a job that kernels must support, or may use, beyond float products."""

from __future__ import annotations

from enum import Flag, auto


class Trait(Flag):
    """Properties that problems and jobs need or allow, and families support.

    A family is considered if it supports all needed traits, and if all traits it requires are
    needed or allowed.
    """

    NONE = 0
    INT8_WEIGHTS = auto()
    """The weights, or the right operand, are constants stored as bytes."""
    INT8_ACTIVATIONS = auto()
    """The left operand of a product is read as bytes."""
    INT8_DOT = auto()
    """Byte dot products can multiply the operands.

    For a convolution, weights are signed bytes and x holds bytes; for a product, both operands are
    integers that fit bytes.
    """
    SIGNED_WEIGHTS = auto()
    """The right operand of a product consists of signed bytes without a shift."""
    INT32_SUM = auto()
    """Sums are 32-bit integers."""
    FP16_MATH = auto()
    """Arithmetic may be float16; the weights, or the right operand, are constant."""
    LIMBS = auto()
    """float32 operands may be multiplied as sums of two float16 numbers, by matrices."""
    PLAIN_IO = auto()
    """The kernel reads or stores plain float32, the host's format."""
    NORM_ROWS = auto()
    """Rows of the left operand are normalised."""
    GATED = auto()
    """Of every four columns, two gate the others."""
    DEPTHWISE = auto()
    """Every channel of a convolution is a group."""
    ODD_GROUPS = auto()
    """Groups of a convolution start within blocks of four channels."""
    PHASES = auto()
    """Several convolutions at once that differ only in weights, pads and first texel."""

    @property
    def label(self) -> str:
        """Stable text for the tuner's table; empty without traits."""
        return "+".join(str(one.name).lower() for one in Trait if one and one in self)
