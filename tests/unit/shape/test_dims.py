from __future__ import annotations

import pytest

from vkmnn.shape.symbolic import DimAlgebra, is_cut
from vkmnn.shape.symbolic.dims import MAX_NAME


@pytest.fixture
def algebra():
    return DimAlgebra()


def test_one_spelling_for_one_value(algebra):
    add, multiply = algebra.add, algebra.multiply
    assert multiply("a", "b") == multiply("b", "a")
    assert add(multiply(2, "a"), "a") == multiply("a", 3)
    assert add("a", add("b", 1)) == add(add(1, "a"), "b")
    assert algebra.subtract(add("a", 5), "a") == 5
    assert multiply(add("a", 1), "b") == add("b", multiply("b", "a"))
    assert algebra.product(("a", 2, "b", 3)) == multiply(6, multiply("a", "b"))


def test_ints_stay_ints(algebra):
    assert algebra.add(2, 3) == 5
    assert algebra.multiply(0, "a") == 0
    assert algebra.product(()) == 1
    assert algebra.floor_divide(7, 2) == 3
    assert algebra.floor_divide(-1, 2) == -1


def test_exact_quotients(algebra):
    six = algebra.product(("a", "b", 6))
    assert algebra.divide(six, algebra.multiply("a", 3)) == algebra.multiply(2, "b")
    assert algebra.divide(six, "c") is None
    assert algebra.divide(six, 4) is None
    total = algebra.add("a", "b")
    assert algebra.divide(total, total) == 1
    assert algebra.divide(algebra.multiply(total, "c"), "c") == total
    assert algebra.divide("a", 0) is None


def test_quotients_that_round(algebra):
    down = algebra.floor_divide(algebra.add("h", -1), 2)
    assert isinstance(down, str)
    assert down == algebra.floor_divide(algebra.subtract("h", 1), 2)
    assert algebra.floor_divide(algebra.multiply("h", 4), 2) == algebra.multiply(2, "h")


def test_what_is_unknown_stays_unknown(algebra):
    assert algebra.add(None, 1) is None
    assert algebra.multiply("a", None) is None
    assert algebra.floor_divide(None, 2) is None
    assert algebra.divide("a", None) is None


def test_broadcasting(algebra):
    assert algebra.broadcast(1, "a") == "a"
    assert algebra.broadcast("a", "a") == "a"
    assert algebra.broadcast("a", 5) == 5
    assert algebra.broadcast("a", "b") is None
    assert algebra.broadcast(None, 5) == 5
    assert algebra.broadcast(None, 1) is None
    assert algebra.broadcast(algebra.minimum(16, "s"), "s") == "s"
    assert algebra.broadcast(algebra.minimum(16, "s"), "t") is None


def test_cut_dimensions(algebra):
    cut = algebra.minimum(16, "s")
    assert is_cut(cut, "s")
    assert not is_cut(algebra.minimum(1, "s"), "s")  # broadcasts
    assert not is_cut(cut, "t")
    assert not is_cut("s", "s")
    assert not is_cut(16, 16)
    assert algebra.minimum(16, algebra.subtract("s", "t")) is None


def test_sizes_that_end_at_zero(algebra):
    rest = algebra.clipped(algebra.subtract("a", 3))
    assert rest == algebra.clipped(algebra.add("a", -3))
    assert algebra.is_natural(rest)
    assert [algebra.evaluate(rest, {"a": size}) for size in (2, 3, 5)] == [0, 0, 2]
    assert algebra.names_in(rest) == {"a"}
    assert algebra.clipped(algebra.add("a", 3)) == algebra.add("a", 3)
    assert [algebra.clipped(dim) for dim in (-2, 4, None)] == [0, 4, None]
    assert algebra.clipped(algebra.subtract("a" * 300, 3)) is None


def test_hostile_arithmetic_stays_small(algebra):
    """Products, sums and quotients that a model nests without end become unknown."""
    dims = {"square": "a", "sum": "a", "floor": "a", "ints": 3}
    for number in range(500):
        dims["square"] = algebra.multiply(dims["square"], dims["square"])
        dims["sum"] = algebra.add(dims["sum"], f"b{number}")
        dims["floor"] = algebra.floor_divide(algebra.add(dims["floor"], 1), 2)
        dims["ints"] = algebra.multiply(dims["ints"], dims["ints"])
    assert dims == dict.fromkeys(dims)
    assert max(map(len, algebra._made)) <= MAX_NAME
    assert algebra.multiply("a" * 1000, 1) == "a" * 1000  # a model's own name may be long
    assert algebra.multiply("a" * 1000, 2) is None


def test_values_for_given_sizes(algebra):
    double = algebra.multiply(algebra.add("a", 3), 2)
    third = algebra.floor_divide(double, 3)
    cut = algebra.minimum(5, third)
    assert [algebra.evaluate(dim, {"a": 4}) for dim in (7, "a", double, third, cut)] == [
        *(7, 4, 14, 4, 4),
    ]
    assert algebra.evaluate(cut, {"a": 40}) == 5
    assert algebra.evaluate(algebra.add(third, "b"), {"a": 4}) is None
    assert algebra.evaluate(None, {}) is None
    assert algebra.names_in(algebra.multiply(cut, "b")) == {"a", "b"}
    assert algebra.names_in(7) == frozenset()


def test_what_may_be_negative(algebra):
    assert algebra.is_natural(algebra.add("a", 5))
    assert algebra.is_natural(0)
    assert not algebra.is_natural(algebra.subtract("a", 5))
    assert not algebra.is_natural(-1)
    assert not algebra.is_natural(None)
