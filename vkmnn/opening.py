"""From a model to a session: load, optimise, open the device. Every face is built on this."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np

from vkmnn.base.budget import Budget, Meter, host_memory
from vkmnn.base.elements import FLOATS
from vkmnn.base.records import dataclass
from vkmnn.base.threads import Workers
from vkmnn.control_flow.branches import Branches, with_branches
from vkmnn.control_flow.inner_work import WORTH, operations
from vkmnn.control_flow.loops import Axes, Body
from vkmnn.core.backend import Backend
from vkmnn.core.backends import named_backend, open_backend
from vkmnn.core.host_part import HostPart
from vkmnn.core.overflow import OverflowWatch
from vkmnn.core.program import OpenHost
from vkmnn.core.session import Session
from vkmnn.core.shared_sizes import SharedSizes
from vkmnn.core.static import StaticShapes
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.discovery import left_out, load_plugins
from vkmnn.errors import (
    ConversionError,
    DeviceNotFoundError,
    InvalidInputError,
    ModelError,
    UnsupportedOpError,
    typed_memory_errors,
)
from vkmnn.ir import HOST_GRAPH, Array, Dim, Graph, Op, TensorInfo
from vkmnn.runtime import environment
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.schedule_config import (
    PRECISIONS,
    STORAGE,
    OnDeviceLost,
    Precision,
    ScheduleConfig,
    Unsupported,
    precision_name,
    unsupported_name,
)

if TYPE_CHECKING:
    import onnx

    from vkmnn.converter.front_end import FrontEnd
    from vkmnn.converter.onnx import HostCheck
    from vkmnn.converter.onnx.model_file import ModelFile

    Model: TypeAlias = "str | Path | bytes | onnx.ModelProto | ModelFile | Graph"

_log = logging.getLogger(__name__)

InputShapes: TypeAlias = Mapping[str, tuple[Dim, ...]]

CPU_DEVICE = "cpu"
_MAX_WHOLE = 1 << 24
"""Maximum bytes of a model that is kept for onnxruntime; files are read again."""
_SMALL = 1 << 24
"""Operations of networks that a software device is likely to be slow at."""
MAX_THREADS = 256


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """Replaces DeviceInfo if numpy or a plug-in's backend is the device."""

    name: str = "CPU (numpy backend)"


@dataclass(frozen=True, slots=True)
class Network:
    """A loaded network, ready for any number of sessions.

    `source` is the graph from the front end, `graph` the optimised one. `meter` holds the budget,
    which each session gets in full. `static` is the state that sessions share if shapes are fixed.
    `optimise` creates `graph` from `source` or a similar graph; None if the file stores the
    optimised graph. `origin` is the original ONNX model, or its path, if evaluators may run it as a
    whole. `reload` reads the model again, with input shapes other than the file's.
    """

    source: Graph
    graph: Graph
    meter: Meter
    static: StaticShapes = field(default_factory=StaticShapes, repr=False)
    optimise: Callable[[Graph, Meter], Graph] | None = field(default=None, repr=False)
    origin: str | Path | bytes | None = field(default=None, repr=False)
    reload: Callable[[InputShapes], Network] | None = field(default=None, repr=False)

    @property
    def outputs(self) -> list[TensorInfo]:
        """The outputs; missing shapes are inferred from their ops.

        Of the dynamic sizes, only those that inputs name have a name.
        """
        names = {dim for info in self.graph.inputs for dim in info.shape or ()}
        found = []
        for info in self.graph.outputs:
            known = self.graph.infos.get(info.name)
            if info.shape is None and known is not None and known.shape is not None:
                shape = (
                    dim if isinstance(dim, int) or dim in names else None for dim in known.shape
                )
                info = replace(info, shape=tuple(shape))
            found.append(info)
        return found

    def settled(self) -> Network:
        """Return the network for further sessions, without weights that passes have replaced.

        It can no longer be optimised differently; only callers whose sizes contradict shared names
        need that.
        """
        kept = None if isinstance(self.origin, bytes) else self.origin
        if SharedSizes(self.graph.inputs):
            return replace(self, origin=kept, reload=None)
        return replace(self, source=self.graph, optimise=None, origin=kept, reload=None)

    def with_shapes(self, shapes: InputShapes) -> Network:
        """Return the network with other shapes of inputs, read from its file again.

        Args:
            shapes: sizes, names or None for open ones, by input; None to leave all unchanged.

        Raises:
            InvalidInputError: the file has changed, or was not kept.
            ConversionError: a converter has to know a size that is open.
        """
        if self.reload is None:
            raise InvalidInputError(
                "the input has another shape in the model, which cannot change for this network",
                hint="open the model with input_shapes={name: shape}",
            )
        return self.reload(shapes)


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A backend, the device it runs on, and its precision."""

    backend: Backend
    info: DeviceInfo | CpuInfo
    precision: Precision


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A network opened on a device; `core` runs it."""

    core: Session
    device: DeviceInfo | CpuInfo
    precision: Precision

    def plan_ahead(self) -> None:
        """Plan now for the shapes that the model fixes or names, so that runs find a plan."""
        graph = self.core.graph
        if self.core.content_inputs:
            return
        for sizes in product(*graph.planned_sizes.values()):
            named = dict(zip(graph.planned_sizes, sizes, strict=True))
            inputs = [with_sizes(info, named) for info in graph.inputs]
            if all(info.is_static for info in inputs):
                self.core.resize({info.name: info.dims for info in inputs}, {})


