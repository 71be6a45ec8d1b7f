"""Jobs: problems together with the tensors that they read and write."""

from __future__ import annotations

from dataclasses import field

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.vulkan.gemm.epilogue import Epilogue
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import Weights


@dataclass(frozen=True, slots=True)
class Spread:
    """Results whose channels become squares of pixels, `side` wide, as by DepthToSpace.

    `depth_first`: the channels of a pixel of the square are adjacent (mode DCR).
    """

    side: int
    depth_first: bool = False


@dataclass(slots=True)  # not frozen, which would take twice as long: plans create hundreds
class ConvJob:
    """A convolution to record.

    `x`, `y` and the residual are in NC4HW4. With a `Requantize` ending, all tensors hold quantised
    values; with a `Dynamic` one, only x does. With `plain_x` or `plain_y`, that tensor is plain
    float32; x then has at most four channels. `pooled`: kernels read the maxima of 3 x 3 texels of
    x, with the problem's strides and pads, and the window is one tap. `spread`: of a plain y.
    """

    problem: ConvProblem
    weights: Weights
    x: Tensor
    y: Tensor
    epilogue: Epilogue = field(default_factory=Epilogue)
    plain_x: bool = False
    plain_y: bool = False
    pooled: bool = False
    spread: Spread | None = None

    @property
    def plain_io(self) -> bool:
        """Whether it reads or stores tensors in the host's format."""
        return self.plain_x or self.plain_y

    @property
    def int8_weights(self) -> bool:
        """Whether the weights are bytes."""
        return self.weights.shift is not None

    @property
    def needs(self) -> Trait:
        """Traits that kernels must support."""
        needs = Trait.INT8_WEIGHTS if self.int8_weights else Trait.NONE
        return needs | Trait.PLAIN_IO if self.plain_io else needs

    @property
    def allows(self) -> Trait:
        """Traits that kernels may use."""
        allows = Trait.NONE if self.weights.tensor.value is None else Trait.FP16_MATH
        dots = self.weights.shift == 0 and self.x.codes is not None
        return allows | Trait.INT8_DOT if dots else allows


@dataclass(frozen=True, slots=True)
class RowNorms:
    """Normalisation of the left operand's rows; `centered` subtracts the mean first.

    `gain` and `shift` are constants, one number per column, and `rows` receives the normalised rows
    if they are also a result: these three are only for `gemm/normed.py`.
    """

    epsilon: float
    centered: bool = False
    gain: Tensor | None = None
    shift: Tensor | None = None
    rows: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Dots:
    """Operands whose quantised values are signed bytes, with the shift of each.

    `point`: one number that shifts the left operand's values to 0 to 255, if `left` is unknown.
    """

    left: int
    right: int
    point: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Int8Operands:
    """Byte representation of a product's operands: each value is a byte plus a shift.

    Args:
        weights: the shift of the constant right operand, which kernels read as bytes; None if they
            read floats.
        activations: the shift of the left operand, if kernels may read it as bytes.
        dots: both operands for byte dot products; None if one of them may not fit.
    """

    weights: int | None = None
    activations: int | None = None
    dots: Dots | None = None

    @property
    def needs(self) -> Trait:
        """Traits that kernels must support."""
        needs = Trait.NONE if self.weights is None else Trait.INT8_WEIGHTS
        return needs if self.activations is None else needs | Trait.INT8_ACTIVATIONS

    @property
    def allows(self) -> Trait:
        """Traits that kernels may use."""
        allows = Trait.SIGNED_WEIGHTS if self.weights == 0 else Trait.NONE
        return allows if self.dots is None else allows | Trait.INT8_DOT


NO_INT8 = Int8Operands()


@dataclass(frozen=True, slots=True)
class MatMulJob:
    """A matrix product to record: y = epilogue(alpha · (a @ b)).

    `transposed_a`, `transposed_b`: the last two axes of that operand are swapped. `norms` and
    `gated` (of every four columns, two gate the others) are for kernels that support them.
    `plain_y`: y is float32 while the operands are float16. With a `Requantize` ending, all tensors
    hold quantised values; with a `Dynamic` one, `a` does or, if kernels read bytes, the values
    before quantisation.
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
        """Traits that kernels must support."""
        needs = Trait.NONE if self.int8 is NO_INT8 else self.int8.needs
        if self.plain_y:
            needs |= Trait.PLAIN_IO
        if self.norms:
            needs |= Trait.NORM_ROWS
        return needs | Trait.GATED if self.gated else needs

    @property
    def allows(self) -> Trait:
        """Traits that kernels may use."""
        allows = Trait.FP16_MATH if self.problem.constant else Trait.NONE
        return allows if self.int8 is NO_INT8 else allows | self.int8.allows
