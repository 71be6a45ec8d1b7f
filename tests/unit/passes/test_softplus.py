from __future__ import annotations

import pytest

from vkmnn.converter.passes.softplus import SimplifySoftplus


def build(net, threshold=20.0, kind="GREATER", function="SOFTPLUS"):
    x = net.binary("MUL", net.input(5, 7), net.const(10.0))
    test = net.binary(kind, x, net.const(threshold))
    return net.op("Select", test, x, net.unary(function, x))


def test_large_threshold(net, check):
    assert check(build(net), SimplifySoftplus()).kinds == ["MUL", "SOFTPLUS"]


@pytest.mark.parametrize("options", [{"threshold": 3.0}, {"kind": "LESS"}, {"function": "EXP"}])
def test_something_else(net, check, options):
    assert check(build(net, **options), SimplifySoftplus()).rewrites == 0


def test_unknown_shapes(net, check):
    assert check(build(net), SimplifySoftplus(), infos=False).rewrites == 0
