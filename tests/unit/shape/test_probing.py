"""Named shapes of ops that have a size computer only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from vkmnn.errors import ShapeError
from vkmnn.ir import Array, Dim, DType, Op, OpAttrs, TensorInfo, op_type
from vkmnn.shape import compute_shapes, size_computer
from vkmnn.shape.symbolic import Facts, infer

Shape = tuple[Dim, ...]
Computer = Callable[..., Shape]

pytestmark = pytest.mark.usefixtures("registrations")


@dataclass(frozen=True, slots=True)
class Attrs(OpAttrs):
    """No attributes."""


def asked(
    computer: Computer,
    *shapes: Shape | None,
    content: tuple[int, ...] = (),
    values: dict[int, Shape] | None = None,
) -> tuple[Facts, Op, Shape | None]:
    """Return the known part of the only result of an op with this size computer."""

    def compute(op: Op, infos: Sequence[TensorInfo | None], known: Sequence[Array | None]):
        arrays = [array for array in known if array is not None]
        dims = [info.dims for info in infos if info is not None]
        return [(DType.FLOAT32, computer(*dims, *arrays))]

    op_type("Plug", inputs=(0, 4), content=content)(Attrs)
    size_computer("Plug")(compute)
    names = ["" if shape is None else f"x{place}" for place, shape in enumerate(shapes)]
    op, facts = Op("Plug", "plug", names, ["y"], Attrs()), Facts({})
    for place, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        if name:
            dtype = DType.INT64 if place in content else DType.FLOAT32
            facts.add(name, dtype, shape)
            facts.add_values(name, (values or {}).get(place))
    found = infer(op, facts)
    return facts, op, found[0][1] if found else None


X = ("N", "L", 8)


@pytest.mark.parametrize(
    ("computer", "shape"),
    [
        (lambda x: x, X),
        (lambda x: (x[1], 1, x[0]), ("L", 1, "N")),
        (lambda x: (x[0] + x[1], x[2] - 3), ("N + L", 5)),
        (lambda x: (sum(x),), ("N + L + 8",)),
        (lambda x: (1 + x[0], 2 * x[1], x[0] * 3 - 1), ("N + 1", "2*L", "3*N + -1")),
        (lambda x: (math.prod(x),), ("8*L*N",)),
        (lambda x: (int(np.prod(x[:2])), 8), ("L*N", 8)),
        (lambda x: (int(np.int64(x[0])), int(x[1])), ("N", "L")),
        (lambda x: ((x[0] - 1) // 2 + 1, x[1] * x[0] // x[0]), ("floor((N + -1)/2) + 1", "L")),
        (lambda x: (-(-x[0] // 4),), ("-1*floor(-1*N/4)",)),
        (lambda x: (len(x), x[2] // 3), (3, 2)),
        (lambda x: (), ()),
    ],
)
def test_sizes_are_recognised(computer: Computer, shape: Shape) -> None:
    assert asked(computer, X)[2] == shape


@pytest.mark.parametrize(
    "computer",
    [
        lambda x: (min(x[0], 512),),
        lambda x: (max(x[0], 2),),
        lambda x: (max(x[0], x[1]),),
        lambda x: (min(x[0], x[1]),),
        lambda x: (x[0] if x[0] % 2 else x[0] + 1,),
        lambda x: (x[0] if x[0] % 2 == 0 else x[0] + 1,),
        lambda x: (x[0] if x[0] > 1 else 3,),
        lambda x: (1 if x[0] != x[1] else x[0],),
        lambda x: (x[0] if x[0] != x[1] else 1,),
        lambda x: (math.isqrt(x[0]),),
        lambda x: (int(x[0] * 1.5),),
        lambda x: (x[0] % 4,),
        lambda x: (-(-x[0] // 8) * 8 if x[0] > 3 else 8 + x[0],),
    ],
)
def test_what_differs_between_sizes_is_unknown(computer: Computer) -> None:
    assert asked(computer, X)[2] == (None,)


def test_a_rank_that_differs_between_sizes_is_unknown() -> None:
    assert asked(lambda x: tuple(dim for dim in x if dim != 1), X)[2] is None


def test_one_unknown_size_leaves_the_others() -> None:
    assert asked(lambda x: (x[0], min(x[1], 7), x[2]), X)[2] == ("N", None, 8)


def test_sizes_that_nothing_is_known_of_stay_unknown() -> None:
    assert asked(lambda x: (x[1], x[0], 2 * x[0]), (None, "L"))[2] == ("L", None, None)


def same(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    if x != y:
        raise ShapeError("shapes differ")
    return x


def test_sizes_that_have_to_be_equal() -> None:
    assert asked(same, ("N", 8), ("N", 8))[2] == ("N", 8)


def test_sizes_that_may_be_equal() -> None:
    """Names do not tell: only rank and fixed sizes remain."""
    assert asked(same, ("N", 8), ("M", 8))[2] == (None, 8)


def test_sizes_that_differ() -> None:
    assert asked(same, ("N", 8), ("N", 7))[2] is None


def test_derived_sizes_are_consistent() -> None:
    """2*N is twice N for the probes as well."""
    facts = Facts({})
    double = facts.algebra.multiply("N", 2)
    size_computer("Plug")(lambda op, infos, values: [(DType.FLOAT32, halves(*infos))])

    def halves(x: TensorInfo, y: TensorInfo) -> Shape:
        return same((x.dims[0] // 2,), y.dims)

    facts.add("x", DType.FLOAT32, (double,))
    facts.add("y", DType.FLOAT32, ("N",))
    (found,) = infer(Op("Plug", "plug", ["x", "y"], ["z"], Attrs()), facts)
    assert found == (DType.FLOAT32, ("N",))


def test_contents() -> None:
    computer = lambda x, v, array: tuple(array.tolist())  # noqa: E731
    assert asked(computer, X, (3,), content=(1,), values={1: ("N", 4, None)})[2] == ("N", 4, None)


def test_contents_that_are_unknown() -> None:
    computer = lambda x, v, array: (*array.tolist(), x[0])  # noqa: E731
    assert asked(computer, X, (2,), content=(1,))[2] == (None, None, "N")


def test_absent_inputs() -> None:
    assert asked(lambda x: x, None, X)[2] == X


def test_an_unknown_rank() -> None:
    facts, op, _ = asked(lambda x: x, X)
    facts.add("x0", DType.FLOAT32, None)
    assert list(infer(op, facts)) == [(DType.FLOAT32, None)]


def test_many_names() -> None:
    """Of an op with very many names only what is the same for all sizes is worked out."""
    shapes = [tuple(f"{letter}{number}" for number in range(20)) for letter in "abcd"]
    assert asked(lambda *x: (x[0][0], 7), *shapes)[2] == (None, 7)


def test_probes_are_ints() -> None:
    """A computer may do with sizes whatever it does with ints."""

    def computer(x: tuple[int, ...]) -> tuple[int, ...]:
        assert all(isinstance(dim, int) for dim in x)
        assert x[0] == int(x[0])
        assert hash(x[0]) == hash(int(x[0]))
        assert f"{x[0]}" == str(int(x[0]))
        assert (x[0] / 2) * 2 == x[0]
        assert np.zeros(x[2]).shape == (8,)
        return (int(x[0] + np.int64(1) - 1), (True + x[1]) - True)

    assert asked(computer, X)[2] == ("N", "L")


def test_static_sizes_are_exact() -> None:
    _, op, shape = asked(lambda x: (min(x[0], 512), math.isqrt(x[1])), (1000, 10))
    assert shape == (512, 3)
    (info,) = compute_shapes(op, [TensorInfo("x0", DType.FLOAT32, (1000, 10))], [None])
    assert info.shape == shape


def squared(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Accept only square matrices."""
    if any(len(shape) != 2 or shape[0] != shape[1] for shape in shapes):
        raise ShapeError("not square")
    return shapes[0]


@pytest.mark.parametrize(
    ("shapes", "rank"),
    [
        ([("N", 4)], 2),  # N has to be 4
        ([("N", 4), (7, "M")], 2),
        ([("N", 4), None, ("N", "M")], 2),
    ],
)
def test_sizes_that_have_to_be_those_of_other_axes(shapes: list[Shape], rank: int) -> None:
    facts, op, shape = asked(squared, *shapes)
    assert shape == (None,) * rank
    assert [dtype for dtype, _ in infer(op, facts)] == [DType.FLOAT32]


def test_types_of_tensors_of_unknown_rank() -> None:
    facts, op, _ = asked(squared, ("N", 4))
    facts.add("x0", DType.FLOAT32, None)
    assert infer(op, facts) == [(DType.FLOAT32, None)]


def test_nothing_is_known_of_what_is_never_taken() -> None:
    def refuses(*_: tuple[int, ...]) -> tuple[int, ...]:
        raise ShapeError("never")

    facts, op, shape = asked(refuses, X)
    assert shape is None
    assert infer(op, facts) == ()
