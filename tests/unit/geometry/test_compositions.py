from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkmnn.errors import ShapeError
from vkmnn.geometry import lower_graph
from vkmnn.geometry.regions import is_identity, region_elements
from vkmnn.ir import Array, DType, Op, OpAttrs
from vkmnn.ir.ops import (
    REDUCTION_KINDS,
    AttentionAttrs,
    ConstantOfShapeAttrs,
    EinsumAttrs,
    RasterAttrs,
    ReductionAttrs,
    ShapeAttrs,
    SoftmaxAttrs,
    StridedAttentionAttrs,
)

Run = Callable[..., tuple[list[Array], list[Op]]]

RNG = np.random.default_rng(7)


def floats(*shape: int) -> Array:
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


# --- Reduction ---------------------------------------------------------------------------------

NUMPY: dict[str, Callable[..., Array]] = {
    "SUM": np.sum,
    "MEAN": np.mean,
    "MAX": np.max,
    "MIN": np.min,
    "PROD": np.prod,
    "L1": lambda x, axis, keepdims: np.abs(x).sum(axis, keepdims=keepdims),
    "L2": lambda x, axis, keepdims: np.sqrt(np.square(x).sum(axis, keepdims=keepdims)),
    "LOG_SUM": lambda x, axis, keepdims: np.log(x.sum(axis, keepdims=keepdims)),
    "LOG_SUM_EXP": lambda x, axis, keepdims: np.log(np.exp(x).sum(axis, keepdims=keepdims)),
    "SUM_SQUARE": lambda x, axis, keepdims: np.square(x).sum(axis, keepdims=keepdims),
}


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3, 5, 7), (0, 2)),
        ((3, 5, 7), (-1, 0)),
        ((2, 3, 5, 2, 3), (0, 2, 4)),
        ((2, 3, 5, 2, 3), (0, 1, 3)),
        ((3, 1, 5), (0, 2)),
        ((3, 1, 1, 5, 7, 2), (0, 3, 5)),
        ((1, 3, 1), (0, 2)),
    ],
)
def test_reduction_over_scattered_axes(
    run: Run, kind: str, keepdims: bool, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    x = floats(*shape)
    (result,), ops = run("Reduction", ReductionAttrs(kind, keepdims), x, ints(*axes))
    expected = NUMPY[kind](x.astype(np.float64), axis=axes, keepdims=keepdims)
    np.testing.assert_allclose(result, expected, rtol=2e-6)
    assert {op.type for op in ops} <= {"Raster", "Reduction"}


@pytest.mark.parametrize("axes", [(1,), (1, 2), (0, 1, 2, 3), ()])
def test_reduction_over_one_run_stays(network: type, axes: tuple[int, ...]) -> None:
    net = network()
    inputs = [net.add(floats(2, 3, 5, 7)), net.add(ints(*axes), constant=True)]
    net.op("Reduction", ReductionAttrs("SUM"), inputs)
    ops, _, _ = lower_graph(net.ops, net.infos, net.constants)
    assert ops == net.ops


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
def test_reductions_left_over_work_on_neighbouring_axes(network: type, kind: str) -> None:
    for x in (floats(3, 5, 7, 2), np.ones((3, 5, 7, 2), np.int32)):
        net = network()
        inputs = [net.add(x), net.add(ints(0, 2, 3), constant=True)]
        net.op("Reduction", ReductionAttrs(kind), inputs)
        ops, _, constants = lower_graph(net.ops, net.infos, net.constants)
        reductions = [op for op in ops if op.type == "Reduction"]
        for op in reductions:
            axes = sorted(constants[op.inputs[1]].tolist())
            assert axes == list(range(axes[0], axes[-1] + 1))
        assert reductions


@pytest.mark.parametrize("keepdims", [True, False])
def test_mean_of_integers_is_rounded_once(run: Run, keepdims: bool) -> None:
    x = np.array([[[1, 0]], [[0, 0]], [[4, 8]]], np.int32) + np.zeros((3, 5, 2), np.int32)
    (result,), _ = run("Reduction", ReductionAttrs("MEAN", keepdims), x, ints(0, 2))
    expected = np.mean(x, axis=(0, 2), keepdims=keepdims).astype(np.int32)
    np.testing.assert_array_equal(result, expected)


def test_reduction_over_an_empty_axis(run: Run) -> None:
    x = np.zeros((2, 3, 0, 5), np.float32)
    (result,), _ = run("Reduction", ReductionAttrs("SUM"), x, ints(0, 2))
    np.testing.assert_array_equal(result, np.zeros((1, 3, 1, 5)))
    (result,), _ = run("Reduction", ReductionAttrs("PROD", keepdims=False), x, ints(0, 2))
    np.testing.assert_array_equal(result, np.ones((3, 5)))


@pytest.mark.parametrize(
    ("kind", "function"),
    [("SUM", np.positive), ("L1", np.abs), ("L2", np.abs), ("SUM_SQUARE", np.square)],
)
def test_reduction_over_no_axes(run: Run, kind: str, function: Callable[[Array], Array]) -> None:
    for x in (-floats(3, 5), -floats()):
        attrs = ReductionAttrs(kind, noop_with_empty_axes=True)
        (result,), _ = run("Reduction", attrs, x, ints())
        np.testing.assert_array_equal(result, function(x))


# --- Softmax -----------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1, 3])
def test_flattened_softmax(run: Run, log: bool, axis: int) -> None:
    x = floats(2, 3, 5)
    at = axis % 3 if axis < 0 else axis
    rows = x.reshape(int(np.prod(x.shape[:at])), -1).astype(np.float64)
    expected = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    expected = (np.log(expected) if log else expected).reshape(x.shape)
    (result,), ops = run("Softmax", SoftmaxAttrs(axis, log, flatten=True), x)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert sum(op.type == "Softmax" for op in ops) == 1


def test_softmax_over_one_axis_stays(network: type) -> None:
    net = network()
    net.op("Softmax", SoftmaxAttrs(1), [net.add(floats(2, 3, 5))])
    assert lower_graph(net.ops, net.infos, net.constants)[0] == net.ops


# --- Einsum ------------------------------------------------------------------------------------

EINSUMS = [
    ("ij,jk->ik", (3, 5), (5, 7)),
    ("ij,kj->ik", (3, 5), (7, 5)),
    ("ji,jk->ki", (5, 3), (5, 7)),
    ("ij,jk", (3, 5), (5, 7)),
    ("bij,bjk->bik", (2, 3, 5), (2, 5, 7)),
    ("bij,jk->bik", (2, 3, 5), (5, 7)),
    ("bhid,bhjd->bhij", (2, 3, 5, 7), (2, 3, 11, 7)),
    ("bihd,bjhd->bhij", (2, 5, 3, 7), (2, 11, 3, 7)),
    ("bhij,bjhd->bihd", (2, 3, 5, 7), (2, 7, 3, 5)),
    ("bhwc,hkc->bhwk", (1, 3, 5, 7), (3, 2, 7)),
    ("...ij,...jk->...ik", (2, 1, 3, 5), (7, 5, 2)),
    ("...ij,...jk", (3, 5), (7, 5, 2)),
    ("i...,i...->...", (3, 2, 5), (3, 5)),
    ("i...->...", (3, 2, 5)),
    ("ii->i", (5, 5)),
    ("ii", (5, 5)),
    ("iij->j", (5, 5, 3)),
    ("iji->ij", (5, 3, 5)),
    ("ij->ji", (3, 5)),
    ("ij->", (3, 5)),
    ("ijk->j", (3, 5, 7)),
    ("i,j->ij", (3,), (5,)),
    ("i,j->ji", (3,), (5,)),
    ("i,i->", (5,), (5,)),
    ("i,i->i", (5,), (5,)),
    ("ij,ij->ij", (3, 5), (3, 5)),
    ("ij,i->ij", (3, 5), (3,)),
    ("bij,bi->bj", (2, 3, 5), (2, 3)),
    (",ij->ij", (), (3, 5)),
    (",->", (), ()),
    ("ij,jk,kl->il", (2, 3), (3, 5), (5, 7)),
    ("ij,kj,kl->li", (2, 3), (5, 3), (5, 7)),
    ("i,ij,j->", (3,), (3, 5), (5,)),
    ("abc,ab,bd->dc", (2, 3, 5), (2, 3), (3, 7)),
    ("i,j,k->kij", (2,), (3,), (5,)),
    ("ij,jk->ik", (3, 1), (5, 7)),
    ("ij,ij->i", (3, 1), (1, 5)),
    ("ij,jk->ik", (3, 0), (0, 7)),
    ("ij,jk->ik", (0, 3), (3, 7)),
    ("aabb->ab", (3, 3, 5, 5)),
    ("ijkl,klmn->ijmn", (2, 3, 5, 2), (5, 2, 3, 2)),
    ("ijkl,lkmn->mjni", (2, 3, 5, 2), (2, 5, 3, 2)),
    ("i...j,j->...i", (3, 2, 2, 5), (5,)),
    ("abcdefg,g->gfedcba", (2, 2, 2, 2, 2, 2, 3), (3,)),
]


@pytest.mark.parametrize("case", EINSUMS, ids=lambda case: case[0])
def test_einsum(run: Run, case: tuple[str, tuple[int, ...]]) -> None:
    equation, *shapes = case
    arrays = [floats(*shape) for shape in shapes]
    (result,), ops = run("Einsum", EinsumAttrs(equation), *arrays)
    np.testing.assert_allclose(result, np.einsum(equation, *arrays), rtol=1e-5)
    assert {op.type for op in ops} <= {"BinaryOp", "MatMul", "Raster", "Reduction"}


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bkj->bik", [(2, 3, 5), (2, 7, 5)]),
        ("bji,bjk->bik", [(2, 5, 3), (2, 5, 7)]),
        ("ji,kj->ki", [(5, 3), (7, 5)]),
    ],
)
def test_einsum_of_matrices_in_place_copies_nothing(
    run: Run, equation: str, shapes: list[tuple[int, ...]]
) -> None:
    _, ops = run("Einsum", EinsumAttrs(equation), *(floats(*shape) for shape in shapes))
    assert [op.type for op in ops] == ["MatMul", "Raster"]
    assert isinstance(ops[1].attrs, RasterAttrs)
    (region,) = ops[1].attrs.regions
    assert is_identity(region, region_elements(region))