def open_model(
    model: Model,
    config: ScheduleConfig,
    budget: Budget | None = None,
    *,
    as_inputs: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
    shapes: InputShapes | None = None,
    optimised: bool = True,
    unsupported: Unsupported = "cpu",
    keeps_states: bool = False,
) -> tuple[Network, OpenSession]:
    """Load a model and open a session on it; the driver is loaded at the same time.

    Args:
        model: as for `load_network`, like the other arguments that are not named here.
        config: how the session runs.
        budget: what loading may take.
        as_inputs: initializers that become inputs.
        sizes: sizes of named dimensions.
        shapes: shapes of inputs in place of the file's.
        optimised: False runs the network as it is in the file.
        unsupported: handling of nodes that cannot be converted.
        keeps_states: as for `open_session`.

    Raises:
        VkmnnError: as `load_network` and `open_session`.
    """
    with Workers(1, "vkmnn-open") as workers:
        named = sorted((sizes or {}).items()), sorted((shapes or {}).items())
        settings = (sorted(as_inputs), *named, optimised, unsupported)
        device = workers.submit(open_device, config, _subject(model, config, settings))
        network = load_network(
            model,
            budget,
            as_inputs=as_inputs,
            sizes=sizes,
            shapes=shapes,
            optimised=optimised,
            unsupported=unsupported,
        )
        if _selector(config) != CPU_DEVICE:
            # Meanwhile the other thread waits for drivers, which are loaded from disk.
            from vkmnn.vulkan import backend  # noqa: F401
        return network, open_session(network, config, device.result(), keeps_states)


