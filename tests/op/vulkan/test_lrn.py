from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.blocked import check_blocked
from tests.op.vulkan.harness import check
from vkmnn.ir import Array
from vkmnn.ir.ops import LRNAttrs

ATTRS = [
    LRNAttrs(5, 0.5, 0.75, 1.0),
    LRNAttrs(1, 0.3, 0.5, 2.0),
    LRNAttrs(4, 1e-4, 0.75, 1.0),
    LRNAttrs(3, 2.0, 1.5, 0.25),
    LRNAttrs(11, 1.0, 1.0, 1.0),
]


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("attrs", ATTRS, ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 7, 3, 5), (1, 16, 2, 2), (3, 5), (1, 1, 1), (2, 9, 4), (1, 4, 0), (2, 3, 2, 3, 5)]
)
def test_plain(shape: tuple[int, ...], attrs: LRNAttrs) -> None:
    check("LRN", attrs, [random(*shape)], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("attrs", ATTRS, ids=str)
@pytest.mark.parametrize("shape", [(2, 7, 3, 5), (1, 16, 2, 2), (1, 1, 1), (3, 9, 4), (2, 23, 1)])
def test_channel_blocked(shape: tuple[int, ...], attrs: LRNAttrs) -> None:
    check_blocked("LRN", attrs, [random(*shape)], rtol=2e-6, atol=1e-7)
