"""The MNN-shaped face: an Interpreter holds a network, Sessions run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.arguments import check_shape, check_symbols, fed_array
from vkmnn.budget import Budget
from vkmnn.core.device_tensor import DeviceTensor, as_array
from vkmnn.core.placement import Placement
from vkmnn.core.session import Session as CoreSession
from vkmnn.core.watched import Callback
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, Graph, TensorInfo
from vkmnn.opening import CpuInfo, OpenSession, load_network, open_session
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.schedule_config import Precision, ScheduleConfig, Unsupported

if TYPE_CHECKING:
    import onnx


class SessionTensor:
    """An input or output of a session: a shape to change and data to copy in or out."""

    def __init__(
        self, info: TensorInfo, shape: tuple[int, ...] | None, is_output: bool = False
    ) -> None:
        self.info = info
        self.is_output = is_output
        self._mapped: Array | None = None
        self.shape = shape
        self.array: Array | DeviceTensor | None = None

    @property
    def name(self) -> str:
        """The tensor's name in the model."""
        return self.info.name

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The element type."""
        return self.info.dtype.numpy

    def copy_from(self, array: Array | DeviceTensor) -> None:
        """Set the data of an input (MNN copyFromHostTensor).

        A DeviceTensor is not copied: the runs read what it holds by then.

        Raises:
            InvalidInputError: shape or dtype differ from the tensor's.
        """
        array = fed_array(self.info, array)
        if self.shape != array.shape:
            raise InvalidInputError(
                f"input '{self.name}' has shape {self.shape}, got an array of shape {array.shape}",
                hint="call Interpreter.resize_tensor and resize_session first",
            )
        self.array = array

    def map(self) -> Array:
        """Return the data as an array to read, or to write where it is an input (MNN map).

        What is written counts for the runs after `unmap`. An input that holds no data yet begins
        with zeros.

        Raises:
            InvalidInputError: the shape of an input is not known yet, or an output holds no data.
        """
        if self._mapped is None:
            self._mapped = self._host_data()
        return self._mapped

    def _host_data(self) -> Array:
        if self.array is None and not self.is_output:
            if self.shape is None:
                raise InvalidInputError(
                    f"input '{self.name}' has no shape yet",
                    hint="call Interpreter.resize_tensor first",
                )
            return np.zeros(self.shape, self.dtype)
        return np.array(self.copy_to())

    def unmap(self) -> None:
        """End what `map` began; an input holds what was written since (MNN unmap).

        Raises:
            InvalidInputError: the tensor is not mapped.
        """
        if self._mapped is None:
            raise InvalidInputError(f"tensor '{self.name}' is not mapped", hint="call map first")
        array, self._mapped = self._mapped, None
        if not self.is_output:
            self.copy_from(array)

    def copy_to(self) -> Array:
        """Return the data of an output after a run (MNN copyToHostTensor).

        Raises:
            InvalidInputError: the session has not run since it was resized.
        """
        if self.array is None:
            raise InvalidInputError(
                f"tensor '{self.name}' holds no data yet", hint="call Interpreter.run_session first"
            )
        array: Array = as_array(self.array)
        return array


class Session:
    """One configured way to run a network; made by `Interpreter.create_session`.

    `precision` is what the session runs with: "high" where the device has no 16-bit storage.
    """

    def __init__(self, opened: OpenSession, config: ScheduleConfig) -> None:
        self.core: CoreSession = opened.core
        self.device: DeviceInfo | CpuInfo = opened.device
        self.config = config
        self.precision: Precision = opened.precision
        self.resized = False
        self.inputs = {
            info.name: SessionTensor(info, info.dims if info.is_static else None)
            for info in self.core.graph.inputs
        }
        self.outputs = {
            info.name: SessionTensor(info, None, True) for info in self.core.graph.outputs
        }

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run on arrays that were checked already; plans when their shapes are new."""
        return self.core.run(feeds)

    def placement(self) -> Placement:
        """Return where each op of the current plan runs and why."""
        return self.core.placement()

    def close(self) -> None:
        """Release plans, buffers and pipelines of this session."""
        self.core.close()


