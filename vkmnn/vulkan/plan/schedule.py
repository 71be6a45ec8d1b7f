"""Order of dispatches: independent ones are grouped between two barriers.

A list scheduler by levels (Hu, "Parallel sequencing and assembly line problems", 1961): the
dispatch at the head of the longest dependent chain comes first, and the others fill in as late as
possible. It never keeps more bytes alive than the network's own order does.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import field

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.vulkan.recording import Dispatch, Recording
from vkmnn.vulkan.storage import storage_bytes

MAX_COMPARISONS = 2_000_000
"""Maximum comparisons of tensor uses: a second or two. Beyond it, dispatches keep their order."""

MAX_CANDIDATES = 500
"""Maximum candidates for a wave."""


@dataclass(slots=True)
class _Node:
    """A dispatch with its predecessors, its successors and the roots of its tensors."""

    roots: frozenset[Tensor]
    before: set[int] = field(default_factory=set)
    successors: list[int] = field(default_factory=list)
    height: int = 1  # dispatches in the longest chain that begins here


def schedule(recording: Recording, ends: Sequence[int]) -> None:
    """Group the dispatches of every segment into waves, and number their steps by wave.

    A segment keeps its order if waves would take more memory, or would save no barrier.

    Args:
        recording: the recording; its dispatches are replaced.
        ends: where the segments end.
    """
    sizes = _sizes(recording)
    step = first = 0
    for end in ends:
        dispatches = recording.dispatches[first:end]
        waves = order(dispatches, recording, sizes)
        recording.dispatches[first:end] = [dispatches[number] for wave in waves for number in wave]
        for place, wave in enumerate(waves, step):
            for number in wave:
                dispatches[number].step = place
        first, step = end, step + len(waves)


def order(
    dispatches: Sequence[Dispatch], recording: Recording, sizes: dict[Tensor, int]
) -> list[list[int]]:
    """Return dispatch numbers in waves, or one wave each if grouping takes more memory."""
    one_by_one = [[number] for number in range(len(dispatches))]
    nodes = _nodes(dispatches, recording)
    if nodes is None or max((node.height for node in nodes), default=0) == len(nodes):
        return one_by_one  # too much to compare, or a chain in which each waits for the one before
    limit = _peak_alive(one_by_one, nodes, sizes)
    plans = sorted((_runs(nodes), _waves(nodes, sizes, limit)), key=len)
    fits = (waves for waves in plans if _peak_alive(waves, nodes, sizes) <= limit)
    return next(fits, one_by_one)


def _sizes(recording: Recording) -> dict[Tensor, int]:
    """Return the bytes of every written tensor; others are placed separately."""
    roots = {recording.root(tensor) for tensor in recording.written}
    return {root: storage_bytes(root) for root in roots}


def _nodes(dispatches: Sequence[Dispatch], recording: Recording) -> list[_Node] | None:
    """Return the dependencies, or None if there are too many to compare."""
    nodes: list[_Node] = []
    # By root: (first byte, end, number) of every use so far.
    reads: defaultdict[Tensor, list[tuple[int, int, int]]] = defaultdict(list)
    writes: defaultdict[Tensor, list[tuple[int, int, int]]] = defaultdict(list)
    compared = 0
    for number, dispatch in enumerate(dispatches):
        mine = []
        roots: set[Tensor] = set()
        node = _Node(frozenset())
        for tensor, binding in zip(dispatch.tensors, dispatch.shader.bindings, strict=True):
            root, start = recording.placement(tensor)
            if root.value is not None:
                continue
            roots.add(root)
            end, written = start + storage_bytes(tensor), "w" in binding.access
            for uses in (writes[root], reads[root]) if written else (writes[root],):
                compared += len(uses)
                for other_start, other_end, other in uses:
                    if start < other_end and other_start < end:
                        node.before.add(other)
            mine.append(((writes if written else reads)[root], (start, end, number)))
        if compared > MAX_COMPARISONS:
            return None
        node.roots = frozenset(roots)
        for uses, use in mine:
            uses.append(use)
        for other in node.before:
            nodes[other].successors.append(number)
        nodes.append(node)
    for node in reversed(nodes):
        node.height = 1 + max((nodes[other].height for other in node.successors), default=0)
    return nodes


def _runs(nodes: Sequence[_Node]) -> list[list[int]]:
    """Return the dispatches in order, cut wherever one depends on another of its run."""
    runs: list[list[int]] = []
    for number, node in enumerate(nodes):
        if not runs or not node.before.isdisjoint(runs[-1]):
            runs.append([])
        runs[-1].append(number)
    return runs


def _peak_alive(
    waves: Sequence[Sequence[int]], nodes: Sequence[_Node], sizes: dict[Tensor, int]
) -> int:
    """Return the maximum bytes alive in a wave."""
    alive = _Alive(nodes, sizes)
    peak = 0
    for wave in waves:
        for number in wave:
            alive.use(nodes[number])
        peak = max(peak, alive.size)
        alive.end_wave()
    return peak


class _Alive:
    """Bytes of the tensors in use, and of those still needed."""

    def __init__(self, nodes: Sequence[_Node], sizes: dict[Tensor, int]) -> None:
        self.size = 0
        self._sizes = sizes
        self._left = Counter(root for node in nodes for root in node.roots)
        self._alive: set[Tensor] = set()
        self._over: list[Tensor] = []

    def made(self, node: _Node) -> int:
        """Return the additional bytes of a dispatch."""
        return sum(self._sizes.get(root, 0) for root in node.roots - self._alive)

    def freed(self, node: _Node) -> int:
        """Return the bytes that no later dispatch needs."""
        return sum(self._sizes.get(root, 0) for root in node.roots if self._left[root] == 1)

    def use(self, node: _Node) -> None:
        """Add a dispatch to the wave."""
        self.size += self.made(node)
        self._alive |= node.roots
        for root in node.roots:
            self._left[root] -= 1
            if not self._left[root]:
                self._over.append(root)

    def end_wave(self) -> None:
        """Free tensors that have no further readers."""
        self.size -= sum(self._sizes.get(root, 0) for root in self._over)
        self._alive.difference_update(self._over)
        self._over.clear()


def _waves(nodes: Sequence[_Node], sizes: dict[Tensor, int], limit: int) -> list[list[int]]:
    alive = _Alive(nodes, sizes)
    waiting = [len(node.before) for node in nodes]
    # (-height, number), sorted
    ready = sorted((-nodes[n].height, n) for n, count in enumerate(waiting) if not count)
    waves: list[list[int]] = []
    while ready:
        urgent = -ready[0][0]
        wave: list[int] = []
        passed: list[tuple[int, int]] = []
        for height, number in ready[:MAX_CANDIDATES]:
            node = nodes[number]
            made = alive.made(node)
            early = node.height < urgent
            if (wave and alive.size + made > limit) or (early and made > alive.freed(node)):
                passed.append((height, number))
                continue
            wave.append(number)
            alive.use(node)
        ready[:MAX_CANDIDATES] = passed
        alive.end_wave()
        for number in wave:
            for other in nodes[number].successors:
                waiting[other] -= 1
                if not waiting[other]:
                    insort(ready, (-nodes[other].height, other))
        waves.append(sorted(wave))
    return waves
