"""Families of kernels: registration, ranking, and handling of mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import product
from operator import or_
from typing import get_args

import pytest

from tests.device_infos import COOPMAT_GPU, LARGE_GPU
from vkmnn.base.elements import FloatElement
from vkmnn.base.registry import Snapshot
from vkmnn.core.tensor import Tensor
from vkmnn.errors import PluginError
from vkmnn.ir import Activation, DType, TensorInfo
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm import families
from vkmnn.vulkan.gemm.dynamic import Dynamic
from vkmnn.vulkan.gemm.epilogue import Ending, Epilogue
from vkmnn.vulkan.gemm.family import (
    FAMILIES,
    Bid,
    ConvKernel,
    Kernel,
    MatMulKernel,
    Place,
    kernel_family,
    rank,
    spread,
)
from vkmnn.vulkan.gemm.job import MatMulJob
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
from vkmnn.vulkan.gemm.requantize import Requantize
from vkmnn.vulkan.gemm.rewrites import STEPS
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.tuning import MAX_CANDIDATES

families.load_all()
PROBLEM = MatMulProblem((), (), (), 64, 64, 64)


@dataclass(frozen=True)
class Whole(MatMulKernel):
    """A family of three kernels, the second of which is ranked first."""

    number: int
    family = "whole"

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterator[Bid[MatMulKernel]]:
        """Request the first and the last position."""
        yield Bid(cls(0), Place.MADE_FOR_IT, 2)
        yield Bid(cls(1), Place.MADE_FOR_IT, 1)
        yield Bid(cls(2), Place.EMULATED)

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record nothing."""


@pytest.mark.usefixtures("registrations")
def test_place_comes_before_cost() -> None:
    before = rank(PROBLEM, Target(LARGE_GPU))
    kernel_family(Whole)
    ranked = rank(PROBLEM, Target(LARGE_GPU))
    assert ranked == [Whole(1), Whole(0), *before, Whole(2)]


def test_who_measures_meets_every_family() -> None:
    """Of the first eight kernels, two are of each of four families; the first stays the first."""
    large = MatMulProblem((), (), (), 197, 768, 3072)
    ranked = rank(large, Target(COOPMAT_GPU, "f16"))
    found = spread(ranked)
    assert found[0] == ranked[0]
    assert sorted(map(repr, found)) == sorted(map(repr, ranked))
    before = [kernel.family for kernel in ranked[:MAX_CANDIDATES]]
    after = [kernel.family for kernel in found[:MAX_CANDIDATES]]
    assert set(before) == {"coop", "fragments"}
    assert set(after) == {"coop", "fragments", "shared", "tile"}
    assert all(after.count(family) == 2 for family in after)
    for family in set(after):
        same = [kernel for kernel in ranked if kernel.family == family]
        assert [kernel for kernel in found if kernel.family == family] == same


CONVOLUTION = ConvProblem(
    1, 1, 64, 64, (1, 9, 9), (1, 9, 9), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1),
    (81, 81, 9, 1), 0, 81,
)  # fmt: skip
SINGLE = [trait for trait in Trait if trait]
SETS = [Trait.NONE, *SINGLE, *map(or_, SINGLE, SINGLE[1:])]
"""No trait, each alone, and each with the next one."""


