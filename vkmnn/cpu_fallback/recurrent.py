"""The steps of LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.cpu_fallback.registry import (
    AnyArray,
    Inputs,
    cpu_execution,
    optional,
    required,
    widen,
)
from vkmnn.cpu_fallback.unary import unary
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Activation, Op
from vkmnn.ir.ops import (
    RECURRENT_ACTIVATIONS,
    RECURRENT_GATES,
    LinearAttentionAttrs,
    RecurrentAttrs,
)
from vkmnn.shape.recurrent import LENGTHS

_Function = Callable[[AnyArray], AnyArray]


@dataclass(frozen=True, slots=True)
class _Side:
    """Weights of one direction, in float64."""

    attrs: RecurrentAttrs
    weights: AnyArray
    bias: AnyArray | None
    peepholes: AnyArray | None
    functions: tuple[_Function, ...]

    def step(self, gates: AnyArray, h: AnyArray, c: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Return both states after a step; arrays are [B, G·H] and [B, H]."""
        parts = np.split(gates, RECURRENT_GATES[self.attrs.cell], axis=1)
        if self.attrs.cell == "LSTM":
            return self._lstm(parts, h, c)
        if self.attrs.cell == "GRU":
            return self._gru(parts, h), c
        (f,) = self.functions
        return f(parts[0] + h @ self.weights.T), c

    def _lstm(
        self, gates: Sequence[AnyArray], h: AnyArray, c: AnyArray
    ) -> tuple[AnyArray, AnyArray]:
        f, g, out = self.functions
        i, o, forget, new = (
            gate + product
            for gate, product in zip(gates, np.split(h @ self.weights.T, 4, axis=1), strict=True)
        )
        pi, po, pf = (0.0,) * 3 if self.peepholes is None else np.split(self.peepholes, 3)
        taken = f(i + pi * c)
        kept = 1.0 - taken if self.attrs.coupled else f(forget + pf * c)
        cell = kept * c + taken * g(new)
        return f(o + po * cell) * out(cell), cell

    def _gru(self, gates: Sequence[AnyArray], h: AnyArray) -> AnyArray:
        f, g = self.functions
        rz, rr, rh = np.split(self.weights, 3)
        z, r = f(gates[0] + h @ rz.T), f(gates[1] + h @ rr.T)
        if self.attrs.linear:
            new = r * (h @ rh.T + (0.0 if self.bias is None else self.bias))
        else:
            new = (r * h) @ rh.T
        return np.asarray((1.0 - z) * g(gates[2] + new) + z * h)


def _function(activation: Activation, clip: float) -> _Function:
    kind, alpha, beta = activation.kind, activation.alpha, activation.beta

    def apply(x: AnyArray) -> AnyArray:
        if clip > 0:
            x = np.clip(x, -clip, clip)
        if kind == "AFFINE":
            return alpha * x + beta
        if kind == "SCALED_TANH":
            return np.asarray(alpha * np.tanh(beta * x))
        return unary(kind, x, alpha, beta)

    return apply


@cpu_execution("Recurrent")
def _recurrent(op: Op[RecurrentAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    dtype = required(inputs, 0).dtype
    gates, weights = (required(inputs, index).astype(np.float64) for index in range(2))
    gates = gates.swapaxes(0, 1) if attrs.batch_first else gates
    steps, batch, _ = gates.shape
    directions, hidden = attrs.directions, weights.shape[-1]
    lengths = _lengths(optional(inputs, LENGTHS), steps, batch)
    first = [
        _state(optional(inputs, index), attrs, (directions, batch, hidden)) for index in (4, 5)
    ]
    every = np.zeros((steps, directions, batch, hidden))
    last = np.empty((2, directions, batch, hidden))
    columns = np.split(gates, directions, axis=2)
    for number in range(directions):
        side = _side(attrs, number, weights, inputs)
        reverse = attrs.direction == "REVERSE" or number == 1
        h, c = first[0][number], first[1][number]
        for step in range(steps):
            active = (step < lengths)[:, None]
            places = np.where(step < lengths, lengths - 1 - step, step) if reverse else step
            new_h, new_c = side.step(columns[number][places, np.arange(batch)], h, c)
            h, c = np.where(active, new_h, h), np.where(active, new_c, c)
            every[places, number, np.arange(batch)] = np.where(active, h, 0.0)
        last[0, number], last[1, number] = h, c
    results = [every, *last]
    if attrs.batch_first:
        results = [every.transpose(2, 0, 1, 3), *last.swapaxes(1, 2)]
    return [result.astype(dtype) for result in results]


def _lengths(given: AnyArray | None, steps: int, batch: int) -> AnyArray:
    if given is None:
        return np.full(batch, steps)
    if given.size and not 0 <= int(given.min()) <= int(given.max()) <= steps:
        raise InvalidInputError(
            f"a sequence length is outside 0 to {steps}: {given.tolist()}",
            hint="sequence_lens counts steps of the first axis of X",
        )
    return given


def _state(given: AnyArray | None, attrs: RecurrentAttrs, shape: tuple[int, ...]) -> AnyArray:
    if given is None:
        return np.zeros(shape)
    wide = given.astype(np.float64)
    return wide.swapaxes(0, 1) if attrs.batch_first else wide


def _side(attrs: RecurrentAttrs, number: int, weights: AnyArray, inputs: Inputs) -> _Side:
    count = RECURRENT_ACTIVATIONS[attrs.cell]
    chosen = attrs.activations[number * count : (number + 1) * count]
    # The third activation, of an LSTM's cell, is not clipped.
    clips = (attrs.clip, attrs.clip, 0.0)
    functions = tuple(_function(one, clip) for one, clip in zip(chosen, clips, strict=False))
    bias, peepholes = (_row(optional(inputs, index), number) for index in (2, 6))
    return _Side(attrs, weights[number], bias, peepholes, functions)


def _row(given: AnyArray | None, number: int) -> AnyArray | None:
    return None if given is None else np.asarray(given[number], np.float64)


@cpu_execution("LinearAttention")
def _linear_attention(op: Op[LinearAttentionAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    query, key, value = (widen(required(inputs, place)) for place in range(3))
    past, decay, rate = (optional(inputs, place) for place in (3, 4, 5))
    images, times, columns = query.shape
    depth, width = columns // attrs.query_heads, value.shape[2] // attrs.heads
    query = query.reshape(images, times, attrs.heads, attrs.query_heads // attrs.heads, depth)
    key = key.reshape(images, times, attrs.heads, depth)
    value = value.reshape(images, times, attrs.heads, width)
    state = np.zeros((images, attrs.heads, depth, width), query.dtype)
    if past is not None:
        state = widen(past).copy()
    results = np.zeros((*query.shape[:4], width), query.dtype)
    for step in range(times):
        k, v = key[:, step], value[:, step]
        if decay is not None:
            factors = np.exp(widen(decay[:, step]))
            columns = decay.shape[2] // attrs.heads
            state = state * factors.reshape(images, attrs.heads, columns, 1)
        if rate is not None:
            v = widen(rate[:, step])[:, :, None] * (v - np.einsum("bhdm,bhd->bhm", state, k))
        state = state + k[..., None] * v[..., None, :]
        results[:, step] = np.einsum("bhgd,bhdm->bhgm", query[:, step], state)
    scale = query.dtype.type(attrs.scale or depth**-0.5)
    made = (results * scale).reshape(images, times, attrs.query_heads * width)
    dtype = required(inputs, 0).dtype
    return [made.astype(dtype, copy=False), state.astype(dtype, copy=False)]
