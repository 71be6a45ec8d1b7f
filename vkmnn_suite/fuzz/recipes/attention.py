"""Attention and rotary positions."""

from __future__ import annotations

from typing import Any

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import FINITE, UNIT, Spread


@recipe("Attention")
def _attention(s: Sketch, op: str) -> None:
    batch, heads, length, width = (
        s.choose(1, 2),
        s.choose(1, 2, 4),
        s.size(7),
        s.choose(1, 2, 4, 8, s.size(8)),
    )
    shared = s.choose(1, 1, heads)
    key_heads = heads // shared
    keys, depth = s.choose(length, s.size(7)), s.choose(width, 3)
    dtype = s.choose("float32", "float32", "float32", "float16")
    flat = s.chance(0.4)

    def operand(count: int, rows: int, size: int) -> Value:
        shape = [batch, rows, count * size] if flat else [batch, count, rows, size]
        return s.pick(dtype, shape, spread=FINITE)

    inputs: list[Value | None] = [
        operand(heads, length, width),
        operand(key_heads, keys, width),
        operand(key_heads, keys, depth),
    ]
    attributes: dict[str, Any] = {
        "is_causal": s.choose(None, 0, 1),
        "scale": s.choose(None, None, 0.5, 1.0),
        "softcap": s.choose(None, None, None, 2.0),
    }
    if flat:
        attributes |= {"q_num_heads": heads, "kv_num_heads": key_heads}
    if s.chance(0.5):
        shape = s.broadcast([batch, heads, length, keys])
        shape[-1:] = [keys]
        shape = [1] * max(0, 2 - len(shape)) + shape
        shape[-2] = length
        inputs.append(s.pick(s.choose("bool", dtype), shape, spread=FINITE))
    elif not flat and s.chance(0.2):
        past = s.size(4)
        pairs = [[batch, key_heads, past, width], [batch, key_heads, past, depth]]
        inputs += [None, *(s.pick(dtype, shape, spread=FINITE) for shape in pairs)]
        s.node(op, inputs, 3, **attributes)
        return
    s.one(op, *inputs, **attributes)


@recipe("RotaryEmbedding")
def _rotary(s: Sketch, op: str) -> None:
    batch, heads, length, half = (
        s.choose(1, 2),
        s.choose(1, 2, 3),
        s.size(5),
        s.choose(1, 2, 4, s.size(4)),
    )
    dtype = s.choose("float32", "float32", "float16")
    flat = s.chance(0.4)
    shape = [batch, length, heads * 2 * half] if flat else [batch, heads, length, 2 * half]
    x = s.pick(dtype, shape, spread=FINITE)
    positions = None
    rows = [batch, length]
    if s.chance(0.5):
        table = s.size(13)
        positions = s.parameter(s.draws.integers(0, table, rows), constant=0.4)
        rows = [table]
    tables = [s.weight(dtype, [*rows, half], UNIT) for _ in range(2)]
    s.one(
        op,
        x,
        *tables,
        positions,
        interleaved=s.choose(None, 0, 1),
        num_heads=heads if flat else None,
    )


@recipe("LinearAttention")
def _linear_attention(s: Sketch, op: str) -> None:
    linear_attention(s, op)


def linear_attention(s: Sketch, op: str, **more: Any) -> None:
    """Add a linear attention, by any of its rules."""
    batch, steps, heads, shared = s.choose(1, 2), s.size(5), s.choose(1, 2), s.choose(1, 1, 3)
    depth, width = s.choose(1, 3, 8), s.choose(1, 4, 5)
    small = Spread(-0.7, 0.7, special=False)

    def operand(*shape: int) -> Value:
        return s.pick("float32", [batch, *shape], spread=small)

    rule = s.choose("linear", "gated", "delta", "gated_delta")
    inputs: list[Value | None] = [
        operand(steps, heads * shared * depth),
        operand(steps, heads * depth),
        operand(steps, heads * width),
        operand(heads, depth, width) if s.chance(0.5) else None,
        operand(steps, heads * s.choose(1, depth)) if "gated" in rule else None,
        operand(steps, s.choose(1, heads)) if "delta" in rule else None,
    ]
    s.node(
        op, inputs, 2, update_rule=rule, q_num_heads=heads * shared, kv_num_heads=heads,
        scale=s.choose(None, 0.5), **more,
    )  # fmt: skip
