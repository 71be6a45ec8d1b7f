"""Pooling where windows stick out of the input, and operators of nothing at all."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.classes.whole import check, devices, model, node
from vkmnn.ir import Array


def floats(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        ((2,), {"kernel_shape": [3], "strides": [2]}),
        ((2, 2), {"kernel_shape": [3, 3], "strides": [2, 2]}),
        ((4, 4), {"kernel_shape": [1280, 4], "strides": [1280, 4]}),
        ((3, 2), {"kernel_shape": [3, 3], "strides": [4, 2], "dilations": [2, 1]}),
        ((3, 1), {"kernel_shape": [4, 3], "strides": [3, 2], "pads": [0, 1, 0, 0]}),
        ((2, 3, 2), {"kernel_shape": [3, 2, 3], "strides": [2, 2, 3]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_kernels_larger_than_the_input(
    op: str, size: tuple[int, ...], attributes: dict[str, list[int]], ceil_mode: int
) -> None:
    feeds = {"x": floats(1, 5, *size)}
    made = model([node(op, "x", ceil_mode=ceil_mode, **attributes)], feeds, opset=22)
    check(made, feeds)
    if op == "AveragePool":
        counted = node(op, "x", ceil_mode=ceil_mode, count_include_pad=1, **attributes)
        check(model([counted], feeds, opset=22), feeds)


@pytest.mark.parametrize("seed", range(36))
def test_random_windows(seed: int) -> None:
    """Kernels stick out of the padded input by less than a stride."""
    random = np.random.default_rng(seed)
    axes, op = int(random.integers(1, 4)), ("MaxPool", "AveragePool", "LpPool")[seed % 3]
    kernel, strides, dilations = (random.integers(1, largest, axes) for largest in (7, 5, 4))
    dilations = dilations if random.random() < 0.4 else np.ones_like(dilations)
    pads = np.array([random.integers(0, kernel) for _ in "be"]) * int(random.integers(2))
    smallest = (kernel - 1) * dilations + 1 - pads.sum(0) - strides + 1
    size = np.maximum(random.integers(1, 8, axes), smallest)
    attributes: dict[str, object] = {
        "kernel_shape": kernel.tolist(),
        "strides": strides.tolist(),
        "dilations": dilations.tolist(),
        "pads": pads.reshape(-1).tolist(),
        "ceil_mode": int(random.random() < 0.7),
    }
    if op == "AveragePool":
        attributes["count_include_pad"] = int(random.integers(2))
    feeds = {"x": floats(2, 3, *size.tolist())}
    made = model([node(op, "x", **attributes)], feeds, opset=22)
    check(made, feeds, on=devices() if seed % 2 else ("cpu",))


@pytest.mark.parametrize("opset", [11, 21])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (3, 0, 2)])
def test_hardmax_of_nothing(opset: int, shape: tuple[int, ...]) -> None:
    feeds = {"x": np.zeros(shape, np.float32)}
    for axis in range(len(shape)):
        check(model([node("Hardmax", "x", axis=axis)], feeds, opset=opset), feeds)


@pytest.mark.parametrize("opset", [11, 21])
def test_hardmax_that_is_empty_at_run_time_only(opset: int) -> None:
    """The same session takes rows of nothing, and of something."""
    made = model([node("Hardmax", "x", axis=1)], {"x": floats(2, 3)}, opset=opset)
    for axis, name in enumerate("NM"):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    made.graph.output[0].type.tensor_type.ClearField("shape")
    for shape in [(2, 3), (2, 0), (0, 3), (0, 0), (1, 4)]:
        check(made, {"x": floats(*shape)})


@pytest.mark.parametrize("step", [2**31, 2**62])
@pytest.mark.parametrize(
    ("op", "name"),
    [
        *(("Conv", "strides"), ("Conv", "dilations")),
        *(("MaxPool", "strides"), ("AveragePool", "strides"), ("ConvTranspose", "dilations")),
    ],
)
def test_steps_beyond_what_kernels_hold(op: str, name: str, step: int) -> None:
    """One window fits, whatever the step: the numpy backend takes over."""
    feeds = {"x": floats(1, 1, 3, 3)}
    weights = {"w": np.ones((1, 1, 1, 1), np.float32)}
    if "Conv" in op:
        made = model([node(op, "x w", **{name: [step] * 2})], feeds, weights)
        want = feeds["x"] if name == "dilations" else feeds["x"][..., :1, :1]
    else:
        made = model([node(op, "x", kernel_shape=[1, 1], **{name: [step] * 2})], feeds)
        want = feeds["x"][..., :1, :1]
    check(made, feeds, [want])


@pytest.mark.parametrize("x", [np.zeros((0,)), np.zeros((2, 0)), np.zeros((2, 3)), floats(3, 5)])
def test_dynamic_quantization(x: Array) -> None:
    feeds = {"x": x.astype(np.float32)}
    check(model([node("DynamicQuantizeLinear", "x", "y s z")], feeds, outputs="y s z"), feeds)
    for part in (feeds["x"] + 9, feeds["x"] - 9):
        shifted = {"x": part}
        made = model([node("DynamicQuantizeLinear", "x", "y s z")], shifted, outputs="y s z")
        check(made, shifted)
