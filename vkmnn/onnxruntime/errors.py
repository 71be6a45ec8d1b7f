"""onnxruntime's exceptions, under the same names and with the same beginnings of messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from vkmnn.errors import (
    BudgetError,
    ConversionError,
    DeviceError,
    DeviceNotFoundError,
    InvalidInputError,
    ModelError,
    ModelFileError,
    OutOfDeviceMemoryError,
    OutOfHostMemoryError,
    PlacementError,
    ShapeError,
    UnsupportedNode,
    UnsupportedOpError,
    VkmnnError,
)


class OnnxruntimeError(VkmnnError):
    """Base of the exceptions for onnxruntime's status codes."""

    code: ClassVar[int] = 1
    label: ClassVar[str] = "FAIL"

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        node: str | None = None,
        hint: str | None = None,
    ) -> None:
        text = f"[ONNXRuntimeError] : {self.code} : {self.label} : {message}"
        super().__init__(text, op=op, node=node, hint=hint)


class Fail(OnnxruntimeError):
    """General failure: a node failed, or a model cannot be loaded."""


class InvalidArgument(OnnxruntimeError):
    """A name, type, rank or size that the model does not have."""

    code, label = 2, "INVALID_ARGUMENT"


class NoSuchFile(OnnxruntimeError):
    """There is no file at the path."""

    code, label = 3, "NO_SUCHFILE"


class NoModel(OnnxruntimeError):
    """There is no model."""

    code, label = 4, "NO_MODEL"


class EngineError(OnnxruntimeError):
    """The engine failed."""

    code, label = 5, "ENGINE_ERROR"


class RuntimeException(OnnxruntimeError):
    """A failure at run time, usually an allocation."""

    code, label = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(OnnxruntimeError):
    """The file is not a protobuf."""

    code, label = 7, "INVALID_PROTOBUF"


class ModelLoaded(OnnxruntimeError):
    """The model is loaded already."""

    code, label = 8, "MODEL_LOADED"


class NotImplemented(OnnxruntimeError):
    """A known operator or call that vkmnn does not implement."""

    code, label = 9, "NOT_IMPLEMENTED"


class InvalidGraph(OnnxruntimeError):
    """The model is not a valid graph."""

    code, label = 10, "INVALID_GRAPH"


class EPFail(OnnxruntimeError):
    """The execution provider failed: no such device, or the device was lost."""

    code, label = 11, "EP_FAIL"


class ModelLoadCanceled(OnnxruntimeError):
    """Loading was cancelled."""

    code, label = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(OnnxruntimeError):
    """The model has to be compiled first."""

    code, label = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(OnnxruntimeError):
    """Something asked for is not there."""

    code, label = 14, "NOT_FOUND"


EXCEPTIONS: tuple[type[OnnxruntimeError], ...] = (
    *(Fail, InvalidArgument, NoSuchFile, NoModel, EngineError, RuntimeException),
    *(InvalidProtobuf, ModelLoaded, NotImplemented, InvalidGraph, EPFail, ModelLoadCanceled),
    *(ModelRequiresCompilation, NotFound),
)

CPU_FALLBACK_OFF = (
    "This session contains graph nodes that are assigned to the default CPU EP, but fallback to "
    "CPU EP has been explicitly disabled by the user."
)


@contextmanager
def translated(path: str | None = None) -> Iterator[None]:
    """Convert vkmnn's errors to onnxruntime's, which keep op, node, hint and cause.

    Args:
        path: the model's, while it is loaded.
    """
    try:
        yield
    except OnnxruntimeError:
        raise
    except VkmnnError as error:
        raise _translation(error, path) from error


def _translation(error: VkmnnError, path: str | None) -> OnnxruntimeError:
    if isinstance(error, UnsupportedOpError):
        return _unsupported(error)
    kind: type[OnnxruntimeError] = Fail
    message = error.message
    if isinstance(error, ModelFileError):
        kind, message = InvalidProtobuf, f"Protobuf parsing failed. ({message})"
    elif isinstance(error, PlacementError):
        message = f"{CPU_FALLBACK_OFF} {message}"
    elif isinstance(error, ShapeError):
        message = (
            f"Non-zero status code returned while running {error.op or 'a'} node. "
            f"Name:'{error.node or ''}' Status Message: {message}"
        )
    else:
        kind = next((kind for known, kind in _KINDS if isinstance(error, known)), Fail)
        if kind is RuntimeException:
            message = f"Failed to allocate memory for requested buffer. {message}"
    if path is not None:
        message = f"Load model from {path} failed:{message}"
    return kind(message, op=error.op, node=error.node, hint=error.hint)


_KINDS: tuple[tuple[type[VkmnnError], type[OnnxruntimeError]], ...] = (
    (OutOfDeviceMemoryError, RuntimeException),
    (OutOfHostMemoryError, RuntimeException),
    (BudgetError, RuntimeException),
    (DeviceNotFoundError, EPFail),
    (DeviceError, EPFail),
    (InvalidInputError, InvalidArgument),
    (ConversionError, Fail),
    (ModelError, InvalidGraph),
)


def _unsupported(error: UnsupportedOpError) -> OnnxruntimeError:
    """Report the first unsupported node in onnxruntime's words, and list all of them."""
    first = error.nodes[0]
    kind, text = _of_node(first)
    return kind(f"{text}\n{error.message}", op=error.op, node=error.node, hint=error.hint)


def _of_node(node: UnsupportedNode) -> tuple[type[OnnxruntimeError], str]:
    from onnx import defs

    if defs.has(node.op, node.domain):
        text = f"Could not find an implementation for {node.op}({node.opset}) node with name "
        return NotImplemented, f"{text}'{node.node}'"
    if node.domain:
        return Fail, f"Fatal error: {node.domain}:{node.op}(-1) is not a registered function/op"
    text = f"In Node '{node.node}', Error No Op registered for {node.op} with domain_version of "
    return InvalidGraph, f"This is an invalid model. {text}{node.opset}"
