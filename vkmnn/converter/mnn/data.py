"""Data movement: shapes, slices, indexes, resizing."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.converter.mnn.nodes import MnnOp, enum_name, reads
from vkmnn.converter.nodes import BOOL, FLOAT, INT32, INT64
from vkmnn.errors import ModelError

_END = 2**31 - 1


@reads("ConvertTensor")
def convert_tensor(op: MnnOp) -> None:
    """A change of layout: a transposition from or to channels-last."""
    op.need(1)
    table = op.parameters("TensorConvertInfo")
    formats = [enum_name("MNN_DATA_FORMAT", table.integer(name)) for name in ("source", "dest")]
    last = [name in ("NHWC", "NHWC4") for name in formats]
    if last[0] == last[1]:
        op.finish("Identity", op.inputs[0])
    else:
        op.finish("Transpose", op.inputs[0], perm=[0, 3, 1, 2] if last[0] else [0, 2, 3, 1])


@reads("Shape")
def shape(op: MnnOp) -> None:
    """Shape, or a part of it."""
    op.need(1)
    options: dict[str, Any] = {}
    if op.main is not None and op.main.kind == "ShapeParam":
        if op.main.scalar("hasStart"):
            options["start"] = op.main.integer("start")
        if op.main.scalar("hasEnd"):
            options["end"] = op.main.integer("end")
    op.finish_as(INT32, op.make("Shape", op.inputs[0], dtype=INT64, **options))


@reads("Reshape")
def reshape(op: MnnOp) -> None:
    """Reshape to the second input, or to a parameter."""
    op.need(1)
    if len(op.inputs) > 1:
        op.finish("Reshape", op.inputs[0], op.cast(op.inputs[1], INT64))
    else:
        dims = op.parameters("Reshape").integers("dims")
        op.finish("Reshape", op.inputs[0], op.constant(dims))


@reads("Flatten")
def flatten(op: MnnOp) -> None:
    """Flatten to two axes."""
    op.need(1)
    table = op.parameters("Flatten")
    if table.integer("endAxis"):
        raise op.unreadable("a flattening that leaves axes at the end")
    op.finish("Flatten", op.inputs[0], axis=table.integer("axis"))


@reads("Unsqueeze", "Squeeze", "ExpandDims")
def squeeze(op: MnnOp) -> None:
    """Add or remove axes of size 1, by a parameter or the second input."""
    op.need(1)
    kind = "Squeeze" if op.type == "Squeeze" else "Unsqueeze"
    axes: list[int] = []
    if op.main is not None and op.main.kind == "SqueezeParam":
        axes = op.main.integers("squeezeDims")
    elif op.main is not None and op.main.kind in ("Axis", "ExpandDims") and len(op.inputs) < 2:
        axes = [op.main.integer("axis")]
    if axes:
        op.finish(kind, op.inputs[0], op.constant(axes))
    elif len(op.inputs) > 1:
        vector = op.make("Reshape", op.cast(op.inputs[1], INT64), op.constant([-1]))
        found = op.value(1)
        if found is not None:
            vector = op.constant(found.reshape(-1))
        op.finish(kind, op.inputs[0], vector)
    else:
        op.finish(kind, op.inputs[0], dtype=op.type_of(op.inputs[0]))


@reads("Permute", "Transpose")
def permute(op: MnnOp) -> None:
    """Transpose."""
    op.need(1)
    if op.type == "Permute":
        dims: list[int] | None = op.parameters("Permute").integers("dims")
    else:
        dims = op.integers(1)
        if dims is None:
            raise op.unreadable("a transposition by an order that is computed")
    options: dict[str, Any] = {"perm": dims} if dims else {}
    op.finish("Transpose", op.inputs[0], **options)


@reads("Concat", "Pack")
def concat(op: MnnOp) -> None:
    """Concat, or a stack along a new axis."""
    op.need(1)
    if op.type == "Concat":
        op.finish("Concat", *op.inputs, axis=op.parameters("Axis").integer("axis"))
        return
    axis = op.parameters("PackParam").integer("axis")
    parts = [op.make("Unsqueeze", name, op.constant([axis])) for name in op.inputs]
    op.finish("Concat", *parts, axis=axis)


@reads("Slice")
def split(op: MnnOp) -> None:
    """Split: at points, by sizes, or into equal parts, as the model's first format has it."""
    op.need(1)
    table = op.parameters("Slice")
    origin = enum_name("NetSource", table.integer("sourceType"))
    axis, points = table.integer("axis"), table.integers("slicePoints")
    count = len(op.outputs)
    if len(op.inputs) > 1 and not points:
        _split(op, axis, op.cast(op.inputs[1], INT64))
    elif not points or (len(points) == 1 and count != 1 and origin != "CAFFE"):
        equal = not points or origin == "TENSORFLOW"
        sizes = None if equal else op.constant([points[0]] * (count - 1))
        if sizes is not None and count != 1:
            raise op.unreadable("equal parts with a smaller last one")
        _split(op, axis, None)
    elif origin == "CAFFE":
        _split_at(op, axis, points)
    else:
        _split(op, axis, op.constant(points))


