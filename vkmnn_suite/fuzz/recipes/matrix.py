"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import FINITE


def second_factor(s: Sketch, a: Value) -> list[int]:
    """Return a shape by which `a` can be multiplied."""
    inner = a.shape[-1]
    columns = s.choose(1, s.size(17), s.size(17), s.size())
    batch = list(a.shape[:-2])
    forms = [[inner], [inner, columns], [inner, columns], [*s.broadcast(batch), inner, columns]]
    if not batch:
        forms.append([s.size(3), inner, columns])
    return s.rng.choice(forms)


@recipe("MatMul")
def _matmul(s: Sketch, op: str) -> None:
    a = s.pick(s.dtype(op), min_rank=1, max_rank=5, spread=FINITE)
    b = s.weight(a.dtype, second_factor(s, a), FINITE)
    if s.chance(0.3):
        b = s.pick(a.dtype, b.shape, spread=FINITE)
    s.one(op, a, b)


@recipe("Gemm")
def _gemm(s: Sketch, op: str) -> None:
    gemm(s, op, s.dtype(op), s.since(11))


def gemm(s: Sketch, op: str, dtype: str, optional: bool, **more: Any) -> None:
    """Add a product of two matrices and its summand, which some versions of ONNX require."""
    trans_a, trans_b = s.choose(None, 0, 1), s.choose(None, 0, 1)
    a = s.pick(dtype, min_rank=2, max_rank=2, spread=FINITE)
    rows, inner = a.shape[::-1] if trans_a else a.shape
    columns = s.size(17)
    b = s.weight(a.dtype, [columns, inner] if trans_b else [inner, columns], FINITE)
    c = None
    if not optional or s.chance(0.75):
        shape = s.choose([columns], [columns], [1, columns], [rows, columns], [rows, 1], [1], [])
        c = s.weight(a.dtype, shape, FINITE)
    factors = {
        "alpha": s.choose(None, None, 0.5, -1.0, 2.0),
        "beta": s.choose(None, None, 0.5, 1.0, 2.0, 0.0),
    }
    if not a.dtype.startswith("float"):
        factors = {}
    s.one(op, a, b, c, transA=trans_a, transB=trans_b, **factors, **more)


# Equations with the letters of their operands; sizes are drawn by letter.
_EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "bij,jk->bik", "bhid,bhjd->bhij", "bhij,bhjd->bhid",
    "bqnd,bknd->bnqk", "ij->ji", "ij->", "ij->i", "ii->i", "ii", "i,i->", "i,j->ij",
    "bij,bkj->bik", "bnqk,bknd->bqnd", "ij,ij->ij", "...ij,...jk->...ik", "bcd,c->bd",
    "abc,abd->acd", "ijk,ilm,ljk->im", "...i->...", "ab,cb", "bi,ij,bj->b", "i->i", "ij,kj->ki",
)  # fmt: skip


@recipe("Einsum")
def _einsum(s: Sketch, op: str) -> None:
    equation = s.rng.choice(_EQUATIONS)
    dtype = s.dtype(op)
    sizes = {letter: s.size(7) for letter in "abcdehijklmnq"}
    dots = [s.size(3) for _ in range(s.choose(0, 1, 2))]
    operands = []
    for term in equation.split("->")[0].split(","):
        shape = [*(dots if "..." in term else []), *(sizes[c] for c in term.replace("...", ""))]
        operands.append(s.pick(dtype, shape, spread=FINITE))
    s.one(op, *operands, equation=equation)


@recipe("Det")
def _det(s: Sketch, op: str) -> None:
    """Matrices that are not nearly singular: engines differ in the digits lost there."""
    size = s.choose(1, 2, 3, 5)
    shape = [*s.choose([], [1], [3], [2, 3]), size, size]
    noise = s.draws.uniform(-0.3, 0.3, shape)
    turned = np.roll(np.eye(size), s.choose(0, 1), 0)
    s.one(op, s.parameter((turned + noise).astype(np.float32), "float32", constant=0.2))
