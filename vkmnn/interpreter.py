"""The MNN-shaped face: an Interpreter holds a network, Sessions run it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from vkmnn.budget import Budget, Meter
from vkmnn.core.backend import Backend
from vkmnn.core.placement import Placement
from vkmnn.core.session import Session as CoreSession
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.discovery import load_plugins
from vkmnn.errors import DeviceNotFoundError, InvalidInputError, typed_memory_errors
from vkmnn.ir import Array, Dim, Graph, TensorInfo
from vkmnn.runtime import environment
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.schedule_config import (
    PRECISIONS,
    OnDeviceLost,
    Precision,
    ScheduleConfig,
    precision_name,
)

if TYPE_CHECKING:
    import onnx

_log = logging.getLogger(__name__)

CPU_DEVICE = "cpu"


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """Stands where a DeviceInfo would when the numpy backend is the device."""

    name: str = "CPU (numpy backend)"


OpenBackend = tuple[Backend, DeviceInfo | CpuInfo, Precision]


class SessionTensor:
    """An input or output of a session: a shape to change and data to copy in or out."""

    def __init__(self, info: TensorInfo, shape: tuple[int, ...] | None) -> None:
        self.info = info
        self.shape = shape
        self.array: Array | None = None

    @property
    def name(self) -> str:
        """The tensor's name in the model."""
        return self.info.name

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The element type."""
        return self.info.dtype.numpy

    def copy_from(self, array: Array) -> None:
        """Set the data of an input (MNN copyFromHostTensor).

        Raises:
            InvalidInputError: shape or dtype differ from the tensor's.
        """
        check_array(self.info, array)
        if self.shape != array.shape:
            raise InvalidInputError(
                f"input '{self.name}' has shape {self.shape}, got an array of shape {array.shape}",
                hint="call Interpreter.resize_tensor and resize_session first",
            )
        self.array = np.ascontiguousarray(array)

    def copy_to(self) -> Array:
        """Return the data of an output after a run (MNN copyToHostTensor).

        Raises:
            InvalidInputError: the session has not run since it was resized.
        """
        if self.array is None:
            raise InvalidInputError(
                f"tensor '{self.name}' holds no data yet", hint="call Interpreter.run_session first"
            )
        return self.array


class Session:
    """One configured way to run a network; made by `Interpreter.create_session`.

    `precision` is what the session runs with: "high" where the device has no 16-bit storage.
    """

    def __init__(
        self,
        core: CoreSession,
        device: DeviceInfo | CpuInfo,
        config: ScheduleConfig,
        precision: Precision,
    ) -> None:
        self.core = core
        self.device = device
        self.config = config
        self.precision = precision
        self.resized = False
        self.inputs = {
            info.name: SessionTensor(info, info.dims if info.is_static else None)
            for info in core.graph.inputs
        }
        self.outputs = {info.name: SessionTensor(info, None) for info in core.graph.outputs}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
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

    Raises:
        ModelError: the file is missing, damaged or not a model.
        BudgetError: the model takes more than the budget.
        UnsupportedOpError: the model holds operators that vkmnn does not know; all are listed.
    """

    def __init__(
        self,
        model: str | Path | bytes | onnx.ModelProto | Graph,
        budget: Budget | None = None,
    ) -> None:
        from vkmnn.converter.onnx import load_model
        from vkmnn.converter.passes import optimize

        load_plugins()
        with typed_memory_errors("loading the model"):
            self.budget = budget or environment.budget()
            meter = Meter(self.budget)
            graph = model if isinstance(model, Graph) else load_model(model, meter, run_op)
            graph.validate()
            self._source = graph
            weights = sum(array.nbytes for array in graph.constants.values())
            meter.weigh(weights, len(graph.ops) if graph is model else 0)
            self._meter = meter
            self.graph = optimize(graph, run_op, meter=meter)
            self.graph.validate()

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

    def create_session(
        self,
        config: ScheduleConfig | Mapping[str, Any] | None = None,
        backend: Future[OpenBackend] | None = None,
    ) -> Session:
        """Make a session; its plans are made by `resize_session`, or in the first run.

        Args:
            config: how it runs; a dictionary as MNN takes it is read by
                `ScheduleConfig.from_mapping`.
            backend: what `open_backend` returns for this configuration, where another thread has
                begun to; None to open it now.

        Raises:
            DeviceNotFoundError: the device asked for is not there.
            InvalidInputError: the configuration holds an unknown value.
        """
        if not isinstance(config, ScheduleConfig):
            config = ScheduleConfig.from_mapping(config or {})
        precision_name(config.precision)
        opened = backend.result() if backend else open_backend(config)
        if config.on_device_lost not in get_args(OnDeviceLost):
            raise InvalidInputError(
                f'on_device_lost="{config.on_device_lost}" is not known',
                hint='it is "raise" or "rebuild"',
            )
        main, device, precision = opened
        graph = _with_outputs(self.graph, config.save_tensors)
        core = CoreSession(
            graph,
            main,
            CpuBackend(),
            run_op,
            max_plans=config.max_plans,
            require_main=config.require_device,
            meter=self._meter.renewed,
            rebuild=config.on_device_lost == "rebuild",
        )
        return Session(core, device, config, precision)

    def get_session_input(self, session: Session, name: str | None = None) -> SessionTensor:
        """Return an input by name, or the first."""
        return _pick(session.inputs, name, "input")

    def get_session_output(self, session: Session, name: str | None = None) -> SessionTensor:
        """Return an output by name, or the first."""
        return _pick(session.outputs, name, "output")

    def resize_tensor(self, session: Session, tensor: SessionTensor, shape: Sequence[int]) -> None:
        """Give an input another shape; takes effect with `resize_session`.

        Raises:
            InvalidInputError: the shape contradicts what the model declares.
        """
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
        feeds = {name: t.array for name, t in session.inputs.items() if t.array is not None}
        plan = session.core.resize(shapes, feeds)
        for name, output in session.outputs.items():
            output.shape = plan.infos[name].dims
            output.array = None
        session.resized = True

    def run_session(self, session: Session) -> None:
        """Run on the data of the session's inputs; outputs are then ready to be copied.

        Raises:
            InvalidInputError: the session was not resized, or an input has no data.
        """
        if not session.resized:
            raise InvalidInputError(
                "input shapes changed since the session was planned",
                hint="call resize_session first",
            )
        feeds = {}
        for tensor in session.inputs.values():
            if tensor.array is None:
                raise InvalidInputError(
                    f"input '{tensor.name}' has no data", hint="call its copy_from first"
                )
            feeds[tensor.name] = tensor.array
        for name, array in session.run(feeds).items():
            session.outputs[name].array = array


