"""Small versions of well-known networks, built with the onnx package alone; weights are random.

`NETWORKS` maps a name to its builder and inputs. The graphs are written as exporters write them:
BatchNormalization, GELU, LayerNorm and attention spelled out in some networks, as ops in others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkmnn.ir import Array

Dims = Sequence[int | str | None]
VOCABULARY = 61


class Net:
    """Builds a model node by node; each method returns the name of the new tensor."""

    def __init__(self, name: str, opset: int = 17, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self._name, self._opset = name, opset
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[str, Array] = {}

    def input(self, name: str, shape: Dims, kind: int = TensorProto.FLOAT) -> str:
        """Add an input; names in its shape are dimensions that may change."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, value: object, dtype: type[np.generic] = np.float32) -> str:
        """Add an initializer."""
        name = f"c{len(self._constants)}"
        self._constants[name] = np.asarray(value, dtype)
        return name

    def ints(self, *values: int) -> str:
        """Add an initializer of one axis of int64."""
        return self.constant(values, np.int64)

    def weight(self, *shape: int, inputs: int = 0) -> str:
        """Add random weights whose sum of products over `inputs` keeps the variance."""
        return self.constant(self.random.standard_normal(shape) * (inputs or 1) ** -0.5)

    def near_one(self, *shape: int) -> str:
        """Add random factors."""
        return self.constant(self.random.uniform(0.6, 1.4, shape))

    def near_zero(self, *shape: int) -> str:
        """Add random offsets."""
        return self.constant(self.random.normal(0, 0.2, shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with several outputs."""
        number = len(self._nodes)
        names = [f"t{number}_{output}" if output else f"t{number}" for output in range(outputs)]
        self._nodes.append(helper.make_node(kind, inputs, names, f"{kind}_{number}", **attributes))
        return names

    def finish(self, outputs: Mapping[str, Dims], kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
        """Return the checked model; its outputs' shapes contain names or sizes."""
        graph = helper.make_graph(
            self._nodes,
            self._name,
            self._inputs,
            [helper.make_tensor_value_info(name, kind, shape) for name, shape in outputs.items()],
            [numpy_helper.from_array(value, name) for name, value in self._constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])
        model.ir_version = 8
        onnx.checker.check_model(model, full_check=True)
        return model

    # --- blocks of convolutional networks ---

    def conv(
        self,
        x: str,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        group: int = 1,
        bias: bool = True,
    ) -> str:
        """Add a convolution that keeps the size, except for its stride."""
        fan_in = inputs // group * kernel * kernel
        w = self.weight(outputs, inputs // group, kernel, kernel, inputs=fan_in)
        extra = [self.near_zero(outputs)] if bias else []
        pads, strides = [kernel // 2] * 4, [stride] * 2
        return self.op("Conv", x, w, *extra, pads=pads, strides=strides, group=group)

    def norm(self, x: str, channels: int) -> str:
        """Add a BatchNormalization."""
        scale, bias = self.near_one(channels), self.near_zero(channels)
        mean, variance = self.near_zero(channels), self.near_one(channels)
        return self.op("BatchNormalization", x, scale, bias, mean, variance)

    def conv_norm(
        self, x: str, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, group: int = 1
    ) -> str:
        """Add a convolution without bias and a BatchNormalization."""
        x = self.conv(x, inputs, outputs, kernel, stride, group, bias=False)
        return self.norm(x, outputs)

    def relu(self, x: str) -> str:
        """Add a Relu."""
        return self.op("Relu", x)

    def silu(self, x: str) -> str:
        """Add x · sigmoid(x)."""
        return self.op("Mul", x, self.op("Sigmoid", x))

    def classifier(self, x: str, channels: int, classes: int = 10) -> str:
        """Add global pooling, flattening and a Gemm."""
        x = self.op("Flatten", self.op("GlobalAveragePool", x))
        w = self.weight(classes, channels, inputs=channels)
        return self.op("Gemm", x, w, self.near_zero(classes), transB=1)

    # --- blocks of transformers ---

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """Add a MatMul and a bias."""
        product = self.op("MatMul", x, self.weight(inputs, outputs, inputs=inputs))
        return self.op("Add", product, self.near_zero(outputs))

    def layer_norm(self, x: str, width: int) -> str:
        """Add a LayerNormalization (an op since opset 17)."""
        scale, bias = self.near_one(width), self.near_zero(width)
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def spelled_layer_norm(self, x: str, width: int) -> str:
        """Add a layer normalisation as exporters write it below opset 17."""
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        squares = self.op("Pow", centred, self.constant(2.0))
        variance = self.op("ReduceMean", squares, axes=[-1])
        deviation = self.op("Sqrt", self.op("Add", variance, self.constant(1e-5)))
        scaled = self.op("Mul", self.op("Div", centred, deviation), self.near_one(width))
        return self.op("Add", scaled, self.near_zero(width))

    def gelu(self, x: str) -> str:
        """Add x/2 · (1 + erf(x/√2))."""
        erf = self.op("Erf", self.op("Div", x, self.constant(2**0.5)))
        product = self.op("Mul", x, self.op("Add", erf, self.constant(1.0)))
        return self.op("Mul", product, self.constant(0.5))

    def gelu_tanh(self, x: str) -> str:
        """Add x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""
        cube = self.op("Mul", self.op("Pow", x, self.constant(3.0)), self.constant(0.044715))
        inner = self.op("Mul", self.op("Add", x, cube), self.constant((2 / np.pi) ** 0.5))
        outer = self.op("Add", self.op("Tanh", inner), self.constant(1.0))
        return self.op("Mul", self.op("Mul", x, self.constant(0.5)), outer)

    def heads(self, x: str, heads: int, size: int) -> str:
        """Split [N, L, heads · size] into [N, heads, L, size]."""
        split = self.op("Reshape", x, self.ints(0, 0, heads, size))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def attend(self, q: str, k: str, v: str, size: int, mask: Callable[[str], str]) -> str:
        """Add softmax(mask(q kᵀ/√size)) v on split heads; return [N, L, heads · size]."""
        product = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = mask(self.op("Div", product, self.constant(size**0.5)))
        context = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        merged = self.op("Transpose", context, perm=[0, 2, 1, 3])
        return self.op("Reshape", merged, self.ints(0, 0, -1))


# --- the networks --------------------------------------------------------------------------------


def resnet() -> onnx.ModelProto:
    """Two bottlenecks, one with a projection, after a 7×7 stem (He et al. 2015)."""
    net = Net("resnet")
    x = net.input("x", ("N", 3, "H", "W"))
    x = net.relu(net.conv_norm(x, 3, 8, 7, 2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for inputs, planes, stride in ((8, 4, 1), (16, 4, 1), (16, 8, 2)):
        y = net.relu(net.conv_norm(x, inputs, planes, 1))
        y = net.relu(net.conv_norm(y, planes, planes, 3, stride))
        y = net.conv_norm(y, planes, 4 * planes, 1)
        if inputs != 4 * planes:
            x = net.conv_norm(x, inputs, 4 * planes, 1, stride)
        x = net.relu(net.op("Add", y, x))
    return net.finish({net.classifier(x, 32): ("N", 10)})


def mobilenet_v2() -> onnx.ModelProto:
    """Inverted residuals with depthwise convolutions and ReLU6 (Sandler et al. 2018)."""
    net = Net("mobilenet_v2")

    def relu6(x: str) -> str:
        return net.op("Clip", x, net.constant(0.0), net.constant(6.0))

    x = net.input("x", ("N", 3, "H", "W"))
    x = relu6(net.conv_norm(x, 3, 8, 3, 2))
    for inputs, outputs, stride in ((8, 12, 2), (12, 12, 1), (12, 20, 2)):
        hidden = 6 * inputs
        y = relu6(net.conv_norm(x, inputs, hidden, 1))
        y = relu6(net.conv_norm(y, hidden, hidden, 3, stride, group=hidden))
        y = net.conv_norm(y, hidden, outputs, 1)
        x = net.op("Add", x, y) if stride == 1 and inputs == outputs else y
    x = relu6(net.conv_norm(x, 20, 40, 1))
    return net.finish({net.classifier(x, 40): ("N", 10)})


def squeezenet() -> onnx.ModelProto:
    """Fire modules, pools that round up, a convolution as classifier (Iandola et al. 2016)."""
    net = Net("squeezenet")

    def pool(x: str) -> str:
        return net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)

    def fire(x: str, inputs: int, squeeze: int, expand: int) -> str:
        x = net.relu(net.conv(x, inputs, squeeze, 1))
        parts = [net.relu(net.conv(x, squeeze, expand, kernel)) for kernel in (1, 3)]
        return net.op("Concat", *parts, axis=1)

    x = net.input("x", ("N", 3, "H", "W"))
    x = pool(net.relu(net.conv(x, 3, 8, 3, 2)))
    x = pool(fire(fire(x, 8, 3, 6), 12, 3, 6))
    x = fire(x, 12, 4, 8)
    x = net.op("GlobalAveragePool", net.relu(net.conv(net.op("Dropout", x), 16, 10, 1)))
    return net.finish({net.op("Softmax", net.op("Flatten", x), axis=1): ("N", 10)})


def unet() -> onnx.ModelProto:
    """Two levels with transposed convolutions and padding to the skip's size (Ronneberger 2015)."""
    net = Net("unet")

    def double(x: str, inputs: int, outputs: int) -> str:
        x = net.relu(net.conv_norm(x, inputs, outputs))
        return net.relu(net.conv_norm(x, outputs, outputs))

    def size(x: str) -> str:
        return net.op("Slice", net.op("Shape", x), net.ints(2), net.ints(4))

    x = net.input("x", ("N", 3, "H", "W"))
    skips = []
    for inputs, outputs in ((3, 6), (6, 12)):
        skips.append((double(x, inputs, outputs), outputs))
        x = net.op("MaxPool", skips[-1][0], kernel_shape=[2, 2], strides=[2, 2])
    x, channels = double(x, 12, 24), 24
    for skip, outputs in reversed(skips):
        w = net.weight(channels, outputs, 2, 2, inputs=channels)
        x = net.op("ConvTranspose", x, w, net.near_zero(outputs), strides=[2, 2])
        # An odd size lost a row or column on the way down.
        missing = net.op("Sub", size(skip), size(x))
        x = net.op("Pad", x, net.op("Concat", net.ints(0, 0, 0, 0, 0, 0), missing, axis=0))
        x = double(net.op("Concat", skip, x, axis=1), 2 * outputs, outputs)
        channels = outputs
    return net.finish({net.conv(x, channels, 2, 1): ("N", 2, "H", "W")})


def detector() -> onnx.ModelProto:
    """A YOLOv5-like detector: SiLU, a CSP block, SPPF, upsampling, two decoded grids of boxes."""
    net = Net("detector", opset=13)
    fields = 8  # x, y, width, height, objectness, three classes

    def conv(x: str, *args: int) -> str:
        return net.silu(net.conv_norm(x, *args))

    def csp(x: str, channels: int) -> str:
        half = channels // 2
        a, b = conv(x, channels, half, 1), conv(x, channels, half, 1)
        a = net.op("Add", a, conv(conv(a, half, half, 1), half, half, 3))
        return conv(net.op("Concat", a, b, axis=1), channels, channels, 1)

    def pool(x: str) -> str:
        return net.op("MaxPool", x, kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4)

    x = net.input("x", ("N", 3, "H", "W"))
    x = csp(conv(conv(x, 3, 6, 3, 2), 6, 12, 3, 2), 12)
    high = csp(conv(x, 12, 16, 3, 2), 16)
    low = conv(conv(high, 16, 24, 3, 2), 24, 12, 1)
    first = pool(low)
    second = pool(first)
    low = conv(net.op("Concat", low, first, second, pool(second), axis=1), 48, 16, 1)
    scales = net.constant([1.0, 1.0, 2.0, 2.0])
    up = net.op(
        "Resize", low, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric"
    )
    high = csp(net.op("Concat", up, high, axis=1), 32)
    boxes = [
        _decode(
            net, net.conv(high, 32, 3 * fields, 1), fields, 8.0, ((10, 13), (16, 30), (33, 23))
        ),
        _decode(
            net, net.conv(low, 16, 3 * fields, 1), fields, 16.0, ((30, 61), (62, 45), (59, 99))
        ),
    ]
    return net.finish({net.op("Concat", *boxes, axis=1): ("N", None, fields)})


def _decode(
    net: Net, x: str, fields: int, stride: float, anchors: Sequence[tuple[int, int]]
) -> str:
    """Add the decoding of [N, 3 · fields, H, W]; return [N, 3 · H · W, fields] in pixels."""
    dims = net.op("Shape", x)
    n, rows, columns = (
        net.op("Slice", dims, net.ints(axis), net.ints(axis + 1)) for axis in (0, 2, 3)
    )
    shape = net.op("Concat", n, net.ints(3, fields), rows, columns, axis=0)
    x = net.op("Transpose", net.op("Reshape", x, shape), perm=[0, 1, 3, 4, 2])
    x = net.op("Sigmoid", x)
    plane = net.op("Concat", net.ints(1, 1), rows, columns, axis=0)
    axes = []
    for count, place in ((columns, (1, 1, 1, -1)), (rows, (1, 1, -1, 1))):
        limits = (net.constant(0, np.int64), net.op("Squeeze", count), net.constant(1, np.int64))
        steps = net.op("Cast", net.op("Range", *limits), to=TensorProto.FLOAT)
        spread = net.op("Expand", net.op("Reshape", steps, net.ints(*place)), plane)
        axes.append(net.op("Unsqueeze", spread, net.ints(4)))
    grid = net.op("Sub", net.op("Concat", *axes, axis=4), net.constant(0.5))

    def part(first: int, end: int) -> str:
        return net.op("Slice", x, net.ints(first), net.ints(end), net.ints(4))

    two = net.constant(2.0)
    centre = net.op(
        "Mul", net.op("Add", net.op("Mul", part(0, 2), two), grid), net.constant(stride)
    )
    size = net.op("Pow", net.op("Mul", part(2, 4), two), two)
    size = net.op("Mul", size, net.constant(np.reshape(anchors, (1, 3, 1, 1, 2))))
    found = net.op("Concat", centre, size, part(4, fields), axis=4)
    return net.op("Reshape", found, net.op("Concat", n, net.ints(-1, fields), axis=0))


def espcn() -> onnx.ModelProto:
    """Three convolutions and a sub-pixel shuffle by 3 (Shi et al. 2016)."""
    net = Net("espcn")
    x = net.input("x", ("N", 1, "H", "W"))
    x = net.op("Tanh", net.conv(x, 1, 12, 5))
    x = net.op("Tanh", net.conv(x, 12, 8))
    x = net.op("DepthToSpace", net.conv(x, 8, 9), blocksize=3, mode="CRD")
    return net.finish({net.op("Sigmoid", x): ("N", 1, None, None)})


def vit(layers: int = 2) -> onnx.ModelProto:
    """Pre-norm layers on 8×8 patches; the positions are resized with the image."""
    width, heads, base = 24, 3, 4
    size = width // heads
    net = Net("vit")
    x = net.input("x", ("N", 3, "H", "W"))
    w = net.weight(width, 3, 8, 8, inputs=192)
    x = net.op("Conv", x, w, net.near_zero(width), strides=[8, 8])
    dims = net.op("Shape", x)
    n, plane = (
        net.op("Slice", dims, net.ints(first), net.ints(end)) for first, end in ((0, 1), (2, 4))
    )
    places = net.op(
        "Resize",
        net.weight(1, width, base, base),
        "",
        "",
        net.op("Concat", net.ints(1, width), plane, axis=0),
        mode="linear",
    )
    x = net.op("Add", x, places)
    x = net.op("Transpose", net.op("Reshape", x, net.ints(0, width, -1)), perm=[0, 2, 1])
    token = net.op("Expand", net.weight(1, 1, width), net.op("Concat", n, net.ints(1, 1), axis=0))
    x = net.op("Concat", token, x, axis=1)
    for _ in range(layers):
        packed = net.linear(net.layer_norm(x, width), width, 3 * width)
        packed = net.op("Reshape", packed, net.ints(0, 0, 3, heads, size))
        packed = net.op("Transpose", packed, perm=[2, 0, 3, 1, 4])
        q, k, v = (
            net.op("Gather", packed, net.constant(part, np.int64), axis=0) for part in range(3)
        )
        y = net.attend(q, k, v, size, lambda scores: scores)
        x = net.op("Add", x, net.linear(y, width, width))
        y = net.gelu(net.linear(net.layer_norm(x, width), width, 4 * width))
        x = net.op("Add", x, net.linear(y, 4 * width, width))
    x = net.op("Gather", net.layer_norm(x, width), net.constant(0, np.int64), axis=1)
    weight = net.weight(10, width, inputs=width)
    return net.finish({net.op("Gemm", x, weight, net.near_zero(10), transB=1): ("N", 10)})


def bert(layers: int = 2) -> onnx.ModelProto:
    """Post-norm layers, padding masked, everything spelled out (Devlin et al. 2018)."""
    width, heads = 24, 3
    size = width // heads
    net = Net("bert", opset=13)
    ids, visible, types = (
        net.input(name, ("N", "L"), TensorProto.INT64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    length = net.op("Slice", net.op("Shape", ids), net.ints(1), net.ints(2))
    places = net.op("Slice", net.weight(1, 64, width), net.ints(0), length, net.ints(1))
    x = net.op("Gather", net.weight(VOCABULARY, width), ids)
    x = net.op("Add", x, net.op("Gather", net.weight(2, width), types))
    x = net.spelled_layer_norm(net.op("Add", x, places), width)
    shown = net.op("Cast", net.op("Unsqueeze", visible, net.ints(1, 2)), to=TensorProto.FLOAT)
    hidden = net.op("Sub", net.constant(1.0), shown)
    mask = net.op("Mul", hidden, net.constant(np.finfo(np.float32).min))
    for _ in range(layers):
        q, k, v = (net.heads(net.linear(x, width, width), heads, size) for _ in range(3))
        y = net.attend(q, k, v, size, lambda scores: net.op("Add", scores, mask))
        x = net.spelled_layer_norm(net.op("Add", net.linear(y, width, width), x), width)
        y = net.linear(net.gelu(net.linear(x, width, 4 * width)), 4 * width, width)
        x = net.spelled_layer_norm(net.op("Add", y, x), width)
    first = net.op("Gather", x, net.constant(0, np.int64), axis=1)
    weight = net.weight(width, width, inputs=width)
    pooled = net.op("Tanh", net.op("Gemm", first, weight, net.near_zero(width), transB=1))
    return net.finish({x: ("N", "L", width), pooled: ("N", width)})


def gpt2(layers: int = 2) -> onnx.ModelProto:
    """Pre-norm layers with causal attention and a tied language head (Radford et al. 2019)."""
    width, heads = 24, 3
    size = width // heads
    net = Net("gpt2", opset=14)
    ids = net.input("input_ids", ("N", "L"), TensorProto.INT64)
    length = net.op("Gather", net.op("Shape", ids), net.constant(1, np.int64))
    places = net.op("Range", net.constant(0, np.int64), length, net.constant(1, np.int64))
    table = net.weight(VOCABULARY, width)
    x = net.op("Gather", table, ids)
    x = net.op("Add", x, net.op("Gather", net.weight(64, width), places))
    end = net.op("Unsqueeze", length, net.ints(0))
    square = net.op("Concat", end, end, axis=0)
    ones = net.op("Expand", net.constant(1.0), square)
    visible = net.op("Cast", net.op("Trilu", ones, upper=0), to=TensorProto.BOOL)
    lowest = net.constant(np.finfo(np.float32).min)
    for _ in range(layers):
        packed = net.linear(net.spelled_layer_norm(x, width), width, 3 * width)
        parts = net.ops("Split", 3, packed, net.ints(width, width, width), axis=2)
        q, k, v = (net.heads(part, heads, size) for part in parts)
        y = net.attend(q, k, v, size, lambda scores: net.op("Where", visible, scores, lowest))
        x = net.op("Add", x, net.linear(y, width, width))
        y = net.gelu_tanh(net.linear(net.spelled_layer_norm(x, width), width, 4 * width))
        x = net.op("Add", x, net.linear(y, 4 * width, width))
    x = net.spelled_layer_norm(x, width)
    logits = net.op("MatMul", x, net.op("Transpose", table, perm=[1, 0]))
    return net.finish({logits: ("N", "L", VOCABULARY)})


# --- what to run ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Network:
    """A builder, and the sizes of its inputs to run: (N, H, W) of images or (N, L) of sequences.

    The first size is repeated after each of the others: its plan must have been kept.
    """

    build: Callable[[], onnx.ModelProto]
    sizes: tuple[tuple[int, ...], ...]


PICTURES = ((1, 32, 32), (2, 64, 64), (1, 37, 51), (3, 41, 32))
TEXTS = ((1, 16), (2, 32), (1, 13), (3, 7))

NETWORKS = {
    "resnet": Network(resnet, PICTURES),
    "mobilenet_v2": Network(mobilenet_v2, PICTURES),
    "squeezenet": Network(squeezenet, PICTURES),
    "unet": Network(unet, PICTURES),
    # Its two grids meet where the size is a multiple of 16.
    "detector": Network(detector, ((1, 32, 32), (2, 64, 64), (1, 48, 80), (3, 16, 48))),
    "espcn": Network(espcn, PICTURES),
    "vit": Network(vit, ((1, 32, 32), (2, 64, 64), (1, 40, 56), (3, 24, 32))),
    "bert": Network(bert, TEXTS),
    "gpt2": Network(gpt2, TEXTS),
}


def make_feeds(model: onnx.ModelProto, size: Sequence[int], seed: int = 0) -> dict[str, Array]:
    """Return random inputs of a size: numbers for images, token ids and masks for sequences."""
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for info in model.graph.input:
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            channels = info.type.tensor_type.shape.dim[1].dim_value
            shape = (size[0], channels, *size[1:])
            feeds[info.name] = random.standard_normal(shape, dtype=np.float32)
        elif info.name == "attention_mask":
            visible = random.integers((size[1] + 1) // 2, size[1] + 1, (size[0], 1))
            feeds[info.name] = (np.arange(size[1]) < visible).astype(np.int64)
        else:
            limit = 2 if info.name == "token_type_ids" else VOCABULARY
            feeds[info.name] = random.integers(0, limit, tuple(size), dtype=np.int64)
    return feeds
