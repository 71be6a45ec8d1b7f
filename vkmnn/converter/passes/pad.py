"""Pads folded into the convolution or pooling after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.transpose import permutation
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import Activation, ConvolutionAttrs, PoolingAttrs, UnaryAttrs

Pads = tuple[int, ...]

_NON_NEGATIVE = frozenset({"RELU", "SIGMOID", "HARD_SIGMOID", "SOFTPLUS", "ABS", "SQUARE", "EXP"})
_KEEPS_SIGN = frozenset({"Reshape", "Transpose", "Interp", "Pooling", "Identity", "Slice"})
_MAX_STEPS = 8


@dataclass(frozen=True, slots=True)
class _Match:
    pad: Op
    moved: Op | None
    attrs: ConvolutionAttrs | PoolingAttrs


class FoldPad(PatternPass[_Match]):
    """Folds a constant Pad of spatial axes into the convolution or pooling after it.

    The pad may be asymmetric. Convolutions pad with zeros. MaxPool may pad with -inf, or with zeros
    if no element is negative; AveragePool with zeros that count.
    """

    name = "fold_pad"
    roots = frozenset({"Convolution", "Pooling"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        moved = index.producer_of_type(op.inputs[0], "Transpose")
        pad = index.producer_of_type((moved or op).inputs[0], "Pad")
        if pad is None or pad.attrs.mode != "constant":
            return NoMatch("no preceding constant pad")
        attrs = op.attrs
        assert isinstance(attrs, ConvolutionAttrs | PoolingAttrs)
        perm = permutation(moved, index) if moved else tuple(range(len(attrs.kernel) + 2))
        if moved and not (index.read_once(op.inputs[0]) and index.read_once(moved.inputs[0])):
            return NoMatch("another op reads the padded or transposed tensor")
        found = _spatial_pads(pad, len(attrs.kernel), perm, index)
        if isinstance(found, NoMatch):
            return found
        own = attrs.pads or (0,) * len(found)
        if attrs.auto_pad not in ("NOTSET", "VALID"):
            return NoMatch("its own pads follow from the padded size")
        if attrs.auto_pad == "VALID":
            own = (0,) * len(found)
        value = _value(pad, index)
        if value is None:
            return NoMatch("the pad value is unknown")
        both = tuple(a + b for a, b in zip(own, found, strict=True))
        padded = replace(attrs, pads=both, auto_pad="NOTSET")
        if isinstance(padded, ConvolutionAttrs):
            return (
                _Match(pad, moved, padded) if value == 0 else NoMatch("it does not pad with zeros")
            )
        pooled = self._pooling(op, pad, padded, own, value, index)
        return pooled if isinstance(pooled, NoMatch) else _Match(pad, moved, pooled)

    def _pooling(
        self, op: Op, pad: Op, attrs: PoolingAttrs, own: Pads, value: float, index: GraphIndex
    ) -> PoolingAttrs | NoMatch:
        axes = len(attrs.kernel)
        if attrs.is_global or attrs.ceil_mode or attrs.ending:
            return NoMatch("its windows depend on how far the pads reach")
        if any(width >= attrs.kernel[i % axes] for i, width in enumerate(attrs.pads)):
            return NoMatch("a window may have only pads")
        if any(step != 1 for step in attrs.dilations):
            return NoMatch("a dilated window may have only pads")
        if attrs.kind == "AVERAGE":
            if value != 0 or (any(own) and not attrs.count_include_pad):
                return NoMatch("some pads count and others do not")
            return replace(attrs, count_include_pad=True)
        if attrs.kind == "LP":
            return attrs if value == 0 else NoMatch("it does not pad with zeros")
        if any(op.outputs[1:]):
            return NoMatch("indices of maxima count the pads")
        lowest = value <= float(np.finfo(np.float32).min)
        if lowest or (value == 0 and _is_not_negative(pad.inputs[0], index)):
            return attrs
        return NoMatch("the pad value may be the maximum")

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        source, moved, x = merged_source((match.pad, op)), match.moved, match.pad.inputs[0]
        before: list[Op] = []
        if moved is not None:
            name = index.unique_name(f"{moved.outputs[0]}_unpadded")
            info = index.info(x)
            if info is not None and info.shape is not None:
                perm = permutation(moved, index) or ()
                index.add_info(name, info.dtype, tuple(info.shape[axis] for axis in perm))
            at = index.unique_name(f"{moved.name}_unpadded")
            before = [Op("Transpose", at, [x], [name], moved.attrs, moved.source)]
            x = name
        inputs = [x, *op.inputs[1:]]
        done = Op(op.type, op.name, inputs, list(op.outputs), match.attrs, source)
        index.replace(op, *before, done)


def _spatial_pads(
    pad: Op, axes: int, perm: Sequence[int] | None, index: GraphIndex
) -> Pads | NoMatch:
    """Return the padding of the spatial axes, permuted by `perm`: begins, then ends."""
    widths = index.ints(pad.inputs[1])
    named = index.ints(pad.inputs[3]) if any(pad.inputs[3:4]) else tuple(range(axes + 2))
    if widths is None or named is None:
        return NoMatch("the pads are not constant")
    if len(widths) != 2 * len(named) or not axes or perm is None or len(perm) != axes + 2:
        return NoMatch("it pads other axes")
    if not all(-axes - 2 <= axis < axes + 2 for axis in named):
        return NoMatch("it pads axes that do not exist")
    begins, ends = [0] * (axes + 2), [0] * (axes + 2)
    for place, axis in enumerate(named):
        begins[axis], ends[axis] = widths[place], widths[place + len(named)]
    begins, ends = ([many[axis] for axis in perm] for many in (begins, ends))
    if any((*begins[:2], *ends[:2])):
        return NoMatch("it pads images or channels")
    if min(widths) < 0:
        return NoMatch("it crops")
    return (*begins[2:], *ends[2:])


def _value(pad: Op, index: GraphIndex) -> float | None:
    return index.scalar(pad.inputs[2]) if any(pad.inputs[2:3]) else 0.0


def _is_not_negative(name: str, index: GraphIndex) -> bool:
    """Return whether a tensor has no negative elements, as far as the ops before it show."""
    for _ in range(_MAX_STEPS):
        op = index.producer(name)
        if op is None:
            return False
        if _bounds(op.attrs):
            return True
        if op.type not in _KEEPS_SIGN:
            return False
        if op.type == "Interp" and (op.attrs.mode == "cubic" or op.attrs.extrapolation_value < 0):
            return False
        name = op.inputs[0]
    return False


def _bounds(attrs: Any) -> bool:
    done = attrs if isinstance(attrs, UnaryAttrs) else getattr(attrs, "activation", None)
    late = getattr(attrs, "residual", "ADD_BEFORE") != "ADD_BEFORE"
    if late or not isinstance(done, UnaryAttrs | Activation):
        return False
    # Clip returns its maximum if that is below its minimum.
    clips = done.kind == "CLIP" and min(done.alpha, done.beta) >= 0
    return done.kind in _NON_NEGATIVE or clips
