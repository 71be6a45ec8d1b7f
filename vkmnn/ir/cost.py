"""Cost of ops from attributes and shapes, for the declarations in `ops`.

Operations are counted by the op's definition. Memory and time of the numpy backend
(`vkmnn.cpu_fallback`) are estimates on the high side: it sums in float64, unfolds convolutions and
stores indices for sorting.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from vkmnn.ir.op_type import HostWork, Inputs, Outputs, Shape, numbers_of

CHUNK = 1 << 20
"""Elements that numpy unfolds or converts at once."""

VIEW = HostWork(numbers_of(), view=True)
COPY = HostWork(numbers_of())


def _size(shape: Shape | None) -> int:
    return 0 if shape is None else prod(shape)


def _sizes(shapes: Inputs) -> int:
    return sum(map(_size, shapes))


def _dims(inputs: Inputs, index: int) -> Shape:
    return inputs[index] or ()


def _added(inputs: Inputs, output: Shape) -> int:
    """Count the additions of optional operands: a bias, a residual."""
    return prod(output) * sum(shape is not None for shape in inputs[2:])


def _filled(values: Shape, count: int) -> Shape:
    return values or (1,) * count


def _extents(kernel: Shape, dilations: Shape) -> list[int]:
    pairs = zip(kernel, _filled(dilations, len(kernel)), strict=True)
    return [(size - 1) * dilation + 1 for size, dilation in pairs]


def fourier_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count the operations of a fast transform along the longest axis."""
    length = max((*_dims(inputs, 0), *output, 2))
    return 5 * max(_size(inputs[0]), prod(output)) * length.bit_length()


# --- convolution ---------------------------------------------------------------------------------


def convolution_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count one multiply-add per result and weight of its channel."""
    return 2 * prod(output) * prod(_dims(inputs, 1)[1:]) + _added(inputs, output)


def _unfolded_row(inputs: Inputs, output: Shape) -> int:
    """Count the unfolded elements of one row of the result."""
    return _dims(inputs, 0)[1] * prod(_dims(inputs, 1)[2:]) * prod(output[3:])


def convolution_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count the padded image, its unfolded part, weights and sums."""
    x, w, y = _dims(inputs, 0), _dims(inputs, 1), outputs[0]
    axes, extents = len(x) - 2, _extents(w[2:], attrs.dilations)
    pads = [sum(attrs.pads[axis::axes]) if attrs.pads else e - 1 for axis, e in enumerate(extents)]
    spans = zip(x[2:], y[2:], _filled(attrs.strides, axes), extents, pads, strict=True)
    padded = prod(x[:2])
    for size, count, stride, extent, pad in spans:
        padded *= max(size, min(size + pad, count * stride + extent - 1))
    row = _unfolded_row(inputs, y)
    unfolded = 2 * min(max(CHUNK, row), row * y[2])
    return padded + unfolded + prod(w) + 2 * prod(y)