def load_network(
    model: Model,
    budget: Budget | None = None,
    *,
    as_inputs: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
    shapes: InputShapes | None = None,
    optimised: bool = True,
    unsupported: Unsupported = "cpu",
) -> Network:
    """Load and optimise a model.

    Args:
        model: a path, serialised bytes, an onnx.ModelProto, a Graph, or a model for another front
            end.
        budget: memory, nodes and time that loading and planning may take; None takes
            `VKMNN_MAX_BYTES`, `VKMNN_MAX_NODES` and `VKMNN_MAX_SECONDS`, or the defaults.
        as_inputs: names of initializers with an input of the same name: inputs with a default value
            that the caller feeds. Others become constants.
        sizes: sizes of named dimensions, which are fixed before the network is optimised.
        shapes: shapes of inputs in place of the file's: sizes, names, or None for open ones.
        optimised: False runs no pass: every node of the file is an op, or several.
        unsupported: "cpu" lets an ONNX evaluator on the host run nodes that cannot be
            converted, if it can; "raise" refuses the model.

    Raises:
        ModelError: the file is missing, damaged or not a model.
        BudgetError: the model takes more than the budget.
        UnsupportedOpError: the model has operators that nothing can run or, with "raise", that
            vkmnn does not know; all are listed.
        InvalidInputError: `unsupported` is neither.
    """
    on_host = unsupported_name(unsupported) == "cpu"
    host = _host_check(environment.host_engines()) if on_host else None
    with typed_memory_errors("loading the model"):
        meter = Meter(budget or environment.budget())
        finished = False
        shapes = shapes or {}
        if isinstance(model, Graph):
            load_plugins()
            source = model.with_input_shapes(shapes) if shapes else model
            source.validate()  # front ends validate their graphs
        else:
            source, finished = _converted(model, meter, frozenset(as_inputs), host, shapes)
        _check_names(source, shapes)
        weights = sum(array.nbytes for array in source.constants.values())
        meter.weigh(weights, len(source.ops) if isinstance(model, Graph) else 0)
        if sizes:
            source = _with_sizes(source, sizes)
            finished = False  # the passes know more now
        again = partial(
            _read_again,
            model,
            _written(model),
            partial(
                load_network,
                *(model, budget),
                as_inputs=as_inputs,
                sizes=sizes,
                optimised=optimised,
                unsupported=unsupported,
            ),
        )
        if finished and not shapes:
            return Network(source, source.copy(), meter, reload=again)
        optimise = partial(_optimised, optimised=optimised, on_host=on_host)
        origin = _origin(model) if on_host and not shapes else None
        made = optimise(source, meter)
        return Network(source, made, meter, optimise=optimise, origin=origin, reload=again)


def _origin(model: Model) -> str | Path | bytes | None:
    """Return the source to run an ONNX model as a whole; None for large or other models."""
    if isinstance(model, str | Path):
        return model
    if isinstance(model, bytes):
        return model if len(model) <= _MAX_WHOLE else None
    if type(model).__name__ != "ModelProto":
        return None
    proto: Any = model
    size = sum(len(one.raw_data) for one in proto.graph.initializer)
    return bytes(proto.SerializeToString()) if size <= _MAX_WHOLE else None


def _check_names(source: Graph, shapes: InputShapes) -> None:
    names = [info.name for info in source.inputs]
    for name in shapes:
        if name not in names:
            raise InvalidInputError(
                f"the network has no input '{name}'", hint=f"inputs: {', '.join(names)}"
            )


def _read_again(
    model: Model,
    written: tuple[int, int] | None,
    load: Callable[..., Network],
    shapes: InputShapes,
) -> Network:
    """Load a model again, with other input shapes."""
    if _written(model) != written:
        raise InvalidInputError(
            f"'{model!s}' has changed since it was loaded: it cannot be read for another shape",
            hint="load it into a new Interpreter",
        )
    return load(shapes=shapes)


def _written(model: Model) -> tuple[int, int] | None:
    """Return the size and modification time of a file; None for anything else."""
    if not isinstance(model, str | os.PathLike):
        return None
    try:
        status = Path(model).stat()
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


def network_of(
    graph: Graph, like: Network, *, optimised: bool = True, without: Collection[str] = ()
) -> Network:
    """Return a network of another graph: a part of one that is loaded, or one with other constants.

    Args:
        graph: its source.
        like: the network that it comes from; the budget is the same.
        optimised: False runs no pass.
        without: names of passes that are left out.

    Raises:
        BudgetError: optimising it takes more than the budget.
        InvalidInputError: there is no pass of a name.
    """
    with typed_memory_errors("optimising the network"):
        meter = like.meter.renewed()
        optimise = partial(_optimised, optimised=optimised, without=without)
        again = partial(_network_again, graph, like, optimised, without)
        made = optimise(graph, meter)
        return Network(graph, made, like.meter, optimise=optimise, reload=again)