def _split(op: MnnOp, axis: int, sizes: str | None) -> None:
    options: dict[str, Any] = {"axis": axis}
    if sizes is None:
        options["num_outputs"] = len(op.outputs)
    inputs = op.inputs[:1] if sizes is None else [op.inputs[0], sizes]
    op.scope.emit("Split", inputs, op.outputs, op.name, **options)


def _split_at(op: MnnOp, axis: int, points: list[int]) -> None:
    if len(points) != len(op.outputs) - 1:
        raise ModelError("it is cut at too few or too many points", op=op.type, node=op.name)
    edges = [0, *points, _END]
    for name, start, end in zip(op.outputs, edges, edges[1:], strict=False):
        bounds = [op.constant([start]), op.constant([end]), op.constant([axis])]
        op.scope.emit("Slice", [op.inputs[0], *bounds], [name], op.name)


@reads("SliceTf")
def slice_tf(op: MnnOp) -> None:
    """Slice by starts and sizes; -1 extends to the end."""
    op.need(3)
    begin, size = (op.cast(name, INT64) for name in op.inputs[1:3])
    begins, sizes = op.integers(1), op.integers(2)
    if begins is not None and sizes is not None and len(begins) == len(sizes):
        ends = [start + count for start, count in zip(begins, sizes, strict=True)]
        pairs = zip(begins, sizes, ends, strict=True)
        whole = [count < 0 or (start < 0 <= stop) for start, count, stop in pairs]
        pairs_ = zip(whole, ends, strict=True)
        end = op.constant([_END if to_end else stop for to_end, stop in pairs_])
    else:
        zero = op.constant(0)
        end = op.make("Add", begin, size)
        from_end = op.make("Less", begin, zero, dtype=BOOL)
        past = op.make("Not", op.make("Less", end, zero, dtype=BOOL), dtype=BOOL)
        open_ = op.make(
            "Or",
            op.make("And", from_end, past, dtype=BOOL),
            op.make("Less", size, zero, dtype=BOOL),
            dtype=BOOL,
        )
        end = op.make("Where", open_, op.constant(_END), end, dtype=INT64)
    op.finish("Slice", op.inputs[0], begin, end)


@reads("StridedSlice")
def strided_slice(op: MnnOp) -> None:
    """Slice as ONNX has it, or as TensorFlow has it where all of it is constant."""
    op.need(3)
    table = op.parameters("StridedSliceParam")
    if table.integer("fromType") == 1:
        more = [op.cast(name, INT64) for name in op.inputs[1:5]]
        op.finish("Slice", op.inputs[0], *more)
        return
    if len(op.inputs) != 4 or any(table.integer(f"{n}Mask") for n in ("ellipsis", "newAxis")):
        raise op.unreadable("a slice that is written to, or adds axes")
    starts, ends, steps = (op.integers(number) for number in (1, 2, 3))
    if (
        starts is None
        or ends is None
        or steps is None
        or len({*map(len, (starts, ends, steps))}) > 1
    ):
        raise op.unreadable("a slice by bounds that are computed")
    masks = [table.integer(f"{name}Mask") for name in ("begin", "end", "shrinkAxis")]
    gone = []
    for axis, step in enumerate(steps):
        begin_open, end_open, shrinks = (mask >> axis & 1 for mask in masks)
        if shrinks:
            gone.append(axis)
            ends[axis] = starts[axis] + 1 if starts[axis] != -1 else _END
            continue
        if begin_open:
            starts[axis] = 0 if step > 0 else _END
        if end_open:
            ends[axis] = _END if step > 0 else -_END
    parts = [op.constant(part) for part in (starts, ends, list(range(len(steps))), steps)]
    result = op.make("Slice", op.inputs[0], *parts)
    op.finish(*(("Squeeze", result, op.constant(gone)) if gone else ("Identity", result)))


