"""Matrix products of all ranks: constant or not, batches that broadcast, fused epilogues."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.classes.whole import check, model, node
from vkmnn.ir import Array

MAX_RANK = 6


class Products:
    """Generates random products; `numpy.matmul` decides which are valid."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        rows, inner, columns = (int(self.random.choice([1, 2, 4, 5, 7, 8])) for _ in range(3))
        batch = [int(size) for size in self.random.choice([1, 2, 3], MAX_RANK - 2)]
        left, right = (int(rank) for rank in self.random.integers(1, MAX_RANK + 1, 2))
        return (
            (*self._axes(batch, left - 2), rows, inner) if left > 1 else (inner,),
            (*self._axes(batch, right - 2), inner, columns) if right > 1 else (inner,),
        )

    def _axes(self, batch: list[int], count: int) -> tuple[int, ...]:
        alone = self.random.random() < 0.4
        drop = self.random.random(count) < 0.3
        kept = batch[len(batch) - count :]
        return tuple(1 if alone or one else size for one, size in zip(drop, kept, strict=True))

    def values(self, *shape: int) -> Array:
        return self.random.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("seed", range(48))
def test_random_products(seed: int) -> None:
    products = Products(seed)
    left, right = products.shapes()
    a, b = products.values(*left), products.values(*right)
    nodes = [node("MatMul", "a b", "product")]
    shape = np.matmul(a, b).shape
    tail = shape[seed % (len(shape) + 1) :]
    bias = products.values(*(1 if products.random.random() < 0.3 else size for size in tail))
    nodes.append(node("Add" if seed % 4 else "Mul", "product bias", "sum"))
    nodes.append(node("Relu" if seed % 3 else "Identity", "sum"))
    tensors, fixed = {"a": a, "b": b}, ("a", "b", "")[seed % 3]
    feeds = {name: array for name, array in tensors.items() if name != fixed}
    constants = {name: array for name, array in tensors.items() if name == fixed}
    check(model(nodes, feeds, {**constants, "bias": bias}), feeds)


@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 5, 2, 7), (7,)), ((3, 7, 7, 3, 1, 8), (8, 3)), ((2, 3, 4), (1, 1, 1, 4, 5))],
)
def test_constant_batches_meet_one_matrix(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    products = Products(0)
    feeds = {"b": products.values(*right)}
    check(model([node("MatMul", "a b")], feeds, {"a": products.values(*left)}), feeds)


def test_a_constant_is_read_by_two_kinds_of_products() -> None:
    """The batches of one constant stay separate in one product, and are one matrix in the other."""
    products = Products(0)
    feeds = {"b": products.values(7, 3), "c": products.values(2, 7, 3)}
    nodes = [node("MatMul", "a b", "y"), node("MatMul", "a c", "z")]
    check(model(nodes, feeds, {"a": products.values(2, 5, 7)}, "y z"), feeds)


GEMM_C = [None, (), (1,), ("n",), (1, "n"), ("m", 1), ("m", "n")]


@pytest.mark.parametrize("shape", GEMM_C, ids=str)
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(shape: tuple[int | str, ...] | None, transposed: tuple[int, int]) -> None:
    products, sizes = Products(len(shape or "")), {"m": 5, "n": 7}
    a = products.values(*((3, 5) if transposed[0] else (5, 3)))
    b = products.values(*((7, 3) if transposed[1] else (3, 7)))
    tensors = {"a": a, "b": b}
    if shape is not None:
        tensors["c"] = products.values(*(sizes.get(size, size) for size in shape))
    attributes = {"transA": transposed[0], "transB": transposed[1], "alpha": 0.5, "beta": -1.5}
    for fixed in ("a", "b c", "c"):
        feeds = {name: array for name, array in tensors.items() if name not in fixed.split(" ")}
        constants = {name: array for name, array in tensors.items() if name not in feeds}
        check(model([node("Gemm", " ".join(tensors), **attributes)], feeds, constants), feeds)