def convolution_steps(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count rows of results by their unfolded size, times taps."""
    rows = max(1, CHUNK // max(_unfolded_row(inputs, outputs[0]), 1))
    taps = prod(_dims(inputs, 1)[2:])
    return _dims(inputs, 0)[0] * -(-outputs[0][2] // rows) * (2 + taps)


def deconvolution_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count one multiply-add per input element and weight of its channel."""
    return 2 * _size(inputs[0]) * prod(_dims(inputs, 1)[1:]) + _added(inputs, output)


def deconvolution_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count the products of all taps, and the uncropped sums of them."""
    x, w, y = _dims(inputs, 0), _dims(inputs, 1), outputs[0]
    channels, axes = x[0] * w[1] * attrs.group, len(x) - 2
    strides, more = _filled(attrs.strides, axes), attrs.output_padding or (0,) * axes
    sizes = zip(x[2:], y[2:], strides, _extents(w[2:], attrs.dilations), more, strict=True)
    full = prod(max(s * (size - 1) + extent + m, count) for size, count, s, extent, m in sizes)
    spread: int = channels * (prod(w[2:]) * prod(x[2:]) + full)
    return prod(x) + prod(w) + spread + 2 * prod(y)


def deconvolution_steps(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count the taps."""
    return prod(_dims(inputs, 1)[2:])


# --- products ------------------------------------------------------------------------------------


def matmul_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count one multiply-add per result and element of the inner axis."""
    a = _dims(inputs, 0)
    inner = a[-2] if attrs.transpose_a and len(a) > 1 else a[-1]
    return 2 * prod(output) * inner + _added(inputs, output)


def matmul_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count both operands, split weights, and sums."""
    b = _dims(inputs, 1)
    wide = min(prod(b), CHUNK) if len(b) == 2 else prod(b)
    return _size(inputs[0]) + wide + 2 * prod(outputs[0])


def packed_matmul_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count one multiply-add per quantised value and row."""
    depth: int = attrs.depth
    return 2 * prod(output) * depth


def packed_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count the dequantised weights, the operand and sums."""
    weights: int = attrs.columns * attrs.depth
    return 2 * weights + _size(inputs[0]) + 2 * prod(outputs[0])


def expert_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count: a multiply-add for every weight of the chosen experts."""
    weights: int = attrs.columns * attrs.depth
    return 2 * prod(inputs[2] or ()) * weights


def expert_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count the weights of one expert in full, operands and results of all rows."""
    chosen = prod(inputs[2] or ())
    weights: int = attrs.columns * attrs.depth
    rows: int = chosen * (attrs.depth + 2 * attrs.columns)
    return 2 * weights + rows


def determinant_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count elimination: a third of the cube in multiply-adds."""
    size = (_dims(inputs, 0) or (0,))[-1]
    return 2 * prod(output) * size**3 // 3


def _einsum_sizes(attrs: Any, inputs: Inputs) -> tuple[list[list[str | int]], dict[str | int, int]]:
    """Return the labels of each operand's axes, and the size of every label."""
    sizes: dict[str | int, int] = {}
    operands: list[list[str | int]] = []
    terms = attrs.equation.replace(" ", "").split("->")[0].split(",")
    for term, shape in zip(terms, inputs, strict=True):
        before, _, after = term.partition("...")
        hidden = len(shape or ()) - len(before) - len(after)
        operands.append([*before, *range(-hidden, 0), *after])
        for label, size in zip(operands[-1], shape or (), strict=True):
            sizes[label] = max(size, sizes.get(label, 0)) if size != 1 else sizes.get(label, 1)
    return operands, sizes


def einsum_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count one operation per operand for every combination of the labels' values."""
    return len(inputs) * prod(_einsum_sizes(attrs, inputs)[1].values())


def einsum_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count operands and partial products; these stay below the largest operand or result."""
    labels, sizes = _einsum_sizes(attrs, inputs)
    operands = [prod(sizes[label] for label in operand) for operand in labels]
    return 3 * sum(operands) + 3 * max(*operands, prod(outputs[0]))


def attention_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count two products, and five softmax operations per score."""
    q, k, v = (shape or (0, 0) for shape in inputs[:3])
    scores = prod(output) // max(v[-1], 1) * k[-2]
    return scores * (2 * q[-1] + 5) + 2 * prod(output) * k[-2]


def attention_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count operands, scores and softmax results."""
    scores = prod(_dims(inputs, 0)[:-1]) * _dims(inputs, 1)[-2]
    return _sizes(inputs) + 4 * scores + prod(outputs[0])


def cached_attention_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count as `attention_flops`, for a full cache."""
    rows, depth = _dims(inputs, 5)[-2:]
    return prod(output) * 2 * rows + prod(output[:-1]) * rows * (2 * depth + 5)


def strided_attention_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count as `attention_flops`, for the elements covered by the views."""
    scores: int = prod(attrs.batch) * attrs.queries * attrs.keys
    each: int = 2 * attrs.depth + 5 + 2 * attrs.width
    return scores * each


def strided_attention_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count as `attention_numbers`, with copies of the views."""
    scores: int = prod(attrs.batch) * attrs.queries * attrs.keys
    return 2 * _sizes(inputs) + 4 * scores + prod(outputs[0])


# --- windows and regions --------------------------------------------------------------------------


def pooling_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count one operation per element of a window."""
    window: Shape = _dims(inputs, 0)[2:] if attrs.is_global else attrs.kernel
    return prod(output) * prod(window)


def pooling_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count two padded images, results, and the size of each window along each axis."""
    x, y = _dims(inputs, 0), outputs[0]
    if attrs.is_global:
        return 2 * prod(x)
    extents, axes = _extents(attrs.kernel, attrs.dilations), len(x) - 2
    strides, begins = _filled(attrs.strides, axes), attrs.pads[:axes] or [e - 1 for e in extents]
    spans = prod(
        max(size + begin, (count - 1) * stride + extent)
        for size, begin, count, stride, extent in zip(
            x[2:], begins, y[2:], strides, extents, strict=True
        )
    )
    counted = [size * count for size, count in zip(attrs.kernel, y[2:], strict=True)]
    places = 3 * max(counted) if attrs.kind == "AVERAGE" else 0
    return 2 * prod(x[:2]) * spans + places + 4 * prod(y)


def pooling_steps(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count the elements of a window if indices are needed, otherwise those of each axis."""
    if attrs.is_global:
        return 1
    return 10 * prod(attrs.kernel) if len(outputs) > 1 else sum(attrs.kernel)


def lrn_steps(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count the channels of a window."""
    steps: int = min(attrs.size, 2 * _dims(inputs, 0)[1] + 1)
    return steps


def lrn_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count squares, sums, powers, and the squares padded with zero channels."""
    x = _dims(inputs, 0)
    rows = x[1] + lrn_steps(attrs, inputs, outputs)
    return 4 * prod(x) + x[0] * rows * prod(x[2:])


def interp_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count intermediate results of resizing axis by axis, and a table of taps per axis."""
    x, y = _dims(inputs, 0), outputs[0]
    largest = max(prod((*y[:n], *x[n:])) for n in range(len(x) + 1))
    table = 0
    for size, count in zip(x, y, strict=True):
        taps = 4 * (ceil(size / count) if attrs.antialias and count < size else 1) if count else 0
        matrix = size if taps > 16 else 0  # many taps are computed as one product
        table = max(table, count * (4 * taps + matrix))
    return 3 * largest + table


def grid_sample_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count up to four taps per axis, each with a position, a weight and a flag."""
    return 12 * _size(inputs[1]) + _size(inputs[0]) + 4 * prod(outputs[0])


def index_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count indices: original, wrapped, range checks and comparisons."""
    return 4 * _size(inputs[1])


# --- recurrent cells -----------------------------------------------------------------------------


def recurrent_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count a product of the state with a row of weights per gate, and the activations."""
    return _size(inputs[0]) * (2 * _dims(inputs, 1)[-1] + 6)


def recurrent_numbers(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count all operands, every state, and the gates of a step."""
    gates = _dims(inputs, 0)
    return (
        _sizes(inputs)
        + 2 * sum(map(prod, outputs))
        + 4 * prod(gates) // max(gates[1 if attrs.batch_first else 0], 1)
    )


def recurrent_steps(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count about thirty calls per step and direction."""
    steps: int = 30 * attrs.directions * _dims(inputs, 0)[1 if attrs.batch_first else 0]
    return steps


# --- boxes ---------------------------------------------------------------------------------------

BOX_FLOPS = 16
"""Operations to compare two boxes."""


def _per_class(outputs: Outputs, inputs: Inputs) -> int:
    """Count the boxes that can be selected per class and image."""
    return outputs[0][0] // max(1, prod(_dims(inputs, 1)[:2]))


def suppression_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count every score once, and comparisons of each box with half of the selected ones."""
    chosen = _per_class([output], inputs)
    return _size(inputs[1]) * (1 + BOX_FLOPS * chosen // 2)


def suppression_steps(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count the boxes that can be selected, and the classes."""
    return 12 * (outputs[0][0] + prod(_dims(inputs, 1)[:2]))


def roi_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count each pixel of a region once or, when interpolating, four times."""
    ratio = getattr(attrs, "ratio", 0) or 2
    return 9 * int(ratio) ** 2 * prod(output)


# --- linear attention ----------------------------------------------------------------------------


def linear_attention_flops(attrs: Any, inputs: Inputs, output: Shape) -> int:
    """Count eight operations per state element and step: to decay, read, update and read it."""
    depth = _dims(inputs, 0)[2] // max(1, int(attrs.query_heads))
    return prod(output) * depth * 8


def linear_attention_steps(attrs: Any, inputs: Inputs, outputs: Outputs) -> int:
    """Count the steps."""
    return 8 * _dims(inputs, 0)[1]
