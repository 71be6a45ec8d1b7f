"""Scaled dot-product attention that a model spells out."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Dim, Op
from vkmnn.ir.ops import (
    AttentionAttrs,
    MatMulAttrs,
    OpAttrs,
    SoftmaxAttrs,
    UnaryAttrs,
)

_REPEATS = ("Reshape", "Expand", "Unsqueeze", "Transpose", "Identity")
_JOINS = ("Concat", "JoinPast")

VERY_NEGATIVE = -1e30
"""Below this a number swallows any score that is added to it in fp32: adding it is replacing."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """An additive mask: a tensor, or `fill` where a condition holds (or does not)."""

    name: str = ""
    fill: str = ""
    where: bool = True


@dataclass(frozen=True, slots=True)
class _Match:
    query: str
    keys: str
    value: str
    mask: _Mask | None
    scale: float
    ops: tuple[Op, ...]
    guarded: bool = False
    softcap: float = 0.0


class FuseAttention(PatternPass[_Match]):
    """MatMul(Softmax(MatMul(q, kᵀ) · scale + mask), v): Attention.

    Before the mask, scores may be limited: cap · Tanh(scores / cap).

    The mask may be added, or selected by a Select with a very negative number. The protection
    against completely masked rows (0 where the Softmax is NaN) is dropped if no such row can occur;
    if keys and values are joined with a cache, it becomes part of Attention.
    """

    name = "fuse_attention"
    roots = frozenset({"MatMul"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        if op.attrs != MatMulAttrs() or len(op.inputs) != 2:
            return NoMatch("not a plain product")
        probabilities, value = op.inputs
        guard, protected = None, _guarded(index.producer_of_type(probabilities, "Select"), index)
        if protected is not None:
            guard, probabilities = index.producer(probabilities), protected
        softmax = index.producer_of_type(probabilities, "Softmax")
        if softmax is None:
            return NoMatch("no preceding Softmax")
        if not _is_over_last_axis(softmax, index):
            return NoMatch("the Softmax is not over the last axis")
        masking, scores, mask = _masked(softmax.inputs[0], index)
        cap, limiting, scores = _capped(scores, index)
        product = index.producer_of_type(scores, "MatMul")
        if product is None:
            return NoMatch("no product of queries and keys")
        inside = [
            one for one in (product, *limiting, masking, softmax, guard, op) if one is not None
        ]
        if guard is not None:
            inside.append(index.producer(guard.inputs[0]) or guard)
        if not all(index.read_only_by(one.outputs[0], inside) for one in inside if one is not op):
            return NoMatch("scores or probabilities are used elsewhere")
        guarded = guard is not None and not _is_finite(mask, index)
        if guarded and not _grows(value, index):
            return NoMatch("a row may be masked completely, and is then protected")
        if limiting and any(product.inputs[2:]):
            return NoMatch("the scores are limited with a bias")
        found = self._finish(op, product, value, scores, masking, mask, inside, index)
        if not isinstance(found, _Match):
            return found
        return replace(found, guarded=guarded, scale=found.scale * (cap or 1.0), softcap=cap)

    def _finish(
        self,
        op: Op,
        product: Op[MatMulAttrs],
        value: str,
        scores: str,
        masking: Op | None,
        mask: _Mask | None,
        inside: list[Op],
        index: GraphIndex,
    ) -> _Match | NoMatch:
        attrs = product.attrs
        if attrs.transpose_a or attrs.activation.kind != "NONE" or any(product.inputs[3:]):
            return NoMatch("the scores are not a plain product")
        if any(product.inputs[2:]):
            if mask is not None:
                return NoMatch("the scores have a bias and a mask")
            mask = _Mask(product.inputs[2])  # one value per key, which the product took in as bias
        if not attrs.transpose_b:
            return NoMatch("the keys are not transposed")
        query, keys = product.inputs[:2]
        if not index.is_float(query) and not index.is_float(op.outputs[0]):
            return NoMatch("not known to be of a floating-point type")
        q, k, v = index.shape(query), index.shape(keys), index.shape(value)
        if q is None or k is None or v is None or not len(q) == len(k) == len(v) >= 2:
            return NoMatch("the ranks differ, or are not known")
        if not _same(q[:-2], k[:-2]) or not _same(q[:-2], v[:-2]):
            return NoMatch("the batches differ, or are not known well enough")
        if masking is not None and not _same(index.shape(masking.outputs[0]), (*q[:-1], k[-2])):
            return NoMatch("the mask may broadcast the scores")
        return _Match(query, keys, value, mask, attrs.alpha, tuple(inside))

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        new: list[Op] = []
        inputs = [match.query, match.keys, match.value]
        if match.mask is not None:
            inputs.append(self._mask(op, match.mask, new, index))
        attrs, source = (
            AttentionAttrs(match.scale, zero_fully_masked=match.guarded, softcap=match.softcap),
            merged_source(match.ops),
        )
        new.append(Op("Attention", op.name, inputs, list(op.outputs), attrs, source))
        index.replace(op, *new)

    def _mask(self, op: Op, mask: _Mask, new: list[Op], index: GraphIndex) -> str:
        """Return the additive mask, from a Select if the model selects instead of adding."""
        if not mask.fill:
            return mask.name
        fill = index.constants[mask.fill].reshape(())
        zero = index.add_constant(f"{op.name}_zero", np.zeros_like(fill))
        scalar = index.add_constant(f"{op.name}_fill", fill)
        name = index.unique_name(f"{mask.name}_mask")
        inputs = [mask.name, *((scalar, zero) if mask.where else (zero, scalar))]
        made = index.unique_name(f"{op.name}_mask")
        new.append(Op("Select", made, inputs, [name], OpAttrs(), op.source))
        condition, filler = index.info(mask.name), index.info(mask.fill)
        if condition is not None and filler is not None:
            index.add_info(name, filler.dtype, condition.shape)
        return name


def _same(first: tuple[Dim, ...] | None, second: tuple[Dim, ...]) -> bool:
    return first == second and None not in second


def _guarded(op: Op | None, index: GraphIndex) -> str | None:
    """Return y if the op computes: 0 where y is NaN, else y."""
    if op is None:
        return None
    condition, zero, value = op.inputs
    test = index.producer_of_type(condition, "UnaryOp")
    if test is None or not isinstance(test.attrs, UnaryAttrs) or test.attrs.kind != "ISNAN":
        return None
    return value if test.inputs[0] == value and index.scalar(zero) == 0.0 else None


def _capped(name: str, index: GraphIndex) -> tuple[float, tuple[Op, ...], str]:
    """Return c if scores are c · Tanh(x), the ops that limit them, and x; else 0."""
    outer = index.producer_of_type(name, "BinaryOp")
    for limited, other in permutations(binary_parts(outer, "MUL") or (), 2):
        cap, tanh = index.scalar(other), index.producer_of_type(limited, "UnaryOp")
        if cap is None or cap <= 0 or tanh is None or outer is None:
            continue
        if isinstance(tanh.attrs, UnaryAttrs) and tanh.attrs.kind == "TANH":
            return cap, (outer, tanh), tanh.inputs[0]
    return 0.0, (), name


def _is_over_last_axis(op: Op[SoftmaxAttrs], index: GraphIndex) -> bool:
    attrs, rank = op.attrs, index.rank(op.outputs[0])
    last = attrs.axis == -1 or (rank is not None and attrs.axis == rank - 1)
    return last and not attrs.log


def _is_scores(name: str, index: GraphIndex) -> bool:
    return index.producer_of_type(_capped(name, index)[2], "MatMul") is not None


def _masked(name: str, index: GraphIndex) -> tuple[Op | None, str, _Mask | None]:
    """Return the op that masks the scores, the scores before it, and the mask."""
    op = index.producer_of_type(name, "BinaryOp", "Select")
    parts = binary_parts(op, "ADD")
    if parts is not None:
        first, second = parts
        if not _is_scores(first, index):
            first, second = second, first
        return op, first, _Mask(second)
    if op is not None and op.type == "Select":
        condition, chosen, otherwise = op.inputs
        for scores, fill, where in ((otherwise, chosen, True), (chosen, otherwise, False)):
            number = index.scalar(fill)
            if number is not None and number <= VERY_NEGATIVE:
                return op, scores, _Mask(condition, fill, where)
    return None, name, None


def _grows(name: str, index: GraphIndex) -> bool:
    """True for values that are a cache (an input) joined with new rows; heads may be repeated."""
    op = index.producer_of_type(name, *_REPEATS, *_JOINS)
    while op is not None and op.type not in _JOINS:
        op = index.producer_of_type(op.inputs[0], *_REPEATS, *_JOINS)
    return op is not None and index.is_input(op.inputs[0])


def _is_finite(mask: _Mask | None, index: GraphIndex) -> bool:
    """True when no row of scores can be masked with -inf completely."""
    if mask is None:
        return True
    if mask.fill:
        return bool(np.isfinite(index.constants[mask.fill]).all())
    array = index.constant(mask.name)
    if array is not None:
        return bool(np.isfinite(array).any(axis=-1).all()) if array.ndim else True
    select = index.producer_of_type(mask.name, "Select")
    choices = [index.constant(name) for name in select.inputs[1:]] if select is not None else []
    return bool(choices) and all(
        choice is not None and bool(np.isfinite(choice).all()) for choice in choices
    )
