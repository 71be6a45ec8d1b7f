"""The jobs: a problem together with the tensors that it reads and writes."""

from __future__ import annotations

from dataclasses import field

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.vulkan.gemm.epilogue import Epilogue
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import Weights


@dataclass(slots=True)  # not frozen, which takes twice as long: plans make hundreds
class ConvJob:
    """A convolution to record.

    `x`, `y` and the residual lie in NC4HW4. With a `Requantize` ending, all tensors hold quantised
    values, with a `Dynamic` one x does. With `plain_x` or `plain_y`, that tensor is plain float32;
    x then has at most four channels. `pooled`: of x, the maxima of 3 x 3 texels are read, at the
    problem's strides and pads, and the window is one tap.
    """

    problem: ConvProblem
    weights: Weights
    x: Tensor
    y: Tensor
    epilogue: Epilogue = field(default_factory=Epilogue)
    plain_x: bool = False
    plain_y: bool = False
    pooled: bool = False

    @property
    def plain_io(self) -> bool:
        """Whether it reads or stores what the host has."""
        return self.plain_x or self.plain_y

    @property
    def int8_weights(self) -> bool:
        """Whether the weights are bytes."""
        return self.weights.shift is not None

    @property
    def needs(self) -> Trait:
        """What kernels must support."""
        needs = Trait.INT8_WEIGHTS if self.int8_weights else Trait.NONE
        return needs | Trait.PLAIN_IO if self.plain_io else needs

    @property
    def allows(self) -> Trait:
        """What kernels may make use of."""
        allows = Trait.NONE if self.weights.tensor.value is None else Trait.FP16_MATH
        dots = self.weights.shift == 0 and self.x.codes is not None
        return allows | Trait.INT8_DOT if dots else allows


@dataclass(frozen=True, slots=True)
class RowNorms:
    """What a kernel does to rows of the left operand: `centered` ones lose their mean first.

    `gain` and `shift` are constants, one number for each column of the rows, and `rows` is where
    normalised rows are a result as well: these three are for `gemm/normed.py` alone.
    """

    epsilon: float
    centered: bool = False
    gain: Tensor | None = None
    shift: Tensor | None = None
    rows: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Dots:
    """Operands whose quantised values are signed bytes, and what is added to those of each.

    `point`: one number that makes the left operand's values numbers from 0 to 255; `left` is not
    known then.
    """

    left: int
    right: int
    point: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Int8Operands:
    """How bytes stand for the operands of a product: each number is a byte plus a shift.

    Args:
        weights: the shift of the right operand, a constant that kernels read as bytes; None where
            they read floats.
        activations: the shift of the left operand, where kernels are to read it as bytes.
        dots: both operands for dot products of bytes; None where one of them may not fit.
    """

    weights: int | None = None
    activations: int | None = None
    dots: Dots | None = None

    @property
    def needs(self) -> Trait:
        """What kernels must support."""
        needs = Trait.NONE if self.weights is None else Trait.INT8_WEIGHTS
        return needs if self.activations is None else needs | Trait.INT8_ACTIVATIONS

    @property
    def allows(self) -> Trait:
        """What kernels may make use of."""
        allows = Trait.SIGNED_WEIGHTS if self.weights == 0 else Trait.NONE
        return allows if self.dots is None else allows | Trait.INT8_DOT


NO_INT8 = Int8Operands()


@dataclass(frozen=True, slots=True)
class MatMulJob:
    """A matrix product to record: y = epilogue(alpha · (a @ b)).

    `transposed_a`, `transposed_b`: the last two axes of that operand are swapped. `norms` and
    `gated` (of every four columns, two gate the others) are for kernels that support them.
    `plain_y`: y is float32 where the operands are float16. With a `Requantize` ending, all tensors
    hold quantised values; with a `Dynamic` one, `a` does, or where kernels read bytes, the numbers
    that become such values.
    """

    problem: MatMulProblem
    a: Tensor
    b: Tensor
    y: Tensor
    transposed_a: bool = False
    transposed_b: bool = False
    epilogue: Epilogue = field(default_factory=Epilogue)
    alpha: float = 1.0
    int8: Int8Operands = NO_INT8
    norms: RowNorms | None = None
    gated: bool = False
    plain_y: bool = False

    @property
    def int8_weights(self) -> bool:
        """Whether the right operand is read as bytes."""
        return self.int8.weights is not None

    @property
    def needs(self) -> Trait:
        """What kernels must support."""
        needs = Trait.NONE if self.int8 is NO_INT8 else self.int8.needs
        if self.plain_y:
            needs |= Trait.PLAIN_IO
        if self.norms:
            needs |= Trait.NORM_ROWS
        return needs | Trait.GATED if self.gated else needs

    @property
    def allows(self) -> Trait:
        """What kernels may make use of."""
        allows = Trait.FP16_MATH if self.problem.constant else Trait.NONE
        return allows if self.int8 is NO_INT8 else allows | self.int8.allows
