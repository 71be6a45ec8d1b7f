"""Train the small network of the digits demo in numpy and write it as ONNX.

    python examples/digits/train.py

Data: the 8x8 handwritten digits that scikit-learn brings (`load_digits`, 1797 images; from the UCI
"Optical Recognition of Handwritten Digits" test set). A fixed fifth is held out and stored beside
the model, so that the demo needs neither scikit-learn nor this script. Takes under a minute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

Array = npt.NDArray[np.floating[Any]]

HERE = Path(__file__).parent
SEED = 2024
HELD_OUT = 360
EPOCHS = 30
BATCH = 64
LEARNING_RATE = 2e-3
OPSET = 17
BN_EPSILON = 1e-5


@dataclass
class Param:
    """A trained array with its gradient and Adam's two moments."""

    value: Array
    grad: Array = field(init=False)
    m: Array = field(init=False)
    v: Array = field(init=False)

    def __post_init__(self) -> None:
        self.grad, self.m, self.v = (np.zeros_like(self.value) for _ in range(3))


class Layer:
    """One step of the network: `forward` keeps what `backward` needs."""

    params: tuple[Param, ...] = ()

    def forward(self, x: Array, *, train: bool) -> Array:
        """Return the layer's output for a batch."""
        raise NotImplementedError

    def backward(self, grad: Array) -> Array:
        """Set the parameters' gradients and return the gradient of the input."""
        raise NotImplementedError


class Conv3x3(Layer):
    """3x3 convolution, stride 1, padding 1, without bias (a BatchNorm follows)."""

    def __init__(self, rng: np.random.Generator, cin: int, cout: int) -> None:
        scale = np.sqrt(2.0 / (cin * 9))
        self.w = Param((rng.standard_normal((cout, cin, 3, 3)) * scale).astype(np.float32))
        self.params = (self.w,)

    def forward(self, x: Array, *, train: bool) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        n, c, h, w = x.shape
        self.columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c * 9)
        y = self.columns @ self.w.value.reshape(len(self.w.value), -1).T
        return y.reshape(n, h, w, -1).transpose(0, 3, 1, 2)

    def backward(self, grad: Array) -> Array:
        n, cout, h, w = grad.shape
        rows = grad.transpose(0, 2, 3, 1).reshape(-1, cout)
        self.w.grad = (rows.T @ self.columns).reshape(self.w.value.shape)
        columns = (rows @ self.w.value.reshape(cout, -1)).reshape(n, h, w, -1, 3, 3)
        padded = np.zeros((n, columns.shape[3], h + 2, w + 2), np.float32)
        for i in range(3):
            for j in range(3):
                padded[:, :, i : i + h, j : j + w] += columns[..., i, j].transpose(0, 3, 1, 2)
        return padded[:, :, 1:-1, 1:-1]


class BatchNorm(Layer):
    """Batch normalisation over the channel axis, with running statistics for inference."""

    def __init__(self, channels: int) -> None:
        self.gamma = Param(np.ones(channels, np.float32))
        self.beta = Param(np.zeros(channels, np.float32))
        self.params = (self.gamma, self.beta)
        self.mean = np.zeros(channels, np.float32)
        self.var = np.ones(channels, np.float32)

    def forward(self, x: Array, *, train: bool) -> Array:
        mean, var = self.mean, self.var
        if train:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
            self.mean += 0.1 * (mean - self.mean)
            self.var += 0.1 * (var - self.var)
        self.inverse = _per_channel(1 / np.sqrt(var + BN_EPSILON))
        self.normal = (x - _per_channel(mean)) * self.inverse
        return self.normal * _per_channel(self.gamma.value) + _per_channel(self.beta.value)

    def backward(self, grad: Array) -> Array:
        self.beta.grad = grad.sum((0, 2, 3))
        self.gamma.grad = (grad * self.normal).sum((0, 2, 3))
        count = grad.size // grad.shape[1]
        mean_part = _per_channel(self.beta.grad / count)
        var_part = self.normal * _per_channel(self.gamma.grad / count)
        return (grad - mean_part - var_part) * self.inverse * _per_channel(self.gamma.value)


class Relu(Layer):
    """max(x, 0)."""

    def forward(self, x: Array, *, train: bool) -> Array:
        self.mask = x > 0
        return x * self.mask

    def backward(self, grad: Array) -> Array:
        return grad * self.mask


class MaxPool2(Layer):
    """2x2 max pooling with stride 2."""

    def forward(self, x: Array, *, train: bool) -> Array:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // 2, 2, w // 2, 2)
        y = blocks.max((3, 5), keepdims=True)
        self.mask = blocks == y
        return y.reshape(n, c, h // 2, w // 2)

    def backward(self, grad: Array) -> Array:
        n, c, h, w = grad.shape
        return (grad[:, :, :, None, :, None] * self.mask).reshape(n, c, h * 2, w * 2)


class Flatten(Layer):
    """[N, ...] to [N, rest]."""

    def forward(self, x: Array, *, train: bool) -> Array:
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, grad: Array) -> Array:
        return grad.reshape(self.shape)


class Linear(Layer):
    """x @ W.T + b."""

    def __init__(self, rng: np.random.Generator, cin: int, cout: int) -> None:
        scale = np.sqrt(2.0 / cin)
        self.w = Param((rng.standard_normal((cout, cin)) * scale).astype(np.float32))
        self.b = Param(np.zeros(cout, np.float32))
        self.params = (self.w, self.b)

    def forward(self, x: Array, *, train: bool) -> Array:
        self.x = x
        return x @ self.w.value.T + self.b.value

    def backward(self, grad: Array) -> Array:
        self.w.grad, self.b.grad = grad.T @ self.x, grad.sum(0)
        return grad @ self.w.value


