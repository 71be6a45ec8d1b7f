from __future__ import annotations

import numpy as np
import pytest

from vkmnn.vulkan.executions.deconvolution import axis_phases


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