@reads("BroadcastTo", "Tile")
def expand(op: MnnOp) -> None:
    """Expand and Tile."""
    op.need(2)
    kind = "Expand" if op.type == "BroadcastTo" else "Tile"
    op.finish(kind, op.inputs[0], op.cast(op.inputs[1], INT64))


@reads("Fill")
def fill(op: MnnOp) -> None:
    """A shape filled with one value."""
    op.need(2)
    value = op.inputs[1]
    op.finish("Expand", value, op.cast(op.inputs[0], INT64))


@reads("ZerosLike")
def zeros(op: MnnOp) -> None:
    """Zeros in the shape of a tensor."""
    op.need(1)
    zero = op.constant(0, np.float32 if op.type_of(op.inputs[0]) == FLOAT else np.int32)
    op.finish("Expand", zero, op.make("Shape", op.inputs[0], dtype=INT64))


@reads("Range")
def count(op: MnnOp) -> None:
    """Range of scalars."""
    op.need(3)
    scalar = op.constant([])
    op.finish("Range", *(op.make("Reshape", name, scalar) for name in op.inputs[:3]))


@reads("Padding")
def padding(op: MnnOp) -> None:
    """Pad; the second input holds pairs of sizes before and after each axis."""
    op.need(2)
    mode = "CONSTANT"
    if op.main is not None and op.main.kind == "PadParam":
        mode = enum_name("PadValueMode", op.main.integer("mode"))
    names = {"CONSTANT": "constant", "REFLECT": "reflect", "EDGE": "edge"}
    if mode not in names:
        raise op.unreadable(f"padding {mode}")
    pairs = op.integers(1)
    if pairs is not None:
        pads = op.constant([*pairs[::2], *pairs[1::2]])
    else:
        table = op.make("Reshape", op.cast(op.inputs[1], INT64), op.constant([-1, 2]))
        table = op.make("Transpose", table, perm=[1, 0])
        pads = op.make("Reshape", table, op.constant([-1]))
    value = op.inputs[2:3] if mode == "CONSTANT" else []
    op.finish("Pad", op.inputs[0], pads, *value, mode=names[mode])


def _axis(op: MnnOp, number: int, default: int = 0) -> int:
    """Return the axis given by an input or a parameter."""
    if len(op.inputs) > number:
        found = op.integers(number)
        if found is None or len(found) != 1:
            raise op.unreadable("an axis that is computed")
        return found[0]
    if op.main is not None and op.main.kind in ("Axis", "Gather"):
        return op.main.integer("axis")
    return default


@reads("Gather", "GatherV2")
def gather(op: MnnOp) -> None:
    """Gather along an axis."""
    op.need(2)
    op.finish("Gather", *op.inputs[:2], axis=_axis(op, 2))


@reads("GatherElements")
def gather_elements(op: MnnOp) -> None:
    """GatherElements along an axis."""
    op.need(2)
    op.finish("GatherElements", *op.inputs[:2], axis=_axis(op, 2))


@reads("GatherND")
def gather_nd(op: MnnOp) -> None:
    """GatherND."""
    op.need(2)
    indexes = op.cast(op.inputs[1], INT64)
    op.finish("GatherND", op.inputs[0], indexes, batch_dims=_axis(op, 2))


_SCATTER = {"ADD": "add", "MUL": "mul", "MAXIMUM": "max", "MINIMUM": "min",
            "MAX_TEMP": "max", "MIN_TEMP": "min"}  # fmt: skip


def _reduction(op: MnnOp) -> dict[str, Any]:
    if op.main is None or op.main.kind != "BinaryOp":
        return {}
    kind = enum_name("BinaryOpOperation", op.main.integer("opType"))
    if kind not in _SCATTER:
        raise op.unreadable(f"updates by {kind}")
    return {"reduction": _SCATTER[kind]}


