from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check
from vkmnn.ir import Activation, Array
from vkmnn.ir.ops import DeconvolutionAttrs
from vkmnn.vulkan.executions.deconvolution import axis_phases


def attrs(
    axes: int = 2,
    *,
    strides: tuple[int, ...] = (),
    dilations: tuple[int, ...] = (),
    pads: tuple[int, ...] = (),
    output_padding: tuple[int, ...] = (),
    output_shape: tuple[int, ...] = (),
    group: int = 1,
    auto_pad: str = "NOTSET",
    activation: Activation | None = None,
) -> DeconvolutionAttrs:
    return DeconvolutionAttrs(
        (),
        strides or (1,) * axes,
        dilations or (1,) * axes,
        pads or (0,) * 2 * axes,
        output_padding or (0,) * axes,
        output_shape,
        group,
        auto_pad,
        activation or Activation(),
    )


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compare(deconv: DeconvolutionAttrs, *inputs: Array, constant: set[int] | None = None) -> None:
    chosen = {1, 2} if constant is None else constant
    check("Deconvolution", deconv, inputs, constant=chosen, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("strides", "dilations", "kernel", "pads", "extra"),
    [
        ((1, 1), (1, 1), (3, 3), (1, 1, 1, 1), (0, 0)),
        ((2, 2), (1, 1), (3, 3), (1, 1, 1, 1), (1, 1)),
        ((2, 2), (1, 1), (4, 4), (1, 1, 1, 1), (0, 0)),
        ((3, 2), (1, 2), (4, 2), (0, 1, 2, 0), (1, 0)),
        ((2, 4), (2, 3), (3, 5), (1, 0, 0, 1), (0, 1)),
        ((3, 3), (1, 1), (2, 2), (0, 0, 0, 0), (0, 0)),
        ((4, 4), (2, 2), (2, 2), (0, 0, 0, 0), (0, 0)),
    ],
)
@pytest.mark.parametrize("group", [1, 2, 3])
def test_strides_dilations_and_pads(
    strides: tuple[int, int],
    dilations: tuple[int, int],
    kernel: tuple[int, int],
    pads: tuple[int, int, int, int],
    extra: tuple[int, int],
    group: int,
) -> None:
    deconv = attrs(
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=extra,
        group=group,
        activation=Activation("SIGMOID"),
    )
    compare(
        deconv,
        random(2, 6, 7, 9),
        random(6, 12 // group, *kernel, seed=1),
        random(12, seed=2),
    )


@pytest.mark.parametrize(("group", "channels", "outputs"), [(1, 7, 11), (5, 5, 5), (3, 6, 9)])
def test_computed_weights(group: int, channels: int, outputs: int) -> None:
    w = random(channels, outputs // group, 3, 2, seed=1)
    compare(
        attrs(strides=(2, 3), pads=(1, 0, 0, 1), group=group),
        random(2, channels, 7, 9),
        w,
        random(outputs),
        constant=set(),
    )


def test_one_axis() -> None:
    compare(attrs(1, strides=(3,)), random(2, 5, 17), random(5, 6, 4, seed=1))


def test_three_axes() -> None:
    compare(attrs(3, strides=(2, 1, 2)), random(2, 5, 4, 5, 6), random(5, 6, 2, 3, 2, seed=1))


def test_output_shape() -> None:
    compare(
        attrs(strides=(2, 2), output_shape=(20, 23)),
        random(2, 5, 9, 11),
        random(5, 6, 3, 3, seed=1),
    )


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad(auto_pad: str) -> None:
    compare(
        attrs(strides=(2, 3), auto_pad=auto_pad), random(1, 5, 4, 5), random(5, 3, 4, 4, seed=1)
    )


def test_empty_batch() -> None:
    compare(attrs(), random(0, 5, 4, 5), random(5, 3, 2, 2))


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3, 4])
@pytest.mark.parametrize("begin", [0, 1, 4])
def test_phases_meet_every_product_once(
    kernel: int, stride: int, dilation: int, begin: int
) -> None:
    size, output = 5, 23
    wanted = np.zeros((output, size, kernel), np.int8)
    for i in range(size):
        for k in range(kernel):
            o = i * stride + k * dilation - begin
            if 0 <= o < output:
                wanted[o, i, k] += 1
    met = np.zeros_like(wanted)
    for phase in axis_phases(kernel, stride, dilation, begin, output):
        taps = range(kernel)[phase.taps]
        assert len(taps) == phase.tap_count
        for q in range(phase.count):
            for tap, k in enumerate(taps):
                i = q - phase.pad + tap * phase.dilation
                if 0 <= i < size:
                    met[phase.first + q * stride, i, k] += 1
    np.testing.assert_array_equal(met, wanted)
