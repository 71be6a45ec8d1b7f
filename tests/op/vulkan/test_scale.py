from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.blocked import check_blocked
from tests.op.vulkan.harness import check
from vkmnn.ir import Activation, Array
from vkmnn.ir.ops import ACTIVATION_KINDS, ScaleAttrs

SHAPES = [
    (1, 1),
    (3, 7),
    (2, 8),
    (2, 5, 1),
    (2, 3, 4),
    (1, 13, 5, 3),
    (2, 6, 2, 2),
    (3, 8, 7, 1),
    (1, 3, 2, 3, 5),
    (1, 2, 1, 3, 1, 2, 1, 3),
    (2, 0, 3),
    (0, 5, 3),
]


def operands(*shape: int) -> list[Array]:
    rng = np.random.default_rng(sum(shape))
    sizes = (shape, shape[1:2], shape[1:2])
    return [rng.standard_normal(size).astype(np.float32) for size in sizes]


@pytest.mark.parametrize("constant", [(), (1, 2)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_plain(shape: tuple[int, ...], constant: tuple[int, ...]) -> None:
    check("Scale", ScaleAttrs(), operands(*shape), constant=constant, rtol=1e-6)


@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize("shape", [s for s in SHAPES if 2 < len(s) < 6 and 0 not in s], ids=str)
def test_channel_blocked(shape: tuple[int, ...], constants: bool) -> None:
    check_blocked("Scale", ScaleAttrs(), operands(*shape), constants=constants, rtol=1e-6)


@pytest.mark.parametrize("kind", ACTIVATION_KINDS)
def test_activations(kind: str) -> None:
    attrs = ScaleAttrs(Activation(kind, 0.25, 0.75))
    check("Scale", attrs, operands(2, 7, 3))
    check_blocked("Scale", attrs, operands(2, 7, 3))


def test_float16() -> None:
    arrays = [array.astype(np.float16) for array in operands(2, 5, 4)]
    check("Scale", ScaleAttrs(), arrays, rtol=1e-3, atol=1e-3)
