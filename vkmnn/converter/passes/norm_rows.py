"""Rows that are picked after a normalisation are picked before it."""

from __future__ import annotations

from dataclasses import replace

from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import AxisAttrs, LayerNormAttrs


class PickBeforeNorm(PatternPass["Op[LayerNormAttrs]"]):
    """Gather(LayerNorm(x), rows): only the rows that are read are normalised.

    The last product of a decoder, which reads few rows, then normalises them itself.
    """

    name = "pick_before_norm"
    roots = frozenset({"Gather"})

    def match(self, op: Op[AxisAttrs], index: GraphIndex) -> Op[LayerNormAttrs] | NoMatch:
        norm = index.producer_of_type(op.inputs[0], "LayerNorm")
        if (
            norm is None
            or any((*norm.inputs[3:], *norm.outputs[1:]))
            or not index.read_once(norm.outputs[0])
        ):
            return NoMatch("no preceding normalisation that is read once")
        rank, rows = index.rank(norm.inputs[0]), index.rank(op.inputs[1])
        if rank is None or rows is None or rows > 1:
            return NoMatch("the picked rows are not a single row, or a list")
        if norm.attrs.axis not in (-1, rank - 1) or op.attrs.axis % rank == rank - 1:
            return NoMatch("columns are picked, or more than columns normalised")
        return norm

    def rewrite(self, op: Op[AxisAttrs], match: Op[LayerNormAttrs], index: GraphIndex) -> None:
        picked = f"{op.outputs[0]}:plain"
        gather = replace(op, inputs=[match.inputs[0], op.inputs[1]], outputs=[picked])
        attrs = replace(match.attrs, axis=-1)
        norm = Op(
            "LayerNorm", match.name, [picked, *match.inputs[1:]], list(op.outputs), attrs,
            merged_source((match, op)),
        )  # fmt: skip
        index.replace(op, gather, norm)
