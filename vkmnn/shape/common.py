"""Helpers of shape computers: attributes, inputs, axes, broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.errors import ShapeError
from vkmnn.ir import Array, DType, Op, TensorInfo

Infos = Sequence[TensorInfo | None]
Values = Sequence[Array | None]
Shape = tuple[int, ...]
Outputs = list[tuple[DType, Shape]]


def has_input(inputs: Sequence[object | None], index: int) -> bool:
    """True when optional input `index` is given."""
    return index < len(inputs) and inputs[index] is not None


def info_of(inputs: Infos, index: int) -> TensorInfo:
    """Return the info of input `index`.

    Raises:
        ShapeError: the input is absent.
    """
    info = inputs[index] if index < len(inputs) else None
    if info is None:
        raise ShapeError(f"input {index} is required but absent")
    return info


def shape_of(inputs: Infos, index: int) -> Shape:
    """Return the static shape of input `index`; ShapeError when it is absent."""
    return info_of(inputs, index).dims


def dtype_of(inputs: Infos, index: int) -> DType:
    """Return the element type of input `index`; ShapeError when it is absent."""
    return info_of(inputs, index).dtype


def _present(inputs: Infos, indices: Sequence[int]) -> list[TensorInfo]:
    """Return the infos of the inputs in `indices` that are present, at least one.

    Raises:
        ShapeError: all are absent.
    """
    given = [inputs[index] for index in indices if index < len(inputs)]
    present = [info for info in given if info is not None]
    if not present:
        raise ShapeError(f"input {indices[0]} is required but absent")
    return present


def same_dtype(inputs: Infos, *indices: int) -> DType:
    """Return the common element type of the inputs; absent ones are skipped.

    Raises:
        ShapeError: they differ, or all are absent.
    """
    present = _present(inputs, indices)
    if any(info.dtype is not present[0].dtype for info in present):
        names = ", ".join(info.dtype.value for info in present)
        raise ShapeError(
            f"element types of the inputs differ: {names}", hint="insert a Cast before this op"
        )
    return present[0].dtype


def like_first_input(op: Op, inputs: Infos, values: Values) -> Outputs:
    """Compute the shape of ops with one output, of the first input's element type and shape.

    `size_computer("Gate")(like_first_input)` registers it.

    Raises:
        ShapeError: the input is absent.
    """
    return [(same_dtype(inputs, 0), same_shape(inputs, 0))]


def same_shape(inputs: Infos, *indices: int) -> Shape:
    """Return the common shape of the inputs; absent ones are skipped.

    Raises:
        ShapeError: they differ, or all are absent.
    """
    present = _present(inputs, indices)
    if any(info.dims != present[0].dims for info in present):
        shapes = " and ".join(str(info.dims) for info in present)
        raise ShapeError(f"shapes of the inputs differ: {shapes}", hint="this op never broadcasts")
    return present[0].dims


def content_of(values: Values, index: int) -> Array:
    """Return the content of input `index`.

    Raises:
        ShapeError: it is not known.
    """
    value = values[index] if index < len(values) else None
    if value is None:
        raise ShapeError(
            f"the content of input {index} is needed to compute the output's shape, but is unknown",
            hint="make the input constant, or let the op start a new pipeline segment",
        )
    return value


def int_list(values: Values, index: int, what: str) -> list[int]:
    """Return the content of input `index` as Python ints; a scalar counts as one element.

    Raises:
        ShapeError: the content is unknown, not of an integer type, or of rank 2 or more.
    """
    value = content_of(values, index)
    if value.dtype.kind not in "iu" or value.ndim > 1:
        raise ShapeError(
            f"{what} must be a 1-D integer tensor, got {value.dtype} of shape {value.shape}"
        )
    return [int(item) for item in value.reshape(-1).tolist()]


def int_scalar(values: Values, index: int, what: str) -> int:
    """Return the content of input `index`, one integer; ShapeError otherwise."""
    items = int_list(values, index, what)
    if len(items) != 1:
        raise ShapeError(f"{what} must hold one integer, got {items}")
    return items[0]


def normalize_axis(axis: int, rank: int, what: str = "axis") -> int:
    """Return `axis` counted from the front.

    Raises:
        ShapeError: it is outside [-rank, rank - 1].
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} {axis} is outside [{-rank}, {rank - 1}] of a rank-{rank} tensor")
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int, what: str = "axis") -> list[int]:
    """Return `axes` counted from the front, in the given order.

    Raises:
        ShapeError: one is out of range, or two are the same.
    """
    result = [normalize_axis(axis, rank, what) for axis in axes]
    if len(set(result)) != len(result):
        raise ShapeError(f"axes {list(axes)} name an axis twice")
    return result


def check_axis_lengths(what: str, *tuples: Sequence[int]) -> None:
    """Raise ShapeError unless all `tuples` have the same length."""
    if len({len(item) for item in tuples}) > 1:
        raise ShapeError(f"{what} differ in length: {', '.join(str(len(t)) for t in tuples)}")


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """Return the shape that `shapes` broadcast to (numpy's rules, which are ONNX's).

    Raises:
        ShapeError: two dimensions differ and neither is 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, rank - len(shape)):
            if dim == 1:
                continue
            if result[axis] not in (1, dim):
                listed = " and ".join(str(tuple(item)) for item in shapes)
                raise ShapeError(f"shapes {listed} do not broadcast: {result[axis]} against {dim}")
            result[axis] = dim
    return tuple(result)


def check_broadcastable_to(shape: Sequence[int], target: Sequence[int], what: str) -> None:
    """Raise ShapeError unless `shape` broadcasts to exactly `target`."""
    aligned = zip(reversed(shape), reversed(target), strict=False)
    if len(shape) > len(target) or any(dim not in (1, size) for dim, size in aligned):
        raise ShapeError(f"{what} of shape {tuple(shape)} does not broadcast to {tuple(target)}")


def check_shape(inputs: Infos, index: int, expected: Shape, what: str) -> None:
    """Raise ShapeError when input `index` is present and its shape is not `expected`."""
    if has_input(inputs, index) and shape_of(inputs, index) != expected:
        raise ShapeError(f"{what} has shape {shape_of(inputs, index)}, expected {expected}")