def check_array(info: TensorInfo, array: Any) -> None:
    """Refuse an array that is not what the input declares.

    Raises:
        InvalidInputError: not a numpy array, another dtype, rank or fixed dimension.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidInputError(
            f"input '{info.name}' must be a numpy array, got {type(array).__name__}",
            hint="wrap it with numpy.asarray",
        )
    if array.dtype != info.dtype.numpy:
        raise InvalidInputError(
            f"input '{info.name}' is {info.dtype.value}, got an array of {array.dtype}",
            hint=f"convert it with .astype('{info.dtype.value}')",
        )
    check_shape(info, array.shape)


def check_shape(info: TensorInfo, shape: tuple[int, ...]) -> None:
    """Refuse a shape that contradicts the model's declaration.

    Raises:
        InvalidInputError: another rank or another fixed dimension.
    """
    if not _fits(info.shape, shape):
        declared = ", ".join("?" if dim is None else str(dim) for dim in info.shape or ())
        raise InvalidInputError(
            f"input '{info.name}' has shape [{declared}], got {list(shape)}",
            hint=_order_hint(info, shape)
            or "only symbolic dimensions may change; export with dynamic axes for others",
        )


def _fits(declared: tuple[Dim, ...] | None, shape: tuple[int, ...]) -> bool:
    return declared is None or (
        len(shape) == len(declared)
        and all(dim >= 0 for dim in shape)
        and all(
            not isinstance(want, int) or want == have
            for want, have in zip(declared, shape, strict=True)
        )
    )


def _order_hint(info: TensorInfo, shape: tuple[int, ...]) -> str | None:
    """Say how to transpose an array whose channels stand last where they should stand second."""
    rank = len(shape)
    if rank < 3:
        return None
    orders = {
        "NHWC": (0, rank - 1, *range(1, rank - 1)),
        "NCHW": (0, *range(2, rank), 1),
    }
    for name, order in orders.items():
        if _fits(info.shape, tuple(shape[axis] for axis in order)):
            what = f"this looks like {name}" if rank == 4 else "the axes are in another order"
            return f"{what}: {info.name}.transpose({', '.join(map(str, order))})"
    return None


def check_symbols(infos: Iterable[TensorInfo], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse shapes that give one symbolic dimension two sizes.

    Raises:
        InvalidInputError: names the dimension and both inputs.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for info in infos:
        for want, have in zip(info.shape or (), shapes[info.name], strict=False):
            if not isinstance(want, str):
                continue
            first, other = sizes.setdefault(want, (have, info.name))
            if first != have:
                raise InvalidInputError(
                    f"dimension '{want}' is {first} in input '{other}' "
                    f"but {have} in input '{info.name}'",
                    hint="inputs that share a symbolic dimension must agree on it",
                )


def _pick(tensors: Mapping[str, SessionTensor], name: str | None, what: str) -> SessionTensor:
    if name is None:
        return next(iter(tensors.values()))
    if name not in tensors:
        raise InvalidInputError(
            f"the network has no {what} '{name}'", hint=f"its {what}s: {', '.join(tensors)}"
        )
    return tensors[name]


def _with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with further outputs."""
    if not names:
        return graph
    produced = graph.producers()
    missing = [name for name in names if name not in produced]
    if missing:
        raise InvalidInputError(
            f"the optimised network has no tensor '{missing[0]}'",
            hint="a pass may have fused it away; `vkmnn info` lists the tensors that are left",
        )
    known = graph.output_names()
    infos = [
        graph.infos.get(name) or TensorInfo(name, graph.inputs[0].dtype, None)
        for name in names
        if name not in known
    ]
    return replace(graph, outputs=[*graph.outputs, *infos])


