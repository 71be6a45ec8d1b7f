"""How many tokens of a prompt run at a time."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.base.records import dataclass
from vkmnn.ir import Graph
from vkmnn.ir.ops import MatMulNBitsAttrs
from vkmnn.runtime.device_info import DeviceInfo, DeviceType

CHUNKS = (1, 8, 32, 128)
"""Chunk sizes that have a plan on every device; prompts are split and padded to them."""

LARGE_CHUNKS = (512, 2048)
"""Further ones on GPUs, where weights are unpacked once for a chunk."""

CROWDED_CHUNK = 32
"""Tokens of a prompt that run at a time while other texts are being generated."""

LONGEST_S = 2.0
"""Seconds that a chunk may take: drivers reset a device that is busy for longer."""
MULTIPROCESSOR_FLOPS = 1.5e11
"""Per second, in float32; an H200 with 132 multiprocessors computes prompts at 2e13."""
UNKNOWN_MULTIPROCESSORS = {DeviceType.DISCRETE: 16}
FEW_MULTIPROCESSORS = 4

MEMORY_SHARE = 1 / 16
"""Of the device's memory, for a chunk's activations."""
WIDEST_VALUES = 4
"""Live values as wide as the widest product's result."""

_FUSED = ("Attention", "CachedAttention")


@dataclass(frozen=True, slots=True)
class ChunkWork:
    """The work of a token, apart from its logits.

    Attributes:
        weights: elements of the products' matrices.
        widest: columns of the widest product.
        fused: attention computes no matrix of scores in memory.
    """

    weights: int
    widest: int
    fused: bool


def work_of(graph: Graph, vocabulary: int | None) -> ChunkWork:
    """Return the work of a decoder's token; products whose columns are the vocabulary do not count.

    Args:
        graph: the decoder.
        vocabulary: columns of its logits.
    """
    weights = widest = 0
    for op in graph.ops:
        for depth, columns in _products(op.type, op.attrs, op.inputs, graph):
            if columns != vocabulary:
                weights += depth * columns
                widest = max(widest, columns)
    return ChunkWork(weights, widest, any(op.type in _FUSED for op in graph.ops))


def _products(
    kind: str, attrs: object, inputs: Sequence[str], graph: Graph
) -> list[tuple[int, int]]:
    """Return depth and columns of the constant matrices that an op multiplies with."""
    if isinstance(attrs, MatMulNBitsAttrs):
        return [(attrs.depth, attrs.columns)]
    if "Gather" in kind:  # a table
        return []
    arrays = [graph.constants[name] for name in inputs if name in graph.constants]
    wide = [array for array in arrays if array.ndim > 1]
    return [(array.size // max(array.shape[-1], 1), array.shape[-1]) for array in wide]


def chunk_sizes(info: object, capacity: int, work: ChunkWork) -> tuple[int, ...]:
    """Return the chunk sizes that have a plan on a device, in ascending order.

    The large ones are for GPUs, for texts that are as long, if a chunk takes neither too long nor
    too much memory.

    Args:
        info: the device.
        capacity: maximum tokens of a text.
        work: the work of a token.
    """
    if not isinstance(info, DeviceInfo) or info.type is DeviceType.CPU or not work.fused:
        return CHUNKS
    known = info.multiprocessors or UNKNOWN_MULTIPROCESSORS.get(info.type, FEW_MULTIPROCESSORS)
    flops = LONGEST_S * known * MULTIPROCESSOR_FLOPS
    nbytes = MEMORY_SHARE * info.memory_bytes
    large = [
        size
        for size in LARGE_CHUNKS
        if size <= capacity
        and 2 * size * work.weights <= flops
        and 4 * size * work.widest * WIDEST_VALUES <= nbytes
    ]
    return (*CHUNKS, *large)


def next_chunk(left: int, sizes: Sequence[int]) -> int:
    """Return the size of the next chunk, to which the tokens are padded.

    Padding to a large size at most doubles the tokens that run.

    Args:
        left: tokens that have not run yet.
        sizes: the possible sizes, in ascending order.
    """
    enough = next((size for size in sizes if size >= left), sizes[-1])
    if enough <= CHUNKS[-1] or enough < 2 * left:
        return enough
    return max(size for size in sizes if size <= max(left, CHUNKS[-1]))
