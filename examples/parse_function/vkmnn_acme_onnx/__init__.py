"""Parse functions for the domain `acme.ai`: its nodes become operators that vkmnn has.

Such a plug-in has no kernels. Everything runs wherever vkmnn's own operators do, and is folded and
fused like them.
"""

from __future__ import annotations

from vkmnn.plugin import NodeContext, converter, ops

DOMAIN = "acme.ai"


@converter("Swish", domain=DOMAIN)
def parse_swish(node: NodeContext) -> None:
    """Y = x · sigmoid(beta · x); until version 1 the attribute was called alpha."""
    _swish(node, node.float("alpha", 1.0))


@converter("Swish", domain=DOMAIN, since=2)
def parse_swish_2(node: NodeContext) -> None:
    """Y = x · sigmoid(beta · x)."""
    _swish(node, node.float("beta", 1.0))


def _swish(node: NodeContext, beta: float) -> None:
    x = node.input(0)
    number = node.constant(beta, node.dtype(x))
    scaled = node.emit("BinaryOp", [x, number], ops.BinaryAttrs("MUL"))
    gate = node.emit("UnaryOp", [scaled], ops.UnaryAttrs("SIGMOID"))
    node.finish("BinaryOp", [x, gate], ops.BinaryAttrs("MUL"))


@converter("Weighted", domain=DOMAIN)
def parse_weighted(node: NodeContext) -> None:
    """Y = the sum of inputs, each times its weight; `reduction` may be "sum" or "mean"."""
    weights = node.floats("weights")
    if len(weights) != len(node.inputs):
        raise node.unsupported(f"{len(node.inputs)} inputs have {len(weights)} weights")
    mean = node.choice("reduction", "sum", ("sum", "mean")) == "mean"
    total = ""
    for x, weight in zip(node.inputs, weights, strict=True):
        share = weight / len(weights) if mean else weight
        part = node.emit("BinaryOp", [x, node.constant(share, node.dtype(x))], _MUL)
        total = node.emit("BinaryOp", [total, part], ops.BinaryAttrs("ADD")) if total else part
    node.finish("Identity", [total])


_MUL = ops.BinaryAttrs("MUL")
