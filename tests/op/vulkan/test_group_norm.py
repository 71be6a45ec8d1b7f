from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.blocked import check_blocked
from tests.op.vulkan.harness import ROW_GROUPS, check, take_group
from vkmnn.ir import Activation, Array
from vkmnn.ir.ops import ACTIVATION_KINDS, GroupNormAttrs
from vkmnn.vulkan.rows.reduction import RowGroup


def operands(*shape: int) -> list[Array]:
    rng = np.random.default_rng(sum(shape))
    sizes = (shape, shape[1:2], shape[1:2])
    return [(rng.standard_normal(size) + 0.5).astype(np.float32) for size in sizes]


# Shape and number of groups; 0 is one group per channel.
CASES = [
    ((2, 7, 5, 3), 0),
    ((1, 8, 9), 0),
    ((3, 4, 1), 0),
    ((1, 1, 1, 1), 0),
    ((2, 5, 33, 31), 0),
    ((2, 7, 5, 3), 1),
    ((2, 8, 5, 3), 2),
    ((3, 12, 4), 3),
    ((2, 32, 7, 5), 4),
    ((2, 6, 5, 3), 3),
    ((1, 10, 2, 2), 2),
    ((2, 6, 3), 6),
    ((1, 8, 2, 3, 5), 2),
]


@pytest.mark.parametrize(("shape", "groups"), CASES, ids=str)
def test_plain(shape: tuple[int, ...], groups: int) -> None:
    for constant in ((), (1, 2)):
        check("GroupNorm", GroupNormAttrs(groups), operands(*shape), constant=constant, atol=4e-6)


@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize(("shape", "groups"), CASES, ids=str)
def test_channel_blocked(shape: tuple[int, ...], groups: int, constants: bool) -> None:
    attrs = GroupNormAttrs(groups, 1e-3)
    check_blocked("GroupNorm", attrs, operands(*shape), constants=constants, atol=4e-6)


@pytest.mark.parametrize(("shape", "groups"), [((4, 6), 2), ((4, 6), 0), ((0, 6, 3), 2)])
def test_without_pixels(shape: tuple[int, ...], groups: int) -> None:
    check("GroupNorm", GroupNormAttrs(groups), operands(*shape), atol=4e-6)


def test_optional_factors() -> None:
    x, scale, bias = operands(2, 8, 5)
    for inputs in ([x], [x, scale], [x, None, bias]):
        for groups in (0, 2):
            check("GroupNorm", GroupNormAttrs(groups), inputs, atol=4e-6)
            check_blocked("GroupNorm", GroupNormAttrs(groups), inputs, atol=4e-6)


@pytest.mark.parametrize("kind", ACTIVATION_KINDS)
def test_activations(kind: str) -> None:
    for groups in (0, 1):
        attrs = GroupNormAttrs(groups, 1e-5, Activation(kind, 0.25, 0.75))
        check("GroupNorm", attrs, operands(2, 7, 5), atol=4e-6)
        check_blocked("GroupNorm", attrs, operands(2, 7, 5), atol=4e-6)


@pytest.mark.parametrize(
    ("shape", "groups"), [((1, 3, 513, 517), 0), ((1, 8, 401, 263), 1), ((1, 90_000, 1), 1)]
)
def test_large_groups(shape: tuple[int, ...], groups: int) -> None:
    inputs = operands(*shape)
    check("GroupNorm", GroupNormAttrs(groups), inputs, atol=1e-5)
    check_blocked("GroupNorm", GroupNormAttrs(groups), inputs, atol=1e-5)


def test_float16() -> None:
    inputs = [array.astype(np.float16) for array in operands(2, 8, 5)]
    check("GroupNorm", GroupNormAttrs(2), inputs, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("group", ROW_GROUPS, ids=str)
@pytest.mark.parametrize("groups", [0, 2])
def test_workgroups(groups: int, group: RowGroup) -> None:
    takes, inputs = take_group(group), operands(2, 8, 7, 23)
    check("GroupNorm", GroupNormAttrs(groups), inputs, atol=4e-6, takes=takes)
    check_blocked("GroupNorm", GroupNormAttrs(groups), inputs, atol=4e-6, takes=takes)
