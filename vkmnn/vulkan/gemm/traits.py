"""Traits: what a job needs of a kernel, or allows it, beyond a product of floats."""

from __future__ import annotations

from enum import Flag, auto


class Trait(Flag):
    """Features that cross kernels: problems and jobs need or allow them, families support them.

    A family is asked for kernels if it supports all that is needed, and all that it requires is
    needed or allowed.
    """

    NONE = 0
    INT8_WEIGHTS = auto()
    """The weights, or the right operand, are constants stored as bytes."""
    INT8_ACTIVATIONS = auto()
    """The left operand of a product is read as bytes."""
    INT8_DOT = auto()
    """Dot products of bytes can multiply the operands.

    Of a convolution, weights are signed bytes and x holds bytes; of a product, both operands are
    whole numbers that bytes hold."""
    SIGNED_WEIGHTS = auto()
    """The bytes of a product's right operand are its numbers, without a shift."""
    INT32_SUM = auto()
    """Sums are whole numbers of 32 bits."""
    FP16_MATH = auto()
    """The arithmetic may be float16; the weights, or the right operand, are constant."""
    PLAIN_IO = auto()
    """The kernel reads or stores plain float32, as the host does."""
    NORM_ROWS = auto()
    """Rows of the left operand are normalised."""
    GATED = auto()
    """Of every four columns, two gate the others."""
    DEPTHWISE = auto()
    """Every channel of a convolution is a group."""
    ODD_GROUPS = auto()
    """Groups of a convolution start inside blocks of four channels."""
    PHASES = auto()
    """Several convolutions at once that differ only in weights, pads and first texel."""

    @property
    def label(self) -> str:
        """Stable text for the tuner's table; empty without traits."""
        return "+".join(str(one.name).lower() for one in Trait if one and one in self)