def _network_again(
    graph: Graph,
    like: Network,
    optimised: bool,
    without: Collection[str],
    shapes: InputShapes,
) -> Network:
    """Return a network of a graph again, with other input shapes and its own constants."""
    source = like.with_shapes(shapes).source
    own = {
        name: graph.constants[name]
        for name, array in source.constants.items()
        if name in graph.constants
        and (array.shape, array.dtype) == (graph.constants[name].shape, graph.constants[name].dtype)
    }
    source = replace(source, constants={**source.constants, **own})
    return network_of(source, like, optimised=optimised, without=without)


def _optimised(
    source: Graph,
    meter: Meter,
    *,
    optimised: bool,
    on_host: bool = True,
    without: Collection[str] = (),
) -> Graph:
    """Return the graph to run, optimised on request, with host nodes folded."""
    if not optimised:
        return source.copy()
    from vkmnn.converter.passes import optimize

    graph = optimize(source, run_op, meter=meter, without=without)
    while on_host and (folded := _folded_on_host(graph)) is not None:
        graph = optimize(folded, run_op, meter=meter, without=without)
    return graph


def _folded_on_host(graph: Graph) -> Graph | None:
    """Return the network without host nodes on constants; None if it has none."""
    known = {"", *graph.constants}
    if not any(op.type == HOST_GRAPH and known.issuperset(op.inputs) for op in graph.ops):
        return None
    from vkmnn.host import fold_on_host

    return fold_on_host(graph, environment.host_engines(), environment.timeout_s())


def _host_check(names: Sequence[str]) -> HostCheck:
    """Return the check whether the host can run a node; imported when a model needs it."""

    def check(
        model: onnx.ModelProto, untyped: Collection[str]
    ) -> Mapping[str, onnx.TypeProto] | str:
        from vkmnn.host import check_on_host

        return check_on_host(names)(model, untyped)

    return check


def _converted(
    model: Any,
    meter: Meter,
    as_inputs: frozenset[str],
    host: HostCheck | None,
    shapes: InputShapes,
) -> tuple[Graph, bool]:
    """Return the graph of a model, read by the front end that recognises it.

    The second result is True if the graph has been optimised already.
    """
    from vkmnn.converter.front_end import Conversion

    found = front_end_of(model)
    with Workers(1, "vkmnn-read") as workers:
        # The file is read while plug-ins, and with them most of vkmnn, are imported.
        reading = workers.submit(found.read, model) if found else None
        load_plugins()
        source = reading.result() if reading else None
    if found is None:  # unless a plug-in recognises it, ONNX's reader reports the error
        found = front_end_of(model) or _usual_front_end()
        source = found.read(model)
    try:
        graph = found.convert(source, Conversion(meter, run_op, as_inputs, host, shapes))
    except UnsupportedOpError as error:
        raise _with_left_out(error) from error.__cause__
    except ModelError as error:
        error.hint = error.hint or "the file is damaged, or not a valid model; export it again"
        raise
    return graph, found.optimised


def _with_left_out(error: UnsupportedOpError) -> UnsupportedOpError:
    """Name the plug-ins that failed to load: they may have had the operators."""
    names = ", ".join(f"{plugin.name} ({plugin.error.message})" for plugin in left_out())
    if not names:
        return error
    return UnsupportedOpError(error.nodes, hint=f"these plug-ins could not be loaded: {names}")


def front_end_of(model: object) -> FrontEnd | None:
    """Return the front end that recognises a model: vkmnn's own, or a loaded plug-in's."""
    from vkmnn.converter import native  # noqa: F401 - it registers its front end, as others do
    from vkmnn.converter.front_end import find_front_end

    found = find_front_end(model)
    if found is None:  # a file of vkmnn's own needs no converter to be imported
        from vkmnn.converter import front_ends  # noqa: F401

        found = find_front_end(model)
    return found


def _usual_front_end() -> FrontEnd:
    from vkmnn.converter.onnx import OnnxFrontEnd

    return OnnxFrontEnd()