def test_einsum_reads_a_constant_operand_itself(network: type) -> None:
    net = network()
    weight = net.add(floats(7, 5), constant=True)
    net.op("Einsum", EinsumAttrs("bij,kj->bik"), [net.add(floats(2, 3, 5)), weight])
    ops, _, _ = lower_graph(net.ops, net.infos, net.constants)
    assert [op.inputs[1] for op in ops if op.type == "MatMul"] == [weight]


def test_einsum_of_integers(run: Run) -> None:
    a, b = RNG.integers(-9, 9, (3, 5)), RNG.integers(-9, 9, (5, 7))
    (result,), _ = run("Einsum", EinsumAttrs("ij,jk->ki"), a, b)
    np.testing.assert_array_equal(result, (a @ b).T)
    assert result.dtype == np.int64


@settings(max_examples=150, deadline=None)
@given(draw=st.data())
def test_random_einsums(run: Run, draw: st.DataObject) -> None:
    sizes = {"a": 2, "b": 3, "c": 5, "d": 1, "e": 2}
    terms = draw.draw(
        st.lists(st.text(st.sampled_from("abcde"), max_size=4), min_size=1, max_size=3)
    )
    used = sorted(set("".join(terms)))
    kept = draw.draw(st.lists(st.sampled_from(used), unique=True)) if used else []
    equation = ",".join(terms) + "->" + "".join(kept)
    arrays = []
    for term in terms:
        # any axis may have size 1 and broadcast, but an output label needs one axis of full size
        ones = draw.draw(st.lists(st.booleans(), min_size=len(term), max_size=len(term)))
        arrays.append(floats(*(1 if one else sizes[x] for x, one in zip(term, ones, strict=True))))
    (result,), _ = run("Einsum", EinsumAttrs(equation), *arrays)
    dims: dict[str, int] = {}
    for term, array in zip(terms, arrays, strict=True):
        for label, dim in zip(term, array.shape, strict=True):
            dims[label] = max(dims.get(label, 1), dim)
    full = [
        np.broadcast_to(array, [dims[label] for label in term])
        for term, array in zip(terms, arrays, strict=True)
    ]
    np.testing.assert_allclose(result, np.einsum(equation, *full), rtol=1e-4)


