"""Single Caffe layers, and their results by Caffe's rules, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray

RNG = np.random.default_rng(11)
PICTURE = (2, 6, 7, 9)


class Case(NamedTuple):
    """A layer on inputs x0, x1, …

    `rule` returns its outputs from inputs, then weights. `opencv`: OpenCV computes the same.
    """

    kind: str
    parameters: str
    rule: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]] = (PICTURE,)
    weights: Sequence[Array] = ()
    opencv: bool = True
    outputs: int = 1
    positive: bool = False
    given: Mapping[str, Array] = {}

    def text(self) -> str:
        """Return the network."""
        tops = " ".join(f'top: "y{number}"' for number in range(self.outputs))
        bottoms = " ".join(f'bottom: "x{number}"' for number in range(len(self.shapes)))
        inputs = "".join(
            f'input: "x{number}" input_shape {{ {" ".join(f"dim: {size}" for size in shape)} }}\n'
            for number, shape in enumerate(self.shapes)
        )
        return (
            f'name: "one" {inputs} layer {{ name: "layer" type: "{self.kind}" {bottoms} {tops} '
            f"{self.parameters} }}"
        )

    def feeds(self, seed: int) -> dict[str, Array]:
        """Return inputs."""
        rng = np.random.default_rng(seed)
        draw = rng.random if self.positive else rng.standard_normal
        return {
            f"x{number}": np.asarray(draw(shape), np.float32)
            for number, shape in enumerate(self.shapes)
        } | dict(self.given)


def random(*shape: int) -> Array:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def near_one(*shape: int) -> Array:
    return (RNG.random(shape) + 0.5).astype(np.float32)


def windows(
    size: int, kernel: int, stride: int, pad: int, padded: bool, up: bool = True
) -> list[tuple[int, int]]:
    """Return where the windows of a pooling begin and end, including pads."""
    room = (size + 2 * pad - kernel) / stride
    count = int(ceil(room) if up else room) + 1
    if padded and (count - 1) * stride >= size + pad:
        count -= 1
    begins = [number * stride - pad for number in range(count)]
    return [(begin, min(begin + kernel, size + pad)) for begin in begins]


def pooled(
    x: Array,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    largest: bool,
    up: bool = True,
) -> tuple[Array, Array]:
    """Return the pooled image and, for maxima, their positions in their planes."""
    rows, columns = (
        windows(x.shape[2 + axis], kernel[axis], stride[axis], pad[axis], any(pad), up)
        for axis in (0, 1)
    )
    y = np.zeros((*x.shape[:2], len(rows), len(columns)), np.float32)
    places = np.zeros_like(y)
    for i, (top, bottom) in enumerate(rows):
        for j, (left, right) in enumerate(columns):
            part = x[:, :, max(top, 0) : bottom, max(left, 0) : right]
            flat = part.reshape(*x.shape[:2], -1)
            if largest:
                y[:, :, i, j] = flat.max(-1) if flat.size else np.finfo(np.float32).min
                row, column = np.divmod(flat.argmax(-1) if flat.size else 0, max(part.shape[3], 1))
                places[:, :, i, j] = (row + max(top, 0)) * x.shape[3] + column + max(left, 0)
            else:
                y[:, :, i, j] = flat.sum(-1) / ((bottom - top) * (right - left))
    return y, places


def pool(kernel: int, stride: int = 1, pad: int = 0, kind: str = "MAX", **more: Any) -> Case:
    def rule(x: Array) -> Array:
        both = (kernel, kernel), (stride, stride), (pad, pad)
        return pooled(x, *both, kind == "MAX", more.get("up", True))[0]

    text = f"pool: {kind} kernel_size: {kernel} stride: {stride} pad: {pad} {more.get('text', '')}"
    shape = more.get("shape", PICTURE)
    # OpenCV leaves the last window out if it begins beyond the image.
    return Case(
        "Pooling", f"pooling_param {{ {text} }}", rule, [shape], opencv=more.get("opencv", True)
    )


def convolved(
    x: Array, w: Array, b: Array | None, stride: int, pad: int, dilation: int = 1, group: int = 1
) -> Array:
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    outputs, each, height, width = w.shape
    rows = (x.shape[2] - (height - 1) * dilation - 1) // stride + 1
    columns = (x.shape[3] - (width - 1) * dilation - 1) // stride + 1
    y = np.zeros((x.shape[0], outputs, rows, columns), np.float64)
    for o in range(outputs):
        first = o // (outputs // group) * each
        for i in range(height):
            for j in range(width):
                part = x[
                    :, first : first + each,
                    i * dilation : i * dilation + (rows - 1) * stride + 1 : stride,
                    j * dilation : j * dilation + (columns - 1) * stride + 1 : stride,
                ]  # fmt: skip
                y[:, o] += np.einsum("nchw,c->nhw", part, w[o, :, i, j])
    return y if b is None else y + b[:, None, None]


def transposed(x: Array, w: Array, b: Array | None, stride: int, pad: int, group: int = 1) -> Array:
    count, channels, height, width = x.shape
    each, kernel = w.shape[1], w.shape[2]
    sizes = [(size - 1) * stride + kernel for size in (height, width)]
    y = np.zeros((count, each * group, *sizes))
    for c in range(channels):
        first = c // (channels // group) * each
        for i in range(kernel):
            for j in range(kernel):
                y[
                    :, first : first + each,
                    i : i + (height - 1) * stride + 1 : stride,
                    j : j + (width - 1) * stride + 1 : stride,
                ] += x[:, c, None] * w[c, :, i, j, None, None]  # fmt: skip
    y = y[:, :, pad : sizes[0] - pad, pad : sizes[1] - pad]
    return y if b is None else y + b[:, None, None]


def across_channels(x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    square = np.pad(x.astype(np.float64) ** 2, [(0, 0), (size // 2,) * 2, (0, 0), (0, 0)])
    total = sum(square[:, first : first + x.shape[1]] for first in range(size))
    return x / (k + alpha / size * total) ** beta


def within_channel(x: Array, size: int, alpha: float, beta: float) -> Array:
    mean = pooled(x**2, (size, size), (1, 1), (size // 2,) * 2, False)[0]
    return x * (1 + alpha * mean) ** -beta


def softmax(x: Array, axis: int = 1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def channels(v: Array, rank: int = 4) -> Array:
    return v.reshape(-1, *[1] * (rank - 2))


def resized(x: Array, height: int, width: int) -> Array:
    """Interpolate with aligned corners."""

    def matrix(size: int, target: int) -> Array:
        found = np.zeros((target, size))
        for row in range(target):
            place = row * (size - 1) / (target - 1) if target > 1 else 0.0
            low = min(int(place), size - 1)
            high = min(low + 1, size - 1)
            found[row, low] += 1 - (place - low)
            found[row, high] += place - low
        return found

    rows, columns = matrix(x.shape[2], height), matrix(x.shape[3], width)
    return np.einsum("ih,jw,nchw->ncij", rows, columns, x)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def unpooled(x: Array, places: Array, height: int, width: int) -> Array:
    y = np.zeros((*x.shape[:2], height * width), np.float32)
    flat = places.reshape(*x.shape[:2], -1).astype(int)
    np.put_along_axis(y, flat, x.reshape(*x.shape[:2], -1), 2)
    return y.reshape(*x.shape[:2], height, width)


def deviated(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return centred / (np.sqrt((centred**2).mean(axes, keepdims=True)) + eps)


def top(x: Array, count: int) -> tuple[Array, Array]:
    flat = x.reshape(len(x), -1)
    places = np.argsort(-flat, 1, "stable")[:, :count]
    return places, np.take_along_axis(flat, places, 1)


def region_maxima(x: Array, regions: Array, height: int, width: int, scale: float) -> Array:
    y = np.zeros((len(regions), x.shape[1], height, width), np.float32)
    for number, (image, *corners) in enumerate(regions):
        left, top, right, bottom = (int(np.floor(one * scale + 0.5)) for one in corners)
        sizes = max(bottom - top + 1, 1) / height, max(right - left + 1, 1) / width
        for i in range(height):
            for j in range(width):
                rows = slice(*(int(r(n * sizes[0])) + top for r, n in bounds(i)))
                columns = slice(*(int(r(n * sizes[1])) + left for r, n in bounds(j)))
                part = x[int(image), :, rows, columns]
                y[number, :, i, j] = part.max((1, 2)) if part.size else 0
    return y


def prior_boxes(
    rows: int,
    columns: int,
    height: int,
    width: int,
    sizes: Sequence[tuple[float, float]],
    variances: Sequence[float],
    step: float = 0,
    clip: bool = False,
) -> Array:
    """Return prior boxes of these sizes in pixels, and their variances."""
    found = []
    for i in range(rows):
        for j in range(columns):
            x = (j + 0.5) * (step or width / columns)
            y = (i + 0.5) * (step or height / rows)
            for w, h in sizes:
                box = (
                    (x - w / 2) / width,
                    (y - h / 2) / height,
                    (x + w / 2) / width,
                    (y + h / 2) / height,
                )
                found += [min(max(one, 0), 1) if clip else one for one in box]
    return np.array([[found, list(variances) * (len(found) // 4)]], np.float32)


def overlap(a: Array, b: Array) -> float:
    sizes = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    if (sizes <= 0).any():
        return 0.0
    areas = [np.prod(np.maximum(box[2:] - box[:2], 0)) for box in (a, b)]
    return float(np.prod(sizes) / (sum(areas) - np.prod(sizes)))


def decoded(moves: Array, priors: Array, code: str, encoded: bool) -> Array:
    """Return corners of boxes [boxes, 4]."""
    box, variance = priors.reshape(2, -1, 4)
    moves = moves if encoded else moves * variance
    size = box[:, 2:] - box[:, :2]
    if code == "CORNER":
        return box + moves
    if code == "CORNER_SIZE":
        return box + moves * np.tile(size, 2)
    centre = moves[:, :2] * size + (box[:, :2] + box[:, 2:]) / 2
    half = np.exp(moves[:, 2:]) * size / 2
    return np.concatenate([centre - half, centre + half], 1)


def detections(
    moves: Array,
    scores: Array,
    priors: Array,
    classes: int,
    *,
    shared: bool = True,
    background: int = 0,
    code: str = "CENTER_SIZE",
    encoded: bool = False,
    threshold: float = 0.3,
    least: float = 0.01,
    top_k: int = -1,
    keep: int = -1,
) -> Array:
    """Return SSD's detections, computed one by one like its DetectionOutput."""
    count = priors.shape[2] // 4
    rows = []
    for image in range(len(moves)):
        own = moves[image].reshape(count, 1 if shared else classes, 4)
        kept: list[tuple[float, int, Array]] = []
        for label in range(classes):
            if label == background:
                continue
            boxes = decoded(own[:, 0 if shared else label], priors, code, encoded)
            score = scores[image].reshape(count, classes)[:, label]
            order = [n for n in np.argsort(-score, kind="stable") if score[n] > least]
            chosen: list[int] = []
            for n in order[: top_k if top_k > 0 else None]:
                if all(overlap(boxes[n], boxes[m]) <= threshold for m in chosen):
                    chosen.append(n)
            kept += [(score[n], label, boxes[n]) for n in chosen]
        if 0 <= keep < len(kept):
            kept = sorted(kept, key=lambda one: -one[0])[:keep]
            kept = sorted(kept, key=lambda one: one[1])
        rows += [[image, label, score, *box] for score, label, box in kept]
    if not rows:
        rows = [[image, *[-1] * 6] for image in range(len(moves))]
    return np.array([[rows]], np.float32)


