from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.group_norm import FuseGroupNorm
from vkmnn.converter.passes.refine_shapes import RefineShapes

FUSE = FuseGroupNorm()


def build(net, grouped=(0, 2, -1), shape=(2, 4, 3, 5), back=None, scale=1.0):
    x = net.input(*shape)
    inner = net.op("Reshape", x, net.ints(*grouped))
    groups = np.full(grouped[1], scale, np.float32)
    norm = net.op("GroupNorm", inner, net.const(groups), net.const(np.zeros_like(groups)))
    return net.op("Reshape", norm, net.ints(*back) if back else net.op("Shape", x))


def test_as_pytorch_exports_it(net, check):
    done = check(build(net), FUSE)
    assert done.only.attrs.groups == 2


def test_symbols(net, check):
    done = check(build(net), RefineShapes(), FUSE, dims={"x0": (None, 4, "H", "W")})
    assert done.types == ["GroupNorm"]


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 2.0},
        {"back": (2, 3, 4, 5)},
        {"grouped": (1, 4, -1)},
        {"grouped": (4, 2, -1), "back": (2, 4, 3, 5)},
    ],
)
def test_something_else(net, check, options):
    assert check(build(net, **options), FUSE).rewrites == 0


def test_unknown_shapes(net, check):
    assert check(build(net), FUSE, infos=False).rewrites == 0


def test_groups_of_unknown_channels(net, check):
    out = build(net, shape=(2, 4, 3))
    done = check(out, RefineShapes(), FUSE, dims={"x0": ("N", "C", 3)})
    assert "Reshape" in done.types