# --- Attention ---------------------------------------------------------------------------------


def attention(
    q: Array, k: Array, v: Array, mask: Array | None, scale: float, causal: bool
) -> Array:
    """The definition; a row that sees no key is zero (ONNX Attention 24)."""
    scores = np.matmul(q.astype(np.float64), np.swapaxes(k, -1, -2)) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    best = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(best), 0, best))
    total = weights.sum(-1, keepdims=True)
    return np.matmul(weights / np.where(total == 0, 1, total), v)


BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 7


def mask_of(kind: str, shape: tuple[int, ...]) -> Array | None:
    if kind == "none":
        return None
    seen = RNG.random(shape) > 0.4
    seen.reshape(-1)[: shape[-1] if shape else 0] = False  # the first row sees nothing
    if kind == "bool":
        return seen
    floating = RNG.normal(size=shape).astype(np.float64 if kind == "double" else np.float32)
    return (
        floating if kind == "finite" else np.where(seen, floating, -np.inf).astype(floating.dtype)
    )


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "finite", "double"])
@pytest.mark.parametrize(
    "shape", [(QUERIES, KEYS), (BATCH, 1, QUERIES, KEYS), (BATCH, 1, 1, KEYS), (KEYS,)]
)
def test_attention(run: Run, known: bool, causal: bool, kind: str, shape: tuple[int, ...]) -> None:
    q, k = floats(BATCH, HEADS, QUERIES, 11), floats(BATCH, HEADS, KEYS, 11)
    v = floats(BATCH, HEADS, KEYS, 13)
    mask = mask_of(kind, shape)
    (result,), ops = run(
        "Attention", AttentionAttrs(0.3, causal), q, k, v, mask, constant=[3] if known else []
    )
    np.testing.assert_allclose(result, attention(q, k, v, mask, 0.3, causal), rtol=1e-5, atol=1e-6)
    assert not any(op.type == "Attention" for op in ops)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("known", [False, True])
