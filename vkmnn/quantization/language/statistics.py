"""Inputs of a language model's products, on a text: mean squares, and their second moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array, DType, Graph, TensorInfo

_BYTES = 2 << 30
"""Bytes of second moments that are collected at a time."""
_PRODUCTS = ("MatMul", "Gemm")

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class Product:
    """A product of activations and constant weights.

    Attributes:
        weight: the constant.
        input: the activations [..., K].
        depth: K.
    """

    weight: str
    input: str
    depth: int


def products_of(graph: Graph) -> list[Product]:
    """Return the products of a network whose weights are constant matrices."""
    sources = {name: (name, False) for name in graph.constants}
    found = []
    for op in graph.ops:
        if op.type in ("Identity", "Transpose") and op.inputs[0] in sources:
            name, turned = sources[op.inputs[0]]
            sources[op.outputs[0]] = name, turned != (op.type == "Transpose")
        if op.type not in _PRODUCTS or op.inputs[1] not in sources:
            continue
        name, turned = sources[op.inputs[1]]
        shape = graph.constants[name].shape
        if len(shape) == 2:
            turned = turned != bool(getattr(op.attrs, "transpose_b", False))
            found.append(Product(name, op.inputs[0], shape[1 if turned else 0]))
    return found


class Moments:
    """Second moments of the inputs of products: X^T X / tokens, by weight.

    Args:
        graph: the network in float.
        feeds: returns the feeds of a run of the network on some tokens.
        windows: the tokens of each run.
        device: the device that runs it.
    """

    def __init__(
        self,
        graph: Graph,
        feeds: Callable[[InferenceSession, Tokens], Mapping[str, Array]],
        windows: Sequence[Tokens],
        device: str | int,
    ) -> None:
        self._graph, self._feeds, self._windows = graph, feeds, windows
        self._device = device
        self._products = {one.weight: one for one in products_of(graph)}
        self._parts = list(_parts(list(self._products.values())))
        self._held: dict[str, Array] = {}

    def __contains__(self, weight: str) -> bool:
        """Return whether the inputs of a weight are known."""
        return weight in self._products

    def of(self, weight: str) -> Array:
        """Return the moments of a weight's inputs, float64 [K, K]; some stay in memory."""
        name = self._products[weight].input
        if name not in self._held:
            part = next(part for part in self._parts if name in part)
            self._held = {}
            self._held = self._collected(part)
        return self._held[name]

    def _collected(self, part: Mapping[str, int]) -> dict[str, Array]:
        graph = _showing(self._graph, list(part))
        made = {name: np.zeros((depth, depth)) for name, depth in part.items()}
        count = 0
        with InferenceSession(graph, self._device) as session:
            for window in self._windows:
                feeds = self._feeds(session, window)
                for name, value in zip(part, session.run(list(part), feeds), strict=True):
                    rows = value.reshape(-1, part[name]).astype(np.float64)
                    made[name] += rows.T @ rows
                count += len(window)
        return {name: one / max(count, 1) for name, one in made.items()}


def _parts(products: Sequence[Product]) -> Iterator[dict[str, int]]:
    """Yield the inputs of products with their widths, as many as memory has room for."""
    part: dict[str, int] = {}
    for one in products:
        size = sum(8 * depth**2 for depth in part.values())
        if part and one.input not in part and size + 8 * one.depth**2 > _BYTES:
            yield part
            part = {}
        part[one.input] = one.depth
    if part:
        yield part


def _showing(graph: Graph, names: Sequence[str]) -> Graph:
    """Return a graph whose outputs are these tensors."""
    known = {info.name: info for info in (*graph.inputs, *graph.outputs)}
    outputs = [
        known.get(name) or graph.infos.get(name) or TensorInfo(name, DType.FLOAT32, None)
        for name in names
    ]
    return replace(graph, outputs=outputs, planned_sizes={})
