"""GridSample against its definition, written out: PyTorch's, which onnxruntime follows."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.op.classes.whole import check, model, node
from vkmnn.ir import Array

KEYS_A = -0.75


def cubic_weights(t: Array) -> list[Array]:
    """Weights of the elements at -1, 0, 1 and 2 (Keys 1981)."""

    def near(d: Array) -> Array:
        return ((KEYS_A + 2) * d - (KEYS_A + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return ((KEYS_A * d - 5 * KEYS_A) * d + 8 * KEYS_A) * d - 4 * KEYS_A

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def moved(c: Array, size: int, padding: str, align: bool) -> Array:
    """Move coordinates inside: clamp or reflect them; zero padding keeps them."""
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
        if span == 0:
            return np.zeros_like(c)
        distance = np.abs(c - low)
        rest, turns = np.fmod(distance, span), np.floor(distance / span)
        c = low + np.where(turns % 2 == 0, rest, span - rest)
    return c if padding == "zeros" else np.clip(c, 0, size - 1)


def taps(mode: str, c: Array, size: int, padding: str, align: bool) -> list[tuple[Array, Any]]:
    """Return positions along an axis and their weights."""
    if mode == "cubic":
        first = np.floor(c)
        weights = cubic_weights(c - first)
        return [(moved(first + k - 1, size, padding, align), w) for k, w in enumerate(weights)]
    c = moved(c, size, padding, align)
    if mode == "nearest":
        return [(np.rint(c), 1.0)]
    first = np.floor(c)
    return [(first, 1 - (c - first)), (first + 1, c - first)]


def sample(x: Array, grid: Array, mode: str, padding: str, align: bool) -> Array:
    """Sum every combination of taps; those outside are zero."""
    spatial, axes = x.shape[2:], []
    for axis, size in enumerate(spatial):
        u = grid[..., len(spatial) - 1 - axis].astype(np.float64)
        c = (u + 1) / 2 * (size - 1) if align else ((u + 1) * size - 1) / 2
        axes.append(taps(mode, c, size, padding, align))
    result = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for combination in product(*axes):
        places = [place for place, _ in combination]
        weight = np.prod([np.broadcast_to(w, places[0].shape) for _, w in combination], axis=0)
        for place, size in zip(places, spatial, strict=True):
            weight = np.where((place >= 0) & (place <= size - 1), weight, 0)
        index = [np.clip(p, 0, s - 1).astype(int) for p, s in zip(places, spatial, strict=True)]
        for n in range(len(x)):
            result[n] += x[n][(slice(None), *(i[n] for i in index))] * weight[n]
    return result.astype(np.float32)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("spatial", [(5, 7), (1, 4), (3, 4, 5)], ids=str)
def test_all_modes(spatial: tuple[int, ...], mode: str, padding: str, align: bool) -> None:
    random = np.random.default_rng(5)
    x = random.standard_normal((2, 3, *spatial)).astype(np.float32)
    points = (2, 6, 5, 4)[: len(spatial) + 1]
    grid = random.uniform(-1.5, 1.5, (*points, len(spatial))).astype(np.float32)
    grid.reshape(-1)[::7] *= 3
    feeds = {"x": x, "g": grid}
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": int(align)}
    made = model([node("GridSample", "x g", **attributes)], feeds)
    check(made, feeds, [sample(x, grid, mode, padding, align)])
