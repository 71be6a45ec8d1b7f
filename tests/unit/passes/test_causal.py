from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.causal import DetectCausalMasks
from vkmnn.converter.passes.refine_shapes import RefineShapes
from vkmnn.ir import DType

DETECT = DetectCausalMasks()
LOWEST = float(np.finfo(np.float32).min)


def attention(net, mask, length=5):
    q, k, v = (net.input(2, 3, length, 4, name=name) for name in "qkv")
    return net.op("Attention", q, k, v, mask, scale=0.5)


def triangle(length=5, offset=0):
    return np.tril(np.ones((length, length), bool), offset)


def additive(array, fill):
    return np.where(array, np.float32(0), np.float32(fill))


@pytest.mark.parametrize("fill", [LOWEST, -np.inf])
@pytest.mark.parametrize("shape", [(5, 5), (1, 1, 5, 5)])
def test_constant(net, check, fill, shape):
    mask = net.const(additive(triangle(), fill).reshape(shape))
    done = check(attention(net, mask), DETECT)
    assert done.only.attrs.causal
    assert len(done.only.inputs) == 3


@pytest.mark.parametrize("rest", [["sink"], ["length"], ["length", "sink"]])
def test_other_inputs_stay(net, check, rest):
    length = net.ints(4) if "length" in rest else ""
    sink = [net.input(3, 1, 1, name="sink")] if "sink" in rest else []
    q, k, v = (net.input(2, 3, 5, 4, name=name) for name in "qkv")
    mask = net.const(additive(triangle(), LOWEST))
    done = check(net.op("Attention", q, k, v, mask, length, *sink, scale=0.5), DETECT)
    assert done.only.attrs.causal
    assert done.only.inputs[3:] == ["", length, *sink]


@pytest.mark.parametrize(
    "mask",
    [
        additive(triangle(offset=1), LOWEST),
        additive(triangle(offset=-1) | np.eye(5, k=1, dtype=bool), LOWEST),
        additive(triangle().T, LOWEST),
        additive(triangle(), -5.0),
        additive(triangle(), LOWEST) + 1,
        additive(triangle(), LOWEST)[:1],
        np.broadcast_to(additive(triangle(), LOWEST), (2, 1, 5, 5)).copy(),
    ],
)
def test_other_constants(net, check, mask):
    assert check(attention(net, net.const(mask)), DETECT).rewrites == 0


@pytest.mark.parametrize("hidden", [False, True])
def test_cut_from_a_constant(net, check, hidden):
    whole = triangle(16).reshape(1, 1, 16, 16)
    length = net.op("Shape", net.input(2, 5, name="ids"), start=1, end=2)
    rows = net.op("Slice", net.const(whole), net.ints(0), length, net.ints(2), net.ints(1))
    test = net.op("Slice", rows, net.ints(0), length, net.ints(3), net.ints(1))
    choices = [net.const(0.0), net.const(LOWEST)]
    if hidden:
        test, choices = net.unary("NOT", test), choices[::-1]
    out = attention(net, net.op("Select", test, *choices))
    dims = dict.fromkeys("qkv", ("B", 3, "L", 4)) | {"ids": ("B", "L")}
    assert check(out, RefineShapes(), DETECT, dims=dims).types == ["Attention"]


@pytest.mark.parametrize(("start", "end"), [(1, 6), (-5, 2**31)])
def test_cut_from_elsewhere(net, check, start, end):
    whole = np.tril(np.ones((16, 16), bool))
    cut = net.op("Slice", net.const(whole), net.ints(start), net.ints(end), net.ints(0))
    cut = net.op("Slice", cut, net.ints(0), net.ints(5), net.ints(1))
    out = attention(net, net.op("Select", cut, net.const(0.0), net.const(LOWEST)))
    assert check(out, DETECT).rewrites == 0


def size(net):
    length = net.op("Shape", net.input(5, name="ids"))
    return net.op("Concat", length, length)


def made(net, form):
    if form == "expand":
        ones = net.op("Expand", net.const([1.0]), size(net))
        hidden = net.binary("EQUAL", net.op("Trilu", ones, upper=False), net.const(0.0))
        return net.op("Select", hidden, net.const(-np.inf), net.const(0.0))
    if form == "cast":
        ones = net.op("ConstantOfShape", size(net), value=1.0)
        visible = net.op("Cast", net.op("Trilu", ones, upper=False), to=DType.BOOL)
        return net.op("Select", visible, net.const(0.0), net.const(LOWEST))
    full = net.op("Expand", net.const(LOWEST), size(net))
    return net.op("Trilu", full, net.ints(1), upper=True)


@pytest.mark.parametrize("form", ["expand", "cast", "upper"])
def test_made_by_trilu(net, check, form):
    out = attention(net, made(net, form))
    dims = dict.fromkeys("qkv", ("B", 3, "L", 4)) | {"ids": ("L",)}
    assert check(out, RefineShapes(), DETECT, dims=dims).types == ["Attention"]


def test_made_for_another_length(net, check):
    out = attention(net, made(net, "upper"))
    dims = dict.fromkeys("qkv", ("B", 3, "L", 4)) | {"ids": ("M",)}
    assert check(out, RefineShapes(), DETECT, dims=dims).types[-2:] == ["Trilu", "Attention"]


@pytest.mark.parametrize(("upper", "offset"), [(True, 0), (True, 2), (False, 1)])
def test_other_triangles(net, check, upper, offset):
    full = net.op("Expand", net.const(LOWEST), size(net))
    mask = net.op("Trilu", full, net.ints(offset), upper=upper)
    assert check(attention(net, mask), DETECT).rewrites == 0
