"""YOLOv5s as its authors export it, with random weights: backbone, neck, and boxes from anchors."""

from __future__ import annotations

import numpy as np
import onnx

from tests.model.networks import Net

CLASSES = 80
STRIDES = (8, 16, 32)
ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)


def yolov5s(pixels: int) -> onnx.ModelProto:
    """Return the network for one square image, of a multiple of 32 pixels."""
    net = Net("yolov5s")
    w = net.weight(32, 3, 6, 6, inputs=3 * 36)
    x = net.op("Conv", net.input("x", (1, 3, pixels, pixels)), w, strides=[2, 2], pads=[2] * 4)
    x = net.silu(net.norm(x, 32))
    channels, levels = 32, []
    for count in (1, 2, 3, 1):
        x = _conv(net, x, channels, 2 * channels, 3, 2)
        channels *= 2
        x = _block(net, x, channels, channels, count, joins=True)
        levels.append(x)
    _, third, fourth, _ = levels
    top5 = _conv(net, _pooled(net, x), 512, 256, 1)
    x = _block(net, net.op("Concat", _twice(net, top5), fourth, axis=1), 512, 256)
    top4 = _conv(net, x, 256, 128, 1)
    out3 = _block(net, net.op("Concat", _twice(net, top4), third, axis=1), 256, 128)
    down = _conv(net, out3, 128, 128, 3, 2)
    out4 = _block(net, net.op("Concat", down, top4, axis=1), 256, 256)
    down = _conv(net, out4, 256, 256, 3, 2)
    out5 = _block(net, net.op("Concat", down, top5, axis=1), 512, 512)
    found = [_boxes(net, out, level, pixels) for level, out in enumerate((out3, out4, out5))]
    count = sum(3 * (pixels // stride) ** 2 for stride in STRIDES)
    return net.finish({net.op("Concat", *found, axis=1): (1, count, 5 + CLASSES)})


def _conv(net: Net, x: str, *args: int) -> str:
    return net.silu(net.conv_norm(x, *args))


def _twice(net: Net, x: str) -> str:
    scales = net.constant([1, 1, 2, 2])
    return net.op("Resize", x, "", scales, mode="nearest", nearest_mode="floor",
                  coordinate_transformation_mode="asymmetric")  # fmt: skip


def _block(
    net: Net, x: str, inputs: int, outputs: int, count: int = 1, *, joins: bool = False
) -> str:
    """Two branches, one of them with bottlenecks, which may have residuals."""
    half = outputs // 2
    a, b = _conv(net, x, inputs, half, 1), _conv(net, x, inputs, half, 1)
    for _ in range(count):
        deep = _conv(net, _conv(net, a, half, half, 1), half, half, 3)
        a = net.op("Add", a, deep) if joins else deep
    return _conv(net, net.op("Concat", a, b, axis=1), outputs, outputs, 1)


def _pooled(net: Net, x: str) -> str:
    pools = [_conv(net, x, 512, 256, 1)]
    for _ in range(3):
        window = {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2] * 4}
        pools.append(net.op("MaxPool", pools[-1], **window))
    return _conv(net, net.op("Concat", *pools, axis=1), 1024, 512, 1)


def _boxes(net: Net, x: str, level: int, pixels: int) -> str:
    """Return the boxes of a level, three per pixel: positions, sizes and scores."""
    stride, columns = STRIDES[level], 5 + CLASSES
    size = pixels // stride
    x = net.conv(x, (128, 256, 512)[level], 3 * columns, 1)
    x = net.op("Reshape", x, net.ints(1, 3, columns, size, size))
    x = net.op("Sigmoid", net.op("Transpose", x, perm=[0, 1, 3, 4, 2]))
    place, extent, scores = net.ops("Split", 3, x, net.ints(2, 2, 1 + CLASSES), axis=4)
    grid = np.stack(np.meshgrid(np.arange(size), np.arange(size)), axis=-1) - 0.5
    shape = (1, 3, size, size, 2)
    place = net.op("Add", net.op("Mul", place, net.constant(2)), _same(net, grid, shape))
    place = net.op("Mul", place, net.constant(stride))
    anchors = np.array(ANCHORS[level]).reshape(1, 3, 1, 1, 2)
    extent = net.op("Pow", net.op("Mul", extent, net.constant(2)), net.constant(2))
    extent = net.op("Mul", extent, _same(net, anchors, shape))
    x = net.op("Concat", place, extent, scores, axis=4)
    return net.op("Reshape", x, net.ints(1, 3 * size * size, columns))


def _same(net: Net, value: np.ndarray, shape: tuple[int, ...]) -> str:  # type: ignore[type-arg]
    return net.constant(np.broadcast_to(value, shape))