def open_session(
    network: Network,
    config: ScheduleConfig,
    device: OpenDevice | None = None,
    keeps_states: bool = False,
) -> OpenSession:
    """Open a session on a network; plans are created once shapes are known.

    Args:
        network: what to run.
        config: how.
        device: what `open_device` returns for this configuration; None to open it now.
        keeps_states: the caller passes the network's states from one run to the next.

    Raises:
        DeviceNotFoundError: the device asked for is not there.
        InvalidInputError: the configuration holds an unknown value, or nobody keeps the states
            that the network has.
    """
    if network.graph.states and not keeps_states:
        raise InvalidInputError(
            "the network has variables that are kept between runs, which this session does not "
            "support",
            hint="run it in a vkmnn.InferenceSession",
        )
    precision_name(config.precision)
    if config.on_device_lost not in get_args(OnDeviceLost):
        raise InvalidInputError(
            f'on_device_lost="{config.on_device_lost}" is not known',
            hint='it is "raise" or "rebuild"',
        )
    if config.path is not None:
        raise InvalidInputError(
            "this session runs whole networks, not the part that `path` names",
            hint="use vkmnn.Interpreter(model).create_session(config)",
        )
    if config.out_of_range == "skip":
        network = _skipping(network)
    graph = _saving(network, config.save_tensors)
    device = device or open_device(config)
    device.backend.suggest(graph.tuned)
    device.backend.offer(graph.packed)
    options: dict[str, Any] = {
        "max_plans": config.plans_kept,
        "require_main": config.require_device,
        "meter": network.meter.renewed,
        "rebuild": config.on_device_lost == "rebuild",
        "open_host": _host_opener(network, environment.host_engines()),
        "nest": partial(
            with_branches,
            partial(_open_branches, budget=network.meter.budget, seconds=environment.timeout_s()),
        ),
        "static": network.static,
        "told_apart": partial(_told_apart, network, config.save_tensors)
        if network.optimise is not None
        else None,
    }
    arguments = graph, device.backend, CpuBackend(config.cpu_threads), run_op
    if is_fastest(config):
        core: Session = _open_fastest(network, graph, config, device, arguments, options)
    else:
        core = Session(*arguments, **options)
        _say_what_may_be_faster(graph, config, device)
    return OpenSession(core, device.info, device.precision)


def _host_opener(network: Network, engines: Sequence[str]) -> OpenHost:
    return partial(
        _open_on_host,
        engines=engines,
        seconds=environment.timeout_s(),
        budget=network.meter.budget,
    )


# --- fastest engine ------------------------------------------------------------------------------


def is_fastest(config: ScheduleConfig) -> bool:
    """Return whether a session measures which engine is fastest."""
    device = environment.device_word(config.device)
    return device == environment.FASTEST or (device == "auto" and environment.measures())


def _open_fastest(
    network: Network,
    graph: Graph,
    config: ScheduleConfig,
    device: OpenDevice,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
) -> Session:
    """Return a session that measures the device, numpy, and the model in onnxruntime."""
    from vkmnn.core.fastest import MAX_FLOPS, Candidate, FastestSession
    from vkmnn.runtime.measurements import Measurements

    candidates: dict[str, Candidate] = {}
    if not config.require_device:
        if device.backend.type != CpuBackend.type:
            threads = config.cpu_threads
            on_cpu = partial(_session_on_cpu, graph, CpuBackend, threads, options)
            candidates[CpuBackend.type] = Candidate(on_cpu, MAX_FLOPS / 10)
        whole = None if config.save_tensors else _whole(network)
        if whole is not None:
            own = {**options, "open_host": _host_opener(network, ["onnxruntime"]), "static": None}
            own["told_apart"] = None
            on_host = partial(_session_on_cpu, whole, CpuBackend, 1, own)
            candidates["onnxruntime"] = Candidate(on_host, MAX_FLOPS)
    return FastestSession(
        *arguments,
        **options,
        candidates=candidates,
        results=Measurements("fastest"),
        key=_key(graph, config, device, candidates),
        tolerance=1e-3 if device.precision == "high" else 3e-2,
    )


