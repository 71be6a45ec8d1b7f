"""Broadcasting as strides: addresses of operands of different shapes in element-wise kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

from vkmnn.base.records import dataclass
from vkmnn.core.execution import Layouts, Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.storage import pack_nc4hw4

MAX_AXES = 6


@dataclass(frozen=True, slots=True)
class Broadcast:
    """How an elementwise kernel addresses its operands.

    An invocation computes one element of `width` (4 or 1) words; there are `count` of them,
    numbered over `sizes` (outermost axis first). `strides[k]` are operand k's, in elements of
    `width` words, or in single words if `splats[k]`: then one word serves all lanes.
    """

    width: Literal[1, 4]
    count: int
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    splats: tuple[bool, ...]

    @property
    def fits(self) -> bool:
        """True when the kernels have enough axes."""
        return len(self.sizes) <= MAX_AXES

    def padded_sizes(self) -> tuple[int, ...]:
        """Return the sizes of axes 1 to MAX_AXES - 1 in the form of kernels."""
        padded = (*self.sizes, *[1] * (MAX_AXES - len(self.sizes)))
        return padded[1:]

    def padded_strides(self, operand: int) -> tuple[int, ...]:
        """Return an operand's strides for all MAX_AXES axes."""
        strides = self.strides[operand]
        return (*strides, *[0] * (MAX_AXES - len(strides)))