@reads("ScatterNd")
def scatter_nd(op: MnnOp) -> None:
    """ScatterND into the fourth input, or into zeros of the shape that the third has."""
    op.need(3)
    indexes, updates = op.cast(op.inputs[0], INT64), op.inputs[1]
    if len(op.inputs) > 3:
        data = op.inputs[3]
    else:
        zero = op.constant(0, np.float32 if op.type_of(updates) == FLOAT else np.int32)
        data = op.make("Expand", zero, op.cast(op.inputs[2], INT64))
    op.finish("ScatterND", data, indexes, updates, **_reduction(op))


@reads("ScatterElements")
def scatter_elements(op: MnnOp) -> None:
    """ScatterElements along an axis."""
    op.need(3)
    op.finish("ScatterElements", *op.inputs[:3], axis=_axis(op, 3), **_reduction(op))


@reads("TopKV2")
def top_k(op: MnnOp) -> None:
    """TopK with int32 indices."""
    op.need(2, 1)
    largest = int(op.main.scalar("largest")) if op.main and op.main.kind == "TopKV2" else 1
    count = op.make("Reshape", op.cast(op.inputs[1], INT64), op.constant([1]))
    places = op.scope.fresh(op.name)
    outputs = [op.outputs[0], places]
    options: dict[str, Any] = {"axis": _axis(op, 2, -1), "largest": largest}
    op.scope.emit("TopK", [op.inputs[0], count], outputs, op.name, **options)
    op.scope.types[places] = INT64
    if len(op.outputs) > 1:
        op.scope.emit("Cast", [places], op.outputs[1:2], op.name, INT32, to=INT32)


@reads("OneHot")
def one_hot(op: MnnOp) -> None:
    """OneHot; the last two inputs are the values on and off."""
    op.need(4)
    values = [op.make("Reshape", name, op.constant([1])) for name in (op.inputs[3], op.inputs[2])]
    pair = op.make("Concat", *values, axis=0)
    axis = op.parameters("OneHotParam").integer("axis")
    op.finish("OneHot", *op.inputs[:2], pair, axis=axis, dtype=op.type_of(op.inputs[2]))


@reads("Where")
def where(op: MnnOp) -> None:
    """Coordinates of non-zero elements, a row for each."""
    op.need(1)
    found = op.make("NonZero", op.inputs[0], dtype=INT64)
    op.finish_as(INT32, op.make("Transpose", found, perm=[1, 0]))


@reads("DepthToSpace", "SpaceToDepth")
def blocks(op: MnnOp) -> None:
    """DepthToSpace and SpaceToDepth."""
    op.need(1)
    table = op.parameters("DepthSpaceParam")
    options: dict[str, Any] = {"blocksize": table.integer("blockSize")}
    if op.type == "DepthToSpace":
        options["mode"] = enum_name("DepthToSpaceMode", table.integer("mode")) or "DCR"
    op.finish(op.type, op.inputs[0], **options)


_MODES = {1: ("nearest", "floor"), 2: ("linear", ""), 3: ("cubic", ""),
          4: ("nearest", "round_prefer_floor")}  # fmt: skip
_COORDINATES = {"AlignCorners": "align_corners", "HalfPixels": "half_pixel",
                "PytorchHalfPixels": "pytorch_half_pixel", "Asymmetric": "asymmetric"}  # fmt: skip


@reads("Interp")
def resize(op: MnnOp) -> None:
    """Resize of pictures."""
    op.need(1)
    table = op.parameters("Interp")
    if table.integer("resizeType") not in _MODES:
        raise op.unreadable(f"resizing of type {table.integer('resizeType')}")
    mode, nearest = _MODES[table.integer("resizeType")]
    options: dict[str, Any] = {"mode": mode, "cubic_coeff_a": float(table.scalar("cubicCoeffA"))}
    if nearest:
        options["nearest_mode"] = nearest
    kind = enum_name("CoordinateTransformationMode", table.integer("ctm"))
    if kind == "NotSet":
        aligned, half = table.scalar("alignCorners"), table.scalar("halfPixelCenters")
        kind = "AlignCorners" if aligned else "HalfPixels" if half else "Asymmetric"
    if kind not in _COORDINATES:
        raise op.unreadable(f"resizing by {kind}")
    options["coordinate_transformation_mode"] = _COORDINATES[kind]
    scales, sizes = _sizes(op)
    op.finish("Resize", op.inputs[0], "", scales, *([sizes] if sizes else []), **options)


