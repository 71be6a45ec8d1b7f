"""Products of few rows by float weights: with gates, of normalised rows.

Decoders compute a token with one row, where a dispatch costs as much as its work. Products with
many rows are not changed: a specialised kernel serves them better.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.base.lazy_array import derived
from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.code_rows import has_codes
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir import Array
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import NO_ACTIVATION, LayerNormAttrs, MatMulAttrs, NormedMatMulAttrs

FEW_ROWS = 8
MAX_WEIGHTS = 1 << 25
"""Larger weights are not changed: they would be copied, and devices bind only 128 MiB."""
PANEL = 32
"""Columns that kernels of products read together."""
MAX_READERS = 2
"""Products that normalise the same rows separately: attention in parallel with a feed-forward
net.
"""

_BIAS, _RESIDUAL = 2, 3


def _operand(op: Op[Any], place: int) -> str:
    return op.inputs[place] if place < len(op.inputs) else ""


def _packed_size(shape: tuple[int, ...]) -> int:
    """Return an upper bound of a matrix's elements on the device, padding included."""
    return prod(-(-size // PANEL) * PANEL for size in shape)


def _is_plain(op: Op[Any], index: GraphIndex, *, scaled: bool = False) -> bool:
    """True for a product of perhaps few rows by constant floats, with a constant bias or none.

    Args:
        op: the product.
        index: its graph.
        scaled: whether it may have a factor.
    """
    attrs = op.attrs
    if isinstance(attrs, MatMulAttrs):
        if attrs.transpose_a or (attrs.alpha != 1.0 and not scaled):
            return False
    elif not isinstance(attrs, NormedMatMulAttrs) or attrs.norm != "NONE":
        return False
    weights, shape = index.constant(op.inputs[1]), index.shape(op.inputs[0])
    if weights is None or weights.ndim != 2 or weights.dtype not in (np.float32, np.float16):
        return False
    if _packed_size(weights.shape) > MAX_WEIGHTS or shape is None or len(shape) < 2:
        return False
    if prod(size for size in shape[:-1] if isinstance(size, int)) > FEW_ROWS:
        return False
    columns = weights.shape[0 if attrs.transpose_b else 1]
    bias = index.constant(_operand(op, _BIAS)) if _operand(op, _BIAS) else None
    return not _operand(op, _BIAS) or (bias is not None and bias.shape == (columns,))


@dataclass(frozen=True, slots=True)
class _Gate:
    gate: Op[MatMulAttrs]
    other: Op[MatMulAttrs]


class FuseFloatGate(PatternPass[_Gate]):
    """act(gate(x)) · up(x): one product with interleaved gate and up columns."""

    name = "fuse_float_gate"
    roots = frozenset({"MatMul"})

    def match(self, op: Op[MatMulAttrs], index: GraphIndex) -> _Gate | NoMatch:
        other = index.producer_of_type(_operand(op, _RESIDUAL), "MatMul")
        if op.attrs.residual != "MUL_AFTER" or not _is_plain(op, index):
            return NoMatch("not a product that is gated")
        if other is None or not _is_plain(other, index) or not index.read_once(other.outputs[0]):
            return NoMatch("the other is not a plain product that is read once")
        one, two = (index.constants[each.inputs[1]] for each in (op, other))
        if _operand(other, _RESIDUAL) or op.inputs[0] != other.inputs[0]:
            return NoMatch("the products differ")
        if one.dtype != two.dtype or op.attrs.transpose_b != other.attrs.transpose_b:
            return NoMatch("the weights differ in kind")
        if one.shape != two.shape or one.shape[0 if op.attrs.transpose_b else 1] % 2:
            return NoMatch("the number of columns is odd, or differs")
        if 2 * _packed_size(one.shape) > MAX_WEIGHTS:
            return NoMatch("the weights are too many")
        for gate, gated in ((other, op), (op, other)):
            if gated.attrs.activation == NO_ACTIVATION:
                return _Gate(gate, gated)
        return NoMatch("both have activations")

    def rewrite(self, op: Op[MatMulAttrs], match: _Gate, index: GraphIndex) -> None:
        pair, transposed = (match.gate, match.other), op.attrs.transpose_b
        weights = derived(
            lambda *both: _in_fours(both, transposed),
            *(index.constants[one.inputs[1]] for one in pair),
        )
        inputs = [op.inputs[0], index.add_constant(f"{op.name}_weights", weights)]
        if any(_operand(one, _BIAS) for one in pair):
            columns = weights.shape[0 if transposed else 1] // 2
            biases = [
                index.constants[one.inputs[_BIAS]]
                if _operand(one, _BIAS)
                else np.zeros(columns, weights.dtype)
                for one in pair
            ]
            inputs.append(index.add_constant(f"{op.name}_bias", _in_fours(biases, True)))
        activation = match.gate.attrs.activation
        attrs = NormedMatMulAttrs(transposed, activation=activation, gated=True)
        source = merged_source(pair)
        index.replace(op, Op("NormedMatMul", op.name, inputs, list(op.outputs), attrs, source))


def _in_fours(pair: Sequence[Array], first: bool) -> Array:
    """Interleave two arrays along the first axis: two rows of one, two of the other."""
    if first:
        twos = [array.reshape(-1, 2, *array.shape[1:]) for array in pair]
        fours = np.concatenate(twos, axis=1)
        return fours.reshape(-1, *fours.shape[2:])
    twos = [array.reshape(len(array), -1, 2) for array in pair]
    return np.concatenate(twos, axis=2).reshape(len(pair[0]), -1)


class FuseFloatNorm(PatternPass["Op[LayerNormAttrs]"]):
    """A product of normalised rows: it normalises them itself, factors go into its weights."""

    name = "fuse_float_norm"
    roots = frozenset({"MatMul", "NormedMatMul"})

    def match(self, op: Op[Any], index: GraphIndex) -> Op[LayerNormAttrs] | NoMatch:
        norm = index.producer_of_type(op.inputs[0], "LayerNorm")
        if norm is None or any(norm.outputs[1:]) or has_codes(norm):
            return NoMatch("no preceding normalisation")
        readers = index.readers(norm.outputs[0])
        if index.is_output(norm.outputs[0]) or len(readers) > MAX_READERS:
            return NoMatch("the normalised rows are used elsewhere")
        if not all(self._takes(one, norm, index) for one in readers):
            return NoMatch("they are not for products by constant weights alone")
        rank = index.rank(norm.inputs[0])
        if norm.attrs.axis != -1 and (rank is None or norm.attrs.axis != rank - 1):
            return NoMatch("axes other than the last")
        depth = index.constants[op.inputs[1]].shape[1 if op.attrs.transpose_b else 0]
        for name in norm.inputs[1:]:
            factor = index.constant(name) if name else None
            if name and (factor is None or factor.shape != (depth,)):
                return NoMatch("the factors are not constants, one for each column")
        return norm

    def _takes(self, op: Op[Any], norm: Op[LayerNormAttrs], index: GraphIndex) -> bool:
        """True for a product that can do it, and whose weights are its own."""
        return (
            op.type in self.roots
            and op.inputs.count(norm.outputs[0]) == 1
            and op.inputs[0] == norm.outputs[0]
            and _is_plain(op, index, scaled=True)
            and len(index.readers(op.inputs[1])) == 1
        )

    def rewrite(self, op: Op[Any], match: Op[LayerNormAttrs], index: GraphIndex) -> None:
        attrs, weights = op.attrs, index.constants[op.inputs[1]]
        inputs = [match.inputs[0], *op.inputs[1:]]
        gain, shift = _operand(match, 1), _operand(match, 2)
        alpha = attrs.alpha if isinstance(attrs, MatMulAttrs) else 1.0
        if shift:
            by_depth = weights if attrs.transpose_b else weights.T
            bias = alpha * np.matmul(_wide(by_depth), _wide(index.constants[shift]))
            if _operand(op, _BIAS):
                bias = bias + _wide(index.constants[inputs[_BIAS]])
            inputs += [""] * (_BIAS + 1 - len(inputs))
            inputs[_BIAS] = index.add_constant(f"{op.name}_bias", _fitting(bias, weights))
        if gain or alpha != 1.0:
            gains = index.constants[gain].astype(np.float32) if gain else np.ones(1, np.float32)
            factors = gains * np.float32(alpha)
            across = factors if attrs.transpose_b else factors[:, None]

            def scaled(plain: Array) -> Array:
                return _fitting(np.multiply(plain, across, dtype=np.float32), plain)

            inputs[1] = index.add_constant(f"{op.name}_weights", derived(scaled, weights))
        normed = NormedMatMulAttrs(
            attrs.transpose_b,
            "RMS" if match.attrs.rms else "STD",
            match.attrs.epsilon,
            attrs.activation,
            attrs.residual,
            isinstance(attrs, NormedMatMulAttrs) and attrs.gated,
        )
        source = merged_source((match, op))
        index.replace(op, Op("NormedMatMul", op.name, inputs, list(op.outputs), normed, source))


def _wide(array: Array) -> npt.NDArray[np.float64]:
    return array.astype(np.float64)


def _fitting(array: Array, like: Array) -> Array:
    """Return numbers in the type of others, or in float32 if they do not fit float16."""
    small = like.dtype == np.float16 and np.abs(array).max(initial=0) <= np.finfo(np.float16).max
    return array.astype(np.float16 if small else np.float32, copy=False)