def plan_plain(shapes: Sequence[Sequence[int]], output: Sequence[int]) -> Broadcast:
    """Plan operands of the given shapes, all in plain order, broadcast to `output`."""
    sizes, strides = _merge(_aligned(shapes, len(output)), output)
    inner = sizes[-1]
    flat = len(sizes) == 1 and all(s[-1] in (0, 1) for s in strides)
    if inner % 4 and not flat:
        return Broadcast(1, prod(sizes), sizes, strides, (False,) * len(shapes))
    # A single axis may be rounded up: buffers are padded to whole vec4s.
    sizes = (*sizes[:-1], ceil_div(inner, 4))
    splats = tuple(s[-1] == 0 for s in strides)
    strides = tuple(
        s if splat else (*(step // 4 for step in s[:-1]), 1)
        for s, splat in zip(strides, splats, strict=True)
    )
    return Broadcast(4, prod(sizes), sizes, strides, splats)


def plan_strided(strides: Sequence[Sequence[int]], output: Sequence[int]) -> Broadcast:
    """Plan operands in plain order with given strides, one entry per axis."""
    sizes: list[int] = []
    steps: list[tuple[int, ...]] = []  # of all operands, by axis
    for size, *here in zip(output, *strides, strict=True):
        if size == 1:
            continue
        if sizes and steps[-1] == tuple(step * size for step in here):
            sizes[-1] *= size
            steps[-1] = tuple(here)
        else:
            sizes.append(size)
            steps.append(tuple(here))
    if not sizes:
        sizes, steps = [1], [(0,) * len(strides)]
    inner, last = sizes[-1], steps[-1]
    whole = all(
        step == 0 or all(one[k] % 4 == 0 for one in steps[:-1]) for k, step in enumerate(last)
    )
    by_operand = tuple(zip(*steps, strict=True))
    if inner % 4 or not whole or not set(last) <= {0, 1}:
        plain = (False,) * len(strides)
        return Broadcast(1, prod(sizes), tuple(sizes), by_operand, plain)
    sizes[-1] //= 4
    splats = tuple(step == 0 for step in last)
    packed = tuple(
        one if splat else (*(step // 4 for step in one[:-1]), 1)
        for one, splat in zip(by_operand, splats, strict=True)
    )
    return Broadcast(4, prod(sizes), tuple(sizes), packed, splats)


def plan_blocked(shapes: Sequence[Sequence[int]], output: Sequence[int]) -> Broadcast:
    """Plan operands in NC4HW4 order, each of the output's rank, broadcast to `output`."""
    aligned = _aligned(shapes, len(output))
    splats = tuple(shape[1] == 1 and output[1] > 1 for shape in aligned)
    blocks = [_blocks(shape) for shape in aligned]
    sizes, strides = _merge(blocks, _blocks(output))
    strides = tuple(
        tuple(step * 4 for step in s) if splat else s
        for s, splat in zip(strides, splats, strict=True)
    )
    return Broadcast(4, prod(sizes), sizes, strides, splats)


def _blocks(shape: Sequence[int]) -> tuple[int, ...]:
    return (ceil_div(shape[1], 4), shape[0], *shape[2:])


def _aligned(shapes: Sequence[Sequence[int]], rank: int) -> list[tuple[int, ...]]:
    return [(*[1] * (rank - len(shape)), *shape) for shape in shapes]


def _merge(
    shapes: Sequence[Sequence[int]], output: Sequence[int]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Drop axes of size one and merge neighbours that every operand treats alike."""
    sizes: list[int] = []
    present: list[tuple[bool, ...]] = []
    for axis, size in enumerate(output):
        if size == 1:
            continue
        here = tuple(shape[axis] != 1 for shape in shapes)
        if present and present[-1] == here:
            sizes[-1] *= size
        else:
            sizes.append(size)
            present.append(here)
    if not sizes:
        sizes, present = [1], [(True,) * len(shapes)]
    strides = []
    for operand in range(len(shapes)):
        step = 1
        steps = []
        for size, here in zip(reversed(sizes), reversed(present), strict=True):
            steps.append(step if here[operand] else 0)
            step *= size if here[operand] else 1
        strides.append(tuple(reversed(steps)))
    return tuple(sizes), tuple(strides)


def reject_many_axes(inputs: Sequence[Tensor], output: Tensor) -> None:
    """Raise Rejection if operands are broadcast along more alternating axes than kernels have."""
    plan = plan_plain([tensor.shape for tensor in inputs], output.shape)
    if not plan.fits:
        raise Rejection(
            f"broadcasting alternates over {len(plan.sizes)} axes, at most {MAX_AXES} fit"
        )


def elementwise_layouts(
    inputs: Sequence[Tensor], output: Tensor, keeps_zero: bool, *, blocked: bool = False
) -> Layouts:
    """Return the orders in which an element-wise op works: all tensors in NC4HW4, or none.

    They are in NC4HW4 if the largest non-constant operand is in that order already, all of them
    have the output's rank or a single element, and the zero tail lanes of the last block stay zero.

    Args:
        inputs: the operands.
        output: the result.
        keeps_zero: True when zeros in all operands give zero.
        blocked: use NC4HW4 wherever possible.
    """
    largest = max(
        (tensor for tensor in inputs if tensor.value is None),
        key=lambda tensor: prod(tensor.shape),
        default=output,
    )
    wants = blocked or largest.layout is Layout.NC4HW4
    if not (wants and may_be_blocked(inputs, output, keeps_zero)):
        return [Layout.NCHW] * len(inputs), [Layout.NCHW]
    rank = len(output.shape)
    # One number of a lower rank is the same in either order.
    wanted = [
        Layout.NCHW if t.value is None and len(t.shape) < rank else Layout.NC4HW4 for t in inputs
    ]
    return wanted, [Layout.NC4HW4]


def may_be_blocked(inputs: Sequence[Tensor], output: Tensor, keeps_zero: bool) -> bool:
    """Return whether an element-wise op can use NC4HW4; arguments of `elementwise_layouts`."""
    variable = [tensor for tensor in inputs if tensor.value is None]
    rank = len(output.shape)
    if rank < 3 or not variable:
        return False
    if any(len(t.shape) != rank and prod(t.shape) != 1 for t in variable):
        return False
    if output.shape[1] % 4 == 0:
        return True
    same_channels = all(_channels(t.shape, rank) == output.shape[1] for t in inputs)
    return keeps_zero and same_channels


def _channels(shape: Sequence[int], rank: int) -> int:
    return shape[1 - rank] if len(shape) >= rank - 1 else 1


def blocked_operand(tensor: Tensor, rank: int, encoder: VulkanEncoder) -> Tensor:
    """Return an operand in NC4HW4: constants, which arrive in plain order, are packed."""
    if tensor.value is None:
        return tensor
    shape = (*[1] * (rank - len(tensor.shape)), *tensor.shape)
    return encoder.constant(
        tensor, f"nc4hw4:{rank}", lambda array: pack_nc4hw4(array.reshape(shape))
    )


def plan_operands(
    inputs: Sequence[Tensor], output: Tensor, encoder: VulkanEncoder
) -> tuple[Broadcast, list[Tensor]]:
    """Return the plan for operands in the output's layout, and the tensors to bind."""
    shapes = [tensor.shape for tensor in inputs]
    if output.layout is Layout.NCHW:
        return plan_plain(shapes, output.shape), list(inputs)
    rank = len(output.shape)
    return plan_blocked(shapes, output.shape), [blocked_operand(t, rank, encoder) for t in inputs]
