from __future__ import annotations

import math

import pytest

from vkmnn.converter.passes.clamp import MergeClamps, compose_clamps
from vkmnn.ir.ops import Activation


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("RELU",), ("RELU",)),
        (("RELU",), ("CLIP", -1.0, 6.0)),
        (("CLIP", -1.0, 0.5), ("RELU",)),
        (("CLIP", -3.0, -1.0), ("RELU",)),
        (("CLIP", -1.0, 0.5), ("CLIP", 0.75, 2.0)),
        (("CLIP", 0.0, 6.0), ("CLIP", -math.inf, 1.0)),
    ],
)
def test_clamps_merge(net, check, first, second):
    inner = net.unary(first[0], net.input(7, 11), *first[1:])
    done = check(net.unary(second[0], inner, *second[1:]), MergeClamps())
    assert len(done.types) == 1


def test_relu_stays_relu():
    relu = Activation("RELU")
    assert compose_clamps(relu, Activation("CLIP", -2.0, math.inf)) == relu
    assert compose_clamps(relu, Activation("CLIP", 0.0, 6.0)) == Activation("CLIP", 0.0, 6.0)


def test_no_clamps():
    assert compose_clamps(Activation("RELU"), Activation("TANH")) is None
    assert compose_clamps(Activation("CLIP", 2.0, 1.0), Activation("RELU")) is None


def test_value_between_is_used(net, check):
    inner = net.unary("RELU", net.input(7))
    outer = net.unary("CLIP", inner, 0.0, 1.0)
    assert check(net.binary("ADD", inner, outer), MergeClamps()).rewrites == 0
