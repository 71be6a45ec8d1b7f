"""Scale and LRN on the device against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check
from vkmnn.ir import Activation
from vkmnn.ir.ops import LRNAttrs, ScaleAttrs

RNG = np.random.default_rng(4)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(2, 5, 3, 7), (1, 8, 5), (3, 5), (1, 1, 1, 1), (2, 3, 2, 3, 5)])
@pytest.mark.parametrize("constant", [set(), {1, 2}, {0, 1}])
@pytest.mark.parametrize("kind", ["NONE", "RELU", "SIGMOID"])
def test_scale(shape: tuple[int, ...], constant: set[int], kind: str) -> None:
    vectors = [floats(shape[1]), floats(shape[1])]
    check("Scale", ScaleAttrs(Activation(kind)), [floats(*shape), *vectors], constant=constant)


def test_scale_of_nothing() -> None:
    check("Scale", ScaleAttrs(), [floats(0, 5, 3, 3), floats(5), floats(5)])


@pytest.mark.parametrize("size", [1, 3, 5, 4, 13])
@pytest.mark.parametrize("shape", [(2, 5, 3, 7), (1, 16, 5), (1, 1, 1, 1)])
def test_lrn(size: int, shape: tuple[int, ...]) -> None:
    check("LRN", LRNAttrs(size, 0.02, 0.75, 1.5), [3 * floats(*shape)])
