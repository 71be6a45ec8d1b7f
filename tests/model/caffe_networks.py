"""Small networks of Caffe's with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.model.caffe_layers import (
    Array,
    across_channels,
    channels,
    convolved,
    pooled,
    resized,
    softmax,
    unpooled,
)

Arrays = dict[str, list[Array]]


class Network(NamedTuple):
    """A network.

    `layers` are those that OpenCV is asked for; `rule` computes the outputs where OpenCV cannot.
    """

    text: str
    weights: Arrays
    shapes: Mapping[str, tuple[int, ...]]
    layers: Sequence[str] = ()
    rule: Callable[..., Sequence[Array]] | None = None
    form: str = "layer"

    def feeds(self, seed: int, batch: int | None = None) -> dict[str, Array]:
        """Return inputs, of another batch if it is given."""
        rng = np.random.default_rng(seed)
        return {
            name: rng.normal(0, 1, (batch or shape[0], *shape[1:])).astype(np.float32)
            for name, shape in self.shapes.items()
        }


class Text:
    """A network as it is written: layers of today's form, and their weights."""

    def __init__(self, name: str, *shape: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        dims = " ".join(f"dim: {size}" for size in shape)
        self.lines = [
            f'name: "{name}"',
            'layer { name: "data" type: "Input" top: "data" input_param { shape { '
            + dims
            + " } } }",
        ]
        self.weights: Arrays = {}
        self.widths = {"data": shape[1]}

    def layer(
        self,
        kind: str,
        name: str,
        bottoms: str,
        parameters: str = "",
        *,
        top: str = "",
        weights: Sequence[Array] = (),
        width: int = 0,
        tops: Sequence[str] = (),
    ) -> str:
        """Add a layer; an in-place one has its bottom as `top`."""
        first = bottoms.split()[0]
        written = list(tops) or [top or name]
        lines = "".join(f' bottom: "{one}"' for one in bottoms.split())
        lines += "".join(f' top: "{one}"' for one in written)
        self.lines.append(f'layer {{ name: "{name}" type: "{kind}"{lines} {parameters} }}')
        if weights:
            self.weights[name] = [np.asarray(one, np.float32) for one in weights]
        self.widths |= dict.fromkeys(written, width or self.widths[first])
        return written[0]

    def conv(
        self,
        name: str,
        x: str,
        width: int,
        kernel: int,
        more: str = "",
        group: int = 1,
        bias: bool = True,
        kind: str = "Convolution",
    ) -> str:
        each = self.widths[x] // group
        shape = (width, each) if kind != "Deconvolution" else (self.widths[x], width // group)
        blobs = [self.rng.normal(0, (each * kernel * kernel) ** -0.5, (*shape, kernel, kernel))]
        if bias:
            blobs.append(self.rng.normal(0, 0.1, width))
        given = f"num_output: {width} kernel_size: {kernel} group: {group} {more}"
        given += "" if bias else " bias_term: false"
        return self.layer(
            kind, name, x, f"convolution_param {{ {given} }}", weights=blobs, width=width
        )

    def relu(self, x: str) -> str:
        """Add a ReLU in place."""
        return self.layer("ReLU", f"{x}_relu", x, top=x)

    def norm(self, x: str) -> str:
        """Add BatchNorm and Scale in place."""
        width, rng = self.widths[x], self.rng
        blobs = [rng.normal(0, 0.3, width) * 5, (rng.random(width) + 0.5) * 5, [5.0]]
        self.layer(
            "BatchNorm", f"{x}_bn", x, "batch_norm_param { eps: 0.001 }", top=x, weights=blobs
        )
        blobs = [rng.random(width) + 0.5, rng.normal(0, 0.3, width)]
        return self.layer(
            "Scale", f"{x}_scale", x, "scale_param { bias_term: true }", top=x, weights=blobs
        )

    def pool(self, name: str, x: str, more: str) -> str:
        return self.layer("Pooling", name, x, f"pooling_param {{ {more} }}")

    def product(self, name: str, x: str, width: int, depth: int) -> str:
        blobs = [self.rng.normal(0, depth**-0.5, (width, depth)), self.rng.normal(0, 0.1, width)]
        return self.layer(
            "InnerProduct",
            name,
            x,
            f"inner_product_param {{ num_output: {width} }}",
            weights=blobs,
            width=width,
        )

    def finish(self, shapes: Mapping[str, tuple[int, ...]], *layers: str, **more: Any) -> Network:
        return Network("\n".join(self.lines), self.weights, shapes, layers, **more)


def lenet() -> Network:
    net = Text("LeNet", 2, 1, 28, 28)
    x = net.pool("pool1", net.conv("conv1", "data", 6, 5), "pool: MAX kernel_size: 2 stride: 2")
    x = net.pool("pool2", net.conv("conv2", x, 8, 5), "pool: MAX kernel_size: 2 stride: 2")
    x = net.product("ip2", net.relu(net.product("ip1", x, 20, 128)), 10, 20)
    net.layer("Softmax", "prob", x)
    return net.finish({"data": (2, 1, 28, 28)}, "prob")


def residual() -> Network:
    """As in ResNet: in-place normalisation, sums, a pooling whose windows leave the image."""
    net = Text("ResNet", 1, 3, 33, 35, seed=1)
    x = net.relu(net.norm(net.conv("conv1", "data", 8, 7, "stride: 2 pad: 3", bias=False)))
    x = net.pool("pool1", x, "pool: MAX kernel_size: 3 stride: 2")
    for number, width in enumerate((8, 16)):
        stride = number + 1
        y = net.relu(
            net.norm(net.conv(f"a{number}", x, width, 3, f"stride: {stride} pad: 1", bias=False))
        )
        y = net.norm(net.conv(f"b{number}", y, width, 3, "pad: 1", bias=False))
        side = net.norm(net.conv(f"side{number}", x, width, 1, f"stride: {stride}", bias=False))
        x = net.relu(net.layer("Eltwise", f"sum{number}", f"{side} {y}"))
    x = net.pool("pool5", x, "pool: AVE global_pooling: true")
    net.layer("Softmax", "prob", net.product("fc", x, 7, 16))
    return net.finish({"data": (1, 3, 33, 35)}, "prob")


def inception() -> Network:
    """As GoogLeNet: branches, pads of poolings, LRN across channels."""
    net = Text("GoogLeNet", 1, 3, 40, 36, seed=2)
    x = net.relu(net.conv("conv1", "data", 8, 7, "stride: 2 pad: 3"))
    x = net.pool("pool1", x, "pool: MAX kernel_size: 3 stride: 2")
    x = net.layer("LRN", "norm1", x, "lrn_param { local_size: 5 alpha: 0.1 beta: 0.75 }")
    branches = [
        net.relu(net.conv("one", x, 4, 1)),
        net.relu(net.conv("three", net.relu(net.conv("reduce", x, 3, 1)), 5, 3, "pad: 1")),
        net.relu(net.conv("project", net.pool("side", x, "kernel_size: 3 stride: 1 pad: 1"), 3, 1)),
    ]
    x = net.layer("Concat", "output", " ".join(branches), width=12)
    x = net.pool("pool2", x, "pool: AVE kernel_size: 5 stride: 3 pad: 1")
    x = net.layer("Dropout", "drop", x, "dropout_param { dropout_ratio: 0.4 }", top=x)
    net.layer("Softmax", "prob", net.product("fc", x, 6, 12 * 4 * 3))
    return net.finish({"data": (1, 3, 40, 36)}, "prob")


def fully_convolutional() -> Network:
    """As in FCN-8s: a wide pad, and results enlarged and cropped to each other's sizes."""
    net = Text("FCN", 1, 3, 21, 26, seed=3)
    x = net.relu(net.conv("conv1", "data", 6, 3, "pad: 12"))
    pool1 = net.pool("pool1", x, "pool: MAX kernel_size: 2 stride: 2")
    pool2 = net.pool(
        "pool2", net.relu(net.conv("conv2", pool1, 8, 3, "pad: 1")), "kernel_size: 2 stride: 2"
    )
    x = net.conv(
        "up2", net.conv("score2", pool2, 4, 1), 4, 4, "stride: 2", bias=False, kind="Deconvolution"
    )
    side = net.conv("score1", pool1, 4, 1)
    x = net.layer("Crop", "cut", f"{x} {side}", "crop_param { axis: 2 offset: 1 }")
    x = net.layer("Eltwise", "sum", f"{x} {side}")
    x = net.conv("up1", x, 4, 4, "stride: 2", bias=False, kind="Deconvolution")
    net.layer("Crop", "score", f"{x} data", "crop_param { axis: 2 offset: 12 }")
    return net.finish({"data": (1, 3, 21, 26)}, "score")


def ssd() -> Network:
    """As MobileNet-SSD, with two layers that detect."""
    net = Text("SSD", 1, 3, 48, 48, seed=4)
    x = net.relu(net.norm(net.conv("conv0", "data", 8, 3, "stride: 2 pad: 1", bias=False)))
    x = net.relu(net.norm(net.conv("dw1", x, 8, 3, "stride: 2 pad: 1", group=8, bias=False)))
    x = net.relu(net.norm(net.conv("conv1", x, 12, 1, bias=False)))
    scaled = net.layer(
        "Normalize",
        "normed",
        x,
        "norm_param { across_spatial: false channel_shared: false }",
        weights=[net.rng.random(12) * 4],
    )
    y = net.relu(net.conv("conv2", x, 16, 3, "stride: 2 pad: 1"))
    found: dict[str, list[str]] = {"loc": [], "conf": [], "priorbox": []}
    for number, one in enumerate((scaled, y)):
        for kind, width in (("loc", 4), ("conf", 5)):
            head = net.conv(f"{kind}{number}", one, width * 4, 3, "pad: 1")
            head = net.layer(
                "Permute",
                f"{head}_perm",
                head,
                "permute_param { order: 0 order: 2 order: 3 order: 1 }",
            )
            found[kind].append(net.layer("Flatten", f"{head}_flat", head))
        sizes = (
            f"min_size: {14 + 10 * number} max_size: {24 + 10 * number} aspect_ratio: 2 clip: false"
        )
        found["priorbox"].append(
            net.layer(
                "PriorBox",
                f"priorbox{number}",
                f"{one} data",
                f"prior_box_param {{ {sizes} variance: [0.1, 0.1, 0.2, 0.2] }}",
            )
        )
    for kind, parts in found.items():
        axis = "concat_param { axis: 2 }" if kind == "priorbox" else ""
        net.layer("Concat", f"mbox_{kind}", " ".join(parts), axis)
    x = net.layer(
        "Reshape", "reshaped", "mbox_conf", "reshape_param { shape { dim: 0 dim: -1 dim: 5 } }"
    )
    x = net.layer("Softmax", "softmax", x, "softmax_param { axis: 2 }")
    x = net.layer("Flatten", "flat", x)
    net.layer(
        "DetectionOutput",
        "detections",
        f"mbox_loc {x} mbox_priorbox",
        "detection_output_param { num_classes: 5 share_location: true background_label_id: 0 "
        "nms_param { nms_threshold: 0.45 top_k: 100 } code_type: CENTER_SIZE keep_top_k: 20 "
        "confidence_threshold: 0.25 }",
    )
    return net.finish({"data": (1, 3, 48, 48)}, "detections")


def shuffled() -> Network:
    """As ShuffleNet: groups whose channels are mixed, channels weighted, activations of slopes."""
    net = Text("ShuffleNet", 2, 4, 18, 20, seed=5)
    x = net.conv("conv1", "data", 12, 3, "pad: 1")
    x = net.layer("PReLU", "prelu1", x, top=x, weights=[net.rng.random(12)])
    x = net.conv("group1", x, 12, 1, group=3)
    x = net.layer("ShuffleChannel", "shuffle", x, "shuffle_channel_param { group: 3 }")
    x = net.conv("dw", x, 12, 3, "pad: 1 stride: 2", group=12)
    y = net.pool("average", x, "pool: AVE global_pooling: true")
    y = net.layer("Sigmoid", "gate", net.conv("excite", y, 12, 1))
    y = net.layer("Flatten", "flat", y)
    x = net.layer("Scale", "weighted", f"{x} {y}", "scale_param { axis: 0 }")
    parts = net.layer("Slice", "slice", x, "slice_param { slice_point: 5 }", tops=["head", "tail"])
    net.widths |= {"head": 5, "tail": 7}
    head = net.layer("TanH", "tanh", parts)
    tail = net.layer("ELU", "elu", "tail")
    x = net.layer("Concat", "joined", f"{head} {tail}", width=12)
    x = net.pool("pool", x, "pool: MAX kernel_size: 2 stride: 2 pad: 1")
    net.product("fc", x, 5, 12 * 5 * 6)

    def rule(data: Array, w: Arrays) -> list[Array]:
        x = convolved(data, *w["conv1"], 1, 1)
        x = np.where(x > 0, x, channels(w["prelu1"][0]) * x)
        x = convolved(x, *w["group1"], 1, 0, 1, 3)
        n, _, *sizes = x.shape
        x = x.reshape(n, 3, 4, *sizes).swapaxes(1, 2).reshape(x.shape)
        x = convolved(x, *w["dw"], 2, 1, 1, 12)
        y = convolved(x.mean((2, 3), keepdims=True), *w["excite"], 1, 0)
        x = x / (1 + np.exp(-y))
        x = np.concatenate(
            [np.tanh(x[:, :5]), np.where(x[:, 5:] > 0, x[:, 5:], np.expm1(x[:, 5:]))], 1
        )
        x = pooled(x, (2, 2), (2, 2), (1, 1), True)[0]
        return [x.reshape(n, -1) @ w["fc"][0].T + w["fc"][1]]

    return net.finish({"data": (2, 4, 18, 20)}, rule=rule)


def segmenting() -> Network:
    """As in SegNet: maxima return to their positions; normalisation with absorbed statistics."""
    net = Text("SegNet", 1, 3, 16, 20, seed=6)
    x = net.conv("conv1", "data", 6, 3, "pad: 1")
    blobs = [
        one.reshape(1, 6, 1, 1) for one in (net.rng.random(6) + 0.5, net.rng.normal(0, 0.3, 6))
    ]
    x = net.relu(net.layer("BN", "bn1", x, "bn_param { bn_mode: INFERENCE }", top=x, weights=blobs))
    x = net.layer(
        "Pooling", "pool1", x, "pooling_param { kernel_size: 2 stride: 2 }", tops=["pool1", "mask"]
    )
    x = net.conv("conv2", x, 6, 3, "pad: 1")
    x = net.layer("Upsample", "up", f"{x} mask", "upsample_param { scale: 2 }")
    x = net.conv("score", x, 4, 3, "pad: 1")
    net.layer("ArgMax", "argmax", net.layer("Softmax", "prob", x), "argmax_param { axis: 1 }")

    def rule(data: Array, w: Arrays) -> list[Array]:
        x = convolved(data, *w["conv1"], 1, 1) * channels(w["bn1"][0]) + channels(w["bn1"][1])
        x, mask = pooled(np.maximum(x, 0), (2, 2), (2, 2), (0, 0), True)
        x = unpooled(convolved(x, *w["conv2"], 1, 1), mask, 16, 20)
        return [softmax(convolved(x, *w["score"], 1, 1)).argmax(1)[:, None]]

    return net.finish({"data": (1, 3, 16, 20)}, rule=rule)


def pyramid() -> Network:
    """As PSPNet: averages of several sizes, enlarged with aligned corners."""
    net = Text("PSPNet", 1, 3, 25, 25, seed=7)
    rng = net.rng
    x = net.conv("conv1", "data", 8, 3, "stride: 2 pad: 1", bias=False)
    blobs = [rng.random(8) + 0.5, rng.normal(0, 0.3, 8), rng.normal(0, 0.3, 8), rng.random(8) + 0.5]
    x = net.layer("BN", "bn1", x, top=x, weights=[one.reshape(1, 8, 1, 1) for one in blobs])
    x = net.relu(x)
    parts = [x]
    for kernel in (13, 7):
        y = net.pool(f"pool{kernel}", x, f"pool: AVE kernel_size: {kernel} stride: {kernel}")
        parts.append(
            net.layer(
                "Interp",
                f"up{kernel}",
                net.conv(f"conv{kernel}", y, 3, 1),
                "interp_param { height: 13 width: 13 }",
            )
        )
    x = net.layer("Concat", "joined", " ".join(parts), width=14)
    net.layer("Interp", "score", net.conv("head", x, 4, 1), "interp_param { zoom_factor: 2 }")

    def rule(data: Array, w: Arrays) -> list[Array]:
        s, b, m, v = (channels(one) for one in w["bn1"])
        x = np.maximum(
            (convolved(data, w["conv1"][0], None, 2, 1) - m) / np.sqrt(v + 1e-5) * s + b, 0
        )
        parts = [x]
        for kernel in (13, 7):
            y = pooled(x, (kernel,) * 2, (kernel,) * 2, (0, 0), False)[0]
            parts.append(resized(convolved(y, *w[f"conv{kernel}"], 1, 0), 13, 13))
        return [resized(convolved(np.concatenate(parts, 1), *w["head"], 1, 0), 25, 25)]

    return net.finish({"data": (1, 3, 25, 25)}, rule=rule)


V1 = """
name: "CaffeNet"
input: "data" input_dim: 2 input_dim: 3 input_dim: 31 input_dim: 33
layers { name: "conv1" type: CONVOLUTION bottom: "data" top: "conv1" blobs_lr: 1 blobs_lr: 2
  convolution_param { num_output: 8 kernel_size: 5 stride: 2 weight_filler { type: "gaussian"
  std: 0.01 } } }
layers { name: "relu1" type: RELU bottom: "conv1" top: "conv1" }
layers { name: "pool1" type: POOLING bottom: "conv1" top: "pool1" pooling_param {
  pool: MAX kernel_size: 3 stride: 2 } }
layers { name: "norm1" type: LRN bottom: "pool1" top: "norm1" lrn_param { local_size: 3
  alpha: 0.1 norm_region: WITHIN_CHANNEL } }
layers { name: "conv2" type: CONVOLUTION bottom: "norm1" top: "conv2"
  convolution_param { num_output: 8 pad: 2 kernel_size: 5 group: 2 } }
layers { name: "both" type: ELTWISE bottom: "norm1" bottom: "conv2" top: "both"
  eltwise_param { operation: MAX } }
layers { name: "flat" type: FLATTEN bottom: "both" top: "flat" }
layers { name: "fc6" type: INNER_PRODUCT bottom: "flat" top: "fc6"
  inner_product_param { num_output: 12 } }
layers { name: "drop6" type: DROPOUT bottom: "fc6" top: "fc6" dropout_param { dropout_ratio: 0.5 } }
layers { name: "fc7" type: INNER_PRODUCT bottom: "fc6" top: "fc7" inner_product_param {
  num_output: 5 } }
layers { name: "prob" type: SOFTMAX bottom: "fc7" top: "prob" }
"""

V0 = """
name: "old"
input: "data" input_dim: 1 input_dim: 3 input_dim: 20 input_dim: 22
layers { layer { name: "pad1" type: "padding" pad: 2 } bottom: "data" top: "pad1" }
layers { layer { name: "conv1" type: "conv" num_output: 6 kernelsize: 5 stride: 2
  weight_filler { type: "gaussian" } } bottom: "pad1" top: "conv1" }
layers { layer { name: "relu1" type: "relu" } bottom: "conv1" top: "conv1" }
layers { layer { name: "pool1" type: "pool" pool: AVE kernelsize: 3 stride: 2 }
  bottom: "conv1" top: "pool1" }
layers { layer { name: "norm1" type: "lrn" local_size: 3 alpha: 0.5 beta: 0.75 }
  bottom: "pool1" top: "norm1" }
layers { layer { name: "conv2" type: "conv" num_output: 6 group: 2 kernelsize: 3 pad: 1
  biasterm: false } bottom: "norm1" top: "conv2" }
layers { layer { name: "both" type: "concat" concat_dim: 1 } bottom: "norm1" bottom: "conv2"
  top: "both" }
layers { layer { name: "fc" type: "innerproduct" num_output: 5 } bottom: "both" top: "fc" }
layers { layer { name: "drop" type: "dropout" dropout_ratio: 0.5 } bottom: "fc" top: "fc" }
layers { layer { name: "prob" type: "softmax" } bottom: "fc" top: "prob" }
"""


def _normal(*shape: int) -> Array:
    scale = np.prod(shape[1:] or (25,)) ** -0.5
    return np.random.default_rng(shape).normal(0, scale, shape).astype(np.float32)


def version_1() -> Network:
    """As CaffeNet in the form of 2014, with weights of four sizes each."""
    weights = {
        "conv1": [_normal(8, 3, 5, 5), _normal(8)], "conv2": [_normal(8, 4, 5, 5), _normal(8)],
        "fc6": [_normal(12, 8 * 7 * 7), _normal(12)], "fc7": [_normal(5, 12), _normal(5)],
    }  # fmt: skip
    return Network(V1, weights, {"data": (2, 3, 31, 33)}, ["prob"], form="v1")


def version_0() -> Network:
    """A network in the form of 2013, with a layer that pads."""
    weights = {
        "conv1": [_normal(6, 3, 5, 5), _normal(6)], "conv2": [_normal(6, 3, 3, 3)],
        "fc": [_normal(5, 12 * 5 * 5), _normal(5)],
    }  # fmt: skip

    def rule(data: Array, w: Arrays) -> list[Array]:
        x = np.maximum(convolved(data, *w["conv1"], 2, 2), 0)
        x = across_channels(pooled(x, (3, 3), (2, 2), (0, 0), False)[0], 3, 0.5, 0.75, 1)
        x = np.concatenate([x, convolved(x, w["conv2"][0], None, 1, 1, 1, 2)], 1)
        return [softmax(x.reshape(len(x), -1) @ w["fc"][0].T + w["fc"][1])]

    return Network(V0, weights, {"data": (1, 3, 20, 22)}, rule=rule, form="v0")


NETWORKS: dict[str, Callable[[], Network]] = {
    build.__name__: build
    for build in (
        *(lenet, residual, inception, fully_convolutional, ssd, shuffled, segmenting, pyramid),
        *(version_1, version_0),
    )
}
