from __future__ import annotations

import numpy as np
import pytest

from vkmnn.errors import ShapeError
from vkmnn.ir import Activation
from vkmnn.ir.ops import AttentionAttrs, EinsumAttrs, MatMulAttrs

SHAPES = [
    ((5, 3), (3, 7)),
    ((2, 5, 3), (3, 7)),
    ((5, 3), (2, 3, 7)),
    ((2, 1, 5, 3), (3, 3, 7)),
    ((3,), (3,)),
    ((3,), (3, 7)),
    ((2, 3), (3,)),
    ((2, 5, 3), (3,)),
    ((3,), (2, 3, 5)),
    ((0, 3), (3, 7)),
    ((5, 0), (0, 7)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32"])
def test_matmul(check, check_fp16, draw, shapes, dtype):
    arrays = [draw(dtype, *shape) for shape in shapes]
    check("MatMul", MatMulAttrs(), arrays, "MatMul")
    if dtype == "float32":
        check_fp16("MatMul", MatMulAttrs(), arrays)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_gemm(check, draw, transpose_a, transpose_b):
    a, b, bias = draw("float32", 5, 3), draw("float32", 3, 7), draw("float32", 7)
    a, b = a.T.copy() if transpose_a else a, b.T.copy() if transpose_b else b
    theirs = {"transA": int(transpose_a), "transB": int(transpose_b), "alpha": 0.25}
    attrs = MatMulAttrs(transpose_a, transpose_b, 0.25)
    check("MatMul", attrs, [a, b, bias], "Gemm", theirs)


def test_transposes_of_batches_and_vectors(run, draw):
    a, b = draw("float64", 2, 3, 5), draw("float64", 4, 1, 7, 3)
    (y,) = run("MatMul", MatMulAttrs(True, True), [a, b])
    np.testing.assert_allclose(y, np.swapaxes(a, 1, 2) @ np.swapaxes(b, 2, 3))
    (y,) = run("MatMul", MatMulAttrs(True, True), [a[0, :, 0], b[0, 0]])
    np.testing.assert_allclose(y, a[0, :, 0] @ b[0, 0].T)


def test_bias_residual_and_activation(run, draw):
    a, b, bias = draw("float32", 2, 5, 3), draw("float32", 3, 7), draw("float32", 7)
    residual = draw("float32", 2, 5, 7)
    attrs = MatMulAttrs(alpha=0.5, activation=Activation("RELU"))
    (y,) = run("MatMul", attrs, [a, b, bias, residual])
    np.testing.assert_allclose(y, np.maximum(0.5 * (a @ b) + bias + residual, 0), rtol=1e-4)


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 3), (4, 7)),
        ((2, 5, 3), (3, 3, 7)),
        ((), (3,)),
        ((3, 5), (5, 7), (5,)),
        ((3, 5), (5, 7), (7,), (7,)),
    ],
    ids=str,
)
def test_impossible_shapes(run, draw, shapes):
    with pytest.raises(ShapeError, match="MatMul"):
        run("MatMul", MatMulAttrs(), [draw("float32", *shape) for shape in shapes])


EQUATIONS = [
    ("ij,jk->ik", (5, 3), (3, 7)),
    ("ij,jk", (5, 3), (3, 7)),
    ("bij,bjk->bik", (2, 5, 3), (2, 3, 7)),
    ("...ij,...jk->...ik", (2, 1, 5, 3), (4, 3, 7)),
    ("...ii->...i", (2, 3, 3)),
    ("ii", (3, 3)),
    ("ij->ji", (3, 5)),
    ("ij->", (3, 5)),
    ("i,j->ij", (3,), (5,)),
    ("bhid,bhjd->bhij", (2, 3, 5, 4), (2, 3, 7, 4)),
    (" a b , b c -> a c ", (3, 5), (5, 2)),
    ("zB,aB", (2, 3), (4, 3)),
    ("ab,bc,cd->ad", (2, 3), (3, 5), (5, 7)),
    ("i->i", (0,)),
    ("ij,jk->ik", (5, 0), (0, 7)),
    ("...->...", (2, 3)),
    (",->", (), ()),
]


@pytest.mark.parametrize("case", EQUATIONS, ids=str)
def test_einsum(check, check_fp16, draw, case):
    equation, *shapes = case
    arrays = [draw("float32", *shape) for shape in shapes]
    attrs = EinsumAttrs(equation)
    check("Einsum", attrs, arrays, "Einsum", {"equation": equation})
    check_fp16("Einsum", attrs, arrays)
    check(
        "Einsum",
        attrs,
        [draw("int32", *shape) for shape in shapes],
        "Einsum",
        {"equation": equation},
    )


def test_einsum_broadcasts_axes_of_one(run, draw):
    a, b = draw("float32", 3, 1), draw("float32", 5, 7)
    (y,) = run("Einsum", EinsumAttrs("ij,jk->ik"), [a, b])
    np.testing.assert_allclose(y, a * b.sum(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3)]),
        ("ij->ik", [(2, 3)]),
        ("ij->ii", [(2, 3)]),
        ("ij,jk->ik", [(2, 3), (4, 5)]),
        ("i1->i", [(2, 3)]),
        ("i->i", [(2, 3)]),
        ("ijk->i", [(2, 3)]),
        ("i......->i", [(2, 3)]),
    ],
)
def test_impossible_equations(run, draw, equation, shapes):
    with pytest.raises(ShapeError, match="Einsum"):
        run("Einsum", EinsumAttrs(equation), [draw("float32", *shape) for shape in shapes])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, "bool", "float32"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (1, 1)])
def test_attention(check, draw, causal, mask, queries, keys):
    q, k = draw("float32", 2, 3, queries, 4), draw("float32", 2, 3, keys, 4)
    v = draw("float32", 2, 3, keys, 6)
    arrays = [q, k, v]
    if mask:
        given = draw(mask, queries, keys)
        given[..., 0] = 1  # a row that sees nothing has a test of its own
        arrays.append(given)
    theirs = {"scale": 0.5, "is_causal": int(causal)}
    check("Attention", AttentionAttrs(0.5, causal), arrays, "Attention", theirs, opset=24)


def test_attention_broadcasts_batches(run, draw):
    q, k, v = draw("float32", 2, 4, 5, 3), draw("float32", 1, 7, 3), draw("float32", 2, 1, 7, 2)
    (y,) = run("Attention", AttentionAttrs(1.0), [q, k, v])
    assert y.shape == (2, 4, 5, 2)


@pytest.mark.parametrize(("zero_fully_masked", "expected"), [(True, 0.0), (False, np.nan)])
def test_a_query_that_sees_nothing(run, draw, zero_fully_masked, expected):
    mask = np.array([[False, False], [True, False]])
    arrays = [draw("float32", 2, 3), draw("float32", 2, 3), draw("float32", 2, 3), mask]
    (y,) = run("Attention", AttentionAttrs(1.0, zero_fully_masked=zero_fully_masked), arrays)
    np.testing.assert_array_equal(y[0], expected)
    np.testing.assert_allclose(y[1], arrays[2][0])


def test_attention_half(check_fp16, draw):
    arrays = [draw("float32", 3, 5, 4), draw("float32", 3, 7, 4), draw("float32", 3, 7, 2)]
    check_fp16("Attention", AttentionAttrs(0.5), arrays)
