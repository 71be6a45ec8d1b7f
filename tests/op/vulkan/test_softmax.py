from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check
from vkmnn.ir import Array
from vkmnn.ir.ops import SoftmaxAttrs


def random(*shape: int, scale: float = 3.0) -> Array:
    rng = np.random.default_rng(len(shape) + sum(shape))
    return (scale * rng.standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((1_000_003,), 0), ((2, 70_000), 1), ((25_000, 3), 0), ((30_001, 4), 0)]
)
def test_long_lines(shape: tuple[int, ...], axis: int, log: bool) -> None:
    x = random(*shape)
    (result,) = check("Softmax", SoftmaxAttrs(axis, log), [x], rtol=1e-4, atol=1e-4)
    wide = x.astype(np.float64)
    shifted = wide - wide.max(axis, keepdims=True)
    exact = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    np.testing.assert_allclose(result if log else np.log(result), exact, rtol=1e-6, atol=1e-6)
