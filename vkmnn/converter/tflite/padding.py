"""Pads, and blocks of space that become batches."""

from __future__ import annotations

from vkmnn.converter.nodes.composed import mirrored
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tflite.nodes import LiteOp, reads


@reads("PAD", "PADV2")
def pad(op: LiteOp) -> None:
    """Pad by zero, which of quantised values is the zero point, or by the third input."""
    op.need(2)
    by = op.quantization(0)
    if op.type == "PADV2":
        op.need(3)
        value = op.inputs[2]
        if op.rank(2):
            value = op.make("Reshape", value, op.constant([]))
    else:
        zero = int(by.zero[0]) if by is not None else 0
        value = op.constant(zero, NUMPY_TYPES[op.type_of(op.inputs[0])])
    op.pass_on(op.make("Pad", op.inputs[0], _pads(op), value))


def _pads(op: LiteOp) -> str:
    """Return the pads before all axes, then those after them; a row holds both for one axis."""
    pairs = op.integers(1)
    if pairs is not None:
        return op.constant([*pairs[::2], *pairs[1::2]])
    turned = op.make("Transpose", op.long(1), perm=[1, 0])
    return op.make("Reshape", turned, op.constant([-1]))


@reads("MIRROR_PAD")
def mirror_pad(op: LiteOp) -> None:
    """Pad by reflection; if symmetric, by parts of the tensor, backwards, since edges repeat."""
    op.need(2)
    name = op.inputs[0]
    if op.member("MirrorPadMode", "mode") == "REFLECT":
        op.pass_on(op.make("Pad", name, _pads(op), mode="reflect"))
        return
    op.pass_on(mirrored(op, name, op.settled(1, "pads")))


@reads("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
def batches(op: LiteOp) -> None:
    """Blocks of the spatial axes that become batches, and back; padded before, or cropped after."""
    op.need(3)
    block, edges = op.settled(1, "sizes of blocks"), op.settled(2, "pads")
    count = len(block)
    sizes = op.shape(0)
    if sizes is None or None in sizes[1:] or len(sizes) <= count or len(edges) != 2 * count:
        raise op.unreadable("blocks of dynamic size")
    if min(block, default=1) < 1 or min(edges, default=0) < 0:
        raise op.damaged(f"it has blocks of {block} and pads of {edges}")
    inner = [size or 0 for size in sizes[1:]]
    name = op.inputs[0]
    if op.type == "SPACE_TO_BATCH_ND":
        by, rest = op.quantization(0), [0] * (len(sizes) - 1 - count)
        zero = op.constant(int(by.zero[0]) if by else 0, NUMPY_TYPES[op.type_of(name)])
        pads = op.constant([0, *edges[::2], *rest, 0, *edges[1::2], *rest])
        name = op.make("Pad", name, pads, zero) if any(edges) else name
        padded = [inner[n] + edges[2 * n] + edges[2 * n + 1] for n in range(count)]
        if count == 2 and len(sizes) == 4 and _keeps(op):
            op.subgraph.spread[op.outputs[0]] = name, block
        if any(size % one for size, one in zip(padded, block, strict=True)):
            raise op.damaged(f"its blocks of {block} do not divide {padded}")
        split = [
            part for size, one in zip(padded, block, strict=True) for part in (size // one, one)
        ]
        apart = op.make("Reshape", name, op.constant([-1, *split, *inner[count:]]))
        places = [2 + 2 * n for n in range(count)]
        order = [*places, 0, *(1 + 2 * n for n in range(count))]
        order += range(2 * count + 1, 2 * count + len(inner) - count + 1)
        moved = op.make("Transpose", apart, perm=order)
        result = [size // one for size, one in zip(padded, block, strict=True)]
        op.pass_on(op.make("Reshape", moved, op.constant([-1, *result, *inner[count:]])))
        return
    joined = [size * one for size, one in zip(inner, block, strict=False)]
    ends = [joined[n] - edges[2 * n + 1] for n in range(count)]
    dilated = op.subgraph.dilated.get(name)
    if dilated is not None and dilated[1] == block and _keeps(op):
        axes = op.constant([2, 3])
        cut = op.make("Slice", dilated[0], op.constant(edges[::2]), op.constant(ends), axes)
        op.pass_first(cut if any(edges) else dilated[0], 4)
        return
    apart = op.make("Reshape", name, op.constant([*block, -1, *inner]))
    order = [count, *(axis for n in range(count) for axis in (count + 1 + n, n))]
    order += range(2 * count + 1, count + 1 + len(inner))
    moved = op.make("Transpose", apart, perm=order)
    made = op.make("Reshape", moved, op.constant([-1, *joined, *inner[count:]]))
    if any(edges):
        axes = op.constant(list(range(1, count + 1)))
        made = op.make("Slice", made, op.constant(edges[::2]), op.constant(ends), axes)
    op.pass_on(made)


def _keeps(op: LiteOp) -> bool:
    """Return whether the output has the scale of the first input."""
    by, to = op.quantization(0), op.result_quantization()
    return to is None if by is None else by.same_as(to)