def open_backend(config: ScheduleConfig) -> OpenBackend:
    """Open the device that the configuration asks for; return the precision that it has, too.

    Raises:
        DeviceNotFoundError: it is not there.
    """
    selector = environment.device_selector() if config.device == "auto" else config.device
    if selector == CPU_DEVICE:
        return CpuBackend(), CpuInfo(), _precision(config, False, CpuInfo().name)
    from vkmnn.runtime.device import open_device

    try:
        device = open_device(selector, driver=config.driver, validation=config.validation)
    except DeviceNotFoundError as error:
        if selector != "auto" or config.require_device:
            raise
        _log.warning("no Vulkan device, the numpy CPU backend runs the network: %s", error)
        return CpuBackend(), CpuInfo(), _precision(config, False, CpuInfo().name)
    from vkmnn.vulkan.backend import VulkanBackend

    has_half = "storage16" in device.info.features
    precision = _precision(config, has_half, device.info.name)
    backend = VulkanBackend(device, config.progress, half=precision == "normal")
    return backend, device.info, precision


def _precision(config: ScheduleConfig, has_half: bool, device: str) -> Precision:
    """Return the precision to run with, and warn where it is not the one that was asked for."""
    wanted = PRECISIONS[precision_name(config.precision)]
    if wanted == "normal" and not has_half:
        _log.warning(
            '%s stores no float16: precision "%s" runs as "high", in float32',
            device,
            config.precision,
        )
        return "high"
    if config.precision == "low":
        _log.warning('precision "low" runs as "normal": the arithmetic is float32')
    return wanted
