"""Selection of the k largest keys of each row, before they are sorted."""

from __future__ import annotations

from math import isqrt
from typing import ClassVar

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType
from vkmnn.runtime.recorder import linear_groups
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, cpu_lanes, is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.rows.reduction import Line, column_local
from vkmnn.vulkan.storage import kernel_dtype

WIDE = 128
"""Invocations of a workgroup on GPUs, and on CPU devices where fewer would loop too often."""
MIN_SIZE = 512
"""Shorter lines are sorted as a whole, in one or two dispatches."""
MIN_SIZE_OF_MANY = 128
"""The same for `MANY` lines or more, where the cost of dispatches is small."""
MANY = 16
MIN_SHARE = 2
"""Minimum number of keys of a line per selected key."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects blocks of `block` elements by their best keys, then elements from these blocks.

    Blocks of 1 select the elements directly. The best k elements are in the best k blocks: each of
    these has a key that precedes all keys of any other block, or an equal one at a lower index.
    """

    block: int
    family: ClassVar[str] = "selection"


@dataclass(frozen=True, slots=True)
class Selected:
    """Rows of `keep` selected keys, `stride` words apart, in ascending order of their indices."""

    keys: Tensor
    indices: Tensor
    stride: int


def stride_of(length: int) -> int:
    """Return the words from one row of keys to the next, in whole vec4s."""
    return ceil_div(length, 4) * 4


def select_rounds(length: int, lanes: int) -> int:
    """Return the iterations of a lane to select from a row."""
    own = ceil_div(ceil_div(length, 4), lanes)
    return 8 * (own + 2 * ceil_div(own, 63) + 6) + 8 * own + 24


def selections(line: Line, keep: int, *, small: bool = False) -> list[Selection]:
    """Return the selections that suit a line, the likely fastest first.

    Args:
        line: the lines to select from.
        keep: number of elements selected from each line.
        small: return small blocks, for tests; they are slower than sorting.
    """
    size = line.size
    least = MIN_SIZE_OF_MANY if line.columns >= MANY else MIN_SIZE
    suits = size >= max(least, MIN_SHARE * keep)
    # Read one key for each block, then all keys of `keep` blocks: √(size / keep) balances both.
    block = stride_of(isqrt(size // keep))
    blocks = [block] if block * keep <= size // 2 else []
    if small:
        blocks = [block for block in (8, 4, 2, 1) if block * keep <= size]
    elif suits:
        blocks.append(1)
    else:
        return []
    return [Selection(block) for block in blocks if _fits(block, size, keep)]


def _fits(block: int, size: int, keep: int) -> bool:
    lengths = (ceil_div(size, block), keep * block)
    return all(select_rounds(length, WIDE) <= MAX_LOOP_ROUNDS for length in lengths)


@dataclass(frozen=True, slots=True)
class Selector:
    """Records the selection of the best `keep` elements of each line of `x`."""

    x: Tensor
    line: Line
    keep: int
    largest: bool
    encoder: VulkanEncoder

    def encode(self, way: Selection) -> Selected:
        """Record the dispatches."""
        if way.block == 1:
            return self._select(self.keys(), self.line.size, None, 1)
        count = ceil_div(self.line.size, way.block)
        chosen = self._select(self._block_keys(way.block, count), count, None, 1)
        candidates = self._expanded(way.block, chosen)
        return self._select(candidates, self.keep * way.block, chosen, way.block)

    def keys(self) -> Tensor:
        """Record the keys of all elements."""
        line = self.line
        keys = self._words(line.size)
        params = kernels.TopKKeysParams(
            count=line.columns * line.size,
            size=line.size,
            inner=line.inner,
            stride=stride_of(line.size),
        )
        shader = kernels.top_k_keys(
            element=kernel_dtype(self.x.dtype),  # type: ignore[arg-type]
            load=self.encoder.load,
        )
        spec = {"LARGEST": self.largest}
        self.encoder.dispatch_linear(shader, [self.x, keys], params, params.count, spec)
        return keys

    @property
    def _spec(self) -> dict[str, int | float | bool]:
        return {"LARGEST": self.largest, "INNER": self.line.inner > 1}

    def _width(self, block: int) -> int:
        line = self.line
        return 4 if line.inner == 1 and line.size % 4 == 0 and block % 4 == 0 else 1

    def _block_keys(self, block: int, blocks: int) -> Tensor:
        line = self.line
        keys = self._words(blocks)
        count = line.columns * blocks
        params = kernels.TopKBlocksParams(
            count=count,
            size=line.size,
            inner=line.inner,
            block=block,
            blocks=blocks,
            stride=stride_of(blocks),
        )
        shader = kernels.top_k_blocks(
            element=kernel_dtype(self.x.dtype),  # type: ignore[arg-type]
            width=4 if self._width(block) == 4 else 1,
            load=self.encoder.load,
        )
        spec = {**self._spec, **column_local(count, self.encoder)}
        self.encoder.dispatch_linear(shader, [self.x, keys], params, count, spec)
        return keys

    def _expanded(self, block: int, chosen: Selected) -> Tensor:
        line, width = self.line, self._width(block)
        length = self.keep * block
        keys = self._words(length)
        count = line.columns * length
        params = kernels.TopKExpandParams(
            count=count,
            size=line.size,
            inner=line.inner,
            block=block,
            keep=self.keep,
            chosen_stride=chosen.stride,
            stride=stride_of(length),
        )
        shader = kernels.top_k_expand(
            element=kernel_dtype(self.x.dtype),  # type: ignore[arg-type]
            width=4 if width == 4 else 1,
            load=self.encoder.load,
        )
        tensors = [self.x, chosen.indices, keys]
        self.encoder.dispatch_linear(
            shader, tensors, params, count // width, self._spec, reach=count
        )
        return keys

    def _select(self, keys: Tensor, length: int, chosen: Selected | None, block: int) -> Selected:
        encoder, rows = self.encoder, self.line.columns
        found = Selected(self._words(self.keep), self._words(self.keep), stride_of(self.keep))
        narrow = WIDE if is_gpu(encoder.info) else cpu_lanes(encoder.info)
        lanes = narrow if select_rounds(length, narrow) <= MAX_LOOP_ROUNDS else WIDE
        params = kernels.TopKSelectParams(
            rows=rows,
            extent=length,
            stride=stride_of(length),
            keep=self.keep,
            next_stride=found.stride,
            block=block,
            chosen_stride=chosen.stride if chosen else 0,
        )
        shader = kernels.top_k_select(load=encoder.load)
        encoder.dispatch(
            shader,
            [keys, chosen.indices if chosen else keys, found.keys, found.indices],
            params,
            linear_groups(rows, 1, encoder.info.limits),
            {
                "local_size_x": lanes,
                "BLOCKS": chosen is not None,
                **index_spec(shader, length),
            },
        )
        return found

    def _words(self, length: int) -> Tensor:
        return self.encoder.scratch(self.line.columns * stride_of(length), DType.INT32)
