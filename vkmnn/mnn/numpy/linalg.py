"""MNN.numpy.linalg."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.reductions import svd as svd_of
from vkmnn.mnn.expr.types import dtype
from vkmnn.mnn.expr.values import result, to_var
from vkmnn.mnn.expr.var import Var


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return a norm of vectors or matrices, as numpy does; of the flat Var without an axis."""
    given = to_var(x, dtype.float)
    order = None if ord == "f" else ord
    made = result(
        "Norm", lambda array: np.linalg.norm(array, order, axis, keepdims=keepdims), given
    )
    single = made.ndim == 0 and ord not in (None, 2, "f", "fro", np.inf, -np.inf)
    return made.read().item() if single else made


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> tuple[Var, ...]:
    """Return the singular value decomposition of a matrix: u, the values, the transposed v."""
    values, left, right = svd_of(a)
    return left, values, right


def solve(a: Any, b: Any) -> Var:
    """Return the solution x of a · x = b.

    Raises:
        ArgumentError: the matrix is singular, or the shapes do not suit.
    """
    matrix, right = to_var(a, dtype.float), to_var(b, dtype.float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ArgumentError(f"a system of equations has a square matrix, not {matrix.shape}")
    return result("Solve", np.linalg.solve, matrix, right)
