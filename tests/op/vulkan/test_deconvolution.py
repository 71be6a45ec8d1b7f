from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.op.vulkan.harness import check
from tests.op.vulkan.test_coop import with_coopmat
from vkmnn.ir import Activation, Array
from vkmnn.ir.ops import DeconvolutionAttrs
from vkmnn.testing.runner import Picker, dispatched_by, run_case
from vkmnn.vulkan.executions.deconvolution import axis_phases
from vkmnn.vulkan.gemm.coop_tiles import TILES_OF, matrix_of
from vkmnn.vulkan.gemm.families.coop import ConvCoop
from vkmnn.vulkan.gemm.families.shared import ConvShared
from vkmnn.vulkan.gemm.shared_tiles import Tile
from vkmnn_suite.cases.convolution import Maker


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


@pytest.mark.parametrize(
    ("strides", "kernel", "pads", "dilations"),
    [
        ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1)),
        ((2, 2), (4, 4), (1, 1, 1, 1), (1, 1)),
        ((2, 2), (4, 4), (2, 0, 1, 3), (1, 1)),
        ((3, 2), (6, 4), (1, 2, 0, 1), (1, 1)),
        ((2, 2), (3, 3), (1, 1, 1, 1), (1, 1)),
        ((2, 3), (3, 7), (2, 0, 0, 1), (3, 2)),
    ],
)
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("parts", [1, 3])
def test_phases_in_one_dispatch(
    strides: tuple[int, int],
    kernel: tuple[int, int],
    pads: tuple[int, int, int, int],
    dilations: tuple[int, int],
    group: int,
    parts: int,
) -> None:
    """Those of the same sizes; odd sizes of the input and of the output."""
    check(
        "Deconvolution",
        attrs(strides=strides, pads=pads, dilations=dilations, group=group),
        [
            random(2, 20 * group, 5, 7),
            random(20 * group, 12 if group > 1 else 7, *kernel, seed=1),
            random(12 * group if group > 1 else 7, seed=2),
        ],
        constant={1, 2},
        rtol=1e-4,
        atol=1e-4,
        takes={"phases": 1, "convolution": ConvShared(Tile(32, 32, 8 if parts > 1 else 1), parts)},
    )


def test_computed_weights_of_phases_in_one_dispatch() -> None:
    check(
        "Deconvolution",
        attrs(strides=(2, 2), pads=(1, 1, 1, 1)),
        [random(1, 6, 3, 5), random(6, 5, 4, 4, seed=1), random(5, seed=2)],
        rtol=1e-4,
        atol=1e-4,
        takes={"phases": 1, "convolution": ConvShared(Tile(32, 32))},
    )


@pytest.mark.parametrize("case", range(3))
def test_phases_by_matrices(case: int) -> None:
    x, w, strides = (
        ((2, 24, 5, 7), (24, 9, 2, 2), (2, 2)),
        ((1, 37, 3, 5), (37, 8, 4, 4), (2, 2)),
        ((1, 7, 4, 3), (7, 6, 6, 3), (3, 2)),
    )[case]
    bench = with_coopmat()
    matrix = matrix_of(bench.device.info)
    assert matrix is not None
    for tile in (TILES_OF[matrix][-1][0], TILES_OF[matrix][0][0]):
        taken = {"phases": 1, "convolution": ConvCoop(tile)}
        single = replace(
            Maker().transposed(x, w, strides, together=True), takes=taken, floats="f16"
        )
        assert any(
            name.startswith("conv_coop")
            for name in dispatched_by(single, bench.device, Picker({}, taken))
        )
        assert run_case(single, bench.device, {}).error == 0


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