class Interpreter:
    """A loaded, optimised network (MNN Interpreter); many sessions may run it at once.

    Args:
        model: a path, serialised bytes, an onnx.ModelProto, or a Graph.
        budget: memory, nodes and time that loading and planning may take; None takes
            `VKMNN_MAX_BYTES`, `VKMNN_MAX_NODES` and `VKMNN_MAX_SECONDS`, or the defaults.
        unsupported: "cpu" or "raise"; as for `InferenceSession`.

    Raises:
        ModelError: the file is missing, damaged or not a model.
        BudgetError: the model takes more than the budget.
        UnsupportedOpError: the model holds operators that nothing runs, or, with "raise", that
            vkmnn does not know; all are listed.
    """

    def __init__(
        self,
        model: str | Path | bytes | onnx.ModelProto | Graph,
        budget: Budget | None = None,
        unsupported: Unsupported = "cpu",
    ) -> None:
        self._network = load_network(model, budget, unsupported=unsupported)
        self.graph = self._network.graph

    @classmethod
    def from_file(cls, path: str | Path, budget: Budget | None = None) -> Interpreter:
        """Load an ONNX file; raises as the class."""
        return cls(path, budget)

    @classmethod
    def from_buffer(cls, data: bytes, budget: Budget | None = None) -> Interpreter:
        """Load a serialised ONNX model; raises as the class."""
        return cls(data, budget)

    @classmethod
    def from_model(
        cls, model: str | Path | bytes | onnx.ModelProto, budget: Budget | None = None
    ) -> Interpreter:
        """Load a path, serialised bytes, or an onnx.ModelProto; raises as the class."""
        return cls(model, budget)

    def create_session(self, config: ScheduleConfig | Mapping[str, Any] | None = None) -> Session:
        """Make a session; its plans are made by `resize_session`, or in the first run.

        Args:
            config: how it runs; a dictionary as MNN takes it is read by
                `ScheduleConfig.from_mapping`.

        Raises:
            DeviceNotFoundError: the device asked for is not there.
            InvalidInputError: the configuration holds an unknown value.
        """
        if not isinstance(config, ScheduleConfig):
            config = ScheduleConfig.from_mapping(config or {})
        return Session(open_session(self._network, config), config)

    def get_session_input(self, session: Session, name: str | None = None) -> SessionTensor:
        """Return an input by name, or the first."""
        return _pick(session.inputs, name, "input")

    def get_session_output(self, session: Session, name: str | None = None) -> SessionTensor:
        """Return an output by name, or the first."""
        return _pick(session.outputs, name, "output")

    def resize_tensor(self, session: Session, tensor: SessionTensor, shape: Sequence[int]) -> None:
        """Give an input another shape; takes effect with `resize_session`.

        Raises:
            InvalidInputError: the tensor is not an input of this session, or the shape contradicts
                what the model declares.
        """
        if session.inputs.get(tensor.name) is not tensor:
            raise InvalidInputError(
                f"tensor '{tensor.name}' is not an input of this session",
                hint="get it with get_session_input(session)",
            )
        check_shape(tensor.info, tuple(shape))
        if tensor.shape != tuple(shape):
            tensor.shape = tuple(shape)
            tensor.array = None
            session.resized = False

    def resize_session(self, session: Session) -> None:
        """Plan the session for the present input shapes; earlier plans are kept.

        Raises:
            InvalidInputError: an input has no shape yet.
            ShapeError: the shapes do not fit the network.
        """
        shapes = {}
        for tensor in session.inputs.values():
            if tensor.shape is None:
                raise InvalidInputError(
                    f"input '{tensor.name}' has no static shape: {tensor.info.shape}",
                    hint="call resize_tensor for it first",
                )
            shapes[tensor.name] = tensor.shape
        check_symbols(session.core.graph.inputs, shapes)
        feeds = {
            name: as_array(t.array) for name, t in session.inputs.items() if t.array is not None
        }
        known = session.core.resize(shapes, feeds)
        for name, output in session.outputs.items():
            output.shape = known[name].dims if name in known else None
            output.array = None
        session.resized = True

    def run_session(self, session: Session) -> None:
        """Run on the data of the session's inputs; outputs are then ready to be copied.

        Raises:
            InvalidInputError: the session was not resized, or an input has no data.
        """
        _keep(session, session.run(_feeds(session)))

    def run_session_with_callback(
        self, session: Session, before: Callback, after: Callback
    ) -> None:
        """Run op by op, with a call before and after each (MNN runSessionWithCallBackInfo).

        For looking at intermediate tensors, and for finding the op that goes wrong. Every op is
        planned and submitted on its own, so this takes much longer than `run_session`.

        Args:
            session: which one.
            before: gets an `OpCall` and the op's inputs by name. It answers with a `Decision`:
                GO_ON (also True and None), SKIP (also False; the op's results are zeros), or STOP.
            after: gets an `OpCall` and the op's results by name; GO_ON or STOP (also False).

        Raises:
            InvalidInputError: as `run_session`; or an op that only the host runs was skipped.
        """
        _keep(session, session.core.run_watched(_feeds(session), before, after))


def _feeds(session: Session) -> dict[str, Any]:
    if not session.resized:
        raise InvalidInputError(
            "input shapes changed since the session was planned",
            hint="call resize_session first",
        )
    feeds: dict[str, Any] = {}
    for tensor in session.inputs.values():
        if tensor.array is None:
            raise InvalidInputError(
                f"input '{tensor.name}' has no data", hint="call its copy_from first"
            )
        feeds[tensor.name] = tensor.array
    return feeds


def _keep(session: Session, results: Mapping[str, Array]) -> None:
    """Put results into the outputs; those that a run did not get to have none."""
    for name, output in session.outputs.items():
        output.array = results.get(name)
        if output.array is not None:
            output.shape = getattr(output.array, "shape", None)  # may depend on what was fed


def _pick(tensors: Mapping[str, SessionTensor], name: str | None, what: str) -> SessionTensor:
    if name is None:
        return next(iter(tensors.values()))
    if name not in tensors:
        raise InvalidInputError(
            f"the network has no {what} '{name}'", hint=f"its {what}s: {', '.join(tensors)}"
        )
    return tensors[name]
