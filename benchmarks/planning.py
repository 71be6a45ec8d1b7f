"""The cost of planning another input shape, for networks of realistic depth.

Widths are a quarter of the usual ones, or less: planning does not depend on them, packing does.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import thread_time

import onnx

from tests.model.networks import Net, bert, gpt2, vit
from vkmnn.base.budget import unlimited
from vkmnn.core.plan import Plan
from vkmnn.core.resolve import fold_constants
from vkmnn.core.static import StaticShapes
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import TensorInfo
from vkmnn.opening import load_network
from vkmnn.runtime.device import Device
from vkmnn.vulkan.backend import VulkanBackend


def resnet50() -> onnx.ModelProto:
    """Sixteen bottlenecks after a 7×7 stem (He et al. 2015)."""
    net = Net("resnet50")
    x = net.relu(net.conv_norm(net.input("x", ("N", 3, "H", "W")), 3, 16, 7, 2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inputs = 16
    for planes, count, first in ((16, 3, 1), (32, 4, 2), (64, 6, 2), (128, 3, 2)):
        for number in range(count):
            stride = first if number == 0 else 1
            y = net.relu(net.conv_norm(x, inputs, planes, 1))
            y = net.relu(net.conv_norm(y, planes, planes, 3, stride))
            y = net.conv_norm(y, planes, 4 * planes, 1)
            if number == 0:
                x = net.conv_norm(x, inputs, 4 * planes, 1, stride)
            x = net.relu(net.op("Add", y, x))
            inputs = 4 * planes
    return net.finish({net.classifier(x, inputs, 1000): ("N", 1000)})


def mobilenet_v2() -> onnx.ModelProto:
    """Seventeen inverted residuals (Sandler et al. 2018), a quarter as wide."""
    net = Net("mobilenet_v2")

    def relu6(x: str) -> str:
        return net.op("Clip", x, net.constant(0.0), net.constant(6.0))

    x, inputs = relu6(net.conv_norm(net.input("x", ("N", 3, "H", "W")), 3, 8, 3, 2)), 8
    stages = ((1, 4, 1, 1), (6, 6, 2, 2), (6, 8, 3, 2), (6, 16, 4, 2), (6, 24, 3, 1))
    for factor, outputs, count, first in (*stages, (6, 40, 3, 2), (6, 80, 1, 1)):
        for number in range(count):
            stride, hidden = first if number == 0 else 1, factor * inputs
            y = relu6(net.conv_norm(x, inputs, hidden, 1)) if factor > 1 else x
            y = relu6(net.conv_norm(y, hidden, hidden, 3, stride, group=hidden))
            y = net.conv_norm(y, hidden, outputs, 1)
            x = net.op("Add", x, y) if stride == 1 and inputs == outputs else y
            inputs = outputs
    x = relu6(net.conv_norm(x, inputs, 320, 1))
    return net.finish({net.classifier(x, 320, 1000): ("N", 1000)})


def squeezenet() -> onnx.ModelProto:
    """Eight fire modules (Iandola et al. 2016), a quarter as wide."""
    net = Net("squeezenet")

    def pool(x: str) -> str:
        return net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)

    x = pool(net.relu(net.conv(net.input("x", ("N", 3, "H", "W")), 3, 16, 3, 2)))
    inputs = 16
    for squeeze, expand, pooled in (
        *((4, 16, False), (4, 16, True), (8, 32, False), (8, 32, True)),
        *((12, 48, False), (12, 48, False), (16, 64, False), (16, 64, False)),
    ):
        x = net.relu(net.conv(x, inputs, squeeze, 1))
        parts = [net.relu(net.conv(x, squeeze, expand, kernel)) for kernel in (1, 3)]
        x, inputs = net.op("Concat", *parts, axis=1), 2 * expand
        x = pool(x) if pooled else x
    x = net.op("GlobalAveragePool", net.relu(net.conv(x, inputs, 1000, 1)))
    return net.finish({net.op("Softmax", net.op("Flatten", x), axis=1): ("N", 1000)})


def unet() -> onnx.ModelProto:
    """Four levels (Ronneberger et al. 2015), a quarter as wide."""
    net = Net("unet")

    def double(x: str, inputs: int, outputs: int) -> str:
        x = net.relu(net.conv_norm(x, inputs, outputs))
        return net.relu(net.conv_norm(x, outputs, outputs))

    x, inputs = net.input("x", ("N", 3, "H", "W")), 3
    skips = []
    for outputs in (16, 32, 64, 128):
        skips.append((double(x, inputs, outputs), outputs))
        x = net.op("MaxPool", skips[-1][0], kernel_shape=[2, 2], strides=[2, 2])
        inputs = outputs
    x, inputs = double(x, inputs, 256), 256
    for skip, outputs in reversed(skips):
        w = net.weight(inputs, outputs, 2, 2, inputs=inputs)
        x = net.op("ConvTranspose", x, w, net.near_zero(outputs), strides=[2, 2])
        x = double(net.op("Concat", skip, x, axis=1), 2 * outputs, outputs)
        inputs = outputs
    return net.finish({net.conv(x, inputs, 2, 1): ("N", 2, "H", "W")})


PICTURES = ((1, 160, 160), (2, 160, 160), (1, 192, 160), (3, 160, 224), (1, 96, 128), (5, 128, 128))
TEXTS = ((1, 16), (1, 17), (2, 24), (1, 33), (3, 31), (1, 50))

NETWORKS: dict[str, tuple[Callable[[], onnx.ModelProto], Sequence[Sequence[int]]]] = {
    "ResNet-50": (resnet50, PICTURES),
    "MobileNetV2": (mobilenet_v2, PICTURES),
    "SqueezeNet": (squeezenet, PICTURES),
    "U-Net": (unet, PICTURES),
    "ViT, 12 layers": (partial(vit, 12), PICTURES),
    "BERT, 12 layers": (partial(bert, 12), TEXTS),
    "GPT-2, 12 layers": (partial(gpt2, 12), TEXTS),
}
"""Networks, and the sizes that they are planned for: batch, height, width, or batch and length."""


def costs(device: Device, name: str, rounds: int) -> Iterator[float]:
    """Yield CPU seconds per op of planning further sizes of a network, the first ones left out."""
    build, sizes = NETWORKS[name]
    graph = fold_constants(load_network(build()).graph, run_op, unlimited())
    for _ in range(rounds):
        backend, static, plans = VulkanBackend(device), StaticShapes(), []
        for number, size in enumerate(sizes):
            inputs = {info.name: sized(info, size) for info in graph.inputs}
            gc.collect()
            start = thread_time()
            plans.append(Plan(graph, inputs, {}, backend, CpuBackend(), run_op, static=static))
            seconds = thread_time() - start
            if number > 1:  # the second may still pack weights, and build pipelines
                yield seconds / len(graph.ops)
        for plan in plans:
            plan.close()


def sized(info: TensorInfo, size: Sequence[int]) -> TensorInfo:
    """Return an input with these sizes instead of names, in the order of `NETWORKS`."""
    names = ("N", "H", "W") if len(size) == 3 else ("N", "L")
    known = dict(zip(names, size, strict=True))
    shape = tuple(known[dim] if isinstance(dim, str) else dim for dim in info.shape or ())
    return replace(info, shape=shape)
