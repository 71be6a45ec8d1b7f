from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from vkmnn.errors import ShapeError
from vkmnn.ir.ops import GridSampleAttrs, InterpAttrs
from vkmnn.shape.resizing import COORDINATE_MODES, NEAREST_MODES

EMPTY = np.zeros(0, np.float32)
SIZES = [(1, 2, 11, 5), (1, 2, 3, 13), (1, 2, 1, 1), (1, 2, 7, 9)]


def both(**options):
    names = {"coordinate_mode": "coordinate_transformation_mode"}
    theirs = {
        names.get(key, key): int(value) if isinstance(value, bool) else value
        for key, value in options.items()
    }
    return InterpAttrs(**options), theirs


def check_resize(check, x, scales=None, sizes=None, roi=None, more=None, **options):
    attrs, theirs = both(**options)
    scales = None if scales is None else np.array(scales, np.float32)
    sizes = None if sizes is None else np.array(sizes, np.int64)
    arrays = [x, roi, scales, sizes]
    given = [x, EMPTY if roi is None else roi, scales, sizes]
    more = more or {}
    return check("Interp", attrs, arrays, "Resize", theirs, onnx_arrays=given, opset=19, **more)


@pytest.mark.parametrize(
    ("sizes", "mode", "coordinate_mode"),
    [
        case
        for case in product(SIZES, ["linear", "cubic"], COORDINATE_MODES)
        if case[2] not in ("tf_crop_and_resize", "tf_half_pixel_for_nn")
        # There the reference evaluator samples at -0.5, the specification at 0.
        if case != ((1, 2, 1, 1), "cubic", "pytorch_half_pixel")
    ],
    ids=str,
)
def test_sizes(check, draw, sizes, mode, coordinate_mode):
    x = draw("float32", 1, 2, 5, 7)
    check_resize(check, x, sizes=sizes, mode=mode, coordinate_mode=coordinate_mode)


@pytest.mark.parametrize("scales", [(1, 1, 0.6, 0.7), (1, 1, 2.3, 1.5), (1, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinate_mode", [m for m in COORDINATE_MODES if m[:2] != "tf"])
def test_scales(check, draw, scales, mode, coordinate_mode):
    more = {}
    if coordinate_mode == "half_pixel_symmetric":
        # The reference evaluator slips by one element where noise hides an integer coordinate.
        more = {"oracle": "runtime", "tolerance": 1e-4}
    x = draw("float32", 1, 2, 4, 7)
    check_resize(check, x, scales=scales, more=more, mode=mode, coordinate_mode=coordinate_mode)


@pytest.mark.parametrize("nearest_mode", NEAREST_MODES)
@pytest.mark.parametrize("coordinate_mode", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_nearest(check, draw, sizes, nearest_mode, coordinate_mode):
    x = draw("float32", 1, 2, 5, 7)
    options = {"nearest_mode": nearest_mode, "coordinate_mode": coordinate_mode}
    check_resize(check, x, sizes=sizes, mode="nearest", **options)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude_outside", [False, True])
@pytest.mark.parametrize("scales", [(1, 1, 0.6, 0.3), (1, 1, 0.5, 2.5)], ids=str)
def test_antialias(check, draw, mode, exclude_outside, scales):
    x = draw("float32", 1, 2, 11, 17)
    options = {"mode": mode, "antialias": True, "exclude_outside": exclude_outside}
    check_resize(check, x, scales=scales, **options)


@pytest.mark.parametrize("exclude_outside", [False, True])
@pytest.mark.parametrize("cubic_coeff_a", [-0.5, -0.75])
def test_cubic_options(check, draw, exclude_outside, cubic_coeff_a):
    options = {"exclude_outside": exclude_outside, "cubic_coeff_a": cubic_coeff_a}
    check_resize(check, draw("float32", 1, 1, 5, 7), sizes=(1, 1, 11, 4), mode="cubic", **options)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [(1, 1, 3, 3), (1, 1, 7, 1)], ids=str)
def test_crop_and_resize(check, draw, mode, sizes):
    roi = np.float32([0, 0, 0.4, -0.2, 1, 1, 0.6, 1.3])
    check_resize(
        check,
        draw("float32", 1, 1, 5, 7),
        sizes=sizes,
        roi=roi,
        mode=mode,
        coordinate_mode="tf_crop_and_resize",
        extrapolation_value=10.0,
    )


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [(2, 3), (3, 2), (3,), (1, 3)], ids=str)
def test_axes_and_policies(check, draw, policy, axes):
    sizes = (7, 8)[: len(axes)]
    x = draw("float32", 1, 2, 3, 5)
    options = {"axes": axes, "keep_aspect_ratio_policy": policy, "mode": "linear"}
    check_resize(check, x, sizes=sizes, **options)


def test_axes_with_scales_and_roi(check, draw):
    roi = np.float32([0.1, 0.2, 0.9, 0.8])
    check_resize(
        check,
        draw("float32", 2, 3, 5, 7),
        sizes=(4, 3),
        roi=roi,
        axes=(3, 2),
        mode="linear",
        coordinate_mode="tf_crop_and_resize",
    )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "float64"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_types(check, draw, dtype, mode):
    x = draw(dtype, 1, 1, 5, 7) * np.asarray(12, dtype)
    more = {"tolerance": 1e-5} if dtype == "float64" else {}  # the reference's kernel is float32
    check_resize(check, x, sizes=(1, 1, 8, 11), more=more, mode=mode)


def test_negative_axes(run, draw):
    x, sizes = draw("float32", 2, 3, 5), np.int64([7, 4])
    (y,) = run("Interp", InterpAttrs("linear", axes=(-1, 0)), [x, None, None, sizes])
    (z,) = run("Interp", InterpAttrs("linear", axes=(2, 0)), [x, None, None, sizes])
    np.testing.assert_array_equal(y, z)
    assert y.shape == (4, 3, 7)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (1, 2, 3, 2, 3)], ids=str)
