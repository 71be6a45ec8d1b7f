"""Recurrent: the steps of LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation, Array
from vkmnn.ir.ops import RECURRENT_ACTIVATIONS, RecurrentAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.shape.recurrent import LENGTHS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.gemm.weights import Weights
from vkmnn.vulkan.recurrence import Problem, Sharing, sharings

_REVERSED = {"FORWARD": 0, "REVERSE": 1, "BIDIRECTIONAL": 2}
_NO_CLIP = float(np.finfo(np.float32).max)
_BIAS, _FIRST_H, _FIRST_C, _PEEPHOLES = 2, 4, 5, 6

Activations = tuple[Activation, ...]


@vulkan_execution("Recurrent")
class RecurrentExecution(VulkanExecution[RecurrentAttrs]):
    """Few dispatches if a workgroup holds all units of a sequence, else one per step."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject empty sequences, and states that do not fit into shared memory."""
        attrs, gates, weights = self.attrs, self.operand(0).shape, self.operand(1).shape
        steps, batch = gates[1::-1] if attrs.batch_first else gates[:2]
        resets = attrs.cell == "GRU" and not attrs.linear
        hidden = weights[-1]
        self._problem = Problem(attrs.cell, steps, batch, hidden, attrs.directions, resets)
        if steps == 0:
            raise Rejection("there is no step")
        if batch * hidden and not sharings(self._problem, info, texel=False):
            raise Rejection(f"a state of {hidden} units does not fit into shared memory")

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Read gates and weights narrow, and round every h likewise; states stay in float32."""
        reads, _ = self.by_rule(FloatRule.TAKES, element)
        every = self.result(0)
        inputs = [takes and number < _BIAS for number, takes in enumerate(reads)]
        return inputs, [tensor is every for tensor in self.outputs]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        problem, chosen = self._problem, self.attrs.activations
        if problem.batch * problem.hidden == 0:
            return
        ways = sharings(problem, encoder.info, texel="texel" in encoder.loads)
        whole = encoder.choose("whole", problem, list(dict.fromkeys(one.whole for one in ways)))
        ways = [one for one in ways if one.whole is whole]
        sharing = encoder.choose("recurrent", (problem, whole), ways)
        count = RECURRENT_ACTIVATIONS[problem.cell]
        sides = [chosen[number : number + count] for number in range(0, len(chosen), count)]
        weights = self._weights(sharing, encoder)
        if len(set(sides)) == 1:
            self._encode(sides[0], 0, len(sides), weights, sharing, encoder)
            return
        for number, side in enumerate(sides):
            self._encode(side, number, 1, weights, sharing, encoder)

    def _encode(
        self,
        activations: Activations,
        direction: int,
        directions: int,
        weights: Tensor,
        sharing: Sharing,
        encoder: VulkanEncoder,
    ) -> None:
        """Record the steps of consecutive directions with the same activations."""
        problem = self._problem
        size = problem.directions * problem.batch * problem.hidden
        groups = (
            ceil_div(problem.hidden, sharing.span(problem)),
            ceil_div(problem.batch, sharing.rows),
            directions,
        )
        shader = kernels.recurrent(
            gates=problem.gates,  # type: ignore[arg-type]
            rows=sharing.rows,
            lanes=sharing.lanes,
            element=encoder.element,
        )
        sizes, spec = self._sizes(activations, sharing)
        status, sizes["check"] = self._checked(encoder)
        taken = sharing.steps(problem)
        carried = [encoder.scratch(size, full=True) for _ in range(2)]
        last = self.result(1) or encoder.scratch(size, full=True)
        lstm = problem.cell == "LSTM"
        resets = problem.resets and not sharing.whole
        side = (lstm and self.result(2)) or (
            encoder.scratch(size, full=True) if lstm or resets else None
        )
        h, c = self.optional(_FIRST_H), self.optional(_FIRST_C)
        for number, first in enumerate(range(0, problem.steps, taken)):
            made = last if first + taken >= problem.steps else carried[number % 2]
            sizes |= {
                "direction": direction,
                "first": first,
                "count": min(taken, problem.steps - first),
            }
            for phases in sharing.phases(problem):
                read = side if resets else c
                tensors = self._bindings(weights, h, read, side or made, made, status)
                given = self._given(h, read, phases, shader_spec=spec)
                encoder.dispatch(shader, tensors, kernels.RecurrentParams(**sizes), groups, given)
            h, c = made, side

    def _bindings(
        self,
        weights: Tensor,
        h: Tensor | None,
        read: Tensor | None,
        side: Tensor,
        made: Tensor,
        status: Tensor,
    ) -> list[Tensor]:
        """Return the tensors in binding order; any tensor where a specialization omits one."""
        gates = self.operand(0)
        tensors = [gates, weights]
        if self._problem.gates > 1:
            tensors.append(self._extra or gates)
        tensors += [self.optional(LENGTHS) or gates, h or gates]
        if self._problem.gates > 1:
            tensors += [read or gates, side]
        return [*tensors, self.result(0) or made, made, status]

    @property
    def _extra(self) -> Tensor | None:
        """Parts of only some cells: the peepholes of an LSTM, a bias of a GRU."""
        return self.optional(_PEEPHOLES if self._problem.cell == "LSTM" else _BIAS)

    def _given(
        self,
        h: Tensor | None,
        read: Tensor | None,
        phases: tuple[int, int],
        *,
        shader_spec: dict[str, int | bool],
    ) -> dict[str, int | bool]:
        """Return the specialization of a dispatch: its inputs, and its phase of a GRU."""
        spec = {**shader_spec, "HAS_H": h is not None}
        if self._problem.gates > 1:
            spec |= {"HAS_EXTRA": self._extra is not None, "HAS_SIDE": read is not None}
        if self._problem.cell == "LSTM":
            spec["COUPLED"] = self.attrs.coupled
        if self._problem.cell == "GRU":
            spec |= {"PHASE_FIRST": phases[0], "PHASE_LAST": phases[1]}
        return spec

    def _sizes(
        self, activations: Activations, sharing: Sharing
    ) -> tuple[dict[str, Any], dict[str, int | bool]]:
        """Return parameters and specialization that all dispatches share."""
        attrs, problem = self.attrs, self._problem
        hidden, directions = problem.hidden, problem.directions
        padded = (*activations, *[Activation()] * (3 - len(activations)))
        columns = self.operand(0).shape[2]
        in_row, step, row = hidden, problem.batch, 1
        if attrs.batch_first:
            in_row, step, row = directions * hidden, 1, problem.steps
        sizes: dict[str, Any] = {
            "hidden": hidden,
            "batch": problem.batch,
            "reversed": _REVERSED[attrs.direction],
            "span": sharing.span(problem),
            "steps": problem.steps,
            "g_step": step * columns,
            "g_row": row * columns,
            "y_step": directions * hidden * step,
            "y_row": row * in_row,
            "y_direction": hidden if attrs.batch_first else problem.batch * hidden,
            "s_row": in_row,
            "s_direction": hidden if attrs.batch_first else problem.batch * hidden,
            "clip": attrs.clip if attrs.clip > 0 else _NO_CLIP,
            "alphas": tuple(one.alpha for one in padded),
            "betas": tuple(one.beta for one in padded),
        }
        spec: dict[str, int | bool] = {
            name: int(kernels.Cell[one.kind]) for name, one in zip("FGH", activations, strict=False)
        }
        spec |= {
            "local_size_x": sharing.local,
            "PITCH": sharing.pitch(problem),
            "BUFFERS": sharing.buffers(problem),
            "HAS_LENGTHS": self.optional(LENGTHS) is not None,
            "HAS_Y": self.result(0) is not None,
        }
        if not sharing.lanes:
            spec["SLICES"] = sharing.slices
        return sizes, spec

    def _checked(self, encoder: VulkanEncoder) -> tuple[Tensor, int]:
        lengths = self.optional(LENGTHS)
        if lengths is None:
            return encoder.unchecked()
        return encoder.check_range(lengths, 0, self._problem.steps, self.op)

    def _weights(self, sharing: Sharing, encoder: VulkanEncoder) -> Tensor:
        """Return the weights as [D, from, to, gates], `from` in whole blocks and gates 1 or 4.

        Subgroups read them in the order of `in_reading_order`.
        """
        problem = self._problem
        hidden, gates, pitch = problem.hidden, problem.gates, sharing.pitch(problem)
        rows = problem.directions * gates * hidden

        def flat(plain: Array) -> Array:
            return plain.reshape(rows, hidden, 1)

        def pack(plain: Array) -> Array:
            split = plain.reshape(problem.directions, gates, hidden, hidden).transpose(0, 3, 2, 1)
            if sharing.lanes:
                return in_reading_order(split, sharing.lanes)
            width = 1 if gates == 1 else 4
            packed = np.zeros((problem.directions, pitch, hidden, width), plain.dtype)
            packed[:, :hidden, :, :gates] = split
            return packed

        weights = Weights(self.operand(1), "recurrent", flat)
        return weights.packed(f"cell:{gates}:{pitch}:{sharing.lanes}", pack, encoder)


def in_reading_order(weights: Array, lanes: int) -> Array:
    """Return weights [D, from, to, gates] as [D, blocks of to, blocks of from, vec4s, lanes, 4].

    In rotation r, lane l reaches number (l + r) % lanes of a block of the state. The vec4s of a
    lane hold its rotations one after the other, with the gates of each.
    """
    directions, size, _, gates = weights.shape
    blocks = ceil_div(size, lanes)
    padded = np.zeros((directions, blocks * lanes, blocks * lanes, gates), weights.dtype)
    padded[:, :size, :size] = weights
    split = padded.reshape(directions, blocks, lanes, blocks, lanes, gates)
    lane = np.arange(lanes)
    turned = (lane + lane[:, None]) % lanes
    # With indices on both sides of a slice, their axes come first: rotation and lane.
    read = split[:, :, turned, :, lane].transpose(2, 4, 3, 1, 0, 5)
    vectors = read.reshape(directions, blocks, blocks, lanes, lanes * gates // 4, 4)
    ordered: Array = vectors.swapaxes(3, 4)
    return ordered
