"""MNN.nn, as far as it runs models: load_module_from_file and create_runtime_manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from vkmnn.arguments import check_feeds
from vkmnn.errors import InvalidInputError, plural
from vkmnn.ir import Array, TensorInfo
from vkmnn.mnn.config import schedule
from vkmnn.mnn.expr import cells
from vkmnn.mnn.expr.types import (
    Backend,
    MemoryMode,
    PowerMode,
    PrecisionMode,
    data_format,
    dtype_of,
)
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.refused import refuse
from vkmnn.mnn.tensor import Tensor_DimensionType_Caffe, converted, reordered
from vkmnn.opening import open_model
from vkmnn.opening.paths import OpenPaths
from vkmnn.opening.reshaped import Openings, fitting


class RuntimeManager:
    """Holds a configuration for `load_module_from_file`."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config = dict(config or {})

    def set_cache(self, path: str) -> None:
        """Do nothing: vkmnn keeps its caches in its own folder."""

    def update_cache(self) -> None:
        """Do nothing: see `set_cache`."""

    def set_external(self, path: str) -> None:
        """Do nothing: an ONNX model names its external data itself."""

    def set_mode(self, mode: int) -> None:
        """Do nothing: modules plan when they get new shapes."""

    def set_hint(self, mode: int, value: int) -> None:
        """Do nothing: hints are about MNN's own kernels."""


