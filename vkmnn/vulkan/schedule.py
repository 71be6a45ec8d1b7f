"""Order of dispatches: those that can run at once stand together between two barriers.

A list scheduler by levels (Hu, "Parallel sequencing and assembly line problems", 1961): what the
longest chain of dependent dispatches waits for goes first, and the rest fills in as late as it may.
It never lets more bytes be alive than the order of the network does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vkmnn.core.tensor import Tensor
from vkmnn.vulkan.encoder import Dispatch, VulkanEncoder
from vkmnn.vulkan.storage import storage_bytes


@dataclass(slots=True)
class _Node:
    """A dispatch: which it waits for, which wait for it, and the roots of its tensors."""

    roots: frozenset[Tensor]
    before: set[int] = field(default_factory=set)
    behind: list[int] = field(default_factory=list)
    height: int = 1  # dispatches in the longest chain that begins here


def schedule(encoder: VulkanEncoder, ends: Sequence[int]) -> None:
    """Put the dispatches of every segment in waves, and number their steps by wave.

    Where that would take more memory, or saves no barrier, a segment keeps its order.

    Args:
        encoder: what was recorded; its dispatches are replaced.
        ends: where the segments end.
    """
    sizes = _sizes(encoder)
    step = first = 0
    for end in ends:
        dispatches = encoder.dispatches[first:end]
        waves = order(dispatches, encoder, sizes)
        ordered = [
            replace(dispatches[number], step=step + place)
            for place, wave in enumerate(waves)
            for number in wave
        ]
        encoder.dispatches[first:end] = ordered
        first, step = end, step + len(waves)


def order(
    dispatches: Sequence[Dispatch], encoder: VulkanEncoder, sizes: dict[Tensor, int]
) -> list[list[int]]:
    """Return the numbers of the dispatches in waves; one wave each when others take more memory."""
    nodes = _nodes(dispatches, encoder)
    one_by_one = [[number] for number in range(len(nodes))]
    limit = _most_alive(one_by_one, nodes, sizes)
    plans = sorted((_runs(nodes), _waves(nodes, sizes, limit)), key=len)
    fits = (waves for waves in plans if _most_alive(waves, nodes, sizes) <= limit)
    return next(fits, one_by_one)


def _sizes(encoder: VulkanEncoder) -> dict[Tensor, int]:
    """Return the bytes of every tensor that dispatches write: the others are placed apart."""
    roots = {encoder.root(tensor) for tensor in encoder.written}
    return {root: storage_bytes(root) for root in roots}


def _nodes(dispatches: Sequence[Dispatch], encoder: VulkanEncoder) -> list[_Node]:
    nodes: list[_Node] = []
    # By root: (first byte, end, number, whether it is written) of every use so far.
    uses: defaultdict[Tensor, list[tuple[int, int, int, bool]]] = defaultdict(list)
    for number, dispatch in enumerate(dispatches):
        mine = []
        node = _Node(
            frozenset(root for t in dispatch.tensors if (root := encoder.root(t)).value is None)
        )
        for tensor, binding in zip(dispatch.tensors, dispatch.shader.bindings, strict=True):
            root, start = encoder.placement(tensor)
            if root.value is not None:
                continue
            end, writes = start + storage_bytes(tensor), "w" in binding.access
            for other_start, other_end, other, written in uses[root]:
                if (writes or written) and start < other_end and other_start < end:
                    node.before.add(other)
            mine.append((root, (start, end, number, writes)))
        for root, use in mine:
            uses[root].append(use)
        for other in node.before:
            nodes[other].behind.append(number)
        nodes.append(node)
    for node in reversed(nodes):
        node.height = 1 + max((nodes[other].height for other in node.behind), default=0)
    return nodes


def _runs(nodes: Sequence[_Node]) -> list[list[int]]:
    """Return the dispatches in their order, cut wherever one waits for another of its run."""
    runs: list[list[int]] = []
    for number, node in enumerate(nodes):
        if not runs or not node.before.isdisjoint(runs[-1]):
            runs.append([])
        runs[-1].append(number)
    return runs


def _most_alive(
    waves: Sequence[Sequence[int]], nodes: Sequence[_Node], sizes: dict[Tensor, int]
) -> int:
    """Return the most bytes that are alive in a wave."""
    left = Counter(root for node in nodes for root in node.roots)
    alive: set[Tensor] = set()
    most = 0
    for wave in waves:
        for number in wave:
            alive |= nodes[number].roots
            left.subtract(nodes[number].roots)
        most = max(most, sum(sizes.get(root, 0) for root in alive))
        alive = {root for root in alive if left[root]}
    return most


def _waves(nodes: Sequence[_Node], sizes: dict[Tensor, int], limit: int) -> list[list[int]]:
    left = Counter(root for node in nodes for root in node.roots)
    waiting = [len(node.before) for node in nodes]
    ready = {number for number, count in enumerate(waiting) if not count}
    alive: set[Tensor] = set()
    waves: list[list[int]] = []
    while ready:
        urgent = max(nodes[number].height for number in ready)
        size = sum(sizes.get(root, 0) for root in alive)
        wave: list[int] = []
        for number in sorted(ready, key=lambda n: (-nodes[n].height, n)):
            node = nodes[number]
            made = sum(sizes.get(root, 0) for root in node.roots - alive)
            freed = sum(sizes.get(root, 0) for root in node.roots if left[root] == 1)
            early = node.height < urgent
            if (wave and size + made > limit) or (early and made > freed):
                continue
            wave.append(number)
            alive |= node.roots
            left.subtract(node.roots)
            size += made
        alive = {root for root in alive if left[root]}
        for number in wave:
            for other in nodes[number].behind:
                waiting[other] -= 1
                if not waiting[other]:
                    ready.add(other)
        ready.difference_update(wave)
        waves.append(sorted(wave))
    return waves
