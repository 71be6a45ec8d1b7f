"""The threshold that PyTorch's exporter adds to Softplus."""

from __future__ import annotations

from vkmnn.converter.passes.base import NoMatch, PatternPass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op

MIN_THRESHOLD = 17.0
"""From here on softplus(x) - x < e^-17, less than half a unit in the last place of x in fp32."""


class SimplifySoftplus(PatternPass[str]):
    """Select(x > threshold, x, SOFTPLUS(x)) with a large threshold: SOFTPLUS(x)."""

    name = "simplify_softplus"
    roots = frozenset({"Select"})

    def match(self, op: Op, index: GraphIndex) -> str | NoMatch:
        condition, value, otherwise = op.inputs
        test = index.producer_of_type(condition, "BinaryOp")
        softplus = index.producer_of_type(otherwise, "UnaryOp")
        if test is None or softplus is None:
            return NoMatch("not a choice between a value and a function of it")
        if softplus.attrs.kind != "SOFTPLUS" or softplus.inputs[0] != value:
            return NoMatch("not SOFTPLUS of the value")
        if test.attrs.kind != "GREATER" or test.inputs[0] != value:
            return NoMatch("the condition is not: value > threshold")
        threshold = index.scalar(test.inputs[1])
        if threshold is None or threshold < MIN_THRESHOLD:
            return NoMatch("the threshold is not constant, or too small")
        if not index.same_shape(op.outputs[0], otherwise):
            return NoMatch("the condition may broadcast")
        if not index.can_forward(op, otherwise):
            return NoMatch("it gives a graph output its name")
        return otherwise

    def rewrite(self, op: Op, match: str, index: GraphIndex) -> None:
        index.forward(op, match)
