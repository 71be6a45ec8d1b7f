"""The symbolic rules of every operator, compared with its size computer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.shape.named_cases import CASES, SIZES, Case, Given, Shape
from vkmnn.errors import PluginError, ShapeError, VkmnnError
from vkmnn.ir import OP_TYPES, DType, Op, OpAttrs, TensorInfo
from vkmnn.shape import compute_shapes, size_computer
from vkmnn.shape.registry import COMPUTERS
from vkmnn.shape.symbolic import Facts, Found, infer, shape_rule
from vkmnn.shape.symbolic.rules import SHAPE_RULES

# Whoever makes one of these knows its output.
WITHOUT_SHAPES = {"Custom", "HostGraph", "Raster", "StridedAttention"}

# Its size computer, run on probes, would return as much as a rule.
WITHOUT_RULE = {"Custom", "Einsum"}

each_case = pytest.mark.parametrize("case", CASES, ids=str)


def facts_of(inputs: list[Given | None]) -> Facts:
    facts = Facts({})
    constants = {}
    for place, given in enumerate(inputs):
        if given is None:
            continue
        name = f"x{place}"
        facts.add(name, given.dtype, given.shape)
        if isinstance(given.value, tuple):
            facts.add_values(name, given.value)
        elif given.value is not None:
            constants[name] = given.value
    facts.constants = constants
    return facts


def inferred(case: Case, facts: Facts) -> list[Found]:
    return list(infer(case.op, facts))[: len(case.outputs)]


def computed(case: Case, sizes: dict[str, int]) -> list[TensorInfo] | None:
    """Return the size computer's results for these sizes; None if they do not fit."""
    pairs = [(None, None) if given is None else given.sized(sizes) for given in case.inputs]
    try:
        return compute_shapes(case.op, [info for info, _ in pairs], [array for _, array in pairs])
    except VkmnnError:
        return None


def test_every_op_has_a_case() -> None:
    assert {case.op.type for case in CASES} == set(OP_TYPES) - WITHOUT_SHAPES


def test_every_op_has_a_rule() -> None:
    """A forgotten rule is seen here; an op without one belongs to the list, with a reason."""
    assert set(COMPUTERS) - set(SHAPE_RULES) == WITHOUT_RULE


@each_case
def test_named_sizes(case: Case) -> None:
    assert [shape for _, shape in inferred(case, facts_of(case.inputs))] == case.outputs


@each_case
def test_names_agree_with_the_size_computer(case: Case) -> None:
    facts = facts_of(case.inputs)
    found = inferred(case, facts)
    fitting = 0
    for sizes in SIZES:
        infos = computed(case, sizes)
        if infos is None:
            continue
        fitting += 1
        for (dtype, shape), info in zip(found, infos, strict=True):
            assert dtype is info.dtype
            assert shape is not None
            assert tuple(facts.algebra.evaluate(dim, sizes) for dim in shape) == info.shape
    assert fitting >= 2, "most of the sizes do not fit the case"


@each_case
def test_sizes_that_are_all_known(case: Case) -> None:
    """Concrete shapes are the case where every size is known: then both say the same."""
    for sizes in SIZES:
        infos = computed(case, sizes)
        if infos is None:
            continue
        static: list[Given | None] = []
        for given in case.inputs:
            if given is None:
                static.append(None)
                continue
            info, value = given.sized(sizes)
            static.append(Given(info.dims, info.dtype, value))
        found = inferred(case, facts_of(static))
        assert found == [(info.dtype, info.shape) for info in infos]


def opened(given: Given | None, axis: int) -> Given | None:
    """Return an input with one unknown size, and all of its elements."""
    if given is None or not given.shape:
        return given
    shape = list(given.shape)
    shape[axis % len(shape)] = None
    return Given(tuple(shape), given.dtype)


@pytest.mark.parametrize("known", ["rank", "first", "last", "nothing"])
@each_case
def test_less_known_is_not_wrong(case: Case, known: str) -> None:
    """Whatever is left out of the inputs, what is still said agrees with the size computer."""
    inputs: list[Given | None] = []
    for given in case.inputs:
        if given is None or known == "nothing":
            inputs.append(None)
        elif known == "rank":
            inputs.append(Given((None,) * len(given.shape), given.dtype))
        else:
            inputs.append(opened(given, 0 if known == "first" else -1))
    facts = facts_of(inputs)
    found = inferred(case, facts)
    for sizes in SIZES:
        for (dtype, shape), info in zip(found, computed(case, sizes) or (), strict=False):
            assert dtype in (None, info.dtype)
            if shape is None:
                continue
            assert len(shape) == len(info.dims)
            for dim, size in zip(shape, info.dims, strict=True):
                assert facts.algebra.evaluate(dim, sizes) in (None, size)


@pytest.mark.parametrize(
    ("shape", "values"),
    [((2, 2), (1, 2, 3, 4)), ((3,), (1, 2)), ((65,), tuple(range(65))), ((2,), (1, 2**31))],
)
def test_what_is_not_a_shape_vector(shape: Shape, values: Shape) -> None:
    facts = Facts({})
    facts.add("v", DType.INT32, shape)
    facts.add_values("v", values)
    assert facts.values_of("v") is None


def test_constants_are_facts() -> None:
    facts = Facts({"c": np.array([2, 3], np.int32), "f": np.zeros((2, 1), np.float32)})
    assert (facts.shape_of("c"), facts.dtype_of("c")) == ((2,), DType.INT32)
    assert (facts.values_of("c"), facts.values_of("f")) == ((2, 3), None)


@pytest.mark.usefixtures("registrations")
def test_a_rule_that_is_the_size_computer_too() -> None:
    @shape_rule("Doubled", exact=True)
    def doubled(op: Op, facts: Facts) -> list[Found]:
        shape = facts.shape(op)
        if shape is not None and len(shape) != 1:
            raise ShapeError("not a vector")
        size = None if shape is None else (facts.algebra.multiply(shape[0], 2),)
        return [(facts.dtype(op), size)]

    op = Op("Doubled", "n", ["x"], ["y"], OpAttrs())
    x = TensorInfo("x", DType.INT8, (2**40,))
    assert compute_shapes(op, [x], [None]) == [TensorInfo("y", DType.INT8, (2**41,))]
    facts = Facts({})
    facts.add("x", DType.INT8, ("N",))
    assert infer(op, facts) == [(DType.INT8, ("2*N",))]
    for given, message in ((None, "input 0 is required"), (TensorInfo("x", x.dtype, ()), "vector")):
        with pytest.raises(ShapeError, match=message):
            compute_shapes(op, [given], [None])
    with pytest.raises(PluginError, match="Doubled"):
        size_computer("Doubled")(lambda op, inputs, values: [])


def test_what_is_taken_back() -> None:
    facts = Facts({})
    facts.add("v", DType.INT64, (2,))
    facts.add_values("v", ("N", 3))
    facts.forget("v")
    assert (facts.dtype_of("v"), facts.shape_of("v"), facts.values_of("v")) == (None, None, None)
