"""The interface of a kernel family: it ranks itself, packs its operands, and records itself.

A family is a frozen dataclass; its instances are the kernels that the rules rank, the tuner
measures and the shader tests iterate over, identified by `repr`. Each is defined in a module of
`families/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from inspect import isabstract
from operator import attrgetter
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

from vkmnn.base.elements import FLOATS
from vkmnn.base.records import dataclass
from vkmnn.base.registry import Registry
from vkmnn.errors import PluginError, page
from vkmnn.ir import Array
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.operands import PANEL, Operand, left_operand, right_operand
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import pack_panels, packed_elements

K = TypeVar("K", covariant=True)
P = TypeVar("P", contravariant=True)
J = TypeVar("J", contravariant=True)
F = TypeVar("F", bound="Kernel[Any, Any]")

# Kernels per family that are measured before the rest.
OF_A_FAMILY = 3


@cache
def kernel_of(family: type[F], *fields: Any) -> F:
    """Return the kernel with these values, cached, since rankings need many."""
    return family(*fields)


class Place(IntEnum):
    """Tier of a kernel among those for a problem; the first tier is preferred."""

    MADE_FOR_IT = 0
    """Written for this kind of problem."""
    TIMED = 1
    """Ranked by predicted time."""
    SPARE = 2
    """Known to be slower: for the tuner and the tests."""
    EMULATED = 3
    """Relies on features that the device emulates: for the tuner and the tests."""


@dataclass(slots=True)  # not frozen, which would take twice as long: rankings create dozens
class Bid(Generic[K]):
    """A candidate kernel and its tier.

    Within a tier, the lowest `cost` comes first: the predicted microseconds (`vulkan/cost/`),
    including additional dispatches.
    """

    kernel: K
    place: Place
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Apart:
    """Two dispatches, as an alternative to one fused kernel."""


MARGIN = 1.1
"""Required speed-up of a fused kernel over two dispatches.

The fused kernels have not been timed on a GPU.
"""


class Kernel(ABC, Generic[P, J]):
    """A kernel for problems of type P; a job J is a problem with its tensors.

    Families derive from `ConvKernel` or `MatMulKernel`, which define the packing of weights.
    """

    family: ClassVar[str]
    """Prefix of the display name, before the fields: `rotate_32_8`."""
    solves: ClassVar[type]
    """The problem type P."""
    supports: ClassVar[Trait] = Trait.NONE
    """Traits that problems and jobs may need."""
    requires: ClassVar[Trait] = Trait.NONE
    """Traits that they must need or allow."""
    dtypes: ClassVar[frozenset[str]] = frozenset(FLOATS)
    """Supported storage of operands: of FLOAT_BYTES, or "i32"."""

    @classmethod
    @abstractmethod
    def rank(cls, problem: P, target: Target) -> Iterable[Bid[Kernel[P, J]]]:
        """Return the family's kernels that can solve a problem with matching traits."""

    def predict(self, problem: P, target: Target) -> Expected | None:
        """Return the predicted time of the last dispatch; None if unknown."""
        return None

    @abstractmethod
    def record(self, job: J, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""


class ConvKernel(Kernel[ConvProblem, ConvJob]):
    """A kernel for convolutions, and its packed form of weights."""

    solves = ConvProblem

    @property
    @abstractmethod
    def panel(self) -> int:
        """Adjacent blocks of four output channels in the packed weights."""

    @property
    def form(self) -> str:
        """Name of the packed form of the weights, shared by kernels with the same form."""
        return f"blocked:{self.panel}"

    def pack(self, w: Array, group: int) -> Array:
        """Return weights [O, C/group, taps] in the kernel's form."""
        return pack_panels(w, self.panel, group)

    def elements(self, problem: ConvProblem) -> int:
        """Return the number of elements of `pack`; 0 keeps packed weights out of model files."""
        if type(self).pack is not ConvKernel.pack:
            return 0
        depth, groups = problem.in_blocks * 4, problem.weight_groups
        return packed_elements(groups, problem.outputs, depth, problem.taps, self.panel)


class MatMulKernel(Kernel[MatMulProblem, MatMulJob]):
    """A kernel for matrix products, and its packed forms of operands."""

    solves = MatMulProblem
    reads_rows: ClassVar[bool] = False
    """Whether the right operand is read as rows along k, so that others are transposed first."""

    def pack(self, job: MatMulJob, encoder: VulkanEncoder) -> tuple[Operand, Operand]:
        """Return both operands in the kernel's form: rows of vec4s along k, and panels."""
        return left_operand(job, encoder), right_operand(job, encoder, PANEL)


FAMILIES: Registry[str, type[Kernel[Any, Any]]] = Registry("kernel family")


def kernel_family(family: type[F]) -> type[F]:
    """Register a family of kernels by the name of its class.

    Raises:
        PluginError: the name is in use, or the class is incomplete.
    """
    bases = getattr(family, "__mro__", ())
    frozen = getattr(getattr(family, "__dataclass_params__", None), "frozen", False)
    whole = Kernel in bases and hasattr(family, "solves") and not isabstract(family)
    if not whole or not frozen or not hasattr(family, "family"):
        kinds = [base for base in (ConvKernel, MatMulKernel) if base in bases]
        first, *more = kinds or (ConvKernel, MatMulKernel)
        named = " or ".join(base.__name__ for base in (first, *more))
        *methods, last = sorted(first.__abstractmethods__)
        raise PluginError(
            f"{family!r} is not a family of kernels",
            hint=f"derive a frozen dataclass from {named}, give it the class attribute "
            f"`family`, and write {', '.join(methods)} and {last} "
            f"({page('extending/kernel-family')})",
        )
    FAMILIES.register(family.__name__)(family)
    return family


@overload
def rank(problem: ConvProblem, target: Target) -> list[ConvKernel]: ...
@overload
def rank(problem: MatMulProblem, target: Target) -> list[MatMulKernel]: ...
def rank(problem: ConvProblem | MatMulProblem, target: Target) -> list[Any]:
    """Return the kernels that can solve a problem, fastest prediction first."""
    needs = problem.needs | target.needs
    dtype = problem.dtype if problem.dtype != "f32" else target.element
    solved: type = type(problem)
    suited = _suited(FAMILIES.by_name(), solved, needs, needs | target.allows, dtype)
    bids = [bid for family in suited for bid in family.rank(problem, target)]
    bids.sort(key=_RANK)
    return [bid.kernel for bid in bids]


_RANK = attrgetter("place", "cost")


@lru_cache(maxsize=512)
def _suited(
    families: Sequence[type[Kernel[Any, Any]]], solved: type, needs: Trait, has: Trait, dtype: str
) -> list[type[Kernel[Any, Any]]]:
    return [
        family
        for family in families
        if family.solves is solved
        and needs in family.supports
        and family.requires in has
        and dtype in family.dtypes
    ]


class _OfFamily(Protocol):
    family: ClassVar[str]


S = TypeVar("S", bound=_OfFamily)


def spread(ranked: Sequence[S]) -> list[S]:
    """Return the best kernel of each family first, then the second ones, and so on for a few.

    Each part is by predicted time.

    Measuring the first ones then covers every family: predictions may be wrong for a whole family.
    """
    taken: Counter[str] = Counter()
    turns: list[int] = []
    for kernel in ranked:
        taken[kernel.family] += 1
        turns.append(min(taken[kernel.family], OF_A_FAMILY + 1))
    return [ranked[place] for place in sorted(range(len(ranked)), key=turns.__getitem__)]
