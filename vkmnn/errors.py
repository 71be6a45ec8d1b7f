"""The exception hierarchy: every error that vkmnn raises on purpose is a `VkmnnError`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vkmnn.base.records import dataclass

_LONGEST_LINE = 4000
_LONGEST_NAME = 400


def _clipped(text: str, most: int) -> str:
    """Return a text, shortened in the middle if it is too long: names in models have any length."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … ({len(text) - 2 * half} characters) … {text[-half:]}"


def plural(count: int, noun: str, many: str = "") -> str:
    """Return a number with its noun: "1 node", "2 nodes"; `many` gives irregular plurals."""
    return f"{count} {noun if count == 1 else many or f'{noun}s'}"


_MAX_LISTED = 12


def nearest(name: str, known: Iterable[str], what: str, most: int = 1) -> str:
    """Return a hint for an unknown name: the nearest known names, or all of them.

    Args:
        name: the unknown name.
        known: the known names.
        what: the kind of names, in the plural: "inputs".
        most: maximum number of names to offer.
    """
    from difflib import get_close_matches

    names = list(dict.fromkeys(known))
    lower = {one.lower(): one for one in reversed(names)}
    near = get_close_matches(str(name).lower(), lower, most)
    if near:
        return f"did you mean {' or '.join(lower[one] for one in near)}?"
    more = f", … ({len(names) - _MAX_LISTED} more)" if len(names) > _MAX_LISTED else ""
    return f"{what}: {', '.join(names[:_MAX_LISTED]) or 'none'}{more}"


class VkmnnError(Exception):
    """Base class of all vkmnn errors.

    Args:
        message: the error, in one sentence; overlong lines are shortened in the middle.
        op: the type of the operator concerned (`"Conv"`), if any.
        node: the node's name in the model, if any.
        hint: what to do next.

    Attributes:
        unexpected: True if no check anticipated the failure: the `__cause__` is some rule's own
            error. Tests look for these.
    """

    unexpected = False

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        node: str | None = None,
        hint: str | None = None,
    ) -> None:
        lines = message.split("\n")
        self.message = "\n".join(_clipped(line, _LONGEST_LINE) for line in lines)
        self.op = op
        self.node = node
        self.hint = hint if hint is None else _clipped(hint, _LONGEST_LINE)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to copy or pickle it: without its constructor, which takes other arguments."""
        return _revived, (type(self), self.args), dict(self.__dict__)

    def __str__(self) -> str:
        """Return message, location and hint."""
        text = self.message
        where = [
            part
            for part in (
                self.op and f"op {_clipped(self.op, _LONGEST_NAME)}",
                self.node and f"node '{_clipped(self.node, _LONGEST_NAME)}'",
            )
            if part
        ]
        if where:
            text += f" ({', '.join(where)})"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text


def _revived(kind: type[VkmnnError], arguments: tuple[Any, ...]) -> VkmnnError:
    """Return an error whose attributes are set afterwards."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error


class ModelError(VkmnnError):
    """A model file is missing, damaged, hostile or not a valid graph."""


class ModelFileError(ModelError):
    """A model file is missing, unreadable, or not a model at all."""


class BudgetError(ModelError):
    """Loading or planning a model would exceed the allowed memory, nodes or time."""


class MissingExtraError(VkmnnError, ImportError):
    """A feature needs a package that is not installed; the hint says how to install it."""


class OutOfHostMemoryError(VkmnnError, MemoryError):
    """An allocation in the machine's own memory failed."""


class ConversionError(VkmnnError):
    """A valid model contains something that the converter cannot express."""


TENSOR_KINDS = frozenset({"Input", "Initializer"})
"""Placeholder for the operator in an `UnsupportedNode` that is a tensor of the model."""

_CHANGE_TYPES = "export the model with dense tensors of float32 or float16, integers or booleans"


@dataclass(frozen=True, slots=True)
class UnsupportedNode:
    """A node that vkmnn cannot run, with the reason or an alternative."""

    op: str
    domain: str
    opset: int
    node: str
    reason: str


class UnsupportedOpError(ConversionError):
    """The model uses operators that vkmnn does not support; `nodes` lists them all."""

    def __init__(self, nodes: Sequence[UnsupportedNode], *, hint: str | None = None) -> None:
        self.nodes = tuple(nodes)
        lines = [
            f"  {node.op.lower()} '{node.node}': {node.reason}"
            if node.op in TENSOR_KINDS
            else f"  {node.domain or 'ai.onnx'}::{node.op} (opset {node.opset}) node "
            f"'{node.node}': {node.reason}"
            for node in self.nodes
        ]
        tensors = sum(node.op in TENSOR_KINDS for node in self.nodes)
        counts = ((tensors, "unsupported tensor"), (len(self.nodes) - tensors, "unsupported node"))
        what = " and ".join(plural(count, kind) for count, kind in counts if count)
        message = f"{what or 'unsupported'}:\n" + "\n".join(lines)
        first = self.nodes[0] if self.nodes else None
        super().__init__(
            message,
            op=first.op if len(self.nodes) == 1 and first else None,
            node=first.node if len(self.nodes) == 1 and first else None,
            hint=hint
            or (_CHANGE_TYPES if tensors == len(self.nodes) else None)
            or "`vkmnn ops` lists what is supported; `python -m vkmnn.codegen new-op` adds one",
        )


