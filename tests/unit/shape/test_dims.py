from __future__ import annotations

import pytest

from vkmnn.shape.symbolic import DimAlgebra, is_cut


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
    assert not is_cut(cut, "t")
    assert not is_cut("s", "s")
    assert not is_cut(16, 16)
    assert algebra.minimum(16, algebra.subtract("s", "t")) is None
