"""The jobs: a problem together with the tensors that it reads and writes."""

from __future__ import annotations

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation
from vkmnn.ir.ops import NO_ACTIVATION
from vkmnn.records import dataclass
from vkmnn.vulkan.gemm.dynamic import Dynamic
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
from vkmnn.vulkan.gemm.requantize import Requantize
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import Weights


@dataclass(slots=True)  # not frozen, which takes twice as long: plans make hundreds
class ConvJob:
    """A convolution to record.

    `x`, `residual` and `y` lie in NC4HW4, the residual in y's shape; `bias` is plain, one element
    per output channel. `join`, of RESIDUAL_KINDS, says how the residual is taken in. With
    `requantize`, all tensors hold codes, and it stands for the activation. With `plain_x` or
    `plain_y`, that tensor is plain float32; x then has at most four channels. `pooled`: of x, the
    maxima of 3 x 3 texels are taken, at the problem's strides and pads, and the window is one tap.
    With `dynamic`, x holds codes that it made, and `bias` is its `ends`.
    """

    problem: ConvProblem
    weights: Weights
    x: Tensor
    y: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None
    activation: Activation = NO_ACTIVATION
    join: str = "ADD_BEFORE"
    requantize: Requantize | None = None
    plain_x: bool = False
    plain_y: bool = False
    pooled: bool = False
    dynamic: Dynamic | None = None

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
class Bytes:
    """Operands whose codes are signed bytes, and what is added to those of each.

    `point`: one number that makes the left operand's codes numbers from 0 to 255; `left` is not
    known then.
    """

    left: int
    right: int
    point: Tensor | None = None


@dataclass(frozen=True, slots=True)
class MatMulJob:
    """A matrix product to record: y = act(alpha · (a @ b) + bias + residual).

    `transposed_a`, `transposed_b`: the last two axes of that operand are swapped. With
    `requantize`, all tensors hold codes, and `bias` is what it packed. `shift`: `b` is a
    constant that kernels read as bytes, and add this to. `norms` and `gated` (of every four
    columns, two gate the others) are for kernels that support them. `plain_y`: y is float32 where
    the operands are float16. `bytes`: both operands are codes that bytes hold.
    `left`: kernels are to read `a` as bytes, and add this to them. With `dynamic`, `a` is codes
    that it made, or where kernels read bytes, numbers of which it makes them; `bias` is its `ends`.
    """

    problem: MatMulProblem
    a: Tensor
    b: Tensor
    y: Tensor
    transposed_a: bool = False
    transposed_b: bool = False
    bias: Tensor | None = None
    residual: Tensor | None = None
    alpha: float = 1.0
    activation: Activation = NO_ACTIVATION
    join: str = "ADD_BEFORE"
    requantize: Requantize | None = None
    shift: int | None = None
    norms: RowNorms | None = None
    gated: bool = False
    plain_y: bool = False
    bytes: Bytes | None = None
    left: int | None = None
    dynamic: Dynamic | None = None

    @property
    def int8_weights(self) -> bool:
        """Whether the right operand is read as bytes."""
        return self.shift is not None

    @property
    def needs(self) -> Trait:
        """What kernels must support."""
        needs = Trait.INT8_WEIGHTS if self.int8_weights else Trait.NONE
        if self.left is not None:
            needs |= Trait.INT8_ACTIVATIONS
        if self.plain_y:
            needs |= Trait.PLAIN_IO
        if self.norms:
            needs |= Trait.NORM_ROWS
        return needs | Trait.GATED if self.gated else needs

    @property
    def allows(self) -> Trait:
        """What kernels may make use of."""
        allows = Trait.FP16_MATH if self.problem.constant else Trait.NONE
        if self.shift == 0:
            allows |= Trait.SIGNED_WEIGHTS
        return allows | Trait.INT8_DOT if self.bytes is not None else allows
