"""Several operators together, as exporters write them: the patterns that passes look for."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from vkmnn_suite.fuzz.recipes.quantized import BYTES, SCALES, ZEROS
from vkmnn_suite.fuzz.recipes.table import pattern
from vkmnn_suite.fuzz.recipes.windows import convolution, geometry, image
from vkmnn_suite.fuzz.schemas import Skip
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import FINITE, POSITIVE


def _scalar(s: Sketch, value: float, like: Value) -> Value:
    return s.parameter(s.choose(value, [value]), like.dtype, constant=1.0)


def _reduced(s: Sketch, op: str, x: Value, axis: int) -> Value:
    since = 13 if op == "ReduceSum" else 18
    if s.since(since):
        return s.one(op, x, s.parameter([axis], constant=1.0))
    return s.one(op, x, axes=[axis])


def _round_trip(s: Sketch, x: Value) -> Value:
    """Quantize and dequantize."""
    dtype = s.choose("uint8", "int8")
    scale = s.weight("float32", [], SCALES)
    zero = s.weight(dtype, [], ZEROS[dtype])
    return s.one("DequantizeLinear", s.one("QuantizeLinear", x, scale, zero), scale, zero)


@pattern
def quantized_convolution(s: Sketch) -> None:
    """A convolution between pairs of QuantizeLinear and DequantizeLinear."""
    if not s.since(10):
        raise Skip
    x = _round_trip(s, image(s, "float32", 2))
    filters = s.choose(1, 2, 5)
    w = _round_trip(s, s.weight("float32", [filters, x.shape[1], 1, 1], FINITE))
    y = s.one("Conv", x, w)
    _round_trip(s, s.one("Relu", y) if s.chance(0.5) else y)


@pattern
def quantized_matmul(s: Sketch) -> None:
    """A product between pairs of QuantizeLinear and DequantizeLinear."""
    if not s.since(10):
        raise Skip
    a = _round_trip(s, s.pick("float32", min_rank=2, max_rank=3, spread=FINITE))
    b = _round_trip(s, s.weight("float32", [a.shape[-1], s.size(7)], FINITE))
    _round_trip(s, s.one("MatMul", a, b))


@pattern
def dynamic_quantization(s: Sketch) -> None:
    """A dynamically quantised product or convolution: quantised values, sums, factors, bias."""
    if not s.since(11):
        raise Skip
    dtype = s.choose("uint8", "int8")
    if s.chance(0.5):
        x = image(s, "float32", 2)
        shape = [s.choose(1, 2, 5), x.shape[1], 1, 1]
        op, offset = "ConvInteger", [1, shape[0], 1, 1]
    else:
        x = s.pick("float32", min_rank=2, max_rank=3, spread=FINITE)
        shape = [x.shape[-1], s.size(40)]
        op, offset = "MatMulInteger", [shape[1]]
    x, scale, zero = s.node("DynamicQuantizeLinear", [x], 3)
    w = s.weight(dtype, shape, BYTES[dtype])
    sums = s.one(op, x, w, zero, s.weight(dtype, [], ZEROS[dtype]))
    factor = s.one("Mul", scale, s.weight("float32", s.choose([], [1]), SCALES))
    y = s.one("Mul", s.one("Cast", sums, to=TensorProto.FLOAT), factor)
    s.one("Add", y, s.weight("float32", offset, FINITE))


@pattern
def layer_norm(s: Sketch) -> None:
    """A layer norm in elementary operators."""
    x = s.pick("float32", min_rank=2, max_rank=4, spread=FINITE)
    centred = s.one("Sub", x, _reduced(s, "ReduceMean", x, -1 if s.since(11) else x.rank - 1))
    if s.chance(0.5):
        square = s.one("Mul", centred, centred)
    else:
        square = s.one("Pow", centred, _scalar(s, 2.0, x))
    variance = _reduced(s, "ReduceMean", square, -1 if s.since(11) else x.rank - 1)
    deviation = s.one("Sqrt", s.one("Add", variance, _scalar(s, 1e-3, x)))
    y = s.one("Div", centred, deviation)
    y = s.one("Mul", y, s.weight("float32", x.shape[-1:], FINITE))
    s.one("Add", y, s.weight("float32", x.shape[-1:], FINITE))


@pattern
def rms_norm(s: Sketch) -> None:
    """A root-mean-square norm in elementary operators."""
    x = s.pick("float32", min_rank=2, max_rank=4, spread=FINITE)
    square = s.one("Pow", x, _scalar(s, 2.0, x))
    mean = _reduced(s, "ReduceMean", square, x.rank - 1)
    root = s.one("Sqrt", s.one("Add", mean, _scalar(s, 1e-3, x)))
    y = s.one("Mul", x, s.one("Reciprocal", root)) if s.chance(0.5) else s.one("Div", x, root)
    s.one("Mul", s.weight("float32", x.shape[-1:], FINITE), y)


@pattern
def gelu(s: Sketch) -> None:
    """GELU by Erf."""
    if not s.since(9):
        raise Skip
    x = s.pick("float32", spread=FINITE)
    inner = s.one("Erf", s.one("Div", x, _scalar(s, 2.0**0.5, x)))
    y = s.one("Mul", x, s.one("Add", inner, _scalar(s, 1.0, x)))
    s.one("Mul", y, _scalar(s, 0.5, x))


@pattern
def swish(s: Sketch) -> None:
    """SiLU or Mish by their formulas."""
    x = s.pick("float32", spread=FINITE)
    if s.chance(0.5):
        s.one("Mul", *s.rng.sample([x, s.one("Sigmoid", x)], 2))
    else:
        s.one("Mul", x, s.one("Tanh", s.one("Softplus", x)))


@pattern
def attention(s: Sketch) -> None:
    """Scaled dot-product attention in elementary operators."""
    batch, heads, rows, keys, width = s.choose(1, 2), s.choose(1, 2, 3), s.size(7), s.size(7), 4
    q, k, v = (
        s.pick("float32", [batch, heads, n, width], spread=FINITE) for n in (rows, keys, keys)
    )
    scores = s.one("MatMul", q, s.one("Transpose", k, perm=[0, 1, 3, 2]))
    scores = s.one(s.choose("Mul", "Div"), scores, _scalar(s, 0.5, q))
    if s.chance(0.5):
        mask = s.weight("float32", s.broadcast([batch, heads, rows, keys]), FINITE)
        scores = s.one("Add", scores, mask)
    weights = s.one("Softmax", scores, axis=-1 if s.since(11) else 3)
    y = s.one("MatMul", weights, v)
    if s.chance(0.5):
        y = s.one("Transpose", y, perm=[0, 2, 1, 3])
        s.one("Reshape", y, s.parameter([0, 0, heads * width], constant=1.0))


@pattern
def rotary(s: Sketch) -> None:
    """A rotary embedding in elementary operators, of all columns or the first ones."""
    if not s.since(10):
        raise Skip
    width, kept = s.choose(2, 4, 8, 12), s.choose(0, 0, 3, 4)
    shape = [s.choose(1, 2), s.choose(1, 2, 3), s.size(7), width + kept]
    whole = s.pick("float32", shape, spread=FINITE)

    def cut(start: int, end: int) -> Value:
        bounds = [[start], [end], [3]]
        return s.one("Slice", whole, *(s.parameter(value, constant=1.0) for value in bounds))

    pairs = s.chance(0.3)
    columns = width // 2 if pairs else width
    table = s.choose([1, 1, shape[2], columns], [shape[2], columns], [1, shape[2], columns])
    cos, sin = (s.weight("float32", table, FINITE) for _ in range(2))
    low, high = cut(0, width // 2), cut(width // 2, width)
    if pairs:
        first = s.one("Sub", s.one("Mul", low, cos), s.one("Mul", high, sin))
        second = s.one("Add", s.one("Mul", high, cos), s.one("Mul", low, sin))
        y = s.one("Concat", first, second, axis=3)
    else:
        turned = s.one("Concat", s.one("Neg", high), low, axis=3)
        x = cut(0, width) if kept else whole
        terms = [s.one("Mul", x, cos), s.one("Mul", turned, sin)]
        y = s.one("Add", *s.rng.sample(terms, 2))
    if kept:
        s.one("Concat", y, cut(width, width + kept), axis=3)


@pattern
def residual_block(s: Sketch) -> None:
    """Convolution, batch norm, activation, and a sum after them."""
    y = convolution(s, "Conv", "", {})
    if y.dtype != "float32":
        raise Skip
    if s.chance(0.6):
        c = [y.shape[1]]
        vectors = [s.weight("float32", c, FINITE) for _ in range(3)]
        y = s.one("BatchNormalization", y, *vectors, s.weight("float32", c, POSITIVE))
    if s.chance(0.6):
        y = s.one(s.choose("Relu", "Sigmoid", "LeakyRelu", "HardSigmoid"), y)
    other = s.pick("float32", y.shape, spread=FINITE)
    y = s.one(s.choose("Add", "Mul"), *s.rng.sample([y, other], 2))
    if s.chance(0.5):
        s.one("Relu", y)


@pattern
def picture(s: Sketch) -> None:
    """Bytes with the channels last, or planes, brought into order, normalised and convolved."""
    dtype = s.choose("uint8", "uint8", "int8", "int32", "float32")
    channels, last = s.choose(1, 3, 3, 4, s.size(7)), s.chance(0.8)
    sizes = [s.size(13), s.size(13)]
    batch = s.choose(1, 1, 2)
    shape = [batch, *sizes, channels] if last else [batch, channels, *sizes]
    x = s.pick(dtype, shape, spread=FINITE)
    steps = s.rng.sample(["move", "cast", "affine", "affine"], 4)
    for step in steps:
        if step == "move" and last:
            x, last = s.one("Transpose", x, perm=[0, 3, 1, 2]), False
        elif step == "cast" or (step == "affine" and x.dtype != "float32"):
            x = s.one("Cast", x, to=TensorProto.FLOAT)
        if step == "affine":
            offset = s.choose([], [channels], [1]) if last else s.choose([], [channels, 1, 1])
            factor = s.weight("float32", offset, POSITIVE)
            x = s.one(s.choose("Add", "Sub", "Mul", "Div"), x, factor)
    if last:
        x = s.one("Transpose", x, perm=[0, 3, 1, 2])
    if x.dtype != "float32":
        x = s.one("Cast", x, to=TensorProto.FLOAT)
    kernel, attributes = geometry(s, x.shape[2:])
    w = s.weight("float32", [s.size(5), channels, *kernel], FINITE)
    s.one("Conv", x, w, kernel_shape=kernel, **attributes)


@pattern
def padded_window(s: Sketch) -> None:
    """A Pad, asymmetric as TensorFlow's, before a convolution or a pooling."""
    if not s.since(11):
        raise Skip
    axes = s.choose(1, 2, 2, 3)
    x = image(s, "float32", axes)
    if s.chance(0.4):
        x = s.one(s.choose("Relu", "Sigmoid", "Neg"), x)
    op = s.choose("Conv", "Conv", "MaxPool", "AveragePool")
    value = s.choose(0.0, 0.0, 1.0, *[float(np.finfo(np.float32).min), -np.inf] * (op == "MaxPool"))
    widths = [s.choose(0, 0, 1, 1, 2, 3) for _ in range(2 * axes)]
    pads = [0, 0, *widths[:axes], 0, 0, *widths[axes:]]
    x = s.one("Pad", x, s.parameter(pads), s.parameter(value, "float32"))
    kernel, attributes = geometry(s, x.shape[2:], dilate=op == "Conv" or s.since(19))
    if op == "Conv":
        w = s.weight("float32", [s.size(5), x.shape[1], *kernel], FINITE)
        s.one(op, x, w, kernel_shape=kernel, **attributes)
        return
    if op == "AveragePool" and s.chance(0.5):
        attributes["count_include_pad"] = 1
    if s.chance(0.3):
        attributes["ceil_mode"] = 1
    s.one(op, x, kernel_shape=kernel, **attributes)