def test_any_rank(check, draw, shape):
    sizes = [dim + index for index, dim in enumerate(shape)]
    check_resize(check, draw("float32", *shape), sizes=sizes, mode="linear")


def test_half(check_fp16, draw):
    for mode in ("nearest", "linear", "cubic"):
        arrays = [draw("float32", 1, 2, 5, 7), None, None, np.int64([1, 2, 8, 3])]
        check_fp16("Interp", InterpAttrs(mode), arrays)


def test_sizes_from_scales_round_as_float32(run, draw):
    scales = np.float32([0.7, 1.1])
    (y,) = run("Interp", InterpAttrs("nearest"), [draw("float32", 10, 30), None, scales])
    assert y.shape == (7, 33)


def test_single_output_of_pytorch_half_pixel_is_the_first_element(run, draw):
    x = draw("float32", 5)
    attrs = InterpAttrs("cubic", "pytorch_half_pixel")
    (y,) = run("Interp", attrs, [x, None, None, np.int64([1])])
    np.testing.assert_array_equal(y, x[:1])


def test_empty(run, draw):
    attrs = InterpAttrs("linear", "align_corners")
    for shape, sizes in (((0, 3), (0, 5)), ((2, 3), (0, 3)), ((2, 0), (3, 0))):
        (y,) = run("Interp", attrs, [draw("float32", *shape), None, None, np.int64(sizes)])
        assert y.shape == sizes


@pytest.mark.parametrize(
    ("options", "scales", "sizes"),
    [
        ({}, None, None),
        ({}, (2.0, 2.0), (4, 6)),
        ({}, (2.0,), None),
        ({}, (2.0, 0.0), None),
        ({}, (2.0, np.nan), None),
        ({}, None, (4, -1)),
        ({"mode": "area"}, None, (4, 6)),
        ({"coordinate_mode": "middle"}, None, (4, 6)),
        ({"nearest_mode": "up"}, None, (4, 6)),
        ({"antialias": True}, None, (4, 6)),
        ({"axes": (0, 0)}, None, (4, 6)),
        ({"axes": (2,)}, None, (4,)),
        ({"keep_aspect_ratio_policy": "maybe"}, None, (4, 6)),
        ({"coordinate_mode": "tf_crop_and_resize"}, None, (4, 6)),
    ],
)
def test_impossible_requests(run, draw, options, scales, sizes):
    arrays = [draw("float32", 2, 3), None]
    arrays.append(None if scales is None else np.array(scales, np.float32))
    arrays.append(None if sizes is None else np.array(sizes, np.int64))
    with pytest.raises(ShapeError, match="Interp"):
        run("Interp", InterpAttrs(**options), arrays)


