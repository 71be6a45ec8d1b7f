"""Cases of `raster`, `copy`, `fill`, `convert_layout` and `convert_width`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkmnn.cpu_fallback import run_op
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Array, Graph, Op, OpAttrs
from vkmnn.ir.ops import (
    AxisAttrs,
    BlockAttrs,
    ConvolutionAttrs,
    ImageToTensorAttrs,
    MatMulAttrs,
    PadAttrs,
    PoolingAttrs,
    ReductionAttrs,
    ScatterNDAttrs,
    TransposeAttrs,
    UnaryAttrs,
)
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, shader_cases, tensor_info
from vkmnn.testing.shapes import SHAPES, f32, floats, integers, whole
from vkmnn_suite.cases.coded import as_bytes, chain_case, codes_from, maximum, quantizer

NO_ATTRS = OpAttrs()
Shape = tuple[int, ...]


def _typed(number: int, *shape: int, seed: int = 0) -> AnyArray:
    made = integers(*shape, seed=seed, low=0, high=99)
    dtypes = (np.float32, np.int32, np.int64, np.uint8, np.float16, np.bool_)
    dtype = dtypes[number % len(dtypes)]
    return made % 2 == 1 if dtype is np.bool_ else made.astype(dtype)


def _case(op_type: str, attrs: OpAttrs, *inputs: AnyArray) -> Case:
    """Return a case whose first input is fed while the others hold the parameters."""
    return op_case(op_type, attrs, inputs, constant=range(1, len(inputs)), rtol=0, atol=0)


def _slice_inputs(x: AnyArray, *ranges: tuple[int, int, int, int]) -> list[AnyArray]:
    """Return the inputs of a slice; a range is (axis, begin, end, step)."""
    axes, *rest = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    return [x, rest[0], rest[1], axes, rest[2]]


def _slice(x: AnyArray, *ranges: tuple[int, int, int, int]) -> Case:
    return _case("Slice", NO_ATTRS, *_slice_inputs(x, *ranges))


def _pad(x: AnyArray, pads: Sequence[int], value: float) -> Case:
    return _case("Pad", PadAttrs(), x, np.array(pads, np.int64), np.array(value).astype(x.dtype))


# Shapes and permutations; those of six axes cannot be joined to fewer.
_TURNS: tuple[tuple[Shape, Shape], ...] = (
    ((5, 3), (1, 0)),
    ((7, 11, 13), (2, 0, 1)),
    ((2, 3, 5, 7), (0, 3, 1, 2)),
    ((2, 3, 2, 3, 2, 5), (5, 4, 3, 2, 1, 0)),
    ((3, 2, 5, 2, 3, 2), (1, 0, 3, 2, 5, 4)),
    ((3, 0), (1, 0)),
    ((1,), (0,)),
)
_WIDE_TURNS: tuple[tuple[Shape, Shape], ...] = (
    ((5, 3, 4), (1, 0, 2)),
    ((2, 3, 5, 8), (2, 0, 1, 3)),
    ((2, 3, 2, 3, 5, 4), (4, 3, 2, 1, 0, 5)),
    ((3, 2, 2, 2, 3, 8), (1, 0, 4, 2, 3, 5)),
)


@shader_cases("raster")
def raster(variant: Variant) -> Iterator[Case]:
    """Transposes over up to six axes, steps back, repeats, gaps, offsets, and several regions."""
    width = int(variant.axes["width"])
    # More than 2^20 elements, in buffers: texel buffers may have 2^16 alone.
    is_large = width == 1 and variant.axes["load"] == "buffer"
    if variant.axes["blocked"] != "none":
        yield from _from_blocks(width)
        if is_large:
            # Channels in whole blocks stay in them.
            channels = 4 if variant.axes["blocked"] == "both" else 3
            x = integers(1, channels, 1031, 347, high=99).astype(np.float32)
            yield blocked_case("Transpose", TransposeAttrs((0, 1, 3, 2)), [x], rtol=0, atol=0)
        return
    if is_large:
        yield _case("Transpose", TransposeAttrs((1, 0)), floats(1031, 1021))
    for number, (shape, order) in enumerate(_TURNS if width == 1 else _WIDE_TURNS):
        yield _case("Transpose", TransposeAttrs(order), _typed(number, *shape))
    # From and to the middle of a tensor: where pads are negative, it loses something.
    for number, shape in enumerate(((5,), (5, 7), (3, 4, 5), (3, 4, 3, 4, 3, 4))):
        x = _typed(number + 1, *shape[:-1], shape[-1] * width)
        front = [(-1) ** axis * (1 + axis % 2) for axis in range(x.ndim)]
        back = [1 - axis % 3 for axis in range(x.ndim)]
        front[-1] *= width
        back[-1] *= width
        yield _pad(x, [*front, *back], number + 1)
        yield _pad(x, [-pad for pad in (*front, *back)], number + 1)
    x, y = _typed(1, 7, 5 * width), _typed(1, 7, 3 * width) + np.int32(100)
    yield _slice(x, (0, -1, -100, -1))
    yield _slice(x, (0, 5, 0, -2), (1, width, 4 * width, 1))
    yield _case("Expand", NO_ATTRS, x, np.array([3, 7, 5 * width], np.int64))
    yield _case("Expand", NO_ATTRS, x[:, None], np.array([7, 3, 5 * width], np.int64))
    for arrays, axis in (([x, y], 1), ([y, x, y], -1), ([x, x[:3]], 0), ([y, y[:, :0]], 1)):
        yield op_case("Concat", AxisAttrs(axis), arrays, rtol=0, atol=0)
    if width == 1:
        yield _slice(x, (1, -1, -100, -1))
        yield _slice(floats(5, 12, 7), (0, 4, 0, -2), (1, 1, 12, 3), (2, 6, 0, -1))
        yield _case("Expand", NO_ATTRS, floats(3, 1, 5, 1), np.array([3, 2, 5, 4], np.int64))
        yield _case("DepthToSpace", BlockAttrs(2), floats(2, 12, 3, 5))
        yield from _codes_moved()


def _codes_moved() -> Iterator[Case]:
    """Whole blocks of channels, of quantised bytes: four are a word."""
    for low, shape in ((-57, (1, 8, 3, 5)), (-128, (2, 4, 7, 1)), (-255, (3, 12, 2, 3))):
        n, c, h, w = shape
        pads = np.array([0, 0, 1, 2, 0, 0, 0, 3], np.int64)
        moves: list[tuple[str, OpAttrs, dict[str, AnyArray]]] = [
            ("Transpose", TransposeAttrs((0, 1, 3, 2)), {}),
            ("Transpose", TransposeAttrs((3, 1, 0, 2)), {}),
            ("Pad", PadAttrs(), {"pads": pads}),
            ("Pad", PadAttrs("edge"), {"pads": pads}),
            ("Pad", PadAttrs(), {"pads": pads, "value": np.float32(low + 200)}),
            ("Pad", PadAttrs(), {"pads": np.array([1, 4, 0, 0, 0, 8, 0, 1], np.int64)}),
            ("Slice", NO_ATTRS, _ranges((2, -1, -100, -1), (3, 0, w, 2))),
            ("Slice", NO_ATTRS, _ranges((0, n - 1, n, 1), (1, 4 * (c > 4), c, 1))),
            ("Slice", NO_ATTRS, _ranges((0, -1, -100, -1), (1, 0, 4, 1))),
            ("SpaceToDepth", BlockAttrs(2), {}),
        ]
        for op_type, attrs, extra in moves:
            if op_type == "SpaceToDepth" and (h % 2 or w % 2):
                continue
            yield _moved_codes(op_type, attrs, low, [shape], extra)
    for shapes, axis in (
        (((1, 4, 3, 5), (1, 8, 3, 5)), 1),
        (((2, 8, 2, 2), (2, 4, 2, 2), (2, 3, 2, 2)), 1),
        (((1, 5, 3, 7), (1, 5, 2, 7)), 2),
        (((1, 5, 3, 7), (1, 5, 3, 1)), 3),
        (((1, 5, 3, 7), (1, 5, 0, 7)), 2),
        (((1, 1, 1, 2), (1, 1, 1, 3)), 3),
        (((1, 5, 1, 1, 2), (3, 5, 1, 1, 2)), 0),
    ):
        yield _moved_codes("Concat", AxisAttrs(axis), -100, shapes, {})


def _ranges(*ranges: tuple[int, int, int, int]) -> dict[str, AnyArray]:
    """Return the inputs of a slice other than its data; a range is (axis, begin, end, step)."""
    axes, begins, ends, steps = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    return {"begins": begins, "ends": ends, "axes": axes, "steps": steps}


def _moved_codes(
    op_type: str,
    attrs: OpAttrs,
    low: int,
    shapes: Sequence[Shape],
    extra: Mapping[str, AnyArray],
    *,
    twice: bool = False,
) -> Case:
    """Return the case of an op between convolutions that write and read bytes.

    Args:
        op_type: the op that moves them.
        attrs: its attributes.
        low: the lowest quantised value.
        shapes: the shapes of its inputs.
        extra: further inputs, which are constant.
        twice: it reads the same tensors again.
    """
    ops: list[Op] = []
    feeds: dict[str, AnyArray] = {}
    constants: dict[str, AnyArray] = dict(extra)
    for number, shape in enumerate(shapes):
        first, more = as_bytes(f"in{number}", f"codes{number}", shape, low)
        ops.append(first)
        constants |= more
        feeds[f"in{number}"] = codes_from(low, *shape, seed=number)
    names = [f"codes{number}" for number in range(len(shapes))]
    move = Op(op_type, "move", [*names, *names * twice, *extra], ["moved"], attrs)
    known = dict(zip(names, feeds.values(), strict=True)) | dict(extra)
    made = run_op(move, [known[name] for name in move.inputs])[0].shape
    last, more = as_bytes("moved", "out", made, low)
    return chain_case([*ops, move, last], feeds, constants | more)


@shader_cases("raster_parts")
def raster_parts(variant: Variant) -> Iterator[Case]:
    """Two to eighteen regions, of one to nine sources, of up to six axes, plain and blocked."""
    width = int(variant.axes["width"])
    for case in _of_parts(width):
        yield replace(case, takes={"regions": True})


def _of_parts(width: int) -> Iterator[Case]:
    for number, count in enumerate((2, 3, 6, 9, 18)):
        shapes = [(5, 7, (1 + n % 4) * width) for n in range(count)]
        parts = [_typed(number, *shape, seed=seed) for seed, shape in enumerate(shapes)]
        yield op_case("Concat", AxisAttrs(-1), parts, rtol=0, atol=0)
    # As the heads of detectors, whose parts have more than 2^20 elements together.
    if width == 1:
        parts = [whole(1031, size, seed=size) for size in (4, 81, 1000)]
        yield op_case("Concat", AxisAttrs(-1), parts, rtol=0, atol=0)
    # Nine and 27 regions of one source, steps back among them, of up to six axes.
    for number, shape in enumerate(((4, 5), (3, 4, 3, 2), (2, 3, 2, 3, 2, 3))):
        x = _typed(number, *shape[:-1], shape[-1] * width)
        pads = [axis % 2 for axis in range(x.ndim)]
        if width == 4:
            pads[-2:] = [1, 0]
        inputs = [x, np.array(pads * 2, np.int64)]
        yield _case("Pad", PadAttrs("reflect"), *inputs)
    # Channels, not in whole blocks, of several images; whole blocks in a row.
    if width == 1:
        yield from _codes_in_parts()
        parts = [floats(2, channels, 5, 7, seed=channels) for channels in (3, 6, 1)]
        yield blocked_case("Concat", AxisAttrs(1), parts, rtol=0, atol=0)
    counts = (4, 12) if width == 4 else (3, 13)
    for batch in (1, 2):
        yield _channels_last([whole(batch, count, 5, 3, seed=count) for count in counts])


def _codes_in_parts() -> Iterator[Case]:
    """Whole blocks of channels, of quantised bytes: from several sources, twice, and reflected."""
    sizes: tuple[tuple[Shape, ...], ...] = (
        ((1, 5, 3, 7), (1, 5, 2, 7), (1, 5, 1, 7)),
        ((2, 4, 3, 1), (2, 4, 2, 1)),
    )
    for shapes in sizes:
        yield _moved_codes("Concat", AxisAttrs(2), -100, shapes, {}, twice=True)
    pads = {"pads": np.array([0, 0, 1, 2, 0, 0, 1, 1], np.int64)}
    yield _moved_codes("Pad", PadAttrs("reflect"), -57, [(2, 8, 3, 5)], pads)


def _channels_last(images: Sequence[AnyArray]) -> Case:
    """Return the case of images whose channels become the last axis, one after the other."""
    feeds = {f"in{number}": image for number, image in enumerate(images)}
    ops = []
    for name in feeds:
        pooled, turned = f"{name}:pooled", f"{name}:turned"
        ops.append(maximum(name, pooled, 2))
        ops.append(Op("Transpose", f"{turned}:op", [pooled], [turned], _CHANNELS_LAST))
    parts = [f"{name}:turned" for name in feeds]
    ops.append(Op("Concat", "concat", parts, ["out"], AxisAttrs(-1)))
    return chain_case(ops, feeds, {})


_CHANNELS_LAST = TransposeAttrs((0, 2, 3, 1))


# Channel-blocked shapes and permutations; those for wide copies move channels to the end.
_BLOCKED_TURNS: tuple[tuple[Shape, Shape], ...] = (
    ((1, 3, 5), (0, 2, 1)),
    ((3, 5, 7), (2, 1, 0)),
    ((2, 6, 5, 7), (0, 1, 3, 2)),
    ((2, 7, 3, 5), (3, 1, 0, 2)),
    ((3, 9, 2, 3, 5), (0, 4, 2, 1, 3)),
    ((2, 6, 8, 7), (0, 2, 3, 1)),
    ((3, 3, 4, 2), (0, 2, 1, 3)),
    ((1, 5, 12, 509), (0, 2, 1, 3)),
    ((2, 3, 2, 4, 3, 5), (0, 3, 2, 5, 4, 1)),
)
_WIDE_BLOCKED_TURNS: tuple[tuple[Shape, Shape], ...] = (
    ((1, 8, 5), (0, 2, 1)),
    ((3, 12, 7), (2, 0, 1)),
    ((2, 20, 5, 7), (0, 2, 3, 1)),
    ((2, 8, 3, 5), (3, 0, 2, 1)),
    ((3, 4, 2, 3, 5), (4, 0, 2, 3, 1)),
)


def _from_blocks(width: int) -> Iterator[Case]:
    for number, (shape, order) in enumerate(_BLOCKED_TURNS if width == 1 else _WIDE_BLOCKED_TURNS):
        x = integers(*shape, seed=number, high=99).astype(np.float32)
        yield blocked_case("Transpose", TransposeAttrs(order), [x], rtol=0, atol=0)
    # Copies of every other channel, pixel, or both, which start and end within.
    x = floats(2, 16, 5, 6)
    steps = (((1, 1, 16, 3),), ((3, 4, 0, -2),), ((1, 13, 1, -1), (2, 1, 5, 2)))
    for ranges in steps if width == 1 else ():
        inputs = _slice_inputs(x, *ranges)
        yield blocked_case("Slice", NO_ATTRS, inputs, constant=range(1, 5), rtol=0, atol=0)
    for channels in (4, 12) if width == 1 else ():
        attrs = BlockAttrs(2)
        yield blocked_case("DepthToSpace", attrs, [floats(2, channels, 3, 5)], rtol=0, atol=0)


@shader_cases("copy")
def copy(variant: Variant) -> Iterator[Case]:
    """Scattering nothing but one row; it copies all of its data first."""
    for number, shape in enumerate(((1,), (7,), (4, 8), (3, 5, 7), (3, 1021), (0, 3))):
        for dtype in (np.float32, np.int32, np.int64, np.float16):
            x = integers(*shape, seed=number, low=-99, high=99).astype(dtype)
            count = min(1, shape[0])
            index = np.zeros((count, 1), np.int64)
            inputs: list[Array | None] = [x, index, np.full((count, *shape[1:]), 7, dtype)]
            yield op_case("ScatterND", ScatterNDAttrs(), inputs, rtol=0, atol=0)


@shader_cases("fill")
def fill(variant: Variant) -> Iterator[Case]:
    """Elements that no region writes; results without elements."""
    for number, shape in enumerate(shape for shape in SHAPES if shape):
        x = _typed(number, *shape)
        yield _pad(x, [1, *[0] * (x.ndim - 1)] * 2, number)
    if variant.element == "f32":
        pads = {"pads": np.array([0, 0, 2, 1, 0, 0, 0, 3], np.int64)}
        for low, channels, value in ((-57, 4, 198), (-200, 8, 0), (-255, 5, 0), (0, 8, 255)):
            extra = pads | {"value": np.float32(value)}
            yield _moved_codes("Pad", PadAttrs(), low, [(2, channels, 3, 5)], extra)
    yield _pad(floats(3, 5), [0, 131, 0, 0], -0.75)
    yield _pad(integers(3, 5), [0, 131, 0, 0], -7)
    for kind in ("SUM", "PROD", "MAX", "MIN"):
        for axis in (0, 1):
            for x in (np.zeros((3, 0), np.float32), np.zeros((0, 131), np.float32)):
                if kind in ("MAX", "MIN") or x.shape[axis] == 0:
                    inputs: list[Array | None] = [x, np.array([axis], np.int64)]
                    attrs = ReductionAttrs(kind, False)
                    yield op_case("Reduction", attrs, inputs, constant={1}, rtol=0, atol=0)


@shader_cases("convert_layout")
def convert_layout(variant: Variant) -> Iterator[Case]:
    """Images of one to nine channels, in several batches, with up to three spatial axes."""
    if variant.axes["result"] == "c8":
        for channels, low in ((1, -255), (3, 0), (4, -57), (6, -128), (9, -1)):
            for batch, space in ((1, (5, 3)), (3, (7,)), (2, (2, 3, 5))):
                shape = (batch, channels, *space)
                first, constants = as_bytes("in0", "codes", shape, low)
                ops = [first, maximum("codes", "out", len(space))]
                yield chain_case(ops, {"in0": codes_from(low, *shape)}, constants)
                yield _quantized(low, *shape)
        return
    for channels in range(1, 10):
        for batch, space in ((1, (5, 3)), (3, (7,)), (2, (1, 1)), (2, (2, 3, 5))):
            x = floats(batch, channels, *space)
            yield blocked_case("Transpose", _SAME[len(space)], [x], rtol=0, atol=0)
    x = integers(2, 7, 5)
    yield blocked_case("Transpose", _SAME[1], [x])
    if variant.axes["dest"] == "nc4hw4":
        yield from _image_inputs()
    if variant.floats != "f32":
        for channels in (1, 6, 8):
            yield from _width_changes(floats(2, channels, 3, 5))


def _image_inputs() -> Iterator[Case]:
    """Yield images of bytes and of floats in both orders, some normalised by channel."""
    for channels in range(1, 10):
        for shape in ((1, 5, 3, channels), (3, 7, channels), (2, 2, 3, 5, channels)):
            for x in (integers(*shape), floats(*shape)):
                attrs = ImageToTensorAttrs()
                yield _before_pooling(attrs, x)
                planes = np.ascontiguousarray(np.moveaxis(x, -1, 1))
                yield _before_pooling(replace(attrs, channels_last=False), planes)
                yield _before_pooling(replace(attrs, single=True), x)
                if channels <= 4:
                    scale = (0.5, -2.0, 1.25, 3.0)[:channels]
                    bias = (-1.0, 0.375, 100.0, -7.0)[:channels]
                    yield _before_pooling(replace(attrs, scale=scale, bias=bias), x)
                    yield _before_pooling(replace(attrs, bias=bias), x)


def _before_pooling(attrs: ImageToTensorAttrs, x: AnyArray) -> Case:
    op = Op("ImageToTensor", "op", ["in0"], ["tensor"], attrs)
    ops = [op, maximum("tensor", "out", x.ndim - 2 + attrs.single)]
    return replace(chain_case(ops, {"in0": x}, {}, rtol=1e-5), atol=1e-5)


def _quantized(low: int, *shape: int) -> Case:
    """Return the case of floats that are quantised to bytes: ties, infinities, NaN."""
    x = codes_from(low - 9, *shape) * np.float32(0.375)
    x.flat[::7] = np.resize(f32([np.nan, np.inf, -np.inf, -0.0, 1e-40]), x.flat[::7].shape)
    rounds = Op("Elementwise", "rounds", ["in0"], ["codes"], quantizer(0.75, low, low + 255))
    return chain_case([rounds, maximum("codes", "out", len(shape) - 2)], {"in0": x}, {})


def _width_changes(x: AnyArray) -> Iterator[Case]:
    """Yield cases in which layout and width change at once, between ops that insist on theirs.

    Norms stay 32-bit, matrix products and convolutions use fp16.
    """
    channels, columns = x.shape[1], x.shape[3]
    attrs: dict[str, OpAttrs] = {
        "Pooling": _pixel_pooling("MAX"),
        "norm": _pixel_pooling("LP"),
        "UnaryOp": UnaryAttrs("EXP"),
        "MatMul": MatMulAttrs(),
        "Convolution": ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), channels),
    }
    weights = {"MatMul": np.eye(columns), "Convolution": np.ones((channels, 1, 1, 1))}
    for first, second in (
        ("UnaryOp", "Convolution"),
        ("Pooling", "MatMul"),
        ("norm", "MatMul"),
        ("MatMul", "norm"),
    ):
        ops: list[Op] = []
        constants: dict[str, Array] = {}
        for number, kind in enumerate((first, second)):
            inputs = [f"x{number}"]
            if kind in weights:
                constants[f"w{number}"] = weights[kind].astype(np.float32)
                inputs.append(f"w{number}")
            op_type = "Pooling" if kind == "norm" else kind
            ops.append(Op(op_type, kind, inputs, [f"x{number + 1}"], attrs[kind]))
        source, result = tensor_info("x0", x), tensor_info("x2", x)
        yield Case(Graph(f"{first} {second}", [source], [result], ops, constants), {"x0": x})


def _pixel_pooling(kind: str) -> PoolingAttrs:
    return PoolingAttrs(kind, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))


@shader_cases("convert_width")
def convert_width(variant: Variant) -> Iterator[Case]:
    """Tensors of any rank converted to fp16 and back, infinities and NaN among them."""
    for shape in (*SHAPES, (4, 1021)):
        x = floats(*shape)
        if x.size > 3:
            x.reshape(-1)[:3] = np.inf, -np.inf, np.nan
        yield _case("Concat", AxisAttrs(0), x) if shape else _case("Expand", NO_ATTRS, x, _NO_AXES)


_NO_AXES = np.zeros(0, np.int64)
_SAME = {rank: TransposeAttrs(tuple(range(rank + 2))) for rank in (1, 2, 3)}