def create_runtime_manager(
    config: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> RuntimeManager:
    """Return a runtime of a configuration, or of the first of several.

    Raises:
        InvalidInputError: it holds an unknown key or value.
    """
    first = config if isinstance(config, Mapping) else (list(config) or [{}])[0]
    schedule(first)
    return RuntimeManager(first)


class _Module:
    """A loaded network, to be called with Vars."""

    def __init__(
        self,
        openings: Openings,
        inputs: Sequence[str],
        outputs: Sequence[str],
        about: Mapping[str, str],
    ) -> None:
        self._openings = openings
        self._about = about
        graph = openings.current.core.graph
        self._declared = {info.name: info for info in graph.inputs}
        self._infos = {name: replace(one, shape=None) for name, one in self._declared.items()}
        self._inputs = _chosen(inputs, list(self._infos), "input")
        self._outputs = _chosen(outputs, [info.name for info in graph.outputs], "output")
        if set(self._inputs) != set(self._infos):
            missing = sorted(set(self._infos) - set(self._inputs))
            raise InvalidInputError(
                f"the network needs input '{missing[0]}' too",
                hint=f"inputs: {', '.join(self._infos)}",
            )
        self.name = ""

    @property
    def is_training(self) -> bool:
        """False: modules are for inference."""
        return False

    def train(self, is_training: bool = True) -> None:
        """Refuse to train.

        Raises:
            InvalidInputError: `is_training` is true.
        """
        if is_training:
            raise InvalidInputError("vkmnn does not train networks")

    def set_name(self, name: str) -> None:
        """Set the module's name."""
        self.name = name

    @property
    def parameters(self) -> list[Var]:
        """No Vars: modules that are loaded are not trained."""
        return []

    def get_info(self) -> dict[str, Any]:
        """Return the file's metadata, and the names of inputs and outputs.

        "inputs" has a dictionary for each input: its "shape", with -1 for open sizes, "dtype" and
        "data_format".
        """
        inputs = [
            {
                "shape": [dim if isinstance(dim, int) else -1 for dim in info.shape or ()],
                "dtype": dtype_of(info.dtype.value),
                "data_format": data_format.NCHW,
            }
            for info in map(self._declared.__getitem__, self._inputs)
        ]
        names = {"inputNames": list(self._inputs), "outputNames": list(self._outputs)}
        return {**self._about, **names, "inputs": inputs}

    def clone(self) -> _Module:
        """Return another module of the same network, with separate plans.

        Devices hold the weights once.
        """
        made = _Module(self._openings.another(), self._inputs, self._outputs, self._about)
        made.name = self.name
        return made

    def clear_cache(self) -> None:
        """Do nothing: plans are kept for recent shapes."""

    def onForward(self, inputs: Any) -> list[Var]:
        """Run the network on a Var, or a list of them; return all outputs.

        Vars of format NHWC are transposed: networks have their channels second. Arrays are passed
        unchanged.

        Raises:
            InvalidInputError: another number of inputs, a wrong shape or type.
        """
        given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(given) != len(self._inputs):
            raise InvalidInputError(
                f"the module takes {plural(len(self._inputs), 'input')}, got {len(given)}",
                hint=f"inputs: {', '.join(self._inputs)}",
            )
        feeds = {
            name: _fed(self._infos[name], value)
            for name, value in zip(self._inputs, given, strict=True)
        }
        arrays = check_feeds(self._infos, feeds)
        current = self._openings.current  # another thread may exchange it
        if not fitting(current.core.graph.inputs, arrays):
            current = self._openings.fit({name: array.shape for name, array in arrays.items()})
        results = current.core.run(arrays)
        return [Var(results[name], name=name) for name in self._outputs]

    def forward(self, inputs: Any) -> Any:
        """Run the network on a list of Vars and return a list, or on a Var and return one.

        For a Var, several outputs are a list all the same.
        """
        results = self.onForward(inputs)
        one = len(results) == 1 and not isinstance(inputs, list | tuple)
        return results[0] if one else results

    __call__ = forward


Module = _Module


def load_module_from_file(
    file_name: str | Path,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    dynamic: bool = False,
    shape_mutable: bool = False,
    rearrange: bool = False,
    backend: int | str = Backend.VULKAN,
    memory_mode: int = MemoryMode.Normal,
    power_mode: int = PowerMode.Normal,
    precision_mode: int = PrecisionMode.High,
    thread_num: int = 4,
    runtime_manager: RuntimeManager | None = None,
) -> _Module:
    """Load a model as a module.

    Args:
        file_name: the model.
        input_names: the order of the inputs; none for the model's.
        output_names: which outputs, in their order; none for all.
        dynamic: ignored, as `shape_mutable`, `rearrange` and `thread_num`: shapes may always
            change.
        shape_mutable: ignored.
        rearrange: ignored.
        backend: as in a session's configuration.
        memory_mode: as "memory" in a session's configuration.
        power_mode: as "power" there.
        precision_mode: `PrecisionMode.High` computes in float32, the others store float16.
        thread_num: ignored.
        runtime_manager: a configuration instead of `backend` and the modes.

    Raises:
        ModelError: the file is missing, damaged or not a model.
        InvalidInputError: the model has no such input or output.
    """
    settings = {
        "backend": backend,
        "precision": precision_mode,
        "memory": memory_mode,
        "power": power_mode,
    }
    if runtime_manager is not None:
        settings = runtime_manager._config
    plain = {key: _plain(value) for key, value in settings.items()}
    return open_module(file_name, input_names, output_names, plain)


def open_module(
    path: str | Path,
    inputs: Sequence[str],
    outputs: Sequence[str],
    settings: Mapping[str, Any],
) -> _Module:
    """Load a model as a module, with a session's configuration.

    Raises:
        ModelError: the file is missing, damaged or not a model.
        InvalidInputError: the model has no such input or output.
    """
    config = schedule(settings)
    network, opened = open_model(path, config)
    first = OpenPaths(opened.core, (opened.device,), opened.precision)
    about = {"version": network.source.metadata.producer.removeprefix("MNN "), "bizCode": ""}
    module = _Module(Openings(network, [config], first), inputs, outputs, about)
    opened.plan_ahead()
    return module


class _Computed:
    """A module made of Vars."""

    def __init__(self, inputs: Sequence[Var], outputs: Sequence[Var]) -> None:
        self._inputs, self._outputs = list(inputs), list(outputs)
        self.name = ""

    @property
    def is_training(self) -> bool:
        """False: modules are for inference."""
        return False

    def onForward(self, inputs: Any) -> list[Var]:
        """Compute the outputs with other Vars in place of the inputs.

        Raises:
            InvalidInputError: another number of inputs.
        """
        given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(given) != len(self._inputs):
            raise InvalidInputError(
                f"the module takes {plural(len(self._inputs), 'input')}, got {len(given)}"
            )
        values = {
            id(own._cell): np.asarray(value) for own, value in zip(self._inputs, given, strict=True)
        }
        outputs = [one._cell for one in self._outputs]
        arrays = cells.substituted(outputs, values)
        return [
            Var(array, one.format, one.name) for array, one in zip(arrays, outputs, strict=True)
        ]

    def forward(self, inputs: Any) -> Any:
        """Compute the outputs for a list of Vars and return a list, or for a Var and return one."""
        results = self.onForward(inputs)
        one = len(results) == 1 and not isinstance(inputs, list | tuple)
        return results[0] if one else results

    __call__ = forward


def load_module(inputs: Sequence[Var], outputs: Sequence[Var], for_training: bool) -> _Computed:
    """Return a module that computes Vars from others.

    Raises:
        InvalidInputError: it is for training.
    """
    if for_training:
        raise InvalidInputError("vkmnn does not train networks", hint="pass False")
    return _Computed(inputs, outputs)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, Backend | PrecisionMode) else value


def _chosen(wanted: Sequence[str], known: list[str], what: str) -> list[str]:
    for name in wanted:
        if name not in known:
            raise InvalidInputError(
                f"the network has no {what} '{name}'", hint=f"its {what}s: {', '.join(known)}"
            )
    return list(wanted) or known


def _fed(info: TensorInfo, value: Any) -> Array:
    if isinstance(value, Var):
        array = reordered(value.read(), value._order, Tensor_DimensionType_Caffe)
    else:
        array = np.asarray(value)
    return np.ascontiguousarray(converted(array, info.dtype.numpy, f"input '{info.name}'"))


def __getattr__(name: str) -> NoReturn:
    """Raise for a missing name, with the reason."""
    refuse("nn", name)