@pattern
def shape_arithmetic(s: Sketch) -> None:
    """A reshape whose target is assembled from the shape of its input."""
    x = s.pick(s.choose("float32", "float32", "int64", "bool"), min_rank=2)
    if 0 in x.shape:
        raise Skip
    shape = s.one("Shape", x)
    first = s.one("Gather", shape, s.parameter(0, constant=1.0), axis=0)
    if s.since(13):
        first = s.one("Unsqueeze", first, s.parameter([0], constant=1.0))
    else:
        first = s.one("Unsqueeze", first, axes=[0])
    rest = s.parameter(s.choose([-1], [1, -1], [-1, 1]), constant=1.0)
    target = s.one("Concat", first, rest, axis=0)
    s.one("Reshape", x, target)


@pattern
def chain(s: Sketch) -> None:
    """Elementwise functions one after the other, as exporters of activations write them."""
    x = s.pick(s.choose("float32", "float32", "float16", "int32"), spread=FINITE)
    for _ in range(s.rng.randint(2, 5)):
        op = s.choose("Add", "Sub", "Mul", "Max", "Min", "Relu", "Abs", "Neg")
        if op in ("Relu", "Abs", "Neg"):
            x = s.one(op, x)
            continue
        shape = s.choose([], [1], s.broadcast(x.shape), x.shape, [1] * x.rank)
        x = s.one(op, *s.rng.sample([x, s.weight(x.dtype, shape, FINITE)], 2))


