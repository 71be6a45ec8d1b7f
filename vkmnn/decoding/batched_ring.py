"""Recordings of a batched decode step in a ring."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.backend import Segment
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.plan import Plan
from vkmnn.decoding.decode_step import (
    LENGTH_STEP,
    SAMPLING,
    UNIFORM,
)
from vkmnn.decoding.sampling import LIKELIEST, DeviceSampling
from vkmnn.decoding.step_ring import NO_FEEDS, Ring
from vkmnn.ir import Array

LEFT_OUT = -1
"""Length of a sequence that sits out a step: its caches stay unchanged."""


@dataclass(frozen=True, slots=True)
class BatchTensors:
    """Inputs and outputs of a batched step; lists have a tensor for each recording.

    Attributes:
        tokens: inputs, as chosen by the step before, [batch, 1].
        lengths: rows of the caches, [batch].
        uniforms: random numbers from 0 to 1, [batch, 1]; empty for greedy steps.
        logits: outputs, [batch, …]; empty if the host does not sample.
        settings: `LENGTH_STEP`, and inputs that control sampling.
    """

    tokens: Sequence[DeviceTensor]
    lengths: Sequence[DeviceTensor]
    uniforms: Sequence[DeviceTensor]
    logits: Sequence[DeviceTensor]
    settings: Mapping[str, DeviceTensor]

    def inputs(self, turn: int) -> dict[str, DeviceTensor]:
        """Return the inputs of a recording other than tokens, lengths and caches."""
        own = {UNIFORM: self.uniforms[turn]} if self.uniforms else {}
        return {**self.settings, **own}


class BatchedRing(Ring):
    """The recordings of a step of several sequences.

    Args:
        plan: plan of the step.
        segments: its recordings.
        tensors: their inputs and outputs.

    Attributes:
        waited: CPU seconds spent on waiting for steps.
    """

    def __init__(self, plan: Plan, segments: Sequence[Segment], tensors: BatchTensors) -> None:
        super().__init__(plan, segments)
        self._tensors = tensors
        self.waited = 0.0

    def set(
        self,
        tokens: Mapping[int, int],
        lengths: Mapping[int, int],
        sampling: Mapping[int, DeviceSampling],
    ) -> None:
        """Write the inputs of the next step; no step may be queued.

        Args:
            tokens: by the index of a sequence in the batch; all others are left out.
            lengths: rows in the caches of these sequences.
            sampling: for sequences that sample on the device; the others are greedy.
        """
        turn, tensors = self._free_turn(), self._tensors
        _fill(tensors.tokens[turn], tokens, 0)
        _fill(tensors.lengths[turn], lengths, LEFT_OUT)
        _fill(tensors.settings[LENGTH_STEP], dict.fromkeys(tokens, 1), 0)
        if tensors.uniforms:
            settings = tensors.settings[SAMPLING]
            rows = np.array([LIKELIEST] * settings.shape[0], np.float32)
            for number, one in sampling.items():
                rows[number] = one.settings
            settings.copy_from(rows)

    def submit(self, uniforms: Mapping[int, float]) -> None:
        """Queue a step on the tokens of the previous one, or on those that were set.

        Args:
            uniforms: random numbers from 0 to 1, for sequences that sample on the device.
        """
        turn = self._turn
        if self._tensors.uniforms:
            _fill(self._tensors.uniforms[turn], uniforms, 0)
        self._begun.add(turn)
        self._segments[turn].begin(NO_FEEDS)
        self._queue.append(turn)
        self._turn = (turn + 1) % len(self._segments)

    def finish(self) -> tuple[Array, Array | None]:
        """Wait for the oldest step; return its tokens, and its logits if the host samples."""
        start = time.thread_time()
        try:
            turn = self._finish()
        finally:
            self.waited += time.thread_time() - start
        tensors = self._tensors
        tokens = tensors.tokens[(turn + 1) % len(tensors.tokens)].numpy().reshape(-1)
        if not tensors.logits:
            return tokens, None
        logits = tensors.logits[turn].numpy()
        return tokens, logits.reshape(len(logits), -1)


def _fill(tensor: DeviceTensor, values: Mapping[int, float], other: float) -> None:
    """Write a number for each sequence."""
    array = np.full(tensor.shape[0], other, tensor.dtype)
    for index, value in values.items():
        array[index] = value
    tensor.copy_from(array.reshape(tensor.shape))
