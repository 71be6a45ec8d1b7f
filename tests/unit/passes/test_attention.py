from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.attention import FuseAttention
from vkmnn.converter.passes.refine_shapes import RefineShapes

FUSE = FuseAttention()
LOWEST = float(np.finfo(np.float32).min)


def scores(net, batch=(2, 3), queries=5, keys=7, **attrs):
    q = net.input(*batch, queries, 4, name="q")
    k = net.input(*batch, keys, 4, name="k")
    return net.op("MatMul", q, k, **{"transpose_b": True, "alpha": 0.5, **attrs})


def attend(net, value, batch=(2, 3), keys=7, guard=False, **softmax):
    v = net.input(*batch, keys, 6, name="v")
    value = net.op("Softmax", value, **softmax)
    if guard:
        value = net.op("Select", net.unary("ISNAN", value), net.const(0.0), value)
    return net.op("MatMul", value, v)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_without_mask(net, check, batch):
    done = check(attend(net, scores(net, batch), batch), FUSE)
    assert done.only.inputs == ["q", "k", "v"]
    assert done.only.attrs.scale == 0.5


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (5, 7), (2, 1, 1, 7), (7,), ()])
@pytest.mark.parametrize("left", [False, True])
def test_added_mask(net, check, shape, left):
    product, mask = scores(net), net.input(*shape, name="m")
    masked = net.binary("ADD", *((mask, product) if left else (product, mask)))
    assert check(attend(net, masked), FUSE).only.inputs == ["q", "k", "v", "m"]


@pytest.mark.parametrize("fill", [LOWEST, -np.inf])
@pytest.mark.parametrize("hidden", [False, True])
def test_chosen_mask(net, check, fill, hidden):
    product, mask = scores(net), net.input(2, 1, 5, 7, dtype="bool")
    net.feeds[mask][..., 0] = not hidden
    number = net.const(fill)
    masked = net.op("Select", mask, *((number, product) if hidden else (product, number)))
    done = check(attend(net, masked), FUSE)
    assert done.types == ["Select", "Attention"]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_limited_scores(net, check, masked, left):
    limited, cap = net.unary("TANH", scores(net)), net.const(4.0)
    value = net.binary("MUL", *((cap, limited) if left else (limited, cap)))
    if masked:
        mask = net.input(5, 7, name="m")
        value = net.binary("ADD", *((mask, value) if left else (value, mask)))
    done = check(attend(net, value), FUSE)
    assert (done.only.attrs.scale, done.only.attrs.softcap) == (2.0, 4.0)


@pytest.mark.parametrize("cap", [-4.0, 0.0])
def test_other_factors_of_scores(net, check, cap):
    value = net.binary("MUL", net.unary("TANH", scores(net)), net.const(cap))
    assert check(attend(net, value), FUSE).rewrites == 0


def test_rows_that_see_nothing_stay_what_they_are(net, check):
    mask = np.zeros((5, 7), np.float32)
    mask[2] = -np.inf
    done = check(attend(net, net.binary("ADD", scores(net), net.const(mask))), FUSE)
    assert done.only.attrs.zero_fully_masked is False


def test_a_mask_that_is_not_negative_enough(net, check):
    product, mask = scores(net), net.input(5, 7, dtype="bool")
    masked = net.op("Select", mask, product, net.const(-1e4))
    assert check(attend(net, masked), FUSE).rewrites == 0


def test_a_bias_over_the_keys_is_a_mask(net, check):
    q, k = net.input(3, 5, 4, name="q"), net.input(3, 7, 4, name="k")
    product = net.op("MatMul", q, k, net.weights(7), transpose_b=True)
    done = check(attend(net, product, (3,)), FUSE)
    assert len(done.only.inputs) == 4