@pattern
def movements(s: Sketch) -> None:
    """Transposes, reshapes and slices one after the other."""
    x = s.pick(s.choose("float32", "float32", "int32", "bool"), min_rank=2, max_rank=4)
    for _ in range(s.rng.randint(2, 4)):
        fate = s.rng.randrange(4)
        if fate == 0:
            x = s.one("Transpose", x, perm=s.rng.sample(range(x.rank), x.rank))
        elif fate == 1 and 0 not in x.shape:
            target = [0, -1] if s.chance(0.5) and x.rank >= 2 else [-1, x.shape[-1]]
            x = s.one("Reshape", x, s.parameter(target, constant=1.0))
        elif fate == 2 and s.since(10):
            axis = s.rng.randrange(x.rank)
            bounds = [[s.choose(0, 1)], [s.choose(-1, 100, 3)], [axis]]
            x = s.one("Slice", x, *(s.parameter(value, constant=1.0) for value in bounds))
        else:
            axis = s.rng.randrange(x.rank)
            x = s.one("Concat", x, s.choose(x, s.pick(x.dtype, x.shape)), axis=axis)


@pattern
def mask(s: Sketch) -> None:
    """A mask from comparisons, applied by Where."""
    if not s.since(9):
        raise Skip
    x = s.pick("float32", min_rank=1, spread=FINITE)
    low = s.one("Greater", x, s.weight("float32", s.broadcast(x.shape), FINITE))
    other = (
        s.one("Not", low)
        if s.chance(0.5)
        else s.one("And", low, s.one("Less", x, _scalar(s, 1.5, x)))
    )
    s.one("Where", other, x, s.weight("float32", s.choose([], [1], s.broadcast(x.shape)), FINITE))


