from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.decode_codes import DecodeCodes, DecodeParts
from vkmnn.ir.ops import CodeMean

ENDING = CodeMean(0.5, 0.25, -100.0, 90.0)


def means(net, **attrs):
    x = net.unary("ROUND", net.input(2, 6, 5, 7))
    return net.op("Pooling", x, kind="AVERAGE", is_global=True, **attrs)


def test_the_pooling_multiplies_its_codes(net, check):
    done = check(net.binary("MUL", means(net, ending=ENDING), net.const(0.375)), DecodeCodes())
    assert done.types == ["UnaryOp", "Pooling"]
    assert done.graph.ops[-1].attrs.ending.scale == 0.375


def test_a_change_of_shape_may_stand_between(net, check):
    flat = net.op("Flatten", means(net, ending=ENDING), axis=1)
    done = check(net.binary("MUL", flat, net.const(0.375)), DecodeCodes())
    assert done.types == ["UnaryOp", "Pooling", "Flatten"]
    assert done.graph.ops[-2].attrs.ending.scale == 0.375


def test_means_that_are_no_codes_stay(net, check):
    done = check(net.binary("MUL", means(net), net.const(0.375)), DecodeCodes())
    assert done.rewrites == 0


@pytest.mark.parametrize("inside", [False, True])
def test_codes_that_others_read_stay(net, check, inside):
    made = means(net, ending=ENDING)
    flat = net.op("Flatten", made, axis=1)
    other = net.unary("NEG", made if inside else flat)
    last = net.binary("MUL", flat, net.const(0.375))
    shape = net.const(np.array([2, 6], np.int64))
    done = check(net.binary("SUB", last, net.op("Reshape", other, shape)), DecodeCodes())
    assert done.rewrites == 0


def test_axes_may_change_places_between(net, check):
    turned = net.op("Transpose", means(net, ending=ENDING), perm=(0, 2, 3, 1))
    flat = net.op("Flatten", turned, axis=1)
    done = check(net.binary("MUL", flat, net.const(0.375)), DecodeCodes())
    assert done.types == ["UnaryOp", "Pooling", "Transpose", "Flatten"]
    assert done.graph.ops[1].attrs.ending.scale == 0.375


def joined(net, other):
    turned = net.op("Transpose", means(net, ending=ENDING), perm=(0, 2, 3, 1))
    return net.op("Concat", net.op("Flatten", turned, axis=1), other, axis=1)


def test_joined_codes_are_multiplied_where_they_are_made(net, check):
    both = joined(net, net.unary("ROUND", net.input(2, 4)))
    turned = net.op("Transpose", both, perm=(1, 0))
    done = check(net.binary("MUL", turned, net.const(0.375)), DecodeParts(), DecodeCodes())
    assert done.types[-2:] == ["Concat", "Transpose"]
    assert done.types.count("BinaryOp") == 1
    (pooling,) = (op for op in done.graph.ops if op.type == "Pooling")
    assert pooling.attrs.ending.scale == 0.375


@pytest.mark.parametrize("read", [False, True])
def test_parts_that_cannot_be_multiplied_or_are_read_elsewhere_stay(net, check, read):
    part = net.unary("ROUND", net.input(2, 4)) if read else net.input(2, 4)
    last = net.binary("MUL", joined(net, part), net.const(0.375))
    ends = (last, net.unary("NEG", part)) if read else (last,)
    done = check(ends, DecodeParts())
    assert done.rewrites == 0