def test_blind_rows_may_be_nan(run: Run, known: bool) -> None:
    q, k, v = floats(2, 5, 3), floats(2, 7, 3), floats(2, 7, 2)
    mask = np.where(np.arange(5)[:, None] > 1, np.float32(0), np.float32(-np.inf))
    mask = np.broadcast_to(mask, (5, 7)).copy()
    attrs = AttentionAttrs(0.5, zero_fully_masked=False)
    (result,), ops = run("Attention", attrs, q, k, v, mask, constant=[3] if known else [])
    np.testing.assert_allclose(
        result[:, 2:], attention(q, k, v, mask, 0.5, False)[:, 2:], rtol=1e-5
    )
    assert np.isnan(result[:, :2]).all()
    assert [op.type for op in ops] == ["StridedAttention"]


@pytest.mark.parametrize(
    ("queries", "keys", "mask", "axes"),
    [
        ((), (), (), 0),
        ((3,), (1,), None, 1),
        ((2, 3), (2, 3), (2, 1, 5, 7), 2),
        ((2, 3, 4), (2, 1, 4), (3, 1, 1, 7), 3),
        ((2, 3, 2, 3), (2, 1, 2, 1), (1, 1, 5, 1), 3),  # four axes: operands are expanded
        ((2, 3, 2, 3), (2, 3, 2, 3), (2, 1, 1, 3, 5, 7), 3),
        ((1,), (3,), (5, 1), 1),
    ],
)
def test_attention_of_batches_that_broadcast(
    run: Run,
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    mask: tuple[int, ...] | None,
    axes: int,
) -> None:
    q, k, v = floats(*queries, 5, 3), floats(*keys, 7, 3), floats(*keys, 7, 2)
    bias = None if mask is None else floats(*mask)
    (result,), ops = run("Attention", AttentionAttrs(0.5), q, k, v, bias)
    np.testing.assert_allclose(result, attention(q, k, v, bias, 0.5, False), rtol=1e-5)
    (lowered,) = (op.attrs for op in ops if isinstance(op.attrs, StridedAttentionAttrs))
    assert sum(size > 1 for size in lowered.batch) == axes


