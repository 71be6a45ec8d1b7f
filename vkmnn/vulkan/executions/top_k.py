"""TopK: the largest or smallest elements along an axis, in order, with their indices."""

from __future__ import annotations

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType
from vkmnn.ir.ops import TopKAttrs
from vkmnn.runtime.shader import Shader
from vkmnn.shaders import kernels
from vkmnn.shape.common import int_scalar, normalize_axis
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.rows.reduction import Line, line_of
from vkmnn.vulkan.sorting.radix import encode_sort
from vkmnn.vulkan.sorting.selection import Selection, Selector, selections, stride_of

# Keys of a block sorted by counting: the work per key grows with it, the number of merges shrinks.
BLOCK = 256
# Rows up to this length are one block, which is faster than merging two.
WHOLE = 512
# Runs up to this length are sorted in blocks again, which drops more keys than a merge.
SHORT_RUN = BLOCK // 4
# A single row of this length or more is radix-sorted, in thirty dispatches whatever its length.
LONG = 65_536
LONG_ON_CPU = 12_000


@dataclass(frozen=True, slots=True)
class _Runs:
    """Rows of `length` keys in sorted runs of `run`, the last of which may be shorter.

    Without `indices`, the positions are the indices.
    """

    keys: Tensor
    indices: Tensor | None
    length: int
    run: int

    @property
    def stride(self) -> int:
        """Words from row to row: whole vec4s."""
        return stride_of(self.length)

    @property
    def count(self) -> int:
        """Number of runs in a row."""
        return ceil_div(self.length, self.run)


@vulkan_execution("TopK")
class TopKExecution(VulkanExecution[TopKAttrs]):
    """Selects the best k of a long line, sorts blocks by counting, then merges runs by bisection.

    Each step keeps k keys of a run.
    """

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record keys or a selection, then blocks and merges."""
        attrs, x, k = self.attrs, self.operand(0), self.operand(1)
        keep = int_scalar([None, k.value], 1, "k")
        axis = normalize_axis(attrs.axis, len(x.shape))
        line = line_of(x.shape, axis, axis)
        if keep == 0 or 0 in x.shape:
            return
        step = _Step(x, line, keep, self._both(line.columns * keep, encoder), encoder)
        selector = Selector(x, line, keep, attrs.largest, encoder)
        way = self._way(line, keep, encoder)
        if way is None:
            runs = _Runs(selector.keys(), None, line.size, 1)
        else:
            found = selector.encode(way)
            runs = _Runs(found.keys, found.indices, keep, 1)
        if self._by_digits(runs, line, encoder):
            runs = self._sorted(runs, encoder)
        more: _Runs | None = runs
        while more is not None:
            more = step.sort_blocks(more) if more.run <= SHORT_RUN else step.merge(more)

    def _way(self, line: Line, keep: int, encoder: VulkanEncoder) -> Selection | None:
        """Return how elements are selected before they are sorted; None to sort all of them."""
        found: list[Selection | None] = [*selections(line, keep), None]
        if encoder.offers_all:
            found += selections(line, keep, small=True)
        return encoder.choose("top_k", (line, keep), found)

    def _by_digits(self, runs: _Runs, line: Line, encoder: VulkanEncoder) -> bool:
        """Return whether a single row is radix-sorted, rather than sorted in blocks and merged."""
        if line.columns > 1:
            return False
        long = runs.length >= (LONG if is_gpu(encoder.info) else LONG_ON_CPU)
        if not long and not encoder.offers_all:
            return False
        return encoder.choose("top_k digits", runs.length, (long, not long))

    def _sorted(self, runs: _Runs, encoder: VulkanEncoder) -> _Runs:
        keys, indices = encode_sort(
            runs.keys,
            runs.length,
            self.op,
            encoder,
            bits=32,
            flipped=0x7FFFFFFF,
            indices=runs.indices,
        )
        return _Runs(keys, indices, runs.length, runs.length)

    def _both(self, words: int, encoder: VulkanEncoder) -> tuple[Tensor, Tensor]:
        """Return the tensors for values and indices; the network may use only one of them."""
        return (
            self.result(0) or encoder.scratch(words, DType.INT32),
            self.result(1) or encoder.scratch(words, DType.INT32),
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """Records the steps; a step returns None once it has written the result."""

    x: Tensor
    line: Line
    keep: int
    result: tuple[Tensor, Tensor]
    encoder: VulkanEncoder

    def sort_blocks(self, runs: _Runs) -> _Runs | None:
        """Record the sorting of blocks, whatever the order of the runs was."""
        whole = runs.length <= (WHOLE if self.keep > SHORT_RUN else BLOCK)
        block = runs.length if whole else BLOCK
        shader = kernels.top_k_rank(target="result" if whole else "runs", load=self.encoder.load)
        spec = {"INDEXED": runs.indices is not None}
        return self._record(shader, runs, block, block, spec)

    def merge(self, runs: _Runs) -> _Runs | None:
        """Record the merging of pairs of runs."""
        shader = kernels.top_k_merge(
            target="result" if runs.count <= 2 else "runs", load=self.encoder.load
        )
        return self._record(shader, runs, runs.run, 2 * runs.run, {})

    def _record(
        self, shader: Shader, runs: _Runs, run: int, joined: int, spec: dict[str, bool]
    ) -> _Runs | None:
        """Record a step that joins `joined` keys at a time into one run."""
        line = self.line
        kept = min(self.keep, joined)
        groups = ceil_div(runs.length, joined)
        length = (groups - 1) * kept + min(kept, runs.length - (groups - 1) * joined)
        after = None
        if groups > 1:
            after = _Runs(self._words(length), self._words(length), length, kept)
        params = kernels.TopKMergeParams(
            count=line.columns * runs.length,
            extent=runs.length,
            stride=runs.stride,
            run=run,
            keep=kept,
            next_stride=after.stride if after else 0,
            size=line.size,
            inner=line.inner,
        )
        targets = [after.keys, after.indices or after.keys] if after else [self.x, *self.result]
        tensors = [runs.keys, runs.indices or runs.keys, *targets]
        spec = {**spec, "INNER": line.inner > 1}
        self.encoder.dispatch_linear(shader, tensors, params, params.count, spec)
        return after

    def _words(self, length: int) -> Tensor:
        return self.encoder.scratch(self.line.columns * stride_of(length), DType.INT32)