def _session_on_cpu(
    graph: Graph, backend: type[CpuBackend], threads: int, options: Mapping[str, Any]
) -> Session:
    return Session(graph, backend(threads), backend(threads), run_op, **options)


def _whole(network: Network) -> Graph | None:
    """Return a network of one op, its ONNX model, for onnxruntime; None if there is none."""
    if network.origin is None or "onnxruntime" not in environment.host_engines():
        return None
    from vkmnn.converter.onnx import OnnxFrontEnd
    from vkmnn.host.whole import whole_model

    if not isinstance(front_end_of(network.origin), OnnxFrontEnd):
        return None
    return whole_model(network.graph, network.origin)


def _key(
    graph: Graph, config: ScheduleConfig, device: OpenDevice, candidates: Collection[str]
) -> str:
    """Return a key for a network, a device, and its options; independent of the weights' values."""
    parts = hashlib.sha256()
    for op in graph.ops:
        parts.update(repr((op.type, op.inputs, op.outputs, op.attrs)).encode())
    for name, array in graph.constants.items():
        parts.update(repr((name, array.dtype, array.shape)).encode())
    info = device.info
    driver = (info.name, getattr(info, "driver_version", ""))
    how = (driver, device.precision, config.cpu_threads, sorted(candidates), os.cpu_count())
    parts.update(repr((how, _version("vkmnn"), _version("onnxruntime"), np.__version__)).encode())
    return parts.hexdigest()


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


_said: set[str] = set()


def _say_what_may_be_faster(graph: Graph, config: ScheduleConfig, device: OpenDevice) -> None:
    """Log, once per process, that software devices are slow at small networks."""
    asked = environment.device_word(config.device) != "auto" or config.require_device
    if asked or not _log.isEnabledFor(logging.INFO):
        return
    if not isinstance(device.info, DeviceInfo) or device.info.name in _said:
        return
    from vkmnn.vulkan.device_rules import is_gpu

    if not is_gpu(device.info) and operations(graph) < _SMALL:
        _said.add(device.info.name)
        _log.info(
            '%s computes on the CPU, and every dispatch has a price there: device="cpu" (numpy) '
            "or onnxruntime may run a network as small as '%s' faster; device=\"fastest\" measures "
            "them once and uses the fastest",
            device.info.name,
            graph.name,
        )


def _told_apart(network: Network, outputs: Sequence[str], shared: SharedSizes) -> Graph:
    """Return the network's graph, optimised without dimension names that inputs share."""
    assert network.optimise is not None
    source = shared.told_apart(network.source)
    apart = replace(network, source=source, graph=network.optimise(source, network.meter.renewed()))
    return _saving(apart, outputs)


def _check_threads(threads: object) -> None:
    if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise InvalidInputError(
            f"cannot run on {threads!r} threads",
            hint=f"threads is a number from 1 to {MAX_THREADS}",
        )


def _open_on_host(
    ops: Sequence[Op],
    constants: Mapping[str, Array],
    wanted: Collection[str],
    engines: Sequence[str],
    seconds: float,
    budget: Budget,
) -> Sequence[HostPart]:
    """Return the runner of host ops; imported only when a network needs it."""
    from vkmnn.host import open_on_host

    room = host_memory() // 2 if budget.bytes is None else budget.bytes
    return open_on_host(ops, constants, wanted, engines, seconds, room)