@pytest.mark.parametrize("problem", [PROBLEM, CONVOLUTION], ids=lambda problem: problem.what)
def test_families_are_asked_that_support_what_is_needed(
    problem: MatMulProblem | ConvProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what they require must be needed or allowed; how the operands are stored counts, too."""
    asked: list[str] = []
    for name in FAMILIES:
        monkeypatch.setattr(FAMILIES[name], "rank", lambda *_, name=name: asked.append(name) or ())
    elements: tuple[FloatElement, ...] = ("f32", "f16")
    for needs, allows, element in product(SETS, SETS, elements):
        del asked[:]
        target = Target(LARGE_GPU, element, needs=needs, allows=allows)
        assert rank(problem, target) == []
        assert asked == [
            name
            for name in FAMILIES
            if FAMILIES[name].solves is type(problem)
            and not needs & ~FAMILIES[name].supports
            and not FAMILIES[name].requires & ~(needs | allows)
            and element in FAMILIES[name].dtypes
        ]


def test_groups_and_phases_are_traits() -> None:
    """Families of blocks are not asked for single channels, nor the other way round."""
    assert CONVOLUTION.needs is Trait.NONE
    phases = replace(CONVOLUTION, phases=(((0, 0, 0), 0), ((0, 0, 1), 1)))
    assert phases.needs is Trait.PHASES
    single = replace(CONVOLUTION, inputs=1, outputs=1, group=64)
    assert single.needs is Trait.DEPTHWISE
    assert replace(CONVOLUTION, inputs=3, outputs=3, group=4).needs is Trait.ODD_GROUPS
    by_kind = [
        {kernel.family for kernel in rank(problem, Target(LARGE_GPU))}
        for problem in (CONVOLUTION, phases, single)
    ]
    assert by_kind == [{"shared", "tile", "channels"}, {"shared"}, {"depthwise", "strip"}]


def test_targets_are_what_they_are_made_of() -> None:
    """No parameter is a flag; bytes of weights count by whether they exceed the caches."""
    parameters = [field for field in fields(Target) if field.init]
    assert not any("bool" in str(field.type) for field in parameters)
    small, more, many = (Target(LARGE_GPU, weight_bytes=size) for size in (0, 1 << 10, 1 << 40))
    assert small == more != many
    assert hash(small) == hash(more)
    assert len({small, more, many, Target(COOPMAT_GPU), replace(small, needs=Trait.GATED)}) == 4


def test_every_trait_has_a_family_and_a_name() -> None:
    known = [family.supports | family.requires for family in FAMILIES.values()]
    assert reduce(or_, known) == reduce(or_, SINGLE)
    assert len({trait.label for trait in SETS}) == len(SETS)
    assert (Trait.INT8_WEIGHTS | Trait.INT8_DOT).label == "int8_weights+int8_dot"


def test_epilogues_end_in_one_way() -> None:
    """An activation, a requantisation, or a dequantisation that may have an activation."""
    assert set(get_args(Ending)) == set(STEPS)
    relu, one = Activation("RELU"), Tensor(TensorInfo("one", DType.FLOAT32, (1,)))
    endings: tuple[Ending, ...] = (
        relu,
        Requantize(one, -128.0, 127.0),
        Dynamic(one, one, one, one, 1, relu),
    )
    assert [type(ending) for ending in endings] == list(get_args(Ending))
    plain, narrow, dynamic = (Epilogue(ending=ending) for ending in endings)
    assert [one.activation.kind for one in (plain, narrow, dynamic)] == ["RELU", "NONE", "RELU"]
    assert (plain.call.alpha, plain.call.beta) == (dynamic.call.alpha, dynamic.call.beta)
    assert (narrow.call.alpha, narrow.call.beta) == (-128.0, 127.0)
    assert plain.spec == narrow.spec == {"HAS_RESIDUAL": False}
    assert dynamic.spec == {"HAS_RESIDUAL": False, "SCALED": True}
    encoder = VulkanEncoder(LARGE_GPU)
    assert plain.bound_bias(1, encoder, (0, 0, 0)) is None
    assert dynamic.bound_bias(1, encoder, (0, 0, 0)) is one


@pytest.mark.usefixtures("registrations")
def test_types_decide_which_families_are_asked() -> None:
    kernel_family(Whole)
    integers = rank(replace(PROBLEM, dtype="i32"), Target(LARGE_GPU))
    assert integers
    assert {kernel.family for kernel in integers} == {"tile"}
    assert rank(replace(PROBLEM, dtype="i4"), Target(LARGE_GPU)) == []


def test_registrations_are_taken_back(registrations: Snapshot) -> None:
    kernel_family(Whole)
    assert registrations.added() == ["kernel family Whole"]
    with pytest.raises(PluginError, match="kernel family Whole is already registered"):
        kernel_family(Whole)


@dataclass
class NotFrozen(MatMulKernel):
    """Could change after it was chosen."""

    family = "not frozen"
    rank = Whole.rank
    record = Whole.record


@dataclass(frozen=True)
class Abstract(ConvKernel):
    """Can neither rank nor record."""

    family = "abstract"


@dataclass(frozen=True)
class Nameless(MatMulKernel):
    """Does not give its everyday name."""

    rank = Whole.rank
    record = Whole.record


@dataclass(frozen=True)
class Aimless(Kernel[MatMulProblem, MatMulJob]):
    """Does not give the problems that it solves."""

    family = "aimless"
    rank = Whole.rank
    record = Whole.record


def test_half_a_family_is_refused(registrations: Snapshot) -> None:
    with pytest.raises(PluginError, match=r"Abstract.*is not a family of kernels") as raised:
        kernel_family(Abstract)
    assert "from ConvKernel" in str(raised.value)
    assert "panel, rank and record" in str(raised.value)
    with pytest.raises(PluginError, match=r"NotFrozen.*is not a family of kernels") as raised:
        kernel_family(NotFrozen)
    assert "from MatMulKernel" in str(raised.value)
    assert "write rank and record" in str(raised.value)
    for family in (Nameless, Aimless):
        with pytest.raises(PluginError, match=rf"{family.__name__}.*is not a family of kernels"):
            kernel_family(family)
    with pytest.raises(PluginError, match="is not a family of kernels"):
        kernel_family(int)  # type: ignore[type-var]
    assert not registrations.added()
