"""Attention that reads and writes through Rasters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.geometry.conftest import Network
from vkmnn.ir import Array, Op, OpAttrs
from vkmnn.ir.ops import (
    AttentionAttrs,
    ReshapeAttrs,
    SplitAttrs,
    StridedAttentionAttrs,
    TransposeAttrs,
    UnaryAttrs,
)

RNG = np.random.default_rng(3)
SWAP = TransposeAttrs((0, 2, 1, 3))
ATTENTION = AttentionAttrs(0.3)
BATCH, LENGTH, HEADS, DEPTH = 2, 5, 3, 4


def floats(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def ints(net: Network, *values: int) -> str:
    return net.add(np.array(values, np.int64), constant=True)


def reshape(net: Network, x: str, *shape: int) -> str:
    return net.op("Reshape", ReshapeAttrs(), [x, ints(net, *shape)])[0]


def heads(net: Network, x: str, length: int = LENGTH) -> str:
    """[batch, length, heads · depth] → [batch, heads, length, depth]."""
    return net.op("Transpose", SWAP, [reshape(net, x, -1, length, HEADS, DEPTH)])[0]


def merged(net: Network, y: str, length: int = LENGTH) -> str:
    (y,) = net.op("Transpose", SWAP, [y])
    return reshape(net, y, -1, length, HEADS * DEPTH)


def types(ops: list[Op]) -> list[str]:
    return [op.type for op in ops]


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("length", [1, 7])
def test_heads_are_split_and_merged_in_place(
    network: type[Network], batch: int, length: int
) -> None:
    net = network()
    q = net.add(floats(batch, LENGTH, HEADS * DEPTH))
    k, v = (net.add(floats(batch, length, HEADS * DEPTH)) for _ in range(2))
    operands = [heads(net, q), heads(net, k, length), heads(net, v, length)]
    (y,) = net.op("Attention", ATTENTION, operands)
    _, ops = net.run([merged(net, y)])
    assert types(ops) == ["StridedAttention"]
    assert ops[0].inputs == [q, k, v]


def test_one_tensor_holds_queries_keys_and_values(network: type[Network]) -> None:
    net = network()
    qkv = net.add(floats(BATCH, LENGTH, 3 * HEADS * DEPTH))
    parts = net.op("Split", SplitAttrs(-1, 3), [qkv], 3)
    (y,) = net.op("Attention", ATTENTION, [heads(net, part) for part in parts])
    _, ops = net.run([merged(net, y)])
    assert types(ops) == ["StridedAttention"]
    attrs = ops[0].attrs
    assert isinstance(attrs, StridedAttentionAttrs)
    assert [view.offset for view in attrs.views] == [0, HEADS * DEPTH, 2 * HEADS * DEPTH]


def test_one_tensor_with_its_own_axis_of_three(network: type[Network]) -> None:
    net = network()
    x = net.add(floats(BATCH, LENGTH, 3 * HEADS * DEPTH))
    x = reshape(net, x, BATCH, LENGTH, 3, HEADS, DEPTH)
    (x,) = net.op("Transpose", TransposeAttrs((2, 0, 3, 1, 4)), [x])
    parts = net.op("Split", SplitAttrs(0, 3), [x], 3)
    squeezed = [net.op("Squeeze", OpAttrs(), [part, ints(net, 0)])[0] for part in parts]
    (y,) = net.op("Attention", ATTENTION, squeezed)
    _, ops = net.run([merged(net, y)])
    assert types(ops) == ["StridedAttention"]


def test_columns_that_do_not_lie_together_are_copied(network: type[Network]) -> None:
    net = network()
    q, v = net.add(floats(BATCH, LENGTH, DEPTH)), net.add(floats(BATCH, LENGTH, DEPTH))
    (k,) = net.op("Transpose", TransposeAttrs((0, 2, 1)), [net.add(floats(BATCH, DEPTH, LENGTH))])
    (y,) = net.op("Attention", ATTENTION, [q, k, v])
    (y,) = net.op("Transpose", TransposeAttrs((0, 2, 1)), [y])
    _, ops = net.run([y])
    assert types(ops) == ["Raster", "StridedAttention", "Raster"]


def test_rows_in_reverse_order_are_copied(network: type[Network]) -> None:
    net = network()
    q = net.add(floats(BATCH, LENGTH, DEPTH))
    ends = [ints(net, number) for number in (-1, -LENGTH - 1, 1, -1)]
    (k,) = net.op("Slice", OpAttrs(), [q, *ends])
    (y,) = net.op("Attention", ATTENTION, [q, k, q])
    _, ops = net.run([y])
    assert types(ops) == ["Raster", "StridedAttention"]


def test_a_copy_with_other_readers_stays(network: type[Network]) -> None:
    net = network()
    q = heads(net, net.add(floats(BATCH, LENGTH, HEADS * DEPTH)))
    (other,) = net.op("UnaryOp", UnaryAttrs("ABS"), [q])
    (y,) = net.op("Attention", ATTENTION, [q, q, q])
    (loud,) = net.op("UnaryOp", UnaryAttrs("ABS"), [y])
    _, ops = net.run([other, loud, merged(net, y)])
    assert sorted(types(ops)) == ["Raster", "Raster", "StridedAttention", "UnaryOp", "UnaryOp"]


def test_outputs_of_the_graph_stay(network: type[Network]) -> None:
    net = network()
    q = net.add(floats(BATCH, HEADS, LENGTH, DEPTH))
    (y,) = net.op("Attention", ATTENTION, [q, q, q])
    _, ops = net.run([y, merged(net, y)])
    assert types(ops) == ["StridedAttention", "Raster"]


def test_a_part_of_the_result_is_copied(network: type[Network]) -> None:
    net = network()
    q = net.add(floats(BATCH, HEADS, LENGTH, DEPTH))
    (y,) = net.op("Attention", ATTENTION, [q, q, q])
    (y,) = net.op("Slice", OpAttrs(), [y, ints(net, 1), ints(net, 3), ints(net, 2)])
    _, ops = net.run([y])
    assert types(ops) == ["StridedAttention", "Raster"]


def test_attention_after_attention(network: type[Network]) -> None:
    net = network()
    x = net.add(floats(BATCH, LENGTH, HEADS * DEPTH))
    for _ in range(2):
        q = heads(net, x)
        (y,) = net.op("Attention", ATTENTION, [q, q, q])
        x = merged(net, y)
    _, ops = net.run([x])
    assert types(ops) == ["StridedAttention", "StridedAttention"]


def test_keys_that_several_heads_share(network: type[Network]) -> None:
    net = network()
    q = net.add(floats(BATCH, 6, LENGTH, DEPTH))
    k = net.add(floats(BATCH, 2, 1, LENGTH, DEPTH))
    (k,) = net.op("Expand", OpAttrs(), [k, ints(net, BATCH, 2, 3, LENGTH, DEPTH)])
    k = reshape(net, k, BATCH, 6, LENGTH, DEPTH)
    (y,) = net.op("Attention", ATTENTION, [q, k, k])
    _, ops = net.run([y])
    assert "StridedAttention" in types(ops)