def _sizes(op: MnnOp) -> tuple[str, str]:
    """Return the scales and the sizes of a Resize; one of them is absent."""
    table = op.parameters("Interp")
    if len(op.inputs) < 2:
        height, width = table.integer("outputHeight"), table.integer("outputWidth")
        if height > 0 and width > 0:
            start = op.make("Shape", op.inputs[0], dtype=INT64, end=2)
            return "", op.make("Concat", start, op.constant([height, width]), axis=0)
        factors = [1.0, 1.0, float(table.scalar("heightScale")), float(table.scalar("widthScale"))]
        return op.constant(factors, np.float32), ""
    given = op.inputs[1]
    value = op.value(1)
    pictures = value is not None and value.size == 2
    if op.type_of(given) == FLOAT:
        ones = op.constant([1, 1], np.float32)
        return (op.make("Concat", ones, given, axis=0) if pictures else given), ""
    sizes = op.cast(given, INT64)
    if pictures:
        start = op.make("Shape", op.inputs[0], dtype=INT64, end=2)
        sizes = op.make("Concat", start, sizes, axis=0)
    return "", sizes


@reads("GridSample")
def grid_sample(op: MnnOp) -> None:
    """GridSample."""
    op.need(2)
    table = op.parameters("GridSample")
    modes = {"BILINEAR": "linear", "NEAREST": "nearest"}
    borders = {"ZEROS": "zeros", "CLAMP": "border", "REFLECTION": "reflection"}
    mode = modes.get(enum_name("SampleMode", table.integer("mode")))
    border = borders.get(enum_name("BorderMode", table.integer("paddingMode")))
    if mode is None or border is None or len(op.inputs) > 2:
        raise op.unreadable("a mode of that number, or a gradient")
    options: dict[str, Any] = {"align_corners": int(table.scalar("alignCorners"))}
    op.finish("GridSample", *op.inputs[:2], mode=mode, padding_mode=border, **options)


@reads("NonMaxSuppressionV2")
def suppression(op: MnnOp) -> None:
    """NonMaxSuppression of one class: indices of the remaining boxes."""
    op.need(2)
    as_onnx = op.rank(0) == 3  # these files have ONNX's own operands and results
    boxes, scores = op.inputs[:2]
    if not as_onnx:
        boxes = op.make("Unsqueeze", boxes, op.constant([0]))
        scores = op.make("Unsqueeze", scores, op.constant([0, 1]))
    limits = []
    for number, name in enumerate(op.inputs[2:5]):
        value = op.cast(name, INT64) if number == 0 else name
        limits.append(op.make("Reshape", value, op.constant([1])))
    found = op.make("NonMaxSuppression", boxes, scores, *limits, dtype=INT64)
    if as_onnx:
        op.finish_as(INT32, found)
    else:
        op.finish_as(INT32, op.make("Gather", found, op.constant(2), axis=1, dtype=INT64))


@reads("Reverse")
def reverse(op: MnnOp) -> None:
    """Slice backwards, along the axes in the second input."""
    op.need(1)
    axes = op.integers(1) if len(op.inputs) > 1 else [0]
    if axes is None:
        raise op.unreadable("axes that are computed")
    count = len(axes)
    starts, ends = op.constant([-1] * count), op.constant([-(2**63)] * count)
    op.finish("Slice", op.inputs[0], starts, ends, op.constant(axes), op.constant([-1] * count))


@reads("ReverseSequence")
def reverse_sequence(op: MnnOp) -> None:
    """ReverseSequence."""
    op.need(2)
    table = op.parameters("ReverseSequenceParam")
    batch, time = table.integer("batchDim"), table.integer("seqDim")
    if {batch, time} != {0, 1}:
        raise op.unreadable(f"batches along axis {batch}, time along axis {time}")
    lengths = op.cast(op.inputs[1], INT64)
    op.finish("ReverseSequence", op.inputs[0], lengths, batch_axis=batch, time_axis=time)
