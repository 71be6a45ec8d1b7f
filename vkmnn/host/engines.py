"""The evaluators of ONNX that may be installed: onnxruntime, and the onnx package's own."""

from __future__ import annotations

import logging
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vkmnn.base.threads import PatientFuture
from vkmnn.converter.onnx.types import TEXT_TYPES
from vkmnn.host.bounded import TooLargeError, bounds, evaluator_class
from vkmnn.host.effort import LONG
from vkmnn.host.exact_codes import with_exact_codes
from vkmnn.host.genuine import genuine_onnxruntime, is_installed
from vkmnn.host.hazards import (
    all_nodes,
    hazard_of_onnx,
    hazard_of_onnxruntime,
    held_graphs,
    matrices_to_invert,
)
from vkmnn.host.loop import loop_class
from vkmnn.host.scan import scan_class
from vkmnn.host.sessions import session_options

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_log = logging.getLogger(__name__)

Value = Any
"""An array, a list of arrays (a sequence), a dictionary (a map), or None (an empty optional)."""

# TensorProto.DataType values that onnxruntime exchanges with numpy unchanged.
_SHARED = frozenset({*range(1, 14)})


# Deviations of onnxruntime from the specification, by operator of ONNX's own domain.
_DEVIANT: Mapping[str, str] = {
    "Dropout": "it draws other random numbers for a seed",
    "MaxUnpool": "it counts indices in output_shape, onnx in the shape that follows without it",
}


_NO_MEMORY = ("smaller than requested bytes", "Failed to allocate memory")
"""onnxruntime's message when an allocator is exhausted."""

_ARENA_BYTES = 1 << 20
_END_S = 1.0
"""Seconds to wait for a cancelled run."""
_arenas = Lock()


class EngineError(Exception):
    """An evaluator rejects a model, or fails to run it; the message says why."""


class EngineTimeoutError(EngineError):
    """A run was cancelled, or not started, because it takes too long."""


class EngineMemoryError(EngineError):
    """A model would need more memory than is available."""


class HostEngine(ABC):
    """A model in an evaluator.

    Args:
        model: the model.
        room: maximum bytes of its values, None for any number.
    """

    name: ClassVar[str]
    steps_per_second: ClassVar[float]
    """Minimum elementary steps per second; see `effort.py`."""

    @abstractmethod
    def __init__(self, model: onnx.ModelProto, room: int | None = None) -> None:
        """Prepare a model.

        Raises:
            EngineError: the evaluator does not support it.
        """

    @abstractmethod
    def run(
        self, outputs: Sequence[str], feeds: Mapping[str, Value], seconds: float
    ) -> list[Value]:
        """Return the values of these outputs.

        Args:
            outputs: their names.
            feeds: the model's inputs by name.
            seconds: maximum time of a run.

        Raises:
            EngineError: it fails.
            EngineTimeoutError: it takes longer than that.
            EngineMemoryError: its values take too much memory.
        """

    def types(self) -> dict[str, onnx.TypeProto]:
        """Return the types of the model's outputs that are known."""
        return {}

    @staticmethod
    def installed() -> bool:
        """True if the evaluator can be imported."""
        return True


class OnnxRuntime(HostEngine):
    """onnxruntime on the processor."""

    name = "onnxruntime"
    steps_per_second = 2e8

    def __init__(self, model: onnx.ModelProto, room: int | None = None) -> None:
        onnxruntime = genuine_onnxruntime()
        foreign = next((value.name for value in _values(model) if not _is_shared(value.type)), None)
        if foreign is not None:
            raise EngineError(
                f"'{foreign}' has a type that numpy and onnxruntime do not both support"
            )
        for node in model.graph.node:
            if not node.domain and node.op_type in _DEVIANT:
                raise EngineError(f"{node.op_type}: {_DEVIANT[node.op_type]}")
        _refuse(hazard_of_onnxruntime, model)
        self._square = matrices_to_invert(model)
        self._what = _what_runs(model)
        self._is_watched = any(node.op_type in LONG for node in all_nodes(model))
        if any(not body.node for body in _loops(model)):
            raise EngineError("it cannot interrupt a Loop without nodes")
        self._divides_by_sizes = any(map(_transposes, all_nodes(model)))
        options = session_options()
        try:
            with _arena(options, model, room):
                self._session = onnxruntime.InferenceSession(
                    with_exact_codes(model).SerializeToString(),
                    options,
                    providers=["CPUExecutionProvider"],
                )
        except Exception as error:
            raise EngineError(_line(error)) from error

    def run(
        self, outputs: Sequence[str], feeds: Mapping[str, Value], seconds: float
    ) -> list[Value]:
        if self._divides_by_sizes and any(_is_empty(value) for value in feeds.values()):
            raise EngineError("the process would crash: it divides by sizes where Scan transposes")
        if any(not _is_square(feeds[name]) for name in self._square):
            raise EngineError("Inverse needs square matrices (others crash onnxruntime)")
        try:
            if self._is_watched:
                return self._run_watched(outputs, feeds, seconds)
            return list(self._session.run(list(outputs), dict(feeds)))
        except EngineTimeoutError:
            raise
        except Exception as error:
            if any(text in str(error) for text in _NO_MEMORY):
                raise EngineMemoryError("its values take more memory than is allowed") from error
            raise EngineError(_line(error)) from error

    def _run_watched(
        self, outputs: Sequence[str], feeds: Mapping[str, Value], seconds: float
    ) -> list[Value]:
        """Run in a thread, so that a timeout or Ctrl-C stops it after the current node.

        A node that runs longer is abandoned: only the end of the process stops it.
        """
        options = genuine_onnxruntime().RunOptions()
        done: PatientFuture[list[Value]] = PatientFuture()

        def run() -> None:
            try:
                done.set_result(list(self._session.run(list(outputs), dict(feeds), options)))
            except BaseException as error:  # noqa: BLE001 - `result` raises it
                done.set_exception(error)

        # Not of a pool: the interpreter waits for those when it ends.
        threading.Thread(target=run, name="vkmnn-host", daemon=True).start()
        try:
            return done.result(seconds)
        except FutureTimeoutError as error:
            if done.done():  # the error is onnxruntime's
                raise
            raise EngineTimeoutError(f"{self._what} took more than {seconds:g} s") from error
        finally:
            options.terminate = not done.done()
            with suppress(BaseException):
                done.exception(_END_S)

    def types(self) -> dict[str, onnx.TypeProto]:
        from onnx import helper

        found = {}
        for value in self._session.get_outputs():
            code = TEXT_TYPES.get(value.type)
            if code is not None:
                # A shape without axes may also mean that nothing is known about it.
                found[value.name] = helper.make_tensor_type_proto(code, value.shape or None)
        return found

    @staticmethod
    def installed() -> bool:
        return is_installed()