def _open_branches(
    op: Op, constants: Mapping[str, Array], always: bool, budget: Budget, seconds: float
) -> Branches | Body | str:
    """Return the networks inside an If, Loop or Scan; or why the host runs it, or "".

    The host runs small bodies, unless `always` is set.
    """
    from vkmnn.host import body_model, branch_models, carries_objects

    try:
        found = branch_models(op, constants, always)
        if found is not None:
            models, names = found
            graphs = {taken: load_network(model, budget).graph for taken, model in models.items()}
            return Branches(graphs, names)
        body = body_model(op, constants, always)
        if body is None:
            return "it carries a sequence, which only the host holds" if carries_objects(op) else ""
        graph = load_network(body.model, budget).graph
    except (ConversionError, ModelError) as error:
        _log.info("the host runs '%s': %s", op.name, error)
        return f"what is inside does not make a network: {' '.join(error.message.split())}"
    work = WORTH if always else operations(graph)
    if work < WORTH:
        # For an If, any product justifies a submission; in a loop, each iteration needs one.
        return f"an iteration takes about {work:,} operations, a submission as long as {WORTH:,}"
    ways = body.ways
    axes = (
        None
        if ways is None
        else Axes(
            tuple(zip(ways.in_axes, ways.in_back, strict=True)),
            tuple(zip(ways.out_axes, ways.out_back, strict=True)),
        )
    )
    return Body(graph, body.given, body.formal, body.outer, axes, body.still, body.sizes, seconds)


def _subject(model: Model, config: ScheduleConfig, settings: object) -> str | None:
    """Return a name for a file's current version and its options; None for anything else."""
    if not isinstance(model, str | os.PathLike):
        return None
    try:
        status = Path(model).stat()
    except (OSError, ValueError):  # its reader reports the error
        return None
    how = (
        config.precision,
        config.on_overflow,
        config.storage,
        config.tuning_effort,
        config.memory,
        config.out_of_range,
    )
    return repr((os.path.realpath(model), status.st_size, status.st_mtime_ns, *how, settings))


def open_device(config: ScheduleConfig, subject: str | None = None) -> OpenDevice:
    """Open the device that the configuration asks for.

    Args:
        config: how the session runs.
        subject: says what is about to be opened on it, for the pipelines that this needed last
            time; None where nothing is known.

    Raises:
        DeviceNotFoundError: it is not there.
        InvalidInputError: the precision is unknown.
        PluginError: a plug-in's backend cannot be opened.
    """
    _check_threads(config.threads)
    config.check_levels()
    selector = _selector(config)
    if selector == CPU_DEVICE:
        return _on_cpu(config)
    if isinstance(selector, str) and selector != "auto" and not selector.isdigit():
        load_plugins()  # one may have a backend of that name
        if (name := named_backend(selector)) is not None:
            info = CpuInfo(f"{name} (a plug-in's backend)")
            precision = _precision(config, "high", info.name)
            return OpenDevice(open_backend(selector), info, precision)
    from vkmnn.runtime import device as devices

    try:
        device = devices.open_device(
            selector,
            driver=config.driver,
            validation=config.validation,
            priority=config.power,
        )
    except DeviceNotFoundError as error:
        if selector != "auto" or config.require_device:
            raise
        _log.warning(
            "no Vulkan device, the numpy CPU backend runs the network, many times slower: %s",
            str(error).removeprefix("no Vulkan device: "),
        )
        return _on_cpu(config)
    foreseen = None
    if subject is not None and not device.validation:
        from vkmnn.vulkan.plan.foreseen import Foreseen

        foreseen = Foreseen(device, subject)
    from vkmnn.vulkan.backend import VulkanBackend
    from vkmnn.vulkan.settings import BackendSettings

    wanted = PRECISIONS[precision_name(config.precision)]
    possible = possible_precision(wanted, device.info)
    precision = _precision(config, possible, device.info.name)
    element, arithmetic = STORAGE[precision]
    settings = BackendSettings(
        progress=config.progress,
        element=element,
        arithmetic=arithmetic,
        overflows=_overflow_watch(config, precision),
        tuning=config.tuning_effort,
        storage=config.storage,
        spacious=config.memory == "high",
        replays=config.execution == "indirect",
        eager=config.allocator == "eager",
    )
    backend = VulkanBackend(device, settings, foreseen=foreseen)
    return OpenDevice(backend, device.info, precision)


def _overflow_watch(config: ScheduleConfig, precision: Precision) -> OverflowWatch | None:
    """Return the overflow handling; None where there is no float16, or it is ignored."""
    overflows = FLOATS[STORAGE[precision][0]].overflows
    if not overflows or config.on_overflow == "ignore":
        return None
    return OverflowWatch(config.on_overflow)