def _per_channel(values: Array) -> Array:
    return values.astype(np.float32)[None, :, None, None]


def build(rng: np.random.Generator) -> list[Layer]:
    """Return the untrained network: two convolutions, a pool, a convolution, two dense layers."""
    return [
        *(Conv3x3(rng, 1, 16), BatchNorm(16), Relu()),
        *(Conv3x3(rng, 16, 32), BatchNorm(32), Relu()),
        MaxPool2(),
        *(Conv3x3(rng, 32, 32), BatchNorm(32), Relu()),
        Flatten(),
        *(Linear(rng, 512, 64), Relu()),
        Linear(rng, 64, 10),
    ]


def forward(layers: list[Layer], x: Array, *, train: bool = False) -> Array:
    """Return the logits [N, 10] of images [N, 1, 8, 8]."""
    for layer in layers:
        x = layer.forward(x, train=train)
    return x


def softmax(logits: Array) -> Array:
    """Return the probabilities along the last axis."""
    e: Array = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def shifted(x: Array, rng: np.random.Generator) -> Array:
    """Return the images moved by at most one pixel any way: the only augmentation."""
    dy, dx = rng.integers(0, 3, 2)
    return np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))[:, :, dy : dy + 8, dx : dx + 8]


def train(layers: list[Layer], x: Array, labels: npt.NDArray[np.int64]) -> None:
    """Minimise the cross entropy with Adam (Kingma and Ba, 2015) and a cosine learning rate."""
    rng = np.random.default_rng(SEED + 1)
    params = [param for layer in layers for param in layer.params]
    steps = EPOCHS * (len(x) // BATCH)
    step = 0
    for epoch in range(EPOCHS):
        order = rng.permutation(len(x))
        total = 0.0
        for start in range(0, len(x) // BATCH * BATCH, BATCH):
            step += 1
            pick = order[start : start + BATCH]
            probs = softmax(forward(layers, shifted(x[pick], rng), train=True))
            target = np.eye(10, dtype=np.float32)[labels[pick]]
            total -= float(np.log((probs * target).sum(-1) + 1e-12).mean())
            grad = (probs - target) / BATCH
            for layer in reversed(layers):
                grad = layer.backward(grad)
            rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
            for param in params:
                param.m += 0.1 * (param.grad - param.m)
                param.v += 0.001 * (param.grad**2 - param.v)
                m, v = param.m / (1 - 0.9**step), param.v / (1 - 0.999**step)
                param.value -= (rate * m / (np.sqrt(v) + 1e-8)).astype(np.float32)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:3d}: loss {total / (len(x) // BATCH):.4f}")


def export(layers: list[Layer]) -> onnx.ModelProto:
    """Return the network as ONNX: input "image" [N, 1, 8, 8] in 0..1, output "probabilities"."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    current = "image"

    def add(op: str, arrays: dict[str, Array], **attributes: Any) -> None:
        nonlocal current
        name = f"{op.lower()}_{len(nodes)}"
        names = [f"{name}.{key}" for key in arrays]
        weights.extend(map(numpy_helper.from_array, arrays.values(), names))
        nodes.append(helper.make_node(op, [current, *names], [name], name, **attributes))
        current = name

    for layer in layers:
        match layer:
            case Conv3x3(w=w):
                add("Conv", {"weight": w.value}, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
            case BatchNorm(gamma=gamma, beta=beta, mean=mean, var=var):
                arrays = {"scale": gamma.value, "bias": beta.value, "mean": mean, "var": var}
                add("BatchNormalization", arrays, epsilon=BN_EPSILON)
            case Relu():
                add("Relu", {})
            case MaxPool2():
                add("MaxPool", {}, kernel_shape=[2, 2], strides=[2, 2])
            case Flatten():
                add("Flatten", {}, axis=1)
            case Linear(w=w, b=b):
                add("Gemm", {"weight": w.value, "bias": b.value}, transB=1)
    nodes.append(helper.make_node("Softmax", [current], ["probabilities"], "softmax", axis=-1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10])],
        weights,
    )
    model = helper.make_model(
        graph,
        producer_name="vkmnn examples/digits/train.py",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,  # the IR of opset 17: readable by old ONNX tools as well
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train, report the held-out accuracy, and write the model and the held-out images."""
    data = load_digits()
    images, labels = data.images.astype(np.uint8), data.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(images))
    held_out, seen = order[:HELD_OUT], order[HELD_OUT:]
    x = images[:, None].astype(np.float32) / 16

    layers = build(np.random.default_rng(SEED))
    train(layers, x[seen], labels[seen])
    right = forward(layers, x[held_out]).argmax(-1) == labels[held_out]
    print(f"held-out accuracy: {right.mean():.2%} ({right.sum()} of {len(right)})")

    model = export(layers)
    onnx.save(model, HERE / "digits.onnx")
    test = {"images": images[held_out], "labels": labels[held_out].astype(np.uint8)}
    np.savez_compressed(HERE / "digits_test.npz", **test)
    print(f"wrote {HERE / 'digits.onnx'} ({model.ByteSize() / 1000:.0f} kB) and digits_test.npz")


if __name__ == "__main__":
    main()
