"""InferenceSession with onnxruntime's arguments, methods and messages."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.arguments import checked_object
from vkmnn.base.records import dataclass
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.session import Session as CoreSession
from vkmnn.ir import Array, DType, TensorInfo
from vkmnn.onnxruntime.binding import IOBinding
from vkmnn.onnxruntime.enums import GraphOptimizationLevel
from vkmnn.onnxruntime.errors import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
    translated,
)
from vkmnn.onnxruntime.options import RunOptions, SessionOptions
from vkmnn.onnxruntime.providers import CPU, VULKAN, Chosen, choose
from vkmnn.onnxruntime.values import OrtValue, type_name
from vkmnn.opening import Network, OpenSession
from vkmnn.opening.overridable import OverridableInputs
from vkmnn.runtime.device_info import DeviceInfo


@dataclass(frozen=True, slots=True)
class NodeArg:
    """Name, type and shape of an input or output."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Metadata of the model file."""

    custom_metadata_map: dict[str, str] = field(default_factory=dict)
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    graph_name: str = ""
    producer_name: str = ""
    version: int = 0


class Session:
    """Base of sessions, which programs name in `isinstance`."""


class InferenceSession(Session):
    """Run an ONNX model as onnxruntime's class of this name does.

    Args:
        path_or_bytes: a path, or the bytes of a model.
        sess_options: see `SessionOptions`.
        providers: names, or pairs of name and options, the preferred first; None for Vulkan, then
            the CPU. Options of `VulkanExecutionProvider`: device_id, device, precision, driver,
            validation, require_device, on_device_lost, on_overflow, max_plans; see
            `vkmnn.ScheduleConfig`.
        provider_options: options by position, where `providers` holds names only.
        kwargs: ignored, as onnxruntime ignores unknown arguments.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph, NotImplemented, Fail: as onnxruntime.
        ValueError: providers and their options do not fit together.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._model_path: str | None = None
        self._model_bytes: bytes | None = None
        if isinstance(path_or_bytes, str | os.PathLike):
            self._model_path = os.fspath(path_or_bytes)
        elif isinstance(path_or_bytes, bytes | bytearray | memoryview):
            self._model_bytes = bytes(path_or_bytes)
        else:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options is {type(sess_options)}, not SessionOptions")
        self._options = sess_options or SessionOptions()
        if self._options.ignored():
            names = ", ".join(self._options.ignored())
            warnings.warn(f"vkmnn ignores these session options: {names}", stacklevel=2)
        self._enable_fallback = True
        self._started_ns = time.perf_counter_ns()
        self._last: tuple[CoreSession, dict[str, Array]] | None = None
        self._open(providers, provider_options)

    def _open(self, providers: Sequence[Any] | None, options: Sequence[Any] | None) -> None:
        with translated():
            self._chosen: Chosen = choose(providers, options, self._options.no_cpu_fallback)
        self._network, self._main, self._overridable = self._load()
        graph = self._network.graph
        self._inputs = {info.name: info for info in self._network.source.inputs}
        self._types = graph.types
        self._output_names = [info.name for info in graph.outputs]

    def _load(self) -> tuple[Network, OpenSession, OverridableInputs]:
        path = self._model_path
        if path is not None and "://" not in path and _is_missing(Path(path)):
            text = f"Load model from {path} failed:Load model {path} failed. File doesn't exist"
            raise NoSuchFile(text)
        if path is not None and _is_plain_folder(Path(path)):
            # An unchanged program may try a folder and expect to be refused.
            raise InvalidProtobuf(f"Load model from {path} failed:Protobuf parsing failed.")
        level = self._options.graph_optimization_level
        with translated(path):
            network, opened, overridable = OverridableInputs.open(
                path if path is not None else self._model_bytes or b"",
                self._chosen.config,
                sizes=self._options.sizes,
                optimised=level is not GraphOptimizationLevel.ORT_DISABLE_ALL,
            )
        network = network.settled()  # before weights are packed, which takes memory
        with translated():
            opened.plan_ahead()
        return network, opened, overridable

    # --- properties ------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """Return the required inputs of `run`."""
        return [_node_arg(info, self._types) for info in self._inputs.values()]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs that `run` gives."""
        return [_node_arg(info, self._types) for info in self._network.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the initializers that `run` accepts as additional inputs."""
        return [_node_arg(info, self._types) for info in self._overridable.infos.values()]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the model file."""
        found = self._network.source.metadata
        return ModelMetadata(
            custom_metadata_map=dict(found.properties),
            description=found.description,
            domain=found.domain,
            graph_description=found.graph_description,
            graph_name=found.graph_name,
            producer_name=found.producer,
            version=found.version,
        )

    def get_providers(self) -> list[str]:
        """Return the providers in order."""
        return list(self._chosen.names)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of every provider; Vulkan's include its device."""
        options = {name: dict(given) for name, given in self._chosen.options.items()}
        device = self._main.device
        if VULKAN in options and isinstance(device, DeviceInfo):
            options[VULKAN].setdefault("device_id", str(device.index))
            options[VULKAN].setdefault("device", device.name)
            options[VULKAN].setdefault("precision", self._main.precision)
        return options

    def get_session_options(self) -> SessionOptions:
        """Return the session's options."""
        return self._options

    def set_providers(
        self,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
    ) -> None:
        """Reopen the model on other providers."""
        old = self._overridable
        self._open(providers, provider_options)
        old.close()

    def enable_fallback(self) -> None:
        """Do nothing: no provider is exchanged for another after an error."""
        self._enable_fallback = True

    def disable_fallback(self) -> None:
        """Do nothing: no provider is exchanged for another after an error."""
        self._enable_fallback = False

    @property
    def _input_names(self) -> list[str]:
        return [*self._inputs, *self._overridable.infos]

    @property
    def _providers(self) -> list[str]:
        return self.get_providers()

    @property
    def _provider_options(self) -> dict[str, dict[str, str]]:
        return self.get_provider_options()

    @property
    def _fallback_providers(self) -> list[str]:
        return [CPU]

    # --- running ---------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Array]:
        """Run the network.

        Args:
            output_names: which outputs to return; None, or none, for all.
            input_feed: an array, a list of numbers or an OrtValue for every input, and for those
                overridable initializers that are to have another value.
            run_options: see `RunOptions`.

        Raises:
            ValueError: an input is missing.
            InvalidArgument: a name, type, rank or size that the model does not have.
            Fail: a node cannot run on these inputs.
        """
        wanted = self._wanted(output_names)
        _check_run_options(run_options)
        results = self._run(input_feed)
        return [results[name] for name in wanted]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run on OrtValues and return OrtValues."""
        wanted = self._wanted(output_names)
        _check_run_options(run_options)
        results = self._run(input_dict_ort_values)
        return [OrtValue(results[name]) for name in wanted]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Array], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run in another thread, which calls `callback(results, user_data, error)` at the end."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as failure:  # noqa: BLE001 - the callback is told
                results, error = [], str(failure)
            callback(results, user_data, error)

        threading.Thread(target=work, name="vkmnn-run-async").start()

    def io_binding(self) -> IOBinding:
        """Return a new binding of inputs and outputs to memory."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run on bound inputs; results go to the bound outputs.

        Raises:
            RuntimeError: as `run`, or nothing is bound as an output.
        """
        _check_run_options(run_options)
        iobinding.run()

    def _wanted(self, output_names: Sequence[str] | None) -> list[str]:
        if isinstance(output_names, str | bytes) or not hasattr(output_names or (), "__len__"):
            raise TypeError(
                "run(): incompatible function arguments: output_names is a list of names, not "
                f"{output_names!r}"
            )
        wanted = list(output_names or self._output_names)
        for name in wanted:
            if name not in self._output_names:
                raise InvalidArgument(
                    f"Invalid output name:{name}", hint=f"outputs: {', '.join(self._output_names)}"
                )
        return wanted

    def _run(self, feed: Mapping[str, Any], on_device: Collection[str] = ()) -> dict[str, Any]:
        """Run; return arrays, and DeviceTensors of the outputs that are to stay on the device."""
        names = list(feed.keys())
        if not set(self._inputs) <= set(names):
            missing = list(self._inputs)
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({names}).")
        self._check_names(names)
        fed = self._overridable.fed(feed)
        infos = {**self._inputs, **fed}
        with translated():
            objects = {
                name: checked_object(name, self._types.get(name, ""), feed[name])
                for name, info in infos.items()
                if info.dtype is DType.OBJECT
            }
        plain = {name: info for name, info in infos.items() if name not in objects}
        upload = self._main.core.upload
        arrays = objects | {
            name: _as_array(info, feed[name], upload) for name, info in plain.items()
        }
        with translated():
            core = self._overridable.session(fed)
            if self._options.enable_profiling:
                self._last = core, arrays
            if not on_device:
                return core.run(arrays)
            made = core.run_on_device(arrays, self._output_names)
            return {
                name: tensor if name in on_device else np.array(tensor)
                for name, tensor in made.items()
            }

    def _check_names(self, names: Sequence[str]) -> None:
        known = self._input_names
        for name in names:
            if name not in known:
                raise InvalidArgument(
                    f"Invalid input name: {name}", hint=f"inputs: {', '.join(self._inputs)}"
                )

    # --- profiling -------------------------------------------------------------------------------

    def get_profiling_start_time_ns(self) -> int:
        """Return when profiling began, 0 without `enable_profiling`."""
        return self._started_ns if self._options.enable_profiling else 0

    def end_profiling(self) -> str:
        """Measure the last run again and write a trace; return its path.

        Without `enable_profiling`, or before the first run, nothing is written and "" returned.
        """
        if not self._options.enable_profiling or self._last is None:
            return ""
        core, arrays = self._last
        with translated():
            profile = core.profile(arrays, 1)
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        path = f"{self._options.profile_file_prefix}{stamp}.json"
        profile.to_chrome_trace(path)
        return path


def _is_plain_folder(path: Path) -> bool:
    try:
        return path.is_dir() and not (path / "saved_model.pb").exists()
    except (OSError, ValueError):
        return False  # the front end reports the error


def _is_missing(path: Path) -> bool:
    try:
        return not path.exists()
    except (OSError, ValueError):
        return False  # the front end reports the error


def _node_arg(info: TensorInfo, types: Mapping[str, str]) -> NodeArg:
    return NodeArg(info.name, types.get(info.name, info.dtype.onnx), list(info.shape or ()))


def _check_run_options(options: RunOptions | None) -> None:
    if options is None:
        return
    if not isinstance(options, RunOptions):
        raise TypeError(
            f"run(): incompatible function arguments: run_options is {options!r}, not RunOptions"
        )
    if options.terminate:
        raise Fail("Exiting due to terminate flag being set to true.")


def _as_array(info: TensorInfo, value: Any, upload: Callable[[Array], DeviceTensor]) -> Any:
    """Return a fed value as a C-contiguous array of the input's type, or as a DeviceTensor.

    Raises:
        InvalidArgument: another element type, rank or size.
        RuntimeError: onnxruntime would reject it.
    """
    if value is None:
        raise Fail(f"Missing Input: {info.name}", hint="feed an array")
    if isinstance(value, OrtValue):
        value = value._fed(upload)
    elif isinstance(value, list | tuple):
        value = np.asarray(value, info.dtype.numpy)
    if not isinstance(value, np.ndarray | DeviceTensor):
        raise RuntimeError(f"Unable to handle object of type {type(value)}")
    if type_name(value) != info.dtype.onnx:
        raise InvalidArgument(
            f"Unexpected input data type. Actual: ({type_name(value)}) , expected: "
            f"({info.dtype.onnx})",
            hint=f"input '{info.name}': convert it with .astype('{info.dtype.value}')",
        )
    _check_shape(info, value.shape)
    if isinstance(value, DeviceTensor):
        return value
    array: Array = np.ascontiguousarray(value, info.dtype.numpy).reshape(value.shape)
    return array


def _check_shape(info: TensorInfo, shape: tuple[int, ...]) -> None:
    if info.shape is None:
        return
    ending = " Please fix either the inputs/outputs or the model."
    if len(shape) != len(info.shape):
        raise InvalidArgument(
            f"Invalid rank for input: {info.name} Got: {len(shape)} Expected: {len(info.shape)}"
            f"{ending}"
        )
    wrong = [
        f" index: {axis} Got: {have} Expected: {want}\n"
        for axis, (have, want) in enumerate(zip(shape, info.shape, strict=True))
        if isinstance(want, int) and want != have
    ]
    if wrong:
        raise InvalidArgument(
            f"Got invalid dimensions for input: {info.name} for the following indices\n"
            f"{''.join(wrong)}{ending}"
        )
