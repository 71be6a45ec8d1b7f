from __future__ import annotations

import pytest

from vkmnn.converter.passes.matmul_transpose import FoldOperandTranspose, FoldSharedTranspose
from vkmnn.converter.passes.refine_shapes import RefineShapes

FOLD = FoldOperandTranspose()
SHARED = FoldSharedTranspose()


@pytest.mark.parametrize("rank", [2, 3])
def test_both_operands(net, check, rank):
    batch = (2,) * (rank - 2)
    perm = (0, 2, 1)[: rank - 2] + ((2, 1) if rank == 3 else (1, 0))
    a = net.op("Transpose", net.input(*batch, 5, 3), perm=perm)
    b = net.op("Transpose", net.input(*batch, 7, 5), perm=perm)
    done = check(net.op("MatMul", a, b, alpha=0.5), FOLD, FOLD, infos=False)
    assert done.only.attrs.transpose_a
    assert done.only.attrs.transpose_b


def test_twice_is_none(net, check):
    b = net.op("Transpose", net.input(5, 7), perm=(1, 0))
    done = check(net.op("MatMul", net.input(3, 5), b, transpose_b=True), FOLD)
    assert not done.only.attrs.transpose_b


def test_reversal(net, check):
    b = net.op("Transpose", net.input(7, 5))
    assert check(net.op("MatMul", net.input(3, 5), b), FOLD).only.attrs.transpose_b


def test_other_axes_move_too(net, check):
    keys = net.op("Transpose", net.input(2, 7, 3, 5), perm=(0, 2, 3, 1))
    done = check(net.op("MatMul", net.input(2, 3, 11, 5), keys), FOLD, FOLD)
    assert done.types == ["Transpose", "MatMul"]
    assert done.attrs(0).perm == (0, 2, 1, 3)
    assert done.attrs(1).transpose_b


def test_the_last_axis_stays_last(net, check):
    b = net.op("Transpose", net.input(2, 5, 3, 7), perm=(0, 2, 1, 3))
    assert check(net.op("MatMul", net.input(2, 3, 11, 5), b), FOLD).rewrites == 0


def test_a_transpose_that_is_used_elsewhere(net, check):
    b = net.op("Transpose", net.input(7, 5), perm=(1, 0))
    done = check((net.op("MatMul", net.input(3, 5), b), b), FOLD)
    assert done.types == ["Transpose", "MatMul"]
    moved = net.op("Transpose", net.input(2, 7, 3, 5), perm=(0, 2, 3, 1))
    net.graph.infos.clear()
    assert check((net.op("MatMul", net.input(2, 3, 11, 5), moved), moved), FOLD).rewrites == 1


def reshaped(net, target, perm=(0, 2, 1), shape=(6, 7, 5)):
    k = net.op("Transpose", net.input(*shape, name="k"), perm=perm)
    k = net.op("Reshape", k, target)
    return net.op("MatMul", net.input(2, 3, 11, 5, name="q"), k)


def test_reshape_of_the_leading_axes(net, check):
    done = check(reshaped(net, net.ints(2, 3, 5, 7)), FOLD)
    assert done.types == ["Reshape", "MatMul"]
    assert done.attrs(1).transpose_b


def test_reshape_of_the_leading_axes_of_a_general_transpose(net, check):
    out = reshaped(net, net.ints(2, 3, 5, 7), perm=(1, 2, 0), shape=(7, 6, 5))
    done = check(out, FOLD)
    assert done.types == ["Transpose", "Reshape", "MatMul"]
    assert done.attrs(0).perm == (1, 0, 2)


def test_reshape_that_changes_the_transposed_axes(net, check):
    k = net.op("Transpose", net.input(6, 5, 7), perm=(0, 2, 1))
    k = net.op("Reshape", k, net.ints(2, 3, 5, 7))
    assert check(net.op("MatMul", net.input(2, 3, 11, 5), k), FOLD).rewrites == 0


def test_reshape_of_unknown_shapes(net, check):
    assert check(reshaped(net, net.ints(2, 3, 5, 7)), FOLD, infos=False).rewrites == 0


def test_computed_target(net, check):
    source = net.input(2, 7, name="sizes")
    batch = net.op("Shape", source, start=0, end=1)
    length = net.op("Shape", source, start=1, end=2)
    out = reshaped(net, net.op("Concat", batch, net.ints(3, 5), length))
    dims = {"sizes": ("B", "S"), "k": ("3*B", "S", 5), "q": ("B", 3, "L", 5)}
    done = check(out, RefineShapes(), FOLD, dims=dims)
    assert done.types == ["Shape", "Shape", "Concat", "Gather", "Reshape", "MatMul"]


@pytest.mark.parametrize("readers", [1, 2])
def test_a_shared_constant_is_not_turned(net, check, readers):
    table = net.weights(7, 5)
    turned = net.op("Transpose", table, perm=(1, 0))
    products = [net.op("MatMul", net.input(3, 5), turned) for _ in range(readers)]
    rows = net.binary("ADD", table, net.input(7, 5))
    done = check([rows, *products], SHARED)
    assert sorted(done.types) == ["BinaryOp", *["MatMul"] * readers]
    assert set(done.graph.constants) == {table}


def test_a_constant_of_its_own_is_folded(net, check):
    turned = net.op("Transpose", net.weights(7, 5), perm=(1, 0))
    done = check(net.op("MatMul", net.input(3, 5), turned), SHARED)
    assert done.types == ["Transpose", "MatMul"]


def test_a_shared_input_is_left_to_the_other_pass(net, check):
    x = net.input(7, 5)
    product = net.op("MatMul", net.input(3, 5), net.op("Transpose", x, perm=(1, 0)))
    assert "Transpose" in check([product, net.unary("EXP", x)], SHARED).types
