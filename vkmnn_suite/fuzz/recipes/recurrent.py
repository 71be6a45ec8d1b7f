"""LSTM, GRU, RNN."""

from __future__ import annotations

from typing import Any

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.schemas import Skip
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import UNIT

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
# Fractions are between 0 and 1, so nothing grows from step to step; RNNs have none.
_SHARES = ("Sigmoid", "HardSigmoid", "Sigmoid", "HardSigmoid", "sigmoid")
_OTHERS = (
    "Tanh",
    "Softsign",
    "Affine",
    "ScaledTanh",
    "ThresholdedRelu",
    "LeakyRelu",
    "Elu",
    "Relu",
)


def _functions(s: Sketch, op: str, sides: int) -> dict[str, Any]:
    if s.chance(0.6):
        return {}
    count = _FUNCTIONS[op]
    places = [place for _ in range(sides) for place in range(count)]
    shares = 1 if count > 1 else 0
    names = [s.choose(*(_SHARES if place < shares else _OTHERS)) for place in places]
    # Each takes the next alpha and beta: all are given, as defaults differ between engines.
    alphas, betas = ([s.choose(0.125, 0.25, 0.5) for _ in names] for _ in range(2))
    return {"activations": names, "activation_alpha": alphas, "activation_beta": betas}


@recipe("LSTM", "GRU", "RNN")
def _recurrent(s: Sketch, op: str) -> None:
    dtype = s.dtype(op)
    if dtype == "float16" or (op == "RNN" and dtype == "float64"):
        raise Skip  # onnxruntime has none, and onnx's evaluator looks at few of the attributes
    x = s.pick(dtype, min_rank=3, max_rank=3, spread=UNIT, accept=lambda v: 0 not in v.shape)
    if 0 in x.shape:
        raise Skip
    steps, batch, width = x.shape
    direction = s.choose(None, "forward", "reverse", "bidirectional", "bidirectional")
    sides = 2 if direction == "bidirectional" else 1
    units, gates = s.size(17), _GATES[op]
    more: list[Value | None] = [
        s.weight(dtype, [sides, 2 * gates * units], UNIT) if s.chance(0.8) else None,
        None,
    ]
    if s.chance(0.3):
        lengths = [s.rng.randint(1, steps) for _ in range(batch)]
        more[1] = s.parameter(lengths, "int32", constant=0.5)
    states = 2 if op == "LSTM" else 1
    more += [
        s.pick(dtype, [sides, batch, units], spread=UNIT) if s.chance(0.4) else None
        for _ in range(states)
    ]
    if op == "LSTM":
        more.append(s.weight(dtype, [sides, 3 * units], UNIT) if s.chance(0.2) else None)
    w = s.weight(dtype, [sides, gates * units, width], UNIT)
    r = s.weight(dtype, [sides, gates * units, units], UNIT)
    attributes = _functions(s, op, sides)
    if op == "GRU":
        attributes["linear_before_reset"] = s.choose(None, 0, 1)
    if op == "LSTM":
        attributes["input_forget"] = s.choose(None, None, 0, 1)
    s.node(
        op,
        [x, w, r, *more],
        s.rng.randint(1, 1 + states),
        hidden_size=units,
        direction=direction,
        clip=s.choose(None, None, None, 0.5, 3.0),
        **attributes,
    )
