from __future__ import annotations

import numpy as np
import pytest

from vkmnn.cpu_fallback import run_op
from vkmnn.errors import InvalidInputError, VkmnnError
from vkmnn.ir import DType, Op, Region, TensorInfo, View
from vkmnn.ir.ops import RasterAttrs


def raster(attrs, arrays, shape, dtype=DType.FLOAT32):
    names = [f"i{index}" for index in range(len(arrays))]
    op = Op("Raster", "copy", names, ["y"], attrs)
    return run_op(op, arrays, [TensorInfo("y", dtype, shape)])[0]


def test_transpose_and_concat(draw):
    a, b = draw("float32", 3, 5), draw("float32", 2, 3)
    regions = (
        Region(View(0, (1, 5)), View(0, (3, 1)), (5, 3), 0),
        Region(View(0, (3, 1)), View(15, (3, 1)), (2, 3), 1),
    )
    y = raster(RasterAttrs(regions), [a, b], (7, 3))
    np.testing.assert_array_equal(y, np.concatenate([a.T, b]))


def test_broadcast_flip_scalar_and_fill(draw):
    a = draw("float32", 3)
    regions = (
        Region(View(2, (0, -1)), View(0, (4, 1)), (2, 3)),
        Region(View(1, ()), View(8, ()), ()),
    )
    y = raster(RasterAttrs(regions, fill=-1), [a], (3, 4))
    want = np.full((3, 4), -1, np.float32)
    want[:2, :3] = a[::-1]
    want[2, 0] = a[1]
    np.testing.assert_array_equal(y, want)


def test_a_view_as_input(draw):
    a = draw("float32", 3, 5).T
    y = raster(RasterAttrs((Region(View(0, (1,)), View(0, (1,)), (15,)),)), [a], (15,))
    np.testing.assert_array_equal(y, a.reshape(-1))


@pytest.mark.parametrize("dtype", [DType.INT64, DType.BOOL, DType.FLOAT16, DType.UINT8])
def test_types(draw, dtype):
    a = draw(dtype.value, 6)
    y = raster(RasterAttrs((Region(View(1, (2,)), View(0, (1,)), (3,)),)), [a], (3,), dtype)
    np.testing.assert_array_equal(y, a[1::2])
    assert y.dtype == dtype.numpy


def test_ordered_regions_overwrite(draw):
    a = draw("float32", 4)
    regions = (
        Region(View(0, (1,)), View(0, (1,)), (4,)),
        Region(View(0, (0,)), View(1, (1,)), (2,)),
    )
    y = raster(RasterAttrs(regions, ordered=True), [a], (4,))
    np.testing.assert_array_equal(y, a[[0, 0, 0, 3]])


def test_nothing_to_copy():
    empty = np.zeros((0, 3), np.float32)
    region = Region(View(7, (3, 1)), View(99, (3, 1)), (0, 3))
    assert raster(RasterAttrs((region,)), [empty], (0, 3)).shape == (0, 3)
    np.testing.assert_array_equal(raster(RasterAttrs((), fill=2), [], (2,)), [2, 2])


@pytest.mark.parametrize(
    "region",
    [
        Region(View(0, (1,)), View(0, (1,)), (5,)),
        Region(View(-1, (1,)), View(0, (1,)), (2,)),
        Region(View(2, (-2,)), View(0, (1,)), (3,)),
        Region(View(0, (1,)), View(2, (1,)), (3,)),
        Region(View(0, (1,)), View(0, (1,)), (2,), 1),
        Region(View(0, (1, 1)), View(0, (1,)), (2,)),
        Region(View(0, (1,)), View(0, (1,)), (-2,)),
    ],
)
def test_regions_that_reach_outside(region):
    with pytest.raises(InvalidInputError, match="copy"):
        raster(RasterAttrs((region,)), [np.zeros(4, np.float32)], (4,))


def test_no_silent_conversion():
    region = Region(View(0, (1,)), View(0, (1,)), (4,))
    with pytest.raises(InvalidInputError, match="int64"):
        raster(RasterAttrs((region,)), [np.zeros(4, np.int64)], (4,))


def test_the_output_info_is_needed():
    with pytest.raises(VkmnnError, match="infos of its outputs"):
        run_op(Op("Raster", "copy", [], ["y"], RasterAttrs(())), [])
