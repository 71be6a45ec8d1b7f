"""Cases of `recurrent`: steps of LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation, Op
from vkmnn.ir.ops import (
    RECURRENT_ACTIVATIONS,
    RECURRENT_GATES,
    RECURRENT_KINDS,
    RecurrentAttrs,
    UnaryAttrs,
)
from vkmnn.testing.case import Case, Variant, op_case, shader_cases
from vkmnn.testing.shapes import floats
from vkmnn_suite.cases.rows import taking

_CELLS = {4: "LSTM", 3: "GRU", 1: "RNN"}
_DIRECTIONS = ("FORWARD", "REVERSE", "BIDIRECTIONAL")
# Steps, sequences, units: one of each, odd and prime, whole and broken blocks of four and of rows.
_SIZES = ((1, 1, 1), (3, 2, 5), (7, 5, 7), (2, 9, 37))
_DEFAULTS = ("SIGMOID", "TANH", "TANH")
_BEYOND = "holds an index outside 0 to 3"
_TANH = (Activation("TANH"),)


def _attrs(cell: str, direction: str = "FORWARD", **more: object) -> RecurrentAttrs:
    count = RECURRENT_ACTIVATIONS[cell]
    one = _TANH if cell == "RNN" else tuple(map(Activation, _DEFAULTS[:count]))
    sides = 2 if direction == "BIDIRECTIONAL" else 1
    return RecurrentAttrs(cell, one * sides, direction, **more)  # type: ignore[arg-type]


def _case(
    attrs: RecurrentAttrs,
    sizes: tuple[int, int, int],
    *,
    lengths: bool = False,
    first: bool = False,
    extra: bool = False,
    computed: bool = False,
) -> Case:
    """Return a case with some of the optional inputs."""
    steps, batch, hidden = sizes
    sides, gates = attrs.directions, RECURRENT_GATES[attrs.cell]
    lstm = attrs.cell == "LSTM"

    def order(array: AnyArray) -> AnyArray:
        swapped = array.swapaxes(-3, -2) if attrs.batch_first else array
        return np.ascontiguousarray(swapped)

    state = [order(floats(sides, batch, hidden, seed=number)) for number in range(2)]
    inputs: list[AnyArray | None] = [
        order(floats(steps, batch, sides * gates * hidden)),
        floats(sides, gates * hidden, hidden, seed=3) / np.float32(hidden**0.5),
        floats(sides, hidden, seed=4) if extra and attrs.linear else None,
        np.arange(batch, dtype=np.int32) * 2 % (steps + 1) if lengths else None,
        state[0] if first else None,
        state[1] if first and lstm else None,
        floats(sides, 3 * hidden, seed=5) if extra and lstm else None,
    ]
    constant = () if computed else (1,)
    return op_case("Recurrent", attrs, inputs, constant=constant, outputs=3 if lstm else 2)


def _all(cell: str) -> Iterator[Case]:
    """Yield sizes with and without the optional inputs, in all directions.

    Each optional input is a specialization, slow to build: few combinations.
    """
    for number, sizes in enumerate(_SIZES):
        attrs = _attrs(cell, _DIRECTIONS[number % 3], batch_first=number % 2 == 1, clip=2.0)
        yield _case(attrs, sizes)
        if number < len(_SIZES) - 1:
            yield _case(attrs, sizes, lengths=True, first=True, extra=True)
    # So many blocks of units that the numbers of lanes and of blocks cannot be confused.
    yield _case(_attrs(cell, "BIDIRECTIONAL"), (2, 3, 61), first=True)
    yield _case(_attrs(cell, "REVERSE"), (3, 2, 5), computed=True)
    yield _case(_attrs(cell), (3, 0, 5))
    if cell == "GRU":
        for number, sizes in enumerate(_SIZES):
            attrs = _attrs(cell, _DIRECTIONS[number % 3], linear=True, batch_first=number % 2 == 0)
            yield _case(attrs, sizes, extra=True)
    if cell == "LSTM":
        attrs = _attrs(cell, "BIDIRECTIONAL", coupled=True)
        yield _case(attrs, (5, 6, 7), extra=True, first=True)
    yield from _activations(cell)


def _activations(cell: str) -> Iterator[Case]:
    """Yield functions, with two directions that have different ones; an RNN has all of them."""
    count = RECURRENT_ACTIVATIONS[cell]
    for first in range(0, len(RECURRENT_KINDS) if count == 1 else 1, 2):
        kinds = [RECURRENT_KINDS[(3 + first + i) % len(RECURRENT_KINDS)] for i in range(2 * count)]
        chosen = tuple(
            Activation(kind, 0.25 + 0.125 * i, 0.5 - 0.0625 * i) for i, kind in enumerate(kinds)
        )
        yield _case(RecurrentAttrs(cell, chosen, "BIDIRECTIONAL"), (3, 2, 6), first=True)


@shader_cases("recurrent")
def recurrent(variant: Variant) -> Iterator[Case]:
    """All steps in a workgroup, and a dispatch for each step."""
    for case in _all(_CELLS[int(variant.axes["gates"])]):
        for whole in (True, False):
            yield taking(case, {"whole": whole})
    yield from _computed_lengths(_CELLS[int(variant.axes["gates"])])


def _computed_lengths(cell: str) -> Iterator[Case]:
    """Yield lengths that only the device knows: at both ends of their valid range, and beyond."""
    case = _case(_attrs(cell), (3, 2, 5), lengths=True)
    (op,) = case.graph.ops
    turned = Op("UnaryOp", "turn", ["in3"], ["lengths"], UnaryAttrs("NEG"))
    inputs = ["lengths" if name == "in3" else name for name in op.inputs]
    graph = replace(case.graph, ops=[turned, replace(op, inputs=inputs)])
    for lengths in ((0, -3), (-1, 1), (-4, 0)):
        feeds = {**case.feeds, "in3": np.array(lengths, np.int32)}
        wrong = lengths != (0, -3)
        yield replace(case, graph=graph, feeds=feeds, raises=_BEYOND if wrong else "")
