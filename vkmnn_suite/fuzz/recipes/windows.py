"""Convolutions, pooling, resizing, sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.schemas import Skip
from vkmnn_suite.fuzz.sketch import MICROSOFT, Sketch, Value
from vkmnn_suite.fuzz.values import FINITE, UNIT, Spread

_WEIGHTS = Spread(-1, 1, special=False)


def image(s: Sketch, dtype: str, axes: int, spread: Spread = FINITE) -> Value:
    """Return a value with batch, channels and this many spatial axes."""
    shape = [s.choose(1, 1, 2, 3), s.choose(4, 8, 12, s.size(16), s.size(16), s.size(16))]
    shape = s.within(shape + [s.size({1: 33, 2: 13, 3: 7}[axes]) for _ in range(axes)])
    x = s.pick(dtype, min_rank=axes + 2, max_rank=axes + 2, spread=spread)
    return x if s.chance(0.5) and 0 not in x.shape else s.pick(dtype, shape, spread=spread)


def geometry(
    s: Sketch, sizes: tuple[int, ...], *, dilate: bool = True
) -> tuple[list[int], dict[str, Any]]:
    """Return a kernel that fits, and the other attributes of a window."""
    axes = len(sizes)
    kernel = [s.choose(1, 1, 2, 3, 3, 5) for _ in sizes]
    strides = [s.choose(1, 1, 2, 3) for _ in sizes]
    dilations = [s.choose(1, 1, 1, 2) if dilate else 1 for _ in sizes]
    attributes: dict[str, Any] = {}
    auto = s.choose("NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    pads = [0] * (2 * axes)
    if auto != "NOTSET":
        attributes["auto_pad"] = auto
        if auto.startswith("SAME"):
            dilations = [1] * axes
    elif s.chance(0.6):
        pads = [
            s.rng.randint(0, (kernel[i % axes] - 1) * dilations[i % axes]) for i in range(2 * axes)
        ]
        if s.chance(0.5):
            pads = pads[:axes] * 2
        attributes["pads"] = pads
    for i, size in enumerate(sizes):
        room = size + (pads[i] + pads[i + axes] if auto == "NOTSET" else 0)
        if not auto.startswith("SAME") and (kernel[i] - 1) * dilations[i] + 1 > room:
            kernel[i] = dilations[i] = 1
    if auto == "NOTSET" and "pads" in attributes:
        for i in range(axes):
            if kernel[i] == 1:
                pads[i] = pads[i + axes] = 0
    if strides != [1] * axes or s.chance(0.3):
        attributes["strides"] = strides
    if dilations != [1] * axes or (dilate and s.chance(0.2)):
        attributes["dilations"] = dilations
    return kernel, attributes


def groups(s: Sketch, channels: int) -> int:
    """Return a divisor of the channels."""
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    return s.rng.choice([1, 1, channels, s.rng.choice(divisors)])


def _weight(s: Sketch, dtype: str, shape: list[int]) -> Value:
    return s.weight(dtype, shape, _WEIGHTS)


@recipe("Conv")
def _conv(s: Sketch, op: str) -> None:
    convolution(s, op, "", {})


def convolution(s: Sketch, op: str, domain: str, more: dict[str, Any]) -> Value:
    """Add a convolution with weights that are usually constant."""
    x = image(s, s.dtype(op, 0, domain), s.choose(1, 2, 2, 2, 3))
    kernel, attributes = geometry(s, x.shape[2:])
    group = groups(s, x.shape[1])
    filters = group * s.size(4)
    w = _weight(s, x.dtype, [filters, x.shape[1] // group, *kernel])
    bias = s.weight(x.dtype, [filters], FINITE) if s.chance(0.6) else None
    if group != 1 or s.chance(0.2):
        attributes["group"] = group
    if s.chance(0.5):
        attributes["kernel_shape"] = kernel
    return s.one(op, x, w, bias, domain=domain, **attributes, **more)


@recipe("ConvTranspose")
def _conv_transpose(s: Sketch, op: str) -> None:
    x = image(s, s.dtype(op), s.choose(1, 2, 2, 2, 3))
    kernel, attributes = geometry(s, x.shape[2:])
    group = groups(s, x.shape[1])
    filters = s.size(4)
    bias = s.weight(x.dtype, [filters * group], FINITE) if s.chance(0.5) else None
    strides = attributes.get("strides", [1] * len(kernel))
    if attributes.get("auto_pad", "").startswith("SAME"):  # holes at the border are nobody's
        kernel = [max(pair) for pair in zip(kernel, strides, strict=True)]
    w = _weight(s, x.dtype, [x.shape[1], filters, *kernel])
    if max(strides) > 1 and s.chance(0.3):
        attributes["output_padding"] = [s.rng.randrange(stride) for stride in strides]
    if group != 1 or s.chance(0.2):
        attributes["group"] = group
    if s.chance(0.5):
        attributes["kernel_shape"] = kernel
    s.one(op, x, w, bias, **attributes)


@recipe("MaxPool", "AveragePool", "LpPool")
def _pool(s: Sketch, op: str) -> None:
    axes = s.choose(1, 2, 2, 2, 3)
    x = image(s, s.dtype(op), axes)
    dilate = s.since({"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op])
    kernel, attributes = geometry(s, x.shape[2:], dilate=dilate)
    if s.since(10 if op != "LpPool" else 18) and s.chance(0.3):
        attributes["ceil_mode"] = 1
    if op == "AveragePool" and s.chance(0.4):
        attributes["count_include_pad"] = 1
    if op == "LpPool":
        attributes["p"] = s.choose(None, 1, 2, 3)
    outputs = 2 if op == "MaxPool" and s.since(8) and s.chance(0.2) else 1
    if outputs == 2 and s.chance(0.3):
        attributes["storage_order"] = 1
    s.node(op, [x], outputs, kernel_shape=kernel, **attributes)


@recipe("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(s: Sketch, op: str) -> None:
    x = image(s, s.dtype(op), s.choose(1, 2, 2, 3))
    s.one(op, x, p=s.choose(None, 1, 2, 3) if op == "GlobalLpPool" else None)


# --- resizing ------------------------------------------------------------------------------------


def _scales(s: Sketch, x: Value, *, growing: bool) -> list[float]:
    scales = [1.0] * x.rank
    for axis in s.rng.sample(range(2, x.rank), s.rng.randint(1, x.rank - 2)):
        scales[axis] = (
            s.choose(1.0, 2.0, 2.0, 3.0, 1.5) if growing else s.choose(1.0, 2.0, 0.5, 1.5, 0.6, 3.0)
        )
    return scales


def _mode(s: Sketch, x: Value, nearest: str, *modes: str) -> str:
    """Return a mode; only "nearest" for integers, as the rounding of fractions is undefined."""
    return s.rng.choice(modes) if x.dtype.startswith("float") else nearest


@recipe("Upsample")
def _upsample(s: Sketch, op: str) -> None:
    x = image(s, s.dtype(op), 2)
    scales = _scales(s, x, growing=True)
    mode = _mode(s, x, "nearest", "nearest", "linear")
    if s.since(9):
        s.one(op, x, s.parameter(scales, "float32"), mode=mode)
    else:
        s.one(op, x, scales=scales, mode=mode)


@recipe("Resize")
def _resize(s: Sketch, op: str) -> None:
    x = image(s, s.dtype(op), s.choose(1, 2, 2, 2, 3))
    if not s.since(11):
        scales = s.parameter(_scales(s, x, growing=False), "float32")
        s.one(op, x, scales, mode=_mode(s, x, "nearest", "nearest", "linear"))
        return
    modes = ["half_pixel", "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    modes += ["half_pixel_symmetric"] if s.since(19) else []
    modes += ["tf_half_pixel_for_nn"] if not s.since(13) else []
    mode = _mode(s, x, "nearest", *("nearest", "linear") * 2, "cubic")
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": s.rng.choice(modes),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = s.choose(
            None, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"
        )
    if mode == "cubic":
        attributes["cubic_coeff_a"] = s.choose(None, -0.5)
        attributes["exclude_outside"] = s.choose(None, 0, 1)
    if s.since(18) and mode != "nearest" and s.chance(0.15):
        attributes["antialias"] = 1
    elif mode != "nearest" and s.chance(0.3):
        attributes["nearest_mode"] = "floor"  # PyTorch's exporters write it, and mean their lengths
    empty = None if s.since(13) else s.parameter(np.zeros(0, np.float32), "float32", constant=1.0)
    if s.chance(0.5):
        scales = s.parameter(_scales(s, x, growing=False), "float32")
        s.one(op, x, empty, scales, **attributes)
        return
    sizes = [*x.shape[:2], *(s.choose(size, 2 * size, s.size(13)) for size in x.shape[2:])]
    axes = list(range(x.rank))
    if s.since(18) and s.chance(0.4):
        axes = axes[2:]
        attributes["axes"] = axes
        attributes["keep_aspect_ratio_policy"] = s.choose(
            None, "stretch", "not_larger", "not_smaller"
        )
    no_scales = (
        None if s.since(13) else s.parameter(np.zeros(0, np.float32), "float32", constant=1.0)
    )
    s.one(op, x, empty, no_scales, s.parameter([sizes[axis] for axis in axes]), **attributes)


@recipe("GridSample")
def _grid_sample(s: Sketch, op: str) -> None:
    axes = 3 if s.since(20) and s.chance(0.25) else 2
    x = image(s, s.dtype(op), axes)
    grid = s.pick(
        "float32",
        [x.shape[0], *(s.size(7) for _ in range(axes)), axes],
        spread=Spread(-1.3, 1.3, special=False),
    )
    modes = ("linear", "nearest", "cubic") if s.since(20) else ("bilinear", "nearest", "bicubic")
    mode = _mode(s, x, "nearest", *modes)
    if axes == 3 and mode == "cubic":
        raise Skip
    s.one(
        op,
        x,
        grid,
        mode=mode,
        padding_mode=s.choose(None, "zeros", "border", "reflection"),
        align_corners=s.choose(None, 0, 1),
    )


@recipe("AffineGrid")
def _affine_grid(s: Sketch, op: str) -> None:
    axes = s.choose(2, 2, 3)
    batch = s.choose(1, 2, 3)
    theta = s.pick(s.dtype(op), [batch, axes, axes + 1], spread=UNIT)
    size = s.parameter([batch, s.choose(1, 3), *(s.size(7) for _ in range(axes))])
    s.one(op, theta, size, align_corners=s.choose(None, 0, 1))


@recipe("LRN")
def _lrn(s: Sketch, op: str) -> None:
    x = image(s, s.dtype(op), s.choose(1, 2, 2, 3))
    attributes: dict[str, Any] = {"alpha": 0.01, "beta": 0.5, "bias": 2.0}
    kept = {name: value for name, value in attributes.items() if s.chance(0.5)}
    s.one(op, x, size=s.choose(1, 3, 5, 2, 4), **kept)


@recipe("FusedConv", domain=MICROSOFT)
def _fused_conv(s: Sketch, op: str) -> None:
    activation = s.choose("", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")
    more: dict[str, Any] = {"activation": activation} if activation else {}
    if activation in ("LeakyRelu", "Clip", "HardSigmoid"):
        more["activation_params"] = {
            "LeakyRelu": [0.2], "Clip": [-1.0, 1.5], "HardSigmoid": [0.3, 0.4],
        }[activation]  # fmt: skip
    convolution(s, op, MICROSOFT, more)


@recipe("CausalConvWithState")
def _causal_conv(s: Sketch, op: str) -> None:
    causal_convolution(s, op, s.dtype(op))


def causal_convolution(s: Sketch, op: str, dtype: str, **more: Any) -> None:
    """Add a convolution of each channel with its previous values, and its state."""
    x = s.pick(dtype, [s.choose(1, 2), s.choose(1, 3, 8), s.size(13)], spread=FINITE)
    batch, channels, _ = x.shape
    taps = s.choose(1, 2, 3, 4)
    w = _weight(s, x.dtype, [channels, 1, taps])
    bias = s.weight(x.dtype, [channels], FINITE) if s.chance(0.5) else None
    state = s.pick(x.dtype, [batch, channels, taps - 1], spread=FINITE) if s.chance(0.6) else None
    s.node(op, [x, w, bias, state], 2, activation=s.choose(None, "silu", "swish"), **more)
