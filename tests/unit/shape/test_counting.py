from __future__ import annotations

import pytest

from vkmnn.ir import DType, Op, OpAttrs, TensorInfo, View, op_type
from vkmnn.ir.ops import (
    AttentionAttrs,
    AxisAttrs,
    BinaryAttrs,
    ConvolutionAttrs,
    DeconvolutionAttrs,
    EinsumAttrs,
    MatMulAttrs,
    PoolingAttrs,
    SoftmaxAttrs,
    StridedAttentionAttrs,
)
from vkmnn.shape import compute_shapes, flops

CONV = ConvolutionAttrs((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 2)
DECONV = DeconvolutionAttrs((2, 2), (2, 2), (1, 1), (), (0, 0))


@pytest.mark.parametrize(
    ("op_type", "attrs", "shapes", "count"),
    [
        ("Convolution", CONV, [(1, 4, 5, 7), (6, 2, 3, 3)], 2 * 6 * 35 * 2 * 9),
        ("Convolution", CONV, [(1, 4, 5, 7), (6, 2, 3, 3), (6,)], 2 * 6 * 35 * 2 * 9 + 6 * 35),
        ("Deconvolution", DECONV, [(1, 4, 5, 7), (4, 3, 2, 2)], 2 * 4 * 35 * 3 * 4),
        ("MatMul", MatMulAttrs(), [(2, 5, 3), (3, 7)], 2 * 2 * 5 * 3 * 7),
        ("MatMul", MatMulAttrs(transpose_a=True), [(3, 5), (3, 7)], 2 * 5 * 3 * 7),
        ("MatMul", MatMulAttrs(), [(3,), (3,)], 2 * 3),
        ("Einsum", EinsumAttrs("ij,jk->ik"), [(5, 3), (3, 7)], 2 * 5 * 3 * 7),
        ("Einsum", EinsumAttrs("...ij, ...jk"), [(2, 5, 3), (1, 3, 7)], 2 * 2 * 5 * 3 * 7),
        ("Pooling", PoolingAttrs("MAX", is_global=True), [(1, 2, 5, 7)], 2 * 5 * 7),
        ("BinaryOp", BinaryAttrs("ADD"), [(3, 5), (5,)], 15),
        ("Pooling", PoolingAttrs("MAX", (2, 3), (1, 1)), [(1, 2, 5, 7)], 2 * 4 * 5 * 6),
        ("Softmax", SoftmaxAttrs(), [(3, 5)], 75),
        ("Concat", AxisAttrs(0), [(3, 5), (2, 5)], 0),
        ("Identity", OpAttrs(), [(3, 0)], 0),
        ("MatMul", MatMulAttrs(), [(0, 3), (3, 7)], 0),
    ],
)
def test_counts(op_type, attrs, shapes, count):
    op = Op(op_type, "n", [f"i{i}" for i in range(len(shapes))], ["y"], attrs)
    infos = [TensorInfo(f"i{i}", DType.FLOAT32, shape) for i, shape in enumerate(shapes)]
    outputs = compute_shapes(op, infos, [None] * len(infos))
    assert flops(op, infos, outputs) == count


def test_attention_is_two_products_and_a_softmax():
    op = Op("Attention", "n", ["q", "k", "v"], ["y"], AttentionAttrs(1.0))
    infos = [
        TensorInfo(n, DType.FLOAT32, (3, length, 8))
        for n, length in zip("qkv", (5, 7, 7), strict=True)
    ]
    outputs = compute_shapes(op, infos, [None] * 3)
    assert flops(op, infos, outputs) == 3 * 5 * 7 * (2 * 8 + 5 + 2 * 8)


def test_attention_counts_alike_before_and_after_it_is_lowered():
    views = (View(0, (0, 0, 40, 8)), View(0, (0, 0, 56, 8)), View(0, (0, 0, 56, 8)))
    attrs = StridedAttentionAttrs((1, 1, 3), 5, 7, 8, 8, views, None, views[0], 1.0)
    op = Op("StridedAttention", "n", ["q", "k", "v"], ["y"], attrs)
    infos = [TensorInfo(n, DType.FLOAT32, (3, 7, 8)) for n in "qkv"]
    outputs = [TensorInfo("y", DType.FLOAT32, (3, 5, 8))]
    assert flops(op, infos, outputs) == 3 * 5 * 7 * (2 * 8 + 5 + 2 * 8)


@pytest.mark.usefixtures("registrations")
def test_a_new_op_counts_as_its_declaration_says():
    op_type("Five", flops=5)(OpAttrs)
    op_type("Own", flops=lambda attrs, inputs, output: sum(inputs[0]) + output[0])(OpAttrs)
    info = TensorInfo("x", DType.FLOAT32, (2, 3))
    for name, count in (("Five", 30), ("Own", 7)):
        assert flops(Op(name, "n", ["x"], ["y"], OpAttrs()), [info], [info]) == count
