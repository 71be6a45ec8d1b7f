from __future__ import annotations

import pytest

from vkmnn.converter.passes.merge_matmul import MergeMatMul

MERGE = MergeMatMul()


def project(net, x, width=12, bias=True, **attrs):
    """A product whose result is split into three heads."""
    weights = net.weights(width, 8) if attrs.get("transpose_b") else net.weights(8, width)
    y = net.op("MatMul", x, weights, *([net.weights(width)] if bias else []), **attrs)
    return net.op("Transpose", net.op("Reshape", y, net.ints(2, -1, 3, 4)), perm=(0, 2, 1, 3))


def attend(net, q, k, v):
    return net.op("Attention", q, k, v, scale=0.5)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_queries_keys_and_values(net, check, transpose_b):
    x = net.input(2, 5, 8)
    parts = [project(net, x, transpose_b=transpose_b) for _ in range(3)]
    done = check(attend(net, *parts), MERGE)
    assert done.types[:2] == ["MatMul", "Split"]
    assert done.types.count("MatMul") == 1


def test_keys_and_values_of_something_else(net, check):
    x, y = net.input(2, 5, 8), net.input(2, 7, 8)
    done = check(attend(net, project(net, x), project(net, y), project(net, y)), MERGE)
    assert done.types.count("MatMul") == 2
    assert done.rewrites == 1


def test_one_bias_of_three(net, check):
    x = net.input(2, 5, 8)
    parts = [project(net, x, bias=bias) for bias in (False, True, False)]
    assert check(attend(net, *parts), MERGE).rewrites == 1


def test_two_attentions_on_one_input(net, check):
    x = net.input(2, 5, 8)
    first = attend(net, *(project(net, x) for _ in range(3)))
    second = attend(net, *(project(net, x) for _ in range(3)))
    assert check((first, second), MERGE).types.count("MatMul") == 1


@pytest.mark.parametrize("what", ["scale", "reader", "output", "computed", "bias", "residual"])
def test_others_stay_apart(net, check, what):
    x = net.input(2, 5, 8)
    q = project(net, x, alpha=0.5 if what == "scale" else 1.0)
    outputs = []
    if what == "computed":
        y = net.op("MatMul", x, net.input(8, 12))
    elif what == "bias":
        y = net.op("MatMul", x, net.weights(8, 12), net.input(12))
    elif what == "residual":
        y = net.op("MatMul", x, net.weights(8, 12), "", net.input(2, 5, 12))
    else:
        y = net.op("MatMul", x, net.weights(8, 12))
    if what == "reader":
        outputs.append(net.unary("EXP", y))
    if what == "output":
        outputs.append(y)
    k = net.op("Transpose", net.op("Reshape", y, net.ints(2, -1, 3, 4)), perm=(0, 2, 1, 3))
    assert check((attend(net, q, k, k), *outputs), MERGE).rewrites == 0


def test_waits_for_a_product_that_other_passes_may_still_free(net, check):
    x = net.input(2, 5, 8)
    q, k = project(net, x), net.unary("EXP", project(net, x))
    assert check(attend(net, q, k, project(net, x)), MERGE).rewrites == 0


def test_products_for_something_else(net, check):
    x = net.input(5, 8)
    parts = [net.op("MatMul", x, net.weights(8, 4)) for _ in range(2)]
    assert check(net.binary("ADD", *parts), MERGE).rewrites == 0


def test_large_weights_are_not_copied(net, check, monkeypatch):
    assert MergeMatMul.max_bytes > 3 * 8 * 12 * 4
    monkeypatch.setattr(MergeMatMul, "max_bytes", 3 * 8 * 12 * 4 - 1)
    x = net.input(2, 5, 8)
    assert check(attend(net, *(project(net, x) for _ in range(3))), MERGE).rewrites == 0


def test_unknown_ranks(net, check):
    x = net.input(2, 5, 8)
    out = attend(net, *(project(net, x) for _ in range(3)))
    assert check(out, MERGE, infos=False).rewrites == 0
