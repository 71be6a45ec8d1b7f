"""Operators of detectors: boxes that overlap, and cuts of pictures."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.nodes import BOOL, FLOAT, INT32, INT64
from vkmnn.converter.nodes.composed import filled_up, suppressed
from vkmnn.converter.tensorflow.nodes import TfNode, reads

_LOW = float(np.finfo(np.float32).min)


@reads(*(f"NonMaxSuppression{version}" for version in ("", "V2", "V3", "V4", "V5")))
def suppression(op: TfNode) -> None:
    """NonMaxSuppression; V4 and V5 fill results up with zeros, and give their number."""
    version = int(op.type[-1]) if op.type[-1].isdecimal() else 1
    op.need({1: 3, 2: 4, 3: 5, 4: 5, 5: 6}[version])
    overlap = op.inputs[3] if version > 1 else op.constant(op.real("iou_threshold", 0.5), "f4")
    least = op.inputs[4] if version > 2 else op.constant(_LOW, "f4")
    if version == 5 and not _is_zero(op, 5):
        raise op.unreadable("scores that overlaps lower (soft NMS)")
    boxes, scores = (op.cast(name, FLOAT) for name in op.inputs[:2])
    most = op.vector(2)
    chosen = suppressed(op, boxes, scores, most, [overlap, least])
    count = op.make("Shape", chosen, dtype=INT64)
    results = [chosen]
    if version == 5:
        results.append(op.make("Gather", op.inputs[1], chosen, axis=0))
    if op.flag("pad_to_max_output_size"):
        results = [filled_up(op, name, most) for name in results]
    if version > 3:
        results.append(op.make("Squeeze", count, op.constant([0])))
    for number, (name, output) in enumerate(zip(results, op.outputs, strict=False)):
        dtype = op.type_of(op.inputs[1]) if version == 5 and number == 1 else INT32
        op.scope.emit("Cast", [name], [output], op.name, dtype, to=dtype)


def _is_zero(op: TfNode, number: int) -> bool:
    array = op.value(number)
    return array is not None and not array.any()


@reads("CombinedNonMaxSuppression")
def combined(op: TfNode) -> None:
    """NonMaxSuppression of all classes; the best of all are left of each picture."""
    op.need(6)
    (_, boxes, sets, _), (_, _, classes) = (op.sizes(name) for name in op.inputs[:2])
    each, whole = op.settled(2, "a number of boxes"), op.settled(3, "a number of boxes")
    if boxes is None or sets is None or classes is None or len(each) != 1 or len(whole) != 1:
        raise op.unreadable("a number of boxes or classes that is not known")
    if sets not in (1, classes) or not each[0] > 0 or not whole[0] > 0:
        raise op.damaged(f"{sets} sets of boxes for {classes} classes")
    total = min(whole[0], each[0] * classes) if op.flag("pad_per_class") else whole[0]
    scores = op.make("Transpose", op.inputs[1], perm=[0, 2, 1])
    corners = op.make("Transpose", op.inputs[0], perm=[0, 2, 1, 3])
    places = corners
    flat = op.make("Reshape", scores, op.constant([-1, classes * boxes]))
    if sets > 1:
        scores = op.make("Reshape", scores, op.constant([-1, 1, boxes]))
    corners = op.make("Reshape", corners, op.constant([-1, boxes, 4]))
    one = op.constant([1])
    limits = [op.make("Reshape", op.inputs[number], one) for number in (4, 5)]
    most = op.constant([min(each[0], boxes)])
    found = op.make("NonMaxSuppression", corners, scores, most, *limits, dtype=INT64)
    # Of all scores, only those of boxes that are left stay.
    low = op.constant(_LOW, np.float32)
    base = op.make("Expand", low, op.make("Shape", scores, dtype=INT64))
    kept = op.make("ScatterND", base, found, op.make("GatherND", scores, found))
    kept = op.make("Reshape", kept, op.constant([-1, classes * boxes]))
    room = min(total, classes * boxes)
    best, which = op.make_several("TopK", 2, kept, op.constant([room]), axis=1)
    op.scope.types[which] = INT64
    there = op.make("Greater", best, low, dtype=BOOL)
    _give_combined(op, places, flat, which, there, total - room, sets)


def _give_combined(
    op: TfNode, places: str, flat: str, which: str, there: str, missing: int, sets: int
) -> None:
    """Write the outputs: boxes, scores, classes and their number."""
    boxes = op.constant((op.sizes(op.inputs[0]))[1])
    number = op.make("Mod", which, boxes)
    kind = op.make("Div", which, boxes)
    rows = op.make("Reshape", places, op.constant([0, -1, 4]))
    index = number if sets == 1 else which
    corners = op.make(
        "GatherND", rows, op.make("Unsqueeze", index, op.constant([-1])), batch_dims=1
    )
    zero = op.constant(0, np.float32)
    if op.flag("clip_boxes", True):
        corners = op.make("Clip", corners, zero, op.constant(1, np.float32))
    scores = op.make("GatherElements", flat, which, axis=1)
    inside = op.make("Unsqueeze", there, op.constant([-1]))
    results = [
        op.make("Where", inside, corners, zero, dtype=FLOAT),
        op.make("Where", there, scores, zero, dtype=FLOAT),
        op.make("Where", there, op.cast(kind, FLOAT), zero, dtype=FLOAT),
    ]
    if missing:
        pads = [[0, 0, 0, 0, missing, 0], [0, 0, 0, missing], [0, 0, 0, missing]]
        results = [
            op.make("Pad", name, op.constant(pad)) for name, pad in zip(results, pads, strict=True)
        ]
    many = op.make("Cast", there, dtype=INT32, to=INT32)
    results.append(op.make("ReduceSum", many, op.constant([1]), keepdims=0))
    for name, output in zip(results, op.outputs, strict=False):
        op.scope.emit("Identity", [name], [output], op.name)


@reads("CropAndResize")
def crop(op: TfNode) -> None:
    """Gathers of the pixels around each place of the cuts, which are weighed by their distance."""
    op.need(4)
    shape = op.sizes(op.inputs[0])
    size = op.settled(3, "a size")
    nearest = op.text("method", "bilinear") == "nearest"
    if len(shape) != 4 or len(size) != 2 or None in shape[1:3]:
        raise op.unreadable("cuts of pictures of unknown sizes")
    if not all(0 < one <= 1 << 14 for one in size):
        raise op.damaged(f"cuts of {size} pixels")
    lines = [_places(op, axis, size[axis], (shape[1 + axis] or 1) - 1) for axis in range(2)]
    pictures = op.make("Reshape", op.long(2), op.constant([-1, 1, 1]))
    x = op.cast(op.inputs[0], FLOAT)

    def pixels(rows: str, columns: str) -> str:
        """Return pixels at rows [cuts, height] and columns [cuts, width]."""
        parts = [
            op.make("Unsqueeze", rows, op.constant([2])),
            op.make("Unsqueeze", columns, op.constant([1])),
        ]
        whole = op.make("Shape", op.make("Add", *parts), dtype=INT64)
        parts = [op.make("Expand", one, whole) for one in (pictures, *parts)]
        parts = [op.make("Unsqueeze", one, op.constant([-1])) for one in parts]
        return op.make("GatherND", x, op.make("Concat", *parts, axis=-1))

    (rows, below, y), (columns, right, across) = (line[:3] for line in lines)
    if nearest:
        found = pixels(lines[0][4], lines[1][4])
    else:
        across = op.make("Unsqueeze", across, op.constant([1, 3]))
        upper = _between(op, pixels(rows, columns), pixels(rows, right), across)
        lower = _between(op, pixels(below, columns), pixels(below, right), across)
        found = _between(op, upper, lower, op.make("Unsqueeze", y, op.constant([2, 3])))
    inside = op.make(
        "And",
        op.make("Unsqueeze", lines[0][3], op.constant([2, 3])),
        op.make("Unsqueeze", lines[1][3], op.constant([1, 3])),
        dtype=BOOL,
    )
    other = op.constant(op.real("extrapolation_value", 0.0), np.float32)
    op.finish("Where", inside, found, other, dtype=FLOAT)


def _places(op: TfNode, axis: int, size: int, last: int) -> tuple[str, str, str, str, str]:
    """Return pixels before and after each place along an axis, and the distance from the first.

    The other two say whether the place is in the picture, and which pixel is the nearest.
    """
    boxes = op.inputs[1]
    begin, end = (
        op.make("Slice", boxes, *(op.constant([one]) for one in (n, n + 1, 1)))
        for n in (axis, axis + 2)
    )
    if size > 1:
        step = op.make("Mul", op.make("Sub", end, begin), op.constant(last / (size - 1), "f4"))
        steps = op.make("Mul", op.constant(np.arange(size), np.float32), step)
        place = op.make("Add", op.make("Mul", begin, op.constant(last, "f4")), steps)
    else:
        place = op.make("Mul", op.make("Add", begin, end), op.constant(0.5 * last, "f4"))
    zero, top = op.constant(0, np.float32), op.constant(last, np.float32)
    inside = op.make(
        "And",
        op.make("GreaterOrEqual", place, zero, dtype=BOOL),
        op.make("LessOrEqual", place, top, dtype=BOOL),
        dtype=BOOL,
    )
    floor, half = op.make("Floor", place), op.constant(0.5, np.float32)
    near = op.make("Floor", op.make("Add", place, half))
    pixels = [
        op.cast(op.make("Clip", one, zero, top), INT64)
        for one in (floor, op.make("Ceil", place), near)
    ]
    return pixels[0], pixels[1], op.make("Sub", place, floor), inside, pixels[2]


def _between(op: TfNode, a: str, b: str, share: str) -> str:
    return op.make("Add", a, op.make("Mul", op.make("Sub", b, a), share))
