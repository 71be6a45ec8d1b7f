"""Recurrent operators of TFLite: their results, and the state that they keep between runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.tflite_files import Oracle, Writer

BATCH, TIME, DEPTH, UNITS = 2, 4, 3, 5


class Layer:
    """Writes one recurrent operator with random weights."""

    def __init__(self, kind: str, options: tuple[str, dict[str, Any]]) -> None:
        self.writer, self.kind, self.options = Writer(), kind, options
        self.random = np.random.default_rng(11)
        self.numbers: list[int] = []

    def weights(self, *shape: int) -> None:
        array = self.random.normal(0, 0.6, shape).astype(np.float32)
        self.numbers.append(self.writer.constant(array))

    def absent(self, count: int = 1) -> None:
        self.numbers += [-1] * count

    def state(self, units: int) -> None:
        self.numbers.append(self.writer.tensor((BATCH, units), is_variable=True))

    def finish(self, shape: tuple[int, ...], *results: tuple[int, ...], version: int = 1) -> bytes:
        x = self.writer.tensor(shape, name="x")
        made = [self.writer.tensor(one) for one in results]
        self.writer.op(self.kind, [x, *self.numbers], made, self.options, version=version)
        self.writer.faces([x], made)
        return self.writer.finish()


def lstm(
    *,
    coupled: bool = False,
    holes: bool = False,
    projected: int = 0,
    normed: bool = False,
    first: bool = False,
    step: bool = False,
    active: int = 4,
) -> bytes:
    options: dict[str, Any] = {"fused_activation_function": active}
    kind = "LSTMOptions"
    if not step:
        options["time_major"] = first
        kind = "UnidirectionalSequenceLSTMOptions"
    layer = Layer("LSTM" if step else "UNIDIRECTIONAL_SEQUENCE_LSTM", (kind, options))
    given = projected or UNITS
    layer.absent() if coupled else layer.weights(UNITS, DEPTH)
    for _ in range(3):
        layer.weights(UNITS, DEPTH)
    layer.absent() if coupled else layer.weights(UNITS, given)
    for _ in range(3):
        layer.weights(UNITS, given)
    for gate in range(3):
        layer.weights(UNITS) if holes and not (coupled and gate == 0) else layer.absent()
    layer.absent() if coupled else layer.weights(UNITS)
    for _ in range(3):
        layer.weights(UNITS)
    layer.weights(projected, UNITS) if projected else layer.absent()
    layer.weights(projected) if projected else layer.absent()
    layer.state(given)
    layer.state(UNITS)
    if normed:
        for gate in range(4):
            layer.absent() if coupled and gate == 0 else layer.weights(UNITS)
    steps = (TIME, BATCH) if first else (BATCH, TIME)
    lead = (BATCH,) if step else steps
    return layer.finish((*lead, DEPTH), (*lead, given))


def lstm_both(merged: bool) -> bytes:
    """With merged outputs, time is first: LiteRT confuses the states of batches otherwise."""
    options = {"fused_activation_function": 4, "merge_outputs": merged, "time_major": merged}
    layer = Layer("BIDIRECTIONAL_SEQUENCE_LSTM", ("BidirectionalSequenceLSTMOptions", options))
    for _ in range(2):
        for depth in (*[DEPTH] * 4, *[UNITS] * 4):
            layer.weights(UNITS, depth)
        layer.absent(3)
        for _ in range(4):
            layer.weights(UNITS)
        layer.absent(2)
    for _ in range(4):
        layer.state(UNITS)
    layer.absent(9)
    if merged:
        return layer.finish((TIME, BATCH, DEPTH), (TIME, BATCH, 2 * UNITS))
    return layer.finish((BATCH, TIME, DEPTH), *[(BATCH, TIME, UNITS)] * 2)


def basic() -> bytes:
    writer, random = Writer(), np.random.default_rng(3)
    x, before, cell = (writer.tensor((BATCH, size)) for size in (DEPTH, UNITS, UNITS))
    weights = writer.constant(random.normal(0, 1, (4 * UNITS, DEPTH + UNITS)).astype("f4"))
    bias = writer.constant(random.normal(0, 1, 4 * UNITS).astype("f4"))
    made = [writer.tensor((BATCH, size)) for size in (UNITS, UNITS, DEPTH + UNITS, 4 * UNITS)]
    options = {"fused_activation_function": 4, "kernel_type": 1}
    writer.op("LSTM", [x, before, weights, bias, cell], made, ("LSTMOptions", options), version=2)
    writer.faces([x, before, cell], made[:2])
    return writer.finish()


def rnn(kind: str = "UNIDIRECTIONAL_SEQUENCE_RNN", active: int = 4) -> bytes:
    name, options = "SequenceRNNOptions", {"fused_activation_function": active}
    name = "RNNOptions" if kind == "RNN" else name
    layer = Layer(kind, (name, options))
    for shape in ((UNITS, DEPTH), (UNITS, UNITS), (UNITS,)):
        layer.weights(*shape)
    layer.state(UNITS)
    lead = (BATCH,) if kind == "RNN" else (BATCH, TIME)
    return layer.finish((*lead, DEPTH), (*lead, UNITS))


def rnn_both() -> bytes:
    options = {"fused_activation_function": 4, "merge_outputs": True}
    layer = Layer("BIDIRECTIONAL_SEQUENCE_RNN", ("BidirectionalSequenceRNNOptions", options))
    for _ in range(2):
        for shape in ((UNITS, DEPTH), (UNITS, UNITS), (UNITS,)):
            layer.weights(*shape)
        layer.state(UNITS)
    layer.absent(3)
    return layer.finish((BATCH, TIME, DEPTH), (BATCH, TIME, 2 * UNITS))


def svdf(rank: int) -> bytes:
    layer = Layer("SVDF", ("SVDFOptions", {"rank": rank, "fused_activation_function": 1}))
    filters, memory = UNITS * rank, 6
    for shape in ((filters, DEPTH), (filters, memory), (UNITS,)):
        layer.weights(*shape)
    layer.state(filters * memory)
    return layer.finish((BATCH, DEPTH), (BATCH, UNITS))


FILES: dict[str, Callable[[], bytes]] = {
    "lstm": lstm,
    "lstm with time first": lambda: lstm(first=True),
    "lstm with peepholes": lambda: lstm(holes=True),
    "lstm of relu": lambda: lstm(active=1),
    "lstm coupled": lambda: lstm(coupled=True, holes=True),
    "lstm projected and normed": lambda: lstm(holes=True, projected=3, normed=True),
    "lstm step": lambda: lstm(step=True),
    "lstm step projected": lambda: lstm(step=True, projected=3),
    "lstm both ways": lambda: lstm_both(False),
    "lstm both ways merged": lambda: lstm_both(True),
    "basic": basic,
    "rnn": rnn,
    "rnn of relu": lambda: rnn(active=1),
    "rnn step": lambda: rnn("RNN"),
    "rnn both ways": rnn_both,
    "svdf": lambda: svdf(1),
    "svdf of rank 2": lambda: svdf(2),
}


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize("name", FILES)
def test_recurrent(name: str, device: str) -> None:
    model = FILES[name]()
    oracle = Oracle(model)
    session = vkmnn.InferenceSession(model, device=device)
    inputs = session.get_inputs()
    random = np.random.default_rng(5)
    first: list[np.ndarray] = []
    for number in range(4):
        if number == 3:  # anew
            oracle.interpreter.reset_all_variables()
            session.reset_state()
        feeds = [random.normal(0, 1, arg.shape).astype("f4") for arg in inputs]
        if number in (0, 3):
            first = first or feeds
            feeds = first
        wanted = oracle.run(*feeds)
        found = session.run(None, {arg.name: one for arg, one in zip(inputs, feeds, strict=True)})
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)