def detector(parameters: str, images: int = 2, **how: Any) -> Case:
    """Return a DetectionOutput of 3 classes and 24 boxes, a few of them disjoint."""
    priors = prior_boxes(2, 4, 60, 80, [(30, 30), (40, 20), (20, 40)], (0.1, 0.1, 0.2, 0.2))
    locations = 1 if how.get("shared", True) else 3

    def rule(moves: Array, scores: Array, _: Array) -> Array:
        return detections(moves, scores, priors, 3, **how)

    return Case(
        "DetectionOutput",
        f"detection_output_param {{ num_classes: 3 {parameters} }}",
        rule,
        [(images, 24 * locations * 4), (images, 72), priors.shape],
        opencv=False,
        given={"x2": priors},
        positive=True,
    )


def steps(
    x: Array,
    markers: Array,
    kind: str,
    *weights: Array,
    still: Array | None = None,
    begin: Sequence[Array] = (),
) -> list[Array]:
    """Return the rows of an LSTM or an RNN, and its states at the end."""
    first, biases, *rest = weights
    sums = x.reshape(*x.shape[:2], -1) @ first.T + biases
    if still is not None:
        sums, rest = sums + still @ rest[0].T, rest[1:]
    size = rest[0].shape[1]
    h, c = begin or [np.zeros((x.shape[1], size))] * 2
    rows = []
    for sum_, marker in zip(sums, markers[..., None], strict=True):
        gates = sum_ + (h * marker) @ rest[0].T
        if kind == "RNN":
            h = np.tanh(gates)
            rows.append(np.tanh(h @ rest[1].T + rest[2]))
            continue
        i, f, o, g = np.split(gates, 4, 1)
        c = marker * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        rows.append(h)
    return [np.stack(rows), h[None], c[None]]