def _selector(config: ScheduleConfig) -> str | int:
    device = environment.device_word(config.device)
    return environment.device_selector() if device in ("auto", environment.FASTEST) else device


def _on_cpu(config: ScheduleConfig) -> OpenDevice:
    precision = PRECISIONS[precision_name(config.precision)]
    watch = _overflow_watch(config, precision)
    backend = CpuBackend(config.cpu_threads, *STORAGE[precision], overflows=watch)
    return OpenDevice(backend, CpuInfo(), precision)


def possible_precision(wanted: Precision, info: DeviceInfo) -> Precision:
    """Return the precision nearest to a wanted one that kernels of a device have, and gain by."""
    element, arithmetic = STORAGE[wanted]
    if not info.features >= {*FLOATS[element].needs}:
        return "high"
    from vkmnn.vulkan.device_rules import is_gpu

    if arithmetic == "f32" or ("float16" in info.features and is_gpu(info)):
        return wanted
    return next(name for name, how in STORAGE.items() if how == (element, "f32"))


def _precision(config: ScheduleConfig, possible: Precision, device: str) -> Precision:
    """Return the precision to run with, and warn if it is not the requested one."""
    wanted = PRECISIONS[precision_name(config.precision)]
    element, arithmetic = STORAGE[wanted]
    if possible == wanted:
        return wanted
    if STORAGE[possible][0] != element:
        _log.warning(
            '%s stores no %s: precision "%s" runs as "%s", in float32',
            device,
            FLOATS[element].dtype.name,
            config.precision,
            possible,
        )
    else:
        _log.warning(
            '%s has no %s arithmetic of its own: precision "%s" runs as "%s", with '
            "float32 arithmetic",
            device,
            FLOATS[arithmetic].dtype.name,
            wanted,
            possible,
        )
    return possible


def _skipping(network: Network) -> Network:
    """Return the network with gathers and scatters that skip indices beyond their axes."""
    from vkmnn.converter.out_of_range import skip_out_of_range

    network = replace(network, origin=None)  # onnxruntime would refuse these indices
    source = skip_out_of_range(network.source)
    if network.optimise is None:
        return replace(network, source=source, graph=source, static=StaticShapes())
    made = network.optimise(source, network.meter.renewed())
    return replace(network, source=source, graph=made, static=StaticShapes())


def _saving(network: Network, names: Sequence[str]) -> Graph:
    """Return the network's graph with saved tensors as additional outputs.

    Tensors that passes have fused away are restored by running the passes again with them as
    outputs.
    """
    fused = set(names) - network.graph.producers().keys()
    if network.optimise is None or not fused:
        return _with_outputs(network.graph, names)
    source = _with_outputs(network.source, names)
    return network.optimise(source, network.meter.renewed())


def _with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with additional outputs."""
    if not names:
        return graph
    produced = graph.producers()
    missing = [name for name in names if name not in produced]
    if missing:
        raise InvalidInputError(
            f"the network has no tensor '{missing[0]}'",
            hint="`vkmnn info --tensors` lists the tensors",
        )
    known = graph.output_names()
    infos = [
        graph.infos.get(name) or TensorInfo(name, graph.inputs[0].dtype, None)
        for name in names
        if name not in known
    ]
    return replace(graph, outputs=[*graph.outputs, *infos])


def _with_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with named dimensions fixed."""
    return replace(
        graph,
        inputs=[with_sizes(info, sizes) for info in graph.inputs],
        outputs=[with_sizes(info, sizes) for info in graph.outputs],
        infos={name: with_sizes(info, sizes) for name, info in graph.infos.items()},
    )


def with_sizes(info: TensorInfo, sizes: Mapping[str, int]) -> TensorInfo:
    """Return the description of a tensor with named dimensions fixed."""
    if info.shape is None or not sizes:
        return info
    shape: tuple[Dim, ...] = tuple(
        sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in info.shape
    )
    return replace(info, shape=shape)
