from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from tests.op.vulkan.harness import check, run_graph, run_on_device
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import InterpAttrs, PoolingAttrs
from vkmnn.shape.resizing import COORDINATE_MODES, MODES, NEAREST_MODES
from vkmnn.vulkan.executions.interp import MAX_TAPS


def random(*shape: int, dtype: str = "float32") -> Array:
    generator = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    # The device holds 64-bit integers in 32 bits.
    limits = np.iinfo(dtype if dtype != "int64" else "int32") if dtype != "bool" else None
    return generator.integers(*(limits.min, limits.max) if limits else (0, 2), shape).astype(dtype)


def resize(
    attrs: InterpAttrs,
    x: Array,
    *,
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    roi: Sequence[float] | None = None,
) -> None:
    inputs = [
        x,
        None if roi is None else np.array(roi, np.float32),
        None if scales is None else np.array(scales, np.float32),
        None if sizes is None else np.array(sizes, np.int64),
    ]
    check("Interp", attrs, inputs, constant={1, 2, 3})


SIZES = [(2, 3, 11, 5), (2, 3, 3, 13), (2, 3, 1, 1), (2, 3, 7, 9), (2, 3, 5, 16)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("coordinate_mode", [m for m in COORDINATE_MODES if m[:2] != "tf"])
@pytest.mark.parametrize("mode", MODES)
def test_sizes(mode: str, coordinate_mode: str, sizes: tuple[int, ...]) -> None:
    resize(InterpAttrs(mode, coordinate_mode), random(2, 3, 5, 7), sizes=sizes)


@pytest.mark.parametrize("scales", [(1, 1, 0.6, 0.7), (1, 1, 2.3, 1.5), (1, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_scales(mode: str, scales: tuple[float, ...]) -> None:
    resize(InterpAttrs(mode), random(1, 3, 4, 7), scales=scales)


@pytest.mark.parametrize("nearest_mode", NEAREST_MODES)
@pytest.mark.parametrize("coordinate_mode", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_nearest(nearest_mode: str, coordinate_mode: str, dtype: str) -> None:
    attrs = InterpAttrs("nearest", coordinate_mode, nearest_mode)
    resize(attrs, random(1, 3, 5, 7, dtype=dtype), sizes=(1, 3, 11, 4))


@pytest.mark.parametrize("axes", [(0,), (1,), (3,), (0, 3), (1, 2), (3, 1), (0, 1, 2), (-1, -4, 1)])
@pytest.mark.parametrize("mode", MODES)
def test_any_axes(mode: str, axes: tuple[int, ...]) -> None:
    sizes = (7, 4, 5)[: len(axes)]
    resize(InterpAttrs(mode, axes=axes), random(2, 3, 5, 8), sizes=sizes)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (1, 2, 3, 2, 3), (2, 1, 2, 2, 1, 2, 3)])
@pytest.mark.parametrize("mode", MODES)
def test_any_rank(mode: str, shape: tuple[int, ...]) -> None:
    sizes = [dim + index % 3 for index, dim in enumerate(shape)]
    resize(InterpAttrs(mode), random(*shape), sizes=sizes)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratio(policy: str) -> None:
    attrs = InterpAttrs("linear", axes=(2, 3), keep_aspect_ratio_policy=policy)
    resize(attrs, random(1, 2, 3, 5), sizes=(7, 8))


@pytest.mark.parametrize("exclude_outside", [False, True])
@pytest.mark.parametrize("cubic_coeff_a", [-0.5, -0.75])
def test_cubic_options(exclude_outside: bool, cubic_coeff_a: float) -> None:
    attrs = InterpAttrs("cubic", cubic_coeff_a=cubic_coeff_a, exclude_outside=exclude_outside)
    resize(attrs, random(1, 3, 5, 7), sizes=(1, 3, 11, 4))


@pytest.mark.parametrize("exclude_outside", [False, True])
@pytest.mark.parametrize("scales", [(1, 1, 0.6, 0.3), (1, 1, 0.5, 2.5), (0.5, 0.4, 0.3, 0.2)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode: str, scales: tuple[float, ...], exclude_outside: bool) -> None:
    attrs = InterpAttrs(mode, antialias=True, exclude_outside=exclude_outside)
    resize(attrs, random(3, 5, 11, 17), scales=scales)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("sizes", [(1, 3, 3, 3), (1, 3, 7, 2), (1, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_crop_and_resize(mode: str, sizes: tuple[int, ...], antialias: bool) -> None:
    attrs = InterpAttrs(
        mode,
        "tf_crop_and_resize",
        # Large: an extrapolated element that took part in a sum would show.
        extrapolation_value=1e30,
        antialias=antialias and mode != "nearest",
    )
    roi = (0, -0.2, 0.4, -0.2, 1, 1, 0.6, 1.3)
    resize(attrs, random(1, 3, 13, 17), sizes=sizes, roi=roi)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_crop_and_resize_of_integers(dtype: str) -> None:
    roi = (0, 0, 0.4, -0.2, 1, 1, 0.6, 1.3)
    for mode, antialias in (("nearest", False), ("linear", False), ("linear", True)):
        if mode == "linear" and dtype == "int32":
            continue
        attrs = InterpAttrs(
            mode, "tf_crop_and_resize", extrapolation_value=9.5, antialias=antialias
        )
        resize(attrs, random(1, 1, 13, 17, dtype=dtype), sizes=(1, 1, 4, 3), roi=roi)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_integers_are_rounded_and_saturated(mode: str, antialias: bool, dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).choice([limits.min, limits.max, 3], (1, 2, 9, 16)).astype(dtype)
    attrs = InterpAttrs(mode, antialias=antialias)
    op = Op("Interp", "op", ["x", "", "", "s"], ["y"], attrs)
    sizes = np.int64([1, 2, 5, 8])
    for size in (sizes, sizes * 3):
        (real,) = run_op(op, [x.astype(np.float64), None, None, size])
        (result,) = run_on_device("Interp", attrs, [x, None, None, size], constant={3})
        assert (result.dtype, result.shape) == (x.dtype, real.shape)
        # Sums in float32 may fall on either side of a tie.
        error = np.abs(result - np.clip(real, limits.min, limits.max))
        assert error.max() <= 0.5 + 1e-6 * limits.max


def test_wide_integers_are_left_to_the_backup() -> None:
    inputs = [random(1, 1, 3, 5, dtype="int32"), None, None, np.int64([1, 1, 5, 4])]
    check("Interp", InterpAttrs("nearest"), inputs, constant={3})
    check("Interp", InterpAttrs("linear"), inputs, constant={3}, on_device=False)


def test_half() -> None:
    for mode in MODES:
        inputs = [random(1, 2, 5, 7, dtype="float16"), None, None, np.int64([1, 2, 8, 3])]
        check("Interp", InterpAttrs(mode), inputs, constant={3}, rtol=2e-3, atol=2e-3)


def test_nothing_to_do_is_a_view() -> None:
    resize(InterpAttrs("cubic"), random(1, 2, 5, 7), sizes=(1, 2, 5, 7))


@pytest.mark.parametrize(("shape", "sizes"), [((0, 3), (0, 5)), ((2, 3), (0, 3)), ((2, 0), (3, 0))])
def test_empty(shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    resize(InterpAttrs("linear"), random(*shape), sizes=sizes)


def test_long_sums() -> None:
    attrs = InterpAttrs("linear", antialias=True)
    resize(attrs, random(2, 50_021), sizes=(2, 1))
    inputs = [random(2, MAX_TAPS), None, None, np.int64([2, 1])]
    check("Interp", attrs, inputs, constant={3}, on_device=False)


BLOCKED = [
    InterpAttrs(mode, coordinate_mode, antialias=antialias, axes=axes)
    for mode, coordinate_mode, antialias, axes in product(
        MODES, ["half_pixel", "align_corners"], [False, True], [(2,), (3,), (2, 3), (1, 3)]
    )
    if not (antialias and mode == "nearest")
]
BLOCKED += [
    InterpAttrs("linear", "tf_crop_and_resize", extrapolation_value=value, axes=(2, 3))
    for value in (0.0, 7.0)
]


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("attrs", BLOCKED, ids=str)
def test_channel_blocks(attrs: InterpAttrs, dtype: str) -> None:
    """Between two ops that work on channel blocks; the second one sums up zero tails, too."""
    x = random(2, 5, 7, 9, dtype=dtype)
    sizes = np.int64([4, 11][: len(attrs.axes)])
    roi = np.float32([-0.1, 0.2, 0.9, 1.3])[: 2 * len(attrs.axes)]
    pool = PoolingAttrs("MAX", kernel=(2, 2))
    ops = [
        Op("Pooling", "first", ["x"], ["a"], pool),
        Op("Interp", "interp", ["a", "roi", "", "sizes"], ["b"], attrs),
        Op("Pooling", "second", ["b"], ["y"], pool),
    ]
    (a,) = run_op(ops[0], [x])
    (b,) = run_op(ops[1], [a, roi, None, sizes])
    (expected,) = run_op(ops[2], [b])
    graph = Graph(
        "test",
        [TensorInfo("x", DType(dtype), x.shape)],
        [TensorInfo("b", DType(dtype), b.shape), TensorInfo("y", DType(dtype), expected.shape)],
        ops,
        {"roi": roi, "sizes": sizes},
    )
    middle, result = run_graph(graph, {"x": x})
    atol = 1 if dtype == "uint8" and attrs.mode != "nearest" else 1e-5
    np.testing.assert_allclose(middle.astype(np.float64), b.astype(np.float64), atol=atol)
    np.testing.assert_allclose(result.astype(np.float64), expected.astype(np.float64), atol=atol)
