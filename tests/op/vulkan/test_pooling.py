from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check
from vkmnn.ir import Array
from vkmnn.ir.ops import PoolingAttrs

KINDS = ("MAX", "AVERAGE", "LP")


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize(
    ("kernel", "strides", "dilations", "pads"),
    [
        ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
        ((2, 5), (1, 3), (2, 1), (0, 1, 1, 2)),
        ((1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
        ((7, 7), (1, 1), (1, 1), (3, 3, 3, 3)),
    ],
)
def test_windows(
    kind: str,
    ceil_mode: bool,
    count_include_pad: bool,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
) -> None:
    pooling = PoolingAttrs(
        kind,
        kernel=kernel,
        strides=strides,
        dilations=dilations,
        pads=pads,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        p=3,
    )
    check("Pooling", pooling, [random(2, 7, 13, 17)], rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape",
    [
        (2, 7, 13, 17),
        (1, 5, 40, 50),
        (1, 3, 1009),
        (3, 5),
        (1, 3, 5, 6, 7),
        (1, 3, 2, 3, 4, 5),
        (2, 3, 1, 1),
        (0, 3, 4, 4),
    ],
)
def test_global(kind: str, shape: tuple[int, ...]) -> None:
    check("Pooling", PoolingAttrs(kind, is_global=True), [random(*shape)], rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 2, 70_003), (1, 1, 300, 1, 270)])
def test_global_beyond_the_loop_limit(kind: str, shape: tuple[int, ...]) -> None:
    check("Pooling", PoolingAttrs(kind, is_global=True), [random(*shape)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_large_windows_go_axis_by_axis(kind: str, count_include_pad: bool) -> None:
    pooling = PoolingAttrs(
        kind,
        kernel=(100, 5),
        strides=(3, 2),
        pads=(30, 1, 20, 0),
        count_include_pad=count_include_pad,
    )
    check("Pooling", pooling, [random(1, 3, 211, 9)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_four_axes(kind: str) -> None:
    pooling = PoolingAttrs(kind, kernel=(2, 1, 2, 3), strides=(1, 2, 1, 1), pads=(1, 0, 0, 0) * 2)
    check("Pooling", pooling, [random(2, 3, 3, 4, 5, 6)], rtol=1e-4)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad(auto_pad: str) -> None:
    pooling = PoolingAttrs("AVERAGE", kernel=(3, 2), strides=(2, 2), auto_pad=auto_pad)
    check("Pooling", pooling, [random(2, 7, 13, 17)])


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_indices(storage_order: int, dtype: type[np.generic]) -> None:
    # Few values: the first of equal elements must be found.
    x = np.random.default_rng(0).integers(-3, 4, (2, 7, 13, 17)).astype(dtype)
    pooling = PoolingAttrs(
        "MAX",
        kernel=(3, 2),
        strides=(2, 1),
        pads=(1, 0, 1, 1),
        dilations=(1, 2),
        storage_order=storage_order,
    )
    check("Pooling", pooling, [x], outputs=2)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_integers(dtype: type[np.generic]) -> None:
    x = np.random.default_rng(0).integers(0, 100, (2, 3, 8, 9)).astype(dtype)
    check("Pooling", PoolingAttrs("MAX", kernel=(3, 2), pads=(1, 1, 1, 0)), [x])


def test_maximum_of_negative_and_special_values() -> None:
    x = np.full((1, 5, 4, 4), -np.inf, np.float32)
    x[0, 1] = -3.0
    x[0, 2, 1, 1] = np.nan
    x[0, 3, 2, 2] = np.inf
    check("Pooling", PoolingAttrs("MAX", kernel=(2, 2), pads=(1, 1, 0, 0)), [x])


def test_half_precision() -> None:
    x = random(1, 5, 9, 7).astype(np.float16)
    check("Pooling", PoolingAttrs("AVERAGE", kernel=(3, 3)), [x], rtol=1e-3, atol=1e-3)
