"""The exception tree: every error that vkmnn raises on purpose derives from `VkmnnError`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class VkmnnError(Exception):
    """Base of all vkmnn errors.

    Args:
        message: what is wrong, in one sentence.
        op: the operator type concerned (`"Conv"`), if there is one.
        node: the node's name in the model, if there is one.
        hint: what to do next.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        node: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = message
        self.op = op
        self.node = node
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        """Return the message, where it happened and the hint."""
        text = self.message
        where = [
            part
            for part in (self.op and f"op {self.op}", self.node and f"node '{self.node}'")
            if part
        ]
        if where:
            text += f" ({', '.join(where)})"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text


class ModelError(VkmnnError):
    """A model file is missing, damaged, hostile or not a valid graph."""


class ConversionError(VkmnnError):
    """A valid model says something that the converter cannot express."""


@dataclass(frozen=True, slots=True)
class UnsupportedNode:
    """One node that vkmnn cannot run, and why or what to use instead."""

    op: str
    domain: str
    opset: int
    node: str
    reason: str


class UnsupportedOpError(ConversionError):
    """The model uses operators that vkmnn does not know; all of them are listed in `nodes`."""

    def __init__(self, nodes: Sequence[UnsupportedNode], *, hint: str | None = None) -> None:
        self.nodes = tuple(nodes)
        lines = [
            f"  {node.domain or 'ai.onnx'}::{node.op} (opset {node.opset}) node '{node.node}': "
            f"{node.reason}"
            for node in self.nodes
        ]
        message = f"{len(self.nodes)} unsupported node(s):\n" + "\n".join(lines)
        first = self.nodes[0] if self.nodes else None
        super().__init__(
            message,
            op=first.op if len(self.nodes) == 1 and first else None,
            node=first.node if len(self.nodes) == 1 and first else None,
            hint=hint
            or "`vkmnn ops` lists what is supported; docs/add-an-operator.md says how to add one",
        )


class ShapeError(VkmnnError):
    """Shapes of an operator's inputs do not fit together, or cannot be worked out."""


class InvalidInputError(VkmnnError):
    """An argument of a public call has the wrong name, shape, dtype or value."""


class PlacementError(VkmnnError):
    """An operator would run off the device although the caller asked for every op on it."""


class DeviceNotFoundError(VkmnnError):
    """No device fits the selector; says what was found and what to install."""


class DeviceError(VkmnnError):
    """A Vulkan call failed for a reason that has no class of its own."""


class DeviceLostError(DeviceError):
    """The device was lost or did not finish in time; the session has to be rebuilt."""


class OutOfDeviceMemoryError(DeviceError):
    """An allocation failed; the message holds the breakdown of what was planned."""


class ValidationLayerError(DeviceError):
    """The Khronos validation layer reported a message while validation mode was on."""


class ShaderError(VkmnnError):
    """A shader template or its entry in macro.json is wrong, or a variant does not exist."""

    def __init__(
        self,
        message: str,
        *,
        template: str | None = None,
        line: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.template = template
        self.line = line
        where = f"{template}:{line}: " if template and line else f"{template}: " if template else ""
        super().__init__(where + message, hint=hint)


class PluginError(VkmnnError):
    """A plug-in registers something twice, or something that does not fit."""
