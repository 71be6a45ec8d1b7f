"""Scaling and shifting by constants after a normalisation: into its scale and bias."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.affine import (
    Channels,
    Fit,
    Vector,
    affine_operand,
    channel_vector,
    read_affine,
)
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Array, Op
from vkmnn.ir.ops import BinaryAttrs, GroupNormAttrs, LayerNormAttrs, UnaryAttrs


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op
    attrs: LayerNormAttrs | GroupNormAttrs
    scale: Vector | None
    bias: Vector | None


def _fit_to(shape: tuple[int, ...], rank: int) -> Fit:
    """Return a function that broadcasts constants to the last axes of a tensor of this rank."""

    def fit(array: Array) -> Vector | None:
        if array.dtype.kind != "f" or array.ndim > rank:
            return None
        leading, last = array.shape[: -len(shape)], array.shape[-len(shape) :]
        if any(dim != 1 for dim in leading):
            return None
        try:
            return np.broadcast_to(array.reshape(last), shape).astype(np.float64)
        except ValueError:
            return None

    return fit


class FoldNormAffine(PatternPass[_Match]):
    """ADD, SUB, MUL, DIV by a constant, or Scale, after LayerNorm or GroupNorm.

    The constant has to fit the normalised axes (LayerNorm) or the channels (GroupNorm).
    """

    name = "fold_norm_affine"
    roots = frozenset({"BinaryOp", "Scale"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        value = affine_operand(op, index)
        if isinstance(value, NoMatch):
            return value
        producer = index.producer_of_type(value, "LayerNorm", "GroupNorm")
        if producer is None:
            return NoMatch("no preceding normalisation")
        if not index.read_once(value) or any(producer.outputs[1:]):
            return NoMatch("the preceding value is used elsewhere")
        if _is_rounded(op, index):
            return NoMatch("its result is rounded by a separate division")
        attrs, shape = producer.attrs, index.shape(producer.inputs[0])
        fit = _fit(attrs, index, producer.inputs[0])
        if shape is None or fit is None:
            return NoMatch("the shape is not known")
        affine = read_affine(op, index, fit, len(shape))
        if isinstance(affine, NoMatch):
            return affine
        if isinstance(attrs, GroupNormAttrs):
            if attrs.activation.kind != "NONE":
                return NoMatch("there is an activation in between")
            attrs = replace(attrs, activation=affine.activation)
        elif affine.activation.kind != "NONE":
            return NoMatch("LayerNorm has no activation")
        given = [_constant(producer, place, index) for place in (1, 2)]
        if any(isinstance(array, NoMatch) for array in given):
            return NoMatch("scale and bias are not constant")
        scale, bias = (array for array in given if not isinstance(array, NoMatch))
        if not _fit_together(scale, bias, affine.scale, affine.shift):
            return NoMatch("its scale and bias have other sizes")
        scale = _product(scale, affine.scale)
        bias = None if bias is None else _product(bias, affine.scale)
        if affine.shift is not None:
            bias = affine.shift if bias is None else bias + affine.shift
        return _Match(producer, attrs, scale, bias)

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        producer = match.producer
        inputs = [producer.inputs[0]]
        dtype = next(
            array.dtype
            for name in (*producer.inputs[1:], *op.inputs)
            if (array := index.constant(name)) is not None
        )
        for label, array in (("scale", match.scale), ("bias", match.bias)):
            name = ""
            if array is not None:
                name = index.add_constant(f"{producer.name}_{label}", array.astype(dtype))
            inputs.append(name)
        while not inputs[-1]:
            inputs.pop()
        outputs, source = list(op.outputs), merged_source((producer, op))
        index.replace(op, Op(producer.type, producer.name, inputs, outputs, match.attrs, source))


@dataclass(frozen=True, slots=True)
class _Residual:
    norm: Op[LayerNormAttrs]
    other: str


class FuseNormResidual(PatternPass[_Residual]):
    """ADD after LayerNorm, of a tensor of the same shape: it becomes the bias.

    Residuals around a normalisation, as in Gemma 2: x + norm(attention(x)).
    """

    name = "fuse_norm_residual"
    roots = frozenset({"BinaryOp"})

    def match(self, op: Op[BinaryAttrs], index: GraphIndex) -> _Residual | NoMatch:
        if op.attrs.kind != "ADD" or op.attrs.activation.kind != "NONE":
            return NoMatch("not an ADD alone")
        for name, other in (op.inputs, op.inputs[::-1]):
            norm = index.producer_of_type(name, "LayerNorm")
            if norm is None or not index.read_once(name) or any(norm.outputs[1:]):
                continue
            if any(norm.inputs[2:]) or norm.attrs.ending or norm.attrs.of_input != 1.0:
                continue
            alike = index.is_float(other) and index.dtype(name) is index.dtype(other)
            if alike and index.same_shape(name, other):
                return _Residual(norm, other)
        return NoMatch("no normalisation without a bias before, or the shapes may differ")

    def rewrite(self, op: Op[BinaryAttrs], match: _Residual, index: GraphIndex) -> None:
        norm = match.norm
        inputs = [*[*norm.inputs, ""][:2], match.other]
        source = merged_source((norm, op))
        index.replace(op, Op("LayerNorm", norm.name, inputs, list(op.outputs), norm.attrs, source))


def _is_rounded(op: Op, index: GraphIndex) -> bool:
    """True for a division by a scale that is then quantised."""
    if binary_parts(op, "DIV") is None:
        return False
    readers = index.readers(op.outputs[0])
    return any(isinstance(one.attrs, UnaryAttrs) and one.attrs.kind == "ROUND" for one in readers)


def _fit(attrs: LayerNormAttrs | GroupNormAttrs, index: GraphIndex, value: str) -> Fit | None:
    shape = index.shape(value)
    if shape is None:
        return None
    rank = len(shape)
    if isinstance(attrs, GroupNormAttrs):
        size = shape[1] if rank > 1 else None
        if not isinstance(size, int):
            return None
        channels = Channels(1 - rank, size, rank)
        return lambda array: channel_vector(array, channels)
    sizes = tuple(dim for dim in shape[attrs.axis :] if isinstance(dim, int))
    if len(sizes) != len(shape[attrs.axis :]):
        return None
    return _fit_to(sizes, rank)


def _constant(op: Op, place: int, index: GraphIndex) -> Vector | NoMatch | None:
    if place >= len(op.inputs) or not op.inputs[place]:
        return None
    array = index.constant(op.inputs[place])
    return NoMatch("not constant") if array is None else array.astype(np.float64)


def _fit_together(*arrays: Vector | None) -> bool:
    try:
        np.broadcast_shapes(*(array.shape for array in arrays if array is not None))
    except ValueError:
        return False
    return True


def _product(first: Vector | None, second: Vector | None) -> Vector | None:
    if first is None or second is None:
        return second if first is None else first
    return first * second
