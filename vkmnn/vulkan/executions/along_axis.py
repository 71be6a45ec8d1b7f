"""ArgMax, ArgMin, CumSum and TopK: ops that walk along one axis of [outer, length, inner]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType
from vkmnn.ir.ops import ArgReduceAttrs, CumSumAttrs, TopKAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.storage import kernel_dtype

# Some drivers end loops after 65,535 iterations of an invocation.
MAX_STEPS = 60_000
# Elements whose order one pass of TopK settles by counting; the work grows with its square.
TOP_K_BLOCK = 2_048


@dataclass(frozen=True, slots=True)
class _Lines:
    """A tensor seen as [outer, length, inner] around one axis."""

    outer: int
    length: int
    inner: int

    @property
    def count(self) -> int:
        """Number of lines along the axis; 0 when they are empty."""
        return self.outer * self.inner if self.length else 0


def _lines(shape: Sequence[int], axis: int) -> _Lines:
    axis %= max(1, len(shape))
    if not shape:
        return _Lines(1, 1, 1)
    return _Lines(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))


@vulkan_execution("ArgMax", "ArgMin")
class ArgReduceExecution(VulkanExecution):
    """One invocation per line; long lines take several dispatches."""

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatches."""
        attrs = self.op.attrs
        assert isinstance(attrs, ArgReduceAttrs)
        source = inputs[0]
        assert source is not None
        lines = _lines(source.shape, attrs.axis)
        shader = kernels.arg_reduce(
            dtype=kernel_dtype(source.dtype),  # type: ignore[arg-type]
            storage=encoder.load_storage,
        )
        spec = {
            "LARGEST": self.op.type == "ArgMax",
            "LAST_INDEX": attrs.select_last_index,
        }
        for first in range(0, lines.length, MAX_STEPS):
            params = kernels.ArgReduceParams(
                count=lines.count,
                extent=lines.length,
                inner=lines.inner,
                first=first,
                last=min(first + MAX_STEPS, lines.length),
            )
            encoder.dispatch_linear(shader, [source, outputs[0]], params, lines.count, spec)


@vulkan_execution("CumSum")
class CumSumExecution(VulkanExecution):
    """One invocation per line; long lines take several dispatches."""

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatches."""
        attrs = self.op.attrs
        assert isinstance(attrs, CumSumAttrs)
        source, axis = inputs
        assert source is not None
        assert axis is not None
        assert axis.value is not None
        lines = _lines(source.shape, int(axis.value.item()))
        shader = kernels.cum_sum(
            dtype=kernel_dtype(source.dtype),  # type: ignore[arg-type]
            storage=encoder.load_storage,
        )
        spec = {"EXCLUSIVE": attrs.exclusive, "REVERSE": attrs.reverse}
        for first in range(0, lines.length, MAX_STEPS):
            params = kernels.CumSumParams(
                count=lines.count,
                extent=lines.length,
                inner=lines.inner,
                first=first,
                last=min(first + MAX_STEPS, lines.length),
            )
            encoder.dispatch_linear(shader, [source, outputs[0]], params, lines.count, spec)


@vulkan_execution("TopK")
class TopKExecution(VulkanExecution):
    """The best of every block, then the best of those, until one block is left."""

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record one dispatch per level.

        Candidates keep their order: blocks come in order, and equal elements of a block in order of
        their indices, so that position decides between equals on every level.
        """
        attrs = self.op.attrs
        assert isinstance(attrs, TopKAttrs)
        source, k = inputs
        assert source is not None
        assert k is not None
        assert k.value is not None
        keep = int(k.value.item())
        lines = _lines(source.shape, attrs.axis)
        if keep == 0 or lines.count == 0:
            return
        values, indices = source, source
        length, indexed = lines.length, False
        while True:
            block = min(length, max(TOP_K_BLOCK, 2 * keep), MAX_STEPS)
            if 2 * keep > block:
                block = min(length, MAX_STEPS)
            done = block >= length
            kept = _kept(length, block, keep)
            best = (
                outputs[0]
                if done
                else encoder.scratch(lines.outer * kept * lines.inner, source.dtype)
            )
            place = (
                outputs[1]
                if done
                else encoder.scratch(lines.outer * kept * lines.inner, DType.INT32)
            )
            self._level(
                _Lines(lines.outer, length, lines.inner),
                (block, keep, kept),
                [values, indices, best, place],
                indexed,
                encoder,
            )
            if done:
                return
            values, indices, length, indexed = best, place, kept, True

    def _level(
        self,
        lines: _Lines,
        sizes: tuple[int, int, int],
        tensors: list[Tensor],
        indexed: bool,
        encoder: VulkanEncoder,
    ) -> None:
        assert isinstance(self.op.attrs, TopKAttrs)
        block, keep, kept = sizes
        count = lines.outer * lines.length * lines.inner
        params = kernels.TopKParams(
            count=count,
            extent=lines.length,
            inner=lines.inner,
            block=block,
            keep=min(keep, block),
            kept=kept,
        )
        shader = kernels.top_k(
            dtype=kernel_dtype(tensors[0].dtype),  # type: ignore[arg-type]
            storage=encoder.load_storage,
        )
        spec = {"LARGEST": self.op.attrs.largest, "INDEXED": indexed}
        encoder.dispatch_linear(shader, tensors, params, count, spec)


def _kept(length: int, block: int, keep: int) -> int:
    """Return how many candidates a level leaves per line."""
    blocks = ceil_div(length, block)
    last = length - (blocks - 1) * block
    return (blocks - 1) * min(keep, block) + min(keep, last)
