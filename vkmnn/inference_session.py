"""The onnxruntime-shaped face: `InferenceSession(model).run(None, {"x": x})`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.arguments import (
    check_feeds,
    check_shape,
    checked_input_shapes,
    checked_number,
    checked_sizes,
    fed_array,
)
from vkmnn.base.budget import Budget
from vkmnn.base.closing import Closing
from vkmnn.base.records import dataclass
from vkmnn.core.backend import MemoryUse, Tuning
from vkmnn.core.bound_run import BoundRun
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.futures import RunFuture
from vkmnn.core.placement import Placement
from vkmnn.core.profile import Profile
from vkmnn.core.session import TUNING_RUNS, Session
from vkmnn.decoding.session_state import SessionState, matched_pairs, open_state
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.ir import Array, TensorInfo
from vkmnn.opening import CpuInfo, Network, open_session
from vkmnn.opening.overridable import OverridableInputs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.schedule_config import (
    OnDeviceLost,
    OnOverflow,
    Precision,
    PrecisionName,
    ScheduleConfig,
    Unsupported,
)

if TYPE_CHECKING:
    from vkmnn.opening.network import UserModel


@dataclass(frozen=True, slots=True)
class NodeArg:
    """Name, type and shape of an input or output, as onnxruntime's NodeArg has them.

    `type` is ONNX's, "tensor(float)", and `dtype` numpy's name of the elements, "float32". Symbols
    in the shape are strings, unknown sizes None; the shape is None if even the rank is unknown.
    `quantization` is scale and zero point if the elements are quantised values, as in TFLite's
    models: real = scale * (value - zero).
    """

    name: str
    type: str
    shape: list[int | str | None] | None
    dtype: str
    quantization: tuple[float, int] | None = None


class InferenceSession(Closing):
    """Run an ONNX model on a Vulkan device.

    Args:
        model: a path, serialised bytes, an onnx.ModelProto, or PyTorch's ExportedProgram or
            ScriptModule.
        device: "auto", an index, part of a name, a UUID, or "cpu"; see `ScheduleConfig`.
        precision: "high", "fp32" (float32), "fast" (float32, products by float16 matrices) or
            "normal", "fp16" (float16 storage); see
            `ScheduleConfig`.
        driver: the Vulkan binding.
        validation: run under the Khronos validation layer; its messages become errors.
        require_device: raise PlacementError instead of running an op on the CPU backend.
        progress: called with (done, total) while pipelines are compiled.
        budget: memory, nodes and time that loading and planning the model may take; None uses
            `VKMNN_MAX_BYTES`, `VKMNN_MAX_NODES` and `VKMNN_MAX_SECONDS`, or the defaults.
        on_device_lost: "raise" DeviceLostError, or "rebuild" the session and run once more; see
            `ScheduleConfig`.
        on_overflow: reaction to a value that fits float32 but became infinite in float16: "warn",
            "high" (float32 for that op from then on), "raise" or "ignore"; see `ScheduleConfig`.
        sess_options: onnxruntime's; refused with a hint, as are the next two.
        providers: refused; `vkmnn.onnxruntime` takes it.
        provider_options: refused.
        unsupported: "cpu": nodes with neither a kernel nor a numpy execution run on the host, in
            onnxruntime if it is installed, otherwise in the onnx package's evaluator, and
            `placement` shows them; "raise" refuses the model, which is the right choice for
            untrusted models.
        input_shapes: shapes that replace those of the file: sizes, names of sizes, and None for
            open ones. Models that fix their batch, as every `.mnn` file does, accept others this
            way.

    Raises:
        ModelError: the file is missing, damaged or not a model.
        BudgetError: the model exceeds the budget.
        UnsupportedOpError: it has operators that nothing can run or, with "raise", that vkmnn
            does not know; all of them are listed.
        DeviceNotFoundError: the requested device does not exist.
    """

    def __init__(
        self,
        model: UserModel,
        device: str | int = "auto",
        *,
        precision: PrecisionName = "high",
        driver: str | None = None,
        validation: bool | None = None,
        require_device: bool = False,
        progress: Callable[[int, int], None] | None = None,
        budget: Budget | None = None,
        on_device_lost: OnDeviceLost = "raise",
        on_overflow: OnOverflow = "warn",
        sess_options: None = None,
        providers: None = None,
        provider_options: None = None,
        unsupported: Unsupported = "cpu",
        input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    ) -> None:
        _refuse(sess_options=sess_options, providers=providers, provider_options=provider_options)
        config = ScheduleConfig(
            device=device,
            precision=precision,
            driver=driver,
            validation=validation,
            require_device=require_device,
            progress=progress,
            on_device_lost=on_device_lost,
            on_overflow=on_overflow,
        )
        shapes = checked_input_shapes(input_shapes)
        network, self._session, self._overridable = OverridableInputs.open(
            model, config, budget, shapes=shapes, unsupported=unsupported, keeps_states=True
        )
        network = network.settled()  # before weights are packed, which takes memory
        self._network: Network | None = network
        self._config = config
        graph = network.graph
        self._types = graph.types
        self._quantization = graph.quantization
        self._inputs = {info.name: info for info in graph.without_states(graph.inputs)}
        self._output_infos = graph.without_states(network.outputs)
        self._outputs = {info.name: info for info in self._output_infos}
        self._states = tuple(graph.states)
        self._session.plan_ahead()
        self._kept = self._new_kept()

    @property
    def device(self) -> DeviceInfo | CpuInfo:
        """The device that the session runs on."""
        return self._session.device

    @property
    def precision(self) -> Precision:
        """The precision in use; always "high" on devices without 16-bit storage."""
        return self._session.precision

    @property
    def lost(self) -> bool:
        """Whether runs fail because the device is lost.

        True after a loss with on_device_lost="raise", or if rebuilding has failed. With "rebuild",
        the next run tries again; without, only another session can compute.
        """
        return self._session.core.lost

    @property
    def keeps_states(self) -> bool:
        """Whether the network keeps variables between runs; see `reset_state`."""
        return bool(self._states)

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that `run` expects."""
        return [self._node_arg(info) for info in self._inputs.values()]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs that `run` returns."""
        return [self._node_arg(info) for info in self._output_infos]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs that have a default value, which runs may feed or leave out."""
        return [self._node_arg(info) for info in self._overridable.infos.values()]

    def _node_arg(self, info: TensorInfo) -> NodeArg:
        shape = None if info.shape is None else list(info.shape)
        kind = self._types.get(info.name, info.dtype.onnx)
        by = self._quantization.get(info.name)
        return NodeArg(info.name, kind, shape, info.dtype.value, by)

    def run(
        self,
        output_names: list[str] | tuple[str, ...] | None,
        feeds: Mapping[str, Any] | None = None,
    ) -> list[Array]:
        """Run the network once; new input shapes are planned first, and earlier plans are kept.

        Args:
            output_names: names of the outputs to return; None, or an empty list, for all.
            feeds: one value per input; inputs with a default value may be left out. A value is an
                array of the input's dtype and a matching shape, a DeviceTensor, or anything with
                `__array__` or `__dlpack__`; a list for a sequence, None for an empty optional,
                arrays of objects for strings.

        Raises:
            InvalidInputError: an unknown or missing name, a wrong dtype, shape or value.
            ShapeError: the shapes do not match the network.
            PlacementError: with `require_device`, an op of the new plan would run off the device.
            HostError: a node on the host cannot be computed.
        """
        if feeds is None:
            raise _no_feeds("run", self._inputs)
        if self._kept is not None:
            return self._kept.run(self._wanted(output_names), feeds)
        core, arrays = self._checked(feeds)
        wanted = self._wanted(output_names)
        results = core.run(arrays)
        return [results[name] for name in wanted]

    def reset_state(self) -> None:
        """Reset the variables that the network keeps between runs to their initial values.

        Models of TFLite may have them; others have nothing to reset.
        """
        if self._kept is not None:
            self._kept.close()
            self._kept = self._new_kept()

    def _new_kept(self) -> SessionState | None:
        """Return runs that pass the network's own states on; None if it has none."""
        if not self._states:
            return None
        pairs = {state.input: state.output for state in self._states}
        initial = {one.input: one.initial for one in self._states}
        return open_state(
            self._session.core,
            pairs,
            None,
            initial,
            lambda feeds: check_feeds(self._inputs, feeds, self._types),
        )

    def _checked(self, feeds: Mapping[str, Any]) -> tuple[Session, dict[str, Any]]:
        """Return the session for these feeds, and the feeds in order."""
        fed = self._overridable.fed(feeds)
        arrays = check_feeds({**self._inputs, **fed}, feeds, self._types)
        arrays |= {state.input: state.initial for state in self._states}
        return self._overridable.session(fed), arrays

    def _wanted(self, names: Iterable[str] | None) -> list[str]:
        if isinstance(names, str) or not isinstance(names, Iterable | None):
            raise InvalidInputError(
                f"output_names is a list of names, not {names!r}",
                hint=f"write ['{names}']",
            )
        wanted = list(names or self._outputs)
        for name in wanted:
            self._info_of(name, self._outputs, "output")
        return wanted

    def _info_of(self, name: str, infos: Mapping[str, TensorInfo], what: str) -> TensorInfo:
        if name not in infos:
            hint = nearest(name, infos, f"{what}s")
            raise InvalidInputError(f"the network has no {what} '{name}'", hint=hint)
        return infos[name]

    # --- tensors that stay on the device, and runs that do not wait ------------------------------

    def submit(
        self, feeds: Mapping[str, Any], output_names: list[str] | tuple[str, ...] | None = None
    ) -> RunFuture[list[Array]]:
        """Start a run and return at once: while the device computes, the next run is uploaded.

        Runs execute in the order in which they were submitted. Networks that need the host in
        between run one after the other.

        Args:
            feeds: as for `run`; the arrays must not change until the run is done.
            output_names: as for `run`.

        Returns:
            A `concurrent.futures.Future` of what `run` returns; `await` works too. `cancel`
            withdraws a run that has not started. `close` waits for those that have; the others
            fail with InvalidInputError.

        Raises:
            InvalidInputError: the feeds are not valid, or the session has been closed. All other
                errors of `run` are raised by the future.
        """
        core, arrays = self._checked(feeds)
        wanted = self._wanted(output_names)
        kept = self._kept
        if kept is not None:
            fed = {name: arrays[name] for name in self._inputs}
            return core.submit_call(lambda: kept.run(wanted, fed))
        return core.submit(arrays, lambda made: [made[name] for name in wanted])

    def run_on_device(
        self,
        output_names: list[str] | tuple[str, ...] | None,
        feeds: Mapping[str, Any] | None = None,
    ) -> list[DeviceTensor]:
        """Run the network once; the outputs stay on the device.

        Args:
            output_names: as for `run`.
            feeds: as for `run`; a DeviceTensor of this device is not copied to the host.

        Raises:
            InvalidInputError: as `run`; or an output is not a tensor of numbers.
        """
        if feeds is None:
            raise _no_feeds("run_on_device", self._inputs)
        if self._kept is not None:
            return [self.upload(array) for array in self.run(output_names, feeds)]
        core, arrays = self._checked(feeds)
        wanted = self._wanted(output_names)
        results = core.run_on_device(arrays, wanted)
        return [results[name] for name in wanted]

    def tensor(self, name: str, shape: Sequence[int] | None = None) -> DeviceTensor:
        """Return a new tensor of zeros on the device, for an input or an output.

        Args:
            name: the input or output that determines the element type and the shape.
            shape: the sizes, if the network leaves them open.

        Raises:
            InvalidInputError: an unknown name, sizes that are unknown or do not match, or
                elements that devices cannot hold.
        """
        known = {info.name: info for info in self._output_infos} | self._inputs
        known |= self._overridable.infos
        info = self._info_of(name, known, "input or output")
        if shape is None and not info.is_static:
            raise InvalidInputError(
                f"the shape of '{name}' is not known: {info.shape}", hint="pass one"
            )
        sizes = info.dims if shape is None else checked_sizes(shape, f"the shape of '{name}'")
        if shape is not None:
            check_shape(info, sizes)
        return self._session.core.new_tensor(sizes, info.dtype)

    def upload(self, array: Any) -> DeviceTensor:
        """Return a tensor on the device with the elements of an array.

        Args:
            array: of any shape, of floats, integers or bool.

        Raises:
            InvalidInputError: devices cannot hold such elements.
            IntegerRangeError: an integer does not fit the device's 32 bits.
        """
        values = np.asarray(array)
        if values.dtype.kind not in "fiub":
            raise InvalidInputError(
                f"devices do not support elements of type {values.dtype}", hint="convert the array"
            )
        return self._session.core.upload(values)

    def bind(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, DeviceTensor | None] | Iterable[str] | None = None,
    ) -> BoundRun:
        """Bind tensors to inputs and outputs: `bound()` runs without copies and allocations.

        This applies to networks that run on the device as a single plan; others run as usual,
        between copies (`BoundRun.copies`).

        Args:
            inputs: a DeviceTensor for every input, or an array, for which one is created.
            outputs: a DeviceTensor for each requested output, or None to create one; or just the
                names; None for all outputs.

        Raises:
            InvalidInputError: a name, element type or shape does not match, or an output would
                overlap an input.
        """
        self._refuse_states("bind")
        core, fed = self._checked(inputs)
        tensors = {
            name: value if isinstance(value, DeviceTensor) else self.upload(value)
            for name, value in fed.items()
        }
        places: dict[str, DeviceTensor | None] = dict.fromkeys(self._outputs)
        if isinstance(outputs, Mapping):
            places = {name: outputs[name] for name in self._wanted(outputs)}
        elif outputs is not None:
            places = dict.fromkeys(self._wanted(outputs))
        return BoundRun(core, core.bind(tensors, places))

    def state(
        self,
        pairs: Mapping[str, str],
        capacity: int | None = None,
        initial: Mapping[str, Array] | None = None,
    ) -> SessionState:
        """Return a state: runs whose outputs become inputs of the next run, on the device.

        State of a fixed size is swapped. Caches that grow by a Concat of old and new rows, as in
        decoders, are in memory with room to grow, and new rows are appended in place: plans are
        made for capacities of a power of two, not for every length. If the network uses its caches
        in a way that may be unsafe, the log says so once, and every length is planned.

        Args:
            pairs: inputs mapped to outputs; `*` stands for any text:
                {"past_key_values.*": "present.*"}.
            capacity: maximum rows of caches; None for no limit.
            initial: initial values of inputs; by default, caches are empty, and everything else is
                zero.

        Raises:
            InvalidInputError: a name is not known, or a value does not fit.
        """
        self._refuse_states("state")
        if capacity is not None:
            capacity = checked_number(capacity, "the capacity of a state", 1)
        matched = matched_pairs(pairs, self._inputs, self._outputs)
        first = {}
        if not isinstance(initial, Mapping | None):
            raise InvalidInputError(
                f"initial is a dictionary of arrays by name, not {type(initial).__name__}",
                hint=f"write {{'{next(iter(matched), 'past')}': array}}",
            )
        for name, array in (initial or {}).items():
            if name not in matched:
                raise InvalidInputError(
                    f"'{name}' is not a state input",
                    hint=f"state inputs: {', '.join(matched)}",
                )
            first[name] = fed_array(self._inputs[name], array)
        fed = {name: info for name, info in self._inputs.items() if name not in matched}
        core = self._session.core
        return open_state(
            core, matched, capacity, first, lambda feeds: check_feeds(fed, feeds, self._types)
        )

    def _refuse_states(self, method: str) -> None:
        if self._states:
            raise InvalidInputError(
                f"{method} is not available for networks that keep variables between runs",
                hint="call run, and reset_state to begin anew",
            )

    def prepare(self, shapes: Iterable[Mapping[str, Any]]) -> None:
        """Plan for input shapes in advance, so that runs with them need no planning.

        Args:
            shapes: for each plan, a shape or an array for every input: [{"x": (1, 3, 224, 224)}].
                Inputs whose content determines shapes need arrays.

        Raises:
            InvalidInputError: a name is missing or not known, or a shape does not fit.
            ShapeError: the shapes do not fit the network.
        """
        if isinstance(shapes, Mapping | str) or not isinstance(shapes, Iterable):
            raise InvalidInputError(
                f"prepare takes a list of shapes by name, one for each plan, not "
                f"{type(shapes).__name__}",
                hint=f"write [{{'{next(iter(self._inputs), 'x')}': (1, 3, 224, 224)}}]",
            )
        for each in shapes:
            if not isinstance(each, Mapping):
                raise InvalidInputError(
                    f"shapes are dictionaries by name, one for each plan, not {each!r}",
                    hint=f"write [{{'{next(iter(self._inputs), 'x')}': (1, 3, 224, 224)}}]",
                )
            infos = {**self._inputs, **self._overridable.fed(each)}
            for name in each:
                self._info_of(name, infos, "input")
            fed = {name: v for name, v in each.items() if hasattr(v, "shape")}
            sizes = {
                name: tuple(v.shape) if name in fed else checked_sizes(v, f"the shape of '{name}'")
                for name, v in each.items()
            }
            for name, size in sizes.items():
                check_shape(infos[name], size)
            missing = [name for name in self._inputs if name not in sizes]
            if missing:
                raise InvalidInputError(
                    f"input '{missing[0]}' is missing",
                    hint=f"give every input a shape, for each plan: {', '.join(self._inputs)}",
                )
            arrays = {name: fed_array(infos[name], value) for name, value in fed.items()}
            sizes |= {state.input: state.initial.shape for state in self._states}
            self._overridable.session(infos.keys() - self._inputs.keys()).resize(sizes, arrays)

    def another(self) -> InferenceSession:
        """Return a second session of the same network; on a device they share the weights.

        It has its own plans, and so its own memory for activations, and is closed separately.

        Raises:
            InvalidInputError: the model has been released.
        """
        if self._network is None:
            raise InvalidInputError(
                "the session has released its model: it cannot open another one",
                hint="open all sessions first, or load the model again",
            )
        session = object.__new__(type(self))
        vars(session).update(vars(self))
        session._session = open_session(self._network, self._config, keeps_states=True)
        session._overridable = self._overridable.beside(session._session.core)
        session._session.plan_ahead()
        session._kept = session._new_kept()
        return session

    def counters(self) -> dict[str, int]:
        """Return counts of events that slow runs down.

        "plans" were created by this session; "recordings" and "submits" of command buffers, the
        "commands" in them (dispatches, copies and fills), "allocations" of device memory,
        "pipelines" created and "host_copies" of tensors are those of all users of the device since
        it was opened.
        """
        return self._session.core.counters()

    def trim(self) -> None:
        """Free memory that speeds up later runs: plans of other shapes, staging, idle pipelines."""
        for core in self._overridable.open_sessions():
            core.trim()

    def release_model(self) -> None:
        """Free the network in the host's memory, including weights and mapped files.

        A file whose weights the device reads in place stays mapped: it is device memory.

        Weights on the device stay, and runs continue at the shapes that have plans (see `prepare`);
        anything that needs a new plan raises InvalidInputError from then on.
        """
        self._network = None
        self._overridable.release_model()

    def placement(self) -> Placement:
        """Return where each op of the latest plan runs and why.

        Raises:
            InvalidInputError: nothing is planned yet, because the input shapes are symbolic.
        """
        return self._overridable.latest.placement()

    def profile(self, feeds: Mapping[str, Array], runs: int = 10) -> Profile:
        """Run the network a few times and measure where the time goes; `str()` gives a table.

        A separate plan is measured; the plans of `run` are unchanged.

        Args:
            feeds: as for `run`.
            runs: number of runs to measure; the profile holds medians.

        Raises:
            InvalidInputError: as `run`; or `runs` is below 1; or the device cannot measure time.
        """
        runs = checked_number(runs, "the number of runs", 1)
        core, arrays = self._checked(feeds)
        return core.profile(arrays, runs)

    def tune(
        self,
        feeds: Mapping[str, Array],
        runs: int = TUNING_RUNS,
        progress: Callable[[int, int], object] | None = None,
    ) -> Tuning:
        """Measure the kernels that the network could use at these shapes, and use the fastest.

        The choices are kept only if whole runs become faster. The results are stored on
        disk, per device and driver, and serve other sessions too (`VKMNN_TUNE`). The numpy backend
        has no choices.

        Args:
            feeds: as for `run`.
            runs: runs per candidate; the minimum time counts.
            progress: called with (done, total) after every trial; `total` may grow. If it returns
                True, no further candidate is tried, and the measurements so far decide.

        Raises:
            InvalidInputError: as `run`; or `runs` is below 1; or the device cannot measure time.
        """
        runs = checked_number(runs, "the number of runs", 1)
        core, arrays = self._checked(feeds)
        return core.tune(arrays, runs, progress)

    def memory(self) -> MemoryUse:
        """Return the device memory of the latest plan; all zeros on the numpy backend.

        Raises:
            InvalidInputError: nothing is planned yet, because the input shapes are symbolic.
        """
        return self._overridable.latest.memory()

    def __repr__(self) -> str:
        """Return inputs, outputs and device."""
        ins, outs = ", ".join(self._inputs), ", ".join(self._outputs)
        return f"<vkmnn.InferenceSession ({ins}) -> ({outs}) on {self.device.name}>"

    def close(self) -> None:
        """Release device memory; the session cannot be used afterwards."""
        self._overridable.close()


def _no_feeds(method: str, inputs: Iterable[str]) -> InvalidInputError:
    """Return the error for feeds passed in place of output names."""
    return InvalidInputError(
        f"{method} takes the names of the outputs, and then the feeds",
        hint=f"write {method}(None, {{'{next(iter(inputs), 'x')}': array}}) for all outputs",
    )


def _refuse(**arguments: object) -> None:
    """Reject onnxruntime's arguments and say where they belong."""
    for name, value in arguments.items():
        if value is not None:
            raise InvalidInputError(
                f"vkmnn.InferenceSession has no argument {name}",
                hint='write device="auto" or device=0; or use vkmnn.onnxruntime, which takes '
                "onnxruntime's arguments: import vkmnn.onnxruntime as ort",
            )