MARKERS = np.array([[0, 0], [1, 1], [1, 0], [1, 1], [0, 1]], np.float32)


def bounds(number: int) -> tuple[tuple[Callable[[float], float], int], ...]:
    return (np.floor, number), (np.ceil, number + 1)


CONV = random(8, 6, 3, 3), random(8)
MEAN, VARIANCE, FACTOR = random(6) * 3, near_one(6) * 3, np.array([3], np.float32)

LAYERS: dict[str, Case] = {
    # --- convolutions and products
    "Convolution": Case(
        "Convolution",
        "convolution_param { num_output: 8 kernel_size: 3 pad: 1 stride: 2 }",
        lambda x, w, b: convolved(x, w, b, 2, 1),
        weights=CONV,
    ),
    "Convolution, dilated, without biases": Case(
        "Convolution",
        "convolution_param { num_output: 8 kernel_size: 3 dilation: 2 pad: 2 bias_term: false }",
        lambda x, w: convolved(x, w, None, 1, 2, 2),
        weights=CONV[:1],
    ),
    "Convolution of groups": Case(
        "Convolution",
        "convolution_param { num_output: 8 kernel_size: 3 group: 2 }",
        lambda x, w, b: convolved(x, w, b, 1, 0, 1, 2),
        weights=(random(8, 3, 3, 3), random(8)),
    ),
    "Convolution of a flat window": Case(
        "Convolution",
        "convolution_param { num_output: 4 kernel_h: 1 kernel_w: 5 pad_w: 2 pad_h: 0 stride_h: 1 "
        "stride_w: 1 }",
        lambda x, w, b: convolved(np.pad(x, [(0, 0)] * 3 + [(2, 2)]), w, b, 1, 0),
        weights=(random(4, 6, 1, 5), random(4)),
    ),
    **{
        name: Case(
            name,
            "convolution_param { num_output: 6 kernel_size: 3 pad: 1 }",
            lambda x, w, b: convolved(x, w, b, 1, 1, 1, 6),
            weights=(random(6, 1, 3, 3), random(6)),
            opencv=name == "ConvolutionDepthwise",
        )
        for name in ("ConvolutionDepthwise", "DepthwiseConvolution")
    },
    "Deconvolution": Case(
        "Deconvolution",
        "convolution_param { num_output: 4 kernel_size: 4 stride: 2 pad: 1 }",
        lambda x, w, b: transposed(x, w, b, 2, 1),
        weights=(random(6, 4, 4, 4), random(4)),
    ),
    "Deconvolution of channels": Case(
        "Deconvolution",
        "convolution_param { num_output: 6 group: 6 kernel_size: 4 stride: 2 pad: 1 "
        "bias_term: false }",
        lambda x, w: transposed(x, w, None, 2, 1, 6),
        weights=(random(6, 1, 4, 4),),
    ),
    "InnerProduct": Case(
        "InnerProduct",
        "inner_product_param { num_output: 5 }",
        lambda x, w, b: x.reshape(2, -1) @ w.T + b,
        weights=(random(5, 378), random(5)),
    ),
    "InnerProduct, transposed": Case(
        "InnerProduct",
        "inner_product_param { num_output: 5 transpose: true bias_term: false }",
        lambda x, w: x.reshape(2, -1) @ w,
        weights=(random(378, 5),),
        opencv=False,
    ),
    "InnerProduct of the last axes": Case(
        "InnerProduct",
        "inner_product_param { num_output: 5 axis: 2 }",
        lambda x, w, b: x.reshape(2, 6, -1) @ w.T + b,
        weights=(random(5, 63), random(5)),
    ),
    "Embed": Case(
        "Embed",
        "embed_param { num_output: 4 input_dim: 3 }",
        lambda x, w, b: w[x.astype(int)] + b,
        [(2, 5)],
        (random(3, 4), random(4)),
        False,
        positive=True,
    ),
    # --- pooling
    "Pooling": pool(3, 2),
    "Pooling with pads": pool(3, 2, 1),
    "Pooling whose last window is left out": pool(2, 2, 1, shape=(1, 2, 5, 7)),
    "Pooling by steps wider than windows": pool(1, 2, shape=(1, 2, 8, 6), opencv=False),
    "Pooling, rounded down": pool(3, 2, text="round_mode: FLOOR", up=False, opencv=False),
    "Pooling, ceil_mode off": pool(3, 2, text="ceil_mode: false", up=False),
    "Pooling AVE": pool(3, 2, 0, "AVE"),
    "Pooling AVE with pads": pool(3, 2, 1, "AVE"),
    "Pooling AVE, an overhang of two": pool(4, 3, 1, "AVE"),
    "Pooling AVE, rounded down": pool(
        4, 3, 1, "AVE", text="round_mode: FLOOR", up=False, opencv=False
    ),
    "Pooling of flat windows": Case(
        "Pooling",
        "pooling_param { kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0 }",
        lambda x: pooled(x, (3, 2), (2, 1), (1, 0), True)[0],
    ),
    "Pooling, pads along another axis": Case(  # leave the last window out along both
        "Pooling",
        "pooling_param { kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 3 pad_h: 1 pad_w: 0 }",
        lambda x: pooled(x, (3, 2), (2, 3), (1, 0), True)[0],
        opencv=False,
    ),
    "Pooling with places": Case(
        "Pooling",
        "pooling_param { kernel_size: 2 stride: 2 }",
        lambda x: pooled(x, (2, 2), (2, 2), (0, 0), True),
        opencv=False,
        outputs=2,
    ),
    "Pooling of all": Case(
        "Pooling",
        "pooling_param { pool: MAX global_pooling: true }",
        lambda x: x.max((2, 3), keepdims=True),
    ),
    "Pooling AVE of all": Case(
        "Pooling",
        "pooling_param { pool: AVE global_pooling: true }",
        lambda x: x.mean((2, 3), keepdims=True),
    ),
    "SPP": Case(
        "SPP",
        "spp_param { pyramid_height: 3 pool: MAX }",
        lambda x: np.concatenate(
            [
                pooled(
                    x,
                    *zip(
                        *[(k := -(-s // n), k, (k * n - s + 1) // 2) for s in x.shape[2:]],
                        strict=True,
                    ),
                    True,
                )[0].reshape(2, -1)
                for n in (1, 2, 4)
            ],
            1,
        ),
        [(2, 3, 16, 12)],
        opencv=False,
    ),
    # --- functions
    "ReLU": Case("ReLU", "", lambda x: np.maximum(x, 0)),
    "ReLU with a slope": Case(
        "ReLU", "relu_param { negative_slope: 0.1 }", lambda x: np.where(x > 0, x, 0.1 * x)
    ),
    "ReLU6": Case("ReLU6", "", lambda x: x.clip(0, 6)),
    "PReLU": Case(
        "PReLU", "", lambda x, w: np.where(x > 0, x, channels(w) * x), weights=(near_one(6),)
    ),
    "PReLU, shared": Case(
        "PReLU",
        "prelu_param { channel_shared: true }",
        lambda x, w: np.where(x > 0, x, w * x),
        weights=(near_one(1),),
        opencv=False,
    ),
    "ELU": Case(
        "ELU",
        "elu_param { alpha: 1.5 }",
        lambda x: np.where(x > 0, x, 1.5 * np.expm1(x)),
        opencv=False,
    ),
    "Sigmoid": Case("Sigmoid", "", sigmoid),
    "TanH": Case("TanH", "", np.tanh),
    "AbsVal": Case("AbsVal", "", np.abs),
    "BNLL": Case("BNLL", "", lambda x: np.log1p(np.exp(x))),
    "HSigmoid": Case("HSigmoid", "", lambda x: (x + 3).clip(0, 6) / 6, opencv=False),
    "HSwish": Case("HSwish", "", lambda x: x * (x + 3).clip(0, 6) / 6, opencv=False),
    "Mish": Case("Mish", "", lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "Swish": Case(
        "Swish", "swish_param { beta: 1.5 }", lambda x: x * sigmoid(1.5 * x), opencv=False
    ),
    "Clip": Case(
        "Clip", "clip_param { min: -0.5 max: 0.25 }", lambda x: x.clip(-0.5, 0.25), opencv=False
    ),
    "Threshold": Case(
        "Threshold", "threshold_param { threshold: 0.2 }", lambda x: x > 0.2, opencv=False
    ),
    "Power": Case(
        "Power", "power_param { power: 2 scale: 0.5 shift: 1 }", lambda x: (1 + 0.5 * x) ** 2
    ),
    "Power, broken": Case(
        "Power",
        "power_param { power: -0.75 scale: 2 shift: 1 }",
        lambda x: (1 + 2 * x) ** -0.75,
        positive=True,
    ),
    "Exp": Case("Exp", "exp_param { scale: 0.5 shift: 0.1 }", lambda x: np.exp(0.1 + 0.5 * x)),
    "Exp of base 2": Case("Exp", "exp_param { base: 2 }", lambda x: 2.0**x, opencv=False),
    "Log": Case(
        "Log",
        "log_param { base: 10 scale: 3 shift: 1 }",
        lambda x: np.log10(1 + 3 * x),
        opencv=False,
        positive=True,
    ),
    "Softmax": Case("Softmax", "", softmax),
    "Softmax of the last axis": Case(
        "Softmax", "softmax_param { axis: -1 }", lambda x: softmax(x, -1)
    ),
    "Dropout": Case("Dropout", "dropout_param { dropout_ratio: 0.7 }", lambda x: x),
    "Split": Case("Split", "", lambda x: (x, x), outputs=2, opencv=False),
    # --- normalisation
    "BatchNorm": Case(
        "BatchNorm",
        "",
        lambda x, m, v, f: (x - channels(m / f)) / np.sqrt(channels(v / f) + 1e-5),
        weights=(MEAN, VARIANCE, FACTOR),
    ),
    "BatchNorm with a factor of 0": Case(
        "BatchNorm",
        "batch_norm_param { eps: 0.01 }",
        lambda x, m, v, f: x / np.sqrt(0.01),
        weights=(MEAN, VARIANCE, np.zeros(1)),
        opencv=False,
    ),
    "BatchNorm of vectors": Case(
        "BatchNorm",
        "",
        lambda x, m, v, f: (x - m / f) / np.sqrt(v / f + 1e-5),
        [(3, 6)],
        (MEAN, VARIANCE, FACTOR),
        False,
    ),
    "BatchNorm of the batch": Case(
        "BatchNorm",
        "batch_norm_param { use_global_stats: false }",
        lambda x, m, v, f: (
            (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5)
        ),
        weights=(MEAN, VARIANCE, FACTOR),
        opencv=False,
    ),
    "BatchNorm with factors": Case(
        "BatchNorm",
        "",
        lambda x, m, v, f, s, b: (
            (x - channels(m / f)) / np.sqrt(channels(v / f) + 1e-5) * channels(s) + channels(b)
        ),
        weights=(MEAN, VARIANCE, FACTOR, near_one(6), random(6)),
        opencv=False,
    ),
    "BN": Case(
        "BN",
        "bn_param { eps: 0.001 }",
        lambda x, s, b, m, v: (
            (x - channels(m)) / np.sqrt(channels(v) + 0.001) * channels(s) + channels(b)
        ),
        weights=[one.reshape(1, 6, 1, 1) for one in (near_one(6), random(6), MEAN, VARIANCE)],
        opencv=False,
    ),
    "BN, absorbed": Case(
        "BN",
        "bn_param { bn_mode: INFERENCE }",
        lambda x, s, b: x * channels(s) + channels(b),
        weights=[one.reshape(1, 6, 1, 1) for one in (near_one(6), random(6))],
        opencv=False,
    ),
    "Scale": Case(
        "Scale",
        "scale_param { bias_term: true }",
        lambda x, s, b: x * channels(s) + channels(b),
        weights=(near_one(6), random(6)),
    ),
    "Scale of two axes": Case(
        "Scale",
        "scale_param { axis: 1 num_axes: 2 }",
        lambda x, s: x * s[..., None],
        weights=(near_one(6, 7),),
        opencv=False,
    ),
    "Scale of all": Case(
        "Scale",
        "scale_param { axis: 0 num_axes: 0 }",
        lambda x, s: x * s,
        weights=(np.float32(1.5),),
        opencv=False,
    ),
    "Scale by a tensor": Case(
        "Scale",
        "scale_param { axis: 0 }",
        lambda x, s: x * s[:, :, None, None],
        [PICTURE, (2, 6)],
        opencv=False,
    ),
    "Scale by a tensor, with summands": Case(
        "Scale",
        "scale_param { axis: 0 bias_term: true }",
        lambda x, s, b: (x * s[:, :, None, None]) + b[:, :, None, None],
        [PICTURE, (2, 6)],
        (random(2, 6),),
        opencv=False,
    ),
    "Bias": Case("Bias", "", lambda x, b: x + channels(b), weights=(random(6),), opencv=False),
    "LRN": Case(
        "LRN",
        "lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 }",
        lambda x: across_channels(x, 3, 0.5, 0.75, 1),
    ),
    "LRN from 2": Case(
        "LRN",
        "lrn_param { alpha: 0.5 k: 2 }",
        lambda x: across_channels(x, 5, 0.5, 0.75, 2),
        opencv=False,
    ),
    "LRN within channels": Case(
        "LRN",
        "lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 norm_region: WITHIN_CHANNEL }",
        lambda x: within_channel(x, 3, 0.5, 0.75),
    ),
    "MVN": Case("MVN", "", lambda x: deviated(x, (2, 3), 1e-9)),
    "MVN across channels": Case(
        "MVN",
        "mvn_param { across_channels: true eps: 0.5 }",
        lambda x: deviated(x, (1, 2, 3), 0.5),
        opencv=False,
    ),
    "MVN, only the mean": Case(
        "MVN",
        "mvn_param { normalize_variance: false }",
        lambda x: x - x.mean((2, 3), keepdims=True),
    ),
    "Normalize": Case(
        "Normalize",
        "norm_param { across_spatial: false channel_shared: false }",
        lambda x, w: x / np.sqrt((x**2).sum(1, keepdims=True) + 1e-10) * channels(w),
        weights=(near_one(6) * 20,),
    ),
    "Normalize whole pictures": Case(
        "Normalize",
        "norm_param { eps: 0.1 }",
        lambda x, w: x / np.sqrt((x**2).sum((1, 2, 3), keepdims=True) + 0.1) * w,
        weights=(near_one(1),),
        opencv=False,
    ),
    # --- several tensors
    "Eltwise SUM": Case(
        "Eltwise",
        "eltwise_param { coeff: 1 coeff: -0.5 coeff: 2 }",
        lambda x, y, z: x - 0.5 * y + 2 * z,
        [PICTURE] * 3,
    ),
    "Eltwise PROD": Case(
        "Eltwise", "eltwise_param { operation: PROD }", lambda x, y: x * y, [PICTURE] * 2
    ),
    "Eltwise MAX": Case(
        "Eltwise",
        "eltwise_param { operation: MAX }",
        lambda x, y, z: np.maximum(np.maximum(x, y), z),
        [PICTURE] * 3,
    ),
    "Axpy": Case(
        "Axpy", "", lambda a, x, y: a * x + y, [(2, 6, 1, 1), PICTURE, PICTURE], opencv=False
    ),
    "Axpy by vectors": Case(
        "Axpy",
        "",
        lambda a, x, y: a[:, :, None, None] * x + y,
        [(2, 6), PICTURE, PICTURE],
        opencv=False,
    ),
    "Concat": Case("Concat", "", lambda x, y: np.concatenate([x, y], 1), [PICTURE, (2, 3, 7, 9)]),
    "Concat by concat_dim": Case(
        "Concat",
        "concat_param { concat_dim: 2 }",
        lambda x, y: np.concatenate([x, y], 2),
        [PICTURE, (2, 6, 2, 9)],
        opencv=False,
    ),
    "Reduction": Case(
        "Reduction",
        "reduction_param { operation: MEAN axis: 2 coeff: 3 }",
        lambda x: 3 * x.mean((2, 3)),
        opencv=False,
    ),
    **{
        f"Reduction {kind}": Case(
            "Reduction", f"reduction_param {{ operation: {kind} axis: 1 }}", rule, opencv=False
        )
        for kind, rule in {
            "SUM": lambda x: x.sum((1, 2, 3)),
            "ASUM": lambda x: np.abs(x).sum((1, 2, 3)),
            "SUMSQ": lambda x: (x**2).sum((1, 2, 3)),
        }.items()
    },
    "ArgMax": Case("ArgMax", "", lambda x: top(x, 1)[0][:, None], opencv=False),
    "ArgMax with values": Case(
        "ArgMax",
        "argmax_param { out_max_val: true top_k: 3 }",
        lambda x: np.stack(top(x, 3), 1),
        opencv=False,
    ),
    "ArgMax along channels": Case(
        "ArgMax", "argmax_param { axis: 1 }", lambda x: x.argmax(1)[:, None], opencv=False
    ),
    # --- movement
    "Slice": Case("Slice", "", lambda x: np.split(x, 3, 1), outputs=3, opencv=False),
    "Slice at points": Case(
        "Slice",
        "slice_param { axis: 1 slice_point: 1 slice_point: 4 }",
        lambda x: (x[:, :1], x[:, 1:4], x[:, 4:]),
        outputs=3,
    ),
    "Flatten": Case("Flatten", "", lambda x: x.reshape(2, -1)),
    "Flatten of the last axes": Case(
        "Flatten", "flatten_param { axis: -2 }", lambda x: x.reshape(2, 6, -1)
    ),
    "Flatten of axes between": Case(
        "Flatten", "flatten_param { axis: 1 end_axis: 2 }", lambda x: x.reshape(2, 42, 9)
    ),
    "Reshape": Case(
        "Reshape",
        "reshape_param { shape { dim: 0 dim: 3 dim: -1 dim: 9 } }",
        lambda x: x.reshape(2, 3, -1, 9),
    ),
    "Reshape of some axes": Case(
        "Reshape",
        "reshape_param { shape { dim: 2 dim: -1 } axis: 1 num_axes: 1 }",
        lambda x: x.reshape(2, 2, 3, 7, 9),
    ),
    "Reshape that inserts an axis": Case(
        "Reshape",
        "reshape_param { shape { dim: 1 } axis: -1 num_axes: 0 }",
        lambda x: x[..., None],
        opencv=False,
    ),
    "Permute": Case(
        "Permute",
        "permute_param { order: 0 order: 2 order: 3 order: 1 }",
        lambda x: x.transpose(0, 2, 3, 1),
    ),
    "Permute of some axes": Case(
        "Permute",
        "permute_param { order: 0 order: 2 }",
        lambda x: x.transpose(0, 2, 1, 3),
        opencv=False,
    ),
    "Tile": Case(
        "Tile", "tile_param { axis: 2 tiles: 3 }", lambda x: np.tile(x, (1, 1, 3, 1)), opencv=False
    ),
    "Crop": Case(
        "Crop",
        "crop_param { axis: 2 offset: 1 offset: 3 }",
        lambda x, y: x[:, :, 1:5, 3:8],
        [PICTURE, (2, 1, 4, 5)],
    ),
    "Crop of channels, too": Case(
        "Crop",
        "crop_param { axis: 1 offset: 1 }",
        lambda x, y: x[:, 1:4, 1:5, 1:6],
        [PICTURE, (2, 3, 4, 5)],
    ),
    "BatchReindex": Case(
        "BatchReindex",
        "",
        lambda x, p: x[p.astype(int)],
        [PICTURE, (5,)],
        opencv=False,
        positive=True,
    ),
    "ShuffleChannel": Case(
        "ShuffleChannel",
        "shuffle_channel_param { group: 3 }",
        lambda x: x.reshape(2, 3, 2, 7, 9).swapaxes(1, 2).reshape(x.shape),
    ),
    "Interp": Case("Interp", "interp_param { height: 13 width: 10 }", lambda x: resized(x, 13, 10)),
    "Interp by a zoom": Case(
        "Interp", "interp_param { zoom_factor: 3 }", lambda x: resized(x, 19, 25), opencv=False
    ),
    "Interp, shrunk and cropped": Case(
        "Interp",
        "interp_param { shrink_factor: 2 pad_beg: -1 pad_end: -1 }",
        lambda x: resized(x[:, :, 1:-1, 1:-1], 3, 4),
        opencv=False,
    ),
    "Interp to another's size": Case(
        "Interp", "", lambda x, y: resized(x, 4, 20), [PICTURE, (1, 1, 4, 20)], opencv=False
    ),
    "Upsample": Case(
        "Upsample",
        "upsample_param { scale: 2 }",
        lambda x: x.repeat(2, 2).repeat(2, 3),
        opencv=False,
    ),
    "ROIPooling": Case(
        "ROIPooling",
        "roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 6 }",
        lambda x, r: region_maxima(x, r, 2, 3, 6),
        [(1, 3, 7, 8), (4, 5)],
        opencv=False,
        positive=True,
    ),
    # --- detection
    "PriorBox": Case(
        "PriorBox",
        "prior_box_param { min_size: 10 max_size: 20 aspect_ratio: 2 variance: 0.1 variance: 0.1 "
        "variance: 0.2 variance: 0.3 clip: true }",
        lambda x, y: prior_boxes(
            7,
            9,
            40,
            60,
            [(10, 10), (200**0.5,) * 2, (10 * 2**0.5, 10 / 2**0.5), (10 / 2**0.5, 10 * 2**0.5)],
            (0.1, 0.1, 0.2, 0.3),
            clip=True,
        ),
        [PICTURE, (2, 3, 40, 60)],
    ),
    "PriorBox with steps": Case(
        "PriorBox",
        "prior_box_param { min_size: 10 min_size: 24 aspect_ratio: 1 aspect_ratio: 3 flip: false "
        "step: 8 variance: 0.2 }",
        lambda x, y: prior_boxes(
            7,
            9,
            40,
            60,
            [size for m in (10, 24) for size in ((m, m), (m * 3**0.5, m / 3**0.5))],
            [0.2] * 4,
            8,
        ),
        [PICTURE, (2, 3, 40, 60)],
        opencv=False,
    ),
    "DetectionOutput": detector(
        "nms_param { nms_threshold: 0.4 top_k: 20 } code_type: CENTER_SIZE keep_top_k: 9 "
        "confidence_threshold: 0.2",
        threshold=0.4,
        top_k=20,
        keep=9,
        least=0.2,
    ),
    "DetectionOutput of few of the best": detector(
        "nms_param { nms_threshold: 0.45 top_k: 5 } code_type: CENTER_SIZE "
        "variance_encoded_in_target: true",
        encoded=True,
        threshold=0.45,
        top_k=5,
        least=-1e38,
    ),
    "DetectionOutput of boxes by class": detector(
        "share_location: false background_label_id: 1 code_type: CORNER keep_top_k: 200 "
        "confidence_threshold: 0.3",
        shared=False,
        background=1,
        code="CORNER",
        keep=200,
        least=0.3,
    ),
    "DetectionOutput by corners and sizes": detector(
        "background_label_id: -1 code_type: CORNER_SIZE keep_top_k: 4 confidence_threshold: 0.1",
        1,
        background=-1,
        code="CORNER_SIZE",
        keep=4,
        least=0.1,
    ),
    "DetectionOutput of nothing": detector(
        "code_type: CENTER_SIZE keep_top_k: 9 confidence_threshold: 5",
        least=5,
        keep=9,
    ),
    "Upsample by places": Case(
        "Upsample",
        "upsample_param { scale: 2 pad_out_h: true }",
        lambda x, p: unpooled(x, p, 7, 8),
        [(1, 2, 4, 4)] * 2,
        opencv=False,
        given={
            "x1": np.array(
                [[(2 * i) * 8 + 2 * j for i in range(4) for j in range(4)]] * 2, np.float32
            ).reshape(1, 2, 4, 4)
        },
    ),
    # --- recurrence
    "LSTM": Case(
        "LSTM",
        "recurrent_param { num_output: 3 }",
        lambda x, m, *w: steps(x, m, "LSTM", *w)[0],
        [(5, 2, 4), (5, 2)],
        (random(12, 4), random(12), random(12, 3)),
        False,
        given={"x1": MARKERS},
    ),
    "LSTM with an input that stays": Case(
        "LSTM",
        "recurrent_param { num_output: 3 }",
        lambda x, m, s, *w: steps(x, m, "LSTM", *w, still=s)[0],
        [(5, 2, 2, 2), (5, 2), (2, 6)],
        (random(12, 4), random(12), random(12, 6), random(12, 3)),
        False,
        given={"x1": MARKERS},
    ),
    "LSTM with states": Case(
        "LSTM",
        "recurrent_param { num_output: 3 expose_hidden: true }",
        lambda x, m, h, c, *w: steps(x, m, "LSTM", *w, begin=(h[0], c[0])),
        [(5, 2, 4), (5, 2), (1, 2, 3), (1, 2, 3)],
        (random(12, 4), random(12), random(12, 3)),
        False,
        3,
        given={"x1": np.maximum(MARKERS, 1 - MARKERS[:1])},
    ),
    "RNN": Case(
        "RNN",
        "recurrent_param { num_output: 3 }",
        lambda x, m, *w: steps(x, m, "RNN", *w)[0],
        [(5, 2, 4), (5, 2)],
        (random(3, 4), random(3), random(3, 3), random(3, 3), random(3)),
        False,
        given={"x1": MARKERS},
    ),
}
