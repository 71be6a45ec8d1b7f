"""Preparation of images before the first convolution, fused into one op."""

from __future__ import annotations

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.affine import Channels, Vector, channel_vector, read_affine
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.reshape import RESHAPES
from vkmnn.converter.passes.transpose import permutation
from vkmnn.ir.dtype import DType
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import CastAttrs, ImageToTensorAttrs

_BLOCKED = frozenset({"Convolution", "Deconvolution", "Pooling"})
"""Ops that read channel-blocked tensors."""

_MAX_SCALED = 4
"""Maximum channels that the kernel scales and shifts: one block."""

_SMALL = frozenset({DType.BOOL, DType.UINT8, DType.INT8})
_MEDIUM = _SMALL | {DType.UINT16, DType.INT16}
_EXACT = {
    DType.FLOAT16: _SMALL,
    DType.FLOAT32: _MEDIUM | {DType.INT32, DType.INT64, DType.FLOAT16},
    DType.INT32: _MEDIUM,
    DType.INT64: _MEDIUM | {DType.INT32},
}
"""Source types of casts that the kernel can do, by target: exact, or rounded as by Cast."""


@dataclass(slots=True)
class _Match:
    """The ops matched so far, from the last to the first: y = x · scale + shift, axes permuted.

    Attributes:
        value: the input of the ops so far.
        dtype: the type of the result.
        channels: the channels of the result.
        rank: the axes of the result.
        ops: the ops, the last one first.
        scale: a factor for each channel.
        shift: an addend for each channel.
        moved: whether the input has its channels last.
        single: whether the input lacks the batch axis.
        cast: whether the input is cast.
    """

    value: str
    dtype: DType
    channels: int
    rank: int
    ops: list[Op]
    scale: Vector | None = None
    shift: Vector | None = None
    moved: bool = False
    single: bool = False
    cast: bool = False

    @property
    def attrs(self) -> ImageToTensorAttrs:
        scale = () if self.scale is None else tuple(map(float, self.scale))
        shift = () if self.shift is None else tuple(map(float, self.shift))
        return ImageToTensorAttrs(self.moved, self.single, self.dtype, scale, shift)


class FuseImageInput(PatternPass[_Match]):
    """Fuses Transpose, Cast and scaling by constants before ops that read blocks of channels.

    They may be in any order: they convert images of bytes, channels last, to float planes,
    normalised by channel. A Transpose is fused anywhere in the network, as the conversion to blocks
    does it for free; the others only at its inputs, as other tensors are blocked already.
    """

    name = "fuse_image_input"
    roots = frozenset({"Transpose", "Cast", "BinaryOp", "Scale", *RESHAPES})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        result = op.outputs[0]
        info = index.info(result)
        if info is None or info.shape is None or len(info.shape) < 3:
            return NoMatch("the shape is unknown")
        channels = info.shape[1]
        if not isinstance(channels, int) or info.dtype not in (DType.FLOAT32, DType.FLOAT16):
            return NoMatch("not floats of a known number of channels")
        if not _read_blocked(result, index):
            return NoMatch("an op reads it in plain order")
        match = _Match(result, info.dtype, channels, len(info.shape), [])
        step: Op | None = op
        while step is not None and _take(step, match, index):
            match.ops.append(step)
            step = index.producer(match.value) if index.read_once(match.value) else None
        if not match.ops:
            return NoMatch("no op that prepares images")
        if not match.moved and not _is_fed(match.value, index):
            return NoMatch("no axis moves, and it is not an input")
        if not (match.moved or match.cast or match.scale is not None or match.shift is not None):
            return NoMatch("only a reshape")
        return match

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        source = merged_source(match.ops[::-1])
        done = Op("ImageToTensor", op.name, [match.value], list(op.outputs), match.attrs, source)
        index.replace(op, done)


def _read_blocked(name: str, index: GraphIndex) -> bool:
    """Return whether all readers of a tensor, or of its Resize, read blocks of channels."""
    readers = index.readers(name)
    return (
        bool(readers)
        and not index.is_output(name)
        and all(
            op.inputs.index(name) == 0
            and (
                op.type in _BLOCKED or (op.type == "Interp" and _read_blocked(op.outputs[0], index))
            )
            for op in readers
        )
    )


def _is_fed(name: str, index: GraphIndex) -> bool:
    """Return whether a tensor is an input of the network, or a reshape of one."""
    op = index.producer(name)
    while op is not None and op.type in RESHAPES:
        name = op.inputs[0]
        op = index.producer(name)
    return op is None and index.constant(name) is None


def _take(op: Op, match: _Match, index: GraphIndex) -> bool:
    """Add an op to the match; return False and change nothing if it does not fit."""
    if op.type == "Transpose":
        return _take_order(op, match, index)
    if op.type == "Cast":
        return _take_cast(op, match, index)
    if op.type in RESHAPES:
        return _take_axis(op, match, index)
    return op.type in ("BinaryOp", "Scale") and _take_affine(op, match, index)


def _take_order(op: Op, match: _Match, index: GraphIndex) -> bool:
    """Add a transpose from channels last."""
    perm = permutation(op, index)
    first = 0 if match.single else 1
    rank = match.rank - match.single
    if match.moved or perm != (*range(first), rank - 1, *range(first, rank - 1)):
        return False
    match.moved, match.value = True, op.inputs[0]
    return True


def _take_cast(op: Op, match: _Match, index: GraphIndex) -> bool:
    """Add a cast that the kernel can do."""
    info = index.info(op.inputs[0])
    assert isinstance(op.attrs, CastAttrs)
    if info is None or info.dtype not in _EXACT.get(op.attrs.to, ()):
        return False
    match.cast, match.value = True, op.inputs[0]
    return True


def _take_axis(op: Op, match: _Match, index: GraphIndex) -> bool:
    """Add a reshape that gives a single image its batch axis."""
    before, after = index.shape(op.inputs[0]), index.shape(op.outputs[0])
    if match.single or before is None or after is None or None in before:
        return False
    if after != (1, *before):
        return False
    match.single, match.value = True, op.inputs[0]
    return True


def _take_affine(op: Op, match: _Match, index: GraphIndex) -> bool:
    """Add a factor or a shift for each channel of floats."""
    if match.channels > _MAX_SCALED or match.cast:
        return False
    axis = -1 if match.moved else 1 - match.rank
    rank = match.rank - match.single
    channels = Channels(axis, match.channels, rank)
    if op.type == "Scale" and (match.moved or match.single):
        return False
    found = read_affine(op, index, lambda array: channel_vector(array, channels), rank)
    if isinstance(found, NoMatch) or found.activation.kind != "NONE":
        return False
    if index.shape(found.value) != index.shape(op.outputs[0]):
        return False
    # The ops matched before come later in the network: they scale the result of this one.
    later = np.ones(match.channels) if match.scale is None else match.scale
    shift = found.shift
    if shift is not None:
        match.shift = shift * later + (0.0 if match.shift is None else match.shift)
    if found.scale is not None:
        match.scale = found.scale * later
    match.value = found.value
    return True
