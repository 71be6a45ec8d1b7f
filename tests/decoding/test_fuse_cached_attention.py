"""Rotary embedding, append and attention of one row are fused into one op, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkmnn.cpu_fallback import run_op
from vkmnn.decoding.fuse_cached_attention import fuse_cached_attention
from vkmnn.ir import Array, DType, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    AppendAttrs,
    AttentionAttrs,
    ReshapeAttrs,
    RotaryAttrs,
    UnaryAttrs,
)
from vkmnn.shape import compute_shapes

TOTAL = "total"


class Step:
    """A step on a cache, which tests spoil in one place."""

    def __init__(
        self,
        rows: int = 1,
        shared: int = 2,
        depth: int = 8,
        *,
        turns: str = "qk",
        causal: bool = False,
        sinks: tuple[int, ...] = (),
        softcap: float = 0.0,
        window: int = 0,
    ) -> None:
        rng = np.random.default_rng(3)
        sizes = {"q": (2, 2 * shared, rows, depth), "k": (2, 2, rows, depth),
                 "v": (2, 2, rows, depth), "ck": (2, 2, 9, depth), "cv": (2, 2, 9, depth),
                 "cos": (2, 1, rows, 2), "sin": (2, 1, rows, 2),
                 "mask": (2, 1, rows, 9), "sinks": sinks}  # fmt: skip
        values: dict[str, Array] = {
            name: np.float32(rng.standard_normal(shape)) for name, shape in sizes.items()
        }
        values |= {"past": np.array([5]), TOTAL: np.array([5 + rows]), "axis": np.array([2]),
                   "more": np.array([1, 1, shared, 1, 1]),
                   "heads": np.array([2, 2 * shared, 9, depth])}  # fmt: skip
        self.values = values
        self.ops: list[Op[Any]] = []
        self.infos = {
            n: TensorInfo(n, DType.from_numpy(a.dtype), a.shape) for n, a in values.items()
        }
        turn = RotaryAttrs(4)
        turned = [
            self.op("Rotary", [name, "cos", "sin"], f"{name}.t", turn) if name in turns else name
            for name in "qk"
        ]
        keys = self.op("Append", ["ck", turned[1], "past"], "pk", AppendAttrs(2))
        cached = self.op("Append", ["cv", "v", "past"], "pv", AppendAttrs(2))
        if shared > 1:
            keys, cached = (self.repeated(name) for name in (keys, cached))
        inputs = [turned[0], keys, cached, "mask", TOTAL]
        attrs = AttentionAttrs(0.3, causal, zero_fully_masked=False, softcap=softcap, window=window)
        self.op("Attention", [*inputs, *(["sinks"] if sinks else [])], "y", attrs)

    def repeated(self, x: str) -> str:
        x = self.op("Unsqueeze", [x, "axis"], f"{x}.u", OpAttrs())
        x = self.op("Expand", [x, "more"], f"{x}.e", OpAttrs())
        return self.op("Reshape", [x, "heads"], f"{x}.r", ReshapeAttrs())

    def op(self, kind: str, inputs: list[str], out: str, attrs: Any) -> str:
        op = Op(kind, out, inputs, [out], attrs)
        given = [self.infos[name] for name in inputs]
        known = [self.values.get(name) for name in inputs]
        self.ops.append(op)
        self.infos[out] = compute_shapes(op, given, known)[0]
        return out

    def fused(self) -> list[Op[Any]]:
        return fuse_cached_attention(self.ops, self.infos, TOTAL, {"y"})

    def run(self, ops: list[Op[Any]]) -> dict[str, Array]:
        values = dict(self.values)
        for op in ops:
            given = [values[name] if name else None for name in op.inputs]
            values.update(zip(op.outputs, run_op(op, given), strict=False))
        return values


@pytest.mark.parametrize("shared", [1, 2, 3])
@pytest.mark.parametrize("turns", ["qk", ""])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_step_is_one_op_with_the_same_results(shared: int, turns: str, rows: int) -> None:
    step = Step(shared=shared, turns=turns, rows=rows)
    ops = step.fused()
    assert [op.type for op in ops] == ["CachedAttention"]
    want, got = step.run(step.ops), step.run(ops)
    for name in ("y", "pk", "pv"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    "how",
    [
        {"sinks": (4, 1, 1)},
        {"softcap": 0.7},
        {"window": 2},
        {"window": 4, "softcap": 0.2, "sinks": (4, 1, 1)},
    ],
)
def test_sinks_soft_caps_and_windows_come_along(rows: int, how: dict[str, Any]) -> None:
    step, plain = Step(rows=rows, **how), Step(rows=rows)
    ops = step.fused()
    assert [op.type for op in ops] == ["CachedAttention"]
    want, got = step.run(step.ops), step.run(ops)
    for name in ("y", "pk", "pv"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6, atol=1e-6)
    assert np.abs(got["y"] - plain.run(plain.ops)["y"]).max() > 1e-3


def test_sinks_that_are_not_those_of_heads_stay() -> None:
    step = Step(sinks=(1, 1))
    assert step.fused() == step.ops


@pytest.mark.parametrize(
    "how", [{"rows": 9}, {"turns": "q"}, {"turns": "k"}, {"depth": 6}, {"causal": True}]
)
def test_other_steps_stay(how: dict[str, Any]) -> None:
    step = Step(**how)
    assert step.fused() == step.ops


@pytest.mark.parametrize("name", ["pk", "pv", "q.t", "pk.u.e.r"])
def test_what_is_read_elsewhere_stays(name: str) -> None:
    step = Step()
    step.op("UnaryOp", [name], "other", UnaryAttrs("ABS"))
    assert step.fused() == step.ops


def test_a_mask_of_other_columns_stays() -> None:
    step = Step()
    step.infos["mask"] = TensorInfo("mask", DType.FLOAT32, (2, 1, 1, 1))
    assert step.fused() == step.ops
