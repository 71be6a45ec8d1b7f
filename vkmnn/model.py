"""`vkmnn.load(path)(x)`: a network as a function of arrays."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.arguments import check_feeds, checked_input_shapes
from vkmnn.base.budget import Budget
from vkmnn.base.closing import Closing
from vkmnn.errors import InvalidInputError, plural
from vkmnn.ir import Array, TensorInfo
from vkmnn.opening import CpuInfo
from vkmnn.opening.overridable import OverridableInputs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.schedule_config import (
    OnDeviceLost,
    OnOverflow,
    PrecisionName,
    ScheduleConfig,
    Unsupported,
)

if TYPE_CHECKING:
    from vkmnn.opening.network import UserModel


def load(
    model: UserModel,
    device: str | int = "auto",
    *,
    precision: PrecisionName = "high",
    require_device: bool = False,
    on_device_lost: OnDeviceLost = "raise",
    on_overflow: OnOverflow = "warn",
    budget: Budget | None = None,
    unsupported: Unsupported = "cpu",
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
) -> Model:
    """Load a model as a function: `vkmnn.load("model.onnx")(x)`.

    Args:
        model: a path, serialised bytes, an onnx.ModelProto, or PyTorch's ExportedProgram or
            ScriptModule.
        device: "auto", an index, part of a name, a UUID, or "cpu"; see `ScheduleConfig`.
        precision: "fp32" or "fp16"; see `ScheduleConfig`.
        require_device: raise PlacementError instead of running an op on the CPU backend.
        on_device_lost: "raise" or "rebuild"; see `ScheduleConfig`.
        on_overflow: "warn", "high", "raise" or "ignore"; see `ScheduleConfig`.
        budget: limits of loading and planning; see `Budget`.
        unsupported: "cpu" or "raise", as for `InferenceSession`.
        input_shapes: shapes that replace those of the file, as for `InferenceSession`.

    Raises:
        ModelError: the file is missing, damaged or not a model.
        UnsupportedOpError: operators that vkmnn does not know; all of them are listed.
        DeviceNotFoundError: the requested device does not exist.
    """
    config = ScheduleConfig(
        device=device,
        precision=precision,
        require_device=require_device,
        on_device_lost=on_device_lost,
        on_overflow=on_overflow,
    )
    shapes = checked_input_shapes(input_shapes)
    return Model(model, config, budget, unsupported=unsupported, shapes=shapes)


class Model(Closing):
    """A callable network; created by `vkmnn.load`.

    Attributes:
        inputs: the inputs by name, in the order of positional arguments; those with a default
            value, which calls may pass by name, are not included.
        outputs: the outputs by name.
        device: the device.
    """

    def __init__(
        self,
        model: UserModel,
        config: ScheduleConfig,
        budget: Budget | None = None,
        **options: Any,
    ) -> None:
        network, self._session, self._overridable = OverridableInputs.open(
            model, config, budget, **options
        )
        self._session.plan_ahead()
        self.inputs: dict[str, TensorInfo] = {info.name: info for info in network.graph.inputs}
        self.outputs: dict[str, TensorInfo] = {info.name: info for info in network.outputs}
        self.device: DeviceInfo | CpuInfo = self._session.device
        names = [re.sub(r"\W", "_", name) for name in self.outputs]
        self._results: Any = _named_tuple(names)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run the network.

        Args:
            arrays: one array per input, in their order; or one dictionary by name, for names that
                are not Python identifiers.
            named: arrays by the names of their inputs, after those by position.

        Returns:
            The array, where the network has one output; else a named tuple of arrays. Characters
            that Python does not take in names become "_" in its fields; a field that could not be
            called so either is "_" and its position.

        Raises:
            InvalidInputError: too many or too few arrays, an unknown name, a wrong dtype or shape.
                Lists and numbers take the input's dtype; arrays have to have it.
        """
        given = self._by_name(arrays, named)
        overridden = self._overridable.fed(given)
        infos = {**self.inputs, **overridden}
        feeds = {name: _as_array(infos.get(name), value) for name, value in given.items()}
        types = self._session.core.graph.types
        session = self._overridable.session(overridden)
        results = session.run(check_feeds(infos, feeds, types))
        arrays_out = [results[name] for name in self.outputs]
        return arrays_out[0] if len(arrays_out) == 1 else self._results(*arrays_out)

    def _by_name(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            arrays, named = tuple[Any, ...](), {**arrays[0], **named}
        if len(arrays) > len(self.inputs):
            raise InvalidInputError(
                f"the network has {plural(len(self.inputs), 'input')}, got "
                f"{plural(len(arrays), 'array')}",
                hint=f"inputs: {', '.join(self.inputs) or 'none'}",
            )
        feeds = dict(zip(self.inputs, arrays, strict=False))
        for name in named:
            if name in feeds:
                raise InvalidInputError(f"input '{name}' is given twice")
        return {**feeds, **named}

    def __repr__(self) -> str:
        """Return inputs, outputs and device."""
        ins, outs = (
            ", ".join(f"{info.name}: {info.dtype.value}{_shape(info)}" for info in infos.values())
            for infos in (self.inputs, self.outputs)
        )
        return f"<vkmnn.Model ({ins}) -> ({outs}) on {self.device.name}>"

    def close(self) -> None:
        """Release device memory; the model cannot be called afterwards."""
        self._overridable.close()


def _named_tuple(names: list[str]) -> Any:
    fields: Any = names  # of each network its own
    return namedtuple("Outputs", fields, rename=True)  # noqa: PYI024


def _as_array(info: TensorInfo | None, value: Any) -> Array:
    """Return an argument as an array; Python values get the input's dtype."""
    if info is None or hasattr(value, "__array__"):
        array: Array = np.asarray(value)
        return array
    try:
        return np.asarray(value, info.dtype.numpy)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"input '{info.name}': {type(value).__name__} is not an array of {info.dtype.value}: "
            f"{error}",
            hint="pass a numpy array",
        ) from error


def _shape(info: TensorInfo) -> str:
    sizes = ("?" if size is None else str(size) for size in info.shape or ())
    return "[…]" if info.shape is None else f"[{', '.join(sizes)}]"
