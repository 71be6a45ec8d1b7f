"""Transposes of a matrix product's operands: into its flags."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.reshape import reshape_target
from vkmnn.converter.passes.transpose import Perm, permutation
from vkmnn.ir.dtype import DType
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import AxisAttrs, MatMulAttrs, OpAttrs, ReshapeAttrs, TransposeAttrs


@dataclass(frozen=True, slots=True)
class _Transposed:
    """An operand that is a Transpose of `value`, perhaps reshaped in its leading axes.

    perm: the rest of the permutation when the product swaps the last two axes; () = nothing.
    target: how the operand is reshaped then: to a constant shape; () = to the old target with the
        last two entries swapped; None = not at all.
    """

    place: int
    value: str
    perm: Perm
    target: tuple[int, ...] | None
    ops: tuple[Op, ...]


class FoldOperandTranspose(PatternPass[_Transposed]):
    """A Transpose before a MatMul that moves the last axis next to last: into the product's flags.

    The rest of the Transpose stays a Transpose. A Reshape that leaves the last two axes alone may
    be in between: PyTorch's exporter transposes keys as [batch·heads, length, depth].
    """

    name = "fold_operand_transpose"
    roots = frozenset({"MatMul"})

    def match(self, op: Op, index: GraphIndex) -> _Transposed | NoMatch:
        no_match = NoMatch("no preceding Transpose")
        for place in (0, 1):
            found = _transposed(op.inputs[place], place, index)
            if isinstance(found, _Transposed):
                return found
            no_match = found or no_match
        return no_match

    def rewrite(self, op: Op[MatMulAttrs], match: _Transposed, index: GraphIndex) -> None:
        new: list[Op] = []
        value, info = match.value, index.info(match.value)
        if match.perm:
            value = _add(new, "Transpose", [value], TransposeAttrs(match.perm), match, index)
            if info is not None and info.shape is not None:
                index.add_info(value, info.dtype, tuple(info.shape[axis] for axis in match.perm))
        if match.target is not None:
            target = _target(op, match, new, index)
            after = index.shape(op.inputs[match.place])
            value = _add(new, "Reshape", [value, target], ReshapeAttrs(), match, index)
            if info is not None and after is not None:
                index.add_info(value, info.dtype, (*after[:-2], after[-1], after[-2]))
        inputs = list(op.inputs)
        inputs[match.place] = value
        if match.place == 0:
            attrs = replace(op.attrs, transpose_a=not op.attrs.transpose_a)
        else:
            attrs = replace(op.attrs, transpose_b=not op.attrs.transpose_b)
        source = merged_source((*match.ops, op))
        index.replace(op, *new, Op(op.type, op.name, inputs, list(op.outputs), attrs, source))


class FoldSharedTranspose(FoldOperandTranspose):
    """The same for a constant that is also read directly: once folded, it would be stored twice.

    This occurs in decoders whose last product is by the transposed table of their tokens.
    """

    name = "fold_shared_transpose"

    def match(self, op: Op, index: GraphIndex) -> _Transposed | NoMatch:
        found = super().match(op, index)
        if isinstance(found, _Transposed) and not _is_shared(found.value, index):
            return NoMatch("its operand is not a constant with other readers")
        return found


def _is_shared(name: str, index: GraphIndex) -> bool:
    readers = index.readers(name) if name in index.constants else []
    return any(reader.type != "Transpose" for reader in readers)


def _target(op: Op, match: _Transposed, new: list[Op], index: GraphIndex) -> str:
    """Return the shape for the Reshape of an operand that is not transposed before."""
    if match.target:
        return index.add_constant(f"{op.name}_shape", np.array(match.target, np.int64))
    old = match.ops[-1].inputs[1]
    rank = len(index.shape(match.ops[-1].outputs[0]) or ())
    order = [*range(rank - 2), rank - 1, rank - 2]
    places = index.add_constant(f"{op.name}_axes", np.array(order, np.int64))
    target = index.unique_name(f"{op.name}_shape")
    name = index.unique_name(f"{op.name}_target")
    new.append(Op("Gather", name, [old, places], [target], AxisAttrs(0), match.ops[-1].source))
    index.add_info(target, DType.INT64, (rank,))
    return target


def _lists_dims(name: str, index: GraphIndex) -> bool:
    """True for a Concat of dimensions without a literal 0, which would mean "copy"."""
    op = index.producer_of_type(name, "Concat")
    parts = [] if op is None else [index.constant(part) for part in op.inputs]
    return op is not None and all(part is None or 0 not in part for part in parts)


def _add(
    new: list[Op],
    kind: str,
    inputs: list[str],
    attrs: OpAttrs,
    match: _Transposed,
    index: GraphIndex,
) -> str:
    """Append a replacement of one of the matched ops; return its result's name."""
    replaced = next(op for op in match.ops if op.type == kind)
    output = index.unique_name(replaced.outputs[0])
    name = index.unique_name(replaced.name)
    new.append(Op(kind, name, inputs, [output], attrs, replaced.source))
    return output


def _transposed(name: str, place: int, index: GraphIndex) -> _Transposed | NoMatch | None:
    reshape = index.producer_of_type(name, "Reshape")
    transpose = index.producer_of_type(name if reshape is None else reshape.inputs[0], "Transpose")
    if transpose is None:
        return None
    perm = permutation(transpose, index)
    if perm is None or len(perm) < 2 or perm[-2] != len(perm) - 1:
        return NoMatch("the last axis does not move next to last")
    # Shape computation reports a wrong rank as well.
    if index.rank(transpose.inputs[0]) not in (None, len(perm)):
        return NoMatch("the ranks differ")
    swapped = (*perm[:-2], perm[-1], perm[-2])
    rest = () if swapped == tuple(range(len(perm))) else swapped
    if rest and not index.read_once(transpose.outputs[0]):
        return NoMatch("the Transpose would have to be done twice")
    value = transpose.inputs[0]
    if reshape is None:
        return _Transposed(place, value, rest, None, (transpose,))
    before, after = index.shape(transpose.outputs[0]), index.shape(name)
    if before is None or after is None or len(after) < 2 or None in after[-2:]:
        return NoMatch("the shapes are not known")
    if before[-2:] != after[-2:]:
        return NoMatch("the reshape changes the transposed axes")
    swap = (after[-1], after[-2])
    target = reshape_target((*before[:-2], before[-1], before[-2]), (*after[:-2], *swap))
    if target is None and not _lists_dims(reshape.inputs[1], index):
        return NoMatch("more than one dimension is unknown, and the target may hold zeros")
    if rest and not index.read_once(name):
        return NoMatch("the Transpose would have to be done twice")
    return _Transposed(place, value, rest, target or (), (transpose, reshape))