def test_attention_without_keys_is_zero(run: Run) -> None:
    q, k, v = floats(5, 3), floats(0, 3), floats(0, 2)
    (result,), _ = run("Attention", AttentionAttrs(0.5), q, k, v)
    np.testing.assert_array_equal(result, np.zeros((5, 2), np.float32))


# --- what becomes a constant -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "attrs", "inputs", "expected"),
    [
        ("Shape", ShapeAttrs(), [floats(3, 5, 7)], ints(3, 5, 7)),
        ("Shape", ShapeAttrs(-2, None), [floats(3, 5, 7)], ints(5, 7)),
        ("Shape", ShapeAttrs(0, -1), [floats(3, 5, 7)], ints(3, 5)),
        ("Shape", ShapeAttrs(), [floats()], ints()),
        ("Size", OpAttrs(), [floats(3, 0, 7)], np.array(0)),
        ("Size", OpAttrs(), [floats(3, 5)], np.array(15)),
        ("Range", OpAttrs(), [np.array(7), np.array(-3), np.array(-4)], ints(7, 3, -1)),
        (
            "Range",
            OpAttrs(),
            [np.array(x, np.float32) for x in (0.5, 2.1, 0.5)],
            np.array([0.5, 1.0, 1.5, 2.0], np.float32),
        ),
        (
            "ConstantOfShape",
            ConstantOfShapeAttrs(2**60 + 1, DType.INT64),
            [ints(2, 3)],
            np.full((2, 3), 2**60 + 1),
        ),
        ("ConstantOfShape", ConstantOfShapeAttrs(), [ints()], np.array(0, np.float32)),
        (
            "ConstantOfShape",
            ConstantOfShapeAttrs(True, DType.BOOL),
            [ints(0, 3)],
            np.ones((0, 3), bool),
        ),
    ],
)
def test_constants(
    network: type, op_type: str, attrs: OpAttrs, inputs: list[Array], expected: Array
) -> None:
    net = network()
    names = [net.add(array, constant=op_type not in ("Shape", "Size")) for array in inputs]
    (name,) = net.op(op_type, attrs, names)
    ops, infos, constants = lower_graph(net.ops, net.infos, net.constants)
    assert ops == []
    np.testing.assert_array_equal(constants[name], expected)
    assert constants[name].dtype == expected.dtype == infos[name].dtype.numpy
    assert constants[name].shape == infos[name].dims


def test_a_wrong_attribute_names_the_node(network: type) -> None:
    net = network()
    net.op("Einsum", EinsumAttrs("ij->ij"), [net.add(floats(3, 5))])
    net.ops[0].attrs = EinsumAttrs("ijk->ij")
    with pytest.raises(ShapeError, match="node0"):
        lower_graph(net.ops, net.infos, net.constants)