@pattern
def embedding(s: Sketch) -> None:
    """Rows of a table by computed indices."""
    table = s.weight("float32", [s.size(17), s.size(17)], FINITE)
    if 0 in table.shape:
        raise Skip
    x = s.pick("float32", min_rank=1, max_rank=3, spread=FINITE)
    if 0 in x.shape:
        raise Skip
    best = s.one("ArgMax", x, axis=x.rank - 1)
    if int(np.max(best.array)) >= table.shape[0]:
        raise Skip
    s.one("Gather", table, best)


@pattern
def slice_assignment(s: Sketch) -> None:
    """Numbers written into a box of a tensor, or nearly one, as exporters write it."""
    if not s.since(13):
        raise Skip
    x = s.pick(s.choose("float32", "float32", "int32"), min_rank=1, max_rank=4, spread=FINITE)
    if 0 in x.shape:
        raise Skip
    ranges = []
    for size in x.shape[: s.rng.randint(1, x.rank)]:
        begin = s.rng.randrange(size)
        line = np.arange(begin, s.rng.randint(begin + 1, size), s.choose(1, 1, 1, 1, 2))
        line = line[::-1] if s.chance(0.05) else line
        ranges.append(line - size if s.chance(0.2) else line)
    sizes = [len(line) for line in ranges]
    parts = []
    shape = s.parameter(sizes, constant=0.95)
    for axis, line in enumerate(ranges):
        along = line.reshape([-1 if other == axis else 1 for other in range(len(sizes))])
        wide = s.one("Expand", s.parameter(along, constant=0.95), shape)
        parts.append(s.one("Unsqueeze", wide, s.parameter([-1], constant=1.0)))
    rows = s.one("Concat", *parts, axis=-1)
    updates = s.pick(x.dtype, [*sizes, *x.shape[len(sizes) :]], spread=FINITE)
    adds = s.since(16) and s.chance(0.3)
    s.one("ScatterND", x, rows, updates, reduction="add" if adds else None)
