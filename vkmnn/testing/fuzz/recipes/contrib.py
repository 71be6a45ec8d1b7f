"""onnxruntime's operators that optimised exports hold."""

from __future__ import annotations

from vkmnn.testing.fuzz.recipes.table import recipe
from vkmnn.testing.fuzz.sketch import MICROSOFT, Sketch
from vkmnn.testing.fuzz.values import FINITE


@recipe("Gelu", domain=MICROSOFT)
def _gelu(s: Sketch, op: str) -> None:
    s.one(op, s.pick("float32", spread=FINITE), domain=MICROSOFT)


@recipe("QuickGelu", domain=MICROSOFT)
def _quick_gelu(s: Sketch, op: str) -> None:
    x = s.pick("float32", spread=FINITE)
    s.one(op, x, domain=MICROSOFT, alpha=s.choose(None, 1.0, 1.702, 0.5))


@recipe("BiasGelu", "FastGelu", domain=MICROSOFT)
def _bias_gelu(s: Sketch, op: str) -> None:
    x = s.pick("float32", min_rank=1, spread=FINITE)
    bias = s.weight(x.dtype, x.shape[-1:], FINITE)
    s.one(op, x, bias if op == "BiasGelu" or s.chance(0.6) else None, domain=MICROSOFT)


@recipe("FusedMatMul", domain=MICROSOFT)
def _fused_matmul(s: Sketch, op: str) -> None:
    a = s.pick("float32", min_rank=2, max_rank=4, spread=FINITE)
    trans_a, trans_b = s.choose(None, 0, 1), s.choose(None, 0, 1)
    inner = a.shape[-2] if trans_a else a.shape[-1]
    pair = [inner, s.size(17)]
    batch = s.choose([], s.broadcast(a.shape[:-2]))
    b = s.weight(a.dtype, [*batch, *(pair[::-1] if trans_b else pair)], FINITE)
    alpha = s.choose(None, 0.5, -2.0)
    s.one(op, a, b, domain=MICROSOFT, transA=trans_a, transB=trans_b, alpha=alpha)


@recipe("Trilu", domain=MICROSOFT)
def _trilu(s: Sketch, op: str) -> None:
    x = s.pick(s.choose("float32", "int64"), min_rank=2)
    k = s.parameter(s.rng.randint(-4, 4)) if s.chance(0.6) else None
    s.one(op, x, k, domain=MICROSOFT, upper=s.choose(None, 0, 1))


@recipe("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_norm(s: Sketch, op: str) -> None:
    shape = [s.choose(1, 2, 3), s.size(7), s.size(17)]
    x, skip = (s.pick("float32", shape, spread=FINITE) for _ in range(2))
    hidden = shape[-1:]
    inputs = [x, skip, s.weight(x.dtype, hidden, FINITE)]
    if op == "SkipLayerNormalization":
        inputs.append(s.weight(x.dtype, hidden, FINITE))
    if s.chance(0.5):
        inputs.append(s.weight(x.dtype, hidden, FINITE))
    s.node(op, inputs, 1, domain=MICROSOFT, epsilon=s.choose(None, 1e-5, 1e-3))
