"""ONNX's backend API: `prepare`, `run_model`, `run_node`, `supports_device`.

    import vkmnn.onnx_backend as backend

    rep = backend.prepare(model, device="VULKAN")
    (y,) = rep.run([x])

Devices are "VULKAN", "VULKAN:1" (an index of `vkmnn devices`) and "CPU", which is numpy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import defs, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from vkmnn.arguments import check_feeds
from vkmnn.errors import (
    ConversionError,
    DeviceNotFoundError,
    InvalidInputError,
    ModelError,
    VkmnnError,
    plural,
)
from vkmnn.ir import Array, DType
from vkmnn.opening import CPU_DEVICE, OpenSession, load_network
from vkmnn.opening.overridable import OverridableInputs
from vkmnn.schedule_config import ScheduleConfig

Inputs: TypeAlias = "Array | Sequence[Any] | Mapping[str, Any]"

_DEVICE = re.compile(r"(VULKAN|CPU)(?::([0-9]{1,4}))?", re.IGNORECASE)


class VkmnnBackendRep(BackendRep):
    """A model that is ready to run."""

    def __init__(self, session: OpenSession, overridable: OverridableInputs) -> None:
        graph = session.core.graph
        self.session = session
        self.overridable = overridable
        self._inputs = {info.name: info for info in graph.inputs}
        self._outputs = [info.name for info in graph.outputs]

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model.

        Args:
            inputs: an array for every input, in their order or by name; one array where there is
                one input. Inputs with a default value may be fed by name.
            kwargs: none.

        Returns:
            The outputs, by position or by name: `result[0]`, `result["y"]`.

        Raises:
            InvalidInputError: they do not fit the model's inputs.
        """
        _refuse(kwargs)
        overridden = self.overridable.fed(inputs)
        infos = {**self._inputs, **overridden}
        arrays = check_feeds(infos, self._by_name(inputs), self.session.core.graph.types)
        results = self.overridable.session(overridden).run(arrays)
        names = namedtupledict("Outputs", self._outputs)
        return names(*(results[name] for name in self._outputs))

    def _by_name(self, inputs: Inputs) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return {name: self._as_fed(name, value) for name, value in inputs.items()}
        given = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(given) != len(self._inputs):
            raise InvalidInputError(
                f"the model has {plural(len(self._inputs), 'input')}, got "
                f"{plural(len(given), 'array')}",
                hint=f"inputs: {', '.join(self._inputs) or 'none'}",
            )
        named = zip(self._inputs, given, strict=True)
        return {name: self._as_fed(name, one) for name, one in named}

    def _as_fed(self, name: str, value: Any) -> Any:
        """Return an array, or the value itself if it is not a tensor of a plain type."""
        info = self._inputs.get(name)
        is_object = info is not None and info.dtype is DType.OBJECT
        return value if is_object else np.asarray(value)


class VkmnnBackend(Backend):
    """vkmnn as a backend of ONNX."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "VULKAN", **kwargs: Any) -> bool:
        """Return whether vkmnn can load the model."""
        try:
            load_network(model)
        except (ConversionError, ModelError):
            return False
        return True

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "VULKAN", **kwargs: Any
    ) -> VkmnnBackendRep:
        """Load a model.

        Args:
            model: the model.
            device: "VULKAN", "VULKAN:1" or "CPU".
            kwargs: further settings of `ScheduleConfig`, such as `precision="fp16"`.

        Raises:
            ModelError: the model is not valid.
            UnsupportedOpError: it holds operators that vkmnn does not know.
            DeviceNotFoundError: the device does not exist.
            InvalidInputError: a setting is unknown.
        """
        config = ScheduleConfig.from_mapping({**kwargs, "device": _selector(device)})
        _, session, overridable = OverridableInputs.open(model, config)
        session.plan_ahead()
        return VkmnnBackendRep(session, overridable)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Inputs, device: str = "VULKAN", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Load a model and run it once; see `prepare` and `VkmnnBackendRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Inputs,
        device: str = "VULKAN",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator.

        Args:
            node: the operator.
            inputs: an array for every input that the node names, in order or by name.
            device: as for `prepare`.
            outputs_info: element type and shape of every output; None where they follow from the
                inputs.
            kwargs: `opset_version`, by default the newest that the onnx package knows; the rest is
                for `prepare`.

        Raises:
            VkmnnError: as `prepare` and `VkmnnBackendRep.run`.
        """
        opset = int(kwargs.pop("opset_version", defs.onnx_opset_version()))
        names = list(dict.fromkeys(name for name in node.input if name))
        given = [inputs] if isinstance(inputs, np.ndarray) else inputs
        values = list(given.values()) if isinstance(given, Mapping) else list(given)
        if len(values) != len(names):
            raise InvalidInputError(
                f"the node reads {len(names)} tensors, got {len(values)}",
                op=node.op_type,
                node=node.name,
                hint=f"inputs: {', '.join(names) or 'none'}",
            )
        order = list(given) if isinstance(given, Mapping) else names
        arrays = {name: np.asarray(value) for name, value in zip(order, values, strict=True)}
        outputs = [name for name in node.output if name]
        infos: list[tuple[Any, Any]] = list(outputs_info or [])
        infos = infos or [(None, None)] * len(outputs)
        graph = helper.make_graph(
            [node],
            "node",
            [_value(name, array.dtype, array.shape) for name, array in arrays.items()],
            [_value(name, *info) for name, info in zip(outputs, infos, strict=True)],
        )
        sets = {"": opset, node.domain: opset if not node.domain else 1}
        imports = [helper.make_opsetid(*item) for item in sets.items()]
        model = helper.make_model(graph, opset_imports=imports)
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether `prepare` would find the device."""
        try:
            selector = _selector(device)
        except VkmnnError:
            return False
        if selector == CPU_DEVICE:
            return True
        from vkmnn.runtime.device import enumerate_devices

        indices = [found.index for found in enumerate_devices(None)]
        return bool(indices) and (selector == "auto" or selector in indices)


def _selector(device: str) -> str | int:
    """Return the selector of `ScheduleConfig.device` for a device."""
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise DeviceNotFoundError(
            f"there is no device '{device}'", hint='devices are "VULKAN", "VULKAN:1" and "CPU"'
        )
    kind, index = match.groups()
    if kind.upper() == "CPU":
        return CPU_DEVICE
    return "auto" if index is None else int(index)


def _value(name: str, dtype: Any, shape: Any) -> onnx.ValueInfoProto:
    kind = 0 if dtype is None else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, shape)


def _refuse(kwargs: Mapping[str, Any]) -> None:
    if kwargs:
        raise InvalidInputError(f"a run has no setting '{next(iter(kwargs))}'")


is_compatible = VkmnnBackend.is_compatible
prepare = VkmnnBackend.prepare
run_model = VkmnnBackend.run_model
run_node = VkmnnBackend.run_node
supports_device = VkmnnBackend.supports_device