class Reference(HostEngine):
    """The reference evaluator of the onnx package, in numpy."""

    name = "onnx"
    steps_per_second = 1e6

    def __init__(self, model: onnx.ModelProto, room: int | None = None) -> None:
        self._room = inf if room is None else room
        for node in all_nodes(model):
            count = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 1)
            if node.op_type == "Scan" and not 0 < count <= len(node.input):
                raise EngineError(f"Scan of {count} inputs has {len(node.input)}")
        _refuse(hazard_of_onnx, model)
        self._what = _what_runs(model)
        try:
            self._evaluator = evaluator_class()(model, new_ops=[loop_class(), scan_class()])
        except Exception as error:
            raise EngineError(_line(error)) from error

    def run(
        self, outputs: Sequence[str], feeds: Mapping[str, Value], seconds: float
    ) -> list[Value]:
        try:
            with (
                bounds(seconds, self._room),
                np.errstate(all="ignore"),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                return [_plain(value) for value in self._evaluator.run(list(outputs), dict(feeds))]
        except TimeoutError as error:
            raise EngineTimeoutError(f"{self._what} took more than {seconds:g} s") from error
        except (TooLargeError, MemoryError) as error:
            raise EngineMemoryError(_line(error)) from error
        except Exception as error:
            raise EngineError(_line(error)) from error


ENGINES: Mapping[str, type[HostEngine]] = {OnnxRuntime.name: OnnxRuntime, Reference.name: Reference}
"""The evaluators by name, the faster one first."""


def _plain(value: Value) -> Value:
    """Return a value of the reference evaluator as onnxruntime would return it."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, dict):
        return value
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "UST" else array


def _is_empty(value: Value) -> bool:
    return isinstance(value, np.ndarray) and not value.size


def _refuse(hazard_of: Callable[[onnx.ModelProto], str | None], model: onnx.ModelProto) -> None:
    try:
        danger = hazard_of(model)
    except (TypeError, ValueError) as error:  # attributes of other types
        raise EngineError(_line(error)) from error
    if danger is not None:
        raise EngineError(f"it would not terminate: {danger}")


def _is_square(value: Value) -> bool:
    return len(value.shape) > 1 and bool(value.shape[-1] == value.shape[-2])


def _values(model: onnx.ModelProto) -> Iterable[onnx.ValueInfoProto]:
    yield from model.graph.input
    yield from model.graph.output


def _what_runs(model: onnx.ModelProto) -> str:
    """Return the running nodes, for messages."""
    return "a loop" if any(n.op_type in ("Loop", "Scan") for n in all_nodes(model)) else "it"


def _loops(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the bodies of Loop at any depth."""
    for node in all_nodes(model):
        if node.op_type == "Loop":
            yield from held_graphs(node)


def _transposes(node: onnx.NodeProto) -> bool:
    """Whether it is a Scan over an axis other than the first."""
    axes = ("scan_input_axes", "scan_output_axes")
    return node.op_type == "Scan" and any(
        attribute.name in axes and any(attribute.ints) for attribute in node.attribute
    )


@contextmanager
def _arena(
    options: onnxruntime.SessionOptions, model: onnx.ModelProto, room: int | None
) -> Iterator[None]:
    """Give the session created in this context an allocator with a limit."""
    if room is None:
        yield
        return
    onnxruntime = genuine_onnxruntime()
    kinds = onnxruntime.OrtAllocatorType, onnxruntime.OrtMemType
    place = onnxruntime.OrtMemoryInfo("Cpu", kinds[0].ORT_ARENA_ALLOCATOR, 0, kinds[1].DEFAULT)
    # -1: as onnxruntime likes it
    arena = onnxruntime.OrtArenaCfg(room + model.ByteSize() + _ARENA_BYTES, -1, -1, -1)
    options.add_session_config_entry("session.use_env_allocators", "1")
    with _arenas:  # the next session uses the allocator that was registered last
        onnxruntime.create_and_register_allocator(place, arena)
        yield


def _is_shared(proto: onnx.TypeProto) -> bool:
    kind = proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _is_shared(getattr(proto, kind).elem_type)
    return kind != "tensor_type" or not (
        proto.tensor_type.elem_type and proto.tensor_type.elem_type not in _SHARED
    )


def _line(error: Exception) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if len(text) <= 300 else f"{text[:300]} …"
