from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.op.vulkan.harness import check, run_graph, run_on_device
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import InterpAttrs, PoolingAttrs
from vkmnn.shape.resizing import MODES
from vkmnn.vulkan.executions.interp import MAX_TAPS


def random(*shape: int, dtype: str = "float32") -> Array:
    generator = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    # The device holds 64-bit integers in 32 bits.
    limits = np.iinfo(dtype if dtype != "int64" else "int32") if dtype != "bool" else None
    return generator.integers(*(limits.min, limits.max) if limits else (0, 2), shape).astype(dtype)


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


def test_longer_sums_are_left_to_the_backup() -> None:
    attrs = InterpAttrs("linear", antialias=True)
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