GRID_CASES = list(
    product(["nearest", "linear", "cubic"], ["zeros", "border", "reflection"], [0, 1])
)


@pytest.mark.parametrize(("mode", "padding", "align"), GRID_CASES)
@pytest.mark.parametrize(
    ("x", "grid"),
    [((2, 3, 5, 7), (2, 4, 3, 2)), ((1, 2, 3, 4, 5), (1, 2, 3, 2, 3))],
    ids=["2d", "3d"],
)
def test_grid_sample(check, draw, rng, mode, padding, align, x, grid):
    if (mode, padding) == ("cubic", "border"):
        pytest.skip("the reference clips the point itself, onnxruntime and PyTorch each element")
    where = rng.uniform(-1.6, 1.6, grid).astype(np.float32)
    attrs = GridSampleAttrs(mode, padding, bool(align))
    theirs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    arrays = [draw("float32", *x), where]
    check("GridSample", attrs, arrays, "GridSample", theirs, opset=22, tolerance=1e-4)


def test_grid_sample_types(run, check_fp16, draw, rng):
    grid = rng.uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)
    for mode, dtype in product(("nearest", "linear"), ("float64", "int32", "uint8")):
        run("GridSample", GridSampleAttrs(mode), [draw(dtype, 1, 2, 5, 7), grid])
    check_fp16("GridSample", GridSampleAttrs(), [draw("float32", 1, 2, 5, 7), grid])


@pytest.mark.parametrize(("mode", "padding", "align"), GRID_CASES)
def test_grid_sample_of_wild_coordinates(run, draw, mode, padding, align, recwarn):
    grid = np.float32([np.nan, np.inf, -np.inf, 1e30, -1e30, 0, 1, -1]).reshape(1, 2, 2, 2)
    attrs = GridSampleAttrs(mode, padding, bool(align))
    run("GridSample", attrs, [draw("float32", 1, 1, 3, 3), grid])
    run("GridSample", attrs, [draw("float32", 1, 1, 1, 1), grid])
    assert not recwarn.list


@pytest.mark.parametrize(
    ("x", "grid"),
    [((0, 3, 5, 5), (0, 2, 2, 2)), ((1, 3, 5, 5), (1, 0, 2, 2)), ((1, 0, 5, 5), (1, 2, 2, 2))],
)
def test_grid_sample_of_nothing(run, draw, x, grid):
    (y,) = run("GridSample", GridSampleAttrs(), [draw("float32", *x), draw("float32", *grid)])
    assert y.size == 0


@pytest.mark.parametrize(
    ("x", "grid", "attrs"),
    [
        ((1, 3, 5, 5), (1, 2, 2, 3), GridSampleAttrs()),
        ((1, 3, 5, 5), (2, 2, 2, 2), GridSampleAttrs()),
        ((1, 3, 0, 5), (1, 2, 2, 2), GridSampleAttrs()),
        ((1, 3), (1, 0), GridSampleAttrs()),
        ((1, 3, 5, 5), (1, 2, 2, 2), GridSampleAttrs("bilinear")),
        ((1, 3, 5, 5), (1, 2, 2, 2), GridSampleAttrs("linear", "wrap")),
    ],
)
def test_impossible_grids(run, draw, x, grid, attrs):
    with pytest.raises(ShapeError, match="GridSample"):
        run("GridSample", attrs, [draw("float32", *x), draw("float32", *grid)])
