"""Resize and GridSample: output shapes, and the sampling tables of Resize along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vkmnn.base.records import dataclass
from vkmnn.errors import ShapeError
from vkmnn.ir import Dim, Op
from vkmnn.ir.ops import GridSampleAttrs, InterpAttrs
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    content_of,
    dtype_of,
    int_list,
    normalize_axes,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found, NamedShape
from vkmnn.shape.symbolic.rules import is_absent, shape_rule

MODES = ("nearest", "linear", "cubic")
COORDINATE_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")
GRID_PADDING_MODES = ("zeros", "border", "reflection")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AxisResize:
    """Resizing of one axis: from `size` to `output` elements.

    `scale` is the one in ONNX's coordinate formulas (output / size, up to rounding); `start` and
    `end` are the normalised region of interest, 0 and 1 unless the mode is tf_crop_and_resize.
    """

    size: int
    output: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def is_identity(self) -> bool:
        """True when the axis is not touched."""
        return (
            self.size == self.output
            and math.isclose(self.scale, 1.0)
            and (self.start, self.end) == (0.0, 1.0)
        )


def _one_of(value: str, allowed: Sequence[str], what: str) -> None:
    if value not in allowed:
        raise ShapeError(f"{what} '{value}' is not one of {', '.join(allowed)}")


def _floats(numbers: Sequence[float], count: int, what: str) -> list[float]:
    result = [float(number) for number in numbers]
    if len(result) != count or not all(math.isfinite(number) for number in result):
        raise ShapeError(f"{what} must hold {count} finite numbers, got {result}")
    return result


def interp_sizes_and_scales(
    attrs: InterpAttrs,
    shape: Sequence[int],
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    roi: Sequence[float] | None = None,
) -> list[AxisResize]:
    """Return how ONNX Resize 19 treats every axis of `shape`.

    Exactly one of `scales` and `sizes` must be given (an empty one counts as absent). They and
    `roi` refer to `attrs.axes`, or to all axes. Sizes from scales are floor(size * scale) with the
    product rounded to float32, so that 10 * float32(0.7) is 7; the region of interest does not
    change them.

    Raises:
        ShapeError: lengths or values do not fit.
    """
    rank = len(shape)
    axes = normalize_axes(attrs.axes, rank) if attrs.axes else list(range(rank))
    if bool(scales) == bool(sizes) and axes:
        raise ShapeError("exactly one of scales and sizes must be given")
    result = [AxisResize(size, size, 1.0) for size in shape]
    starts, ends = [0.0] * len(axes), [1.0] * len(axes)
    if attrs.coordinate_mode == "tf_crop_and_resize":
        both = _floats(roi or (), 2 * len(axes), "roi")
        starts, ends = both[: len(axes)], both[len(axes) :]
    if sizes:
        outputs, factors = _from_sizes(attrs, [shape[axis] for axis in axes], list(sizes))
    else:
        factors = _floats(scales or (), len(axes), "scales")
        if any(factor <= 0 for factor in factors):
            raise ShapeError(f"scales {factors} must be positive")
        outputs = [_scaled(shape[axis], factor) for axis, factor in zip(axes, factors, strict=True)]
    if attrs.whole_lengths:
        factors = _ratios(outputs, [shape[axis] for axis in axes])
    for axis, output, factor, start, end in zip(axes, outputs, factors, starts, ends, strict=True):
        if shape[axis] == 0 and output:
            raise ShapeError(f"axis {axis} is empty and cannot become {output}")
        result[axis] = AxisResize(shape[axis], output, factor, start, end)
    return result


def _scaled(size: int, factor: float) -> int:
    return math.floor(float(np.float32(size * factor)))


def _ratios(sizes: Sequence[int], dims: Sequence[int]) -> list[float]:
    return [size / dim if dim else 1.0 for size, dim in zip(sizes, dims, strict=True)]


def _from_sizes(
    attrs: InterpAttrs, dims: list[int], sizes: list[int]
) -> tuple[list[int], list[float]]:
    if len(sizes) != len(dims) or any(size < 0 for size in sizes):
        raise ShapeError(f"sizes {sizes} must hold {len(dims)} numbers of at least 0")
    policy = attrs.keep_aspect_ratio_policy
    _one_of(policy, POLICIES, "keep_aspect_ratio_policy")
    factors = _ratios(sizes, dims)
    if policy == "stretch":
        return sizes, factors
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [math.floor(factor * dim + 0.5) for dim in dims], [factor] * len(dims)


def resize_axes(op: Op[InterpAttrs], shape: Sequence[int], values: Values) -> list[AxisResize]:
    """Return how Interp `op` treats every axis of `shape`, given the contents of its inputs.

    Raises:
        ShapeError: attributes or contents do not fit, or a content is unknown.
    """
    attrs = op.attrs
    _one_of(attrs.mode, MODES, "mode")
    _one_of(attrs.coordinate_mode, COORDINATE_MODES, "coordinate_mode")
    _one_of(attrs.nearest_mode, NEAREST_MODES, "nearest_mode")
    if attrs.antialias and attrs.mode == "nearest":
        raise ShapeError("antialias needs mode linear or cubic")
    present = [bool(name) for name in op.inputs] + [False] * 4
    roi = content_of(values, 1).reshape(-1).tolist() if present[1] else None
    scales = content_of(values, 2).reshape(-1).tolist() if present[2] else None
    sizes = int_list(values, 3, "sizes") if present[3] else None
    return interp_sizes_and_scales(attrs, shape, scales, sizes, roi)


def source_coordinates(axis: AxisResize, coordinate_mode: str) -> Floats:
    """Return the input coordinate of every output element (ONNX coordinate_transformation_mode).

    As in ONNX's reference, the length in align_corners, half_pixel_symmetric and
    tf_crop_and_resize is scale · size, which scales may make fractional; see `whole_lengths`.
    """
    x = np.arange(axis.output, dtype=np.float64)
    if axis.output == 0:
        return x
    length = axis.scale * axis.size
    if coordinate_mode == "align_corners":
        return np.zeros_like(x) if length == 1 else x * (axis.size - 1) / (length - 1)
    if coordinate_mode == "asymmetric":
        return x / axis.scale
    if coordinate_mode == "tf_half_pixel_for_nn":  # of opset 11 and 12
        return (x + 0.5) / axis.scale
    if coordinate_mode == "tf_crop_and_resize":
        span = (axis.end - axis.start) * (axis.size - 1)
        along = np.full_like(x, span / 2) if length == 1 else x * span / (length - 1)
        return along + axis.start * (axis.size - 1)
    if coordinate_mode == "pytorch_half_pixel" and axis.output == 1:
        return np.zeros_like(x)
    half_pixel = (x + 0.5) / axis.scale - 0.5
    if coordinate_mode == "half_pixel_symmetric":
        return half_pixel + axis.size / 2 * (1 - axis.output / length)
    return half_pixel


def nearest_indices(coordinates: Floats, nearest_mode: str) -> Ints:
    """Round coordinates to indices; results may be outside the axis."""
    if nearest_mode == "floor":
        rounded = np.floor(coordinates)
    elif nearest_mode == "ceil":
        rounded = np.ceil(coordinates)
    elif nearest_mode == "round_prefer_ceil":
        rounded = np.floor(coordinates + 0.5)
    else:
        rounded = np.ceil(coordinates - 0.5)
    return rounded.astype(np.int64)


def _triangle(distance: Floats) -> Floats:
    return np.clip(1.0 - np.abs(distance), 0.0, 1.0)


def cubic_kernel(distance: Floats, a: float) -> Floats:
    """Cubic convolution (R. Keys 1981, https://ieeexplore.ieee.org/document/1163711, eq. 4)."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def axis_taps(axis: AxisResize, attrs: InterpAttrs) -> tuple[Ints, Floats, npt.NDArray[np.bool_]]:
    """Return the taps of every output element along one axis.

    Returns:
        Indices [output, taps], clamped into the axis; weights [output, taps]; and which output
        elements lie outside and get `attrs.extrapolation_value` [output] (tf_crop_and_resize only).
    """
    x = source_coordinates(axis, attrs.coordinate_mode)
    outside = np.zeros(x.shape, dtype=np.bool_)
    if attrs.coordinate_mode == "tf_crop_and_resize":
        outside = (x < 0) | (x > axis.size - 1)
    if attrs.mode == "nearest":
        indices = nearest_indices(x, attrs.nearest_mode)[:, None]
        return np.clip(indices, 0, max(axis.size - 1, 0)), np.ones(indices.shape), outside
    # With antialias the kernel is stretched by 1 / scale when the axis shrinks.
    shrink = min(axis.scale, 1.0) if attrs.antialias else 1.0
    excludes = attrs.exclude_outside
    if attrs.antialias and attrs.whole_lengths:
        # PyTorch: half pixels, but by the step between aligned corners.
        step = (axis.size - 1) / (axis.output - 1) if axis.output > 1 else 0.0
        x = (np.arange(axis.output, dtype=np.float64) + 0.5) * step - 0.5
        shrink = 1 / max(step, 1.0)
        excludes = True
    radius = 1 if attrs.mode == "linear" else 2
    reach = math.ceil(radius / shrink)
    indices = np.ceil(x).astype(np.int64)[:, None] + np.arange(-reach, reach)
    distance = (indices - x[:, None]) * shrink
    weights = (
        _triangle(distance)
        if attrs.mode == "linear"
        else cubic_kernel(distance, attrs.cubic_coeff_a)
    )
    if excludes:
        weights = np.where((indices < 0) | (indices >= axis.size), 0.0, weights)
    if excludes or attrs.antialias:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return np.clip(indices, 0, max(axis.size - 1, 0)), weights, outside


@size_computer("Interp")
def _interp(op: Op[InterpAttrs], inputs: Infos, values: Values) -> Outputs:
    axes = resize_axes(op, shape_of(inputs, 0), values)
    return [(dtype_of(inputs, 0), tuple(axis.output for axis in axes))]


@shape_rule("Interp")
def _named_interp(op: Op[InterpAttrs], facts: Facts) -> list[Found]:
    attrs, shape = op.attrs, facts.shape(op)
    if shape is None:
        return [(facts.dtype(op), None)]
    axes = normalize_axes(attrs.axes, len(shape)) if attrs.axes else range(len(shape))
    sizes = _named_sizes(op, [shape[axis] for axis in axes], facts)
    if attrs.keep_aspect_ratio_policy != "stretch" or sizes is None or len(sizes) != len(axes):
        sizes = (None,) * len(axes)
    dims = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        dims[axis] = size
    return [(facts.dtype(op), tuple(dims))]


def _named_sizes(op: Op, dims: Sequence[Dim], facts: Facts) -> NamedShape | None:
    """Return the new sizes: as given, or by scales; sizes with names must be whole multiples."""
    if not is_absent(op, 3):
        return facts.values(op, 3)
    scales = None if is_absent(op, 2) else facts.constants.get(op.inputs[2])
    if scales is None or scales.size != len(dims):
        return None
    return tuple(
        _scaled(dim, factor)
        if isinstance(dim, int)
        else facts.algebra.multiply(dim, int(factor) if factor.is_integer() else None)
        for dim, factor in zip(dims, map(float, scales.reshape(-1)), strict=True)
    )


@size_computer("GridSample")
def _grid_sample(op: Op[GridSampleAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    _one_of(attrs.mode, MODES, "mode")
    _one_of(attrs.padding_mode, GRID_PADDING_MODES, "padding_mode")
    x, grid = shape_of(inputs, 0), shape_of(inputs, 1)
    spatial = len(x) - 2
    if spatial < 1 or len(grid) != len(x) or grid[-1] != spatial or grid[0] != x[0]:
        raise ShapeError(f"grid {grid} must have shape [{x[0]}, *output, {spatial}] for x {x}")
    output: Shape = (x[0], x[1], *grid[1:-1])
    if 0 in x[2:] and 0 not in output:
        raise ShapeError(f"there is nothing to sample in {x}")
    return [(dtype_of(inputs, 0), output)]


@shape_rule("GridSample")
def _named_grid_sample(op: Op, facts: Facts) -> list[Found]:
    x, grid = facts.shape(op), facts.shape(op, 1)
    known = x is not None and grid is not None and len(x) == len(grid)
    return [(facts.dtype(op), (*x[:2], *grid[1:-1]) if known and x and grid else None)]