@pytest.mark.parametrize("kind", ["none", "constant", "chosen"])
def test_needless_protection(net, check, kind):
    value = scores(net)
    if kind == "constant":
        mask = np.zeros((5, 7), np.float32)
        mask[:, 1:] = -np.inf
        value = net.binary("ADD", value, net.const(mask))
    if kind == "chosen":
        mask = net.input(5, 7, dtype="bool")
        chosen = net.op("Select", mask, net.const(0.0), net.const(LOWEST))
        value = net.binary("ADD", value, chosen)
    done = check(attend(net, value, guard=True), FUSE)
    assert "Softmax" not in done.types


@pytest.mark.parametrize("kind", ["input", "constant", "chosen", "select"])
def test_protection_that_is_needed(net, check, kind):
    product = scores(net)
    mask = np.zeros((5, 7), np.float32)
    mask[2] = -np.inf
    if kind == "input":
        value = net.binary("ADD", product, net.input(5, 7, name="m"))
        net.feeds["m"] = mask
    elif kind == "constant":
        value = net.binary("ADD", product, net.const(mask))
    else:
        test = net.input(5, 7, dtype="bool", name="m")
        net.feeds["m"] = mask == 0
        low = net.const(-np.inf)
        if kind == "chosen":
            value = net.binary("ADD", product, net.op("Select", test, net.const(0.0), low))
        else:
            value = net.op("Select", test, product, low)
    assert check(attend(net, value, guard=True), FUSE).rewrites == 0


def test_keys_that_are_not_transposed(net, check):
    q, k = net.input(3, 5, 4), net.input(3, 4, 7)
    assert check(attend(net, net.op("MatMul", q, k), (3,)), FUSE).rewrites == 0


@pytest.mark.parametrize("softmax", [{"axis": 1}, {"log": True}])
def test_another_softmax(net, check, softmax):
    assert check(attend(net, scores(net), **softmax), FUSE).rewrites == 0


def test_the_last_axis_counted_from_the_front(net, check):
    assert check(attend(net, scores(net), axis=3), FUSE).types == ["Attention"]


@pytest.mark.parametrize("shape", [(3, 1, 5, 7), (2, 2, 3, 5, 7)])
def test_masks_that_broadcast_the_scores(net, check, shape):
    product = scores(net, (1, 3))
    masked = net.binary("ADD", product, net.input(*shape))
    assert check(attend(net, masked, (1, 3)), FUSE).rewrites == 0


def test_batches_that_broadcast(net, check):
    q, k = net.input(2, 3, 5, 4), net.input(3, 7, 4)
    product = net.op("MatMul", q, k, transpose_b=True)
    assert check(attend(net, product), FUSE).rewrites == 0


def test_values_with_another_batch(net, check):
    out = net.op("MatMul", net.op("Softmax", scores(net, (2,))), net.input(1, 7, 6))
    assert check(out, FUSE).rewrites == 0


def test_unknown_shapes(net, check):
    assert check(attend(net, scores(net)), FUSE, dims={"q": None}).rewrites == 0


@pytest.mark.parametrize("batch", ["B", "C"])
def test_symbols(net, check, batch):
    masked = net.binary("ADD", scores(net), net.input(2, 1, 5, 7, name="m"))
    dims = {
        "q": ("B", 3, "L", 4),
        "k": ("B", 3, "S", 4),
        "v": (batch, 3, "S", 6),
        "m": ("B", 1, "L", "S"),
    }
    done = check(attend(net, masked), RefineShapes(), FUSE, dims=dims)
    assert ("Attention" in done.types) == (batch == "B")


@pytest.mark.parametrize("place", range(3))
def test_inner_values_that_are_used(net, check, place):
    product = scores(net)
    masked = net.binary("ADD", product, net.input(5, 7))
    out = attend(net, masked)
    used = (product, masked, net.graph.ops[-2].outputs[0])[place]
    assert check((out, net.unary("EXP", used)), FUSE).rewrites == 0


def test_inner_values_that_are_outputs(net, check):
    out = attend(net, scores(net))
    probabilities = net.graph.ops[-2].outputs[0]
    assert check((out, probabilities), FUSE).rewrites == 0
