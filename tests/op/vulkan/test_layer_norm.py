from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check
from vkmnn.ir import Array
from vkmnn.ir.ops import LayerNormAttrs


def random(*shape: int, offset: float = 0.5) -> Array:
    rng = np.random.default_rng(len(shape) + sum(shape))
    return (rng.standard_normal(shape) + offset).astype(np.float32)


def test_factors_that_the_kernels_do_not_know_run_elsewhere() -> None:
    inputs = [random(2, 3, 4), random(3, 1), random(4)]
    check("LayerNorm", LayerNormAttrs(1), inputs, atol=2e-6, on_device=False)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("shape", [(1_000_003,), (3, 70_000)])
def test_long_rows(shape: tuple[int, ...], rms: bool) -> None:
    inputs = [random(*shape, offset=3.0), random(shape[-1]), random(shape[-1])]
    results = check("LayerNorm", LayerNormAttrs(-1, 1e-5, rms), inputs, outputs=3, atol=1e-5)
    if not rms:
        mean = inputs[0].astype(np.float64).mean(-1)
        np.testing.assert_allclose(results[1].reshape(mean.shape), mean, rtol=1e-6)
