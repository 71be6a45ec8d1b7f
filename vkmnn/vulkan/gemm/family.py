"""What a family of kernels is: it ranks itself, packs what it reads, and records itself.

A family is a frozen dataclass; its instances are the kernels that the rules rank, the tuner
measures and the shader tests walk through, by their `repr`. It lives in a module of `families/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from enum import IntEnum
from functools import cache
from inspect import isabstract
from operator import attrgetter
from typing import Any, ClassVar, Generic, TypeVar

from vkmnn.errors import PluginError, page
from vkmnn.ir import Array
from vkmnn.records import dataclass
from vkmnn.registry import Registry
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.operands import PANEL, Operand, left_operand, right_operand
from vkmnn.vulkan.gemm.problem import ConvProblem, Grouping, MatMulProblem
from vkmnn.vulkan.gemm.weights import pack_panels, packed_elements

K = TypeVar("K", covariant=True)
F = TypeVar("F", bound="ConvKernel | MatMulKernel")

# Kernels of a family that come before the rest where they are to be measured.
OF_A_FAMILY = 3


@cache
def kernel_of(family: type[F], *fields: Any) -> F:
    """Return the kernel of a family with these values, the same every time: rankings need many."""
    return family(*fields)


class Place(IntEnum):
    """Where a kernel stands among all that can solve a problem; the first place is taken."""

    MADE_FOR_IT = 0
    """The problem is of the kind that the kernel was written for."""
    TIMED = 1
    """Its predicted time decides."""
    SPARE = 2
    """Known to be slower: for the tuner and the tests."""
    EMULATED = 3
    """What it is made of is emulated on this device: for the tuner and the tests."""


@dataclass(slots=True)  # not frozen, which takes twice as long: rankings make dozens
class Bid(Generic[K]):
    """A kernel that can solve a problem, and its place.

    Within a place, the lowest `cost` comes first: the microseconds that the kernel is expected to
    take (`vulkan/cost/`), with the dispatches that it needs beside its own.
    """

    kernel: K
    place: Place
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """What rules look at besides the problem.

    Args:
        info: the device.
        fp16: floats take 16 bits.
        texels: kernels may load through texel buffers.
        prefers_texels: they should.
        weight_bytes: of all constants of the network.
        narrow: the weights are bytes.
        dots: integer dot products can multiply the operands. Of a convolution, weights are signed
            bytes and x is codes of a byte; of a product, both are codes that bytes hold.
        ends: the kernel reads or stores plain float32, as the host has it.
        signed: the bytes of a product's right operand, a constant, are its numbers as they are.
        half: the arithmetic may be float16; weights, or the right operand, are constants.
        coded: a product's left operand is to be read as bytes.
    """

    info: DeviceInfo
    fp16: bool = False
    texels: bool = False
    prefers_texels: bool = False
    weight_bytes: int = 0
    narrow: bool = False
    dots: bool = False
    ends: bool = False
    signed: bool = False
    half: bool = False
    coded: bool = False
    gpu: bool = field(init=False, repr=False, compare=False)
    """Whether shared memory is fast."""
    cold: bool = field(init=False, repr=False, compare=False)
    """Whether the network's weights are too many to stay in the device's caches."""
    key: tuple[object, ...] = field(init=False, repr=False, compare=False)
    """All of it but the device; of the weights, whether they are too many for its caches.

    Constants that depend on the input shape change their bytes a little, which decides nothing."""

    @classmethod
    def of(
        cls,
        encoder: VulkanEncoder,
        *,
        narrow: bool = False,
        dots: bool = False,
        ends: bool = False,
        signed: bool = False,
        half: bool = False,
        coded: bool = False,
    ) -> Target:
        """Return what an encoder records for, with weights of bytes or of floats."""
        texels, prefers = "texel" in encoder.loads, encoder.load == "texel"
        given = (
            encoder.fp16,
            texels,
            prefers,
            encoder.weight_bytes,
            narrow,
            dots,
            ends,
            signed,
            half and encoder.half,
            coded,
        )
        return encoder.once(("target", *given), lambda: cls(encoder.info, *given))

    def __post_init__(self) -> None:
        """Work out what every ranking asks for."""
        _set_gpu(self, is_gpu(self.info))
        _set_cold(self, self.weight_bytes > class_of(self.info).cache_bytes)
        floats = self.fp16, self.texels, self.prefers_texels, self.cold
        weights = self.narrow, self.dots, self.signed, self.half
        _set_key(self, (*floats, *weights, self.ends, self.coded))

    @property
    def element_bytes(self) -> int:
        """Bytes of a float in memory."""
        return 2 if self.fp16 else 4


_set_gpu, _set_cold, _set_key = (vars(Target)[name].__set__ for name in ("gpu", "cold", "key"))


@dataclass(frozen=True, slots=True)
class Apart:
    """Two dispatches, where one kernel could do both."""


class ConvKernel(ABC):
    """A kernel for convolutions."""

    family: ClassVar[str]
    """Stands before the fields in the names that people read: `rotate_32_8`."""
    grouping: ClassVar[Grouping] = "blocks"
    """The problems that the family solves."""
    phased: ClassVar[bool] = False
    """Whether it solves those with several phases."""
    narrow: ClassVar[bool] = False
    """Whether it has kernels that read weights of bytes."""
    whole: ClassVar[bool] = False
    """Whether it sums codes as whole numbers of 32 bits."""
    ends: ClassVar[bool] = False
    """Whether its kernels of floats read and store plain float32, too."""

    @classmethod
    @abstractmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterable[Bid[ConvKernel]]:
        """Return the kernels of the family that can solve a problem of its grouping."""

    def predict(self, problem: ConvProblem, target: Target) -> Expected | None:
        """Return what the last dispatch is expected to take, None where nothing is known."""
        return None

    @property
    @abstractmethod
    def panel(self) -> int:
        """Blocks of four output channels that lie side by side in the packed weights."""

    @property
    def form(self) -> str:
        """Names the form of the packed weights: kernels of one form share them."""
        return f"blocked:{self.panel}"

    def pack(self, w: Array, group: int) -> Array:
        """Return weights [O, C/group, taps] as the kernel reads them."""
        return pack_panels(w, self.panel, group)

    def elements(self, problem: ConvProblem) -> int:
        """Return how many elements `pack` makes; 0 keeps packed weights out of model files."""
        if type(self).pack is not ConvKernel.pack:
            return 0
        depth, groups = problem.in_blocks * 4, problem.weight_groups
        return packed_elements(groups, problem.outputs, depth, problem.taps, self.panel)

    @abstractmethod
    def record(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""


class MatMulKernel(ABC):
    """A kernel for matrix products."""

    family: ClassVar[str]
    """Stands before the fields in the names that people read: `rotate_32_8`."""
    dtypes: ClassVar[frozenset[str]] = frozenset({"f32"})
    """Types of the operands that the family multiplies."""
    narrow: ClassVar[bool] = False
    """Whether it has kernels that read a constant right operand of bytes."""
    ends: ClassVar[bool] = False
    """Whether its kernels of float16 store float32, too."""
    coded: ClassVar[bool] = False
    """Whether it has kernels that read a left operand of bytes, and read and make such codes."""
    rowwise: ClassVar[bool] = False
    """Whether its kernels of floats normalise rows and gate columns where a job says so."""

    @classmethod
    @abstractmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterable[Bid[MatMulKernel]]:
        """Return the kernels of the family that can solve a problem of its types."""

    def predict(self, problem: MatMulProblem, target: Target) -> Expected | None:
        """Return what the last dispatch is expected to take, None where nothing is known."""
        return None

    def pack(self, job: MatMulJob, encoder: VulkanEncoder) -> tuple[Operand, Operand]:
        """Return both operands as the kernel reads them: rows of vec4s along k, and panels."""
        return left_operand(job, encoder), right_operand(job, encoder, PANEL)

    @abstractmethod
    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""


CONV_FAMILIES: Registry[str, type[ConvKernel]] = Registry("kernel family for convolutions")
MATMUL_FAMILIES: Registry[str, type[MatMulKernel]] = Registry("kernel family for products")

_C = TypeVar("_C", bound=ConvKernel)
_M = TypeVar("_M", bound=MatMulKernel)


def conv_family(family: type[_C]) -> type[_C]:
    """Register a family of kernels for convolutions, by the name of its class.

    Raises:
        PluginError: the name is taken, or the class is not a whole family.
    """
    _check(family, ConvKernel, "rank, panel and record")
    CONV_FAMILIES.register(family.__name__)(family)
    return family


def matmul_family(family: type[_M]) -> type[_M]:
    """Register a family of kernels for matrix products, by the name of its class.

    Raises:
        PluginError: the name is taken, or the class is not a whole family.
    """
    _check(family, MatMulKernel, "rank and record")
    MATMUL_FAMILIES.register(family.__name__)(family)
    return family


def _check(family: type, base: type, methods: str) -> None:
    frozen = getattr(getattr(family, "__dataclass_params__", None), "frozen", False)
    whole = base in getattr(family, "__mro__", ()) and not isabstract(family)
    if not whole or not frozen or not hasattr(family, "family"):
        raise PluginError(
            f"{family!r} is not a family of kernels",
            hint=f"derive a frozen dataclass from {base.__name__}, give it the class attribute "
            f"`family`, and write {methods} ({page('extending/kernel-family')})",
        )


_RANK = attrgetter("place", "cost")


def rank_convolution(problem: ConvProblem, target: Target) -> list[ConvKernel]:
    """Return the kernels that can solve a problem, the likely fastest first."""
    grouping = problem.grouping
    bids: list[Bid[ConvKernel]] = []
    for family in CONV_FAMILIES.by_name():
        if (
            family.grouping == grouping
            and (family.phased or not problem.phases)
            and (family.narrow or not target.narrow)
            and (family.ends or not target.ends)
        ):
            bids += family.rank(problem, target)
    return _ordered(bids)


def rank_matmul(problem: MatMulProblem, target: Target) -> list[MatMulKernel]:
    """Return the kernels that can solve a problem, the likely fastest first."""
    bids: list[Bid[MatMulKernel]] = []
    for family in MATMUL_FAMILIES.by_name():
        taken = (
            (family.narrow or not target.narrow)
            and (family.ends or not target.ends)
            and (family.coded or not target.coded)
        )
        if problem.dtype in family.dtypes and taken:
            bids += family.rank(problem, target)
    return _ordered(bids)


def spread(ranked: Sequence[F]) -> list[F]:
    """Return kernels with a few of each family before the rest, the likely fastest still first.

    Who measures the first ones so meets every family: a prediction may be wrong about all of one.
    """
    taken: Counter[str] = Counter()
    late: list[bool] = []
    for kernel in ranked:
        taken[kernel.family] += 1
        late.append(taken[kernel.family] > OF_A_FAMILY)
    return [ranked[place] for place in sorted(range(len(ranked)), key=late.__getitem__)]


def _ordered(bids: Iterable[Bid[K]]) -> list[K]:
    return [bid.kernel for bid in sorted(bids, key=_RANK)]