class ShapeError(VkmnnError):
    """The shapes of an operator's inputs do not match, or cannot be determined."""


class InvalidInputError(VkmnnError):
    """An argument of a public call has the wrong name, shape, dtype or value."""


class IntegerRangeError(InvalidInputError):
    """An integer does not fit into the 32 bits with which the device computes.

    Sessions run these inputs on numpy instead, unless they require the device.
    """


class VoidRunError(VkmnnError):
    """The results of a run are void; sessions that can plan anew repeat it with another plan."""


class LateFlagError(VoidRunError):
    """A dispatch that waited for another by flags gave up; see `VKMNN_FLAGS`.

    Sessions repeat the run with barriers, and keep these.
    """


class Float16OverflowError(VoidRunError):
    """A value that fits float32 became infinite in float16; see `on_overflow`.

    Args:
        message: the overflow.
        names: ops and tensors that have to keep float32.
        op: type of the first op that overflowed.
        node: its name.
        hint: what to do.
    """

    def __init__(
        self,
        message: str,
        names: frozenset[str] = frozenset(),
        *,
        op: str | None = None,
        node: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.names = names
        super().__init__(message, op=op, node=node, hint=hint)


class HostError(VkmnnError):
    """The host's ONNX evaluator failed at a node that has no kernel."""


class PlacementError(VkmnnError):
    """An operator would run off the device, although the caller requires every op to run on it."""


class DeviceNotFoundError(VkmnnError):
    """No device matches the selector; the message lists those found and what to install."""


class DeviceProfileError(VkmnnError):
    """There is no device profile with that name, or its file is damaged."""


class DeviceError(VkmnnError):
    """A Vulkan call failed for a reason without a specific class.

    Attributes:
        vk_result: the VkResult, if it was a single call that failed.
    """

    vk_result: int | None = None


class DeviceLostError(DeviceError):
    """The device was lost or did not finish in time; the session has to be rebuilt.

    With `on_device_lost="rebuild"`, sessions do so by themselves.
    """


class StateLostError(DeviceLostError):
    """A state's contents were lost with its device; its session has opened another one.

    The session continues: create a new state, and repeat the runs of the lost one.
    """


class OutOfDeviceMemoryError(DeviceError):
    """An allocation failed; the message breaks down the planned memory."""


class DeviceLimitError(DeviceError):
    """A call exceeds a limit of the device, or uses a feature that it lacks.

    Args:
        message: the request.
        limit: the name of the limit or feature.
        op: as for `VkmnnError`.
    """

    def __init__(self, message: str, limit: str, *, op: str | None = None) -> None:
        self.limit = limit
        super().__init__(message, op=op)


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
    """A plug-in registers something twice, or something that is not valid."""


def unexpected_error(
    error: Exception,
    doing: str,
    *,
    kind: type[VkmnnError] = ModelError,
    op: str | None = None,
    node: str | None = None,
) -> VkmnnError:
    """Return the typed error for one that no check foresaw; raise it `from` the original.

    Args:
        error: the error raised by the rule for an op; a VkmnnError is returned as it is.
        doing: the step that failed: "shape computation".
        kind: the class of the result; running out of memory always gives OutOfHostMemoryError.
        op: the type of the operator concerned.
        node: the node's name in the model.
    """
    if isinstance(error, VkmnnError):
        return error
    if isinstance(error, MemoryError):
        return OutOfHostMemoryError(
            f"{doing}: there is not enough memory{f': {error}' if str(error) else ''}",
            op=op,
            node=node,
            hint="give smaller inputs, or free memory; if the model is not trusted, refuse it",
        )
    found = kind(
        f"{doing} failed: {type(error).__name__}: {error}",
        op=op,
        node=node,
        hint="the model is most likely invalid here; if it is valid, this is a bug in vkmnn",
    )
    found.unexpected = True
    return found


@contextmanager
def typed_memory_errors(doing: str) -> Iterator[None]:
    """Turn a MemoryError raised within the block into an OutOfHostMemoryError."""
    try:
        yield
    except VkmnnError:
        raise
    except MemoryError as error:
        raise unexpected_error(error, doing) from error


_PACKAGE = Path(__file__).resolve().parent


def page(name: str) -> str:
    """Return the path of a documentation page, such as "extending/operator", for a message.

    In a wheel, pages are files of the package; in a checkout, those of `docs/` next to it.
    """
    packed = _PACKAGE / "docs" / f"{name}.md"
    return str(packed if packed.is_file() else _PACKAGE.parent / "docs" / f"{name}.md")
