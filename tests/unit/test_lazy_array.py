"""Arrays that stand in for arrays in files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vkmnn.base.lazy_array import (
    LARGE,
    LazyArray,
    as_array,
    as_lazy,
    contiguous,
    derived,
    lazy,
    let_go,
    root_of,
    whole,
    whole_once,
)
from vkmnn.errors import ModelFileError

VALUES = (np.arange(LARGE, dtype=np.float32) % 1000).reshape(64, -1)


class Counted:
    """A file with `VALUES`; `reads` counts how often they are read again."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> Any:
        self.reads += 1
        return VALUES.copy()


def _released() -> tuple[Any, Counted]:
    file = Counted()
    array = lazy(VALUES, file)
    let_go(array)
    return array, file


def test_small_arrays_are_themselves() -> None:
    small = np.zeros(4)
    assert lazy(small, lambda: small) is small


def test_descriptions_and_shapes_need_no_content() -> None:
    array, file = _released()
    shaped = array.reshape(2, -1, 64).reshape((-1, 128))
    for one, like in ((array, VALUES), (shaped, VALUES.reshape(-1, 128))):
        assert isinstance(one, LazyArray)
        for name in ("dtype", "shape", "ndim", "size", "itemsize", "nbytes"):
            assert getattr(one, name) == getattr(like, name)
        assert len(one) == len(like)
    assert as_array(shaped) is shaped
    assert contiguous(shaped) is shaped
    assert root_of(shaped) is array
    assert file.reads == 0


USES: dict[str, Callable[[Any], Any]] = {
    "operators": lambda array: 2 * array + array / 3 - (array > 5),
    "functions": lambda array: np.concatenate([array, np.abs(array)], 1),
    "methods": lambda array: array.astype(np.float64).sum(axis=0),
    "parts": lambda array: array[3:5, ::2],
    "transpose": lambda array: array.T.reshape(-1),
    "other order": lambda array: array.reshape(-1, order="F"),
    "other type": lambda array: as_array(array, np.float16),
    "copy": lambda array: np.array(array),
}


@pytest.mark.parametrize("use", USES)
def test_uses_of_the_content(use: str) -> None:
    array, file = _released()
    for _ in range(2):
        np.testing.assert_array_equal(USES[use](array), USES[use](VALUES))
    assert file.reads == 1
    shaped = VALUES.reshape(32, -1)
    np.testing.assert_array_equal(USES[use](array.reshape(32, -1)), USES[use](shaped))
    assert file.reads == 1


def test_impossible_shapes() -> None:
    array, _ = _released()
    for shape in ((7, -1), (3, 5), (-1, -1)):
        with pytest.raises(ValueError, match=r"reshape|unknown"):
            array.reshape(shape)


def test_content_is_kept_until_it_is_released() -> None:
    array, file = _released()
    shaped = array.reshape(-1)
    whole_once(shaped)
    whole_once(array)
    assert file.reads == 2
    first = whole(shaped)
    assert np.shares_memory(first, whole(array))
    assert file.reads == 3
    let_go(shaped)
    assert np.array_equal(whole(array), VALUES)
    assert file.reads == 4


def test_content_of_another_kind_is_refused() -> None:
    array = lazy(VALUES, lambda: VALUES.astype(np.float16))
    let_go(array)
    with pytest.raises(ModelFileError, match="load it again"):
        whole(array)


def test_derived_arrays_are_computed_again() -> None:
    array, file = _released()
    twice = derived(lambda one, other: one + other, array, np.float32(1) * VALUES)
    assert as_lazy(twice) is not None
    assert file.reads == 1
    np.testing.assert_array_equal(whole(twice), 2 * VALUES)
    let_go(twice)
    np.testing.assert_array_equal(whole(twice), 2 * VALUES)
    assert file.reads == 2
    plain = derived(np.negative, VALUES)
    assert as_lazy(plain) is None
